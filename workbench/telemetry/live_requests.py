"""The requests that views name: their colours, their order, why they wait, and what a step did to them."""

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
_AWAY: Final = (RequestStatus.PREEMPTED, RequestStatus.SWAPPED)

FIRST_SEEN: Final = 1
ADMITTED: Final = 2
RESUMED: Final = 4
PREEMPTED: Final = 8
SWAPPED_OUT: Final = 16
FINISHED: Final = 32
FAILED: Final = 64
"""Bits of `LiveRequest.happened`. `FAILED` stands for aborted ones, too."""


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
    happened: int = 0
    """What the last step did to it, as bits."""

    def copy(self) -> LiveRequest:
        """Return the same request, to go on by itself."""
        return LiveRequest(
            self.key,
            self.slot,
            self.state,
            self.decision,
            self.preemption,
            self.version,
            self.preempted_s,
            self.happened,
        )

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
        self.ended: list[LiveRequest] = []
        """Those that ended in the last step; they have no place among the others any more."""
        self.slots = SlotPool()
        self.next_key = 1

    def copy(self) -> LiveRequests:
        """Return the same requests, to go on by themselves."""
        twin = LiveRequests()
        twin.by_id = {name: request.copy() for name, request in self.by_id.items()}
        twin.named = [twin.by_id[request.state.request_id] for request in self.named]
        twin.ended = list(self.ended)
        twin.slots, twin.next_key = self.slots.copy(), self.next_key
        return twin

    def apply(self, record: StepRecord, version: int) -> None:
        """Take over the requests of a step; `version` is the live state's with this step."""
        now_s = record.started_s + record.duration_s
        told: dict[str, list[Explanation]] = {}
        for explanation in record.explanations:
            told.setdefault(explanation.request_id, []).append(explanation)
        # Those that ended come first: their names may be in use again.
        self.ended = [self._end(state) for state in record.requests if state.status.is_terminal]
        living = [state for state in record.requests if not state.status.is_terminal]
        for state in living:
            request = self.by_id.get(state.request_id)
            if request is None:
                request = self.by_id[state.request_id] = self._new_request(state)
                before = None
            else:
                before = (request.slot, request.state, request.decision, request.preemption)
            request.happened = _happened(None if before is None else request.state, state)
            request.state = state
            if request.slot is None and state.status is RequestStatus.RUNNING:
                self._admit(request)
            for explanation in told.get(state.request_id, ()):
                request.decide(explanation, record.step_id, now_s)
            request.forget_decisions(now_s)
            if before != (request.slot, state, request.decision, request.preemption):
                request.version = version
        self._drop_lost({state.request_id for state in living})
        for request in self.ended:
            self.slots.give_back(request.slot)
        self._name([self.by_id[state.request_id] for state in living], version)

    def _new_request(self, state: RequestState) -> LiveRequest:
        self.next_key += 1
        return LiveRequest(self.next_key - 1, None, state)

    def _admit(self, request: LiveRequest) -> None:
        request.slot = self.slots.take()
        request.happened |= ADMITTED

    def _end(self, state: RequestState) -> LiveRequest:
        """Take out one that ended, whether or not it was seen alive."""
        request = self.by_id.pop(state.request_id, None)
        before = None if request is None else request.state
        if request is None:
            request = self._new_request(state)
        request.happened = _happened(before, state)
        request.happened |= FINISHED if state.status is RequestStatus.FINISHED else FAILED
        request.state = state
        if request.slot is None and state.num_computed_tokens:
            self._admit(request)
        return request

    def _drop_lost(self, living: set[str]) -> None:
        """Forget those whose end was not told, since records were lost."""
        for request_id in [name for name in self.by_id if name not in living]:
            self.slots.give_back(self.by_id.pop(request_id).slot)

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


def _happened(before: RequestState | None, state: RequestState) -> int:
    """What a step did to a request that it did not end; admission is for the caller to add."""
    if before is None:
        return FIRST_SEEN
    happened = 0
    if state.num_preemptions > before.num_preemptions:
        happened = PREEMPTED | (SWAPPED_OUT if state.status is RequestStatus.SWAPPED else 0)
    if (happened or before.status in _AWAY) and (state.status is RequestStatus.RUNNING or state.num_scheduled_tokens):
        happened |= RESUMED
    return happened


class SlotPool:
    """Small numbers, lowest free first."""

    def __init__(self, free: Iterable[int] = (), next_slot: int = 0) -> None:
        self.free = list(free)
        self.next_slot = next_slot
        heapq.heapify(self.free)

    def copy(self) -> SlotPool:
        """Return the same pool, to go on by itself."""
        return SlotPool(self.free, self.next_slot)

    def take(self) -> int:
        """Return the lowest number that is free."""
        if self.free:
            return heapq.heappop(self.free)
        self.next_slot += 1
        return self.next_slot - 1

    def give_back(self, slot: int | None) -> None:
        """Take a number back; None is nothing."""
        if slot is not None:
            heapq.heappush(self.free, slot)
