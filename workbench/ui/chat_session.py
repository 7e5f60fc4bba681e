"""One chat turn, without any widget: a conversation goes in, updates of the answer come out.

The page draws these updates; tests read them. Whatever ends the iteration (the last token, Stop,
a closed tab) also ends the engine's request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from workbench.config import EngineConfig
from workbench.engine.messages import Event, RequestFinished, ServiceState, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import EngineStoppedError, PromptTooLongError, WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason, RequestState, RequestStatus, StepRecord
from workbench.ui.turns import AnswerStats, ChatError, Conversation, Turn, chat_messages

UPDATE_INTERVAL_S: Final = 0.11
"""Time between two updates of a streaming answer: about nine a second, which a browser keeps up with."""
HEARTBEAT_S: Final = 0.5
"""Longest silence: an update is repeated so that a client that went away is noticed while it waits."""


class PhaseKind(enum.StrEnum):
    """Where the visitor's request stands."""

    LOADING = "loading"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
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

    @classmethod
    def queued(cls) -> Phase:
        """A request of which nothing is known yet."""
        return cls(PhaseKind.QUEUED)

    @property
    def words(self) -> str:
        """The phase as the page says it: `queued #3`, `prefill 512/2,048`, `decode 116`."""
        match self.kind:
            case PhaseKind.QUEUED if self.position is not None:
                return f"queued #{self.position}"
            case PhaseKind.PREFILL if self.num_total is not None:
                return f"prefill {self.num_done:,}/{self.num_total:,}"
            case PhaseKind.DECODE:
                return f"decode {self.num_done:,}"
            case _:
                return self.kind.value


@dataclass(frozen=True)
class AnswerUpdate:
    """State of the answer at one moment. The last one of a turn has `is_final`."""

    request_id: str | None
    text: str
    phase: Phase
    stats: AnswerStats
    context_tokens: int = 0
    num_blocks: int = 0
    is_final: bool = False
    error: ChatError | None = None

    @property
    def turn(self) -> Turn:
        """The answer as a message of the conversation."""
        return Turn("assistant", self.text, self.stats, self.error)


def find_phase(record: StepRecord | None, request_id: str) -> tuple[Phase, RequestState | None]:
    """Return the phase of a request that has not ended, and its state, after the step in `record`."""
    position = 0
    for state in record.requests if record is not None else ():
        is_waiting = state.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        position += is_waiting
        if state.request_id != request_id:
            continue
        if is_waiting:
            kind = PhaseKind.PREEMPTED if state.status is RequestStatus.PREEMPTED else PhaseKind.QUEUED
            return Phase(kind, position=position), state
        if state.num_output_tokens == 0 or state.is_prefill:
            total = state.num_prompt_tokens + state.num_output_tokens
            return Phase(PhaseKind.PREFILL, num_done=state.num_computed_tokens, num_total=total), state
        return Phase(PhaseKind.DECODE, num_done=state.num_output_tokens), state
    return Phase(PhaseKind.QUEUED), None


async def stream_answer(
    service: EngineService,
    conversation: Conversation,
    system_prompt: str,
    params: SamplingParams,
    interval_s: float = UPDATE_INTERVAL_S,
) -> AsyncGenerator[AnswerUpdate, None]:
    """Ask the engine for an answer to `conversation` and yield its state about nine times a second.

    The first token is yielded at once. While the request waits, an update comes whenever its phase
    changes, and at least every `HEARTBEAT_S`. Errors do not escape: they end in a final update.
    Closing this iterator aborts the request.
    """
    async for update in _wait_until_loaded(service):
        yield update
    try:
        prompt = service.tokenizer.encode_chat(chat_messages(conversation, system_prompt))
        stream = service.stream(prompt, params)
    except WorkbenchError as error:
        yield _refused(error)
        return
    answer = _Answer(stream.request_id, len(prompt))
    reader = asyncio.create_task(_read(stream, answer))
    last: AnswerUpdate | None = None
    last_yield_s = 0.0
    try:
        while last is None or not last.is_final:
            await answer.wait(interval_s)
            update = answer.update(service)
            if update != last or time.monotonic() - last_yield_s > HEARTBEAT_S:
                last, last_yield_s = update, time.monotonic()
                yield update
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await stream.aclose()


