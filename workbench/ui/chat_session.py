"""One chat turn, without any widget: a conversation goes in, updates of the answer come out.

The page draws these updates; tests read them. Whatever ends the iteration (the last token, Stop,
a closed tab) also ends the engine's request.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from workbench.engine.messages import Event, RequestFinished, ServiceState, TokenEvent, answer_id
from workbench.engine.service import EngineService
from workbench.errors import EngineStoppedError, PromptTooLongError, WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.telemetry.records import FinishReason
from workbench.ui.answer_trace import AnswerToken, AnswerTrace, read_tokens
from workbench.ui.phases import Phase, PhaseKind, RequestWatch
from workbench.ui.texts import ENGLISH, Texts
from workbench.ui.turns import Answer, AnswerSettings, AnswerStats, ChatError, Conversation, Turn, chat_messages

UPDATE_INTERVAL_S: Final = 0.11
"""Time between two updates of a streaming answer: about nine a second, which a browser keeps up with."""
HEARTBEAT_S: Final = 0.5
"""Longest silence: an update is repeated so that a client that went away is noticed while it waits."""


@dataclass(frozen=True)
class AnswerUpdate:
    """State of the answers to one message at one moment. The last one of a turn has `is_final`."""

    request_id: str | None
    answers: tuple[Answer, ...]
    phases: tuple[Phase, ...]
    """One for each of the answers."""
    is_final: bool = False
    tokens: tuple[AnswerToken, ...] = ()
    """Of the first answer, as far as they have come."""

    @property
    def turn(self) -> Turn:
        """The answers as a message of the conversation."""
        return Turn.of_answers(self.answers)


NOTHING_YET: Final = AnswerUpdate(None, (Answer("", AnswerStats()),), (Phase.queued(),))
"""Before the engine has heard of the request."""


async def stream_answer(
    service: EngineService,
    conversation: Conversation,
    wanted: AnswerSettings,
    interval_s: float = UPDATE_INTERVAL_S,
    say: Texts = ENGLISH,
) -> AsyncGenerator[AnswerUpdate, None]:
    """Ask the engine for the answers to `conversation` and yield their state about nine times a second.

    The first token is yielded at once. While the request waits, an update comes whenever its phase
    changes, and at least every `HEARTBEAT_S`. Errors do not escape: they end in a final update.
    Closing this iterator aborts the request with all of its answers.
    """
    async for update in _wait_until_loaded(service):
        yield update
    watch = RequestWatch(service.recorder, say=say)
    try:
        tokenizer = service.tokenizer
        prompt = tokenizer.encode_chat(chat_messages(conversation, wanted.system_prompt))
        stream = service.stream(prompt, wanted.params, priority=wanted.priority, speculation=wanted.speculation)
    except WorkbenchError as error:
        yield _refused(error)
        return
    watch.request_id = stream.request_id
    decode = partial(tokenizer.decode, skip_special_tokens=False)
    reply = _Reply(watch, wanted.params, len(prompt), service.status.block_size, decode)
    reader = asyncio.create_task(_read(stream, reply))
    last: AnswerUpdate | None = None
    last_yield_s = 0.0
    try:
        while last is None or not last.is_final:
            await reply.wait(interval_s)
            update = reply.update()
            if update != last or time.monotonic() - last_yield_s > HEARTBEAT_S:
                last, last_yield_s = update, time.monotonic()
                yield update
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await stream.aclose()


async def _wait_until_loaded(service: EngineService) -> AsyncIterator[AnswerUpdate]:
    while service.status.state in (ServiceState.LOADING, ServiceState.RELOADING):
        yield dataclasses.replace(NOTHING_YET, phases=(Phase(PhaseKind.LOADING),))
        await asyncio.sleep(HEARTBEAT_S)


def _refused(error: WorkbenchError) -> AnswerUpdate:
    stats = AnswerStats(finish_reason=FinishReason.ERROR)
    message = ChatError(str(error), is_context_full=isinstance(error, PromptTooLongError))
    return AnswerUpdate(None, (Answer("", stats, message),), (Phase(PhaseKind.DONE),), is_final=True)


class _Stream(Protocol):
    request_id: str

    def __aiter__(self) -> AsyncIterator[Event]: ...
    async def aclose(self) -> None: ...


async def _read(stream: _Stream, reply: _Reply) -> None:
    try:
        async for event in stream:
            reply.take(event)
    except EngineStoppedError as error:
        reply.fail(str(error))
    else:
        reply.fail(reply.say("the engine ended without an answer"))


class _Reply:
    """What has arrived of a request's answers so far, written by the reader and read at each update."""

    def __init__(
        self,
        watch: RequestWatch,
        params: SamplingParams,
        num_prompt_tokens: int,
        block_size: int,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """`watch` follows the request, which has just been submitted."""
        self._block_size = block_size
        self._watch, self.say = watch, watch.say
        self._params = params
        self._failure: str | None = None
        self._parts = [_Part(num_prompt_tokens, decode) for _ in range(params.n)]
        self._urgent = asyncio.Event()
        """Set by the first token and by the end, which must not wait for the next interval."""

    def take(self, event: Event) -> None:
        is_first = not any(part.token_times_s for part in self._parts)
        self._parts[event.index].take(event)
        if is_first or self._is_complete:
            self._urgent.set()

    def fail(self, message: str) -> None:
        """End the answers that have not ended."""
        if not self._is_complete:
            self._failure = message
            self._urgent.set()

    @property
    def _is_complete(self) -> bool:
        return all(part.finished is not None for part in self._parts)

    async def wait(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._urgent.wait(), timeout_s)
        except TimeoutError:
            return
        self._urgent.clear()

    def update(self) -> AnswerUpdate:
        self._watch.read()
        return AnswerUpdate(
            request_id=self._watch.request_id,
            answers=tuple(self._answer(index, part) for index, part in enumerate(self._parts)),
            phases=tuple(self._phase(index, part) for index, part in enumerate(self._parts)),
            is_final=self._is_complete or self._failure is not None,
            tokens=tuple(self._parts[0].tokens),
        )

    @property
    def _is_searching(self) -> bool:
        """Whether beams are still to come: they are shown together, each with its score."""
        return self._params.use_beam_search and not self._is_complete and self._failure is None

    def _answer(self, index: int, part: _Part) -> Answer:
        if self._is_searching:
            return Answer("", AnswerStats())
        stats, error = part.stats(), None
        if part.finished is not None:
            error = _error_of(part.finished, self.say)
        elif self._failure is not None:
            stats, error = dataclasses.replace(stats, finish_reason=FinishReason.ERROR), ChatError(self._failure)
        if (admitted := self._watch.admitted) is not None:
            stats = dataclasses.replace(
                stats,
                num_cached_tokens=stats.num_cached_tokens or admitted.num_cached_tokens,
                cache_miss=admitted.cache_miss,
                differs_at=admitted.differs_at,
            )
        num_swaps = self._watch.num_swaps.get(answer_id(self._watch.request_id, index), 0)
        return Answer(part.text, dataclasses.replace(stats, num_swaps=num_swaps), error, self._trace(index, part))

    def _trace(self, index: int, part: _Part) -> AnswerTrace | None:
        """What is kept of an ended answer. A beam has gone from sequence to sequence: its blocks are unknown."""
        if (part.finished is None and self._failure is None) or part.last_step is None:
            return None
        name = answer_id(self._watch.request_id, index)
        return AnswerTrace(
            request_id=name,
            last_step=part.last_step,
            tokens=tuple(part.tokens),
            first_position=part.num_prompt_tokens,
            block_size=self._block_size,
            blocks=() if self._params.use_beam_search else self._watch.placement.blocks(name),
        )

    def _phase(self, index: int, part: _Part) -> Phase:
        """Return where one answer stands. Until they part, the request stands for all of its answers."""
        if self._failure is not None or (part.finished is not None and not self._is_searching):
            return Phase(PhaseKind.DONE)
        phase, state = self._watch.phase(answer_id(self._watch.request_id, index))
        if state is None and not part.num_output_tokens:
            phase, _ = self._watch.phase(self._watch.request_id)
        if phase.kind is PhaseKind.DECODE and self._params.use_beam_search:
            return Phase(PhaseKind.BEAMS, num_done=phase.num_done)
        if part.num_output_tokens and phase.kind in (PhaseKind.QUEUED, PhaseKind.DECODE):
            return Phase(PhaseKind.DECODE, num_done=part.num_output_tokens)
        return phase


@dataclass
class _Part:
    """What has arrived of one answer."""

    num_prompt_tokens: int
    decode: Callable[[Sequence[int]], str]
    started_s: float = field(default_factory=time.monotonic)
    text: str = ""
    num_output_tokens: int = 0
    finished: RequestFinished | None = None
    token_times_s: list[float] = field(default_factory=list)
    tokens: list[AnswerToken] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    last_step: int | None = None

    def take(self, event: Event) -> None:
        self.text += event.text
        if isinstance(event, TokenEvent):
            self.num_output_tokens = event.num_output_tokens
            self.token_times_s.append(time.monotonic())
            self.tokens += read_tokens(event, self.decode)
            self.num_draft_tokens += event.num_draft_tokens
            self.num_accepted_tokens += event.num_accepted_tokens
            self.last_step = event.step_id
        else:
            self.finished = event

    def stats(self) -> AnswerStats:
        """Return the engine's figures once it has ended, until then those of what has arrived."""
        if self.finished is not None:
            stats = AnswerStats.from_metrics(self.finished.metrics, self.finished.finish_reason)
            return dataclasses.replace(stats, beam_score=self.finished.beam_score)
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
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


def _error_of(finished: RequestFinished, say: Texts) -> ChatError | None:
    if finished.finish_reason is FinishReason.ENGINE_RELOAD:
        return ChatError(
            say("The engine was reloaded with other settings before the answer was complete. Regenerate to ask again.")
        )
    if finished.finish_reason is not FinishReason.ERROR:
        return None
    is_full = finished.error_type == "KVCacheExhaustedError"
    return ChatError(finished.error or say("the engine failed"), is_context_full=is_full)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile of an ascending sequence; None when it is empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
