"""What the step records tell of drafting: of one answer step by step, and of all requests together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from workbench.speculation.statistics import AcceptanceStatistics
from workbench.telemetry.records import RequestState, StepRecord

BUCKETS: Final = 40
"""Stretches of time in which the acceptance of all requests is told."""


@dataclass(frozen=True)
class AnswerStep:
    """One step that brought tokens of one answer. Times are seconds, of the whole step."""

    step_id: int
    ended_s: float
    """Of `time.monotonic`."""
    duration_s: float
    draft_s: float
    execute_s: float
    num_new_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    is_prefill: bool
    num_others: int
    """Other requests that were computed in the same step."""


def steps_of(records: Iterable[StepRecord], request_id: str) -> tuple[AnswerStep, ...]:
    """Return the steps that brought tokens of an answer."""
    return tuple(
        _step(record, state)
        for record in records
        for state in record.requests
        if state.request_id == request_id and state.num_new_tokens
    )


def _step(record: StepRecord, state: RequestState) -> AnswerStep:
    return AnswerStep(
        step_id=record.step_id,
        ended_s=record.started_s + record.duration_s,
        duration_s=record.duration_s,
        draft_s=record.draft_s,
        execute_s=record.execute_s,
        num_new_tokens=state.num_new_tokens,
        num_draft_tokens=state.num_draft_tokens,
        num_accepted_tokens=state.num_accepted_tokens,
        is_prefill=state.is_prefill,
        num_others=sum(other.num_scheduled_tokens > 0 for other in record.requests) - 1,
    )


def statistics_of(steps: Iterable[AnswerStep]) -> AcceptanceStatistics:
    """Return the counts over the drafts of an answer."""
    return AcceptanceStatistics.of((step.num_draft_tokens, step.num_accepted_tokens) for step in steps)


@dataclass(frozen=True)
class Bucket:
    """The drafts that were verified in one stretch of time."""

    ended_s: float
    """End of the stretch, in seconds before the newest step: 0 or less."""
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True)
class DraftTotals:
    """All drafts that are recorded."""

    first_step: int = -1
    last_step: int = -1
    overall: AcceptanceStatistics = field(default_factory=AcceptanceStatistics)
    by_request: tuple[tuple[str, AcceptanceStatistics], ...] = ()
    """Requests that were drafted for, the newest first."""
    buckets: tuple[Bucket, ...] = ()
    draft_s: float = 0.0
    """Time for drafting in all steps."""
    verify_s: float = 0.0
    """Time for computing the steps that verified drafts, with all else that they computed."""


def totals_of(records: Sequence[StepRecord]) -> DraftTotals:
    """Count all drafts of the recorded steps."""
    if not records:
        return DraftTotals()
    by_request: dict[str, AcceptanceStatistics] = {}
    overall = AcceptanceStatistics()
    draft_s = verify_s = 0.0
    for record in records:
        drafted = [state for state in record.requests if state.num_draft_tokens]
        draft_s += record.draft_s
        verify_s += record.execute_s if drafted else 0.0
        for state in drafted:
            own = by_request.setdefault(state.request_id, AcceptanceStatistics())
            for statistics in (own, overall):
                statistics.add(state.num_draft_tokens, state.num_accepted_tokens)
    newest_first = tuple(reversed(by_request.items()))
    first, last = records[0].step_id, records[-1].step_id
    return DraftTotals(first, last, overall, newest_first, _buckets(records), draft_s, verify_s)


def _buckets(records: Sequence[StepRecord]) -> tuple[Bucket, ...]:
    """Part the time between the first and the last draft evenly; stretches without a draft are left out."""
    drafted = [record for record in records if any(state.num_draft_tokens for state in record.requests)]
    if not drafted:
        return ()
    start_s, end_s, newest_s = drafted[0].started_s, drafted[-1].started_s, records[-1].started_s
    width_s = (end_s - start_s) / BUCKETS or 1.0
    counts: dict[int, list[int]] = {}
    for record in drafted:
        count = counts.setdefault(min(BUCKETS - 1, int((record.started_s - start_s) / width_s)), [0, 0])
        count[0] += sum(state.num_draft_tokens for state in record.requests)
        count[1] += sum(state.num_accepted_tokens for state in record.requests)
    return tuple(
        Bucket(start_s + (place + 1) * width_s - newest_s, num_drafted, num_accepted)
        for place, (num_drafted, num_accepted) in sorted(counts.items())
    )
