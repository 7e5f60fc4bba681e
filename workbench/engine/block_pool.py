"""The pool of physical KV blocks: who may write where, and how many use it.

A block is `block_size` token slots in every layer's key and value storage. The pool knows counts
and contents, no requests: it alone changes reference counts, contents and the free queues (arXiv
2309.06180).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from workbench.engine.block_key import BlockKey
from workbench.engine.prefix_index import PrefixIndex
from workbench.telemetry.records import BlockStatus


class BlockPool:
    """Fixed number of blocks. Empty ones are handed out first, first-in first-out.

    A block that is freed while its contents are known stays as they are: it is cached, and is evicted
    only when no empty block is left, the least recently used first. Of a sequence the last block is
    freed first, so the head of a context, which others may share, outlives its tail.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Create `num_blocks` free blocks of `block_size` slots."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._num_filled = [0] * num_blocks
        self._num_active_filled = 0
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index = PrefixIndex(num_evicted=4 * num_blocks)
        self._changed: set[int] = set(range(num_blocks))
        """All at first, so that the first record of a new pool is a full picture of it."""

    @property
    def num_free(self) -> int:
        """Blocks that an allocation can take: empty and cached ones."""
        return len(self._empty) + len(self._cached)

    @property
    def num_active(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are kept for reuse."""
        return len(self._cached)

    @property
    def num_unused_slots(self) -> int:
        """Slots of active blocks that hold no computed token."""
        return self.num_active * self.block_size - self._num_active_filled

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, all or nothing. Return their ids, or None when too few are free."""
        if count > self.num_free:
            return None
        block_ids = [self._take_one() for _ in range(count)]
        self._hand_out(block_ids)
        return block_ids

    @property
    def empty_blocks(self) -> Iterable[int]:
        """Ids of the free blocks that hold nothing worth keeping."""
        return self._empty.keys()

    def allocate_run(self, first: int, count: int) -> list[int]:
        """Take `count` consecutive blocks, all of them empty, from `first` on. Return their ids."""
        block_ids = list(range(first, first + count))
        for block_id in block_ids:
            assert block_id in self._empty, f"block {block_id} is not empty"
            del self._empty[block_id]
        self._hand_out(block_ids)
        return block_ids

    def _hand_out(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
            self._num_filled[block_id] = 0
            self._changed.add(block_id)

    def _take_one(self) -> int:
        if self._empty:
            return self._empty.popitem(last=False)[0]
        block_id = self._cached.popitem(last=False)[0]
        self._index.remove(block_id)
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each of these blocks, which are active or cached."""
        for block_id in block_ids:
            is_cached = block_id in self._cached
            assert is_cached or self._ref_counts[block_id] > 0, f"block {block_id} is free and cannot be shared"
            if is_cached:
                del self._cached[block_id]
                self._num_active_filled += self._num_filled[block_id]
            self._ref_counts[block_id] += 1
            self._changed.add(block_id)

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, given in logical order."""
        for block_id in reversed(block_ids):
            assert self._ref_counts[block_id] > 0, f"block {block_id} is freed twice"
            self._ref_counts[block_id] -= 1
            self._changed.add(block_id)
            if self._ref_counts[block_id] > 0:
                continue
            self._num_active_filled -= self._num_filled[block_id]
            if self._index.key_of(block_id) is not None:
                self._cached[block_id] = None
            else:
                self._num_filled[block_id] = 0
                self._empty[block_id] = None

    def remember(self, block_id: int, key: BlockKey) -> BlockKey:
        """Note what a full, active block holds, so that it can be found. Return the key it is known by."""
        assert self._num_filled[block_id] == self.block_size, f"block {block_id} is not full"
        return self._index.add(block_id, key)

    def find(self, key: BlockKey) -> tuple[int, BlockKey] | None:
        """Return a block that holds these contents and the key it is known by, None where there is none."""
        return self._index.find(key)

    def key_of(self, block_id: int) -> BlockKey | None:
        """Return what a block is known to hold, None where nothing is known."""
        return self._index.key_of(block_id)

    def is_cached(self, block_id: int) -> bool:
        """Whether nobody holds the block and its contents are kept."""
        return block_id in self._cached

    def was_evicted(self, key: BlockKey) -> bool:
        """Whether these contents were cached and had to make room."""
        return self._index.was_evicted(key)

    def common_length(self, key: BlockKey) -> int:
        """Return how many tokens of a missing block agree with known blocks in the same place."""
        return self._index.common_length(key)

    def set_filled(self, block_id: int, num_filled: int) -> None:
        """Record that the first `num_filled` slots of a block hold computed tokens."""
        assert 0 <= num_filled <= self.block_size and self._ref_counts[block_id] > 0
        if num_filled < self.block_size:
            self._index.remove(block_id)
        if self._num_filled[block_id] != num_filled:
            self._num_active_filled += num_filled - self._num_filled[block_id]
            self._num_filled[block_id] = num_filled
            self._changed.add(block_id)

    def ref_count(self, block_id: int) -> int:
        """Return how many block tables hold the block."""
        return self._ref_counts[block_id]

    def num_filled(self, block_id: int) -> int:
        """Return how many slots of the block hold computed tokens."""
        return self._num_filled[block_id]

    def status(self, block_id: int) -> BlockStatus:
        """Return whether the block is free, cached or active."""
        if self._ref_counts[block_id]:
            return BlockStatus.ACTIVE
        return BlockStatus.CACHED if block_id in self._cached else BlockStatus.FREE

    @property
    def has_changes(self) -> bool:
        """Whether any block changed since `take_changed` was last called."""
        return bool(self._changed)

    def take_changed(self) -> list[int]:
        """Return the ids of blocks that changed since the last call, in order, and forget them."""
        changed = sorted(self._changed)
        self._changed.clear()
        return changed

    def check_integrity(self, references: Mapping[int, int]) -> None:
        """Assert that every reference is accounted for and free + active == total.

        Args:
            references: block id → number of block tables that hold it.
        """
        for block_id in range(self.num_blocks):
            count = self._ref_counts[block_id]
            expected = references.get(block_id, 0)
            assert count == expected, f"block {block_id} has {count} references, tables hold {expected}"
            is_empty, is_cached = block_id in self._empty, block_id in self._cached
            assert (count == 0) == (is_empty or is_cached), f"block {block_id}: free queues disagree"
            is_known = self._index.key_of(block_id) is not None
            assert not (is_empty and (is_cached or is_known)), f"empty block {block_id} is known"
            assert not is_cached or is_known, f"nobody finds cached block {block_id}"
            assert not is_known or self._num_filled[block_id] == self.block_size
            assert count or is_cached or not self._num_filled[block_id], f"empty block {block_id} counts as filled"
        assert len(self._empty) + len(self._cached) + self.num_active == self.num_blocks
        active = [block_id for block_id in range(self.num_blocks) if self._ref_counts[block_id]]
        assert self._num_active_filled == sum(self._num_filled[block_id] for block_id in active)
