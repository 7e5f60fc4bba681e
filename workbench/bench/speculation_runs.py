"""One run of the speculation benchmark: some requests together, timed, with what became of their drafts."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from workbench.engine.messages import Event, RequestFinished, TokenEvent
from workbench.engine.service import EngineService
from workbench.errors import EngineError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import SpeculationParams
from workbench.telemetry.records import FinishReason, StepRecord

REQUEST_TIMEOUT_S: Final = 1800


@dataclass(frozen=True)
class StepTime:
    """A step that computed no prompt."""

    num_draft_tokens: int
    """Drafted tokens that it verified, all requests together."""
    draft_s: float
    rest_s: float
    """All but drafting."""


@dataclass(frozen=True)
class Answered:
    """One answer, in seconds after its submission."""

    token_ids: tuple[int, ...]
    first_s: float
    """When its first token came."""
    last_s: float
    drafts: tuple[tuple[int, int], ...]
    """(drafted, accepted) of each delivery."""
    steps: tuple[StepTime, ...] = ()
    """Steps of the run, where it ran alone."""

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.last_s - self.first_s


@dataclass(frozen=True)
class _Delivery:
    """A token event and when it came."""

    at_s: float
    event: TokenEvent


def answer_together(
    service: EngineService, prompts: Sequence[Sequence[int]], wishes: SpeculationParams, max_tokens: int
) -> list[Answered]:
    """Submit all prompts at once and wait for their answers, each of which ends where the model ends it.

    What a model writes behind its end of text is nobody's answer, and no draft was made for it.

    Raises:
        EngineError: a request did not come to its end.
    """
    deliveries: list[list[_Delivery]] = [[] for _ in prompts]
    finished: queue.SimpleQueue[tuple[int, RequestFinished]] = queue.SimpleQueue()
    steps: list[StepTime] = []
    names: set[str] = set()

    def listener(index: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            if isinstance(event, TokenEvent):
                deliveries[index].append(_Delivery(time.perf_counter(), event))
            else:
                finished.put((index, event))

        return on_event

    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    unsubscribe = service.subscribe(_note_into(steps, names))
    started_s = time.perf_counter()
    try:
        for index, prompt in enumerate(prompts):
            names.add(service.submit(tuple(prompt), params, listener(index), speculation=wishes))
        for _ in prompts:
            index, end = finished.get(timeout=REQUEST_TIMEOUT_S)
            if end.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
                raise EngineError(f"request {index} came to no end, {end.finish_reason}: {end.error}")
    finally:
        unsubscribe()
    return [_answered(each, started_s, tuple(steps) if len(prompts) == 1 else ()) for each in deliveries]


def _note_into(steps: list[StepTime], names: set[str]) -> Callable[[StepRecord], None]:
    """Note steps of these requests; the record of the last step before may come late."""

    def on_record(record: StepRecord) -> None:
        is_own = any(request.request_id in names for request in record.requests)
        if is_own and record.num_decode_tokens and not record.num_prefill_tokens:
            num_draft = sum(request.num_draft_tokens for request in record.requests)
            steps.append(StepTime(num_draft, record.draft_s, record.duration_s - record.draft_s))

    return on_record


def _answered(deliveries: Sequence[_Delivery], started_s: float, steps: tuple[StepTime, ...]) -> Answered:
    return Answered(
        token_ids=tuple(token for each in deliveries for token in each.event.token_ids),
        first_s=deliveries[0].at_s - started_s,
        last_s=deliveries[-1].at_s - started_s,
        drafts=tuple((each.event.num_draft_tokens, each.event.num_accepted_tokens) for each in deliveries),
        steps=steps,
    )
