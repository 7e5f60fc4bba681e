"""Who may start when the first in the queue does not fit: nobody, the next that fits, or the one that fits best.

To add one: a class here or in a file of its own, one line in `ADMISSIONS`, and its name in
`workbench.config.ADMISSION_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class AdmissionPolicy(Protocol):
    """A pure choice among those who stand behind a head that does not fit."""

    name: str

    def choose(self, needed_blocks: Iterable[int], num_free: int) -> int | None:
        """Return the place of the one to admit, None for nobody.

        needed_blocks: of each candidate, in queue order, worked out as it is asked for. It fits when
        it needs at most num_free.
        """


class Strict:
    """Nobody overtakes: order is kept, memory may lie idle."""

    name = "strict"

    def choose(self, needed_blocks: Iterable[int], num_free: int) -> int | None:
        """Nobody."""
        return None


class FirstFit:
    """The first that fits."""

    name = "first_fit"

    def choose(self, needed_blocks: Iterable[int], num_free: int) -> int | None:
        """The first that fits."""
        return next((place for place, needed in enumerate(needed_blocks) if needed <= num_free), None)


class BestFit:
    """The one that leaves the least memory idle, of several the first."""

    name = "best_fit"

    def choose(self, needed_blocks: Iterable[int], num_free: int) -> int | None:
        """The largest that fits."""
        fitting = ((needed, -place) for place, needed in enumerate(needed_blocks) if needed <= num_free)
        best = max(fitting, default=None)
        return None if best is None else -best[1]


ADMISSIONS: dict[str, Callable[[], AdmissionPolicy]] = {each.name: each for each in (Strict, FirstFit, BestFit)}
"""Every admission policy by its configuration name."""
