"""Steps as Chrome trace events: opens in chrome://tracing and ui.perfetto.dev.

Format: "Trace Event Format" (Chromium project). Times are microseconds from the beginning of the
trace. Thread 1 is the scheduler, with the three parts of each step inside it. Every request has a
thread for its whole life, which others use before and after; its phases lie inside it.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from workbench.telemetry import step_rows
from workbench.telemetry.history import RequestFacts
from workbench.telemetry.live_requests import ADMITTED, FAILED, FIRST_SEEN
from workbench.telemetry.records import StepRecord
from workbench.telemetry.step_rows import StepRow

PROCESS: Final = 1
SCHEDULER: Final = 1
FIRST_REQUEST_THREAD: Final = 10
EVENTS_AT_A_TIME: Final = 500
_NS: Final = 1_000_000_000
_PHASES: Final = {
    step_rows.PREFILL: "prefill",
    step_rows.DECODE: "decode",
    step_rows.PREEMPTED: "preempted",
    step_rows.SWAPPED: "swapped",
}


@dataclass(frozen=True)
class _Tokens:
    """Of one phase: computed, and of these drafted and accepted."""

    computed: int = 0
    drafted: int = 0
    accepted: int = 0

    def plus(self, more: _Tokens) -> _Tokens:
        """Return the sum of both."""
        return _Tokens(self.computed + more.computed, self.drafted + more.drafted, self.accepted + more.accepted)

    @property
    def numbers(self) -> dict[str, int]:
        """Those that there are, for the arguments of an event."""
        drafts = {"drafted": self.drafted, "accepted": self.accepted} if self.drafted else {}
        return ({"tokens": self.computed} if self.computed else {}) | drafts


@dataclass
class _Life:
    """A request from its arrival, or the first step of the trace, to its end."""

    facts: RequestFacts
    start_ns: int
    phases: list[tuple[str, int, int, _Tokens]] = field(default_factory=list)
    """Name, start and end in nanoseconds, tokens."""
    is_admitted: bool = False
    has_failed: bool = False

    @property
    def end_ns(self) -> int:
        return self.phases[-1][2]

    def add(self, name: str, start_ns: int, end_ns: int, tokens: _Tokens) -> None:
        """Go on with a phase, or begin another one."""
        if self.phases and self.phases[-1][0] == name and self.phases[-1][2] == start_ns:
            _, start_ns, _, before = self.phases.pop()
            tokens = before.plus(tokens)
        self.phases.append((name, start_ns, end_ns, tokens))


def encode_trace(
    records: Sequence[StepRecord], rows: Sequence[StepRow], facts: Mapping[int, RequestFacts], engine: str
) -> Iterator[bytes]:
    """Yield the JSON text of a trace, some at a time.

    Args:
        records: steps in order.
        rows: the same steps as rows.
        facts: of the requests in them, by key.
        engine: what ran, for the name of the process.
    """
    events = trace_events(records, rows, facts, engine)
    separator = '{"displayTimeUnit":"ms","traceEvents":[\n'
    while some := list(islice(events, EVENTS_AT_A_TIME)):
        lines = (json.dumps(event, separators=(",", ":"), ensure_ascii=False) for event in some)
        yield (separator + ",\n".join(lines)).encode()
        separator = ",\n"
    yield b"]}"


def trace_events(
    records: Sequence[StepRecord], rows: Sequence[StepRow], facts: Mapping[int, RequestFacts], engine: str
) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace. Arguments as `encode_trace`."""
    bounds = _bounds_ns(records)
    lives = _lives(records, bounds, rows, facts)
    origin = min([bounds[0][0], *(life.start_ns for life in lives)])
    yield _name("process_name", 0, engine)
    yield from _thread(SCHEDULER, "scheduler")
    for record, (start, scheduled, executed, end) in zip(records, bounds, strict=True):
        yield from _step_events(record, start - origin, scheduled - origin, executed - origin, end - origin)
    lanes = _lanes(lives)
    for lane in sorted(set(lanes)):
        yield from _thread(FIRST_REQUEST_THREAD + lane, f"requests {lane + 1}")
    for life, lane in zip(lives, lanes, strict=True):
        yield from _life_events(life, FIRST_REQUEST_THREAD + lane, origin)


def _bounds_ns(records: Sequence[StepRecord]) -> list[tuple[int, int, int, int]]:
    """Start of each step, ends of schedule and execute, and end; no step begins before the last one ended.

    Drafting comes first, then schedule.
    """
    bounds: list[tuple[int, int, int, int]] = []
    ended = 0
    for record in records:
        start = max(ended, round(record.started_s * _NS))
        scheduled = start + round(record.draft_s * _NS) + round(record.schedule_s * _NS)
        executed = scheduled + round(record.execute_s * _NS)
        ended = executed + round(record.update_s * _NS)
        bounds.append((start, scheduled, executed, ended))
    return bounds


