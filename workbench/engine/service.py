"""The only door to an engine: commands in, events out, one thread behind it.

Whatever can be refused is refused here, in the caller's thread, before anything is queued. Events
are handed to a listener per request, in the engine thread: listeners must be quick and never block.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.config import LIVE_FIELDS, EngineConfig
from workbench.engine.door import (
    check_can_share,
    check_is_ready,
    check_leaves_a_token,
    check_num_sequences,
    check_request,
    check_room_in_queue,
    check_speculation,
    encode_bad_words,
)
from workbench.engine.messages import (
    Abort,
    BlockDetails,
    Event,
    Preempt,
    RequestFinished,
    ServiceState,
    ServiceStatus,
    SetLimits,
    Submit,
    answer_id,
)
from workbench.engine.streams import EventStream
from workbench.engine.worker import Call, EngineWorker, Message, Pause, Reload, Stop
from workbench.errors import EngineStoppedError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import PoolSnapshot, StepRecord

if TYPE_CHECKING:
    from workbench.engine.core import EngineCore
    from workbench.models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
T = TypeVar("T")
Listener = Callable[[Event], None]


class EngineService:
    """One engine, usable from any thread."""

    def __init__(self, config: EngineConfig) -> None:
        """Prepare; `start` loads. `config` is checked already."""
        self._status = ServiceStatus(state=ServiceState.LOADING, model_name=config.model)
        self._listeners: dict[str, Listener] = {}
        self.recorder = Recorder()
        """The latest steps, for views that look back."""
        self._subscribers: list[Callable[[StepRecord], None]] = [self.recorder.record]
        self._names = (f"r{number}" for number in itertools.count(1))
        self._gate = threading.Lock()
        """Held while a request passes the door, and while the engine stops: none slips in between."""
        self._settled = threading.Event()
        self._worker = EngineWorker(config, self._deliver, self._publish, self._publish_record)
        self._thread = threading.Thread(target=self._worker.run, name="engine", daemon=True)

    # -------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Start the engine thread, which loads the model; return at once."""
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the engine takes requests.

        Raises:
            TimeoutError: it is still loading after `timeout_s` seconds.
            WorkbenchError: loading failed, with the cause.
            EngineStoppedError: it was shut down.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"the engine is still {self._status.state} after {timeout_s} s: give it more time")
        if self._worker.load_error is not None:
            raise self._worker.load_error
        check_is_ready(self._status)

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """End every request and the thread. Safe to call twice, and from any thread but the engine's.

        Raises:
            TimeoutError: a step has not ended within `timeout_s` seconds.
        """
        self._worker.is_stopping = True
        self._worker.inbox.put(Stop())
        if self._thread.ident is None:  # never started
            self._publish(ServiceStatus(state=ServiceState.STOPPED, model_name=self._status.model_name))
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine thread has not ended within {timeout_s} s")

    @property
    def status(self) -> ServiceStatus:
        """What the engine is and does right now."""
        return self._status

    @property
    def config(self) -> EngineConfig:
        """The configuration in force."""
        return self._worker.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, usable in any thread.

        Raises:
            EngineStoppedError: no model is loaded.
        """
        loaded = self._worker.loaded
        if loaded is None:
            check_is_ready(self._status)
            raise EngineStoppedError("the engine is stopping: start a new one")
        return loaded.core.loaded.tokenizer

    # ----------------------------------------------------------------------------- requests

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        on_event: Listener,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> str:
        """Queue a request and return its id.

        Args:
            prompt: text, or token ids.
            params: how to choose tokens.
            on_event: gets the request's events in order, those of all its answers; each answer ends with a
                RequestFinished. Runs in the engine thread.
            request_id: a name of one's own; it must not be in use.
            priority: lower runs first, where the scheduling policy looks at it.
            cache_salt: requests with different salts never share cached blocks.
            speculation: how to draft tokens ahead.

        Raises:
            RequestRejectedError: it can never be served, or too many requests are open.
            EngineStoppedError: the engine is not ready.
        """
        check_is_ready(self._status)
        prompt_token_ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
        check_request(prompt_token_ids, params, self._status)
        bad_word_ids = encode_bad_words(self.tokenizer, params.bad_texts)
        check_leaves_a_token(params, bad_word_ids, self.tokenizer.eos_token_ids)
        check_num_sequences(params, self.config.max_num_seqs)
        check_can_share(params, self.config.kv_layout)
        check_speculation(speculation, params, self._status)
        with self._gate:
            check_is_ready(self._status)
            most_open = self.config.max_num_seqs + self.config.max_num_waiting
            check_room_in_queue(len(self._listeners), params.n, most_open)
            name = self._name(request_id, params.num_sequences)
            self._listeners |= {answer_id(name, index): on_event for index in range(params.n)}
            now_s = time.monotonic()
            self._put(Submit(name, prompt_token_ids, params, now_s, bad_word_ids, priority, cache_salt, speculation))
        return name

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> EventStream:
        """Queue a request from within an event loop; leaving the stream aborts it. Errors as `submit`."""
        return EventStream(
            lambda listen: self.submit(prompt, params, listen, request_id, priority, speculation=speculation),
            self.abort,
            num_answers=params.n,
        )

    def abort(self, request_id: str) -> None:
        """End a request with all its answers, or one answer by its name; an unknown or ended one is ignored."""
        self._put(Abort(request_id))

    def preempt(self, request_id: str) -> None:
        """Take the blocks of a running request with all its answers, or of one answer by its name.

        It waits and goes on later, with the same tokens. One that does not run is left alone.

        Raises:
            EngineStoppedError: the engine was shut down.
        """
        self._put(Preempt(request_id))

    @property
    def num_open_requests(self) -> int:
        """Answers that are being computed or wait."""
        return len(self._listeners)

    def _name(self, request_id: str | None, num_sequences: int) -> str:
        """Return a name that is free for the request and for all its sequences."""
        if request_id is None:
            return next(name for name in self._names if self._is_free(name, num_sequences))
        if not self._is_free(request_id, num_sequences):
            raise ValueError(f"request_id={request_id!r} is in use: give another one, or none")
        return request_id

    def _is_free(self, name: str, num_sequences: int) -> bool:
        """Whether no open answer, and no beam of an open request, has one of the names or is called after it."""
        own = [answer_id(name, index) for index in range(num_sequences)]
        is_taken = name.rpartition(".")[0] in self._listeners or any(each in self._listeners for each in own)
        return not is_taken and not any(
            family == name and index.isdigit()
            for family, _, index in (each.rpartition(".") for each in list(self._listeners))
        )

    # ------------------------------------------------------------------------------ settings

    def set_limits(self, **live: Any) -> None:
        """Change some of the live settings (`workbench.config.LIVE_FIELDS`); they hold from the next step on.

        Raises:
            ConfigurationError: a value is out of range.
        """
        assert live.keys() <= LIVE_FIELDS, f"{live.keys() - LIVE_FIELDS} need a reload"
        config = replace(self.config, **live)
        self._put(SetLimits(**{name: getattr(config, name) for name in LIVE_FIELDS}))

    def reload(self, config: EngineConfig, drain_s: float = 30.0) -> None:
        """Take over a new configuration; blocks until it is in force.

        Where only live settings differ, nothing is interrupted. Otherwise running requests get
        `drain_s` seconds to end, the rest ends with finish reason `engine_reload`. When the new
        engine cannot be built, the old one serves on and the error is raised.

        Raises:
            WorkbenchError: the new engine cannot be built.
        """
        changed = {f.name for f in fields(config) if getattr(config, f.name) != getattr(self.config, f.name)}
        if changed <= LIVE_FIELDS and self._status.state is ServiceState.READY:
            self.set_limits(**{name: getattr(config, name) for name in LIVE_FIELDS})
            return
        self._rebuild(config, drain_s)

    def restart(self, drain_s: float = 30.0) -> None:
        """Build the engine anew with the settings in force, as after a failure; blocks until it serves again.

        What runs is treated as in `reload`.

        Raises:
            WorkbenchError: it cannot be built; the cause stands in `status`, too.
            EngineStoppedError: it was shut down, or is being loaded already.
        """
        self._rebuild(self.config, drain_s)

    def _rebuild(self, config: EngineConfig, drain_s: float) -> None:
        future: Future[None] = Future()
        self._put(Reload(config, drain_s, future))
        future.result()

    # ---------------------------------------------------------------------------- inspection

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Call `listener` with every step's record, in the engine thread. Return an unsubscribe."""
        self._subscribers = [*self._subscribers, listener]

        def unsubscribe() -> None:
            self._subscribers = [other for other in self._subscribers if other is not listener]

        return unsubscribe

    def block_details(self, block_id: int) -> BlockDetails:
        """Return one block in full, its tokens decoded. IndexError: no such block."""
        return self._call(lambda core: core.block_details(block_id))

    def pool_snapshot(self) -> PoolSnapshot:
        """Return the state of every block, read from the pool between two steps."""
        return self._call(lambda core: core.pool_snapshot())

    def pause(self) -> None:
        """Hold the engine between two steps; returns once it stands."""
        self._set_paused(True)

    def resume(self) -> None:
        """Let a held engine go on."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        future: Future[None] = Future()
        self._put(Pause(is_paused, future))
        future.result()

    def _call(self, function: Callable[[EngineCore], T]) -> T:
        future: Future[Any] = Future()
        self._put(Call(function, future))
        result: T = future.result()
        return result

    # ------------------------------------------------------------------- towards the worker

    def _put(self, message: Message) -> None:
        if self._status.state is ServiceState.STOPPED:
            if isinstance(message, Abort):
                return
            raise EngineStoppedError("the engine was shut down: start a new one")
        self._worker.inbox.put(message)

    def _deliver(self, event: Event) -> None:
        """Hand an event to its listener; one that raises loses its request, nothing else."""
        is_last = isinstance(event, RequestFinished)
        listener = self._listeners.pop(event.request_id, None) if is_last else self._listeners.get(event.request_id)
        if listener is None:
            return
        try:
            listener(event)
        except Exception:
            logger.exception("the listener of %s failed; the request is aborted", event.request_id)
            if not is_last:
                self._worker.inbox.put(Abort(event.request_id))

    def _publish(self, status: ServiceStatus) -> None:
        if status.state is ServiceState.STOPPED:
            with self._gate:
                self._status = status
        else:
            self._status = status
        if status.state is not ServiceState.LOADING:
            self._settled.set()

    def _publish_record(self, record: StepRecord) -> None:
        for listener in self._subscribers:
            try:
                listener(record)
            except Exception:
                logger.exception("a subscriber of step records failed; it gets no more")
                self._subscribers = [other for other in self._subscribers if other is not listener]
