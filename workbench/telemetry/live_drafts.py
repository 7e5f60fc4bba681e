"""How many of the last drafted tokens were accepted: the figure of the header."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from workbench.telemetry.records import StepRecord

WINDOW_S: Final = 5.0
"""Drafts that were verified within this many seconds count."""


class LiveDrafts:
    """Folded from step records; a step in which nothing was drafted leaves no trace."""

    def __init__(self, steps: Iterable[tuple[float, int, int]] = ()) -> None:
        """Go on from the ends of steps (seconds), each with its drafted and accepted tokens."""
        self.steps = deque(steps)

    def copy(self) -> LiveDrafts:
        """Return the same drafts, to go on by themselves."""
        return LiveDrafts(self.steps)

    def apply(self, record: StepRecord) -> None:
        """Count the drafts that a step verified."""
        ended_s = record.started_s + record.duration_s
        while self.steps and self.steps[0][0] <= ended_s - WINDOW_S:
            self.steps.popleft()
        num_drafted = sum(state.num_draft_tokens for state in record.requests)
        if num_drafted:
            self.steps.append((ended_s, num_drafted, sum(state.num_accepted_tokens for state in record.requests)))

    def at(self, now_s: float) -> tuple[int, int]:
        """Return the drafted and the accepted tokens of the window before a time. Changes nothing."""
        steps = [(drafted, accepted) for ended_s, drafted, accepted in self.steps if ended_s > now_s - WINDOW_S]
        return sum(drafted for drafted, _ in steps), sum(accepted for _, accepted in steps)
