"""Where a visitor's request stands, read from the engine's step records: its phase, and what holds it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Final

from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import Decision, Explanation, RequestState, RequestStatus, StepRecord
from workbench.ui.explain import explain
from workbench.ui.placement import Placement
from workbench.ui.texts import ENGLISH, Texts


class PhaseKind(enum.StrEnum):
    """Where the visitor's request stands."""

    LOADING = "loading"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    BEAMS = "beam search"
    """Decode whose text comes only at the end."""
    PREEMPTED = "preempted"
    DONE = "done"


@dataclass(frozen=True)
class Phase:
    """A phase with the numbers that the page shows beside it."""

    kind: PhaseKind
    position: int | None = None
    """Place in the queue, from 1 (queued, preempted)."""
    num_done: int = 0
    """Tokens computed (prefill) or generated (decode)."""
    num_total: int | None = None
    """Tokens to compute (prefill)."""
    why: tuple[str, ...] = ()
    """While it is queued or preempted: the scheduler's decisions about it, as sentences."""

    @classmethod
    def queued(cls) -> Phase:
        """A request of which nothing is known yet."""
        return cls(PhaseKind.QUEUED)

    @property
    def words(self) -> str:
        """The phase in English."""
        return self.words_in(ENGLISH)

    def words_in(self, say: Texts) -> str:
        """The phase as the page says it: `queued #3`, `prefill 512/2,048`, `decode 116`."""
        match self.kind:
            case PhaseKind.QUEUED if self.position is not None:
                return say("queued #{place}", place=self.position)
            case PhaseKind.PREFILL if self.num_total is not None:
                return say("prefill {done}/{total}", done=self.num_done, total=self.num_total)
            case PhaseKind.DECODE:
                return say("decode {count}", count=self.num_done)
            case PhaseKind.BEAMS:
                return say("beam search, length {count}; its text comes at the end", count=self.num_done)
            case _:
                return say(self.kind.value)


_HELD: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.SWAPPED)


def find_phase(record: StepRecord | None, request_id: str) -> tuple[Phase, RequestState | None]:
    """Return the phase of a request that has not ended, and its state, after the step in `record`."""
    position = 0
    for state in record.requests if record is not None else ():
        is_held = state.status in _HELD
        position += is_held
        if state.request_id != request_id:
            continue
        if is_held:
            kind = PhaseKind.QUEUED if state.status is RequestStatus.WAITING else PhaseKind.PREEMPTED
            return Phase(kind, position=position), state
        if state.num_output_tokens == 0 or state.is_prefill:
            total = state.num_prompt_tokens + state.num_output_tokens
            return Phase(PhaseKind.PREFILL, num_done=state.num_computed_tokens, num_total=total), state
        return Phase(PhaseKind.DECODE, num_done=state.num_output_tokens), state
    return Phase(PhaseKind.QUEUED), None


def belongs_to(name: str, request_id: str) -> bool:
    """Whether `name` is the request itself or another one of its answers (`messages.answer_id`)."""
    return name == request_id or name.startswith(f"{request_id}.")


@dataclass
class RequestWatch:
    """Follows a request and its answers through the step records, none of which it misses.

    Create it before the request is submitted; `follow` gives it its name.
    """

    recorder: Recorder
    request_id: str = ""
    say: Texts = ENGLISH
    """For the scheduler's reasons."""
    admitted: RequestState | None = None
    """The request as it stood when it was first admitted: what the cache held of it, and why no more."""
    num_swaps: dict[str, int] = field(default_factory=dict)
    """Answer → how often its context was kept in host memory."""
    placement: Placement = field(default_factory=Placement)
    """Where its answers lie."""
    _holds: dict[str, tuple[Explanation, ...]] = field(default_factory=dict)
    """Answer → why it does not run: what preempted it, if anything, and the newest reason that it waits."""
    _latest: StepRecord | None = None

    def __post_init__(self) -> None:
        self._latest = self.recorder.latest

    def read(self) -> None:
        """Take over what the engine has recorded since the last time."""
        newest = self.recorder.latest
        if newest is None or newest is self._latest:
            return
        is_same_engine = self._latest is not None and self._latest.epoch == newest.epoch
        for record in self.recorder.since(self._latest.step_id if self._latest and is_same_engine else -1):
            self._take(record)
            self._latest = record

    def phase(self, name: str) -> tuple[Phase, RequestState | None]:
        """Return the phase of one answer after the newest step, and its state; see `find_phase`."""
        phase, state = find_phase(self._latest, name)
        if phase.kind in (PhaseKind.QUEUED, PhaseKind.PREEMPTED):
            phase = replace(phase, why=tuple(explain(hold, self.say) for hold in self._holds.get(name, ())))
        return phase, state

    def _take(self, record: StepRecord) -> None:
        self.placement.take(record, lambda name: belongs_to(name, self.request_id))
        for explanation in record.explanations:
            if belongs_to(explanation.request_id, self.request_id):
                self._hold(explanation)
        for state in record.requests:
            if not belongs_to(state.request_id, self.request_id):
                continue
            if state.status not in _HELD:
                self._holds.pop(state.request_id, None)
                self.admitted = self.admitted or state

    def _hold(self, explanation: Explanation) -> None:
        name, earlier = explanation.request_id, self._holds.get(explanation.request_id, ())
        if explanation.decision is Decision.PREEMPTED:
            self._holds[name] = (explanation,)
            if explanation.numbers.get("swapped_blocks"):
                self.num_swaps[name] = self.num_swaps.get(name, 0) + 1
        elif explanation.decision is Decision.DEFERRED:
            self._holds[name] = (*(hold for hold in earlier if hold.decision is Decision.PREEMPTED), explanation)
