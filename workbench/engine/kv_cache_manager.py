"""Maps requests to block tables: the logical memory of a request onto the physical pool.

The manager alone knows which request holds which blocks. A table only grows until it is freed, or
truncated after rejected drafts; an allocation takes all the blocks it needs or none. Layers that attend
equally far back form a group with tables of its own (see `block_tables`); most models have one.

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

from workbench.engine.block_key import HashFunction
from workbench.engine.block_pool import BlockPool
from workbench.engine.block_tables import NO_BLOCK, BlockTables
from workbench.engine.context_lookup import ContextLookup, PrefixMatch
from workbench.engine.room import Demand, Room
from workbench.engine.swap_space import SwapSpace
from workbench.telemetry.records import BlockState, BlockTransfer, CacheMiss, PoolSnapshot, TransferKind


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
        windows: Sequence[int | None] = (None,),
        extra_keys: tuple[Hashable, ...] = (),
        hash_function: HashFunction = hash,
    ) -> None:
        """Manage the blocks of `pool`, all of them free, and `num_swap_blocks` in host memory.

        windows: of each group of layers, tokens that one attends to; None for all.
        extra_keys: what decides the contents of blocks besides tokens, for all requests.
        """
        self.pool = pool
        self.enable_prefix_caching = enable_prefix_caching
        self.swap_space = SwapSpace(num_swap_blocks)
        self.groups = tuple(
            BlockTables(pool, window, (*extra_keys, number), hash_function) for number, window in enumerate(windows)
        )
        self._lookup = ContextLookup(pool, self.groups, self.swap_space)
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

    def blocks_for(self, demand: Demand) -> int:
        """Return how many blocks a request holds at once that nobody shares with it."""
        return sum(self._blocks(group.tokens_at_once(demand.num_tokens, demand.step_tokens)) for group in self.groups)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.block_size)

    def blocks_needed(self, request_id: str, num_tokens: int, num_computed_tokens: int = 0) -> int:
        """Return how many more blocks a request needs to hold `num_tokens` tokens.

        num_computed_tokens: those it has; where they end in a block that others hold, a copy of it is needed.
        """
        return sum(group.num_missing(request_id, num_tokens, num_computed_tokens) for group in self.groups)

    def holds(self, request_id: str, num_tokens: int, num_computed_tokens: int = 0) -> bool:
        """Whether a request has all blocks that it needs for `num_tokens` tokens, and may write into them."""
        return all(group.is_complete(request_id, num_tokens, num_computed_tokens) for group in self.groups)

    def num_blocks_of(self, request_id: str) -> int:
        """Return how many blocks the request holds."""
        return sum(group.num_held(request_id) for group in self.groups)

    def num_freed_with(self, request_ids: Iterable[str]) -> int:
        """Return how many blocks get free when these requests let go of theirs."""
        ids = tuple(request_ids)
        held = Counter(block_id for group in self.groups for each in ids for block_id in group.held(each))
        return sum(self.pool.ref_count(block_id) == count for block_id, count in held.items())

    def num_shared_tokens(self, request_id: str, num_tokens: int) -> int:
        """Return how many of the first `num_tokens` tokens lie in full blocks that others hold, too, in every group."""
        block_size = self.pool.block_size
        return (
            min(
                sum(block != NO_BLOCK and self.pool.ref_count(block) > 1 for block in table[: num_tokens // block_size])
                for table in self.block_tables(request_id)
            )
            * block_size
        )

    def block_tables(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        """Return, for each group of layers, the physical block of each logical block."""
        return tuple(group.table(request_id) for group in self.groups)

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Return the table of the first group, which is the only one where all layers attend equally far back."""
        return self.groups[0].table(request_id)

    # -------------------------------------------------------------------------------- look-up

    def match(
        self, request_id: str, token_ids: Sequence[int], cache_salt: str = "", *, may_use_cache: bool = True
    ) -> PrefixMatch:
        """Return the beginning of a context that need not be computed: cached, or in host memory. Nothing changes."""
        if not self.enable_prefix_caching:
            return self._lookup.match_nothing(request_id, CacheMiss.DISABLED)
        if not may_use_cache:
            return self._lookup.match_nothing(request_id, CacheMiss.BYPASSED)
        return self._lookup.match(request_id, token_ids, cache_salt)

    def match_fork(self, request_id: str, source_id: str, num_tokens: int, found: PrefixMatch) -> PrefixMatch:
        """Return the better of a match and the full blocks that hold the first `num_tokens` tokens of another request.

        Both contexts agree in these tokens.
        """
        return self._lookup.match_fork(request_id, source_id, num_tokens, found) if self.shares_blocks else found

    def room(self, demand: Demand, match: PrefixMatch) -> Room:
        """Return what a request without blocks needs to begin with `match` and hold what it demands."""
        needed = self._needed_to_begin(demand, match)
        return Room(needed, self.pool.num_free - match.num_cached_blocks, needed + match.num_cached_blocks)

    def _needed_to_begin(self, demand: Demand, match: PrefixMatch) -> int:
        return sum(
            self._blocks(self._first_tokens(group, demand, match)) - len(table)
            for group, table in zip(self.groups, match.tables, strict=True)
        )

    @staticmethod
    def _first_tokens(group: BlockTables, demand: Demand, match: PrefixMatch) -> int:
        """Return up to which token a request gets blocks when it begins; with a window, it gets the others later."""
        known = match.num_known_tokens
        return min(demand.num_tokens, known + group.tokens_at_once(demand.num_tokens - known, demand.step_tokens))

    def claim_after(self, request_ids: Iterable[str]) -> int:
        """Return the most blocks that one request can take once these requests have let go of theirs."""
        return self.pool.num_free + self.num_freed_with(request_ids)

    def external_waste(self, num_needed: int) -> int:
        """Return how many free blocks a request that needs `num_needed` cannot use for where they lie: none here."""
        return 0

    # ----------------------------------------------------------------------------- allocation

    def begin(self, request_id: str, demand: Demand, match: PrefixMatch) -> bool:
        """Give a request that starts its first blocks. Return False, unchanged, without room.

        match: what it begins with, from `match` just now.
        """
        room = self.room(demand, match)
        if not room.is_enough:
            return False
        for group, table in zip(self.groups, match.tables, strict=True):
            group.begin(request_id, table)
        for group in self.groups:
            group.grow(request_id, self._first_tokens(group, demand, match), 0, self._take, self._plan_copy)
        self._swap_in(request_id, match)
        return True

    def allocate(self, request_id: str, num_tokens: int, num_computed_tokens: int = 0) -> bool:
        """Grow the tables until they hold `num_tokens` tokens. Return False, unchanged, without room.

        num_computed_tokens: those before the first that will be written.
        """
        if self.holds(request_id, num_tokens, num_computed_tokens):
            return True  # the usual case of a running request
        if self.blocks_needed(request_id, num_tokens, num_computed_tokens) > self.pool.num_free:
            return False
        for group in self.groups:
            group.grow(request_id, num_tokens, num_computed_tokens, self._take, self._plan_copy)
        return True

    def _take(self, count: int) -> list[int]:
        block_ids = self.pool.allocate(count)
        assert block_ids is not None
        return block_ids

    def _plan_copy(self, source_id: int, target_id: int, request_id: str) -> None:
        self._transfers.append(BlockTransfer(TransferKind.COPY, source_id, target_id, request_id))

    def fork(self, source_id: str, request_id: str) -> None:
        """Let a request without blocks share all those of another, and what is known of them."""
        for group in self.groups:
            group.fork(source_id, request_id)

    def commit(
        self,
        request_id: str,
        num_computed_tokens: int,
        num_new_tokens: int,
        token_ids: Sequence[int] = (),
        cache_salt: str = "",
    ) -> None:
        """Record that the last `num_new_tokens` of the first `num_computed_tokens` were just written.

        Blocks that fall out of a window by that are given back.

        token_ids: of the whole context; with prefix caching, blocks that are full can be found from now on.
        """
        num_full = num_computed_tokens // self.pool.block_size
        for group in self.groups:
            group.fill(request_id, num_computed_tokens - num_new_tokens, num_computed_tokens)
            if self.enable_prefix_caching:
                group.name(request_id, num_full, token_ids, cache_salt)
            if group.window is not None:
                group.release_behind(request_id, num_computed_tokens)

    # ------------------------------------------------------------------------------- swapping

    def num_to_swap(self, request_id: str, num_tokens: int) -> int:
        """Return how many blocks hold a request's first `num_tokens` tokens."""
        return sum(block_id != NO_BLOCK for table in self._tables_of(request_id, num_tokens) for block_id in table)

    def _tables_of(self, request_id: str, num_tokens: int) -> list[tuple[int, ...]]:
        return [table[: self._blocks(num_tokens)] for table in self.block_tables(request_id)]

    def swap_out(self, request_id: str, num_tokens: int) -> bool:
        """Copy a request's first `num_tokens` tokens to host memory and give back all its blocks.

        Returns False, unchanged, without room there.
        """
        tables = self._tables_of(request_id, num_tokens)
        context = self.swap_space.keep(request_id, tables, num_tokens)
        if context is None:
            return False
        for table, places in zip(tables, context.tables, strict=True):
            for block_id, place in zip(table, places, strict=True):
                if block_id != NO_BLOCK:
                    self._transfers.append(BlockTransfer(TransferKind.SWAP_OUT, block_id, place, request_id))
        self.free(request_id)
        return True

    def _swap_in(self, request_id: str, match: PrefixMatch) -> None:
        """Copy what lies in host memory behind the cached beginning, and let go of it there."""
        for group, table, places in zip(self.groups, match.tables, match.host_tables, strict=False):
            first, own = len(table), group.table(request_id)
            for place, block_id in zip(places, own[first:], strict=False):
                self._transfers.append(BlockTransfer(TransferKind.SWAP_IN, place, block_id, request_id))
            if places:
                group.fill(request_id, first * self.pool.block_size, match.num_swapped_tokens)
        self.swap_space.give_back(request_id)

    def take_transfers(self) -> tuple[BlockTransfer, ...]:
        """Return the copies planned since the last call, to be made in this order, and forget them."""
        transfers = tuple(self._transfers)
        self._transfers.clear()
        return transfers

    # -------------------------------------------------------------------------------- release

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` tokens and forget the slots behind them."""
        for group in self.groups:
            group.truncate(request_id, num_tokens)

    def free(self, request_id: str) -> int:
        """Give back all blocks of the request; one without blocks is fine. Return how many."""
        return sum(group.free(request_id) for group in self.groups)

    def forget(self, request_id: str) -> None:
        """Give back everything of the request, what lies in host memory included."""
        self.free(request_id)
        self.swap_space.give_back(request_id)

    def hand_over(self, request_id: str, heir_id: str) -> None:
        """Let everything that a request holds belong to another, which holds nothing."""
        for group in self.groups:
            if request_id in group:
                group.fork(request_id, heir_id)
                group.free(request_id)
        self.swap_space.hand_over(request_id, heir_id)

    # ------------------------------------------------------------------------------ inspection

    def owners(self, block_id: int) -> tuple[str, ...]:
        """Return the requests whose tables hold the block, oldest holder first."""
        for group in self.groups:
            if owners := group.owners(block_id):
                return owners
        return ()

    def block_state(self, block_id: int) -> BlockState:
        """Return what a view may know of one physical block."""
        return BlockState(
            block_id=block_id,
            status=self.pool.status(block_id),
            ref_count=self.pool.ref_count(block_id),
            num_filled=self.pool.num_filled(block_id),
            request_ids=self.owners(block_id),
            logical_index=self._logical_index(block_id),
        )

    def _logical_index(self, block_id: int) -> int:
        """Return the block's place in its context, -1 where it has none."""
        for group in self.groups:
            if group.owners(block_id):
                return group.logical_index(block_id)
        key = self.pool.key_of(block_id)
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
        references: Counter[int] = Counter()
        for group in self.groups:
            group.check_integrity()
            references.update(block_id for request_id in group for block_id in group.held(request_id))
            assert not set(group) & set(self.swap_space.contexts), "a context lies in two places"
        self.swap_space.check_integrity()
        self.pool.check_integrity(references)
