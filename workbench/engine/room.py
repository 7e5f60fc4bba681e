"""How much memory a request wants when it starts, and how much there is for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """What a request that is to run wants to hold, in tokens of its context."""

    num_tokens: int
    """All that are known."""
    most_tokens: int = 0
    """All that may come, which only a layout without paging looks at."""
    step_tokens: int = 1 << 30
    """Most that one step adds, which only a sliding window looks at."""


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
