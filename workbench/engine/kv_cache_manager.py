"""Maps requests to block tables: the logical memory of a request onto the physical pool.

The manager alone knows which request holds which blocks. A table only grows until it is freed, or
truncated after rejected drafts; an allocation takes all the blocks it needs or none.

Prefix caching (as in vLLM and, with a tree, SGLang's RadixAttention, arXiv 2312.07104): full blocks are
named by what they hold, and a context begins with the blocks that others computed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from workbench.engine.block_key import BlockKey, HashFunction
from workbench.engine.block_pool import BlockPool
from workbench.telemetry.records import BlockState, CacheMiss, PoolSnapshot


@dataclass(frozen=True)
class PrefixMatch:
    """The beginning of a context that is in the cache already."""

    block_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    num_cached_blocks: int = 0
    """How many of the blocks nobody holds: taking them uses up free blocks."""
    miss: CacheMiss | None = None
    """Why it is no longer; None when every block that may be shared was found."""
    differs_at: int | None = None
    """For `CacheMiss.DIFFERS`: the first position whose token differs from what is cached."""


class KVCacheManager:
    """Block tables of all requests that hold memory."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        enable_prefix_caching: bool = False,
        extra_keys: tuple[Hashable, ...] = (),
        hash_function: HashFunction = hash,
    ) -> None:
        """Manage the blocks of `pool`, all of them free.

        extra_keys: what decides the contents of blocks besides tokens, for all requests.
        """
        self.pool = pool
        self.enable_prefix_caching = enable_prefix_caching
        self._extra_keys, self._hash_function = extra_keys, hash_function
        self._keys: dict[str, list[BlockKey]] = {}
        """Of each request: keys of its full blocks, as far as they were needed."""
        self._tables: dict[str, list[int]] = {}
        self._owners: dict[int, list[str]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can take."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.pool.block_size)

    def blocks_needed(self, request_id: str, num_tokens: int) -> int:
        """Return how many more blocks the request needs to hold `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - self.num_blocks_of(request_id))

    def num_blocks_of(self, request_id: str) -> int:
        """Return how many blocks the request holds."""
        return len(self._tables.get(request_id, ()))

    def num_exclusive_blocks(self, request_id: str) -> int:
        """Return how many of the request's blocks nobody else holds: so many get free with it."""
        return sum(self.pool.ref_count(block_id) == 1 for block_id in self._tables.get(request_id, ()))

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Return the physical block of each logical block."""
        return tuple(self._tables.get(request_id, ()))

    def match(self, request_id: str, token_ids: Sequence[int], cache_salt: str = "") -> PrefixMatch:
        """Return the longest cached beginning of a context; nothing changes.

        The last token is never part of it: it has to be computed for its logits.
        """
        if not self.enable_prefix_caching:
            return PrefixMatch(miss=CacheMiss.DISABLED)
        block_size = self.pool.block_size
        num_usable = (len(token_ids) - 1) // block_size
        if num_usable == 0:
            return PrefixMatch(miss=CacheMiss.SHORTER_THAN_BLOCK)
        block_ids: list[int] = []
        for index in range(num_usable):
            key = self._key(request_id, index, token_ids, cache_salt)
            found = self.pool.find(key)
            if found is None:
                return self._match(block_ids, *self._explain_miss(key, index * block_size))
            block_id, self._keys[request_id][index] = found
            block_ids.append(block_id)
        return self._match(block_ids)

    def _match(self, block_ids: list[int], miss: CacheMiss | None = None, differs_at: int | None = None) -> PrefixMatch:
        num_cached = sum(map(self.pool.is_cached, block_ids))
        return PrefixMatch(tuple(block_ids), len(block_ids) * self.pool.block_size, num_cached, miss, differs_at)

    def _explain_miss(self, key: BlockKey, first_position: int) -> tuple[CacheMiss, int | None]:
        if self.pool.was_evicted(key):
            return CacheMiss.EVICTED, None
        return CacheMiss.DIFFERS, first_position + self.pool.common_length(key)

    def _key(self, request_id: str, index: int, token_ids: Sequence[int], cache_salt: str) -> BlockKey:
        """Return the key of a request's full block `index`."""
        keys, block_size = self._keys.setdefault(request_id, []), self.pool.block_size
        for number in range(len(keys), index + 1):
            own = tuple(token_ids[number * block_size : (number + 1) * block_size])
            extra = (*self._extra_keys, cache_salt)
            keys.append(BlockKey(keys[-1] if keys else None, own, extra, self._hash_function))
        return keys[index]

    def can_allocate(self, request_id: str, num_tokens: int, match: PrefixMatch | None = None) -> bool:
        """Whether `allocate` would find room."""
        match = match or PrefixMatch()
        needed = self.blocks_needed(request_id, num_tokens) - len(match.block_ids)
        return needed <= self.pool.num_free - match.num_cached_blocks

    def allocate(self, request_id: str, num_tokens: int, match: PrefixMatch | None = None) -> bool:
        """Grow the table until it holds `num_tokens` tokens. Return False, unchanged, without room.

        match: what a request without blocks begins with, from `match` just now.
        """
        if not self.can_allocate(request_id, num_tokens, match):
            return False
        if match is not None and match.block_ids:
            assert request_id not in self._tables, f"{request_id} holds blocks already"
            self.pool.share(match.block_ids)
            self._append(request_id, list(match.block_ids))
        needed = self.blocks_needed(request_id, num_tokens)
        if needed:
            block_ids = self.pool.allocate(needed)
            assert block_ids is not None
            self._append(request_id, block_ids)
        return True

    def share(self, source_id: str, request_id: str, num_blocks: int) -> None:
        """Let a request without blocks begin with the first `num_blocks` blocks of another.

        The blocks must be full: nobody writes into a shared block.
        """
        assert request_id not in self._tables, f"{request_id} holds blocks already"
        block_ids = self._tables[source_id][:num_blocks]
        assert all(self.pool.num_filled(b) == self.pool.block_size for b in block_ids), "only full blocks are shared"
        self.pool.share(block_ids)
        self._append(request_id, block_ids)

    def commit(
        self,
        request_id: str,
        num_computed_tokens: int,
        num_new_tokens: int,
        token_ids: Sequence[int] = (),
        cache_salt: str = "",
    ) -> None:
        """Record that the last `num_new_tokens` of the first `num_computed_tokens` were just written.

        token_ids: of the whole context; with prefix caching, blocks that are full can be found from now on.
        """
        block_size = self.pool.block_size
        table = self._tables[request_id]
        first = (num_computed_tokens - num_new_tokens) // block_size
        for index in range(first, self.blocks_for(num_computed_tokens)):
            filled = min(block_size, num_computed_tokens - index * block_size)
            self.pool.set_filled(table[index], filled)
            if filled == block_size and self.enable_prefix_caching:
                key = self._key(request_id, index, token_ids, cache_salt)
                self._keys[request_id][index] = self.pool.remember(table[index], key)

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens and forget the slots behind them."""
        table = self._tables[request_id]
        keep = self.blocks_for(num_tokens)
        del self._keys.get(request_id, [])[num_tokens // self.pool.block_size :]
        self._release(request_id, table[keep:])
        del table[keep:]
        if keep:
            filled = min(self.pool.num_filled(table[-1]), num_tokens - (keep - 1) * self.pool.block_size)
            self.pool.set_filled(table[-1], filled)

    def free(self, request_id: str) -> int:
        """Give back all blocks of the request; one without blocks is fine. Return how many."""
        self._keys.pop(request_id, None)
        table = self._tables.pop(request_id, [])
        self._release(request_id, table)
        return len(table)

    def _append(self, request_id: str, block_ids: list[int]) -> None:
        self._tables.setdefault(request_id, []).extend(block_ids)
        for block_id in block_ids:
            self._owners.setdefault(block_id, []).append(request_id)

    def _release(self, request_id: str, block_ids: list[int]) -> None:
        self.pool.free(block_ids)
        for block_id in block_ids:
            owners = self._owners[block_id]
            owners.remove(request_id)
            if not owners:
                del self._owners[block_id]

    # ------------------------------------------------------------------------------ inspection

    def owners(self, block_id: int) -> tuple[str, ...]:
        """Return the requests whose tables hold the block, oldest holder first."""
        return tuple(self._owners.get(block_id, ()))

    def block_state(self, block_id: int) -> BlockState:
        """Return what a view may know of one physical block."""
        owners = self.owners(block_id)
        return BlockState(
            block_id=block_id,
            status=self.pool.status(block_id),
            ref_count=self.pool.ref_count(block_id),
            num_filled=self.pool.num_filled(block_id),
            request_ids=owners,
            logical_index=self._logical_index(block_id),
        )

    def _logical_index(self, block_id: int) -> int:
        """Return the block's place in its context, -1 where it has none. All owners agree on it."""
        owner, key = next(iter(self._owners.get(block_id, ())), None), self.pool.key_of(block_id)
        if owner is not None:
            return self._tables[owner].index(block_id)
        return -1 if key is None else key.depth

    def take_changes(self) -> tuple[BlockState, ...]:
        """Return the state of every block that changed since the last call."""
        return tuple(self.block_state(block_id) for block_id in self.pool.take_changed())

    def snapshot(self, step_id: int, epoch: int = 0) -> PoolSnapshot:
        """Return the state of every block."""
        blocks = tuple(self.block_state(block_id) for block_id in range(self.pool.num_blocks))
        return PoolSnapshot(step_id=step_id, block_size=self.pool.block_size, blocks=blocks, epoch=epoch)

    def check_integrity(self) -> None:
        """Assert that tables, owners and the pool's reference counts tell the same story."""
        references = Counter(block_id for table in self._tables.values() for block_id in table)
        for request_id, table in self._tables.items():
            assert len(set(table)) == len(table), f"{request_id} holds a block twice: {table}"
            assert all(request_id in self._owners[block_id] for block_id in table)
        assert {b: len(owners) for b, owners in self._owners.items()} == dict(references)
        self.pool.check_integrity(references)
