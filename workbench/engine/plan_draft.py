"""The plan of a step while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.engine.request import Request
from workbench.engine.step_limits import StepLimits
from workbench.telemetry.records import Decision, Explanation, Reason


@dataclass
class PlanDraft:
    """Who gets how many tokens so far, and why; `Scheduler.schedule` freezes it.

    Part of the budget may be held back for drafted tokens until everybody has what is known.
    """

    limits: StepLimits
    num_sequences: int
    """Of the requests that run."""
    budget: int = field(init=False)
    """Tokens that are left to give."""
    held_back: int = 0
    """Of the budget, for drafted tokens."""
    shares: dict[str, int] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)
    num_preempted: int = 0
    num_looked_up_tokens: int = 0
    num_cached_tokens: int = 0
    failed: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = self.limits.max_num_batched_tokens - self.held_back

    def release_held_back(self) -> None:
        """Add what was held back to what is left to give."""
        self.budget += self.held_back
        self.held_back = 0

    def explain(
        self, request: Request, decision: Decision, reason: Reason, cause: Request | None = None, **numbers: int
    ) -> None:
        """Note a decision about a request, and for whose sake it was made."""
        cause_id = None if cause is None else cause.request_id
        self.explanations.append(Explanation(request.request_id, decision, reason, numbers, cause_id))


def even_counts(wanted: Sequence[int], total: int) -> list[int]:
    """Share `total` out as evenly as the wishes allow: nobody gets less so that another gets more than it."""
    counts = [0] * len(wanted)
    for num_served, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        counts[place] = min(wanted[place], total // (len(wanted) - num_served))
        total -= counts[place]
    return counts
