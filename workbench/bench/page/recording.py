"""A real engine's steps and tokens with their times, and a service that plays them back without computing.

The engine would keep all cores busy, and the browser beside it would be measured as slower than it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from workbench.bench.workloads import chat_workload
from workbench.config import EngineConfig
from workbench.engine.messages import Event, RequestFinished, ServiceStatus
from workbench.engine.service import EngineService
from workbench.engine.streams import EventStream
from workbench.errors import EngineError
from workbench.models.tokenizer import Tokenizer
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import FinishReason, RequestMetrics, StepRecord

CHAT_ID: Final = "chat"
NUM_BACKGROUND: Final = 8
END_S: Final = 20.0
CUT_SHORT: Final = RequestMetrics(0.0, None, None, None, None, None, 0.0, 0, 0, 0)


@dataclass(frozen=True)
class Recording:
    """One run of an engine: a chat answer that streams beside other requests."""

    config: EngineConfig
    status: ServiceStatus
    tokenizer: Tokenizer
    moments: tuple[tuple[float, StepRecord | Event], ...]
    """(seconds after the start, step of the engine or event of the chat's request), in order."""

    @property
    def num_steps(self) -> int:
        """Steps of the engine in it."""
        return sum(isinstance(moment, StepRecord) for _, moment in self.moments)


def record(service: EngineService, seconds: float) -> Recording:
    """Let a ready engine answer one chat message and, beside it, eight requests, for some seconds.

    Raises:
        EngineError: the requests ended before that.
    """
    moments: list[tuple[float, StepRecord | Event]] = []
    ended = threading.Event()
    status, tokenizer = service.status, service.tokenizer
    began_s = time.monotonic()

    def note(moment: StepRecord | Event) -> None:
        moments.append((time.monotonic() - began_s, moment))
        if isinstance(moment, RequestFinished):
            ended.set()

    unsubscribe = service.subscribe(note)
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    chat, *others = chat_workload(NUM_BACKGROUND + 1, 0, tokenizer)
    names = [service.submit(chat.prompt_token_ids, params, note, CHAT_ID)]
    names += [service.submit(item.prompt_token_ids, params, lambda _: None) for item in others]
    if ended.wait(seconds):
        raise EngineError(f"the chat's answer ended before {seconds:.0f} s: record for less time")
    for name in names:
        service.abort(name)
    if not ended.wait(END_S):
        raise EngineError(f"the engine did not end its requests within {END_S:.0f} s")
    service.pool_snapshot()  # once it answers, the step that freed the blocks is recorded
    unsubscribe()
    return Recording(service.config, status, tokenizer, tuple(moments))


class PlayedService:
    """The door of an engine; whoever sends a message gets the recording, in the time that it took."""

    def __init__(self, recording: Recording) -> None:
        """Stand for the engine that was recorded."""
        self._recording = recording
        self._plays = 0
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None
        self.config = recording.config
        self.status = recording.status
        self.tokenizer = recording.tokenizer
        self.recorder = Recorder()

    def start(self) -> None:
        """Nothing has to be loaded."""

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """End what is being played."""
        self._halt.set()

    @property
    def num_open_requests(self) -> int:
        """One while the recording is played."""
        return int(self._is_playing())

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Take a listener; steps are heard through the recorder only."""
        return lambda: None

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        on_event: Callable[[Event], None],
        request_id: str | None = None,
        priority: int = 0,
    ) -> str:
        """Play the recording; the chat's events go to `on_event`. EngineError: it is being played."""
        if self._is_playing():
            raise EngineError("the recording is being played: one message at a time")
        self._halt.clear()
        self._thread = threading.Thread(target=self._play, args=(on_event, self._plays), daemon=True)
        self._plays += 1
        self._thread.start()
        return CHAT_ID

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> EventStream:
        """As `submit`, from within an event loop."""
        return EventStream(lambda listen: self.submit(prompt, params, listen), self.abort)

    def abort(self, request_id: str) -> None:
        """End what is being played."""
        self._halt.set()

    def _is_playing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _play(self, on_event: Callable[[Event], None], number: int) -> None:
        """Hand out every moment when it is due. Steps of a second time follow those of the first."""
        began_s = time.monotonic()
        step_id = number * self._recording.num_steps
        is_ended = False
        for at_s, moment in self._recording.moments:
            # After a halt the steps come at once, so that the pool ends as it was recorded.
            self._halt.wait(max(0.0, began_s + at_s - time.monotonic()))
            if isinstance(moment, StepRecord):
                step_id += 1
                started_s = began_s + at_s - moment.duration_s
                self.recorder.record(msgspec.structs.replace(moment, step_id=step_id, started_s=started_s))
            elif not self._halt.is_set():
                on_event(moment)
                is_ended = isinstance(moment, RequestFinished)
        if not is_ended:
            on_event(RequestFinished(CHAT_ID, FinishReason.ABORT, "", CUT_SHORT))
