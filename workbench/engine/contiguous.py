"""Memory as engines managed it before paging: each request reserves one run of consecutive blocks.

The run holds the prompt and all tokens that may come. What is reserved and not used yet is internal
waste; free blocks in runs too short for whoever waits are external waste. Paging (arXiv 2309.06180) was
made to end both; here they can be seen. Kernels are the same: a run is a block table like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from workbench.engine.block_pool import BlockPool
from workbench.engine.kv_cache_manager import KVCacheManager, Room
from workbench.engine.prefix_cache import PrefixMatch
from workbench.engine.runs import Run, longest, runs_of


def first_fit(runs: Sequence[Run], count: int) -> Run | None:
    """Return the first run of at least `count` blocks."""
    return next((run for run in runs if run[1] >= count), None)


def best_fit(runs: Sequence[Run], count: int) -> Run | None:
    """Return the shortest run of at least `count` blocks, of several the first."""
    return min((run for run in runs if run[1] >= count), key=lambda run: run[1], default=None)


PLACEMENTS: Final[dict[str, Callable[[Sequence[Run], int], Run | None]]] = {
    "first_fit": first_fit,
    "best_fit": best_fit,
}


class ContiguousKVCacheManager(KVCacheManager):
    """Runs instead of scattered blocks. Nothing is shared: neither prefixes nor forks."""

    shares_blocks = False

    def __init__(self, pool: BlockPool, *, placement: str = "first_fit", **settings: Any) -> None:
        """`placement` is a name in `PLACEMENTS`; the settings are those of `KVCacheManager`."""
        super().__init__(pool, **settings)
        self._place = PLACEMENTS[placement]

    @property
    def largest_claim(self) -> int:
        """Blocks of the longest free run."""
        return longest(self._free_runs())

    def room(self, num_tokens: int, match: PrefixMatch, most_tokens: int = 0) -> Room:
        """Return how long a run the request needs, and the longest there is."""
        reserved = self._reserved_blocks(num_tokens, most_tokens)
        return Room(reserved, self.num_free_blocks, reserved, self.largest_claim)

    def claim_after(self, request_ids: Iterable[str]) -> int:
        """Return the longest run once these requests have let go of theirs."""
        freed = {block_id for request_id in request_ids for block_id in self.block_table(request_id)}
        return longest(runs_of({*self.pool.empty_blocks, *freed}))

    def external_waste(self, num_needed: int) -> int:
        """Return how many free blocks lie in runs shorter than a request needs that needs `num_needed`."""
        return sum(length for _, length in self._free_runs() if length < num_needed)

    def can_allocate(
        self, request_id: str, num_tokens: int, match: PrefixMatch | None = None, num_computed_tokens: int = 0
    ) -> bool:
        """Whether the request's run is long enough, or, for one without, whether there is one."""
        needed = self.blocks_for(num_tokens)
        return needed <= (self.num_blocks_of(request_id) or self.largest_claim)

    def allocate(
        self,
        request_id: str,
        num_tokens: int,
        match: PrefixMatch | None = None,
        *,
        num_computed_tokens: int = 0,
        most_tokens: int = 0,
    ) -> bool:
        """Reserve a run for `most_tokens` tokens when the request has none; it never grows."""
        if not self.num_blocks_of(request_id):
            num_tokens = self._reserved_blocks(num_tokens, most_tokens) * self.pool.block_size
        return super().allocate(request_id, num_tokens, match)

    def _reserved_blocks(self, num_tokens: int, most_tokens: int) -> int:
        """No request is promised more than the whole pool."""
        return min(self.blocks_for(max(num_tokens, most_tokens)), self.pool.num_blocks)

    def _free_runs(self) -> list[Run]:
        return runs_of(self.pool.empty_blocks)

    def _take(self, count: int) -> list[int]:
        run = self._place(self._free_runs(), count)
        assert run is not None
        return self.pool.allocate_run(run[0], count)

    def check_integrity(self) -> None:
        """Also assert that every table is a run."""
        super().check_integrity()
        for request_id, table in self._tables.items():
            assert table == list(range(table[0], table[0] + len(table))), f"{request_id} has no run: {table}"
