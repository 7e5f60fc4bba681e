"""The engine thread: loads the engine, takes commands between two steps, hands out events.

Everything mutable of an engine is touched by this thread only. It ends neither by a failed
request, nor by a failed step, nor by a failed load: only by `Stop`.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.config import EngineConfig
from workbench.engine.messages import (
    Abort,
    Command,
    Event,
    Preempt,
    RequestFinished,
    ServiceState,
    ServiceStatus,
    SetLimits,
    Submit,
    answer_id,
)
from workbench.errors import EngineError, EngineStoppedError
from workbench.sampling_params import MAX_SEED
from workbench.telemetry.records import FinishReason, RequestMetrics, StepRecord

if TYPE_CHECKING:  # torch and the kernels are imported in the thread: a page can be up before them
    from workbench.engine.core import EngineCore
    from workbench.engine.loading import Loaded
    from workbench.models.loader import LoadProgress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """Run a function in the engine thread, between two steps."""

    function: Callable[[EngineCore], Any]
    future: Future[Any]


@dataclass(frozen=True)
class Pause:
    """Hold or release the loop; commands are taken meanwhile."""

    is_paused: bool
    future: Future[None]


@dataclass(frozen=True)
class Reload:
    """Drain, then replace the engine."""

    config: EngineConfig
    drain_s: float
    future: Future[None]


@dataclass(frozen=True)
class Stop:
    """End the thread."""


Message = Command | Call | Pause | Reload | Stop


class _StoppedError(Exception):
    """Raised inside a load when the engine is to stop."""


class EngineWorker:
    """The loop and what it owns. `run` is the thread's target."""

    def __init__(
        self,
        config: EngineConfig,
        deliver: Callable[[Event], None],
        publish: Callable[[ServiceStatus], None],
        record: Callable[[StepRecord], None],
    ) -> None:
        """The three callbacks are called in the engine thread and must not block or raise."""
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.config = config
        self.is_stopping = False
        """Set by any thread to end a load early; Stop must follow in the inbox."""
        self.loaded: Loaded | None = None
        self.load_error: Exception | None = None
        """Why there is no engine; None once there is one."""
        self._deliver, self._publish, self._record = deliver, publish, record
        self._epoch = secrets.randbits(30)
        self._is_paused = False
        self._reload: tuple[Reload, float] | None = None
        self._status = ServiceStatus(state=ServiceState.LOADING, phase="starting", model_name=config.model)
        publish(self._status)

    # ---------------------------------------------------------------------------------- loop

    def run(self) -> None:
        """Load, then serve until told to stop."""
        try:
            from workbench.engine.loading import engine_thread_mode

            with engine_thread_mode():
                self._load_first()
                while not self.is_stopping:
                    self._go_round()
        except _StoppedError:
            logger.info("stopped while loading")
        finally:
            self._close()

    def _go_round(self) -> None:
        """Take what waits, compute one step, and go on with a reload."""
        try:
            self._take_messages()
            if self._can_step:
                self._step()
            self._advance_reload()
        except _StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - shown on the page; a restart may follow
            self._lose_engine(error)

    def _lose_engine(self, error: Exception) -> None:
        """Let go of an engine that failed outside of a step: its books cannot be trusted. A restart builds another."""
        lost, self.loaded = self.loaded, None
        if self._reload is not None:
            self._reload[0].future.set_exception(error)
            self._reload = None
        if lost is not None:
            self._deliver_all(lost.core.abort_all(FinishReason.ABORT))
        self._report_no_engine(error, "the engine failed between two steps")

    @property
    def _can_step(self) -> bool:
        return self.loaded is not None and not self._is_paused and self.loaded.core.has_work

    def _take_messages(self) -> None:
        """Handle all messages that are there; with nothing else to do, wait for one."""
        must_wait = not self._can_step and self._reload is None
        while not self.is_stopping:
            try:
                message = self.inbox.get(block=must_wait)
            except queue.Empty:
                return
            self._handle(message)
            must_wait = False

    def _handle(self, message: Message) -> None:
        match message:
            case Stop():
                self.is_stopping = True
            case Pause():
                self._is_paused = message.is_paused
                message.future.set_result(None)
            case Reload():
                self._begin_reload(message)
            case Call():
                self._call(message)
            case Submit() | Abort() | Preempt() | SetLimits():
                self._command(message)

    def _command(self, command: Command) -> None:
        if self.loaded is None:
            if isinstance(command, Submit):
                self._deliver_all(unserved(command, EngineStoppedError("the engine is not loaded")))
            return
        core = self.loaded.core
        match command:
            case Submit():
                core.submit(command, seed=secrets.randbelow(MAX_SEED))
            case Abort():
                self._deliver_all(core.abort(command.request_id))
            case Preempt():
                core.preempt(command.request_id)
            case SetLimits():
                core.set_limits(command)
                self.config = replace(self.config, **msgspec.structs.asdict(command))

    def _call(self, call: Call) -> None:
        try:
            if self.loaded is None:
                raise EngineStoppedError("the engine is not loaded: wait until it is, or mend the cause of its failure")
            call.future.set_result(call.function(self.loaded.core))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it
            call.future.set_exception(error)

    def _step(self) -> None:
        assert self.loaded is not None
        core = self.loaded.core
        outcome = core.step()
        self._deliver_all(outcome.events)
        self._record(outcome.record)
        if outcome.error is not None:
            self._report_crash(outcome.error)
        elif not core.has_work:
            core.check_integrity()

    def _deliver_all(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self._deliver(event)

    def _report_crash(self, error: Exception) -> None:
        logger.error("a step failed; its requests ended with the error", exc_info=error)
        text = str(error) or type(error).__name__
        if not isinstance(error, EngineError):
            text = f"Unexpected {type(error).__name__}: {text}. The requests in flight ended, the engine goes on."
        self._set_status(error=text, error_traceback="".join(traceback.format_exception(error)))

    # ------------------------------------------------------------------------------- loading

    def _load_first(self) -> None:
        try:
            self._install(self._build(self.config, None))
        except _StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - shown on the page; another load may follow
            self._report_no_engine(error, "loading failed")

    def _build(self, config: EngineConfig, reuse: Loaded | None) -> Loaded:
        from workbench.engine.loading import load_engine

        self._epoch += 1
        return load_engine(config, self._epoch, self._on_progress, reuse)

    def _on_progress(self, progress: LoadProgress) -> None:
        if self.is_stopping:
            raise _StoppedError
        self._set_status(phase=progress.phase, done_bytes=progress.done_bytes, total_bytes=progress.total_bytes)

    def _install(self, loaded: Loaded) -> None:
        """Make a built engine the current one and say so."""
        core, model = loaded.core, loaded.core.loaded
        self.loaded, self.config, self.load_error = loaded, core.config, None
        self._status = ServiceStatus(
            state=ServiceState.READY,
            model_name=model.config.name,
            source_format=model.source_format,
            dtype=core.config.dtype,
            backend=loaded.ops.describe(),
            notices=(*loaded.notices, *loaded.layout_notices),
            epoch=core.epoch,
            num_blocks=core.num_blocks,
            block_size=core.config.block_size,
            block_bytes=core.block_bytes,
            kv_cache_bytes=core.num_blocks * core.block_bytes,
            weight_bytes=model.weight_bytes,
            max_model_len=core.max_model_len,
            vocab_size=model.config.vocab_size,
            most_context_tokens=core.most_context_tokens,
            num_swap_blocks=core.num_swap_blocks,
            speculation=core.proposers.reasons,
        )
        self._publish(self._status)

    def _report_no_engine(self, error: Exception, what: str) -> None:
        logger.error(what, exc_info=error)
        self.load_error = error
        text = str(error) or type(error).__name__
        trace = "".join(traceback.format_exception(error))
        self._set_status(state=ServiceState.FAILED, phase="", error=text, error_traceback=trace)

    def _set_status(self, **changes: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **changes)
        self._publish(self._status)

    # -------------------------------------------------------------------------------- reload

    def _begin_reload(self, reload: Reload) -> None:
        if self._reload is not None:
            reload.future.set_exception(EngineStoppedError("another reload is under way: wait for it and apply again"))
            return
        self._reload = (reload, time.monotonic() + reload.drain_s)
        self._set_status(state=ServiceState.RELOADING, phase="waiting for running requests")

    def _advance_reload(self) -> None:
        """Once the requests have drained or the time is up, replace the engine."""
        if self._reload is None:
            return
        reload, deadline = self._reload
        is_drained = self.loaded is None or not self.loaded.core.scheduler.has_work
        if not is_drained and time.monotonic() < deadline and not self._is_paused:
            return
        if self.loaded is not None:
            self._deliver_all(self.loaded.core.abort_all(FinishReason.ENGINE_RELOAD))
        self._reload = None
        self._replace_engine(reload)

    def _replace_engine(self, reload: Reload) -> None:
        """Build the new engine in the place of the old; when that fails, the old one returns."""
        old, old_status, old_config = self.loaded, self._status, self.config
        if old is not None:
            old.core.release()  # its KV storage makes room for the new one's
        try:
            self._install(self._build(reload.config, old))
        except _StoppedError:
            reload.future.set_exception(EngineStoppedError("the engine was shut down while it reloaded"))
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it
            if old is None:
                self._report_no_engine(error, "loading failed")
            else:
                self._return_to(old, old_status, old_config, error)
            reload.future.set_exception(error)
        else:
            reload.future.set_result(None)

    def _return_to(self, old: Loaded, status: ServiceStatus, config: EngineConfig, error: Exception) -> None:
        """Let the old settings serve on; where they fail, too, no engine is left, until a restart."""
        try:
            self._install(self._build(config, old))
        except _StoppedError:
            raise
        except Exception as second:  # noqa: BLE001 - shown on the page
            self.loaded = None
            self._report_no_engine(second, "neither the new settings nor the old ones could be loaded")
            return
        self._set_status(notices=status.notices, error=f"The new settings failed, the old ones serve on: {error}")

    # --------------------------------------------------------------------------------- close

    def _close(self) -> None:
        """End every request and answer every waiting caller; nobody is left hanging."""
        if self.loaded is not None:
            self._deliver_all(self.loaded.core.abort_all(FinishReason.ABORT))
            self.loaded = None
        self._set_status(state=ServiceState.STOPPED, phase="")
        stopped = EngineStoppedError("the engine was shut down: start a new one")
        if self._reload is not None:
            self._reload[0].future.set_exception(stopped)
        while True:
            try:
                message = self.inbox.get(block=False)
            except queue.Empty:
                return
            if isinstance(message, Submit):
                self._deliver_all(unserved(message, stopped))
            elif isinstance(message, Call | Pause | Reload):
                message.future.set_exception(stopped)


def unserved(command: Submit, error: Exception) -> tuple[RequestFinished, ...]:
    """Return the terminal events of a request that the engine never saw, one for each of its answers."""
    now = time.monotonic()
    return tuple(
        RequestFinished(
            request_id=answer_id(command.request_id, index),
            finish_reason=FinishReason.ERROR,
            text="",
            metrics=RequestMetrics(now, None, None, None, None, None, 0.0, 0, 0, 0),
            error=str(error),
            error_type=type(error).__name__,
            index=index,
        )
        for index in range(command.sampling_params.n)
    )
