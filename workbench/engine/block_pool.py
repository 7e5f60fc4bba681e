"""The pool of physical KV blocks: who may write where, and how many use it.

A block is `block_size` token slots in every layer's key and value storage. The pool knows counts
and contents, no requests: it alone changes reference counts and the free queue (arXiv 2309.06180).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from workbench.telemetry.records import BlockStatus


class BlockPool:
    """Fixed number of blocks, handed out first-in first-out.

    Freed blocks join the end of the queue, the last block of a sequence first, so that once their
    contents are kept for reuse, the head of a context outlives its tail.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Create `num_blocks` free blocks of `block_size` slots."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._num_filled = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._changed: set[int] = set(range(num_blocks))
        """All at first, so that the first record of a new pool is a full picture of it."""

    @property
    def num_free(self) -> int:
        """Blocks that an allocation can take."""
        return len(self._free)

    @property
    def num_active(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are kept for reuse; none until prefix caching exists."""
        return 0

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks, all or nothing. Return their ids, or None when too few are free."""
        if count > len(self._free):
            return None
        block_ids = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
            self._num_filled[block_id] = 0
        self._changed.update(block_ids)
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each of these active blocks."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._ref_counts[block_id] += 1
            self._changed.add(block_id)

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, given in logical order."""
        for block_id in reversed(block_ids):
            assert self._ref_counts[block_id] > 0, f"block {block_id} is freed twice"
            self._ref_counts[block_id] -= 1
            self._changed.add(block_id)
            if self._ref_counts[block_id] == 0:
                self._num_filled[block_id] = 0
                self._free[block_id] = None

    def set_filled(self, block_id: int, num_filled: int) -> None:
        """Record that the first `num_filled` slots of a block hold computed tokens."""
        assert 0 <= num_filled <= self.block_size and self._ref_counts[block_id] > 0
        if self._num_filled[block_id] != num_filled:
            self._num_filled[block_id] = num_filled
            self._changed.add(block_id)

    def ref_count(self, block_id: int) -> int:
        """Return how many block tables hold the block."""
        return self._ref_counts[block_id]

    def num_filled(self, block_id: int) -> int:
        """Return how many slots of the block hold computed tokens."""
        return self._num_filled[block_id]

    def status(self, block_id: int) -> BlockStatus:
        """Return whether the block is free or active."""
        return BlockStatus.ACTIVE if self._ref_counts[block_id] else BlockStatus.FREE

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
            assert (count == 0) == (block_id in self._free), f"block {block_id}: free queue disagrees"
            assert count or not self._num_filled[block_id], f"free block {block_id} counts as filled"
        assert len(self._free) + self.num_active == self.num_blocks
