"""From step records to frames: the one `LiveFeed` behind every socket, poll and look back of a server.

The engine thread only appends to the recorder. Everything else happens in the event loop's thread,
when a client asks: take what is new from the recorder, fold it into the `LiveState` and its
`History`, encode what that client misses. With no client nothing is folded; the first one catches up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from workbench.server.state_frame import FrameBuilder, Words
from workbench.telemetry.frames import encode
from workbench.telemetry.history import History
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import StepRecord

logger = logging.getLogger(__name__)

SLICE: Final = 32
"""Records folded before others in the event loop get their turn: some milliseconds."""


class EngineDoor(Protocol):
    """What the server needs of `engine.service.EngineService`."""

    @property
    def config(self) -> Any:
        """`EngineConfig` in force."""

    @property
    def status(self) -> Any:
        """`ServiceStatus`: a cheap snapshot, from any thread."""

    @property
    def recorder(self) -> Any:
        """`telemetry.recorder.Recorder`: `since`, `first_step`, `capacity`, and `blocks_at` to rebuild the pool."""


class SavedRunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says of a saved run beside its picture."""

    name: str
    """Of the file, without a folder."""
    first: int
    """Its first step."""
    last: int
    model: str
    saved_at: str
    """Date and time in ISO 8601, or whatever the file says."""
    is_redacted: bool


class LiveFeed:
    """Frames of one engine service, for as long as that lives. All methods belong to the event loop's thread."""

    def __init__(
        self,
        service: EngineDoor,
        words: Words,
        clock: Callable[[], float] = time.monotonic,
        base: LiveState | None = None,
        saved_run: SavedRunFacts | None = None,
    ) -> None:
        """Follow a service.

        Args:
            service: the engine door.
            words: turns decisions into sentences.
            clock: the present, in the seconds of the records.
            base: the state before the first record, where that is not an empty pool.
            saved_run: what the service is read from, where it is no engine. Clients are told.
        """
        self._service = service
        self._clock = clock
        self._base = base
        self.saved_run = saved_run
        self.instance = secrets.randbits(32)
        self.state = LiveState()
        self.history = History(service.recorder)
        self.frames = FrameBuilder(words)
        self._status: Any = None
        self._layout = ""
        self._status_version = 0
        self._cache: dict[int, bytes] = {}
        self._cache_key: tuple[int, float] | None = None

    def drain(self) -> int:
        """Fold in all that the engine did since the last call and return the version of the state."""
        while self.drain_slice():
            pass
        return self.state.version

    async def catch_up(self) -> None:
        """As `drain`, letting others have their turn in between."""
        while self.drain_slice():
            await asyncio.sleep(0)

    def drain_slice(self) -> bool:
        """Fold in a few of the records that wait. Return whether more may be waiting."""
        self._follow_status()
        records = self._service.recorder.since(self.state.step_id, SLICE)
        if not records or records[0].epoch != self.state.epoch:
            return False
        if records[0].step_id > max(0, self.state.step_id) + 1:
            self._begin_again(records[0])
        for record in records:
            if record.step_id == max(0, self.state.step_id) + 1 or self.state.step_id < 0:
                self.state.apply(record)
                self.history.note(record, self.state)
        self.history.forget_old()
        return len(records) == SLICE

    def _follow_status(self) -> None:
        """Begin a new epoch with a new engine, and note what clients have to be told of the service."""
        status = self._service.status
        if status.epoch != self.state.epoch and status.num_blocks:
            if self._base is not None and self._base.epoch == status.epoch:
                self.state = self._base.copy()
            else:
                self.state.reset(status.epoch, status.num_blocks, status.block_size)
            self.history.begin(self.state)
        layout = self._service.config.kv_layout
        if (status, layout) != (self._status, self._layout):
            self._status, self._layout = status, layout
            self.state.version += 1
            self._status_version = self.state.version

    def _begin_again(self, first: StepRecord) -> None:
        """Go on at the oldest step that is still recorded, when those before it were lost.

        Blocks that were allocated before are known, but not when: it counts as now.
        """
        try:
            blocks = self._service.recorder.blocks_at(first.step_id)
        except KeyError:  # forgotten in this very moment; the next call goes on at a later step
            logger.info("live feed: step %d is not recorded any more", first.step_id)
            return
        self.state.keyframe(blocks.values(), first)
        self.history.begin(self.state)

    def is_known(self, instance: int, epoch: int, version: int) -> bool:
        """Whether a client at `version` of that epoch can be served a delta."""
        return instance == self.instance and epoch == self.state.epoch and 0 < version <= self.state.version

    def frame(self, base_version: int) -> bytes:
        """Return the bytes that bring a client from `base_version` to now; 0 asks for a full frame."""
        now_s = self._clock()
        key = (self.state.version, round(now_s, 1))
        if key != self._cache_key:
            self._cache, self._cache_key = {}, key
        data = self._cache.get(base_version)
        if data is None:
            service = {**msgspec.to_builtins(self._status), "kv_layout": self._layout}
            if self.saved_run is not None:
                service["saved_run"] = msgspec.to_builtins(self.saved_run)
            data = self._cache[base_version] = encode(
                self.frames.live(
                    self.state,
                    base_version,
                    now_s,
                    instance=self.instance,
                    first_step=self.history.first_step,
                    service=service if self._status_version > base_version else None,
                )
            )
        return data

    def service_facts(self) -> tuple[dict[str, Any], str]:
        """Return the engine's status as plain data, and its layout."""
        return msgspec.to_builtins(self._service.status), self._service.config.kv_layout

    def past_frame(self, step_id: int) -> bytes:
        """Return a full frame of the state after a recorded step.

        Raises:
            StepNotRecordedError: it is not recorded, or not any more.
        """
        return encode(self.frames.past(self.history.state_at(step_id), self.instance))
