"""Who may start when the first in the queue does not fit: nobody, the next that fits, or the one that fits best.

To add one: a class here or in a file of its own, one line in `ADMISSIONS`, and its name in
`workbench.config.ADMISSION_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class AdmissionPolicy(Protocol):
    """A pure choice among those who stand behind a head that does not fit."""

    name: str

    def choose(self, needed_blocks: Sequence[int], num_free: int) -> int | None:
        """Return the place of the one to admit, None for nobody.

        needed_blocks: of each candidate, in queue order. It fits when it needs at most num_free.
        """


class Strict:
    """Nobody overtakes: order is kept, memory may lie idle."""

    name = "strict"

    def choose(self, needed_blocks: Sequence[int], num_free: int) -> int | None:
        """Nobody."""
        return None


class FirstFit:
    """The first that fits."""

    name = "first_fit"

    def choose(self, needed_blocks: Sequence[int], num_free: int) -> int | None:
        """The first that fits."""
        return next((place for place, needed in enumerate(needed_blocks) if needed <= num_free), None)


class BestFit:
    """The one that leaves the least memory idle, of several the first."""

    name = "best_fit"

    def choose(self, needed_blocks: Sequence[int], num_free: int) -> int | None:
        """The largest that fits."""
        fitting = [place for place, needed in enumerate(needed_blocks) if needed <= num_free]
        return max(fitting, key=lambda place: (needed_blocks[place], -place), default=None)


ADMISSIONS: dict[str, Callable[[], AdmissionPolicy]] = {each.name: each for each in (Strict, FirstFit, BestFit)}
"""Every admission policy by its configuration name."""
