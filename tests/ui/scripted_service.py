"""A door whose engine does what a test tells it to, for the logic behind the page.

It is no oracle of the engine: tests of the engine's own behaviour use the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.config import EngineConfig
from workbench.engine.messages import Event, RequestFinished, ServiceState, ServiceStatus, TokenEvent, answer_id
from workbench.engine.streams import EventStream
from workbench.errors import WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import (
    Explanation,
    FinishReason,
    RequestMetrics,
    RequestState,
    RequestStatus,
    StepRecord,
)


class OneTokenPerCharacter:
    """A tokenizer in which every character is a token, and a message costs two more."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [0] * sum(len(message["content"]) + 2 for message in messages)


class ScriptedService:
    """Records what it is asked; events are sent by the test."""

    def __init__(self, config: EngineConfig | None = None, max_model_len: int = 1000) -> None:
        self.config = config or EngineConfig(num_blocks=100)
        self.status = ServiceStatus(
            state=ServiceState.READY,
            model_name="scripted",
            num_blocks=self.config.num_blocks or 100,
            block_size=self.config.block_size,
            max_model_len=max_model_len,
        )
        self.tokenizer = OneTokenPerCharacter()
        self.recorder = Recorder()
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.priorities: dict[str, int] = {}
        self.speculation: dict[str, SpeculationParams] = {}
        self.listeners: dict[str, Callable[[Event], None]] = {}
        self.aborted: list[str] = []
        self.preempted: list[str] = []
        self.refusal: WorkbenchError | None = None
        self.reloads: list[EngineConfig] = []
        self.limits: list[dict[str, Any]] = []

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        request_id: str | None = None,
        priority: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> str:
        if self.refusal is not None:
            raise self.refusal
        name = request_id or f"r{len(self.prompts) + 1}"
        self.prompts[name], self.params[name], self.listeners[name] = tuple(prompt), params, on_event
        self.priorities[name], self.speculation[name] = priority, speculation
        return name

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> EventStream:
        return EventStream(
            lambda listen: self.submit(prompt, params, listen, request_id, priority, speculation),
            self.abort,
            num_answers=params.n,
        )

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def preempt(self, request_id: str) -> None:
        self.preempted.append(request_id)

    def reload(self, config: EngineConfig, drain_s: float = 30.0) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.reloads.append(config)

    def set_limits(self, **live: Any) -> None:
        self.limits.append(live)

    def set_state(self, state: ServiceState) -> None:
        import msgspec

        self.status = msgspec.structs.replace(self.status, state=state)

    # ---------------------------------------------------------------- what the engine would send

    def token(self, request_id: str, text: str, num_output_tokens: int, index: int = 0) -> None:
        name = answer_id(request_id, index)
        self.listeners[request_id](TokenEvent(name, 1, (7,), text, num_output_tokens, index=index))

    def tokens(self, request_id: str, text: str, num_before: int, num_drafted: int, num_accepted: int) -> None:
        """Send the tokens of a step that verified a draft: one for each character of `text`."""
        ids = tuple(map(ord, text))
        self.listeners[request_id](
            TokenEvent(
                request_id,
                1,
                ids,
                text,
                num_before + len(ids),
                num_draft_tokens=num_drafted,
                num_accepted_tokens=num_accepted,
            )
        )

    def finish(
        self,
        request_id: str,
        reason: FinishReason = FinishReason.STOP,
        text: str = "",
        index: int = 0,
        **extra: Any,
    ) -> None:
        name = answer_id(request_id, index)
        self.listeners[request_id](RequestFinished(name, reason, text, METRICS, index=index, **extra))

    def record(self, *states: RequestState, explanations: tuple[Explanation, ...] = (), epoch: int = 0) -> None:
        """Record a step after which the requests stand as `states` say, in queue order."""
        newest = self.recorder.latest
        running = sum(state.status is RequestStatus.RUNNING for state in states)
        step = StepRecord(
            step_id=newest.step_id + 1 if newest is not None and newest.epoch == epoch else 1,
            started_s=0.0,
            schedule_s=0.0,
            execute_s=0.0,
            update_s=0.0,
            num_scheduled_tokens=0,
            num_prefill_tokens=0,
            num_decode_tokens=0,
            max_num_batched_tokens=512,
            num_running=running,
            num_waiting=len(states) - running,
            num_blocks=100,
            num_free_blocks=50,
            num_active_blocks=50,
            num_cached_blocks=0,
            requests=states,
            block_changes=(),
            explanations=explanations,
            epoch=epoch,
        )
        self.recorder.record(step)


METRICS = RequestMetrics(
    arrival_time_s=0.0,
    queue_time_s=0.01,
    ttft_s=0.412,
    itl_p50_s=0.0381,
    itl_p95_s=0.0614,
    tpot_s=0.04,
    e2e_s=1.0,
    num_prompt_tokens=187,
    num_output_tokens=20,
    num_preemptions=0,
)


def request_state(request_id: str, status: RequestStatus = RequestStatus.RUNNING, **values: Any) -> RequestState:
    """A request with 512 of 2,048 prompt tokens computed, unless said otherwise."""
    fields: dict[str, Any] = {
        "num_prompt_tokens": 2048,
        "num_output_tokens": 0,
        "num_computed_tokens": 512,
        "num_blocks": 32,
        "num_scheduled_tokens": 512,
        "num_new_tokens": 0,
        "is_prefill": True,
        "num_preemptions": 0,
        "arrival_time_s": 0.0,
    }
    return RequestState(request_id=request_id, status=status, **(fields | values))
