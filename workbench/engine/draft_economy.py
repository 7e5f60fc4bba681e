"""What drafting has earned and cost so far in one engine, and how many tokens are worth drafting next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workbench.speculation.adaptive import FIRST_GUESS, Acceptance, DraftCost, StepCost, choose_counts

MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of a step whose time is measured before the first choice."""
HIGHEST_ESTIMATE = 0.99


@dataclass(frozen=True)
class Prospect:
    """A request that could draft by one proposer."""

    request_id: str
    proposer: str
    limit: int
    """Most tokens to draft, at least 1."""


class DraftEconomy:
    """Measured acceptance by request and proposer, and measured seconds of steps and of drafting."""

    def __init__(self, measure_step_s: Callable[[Sequence[int]], Mapping[int, float]]) -> None:
        """`measure_step_s`: row counts → seconds of a step with so many; asked once, before the first choice."""
        self._measure_step_s = measure_step_s
        self._step_cost: StepCost | None = None
        self._draft_costs: dict[str, DraftCost] = {}
        self._of_proposer: dict[str, Acceptance] = {}
        self._of_request: dict[str, dict[str, Acceptance]] = {}

    def choose(self, prospects: Sequence[Prospect], num_rows: int) -> list[int]:
        """Return how many tokens each prospect should draft; `num_rows`: of the next step without them."""
        if not prospects:
            return []
        if self._step_cost is None:
            self._step_cost = StepCost(self._measure_step_s(MEASURED_ROWS))
        proposers = {prospect.proposer for prospect in prospects}
        counts = choose_counts(
            [self._estimate(prospect) for prospect in prospects],
            [prospect.limit for prospect in prospects],
            num_rows,
            self._step_cost.seconds,
            lambda most: sum(self._cost_of(name).seconds(most) for name in proposers),
        )
        for prospect, count in zip(prospects, counts, strict=True):
            if not count:
                self._acceptance_of(prospect.request_id, prospect.proposer).idle()
        return counts

    def _estimate(self, prospect: Prospect) -> float:
        overall = self._of_proposer.setdefault(prospect.proposer, Acceptance()).estimate(FIRST_GUESS)
        own = self._acceptance_of(prospect.request_id, prospect.proposer).estimate(overall)
        return min(own, HIGHEST_ESTIMATE)

    def _acceptance_of(self, request_id: str, proposer: str) -> Acceptance:
        return self._of_request.setdefault(request_id, {}).setdefault(proposer, Acceptance())

    def _cost_of(self, proposer: str) -> DraftCost:
        return self._draft_costs.setdefault(proposer, DraftCost())

    def observe_draft(self, proposer: str, most_tokens: int, seconds: float) -> None:
        """A round of drafting took so long."""
        self._cost_of(proposer).observe(most_tokens, seconds)

    def observe_verdict(self, request_id: str, proposer: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A draft was verified."""
        self._of_proposer.setdefault(proposer, Acceptance()).observe(num_draft_tokens, num_accepted_tokens)
        self._acceptance_of(request_id, proposer).observe(num_draft_tokens, num_accepted_tokens)

    def observe_step(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self._step_cost is not None:
            self._step_cost.observe(rows, seconds)

    def forget(self, request_id: str) -> None:
        """A request ended."""
        self._of_request.pop(request_id, None)
