"""Memory as engines managed it before paging: each request reserves one run of consecutive blocks.

The run holds the prompt and all tokens that may come. What is reserved and not used yet is internal
waste; free blocks in runs too short for whoever waits are external waste. Paging (arXiv 2309.06180) was
made to end both; here they can be seen. Kernels are the same: a run is a block table like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from workbench.engine.block_pool import BlockPool
from workbench.engine.context_lookup import PrefixMatch
from workbench.engine.kv_cache_manager import KVCacheManager
from workbench.engine.room import Demand, Room
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

    def blocks_for(self, demand: Demand) -> int:
        """Return how many blocks are reserved for all groups of layers: for what may come, no more than the pool."""
        known, most = (len(self.groups) * self._blocks(each) for each in (demand.num_tokens, demand.most_tokens))
        return max(known, min(most, self.pool.num_blocks))

    def room(self, demand: Demand, match: PrefixMatch) -> Room:
        """Return how long a run the request needs, and the longest there is."""
        reserved = self.blocks_for(demand)
        return Room(reserved, self.num_free_blocks, reserved, self.largest_claim)

    def claim_after(self, request_ids: Iterable[str]) -> int:
        """Return the longest run once these requests have let go of theirs."""
        freed = {block_id for each in request_ids for group in self.groups for block_id in group.held(each)}
        return longest(runs_of({*self.pool.empty_blocks, *freed}))

    def external_waste(self, num_needed: int) -> int:
        """Return how many free blocks lie in runs shorter than a request needs that needs `num_needed`."""
        return sum(length for _, length in self._free_runs() if length < num_needed)

    def begin(self, request_id: str, demand: Demand, match: PrefixMatch) -> bool:
        """Reserve a run for all that the request may become; it never grows."""
        num_tokens = self.blocks_for(demand) // len(self.groups) * self.pool.block_size
        return super().begin(request_id, Demand(num_tokens, num_tokens), match)

    def allocate(self, request_id: str, num_tokens: int, num_computed_tokens: int = 0) -> bool:
        """Return whether the run is long enough."""
        return self.holds(request_id, num_tokens)

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Nothing: the run stays reserved, and slots behind rejected drafts were never counted as filled."""

    def _free_runs(self) -> list[Run]:
        return runs_of(self.pool.empty_blocks)

    def _take(self, count: int) -> list[int]:
        run = self._place(self._free_runs(), count)
        assert run is not None
        return self.pool.allocate_run(run[0], count)

    def check_integrity(self) -> None:
        """Also assert that every table is a run."""
        super().check_integrity()
        for group in self.groups:
            for request_id in group:
                assert len(runs_of(group.held(request_id))) == 1, f"{request_id} has no run: {group.held(request_id)}"
