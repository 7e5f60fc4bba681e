"""From step records to frames: the one `LiveFeed` behind every socket and poll of a server.

The engine thread only appends to a bounded deque. Everything else happens in the event loop's
thread, when a client asks: drain, fold into the `LiveState`, encode what that client misses. With
no client the deque forgets the oldest records; the gap is noticed and closed by a keyframe.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from workbench.telemetry.frames import Frame, encode
from workbench.telemetry.live_requests import LiveRequest, StandingDecision
from workbench.telemetry.live_state import BLOCK_DTYPE, Figures, LiveState
from workbench.telemetry.records import CacheMiss, Explanation, RequestStatus, StepRecord, TransferKind

logger = logging.getLogger(__name__)

QUEUE_LENGTH = 2048
"""Step records held for the event loop."""
MOVEMENTS_SHOWN = 8
"""Movements in a full frame."""


class Words(Protocol):
    """What stands behind the codes of step records, in the visitor's language."""

    def explain(self, explanation: Explanation) -> str:
        """A decision of the scheduler as one sentence with its numbers."""

    def explain_miss(self, miss: CacheMiss | None, differs_at: int | None = None) -> str:
        """Why no more of a context was found in the cache; empty when nothing was missing."""


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
        """`telemetry.recorder.Recorder`: `since(step_id)`, and `blocks_at(step_id)` to rebuild the pool."""

    def subscribe(self, listener: Callable[[StepRecord], None]) -> Callable[[], None]:
        """Call `listener` in the engine thread after each step; returns the way out."""


class LiveFeed:
    """Frames of one engine service, for as long as that lives. All methods belong to the event loop's thread."""

    def __init__(self, service: EngineDoor, words: Words, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._words = words
        self._clock = clock
        self.state = LiveState()
        self.instance = secrets.randbits(32)
        self._records: deque[StepRecord] = deque(maxlen=QUEUE_LENGTH)
        self._status: Any = None
        self._layout = ""
        self._status_version = 0
        self._cache: dict[int, bytes] = {}
        self._cache_key: tuple[int, float] | None = None
        service.subscribe(self._on_step)

    def _on_step(self, record: StepRecord) -> None:
        """In the engine thread: hand over and return."""
        self._records.append(record)

    def drain(self) -> int:
        """Fold in what the engine did since the last call and return the version of the state."""
        status = self._service.status
        if status.epoch != self.state.epoch and status.num_blocks:
            self.state.reset(status.epoch, status.num_blocks, status.block_size)
            self._catch_up()
        layout = self._service.config.kv_layout
        if (status, layout) != (self._status, self._layout):
            self._status, self._layout = status, layout
            self.state.version += 1
            self._status_version = self.state.version
        while self._records:
            record = self._records.popleft()
            if record.epoch != self.state.epoch:
                continue
            if record.step_id <= max(0, self.state.step_id) + 1:
                self.state.apply(record)
            else:
                self._catch_up()
        return self.state.version

    def _catch_up(self) -> None:
        """Fold in what the recorder knows: steps before we listened, or that were lost since.

        Where even the recorder has forgotten some, a keyframe takes their place; the moment at which
        a block was allocated is then not known, and counts as now.
        """
        recorder = self._service.recorder
        records = [r for r in recorder.since(self.state.step_id) if r.epoch == self.state.epoch]
        if not records:
            return
        if records[0].step_id > max(0, self.state.step_id) + 1:
            try:
                self.state.keyframe(recorder.blocks_at(records[-1].step_id).values(), records[-1])
            except KeyError:  # the engine was replaced meanwhile; its epoch follows
                logger.info("live feed: step %d is not recorded any more", records[-1].step_id)
            return
        for record in records:
            self.state.apply(record)

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
            data = self._cache[base_version] = encode(self._build(base_version, now_s))
        return data

    def _build(self, base_version: int, now_s: float) -> Frame:
        state = self.state
        changed = state.changed_since(base_version) if base_version else None
        if changed is not None and len(changed) * (BLOCK_DTYPE.itemsize + 4) >= state.blocks.nbytes > 0:
            base_version, changed = 0, None
        movements = state.traffic.since(base_version)
        body: dict[str, Any] = {
            "figures": _figures(state.figures(now_s), state.traffic.num_blocks),
            "requests": [self._request_row(request) for request in state.named if request.version > base_version],
            "living": [request.key for request in state.named],
            "shared": _shared_runs(state, changed),
            "transfers": [
                [movement.step_id, movement.kind.value, movement.request_id, movement.block_ids]
                for movement in (movements if base_version else movements[-MOVEMENTS_SHOWN:])
            ],
        }
        if self._status_version > base_version:
            body["service"] = {**msgspec.to_builtins(self._status), "kv_layout": self._layout}
        return Frame(
            instance=self.instance,
            epoch=state.epoch,
            version=state.version,
            base_version=base_version,
            step_id=state.step_id,
            num_blocks=state.num_blocks,
            block_size=state.block_size,
            block_ids=None if changed is None else changed.astype(np.uint32),
            blocks=state.blocks if changed is None else state.blocks[changed],
            body=body,
        )

    def _request_row(self, request: LiveRequest) -> list[Any]:
        """One row in the order of `frames.REQUEST_FIELDS`."""
        state = request.state
        return [
            request.key,
            state.request_id,
            state.status.value,
            request.slot,
            state.num_prompt_tokens,
            state.num_output_tokens,
            state.num_computed_tokens,
            state.num_blocks,
            state.is_prefill and state.status is RequestStatus.RUNNING,
            state.num_preemptions,
            state.family or state.request_id,
            state.num_sequences,
            state.priority,
            state.num_cached_tokens,
            self._words.explain_miss(state.cache_miss, state.differs_at),
            state.num_swapped_blocks,
            state.most_tokens,
            self._decision(request.decision),
            self._decision(request.preemption),
        ]

    def _decision(self, standing: StandingDecision | None) -> list[Any] | None:
        """The codes and numbers of a decision, and the same as a sentence."""
        if standing is None:
            return None
        told = standing.explanation
        return [
            told.decision.value,
            told.reason.value,
            told.numbers,
            told.cause_request_id,
            standing.since_step,
            self._words.explain(told),
        ]


def _figures(figures: Figures, moved: Mapping[TransferKind, int]) -> dict[str, float]:
    memory = {
        "swap_blocks": figures.num_swap_blocks,
        "free_swap_blocks": figures.num_free_swap_blocks,
        "waste_slots": figures.internal_waste_slots,
        "waste_blocks": figures.external_waste_blocks,
        "contiguous_blocks": figures.contiguous_blocks,
        **{kind.value: count for kind, count in moved.items()},
    }
    return {
        "running": figures.num_running,
        "waiting": figures.num_waiting,
        "tokens_per_s": round(figures.tokens_per_s, 2),
        "active_blocks": figures.num_active_blocks,
        "cached_blocks": figures.num_cached_blocks,
        "step_ms": round(figures.step_s * 1000, 2),
        **{name: value for name, value in memory.items() if value},
    }


def _shared_runs(state: LiveState, changed: npt.NDArray[np.intp] | None) -> list[list[int]]:
    """Return the further owners of the blocks in a frame, one list for a run of blocks that share them alike."""
    shared = state.further_owners
    blocks = sorted(shared) if changed is None else [int(block) for block in changed if int(block) in shared]
    runs: list[list[int]] = []
    for block in blocks:
        last = runs[-1] if runs else None
        if last is not None and block == last[0] + last[1] and tuple(last[2:]) == shared[block]:
            last[1] += 1
        else:
            runs.append([block, 1, *shared[block]])
    return runs