def _step_events(record: StepRecord, start: int, scheduled: int, executed: int, end: int) -> Iterator[dict[str, Any]]:
    numbers = {
        "step": record.step_id,
        "running": record.num_running,
        "waiting": record.num_waiting,
        "prefill_tokens": record.num_prefill_tokens,
        "decode_tokens": record.num_decode_tokens,
        "budget": record.max_num_batched_tokens,
    }
    num_drafted = sum(state.num_draft_tokens for state in record.requests)
    if num_drafted:
        num_accepted = sum(state.num_accepted_tokens for state in record.requests)
        numbers |= {"drafted_tokens": num_drafted, "accepted_tokens": num_accepted}
    drafted = start + round(record.draft_s * _NS)
    yield _complete(f"step {record.step_id}", SCHEDULER, start, end, numbers)
    if drafted > start:
        yield _complete("draft", SCHEDULER, start, drafted, {})
    yield _complete("schedule", SCHEDULER, drafted, scheduled, {})
    yield _complete("execute", SCHEDULER, scheduled, executed, {})
    yield _complete("update", SCHEDULER, executed, end, {})
    yield _counter("tokens", start, {"prefill": record.num_prefill_tokens, "decode": record.num_decode_tokens})
    yield _counter("KV blocks", end, {"active": record.num_active_blocks, "cached": record.num_cached_blocks})


def _lives(
    records: Sequence[StepRecord],
    bounds: Sequence[tuple[int, int, int, int]],
    rows: Sequence[StepRow],
    facts: Mapping[int, RequestFacts],
) -> list[_Life]:
    """The requests in the order in which they began."""
    lives: dict[int, _Life] = {}
    admitted_here = {key for row in rows for key, _, _, flags, _ in row.unpack_entries() if flags & ADMITTED}
    for index, (record, row, (start, _, _, end)) in enumerate(zip(records, rows, bounds, strict=True)):
        drafts = {state.request_id: state for state in record.requests if state.num_draft_tokens}
        present = row.unpack_entries()
        following = {entry[0] for entry in rows[index + 1].unpack_entries()} if index + 1 < len(rows) else set()
        for key, tokens, kind, flags, _ in present:
            life = lives.get(key)
            if life is None:
                life = lives[key] = _begin(facts[key], start, flags)
                life.is_admitted = facts[key].slot is not None and key not in admitted_here
            was_admitted, life.is_admitted = life.is_admitted, life.is_admitted or bool(flags & ADMITTED)
            life.has_failed |= bool(flags & FAILED)
            phase = _PHASES.get(kind) or ("held" if was_admitted else "queued")
            draft = drafts.get(life.facts.request_id)
            told = _Tokens(tokens)
            if draft is not None and kind == step_rows.DECODE:
                told = _Tokens(tokens, draft.num_draft_tokens, draft.num_accepted_tokens)
            life.add(phase, start, bounds[index + 1][0] if key in following else end, told)
    return sorted(lives.values(), key=lambda life: (life.start_ns, life.facts.key))


def _begin(facts: RequestFacts, start_ns: int, flags: int) -> _Life:
    if not flags & FIRST_SEEN:
        return _Life(facts, start_ns)
    arrived_ns = min(start_ns, round(facts.arrival_s * _NS))
    life = _Life(facts, arrived_ns)
    if arrived_ns < start_ns:
        life.add("queued", arrived_ns, start_ns, _Tokens())
    return life


def _lanes(lives: Iterable[_Life]) -> list[int]:
    """The lowest lane for each that nobody else lives in at that time."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes, num_lanes = [], 0
    for life in lives:
        while busy and busy[0][0] <= life.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, num_lanes = num_lanes, num_lanes + 1
        heapq.heappush(busy, (life.end_ns, lane))
        lanes.append(lane)
    return lanes


def _life_events(life: _Life, thread: int, origin: int) -> Iterator[dict[str, Any]]:
    facts = life.facts
    numbers = {"family": facts.family, "priority": facts.priority, "colour": facts.slot, "failed": life.has_failed}
    yield _complete(facts.request_id, thread, life.start_ns - origin, life.end_ns - origin, numbers)
    for name, start, end, tokens in life.phases:
        yield _complete(name, thread, start - origin, end - origin, tokens.numbers)


def _complete(name: str, thread: int, start_ns: int, end_ns: int, numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": PROCESS,
        "tid": thread,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": dict(numbers),
    }


def _counter(name: str, at_ns: int, values: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": PROCESS, "tid": SCHEDULER, "ts": at_ns / 1000, "args": dict(values)}


def _thread(thread: int, name: str) -> Iterator[dict[str, Any]]:
    """Name and place of a thread: chrome://tracing would put "requests 10" before "requests 2"."""
    yield _name("thread_name", thread, name)
    yield _metadata("thread_sort_index", thread, {"sort_index": thread})


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return _metadata(kind, thread, {"name": name})


def _metadata(kind: str, thread: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "ts": 0, "args": values}
