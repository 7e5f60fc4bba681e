"""Looking back: the state after any step that is still recorded, and the steps as rows for a timeline.

Whoever folds records into a `LiveState` tells the history of each. Every so many steps it keeps a
copy of the state. The state after a step is the copy before it, plus the few records in between,
which the recorder still has. Keys and colours are therefore those of the live view.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from workbench.errors import WorkbenchError
from workbench.telemetry.live_requests import LiveRequest
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.records import StepRecord
from workbench.telemetry.step_rows import StepRow, encode_chunk, keys_in, make_row

MIN_INTERVAL: Final = 32
"""Steps between two keyframes of a pool of up to 8,192 blocks. Of a larger one, or of more than 10,000 steps, fewer are
kept, so that all keyframes stay below 64 MB."""
BLOCKS_FOR_EACH_STEP: Final = 256
STEPS_OF_THE_BOUND: Final = 10_000


class RecordSource(Protocol):
    """What the history needs of `telemetry.recorder.Recorder`."""

    @property
    def capacity(self) -> int:
        """Steps that are remembered at most."""

    @property
    def first_step(self) -> int:
        """The oldest step that is remembered, -1 before the first one."""

    def since(self, step_id: int, most: int | None = None) -> list[StepRecord]:
        """Return up to `most` records after `step_id`, oldest first."""


class StepNotRecordedError(WorkbenchError):
    """The step is older than what is remembered, or is still to come."""


@dataclass
class RequestFacts:
    """What a timeline says about a request for all steps alike."""

    key: int
    request_id: str
    slot: int | None
    family: str
    priority: int
    arrival_s: float
    last_step: int

    def as_list(self) -> list[Any]:
        """Return them in the order of the chunk's JSON part."""
        return [self.key, self.request_id, self.slot, self.family, self.priority, self.arrival_s]


class History:
    """Keyframes and rows of one engine's steps. All methods belong to the thread that folds the records."""

    def __init__(self, source: RecordSource) -> None:
        """Look back as far as `source` remembers."""
        self._source = source
        self._keyframes: deque[LiveState] = deque()
        self._rows: deque[StepRow] = deque()
        self._facts: dict[int, RequestFacts] = {}
        self.interval = MIN_INTERVAL
        """Most records that a reconstruction applies."""

    @property
    def first_step(self) -> int:
        """The oldest step that can be looked at, -1 when none can."""
        return self._rows[0].step_id if self._rows else -1

    @property
    def last_step(self) -> int:
        """The newest step, -1 when there is none."""
        return self._rows[-1].step_id if self._rows else -1

    def begin(self, state: LiveState) -> None:
        """Forget everything: steps from the one after `state` follow."""
        by_size = max(MIN_INTERVAL, state.num_blocks // BLOCKS_FOR_EACH_STEP)
        by_length = max(1, math.ceil(self._source.capacity / STEPS_OF_THE_BOUND))
        self.interval = max(1, min(by_size * by_length, self._source.capacity // 4))
        self._keyframes = deque([state.copy()])
        self._rows.clear()
        self._facts.clear()

    def note(self, record: StepRecord, state: LiveState) -> None:
        """Take in one step, which was just folded into `state`."""
        self._rows.append(make_row(record, state))
        for request in (*state.request_list.named, *state.request_list.ended):
            self._note_request(request, record.step_id)
        if state.step_id - self._keyframes[-1].step_id >= self.interval:
            self._keyframes.append(state.copy())

    def _note_request(self, request: LiveRequest, step_id: int) -> None:
        facts = self._facts.get(request.key)
        if facts is None:
            state = request.state
            self._facts[request.key] = RequestFacts(
                key=request.key,
                request_id=state.request_id,
                slot=request.slot,
                family=state.family or state.request_id,
                priority=state.priority,
                arrival_s=state.arrival_time_s,
                last_step=step_id,
            )
        else:
            facts.slot, facts.last_step = request.slot, step_id

    def forget_old(self) -> None:
        """Drop keyframes whose records are gone, and what belongs to the steps before the next one."""
        oldest = self._source.first_step
        if len(self._keyframes) < 2 or self.first_step >= oldest:
            return
        while len(self._keyframes) > 1 and self.first_step < oldest:
            self._keyframes.popleft()
            while self._rows and self._rows[0].step_id <= self._keyframes[0].step_id:
                self._rows.popleft()
        first = self.first_step
        self._facts = {key: facts for key, facts in self._facts.items() if facts.last_step >= first}

    # ------------------------------------------------------------------------------- answers

    def state_at(self, step_id: int) -> LiveState:
        """Return the state after a step, which is the caller's to keep.

        Raises:
            StepNotRecordedError: the step is not recorded, or not any more.
        """
        self._check(step_id)
        keyframe = next(state for state in reversed(self._keyframes) if state.step_id <= step_id)
        state = keyframe.copy()
        for record in self._records(max(keyframe.step_id + 1, self.first_step), step_id):
            state.apply(record)
        return state

    def record_at(self, step_id: int) -> StepRecord:
        """Return the record of a step. Errors as `state_at`."""
        self._check(step_id)
        return self._records(step_id, step_id)[0]

    def keys_at(self, step_id: int) -> dict[str, int]:
        """Return the keys of the requests that a step tells of, by id. Errors as `state_at`."""
        self._check(step_id)
        row = self._rows[step_id - self.first_step]
        return {self._facts[key].request_id: key for key, *_ in row.unpack_entries()}

    def rows_after(self, step_id: int, most: int) -> list[StepRow]:
        """Return up to `most` rows of the steps after `step_id`, or the first ones when it is before them."""
        start = min(max(0, step_id + 1 - self.first_step), len(self._rows))
        return list(islice(self._rows, start, start + most))

    def facts_of(self, rows: list[StepRow]) -> list[RequestFacts]:
        """Return the facts of every request in some rows, in the order of their keys."""
        return [self._facts[key] for key in keys_in(rows)]

    def chunk(self, instance: int, after: int, most: int) -> bytes:
        """Return the steps after one as a message, see `step_rows`."""
        rows = self.rows_after(after, most)
        epoch = self._keyframes[0].epoch if self._keyframes else 0
        return encode_chunk(instance, epoch, rows, (facts.as_list() for facts in self.facts_of(rows)))

    def base_and_records(self) -> tuple[LiveState, list[StepRecord]]:
        """Return the state before the first step, and the records of all steps. Errors as `state_at`."""
        if not self._rows:
            raise StepNotRecordedError("no step is recorded yet: send a request first")
        return self._keyframes[0].copy(), self._records(self.first_step, self.last_step)

    def _records(self, first: int, last: int) -> list[StepRecord]:
        """The records of steps `first` … `last`, as long as the source has not lost one of them meanwhile."""
        records = self._source.since(first - 1, last - first + 1)
        is_complete = len(records) == last - first + 1 and all(
            (record.step_id, record.epoch) == (first + index, self._keyframes[0].epoch)
            for index, record in enumerate(records)
        )
        if not is_complete:
            raise self._not_recorded(first)
        return records

    def _check(self, step_id: int) -> None:
        if not self._rows or not self.first_step <= step_id <= self.last_step:
            raise self._not_recorded(step_id)

    def _not_recorded(self, step_id: int) -> StepNotRecordedError:
        if not self._rows:
            return StepNotRecordedError(f"step {step_id} is not recorded: no step is yet")
        return StepNotRecordedError(f"step {step_id} is not recorded: steps {self.first_step} to {self.last_step} are")
