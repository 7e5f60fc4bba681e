"""A bounded memory of steps, from which the pool's state at any recorded step can be rebuilt."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque

from workbench.telemetry.records import BlockState, StepRecord

DEFAULT_CAPACITY = 10_000
"""Steps remembered by default."""


class Recorder:
    """Keeps the latest records; older ones fold into one base state of the pool.

    `record` runs in the engine thread and is quick. Everything else may be called by any thread.
    A record of another epoch means another pool: what came before is forgotten.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """Remember up to `capacity` steps."""
        self.capacity = capacity
        self._is_recording = True
        self._records: deque[StepRecord] = deque()
        self._base: dict[int, BlockState] = {}
        self._lock = threading.Lock()

    def record(self, record: StepRecord) -> None:
        """Take one step; the oldest one makes room."""
        with self._lock:
            if not self._is_recording:
                return
            if self._records and self._records[-1].epoch != record.epoch:
                self._records.clear()
                self._base.clear()
            self._records.append(record)
            if len(self._records) > self.capacity:
                self._apply(self._base, self._records.popleft())

    def switch(self, is_recording: bool) -> None:
        """Stop or go on, to measure what recording costs.

        Both forget everything: steps that follow cannot be joined to those before, and blocks that changed
        meanwhile are not known.
        """
        with self._lock:
            self._is_recording = is_recording
            self._records.clear()
            self._base.clear()

    @property
    def latest(self) -> StepRecord | None:
        """The newest record, None before the first step."""
        with self._lock:
            return self._records[-1] if self._records else None

    @property
    def first_step(self) -> int:
        """The oldest step that is remembered, -1 before the first one."""
        with self._lock:
            return self._records[0].step_id if self._records else -1

    def since(self, step_id: int, most: int | None = None) -> list[StepRecord]:
        """Return the records with a step id greater than `step_id`, oldest first, up to `most` of them."""
        with self._lock:
            start = bisect_right(self._records, step_id, key=_step_id)
            stop = len(self._records) if most is None else min(len(self._records), start + most)
            return [self._records[index] for index in range(start, stop)]

    def blocks_at(self, step_id: int) -> dict[int, BlockState]:
        """Return every block's state after a recorded step.

        Raises:
            KeyError: the step is not recorded, or not any more.
        """
        with self._lock:
            blocks = dict(self._base)
            for record in self._records:
                self._apply(blocks, record)
                if record.step_id == step_id:
                    return blocks
            first, last = (self._records[0].step_id, self._records[-1].step_id) if self._records else (0, 0)
        raise KeyError(f"step {step_id} is not recorded: steps {first} to {last} are")

    @staticmethod
    def _apply(blocks: dict[int, BlockState], record: StepRecord) -> None:
        for change in record.block_changes:
            blocks[change.block_id] = change


def _step_id(record: StepRecord) -> int:
    return record.step_id
