"""The plan of a step while it grows."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.engine.request import Request
from workbench.engine.step_limits import StepLimits
from workbench.telemetry.records import Decision, Explanation, Reason


@dataclass
class PlanDraft:
    """Who gets how many tokens so far, and why; `Scheduler.schedule` freezes it."""

    limits: StepLimits
    num_sequences: int
    """Of the requests that run."""
    budget: int = field(init=False)
    """Tokens that are left to give."""
    shares: dict[str, int] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)
    num_preempted: int = 0
    num_looked_up_tokens: int = 0
    num_cached_tokens: int = 0
    failed: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = self.limits.max_num_batched_tokens

    def explain(
        self, request: Request, decision: Decision, reason: Reason, cause: Request | None = None, **numbers: int
    ) -> None:
        """Note a decision about a request, and for whose sake it was made."""
        cause_id = None if cause is None else cause.request_id
        self.explanations.append(Explanation(request.request_id, decision, reason, numbers, cause_id))