async def _wait_until_loaded(service: EngineService) -> AsyncIterator[AnswerUpdate]:
    while service.status.state in (ServiceState.LOADING, ServiceState.RELOADING):
        yield AnswerUpdate(None, "", Phase(PhaseKind.LOADING), AnswerStats())
        await asyncio.sleep(HEARTBEAT_S)


def _refused(error: WorkbenchError) -> AnswerUpdate:
    stats = AnswerStats(finish_reason=FinishReason.ERROR)
    message = ChatError(str(error), is_context_full=isinstance(error, PromptTooLongError))
    return AnswerUpdate(None, "", Phase(PhaseKind.DONE), stats, is_final=True, error=message)


class _Stream(Protocol):
    request_id: str

    def __aiter__(self) -> AsyncIterator[Event]: ...
    async def aclose(self) -> None: ...


async def _read(stream: _Stream, answer: _Answer) -> None:
    try:
        async for event in stream:
            answer.take(event)
    except EngineStoppedError as error:
        answer.fail(str(error))
    else:
        answer.fail("the engine ended without an answer")


@dataclass
class _Answer:
    """What has arrived of an answer so far, written by the reader and read at each update."""

    request_id: str
    num_prompt_tokens: int
    started_s: float = field(default_factory=time.monotonic)
    text: str = ""
    num_output_tokens: int = 0
    finished: RequestFinished | None = None
    failure: str | None = None
    token_times_s: list[float] = field(default_factory=list)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first token and by the end, which must not wait for the next interval."""

    def take(self, event: Event) -> None:
        self.text += event.text
        if isinstance(event, TokenEvent):
            self.num_output_tokens = event.num_output_tokens
            self.token_times_s.append(time.monotonic())
            if len(self.token_times_s) == 1:
                self._urgent.set()
        else:
            self.finished = event
            self._urgent.set()

    def fail(self, message: str) -> None:
        if self.finished is None:
            self.failure = message
            self._urgent.set()

    async def wait(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._urgent.wait(), timeout_s)
        except TimeoutError:
            return
        self._urgent.clear()

    def update(self, service: EngineService) -> AnswerUpdate:
        if self.failure is not None:
            stats = dataclasses.replace(self._live_stats(), finish_reason=FinishReason.ERROR)
            return self._final(stats, ChatError(self.failure))
        if self.finished is not None:
            stats = AnswerStats.from_metrics(self.finished.metrics, self.finished.finish_reason)
            return self._final(stats, self._error_of(self.finished, service.config))
        phase, state = find_phase(service.recorder.latest, self.request_id)
        if self.num_output_tokens and phase.kind in (PhaseKind.QUEUED, PhaseKind.DECODE):
            phase = Phase(PhaseKind.DECODE, num_done=self.num_output_tokens)
        return AnswerUpdate(
            request_id=self.request_id,
            text=self.text,
            phase=phase,
            stats=self._live_stats(),
            context_tokens=state.num_computed_tokens if state else 0,
            num_blocks=state.num_blocks if state else 0,
        )

    def _final(self, stats: AnswerStats, error: ChatError | None) -> AnswerUpdate:
        return AnswerUpdate(
            request_id=self.request_id,
            text=self.text,
            phase=Phase(PhaseKind.DONE),
            stats=stats,
            context_tokens=self.num_prompt_tokens + stats.num_output_tokens,
            is_final=True,
            error=error,
        )

    @staticmethod
    def _error_of(finished: RequestFinished, config: EngineConfig) -> ChatError | None:
        if finished.finish_reason is FinishReason.ENGINE_RELOAD:
            return ChatError(
                "The engine was reloaded with other settings before the answer was complete. Regenerate to ask again."
            )
        if finished.finish_reason is not FinishReason.ERROR:
            return None
        is_full = finished.error_type == "KVCacheExhaustedError"
        return ChatError(finished.error or "the engine failed", is_context_full=is_full)

    def _live_stats(self) -> AnswerStats:
        times = self.token_times_s
        gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
        span_s = times[-1] - times[0] if times else 0.0
        return AnswerStats(
            ttft_s=times[0] - self.started_s if times else None,
            itl_p50_s=_quantile(gaps, 0.5),
            itl_p95_s=_quantile(gaps, 0.95),
            tokens_per_s=(self.num_output_tokens - 1) / span_s if span_s > 0 else None,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
        )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile of an ascending sequence; None when it is empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
