"""The requests that live views name: their colours, their order, and why they wait."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from workbench.telemetry.records import Decision, Explanation, RequestState, RequestStatus, StepRecord

MAX_NAMED_WAITING: Final = 64
"""Requests named in a frame that were never admitted; all of them are counted."""
RECENT_S: Final = 5.0
"""A running request goes on telling of its last preemption for so many seconds."""
_HELD: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.SWAPPED)


@dataclass(frozen=True)
class StandingDecision:
    """A decision of the scheduler that has not been followed by another one yet."""

    explanation: Explanation
    """As of the last step that repeated it."""
    since_step: int
    """The first step of this decision for this reason."""


@dataclass
class LiveRequest:
    """A request that has not ended. `key` names it on the wire and is never used again in an epoch."""

    key: int
    slot: int | None
    """Colour slot: the lowest free one at admission, kept through preemption, freed at the end."""
    state: RequestState
    decision: StandingDecision | None = None
    """The latest one, while the request is held back or was preempted a moment ago."""
    preemption: StandingDecision | None = None
    """The latest preemption, for as long as `decision` is told."""
    version: int = 0
    """Of the live state, when anything of this last changed or the request came to be named."""
    preempted_s: float = -math.inf

    def decide(self, explanation: Explanation, step_id: int, now_s: float) -> None:
        """Take up a decision. One that is repeated keeps its first step and gets the new numbers."""
        self.decision = _follow(self.decision, explanation, step_id)
        if explanation.decision is Decision.PREEMPTED:
            self.preemption, self.preempted_s = StandingDecision(explanation, step_id), now_s

    def forget_decisions(self, now_s: float) -> None:
        """Drop what nobody asks about: why a request runs that has been running for a while."""
        if self.state.status not in _HELD and now_s - self.preempted_s > RECENT_S:
            self.decision = self.preemption = None


class LiveRequests:
    """All living requests by id, and those that a frame names, in the engine's own order."""

    def __init__(self) -> None:
        self.by_id: dict[str, LiveRequest] = {}
        self.named: list[LiveRequest] = []
        """Running ones first, then the queue. At most `MAX_NAMED_WAITING` of them were never admitted."""
        self._slots = _SlotPool()
        self._next_key = 1

    def apply(self, record: StepRecord, version: int) -> None:
        """Take over the requests of a step; `version` is the live state's with this step."""
        now_s = record.started_s + record.duration_s
        told: dict[str, list[Explanation]] = {}
        for explanation in record.explanations:
            told.setdefault(explanation.request_id, []).append(explanation)
        living = [state for state in record.requests if not state.status.is_terminal]
        for state in living:
            request = self._request(state)
            before = (request.slot, request.state, request.decision, request.preemption)
            request.state = state
            if request.slot is None and state.status is RequestStatus.RUNNING:
                request.slot = self._slots.take()
            for explanation in told.get(state.request_id, ()):
                request.decide(explanation, record.step_id, now_s)
            request.forget_decisions(now_s)
            if before != (request.slot, state, request.decision, request.preemption):
                request.version = version
        self._drop_ended({state.request_id for state in living})
        self._name([self.by_id[state.request_id] for state in living], version)

    def _request(self, state: RequestState) -> LiveRequest:
        request = self.by_id.get(state.request_id)
        if request is None:
            request = self.by_id[state.request_id] = LiveRequest(self._next_key, None, state)
            self._next_key += 1
        return request

    def _drop_ended(self, living: set[str]) -> None:
        for request_id in [name for name in self.by_id if name not in living]:
            self._slots.give_back(self.by_id.pop(request_id).slot)

    def _name(self, living: Iterable[LiveRequest], version: int) -> None:
        known = {request.key for request in self.named}
        self.named, num_waiting = [], 0
        for request in living:
            num_waiting += request.slot is None
            if request.slot is None and num_waiting > MAX_NAMED_WAITING:
                continue
            self.named.append(request)
            if request.key not in known:
                request.version = version


def _follow(standing: StandingDecision | None, explanation: Explanation, step_id: int) -> StandingDecision:
    if standing is None:
        return StandingDecision(explanation, step_id)
    last = standing.explanation
    is_repeated = (last.decision, last.reason) == (explanation.decision, explanation.reason)
    return StandingDecision(explanation, standing.since_step if is_repeated else step_id)


class _SlotPool:
    """Small numbers, lowest free first."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, slot: int | None) -> None:
        if slot is not None:
            heapq.heappush(self._free, slot)
