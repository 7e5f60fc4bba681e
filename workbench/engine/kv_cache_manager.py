"""Maps requests to block tables: the logical memory of a request onto the physical pool.

The manager alone knows which request holds which blocks. A table only grows until it is freed, or
truncated after rejected drafts; an allocation takes all the blocks it needs or none.

Prefix caching: full blocks are named by what they hold, and a context begins with the blocks that others
computed before (see `prefix_cache`).

Copy-on-write (arXiv 2309.06180, section 4.4): a fork shares all blocks of its source. Full blocks are
never written again; the last one is copied by whoever writes into it while others hold it.

Swapping: a context that has to make room is copied to host memory, and back when it is admitted again.
Copies are planned here, in the order in which they must happen, and made before the step's tokens are
computed: see `take_transfers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.engine.block_key import HashFunction
from workbench.engine.block_pool import BlockPool
from workbench.engine.prefix_cache import PrefixCache, PrefixMatch
from workbench.engine.swap_space import SwapSpace
from workbench.telemetry.records import BlockState, BlockTransfer, CacheMiss, PoolSnapshot, TransferKind


@dataclass(frozen=True)
class Room:
    """What a waiting request needs, and what there is for it."""

    needed_blocks: int
    """Blocks beyond those that it finds in the cache."""
    free_blocks: int
    """Blocks that can be taken besides those."""
    claim: int
    """How many of the free blocks it would use up, cached ones that it finds included."""
    longest_run: int | None = None
    """Where blocks must be consecutive: as many as the longest run of free ones has."""

    @property
    def is_enough(self) -> bool:
        """Whether it fits."""
        return self.needed_blocks <= (self.free_blocks if self.longest_run is None else self.longest_run)


class KVCacheManager:
    """Block tables of all requests that hold memory."""

    shares_blocks = True
    """Whether requests can hold blocks together."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        enable_prefix_caching: bool = False,
        num_swap_blocks: int = 0,
        extra_keys: tuple[Hashable, ...] = (),
        hash_function: HashFunction = hash,
    ) -> None:
        """Manage the blocks of `pool`, all of them free, and `num_swap_blocks` in host memory.

        extra_keys: what decides the contents of blocks besides tokens, for all requests.
        """
        self.pool = pool
        self.enable_prefix_caching = enable_prefix_caching
        self.swap_space = SwapSpace(num_swap_blocks)
        self._prefixes = PrefixCache(pool, extra_keys, hash_function)
        self._tables: dict[str, list[int]] = {}
        self._owners: dict[int, list[str]] = {}
        self._transfers: list[BlockTransfer] = []

    # ---------------------------------------------------------------------------------- counts

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can take."""
        return self.pool.num_free

    @property
    def largest_claim(self) -> int:
        """Most blocks that one request can take now."""
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.pool.block_size)

    def blocks_needed(self, request_id: str, num_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return how many more blocks a request needs to hold `num_tokens` tokens.

        num_computed_tokens: those it has; where they end in a block that others hold, a copy of it is needed.
        """
        missing = self.blocks_for(num_tokens) - self.num_blocks_of(request_id)
        return max(0, missing) + (self._shared_end(request_id, num_computed_tokens) is not None)

    def num_blocks_of(self, request_id: str) -> int:
        """Return how many blocks the request holds."""
        return len(self._tables.get(request_id, ()))

    def num_freed_with(self, request_ids: Iterable[str]) -> int:
        """Return how many blocks get free when these requests let go of theirs."""
        held = Counter(block_id for request_id in request_ids for block_id in self._tables.get(request_id, ()))
        return sum(self.pool.ref_count(block_id) == count for block_id, count in held.items())

    def num_shared_tokens(self, request_id: str, num_tokens: int) -> int:
        """Return how many of the first `num_tokens` tokens lie in full blocks that others hold, too."""
        full = self._tables.get(request_id, [])[: num_tokens // self.pool.block_size]
        return sum(self.pool.ref_count(block_id) > 1 for block_id in full) * self.pool.block_size

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Return the physical block of each logical block."""
        return tuple(self._tables.get(request_id, ()))

    # -------------------------------------------------------------------------------- look-up

    def match(
        self, request_id: str, token_ids: Sequence[int], cache_salt: str = "", *, may_use_cache: bool = True
    ) -> PrefixMatch:
        """Return the beginning of a context that need not be computed: cached, or in host memory. Nothing changes."""
        if not self.enable_prefix_caching:
            found = PrefixMatch(miss=CacheMiss.DISABLED)
        elif not may_use_cache:
            found = PrefixMatch(miss=CacheMiss.BYPASSED)
        else:
            found = self._prefixes.match(request_id, token_ids, cache_salt)
        swapped = self.swap_space.contexts.get(request_id)
        if swapped is None or swapped.num_tokens <= found.num_tokens:
            return found
        rest = swapped.block_ids[len(found.block_ids) :]
        return replace(found, host_block_ids=rest, num_swapped_tokens=swapped.num_tokens)

    def match_fork(self, source_id: str, num_tokens: int, found: PrefixMatch) -> PrefixMatch:
        """Return the better of a match and the full blocks that hold the first `num_tokens` tokens of another request.

        Both contexts agree in these tokens.
        """
        block_ids = self.block_table(source_id)[: num_tokens // self.pool.block_size]
        if not self.shares_blocks or len(block_ids) <= len(found.block_ids):
            return found
        num_shared = len(block_ids) * self.pool.block_size
        better = replace(found, block_ids=block_ids, num_tokens=num_shared, num_cached_blocks=0)
        rest = found.host_block_ids[len(block_ids) - len(found.block_ids) :]
        return replace(better, host_block_ids=rest, num_swapped_tokens=found.num_swapped_tokens if rest else 0)

    def room(self, num_tokens: int, match: PrefixMatch, most_tokens: int = 0) -> Room:
        """Return what a request without blocks needs to begin with `match` and hold `num_tokens` tokens.

        most_tokens: what it may come to hold, which only a layout without paging looks at.
        """
        needed = self.blocks_for(num_tokens) - len(match.block_ids)
        free = self.pool.num_free - match.num_cached_blocks
        return Room(needed, free, needed + match.num_cached_blocks)

    def claim_after(self, request_ids: Iterable[str]) -> int:
        """Return the most blocks that one request can take once these requests have let go of theirs."""
        return self.pool.num_free + self.num_freed_with(request_ids)

    def external_waste(self, num_needed: int) -> int:
        """Return how many free blocks a request that needs `num_needed` cannot use for where they lie: none here."""
        return 0

    # ----------------------------------------------------------------------------- allocation

    def can_allocate(
        self, request_id: str, num_tokens: int, match: PrefixMatch | None = None, num_computed_tokens: int = 0
    ) -> bool:
        """Whether `allocate` would find room."""
        match = match or PrefixMatch()
        needed = self.blocks_needed(request_id, num_tokens, num_computed_tokens) - len(match.block_ids)
        return needed <= self.pool.num_free - match.num_cached_blocks

    def allocate(
        self,
        request_id: str,
        num_tokens: int,
        match: PrefixMatch | None = None,
        *,
        num_computed_tokens: int = 0,
        most_tokens: int = 0,
    ) -> bool:
        """Grow the table until it holds `num_tokens` tokens. Return False, unchanged, without room.

        Args:
            request_id: who needs memory.
            num_tokens: of its context, those to be computed next included.
            match: what a request without blocks begins with, from `match` just now.
            num_computed_tokens: those before the first that will be written.
            most_tokens: what it may come to hold, which only a layout without paging looks at.
        """
        if match is None and self._holds(request_id, num_tokens, num_computed_tokens):
            return True  # the usual case of a running request
        if not self.can_allocate(request_id, num_tokens, match, num_computed_tokens):
            return False
        if match is not None:
            assert request_id not in self._tables, f"{request_id} holds blocks already"
            self.pool.share(match.block_ids)
            self._append(request_id, list(match.block_ids))
            self._prefixes.begin(request_id, match)
        shared = self._shared_end(request_id, num_computed_tokens)
        if shared is not None:
            self._copy_block(request_id, shared)
        needed = self.blocks_needed(request_id, num_tokens)
        if needed:
            self._append(request_id, self._take(needed))
        if match is not None:
            self._swap_in(request_id, match)
        return True

    def _holds(self, request_id: str, num_tokens: int, num_computed_tokens: int) -> bool:
        """Whether a request has all the blocks that it needs, and may write into them."""
        held = len(self._tables.get(request_id, ())) * self.pool.block_size
        return num_tokens <= held and self._shared_end(request_id, num_computed_tokens) is None

    def _take(self, count: int) -> list[int]:
        block_ids = self.pool.allocate(count)
        assert block_ids is not None
        return block_ids

    def _shared_end(self, request_id: str, num_computed_tokens: int) -> int | None:
        """Return the place of the block that the next token is written into, if others hold it and read it."""
        block_size = self.pool.block_size
        if num_computed_tokens % block_size == 0:
            return None
        index, table = num_computed_tokens // block_size, self._tables.get(request_id, ())
        is_shared = index < len(table) and self.pool.ref_count(table[index]) > 1
        return index if is_shared else None

    def _copy_block(self, request_id: str, index: int) -> None:
        """Give a request a block of its own in the place of one that it shares."""
        table = self._tables[request_id]
        shared, own = table[index], self._take(1)[0]
        self._plan(TransferKind.COPY, shared, own, request_id)
        self.pool.set_filled(own, self.pool.num_filled(shared))
        self._release(request_id, [shared])
        table[index] = own
        self._owners[own] = [request_id]

    def fork(self, source_id: str, request_id: str) -> None:
        """Let a request without blocks share all those of another, and what is known of them."""
        assert request_id not in self._tables, f"{request_id} holds blocks already"
        block_ids = self._tables[source_id]
        self.pool.share(block_ids)
        self._append(request_id, block_ids)
        self._prefixes.fork(source_id, request_id)

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
        for index in range((num_computed_tokens - num_new_tokens) // block_size, self.blocks_for(num_computed_tokens)):
            self.pool.set_filled(table[index], min(block_size, num_computed_tokens - index * block_size))
        if self.enable_prefix_caching:
            self._prefixes.name(request_id, table, num_computed_tokens // block_size, token_ids, cache_salt)

    # ------------------------------------------------------------------------------- swapping

    def swap_out(self, request_id: str, num_tokens: int) -> bool:
        """Copy a request's first `num_tokens` tokens to host memory and give back all its blocks.

        Returns False, unchanged, without room there.
        """
        block_ids = self._tables[request_id][: self.blocks_for(num_tokens)]
        context = self.swap_space.keep(request_id, len(block_ids), num_tokens)
        if context is None:
            return False
        for block_id, host_id in zip(block_ids, context.block_ids, strict=True):
            self._plan(TransferKind.SWAP_OUT, block_id, host_id, request_id)
        self.free(request_id)
        return True

    def _swap_in(self, request_id: str, match: PrefixMatch) -> None:
        """Copy what lies in host memory behind the cached beginning, and let go of it there."""
        table, block_size, first = self._tables[request_id], self.pool.block_size, len(match.block_ids)
        for index, host_id in enumerate(match.host_block_ids, start=first):
            self._plan(TransferKind.SWAP_IN, host_id, table[index], request_id)
            self.pool.set_filled(table[index], min(block_size, match.num_swapped_tokens - index * block_size))
        self.swap_space.give_back(request_id)

    def _plan(self, kind: TransferKind, source_id: int, target_id: int, request_id: str) -> None:
        self._transfers.append(BlockTransfer(kind, source_id, target_id, request_id))

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """Return the copies planned since the last call, to be made in this order, and forget them."""
        transfers = tuple(self._transfers)
        self._transfers.clear()
        return transfers

    # -------------------------------------------------------------------------------- release

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens and forget the slots behind them."""
        table, keep = self._tables[request_id], self.blocks_for(num_tokens)
        self._prefixes.truncate(request_id, num_tokens // self.pool.block_size)
        self._release(request_id, table[keep:])
        del table[keep:]
        if keep:
            filled = min(self.pool.num_filled(table[-1]), num_tokens - (keep - 1) * self.pool.block_size)
            self.pool.set_filled(table[-1], filled)

    def free(self, request_id: str) -> int:
        """Give back all blocks of the request; one without blocks is fine. Return how many."""
        self._prefixes.forget(request_id)
        table = self._tables.pop(request_id, [])
        self._release(request_id, table)
        return len(table)

    def forget(self, request_id: str) -> None:
        """Give back everything of the request, what lies in host memory included."""
        self.free(request_id)
        self.swap_space.give_back(request_id)

    def hand_over(self, request_id: str, heir_id: str) -> None:
        """Let everything that a request holds belong to another, which holds nothing."""
        if request_id in self._tables:
            self.fork(request_id, heir_id)
            self.free(request_id)
        self.swap_space.hand_over(request_id, heir_id)

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
        assert not set(self._tables) & set(self.swap_space.contexts), "a context lies in two places"
        self.swap_space.check_integrity()
        self.pool.check_integrity(references)
