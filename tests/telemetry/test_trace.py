"""The trace is valid in the trace event format: known phases, microseconds, and events that nest."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from tests.telemetry.test_history import random_run
from tests.telemetry.test_live_requests import record, state
from workbench.telemetry.history import History
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import RequestStatus, StepRecord
from workbench.telemetry.trace import encode_trace


def trace_of(history: History, records: list[StepRecord]) -> list[dict[str, Any]]:
    rows = history.rows_after(-1, len(records))
    facts = {each.key: each for each in history.facts_of(rows)}
    text = b"".join(encode_trace(records, rows, facts, "engine · simulated"))
    trace = json.loads(text)
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    return list(trace["traceEvents"])


def complete_events(events: list[dict[str, Any]]) -> dict[int, list[tuple[int, int, str]]]:
    """Thread → start and end in nanoseconds and name, parents before children."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads[event["tid"]].append((start, start + round(event["dur"] * 1000), event["name"]))
    return {tid: sorted(spans, key=lambda span: (span[0], -span[1])) for tid, spans in threads.items()}


def assert_nested(spans: list[tuple[int, int, str]]) -> None:
    open_ends: list[int] = []
    for start, end, name in spans:
        assert 0 <= start <= end
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], name
        open_ends.append(end)


@pytest.mark.parametrize(("seed", "capacity"), [(1, 10_000), (2, 80)])
def test_trace_has_only_known_phases_and_its_events_nest(seed: int, capacity: int) -> None:
    run = random_run(200, seed, capacity=capacity)
    _, records = run.history.base_and_records()
    events = trace_of(run.history, records)
    assert {event["ph"] for event in events} == {"X", "C", "M"}
    for event in events:
        assert {"name", "ph", "pid", "tid", "ts", "args"} <= set(event)
        assert event["ts"] >= 0
        assert (event["ph"] == "X") == ("dur" in event)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    threads = complete_events(events)
    assert len(threads) > 5
    for spans in threads.values():
        assert_nested(spans)
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert set(threads) <= named


def test_trace_has_each_step_with_its_parts_and_counters() -> None:
    run = random_run(30, seed=3)
    _, records = run.history.base_and_records()
    events = trace_of(run.history, records)
    steps = [event for event in events if event["name"].startswith("step ")]
    assert [event["args"]["step"] for event in steps] == list(range(30))
    for told, step in zip(records, steps, strict=True):
        assert step["dur"] == pytest.approx(told.duration_s * 1e6, abs=0.01)
    for part, seconds in (("schedule", 0.001), ("execute", 0.048), ("update", 0.001)):
        durations = [event["dur"] for event in events if event["name"] == part]
        assert durations == [pytest.approx(seconds * 1e6, abs=0.01)] * 30
    blocks = [event["args"] for event in events if event["name"] == "KV blocks"]
    assert blocks == [{"active": r.num_active_blocks, "cached": r.num_cached_blocks} for r in records]


def test_trace_tells_the_phases_of_a_request() -> None:
    running, gone = RequestStatus.RUNNING, RequestStatus.PREEMPTED
    steps = [
        state("r1"),
        state("r1", running, num_scheduled_tokens=9, is_prefill=True),
        state("r1", running, num_scheduled_tokens=1),
        state("r1", running, num_scheduled_tokens=1),
        state("r1", running),
        state("r1", gone, num_preemptions=1),
        state("r1", RequestStatus.FINISHED, num_scheduled_tokens=1, num_preemptions=1),
    ]
    live, recorder = LiveState(), Recorder()
    history = History(recorder)
    live.reset(1, 4, 16)
    history.begin(live)
    records = [record(i, each, at_s=1.0 + 0.05 * i) for i, each in enumerate(steps)]
    for told in records:
        recorder.record(told)
        live.apply(told)
        history.note(told, live)
    events = trace_of(history, records)
    [thread] = [event["tid"] for event in events if event["name"] == "r1"]
    spans = [
        (e["name"], e["ts"], e["dur"], e["args"].get("tokens")) for e in events if e["tid"] == thread and "dur" in e
    ]
    assert [span for span in spans if span[0] != "r1"] == [
        ("queued", 0.0, 1_050_000.0, None),  # it had arrived at 0 s
        ("prefill", 1_050_000.0, 50_000.0, 9),
        ("decode", 1_100_000.0, 100_000.0, 2),
        ("held", 1_200_000.0, 50_000.0, None),
        ("preempted", 1_250_000.0, 50_000.0, None),
        ("decode", 1_300_000.0, 50_000.0, 1),
    ]


def test_trace_tells_drafted_and_accepted_tokens_and_the_time_of_drafting() -> None:
    live, history, records = LiveState(), History(Recorder()), []
    live.reset(1, 4, 16)
    history.begin(live)
    running = RequestStatus.RUNNING
    for step_id, states in enumerate(
        (
            (state("r1", running, num_scheduled_tokens=9, is_prefill=True, num_new_tokens=1),),
            (
                state(
                    "r1", running, num_scheduled_tokens=5, num_new_tokens=3, num_draft_tokens=4, num_accepted_tokens=2
                ),
            ),
            (
                state(
                    "r1", running, num_scheduled_tokens=3, num_new_tokens=1, num_draft_tokens=2, num_accepted_tokens=0
                ),
            ),
        )
    ):
        told = msgspec.structs.replace(
            record(step_id, *states, at_s=float(step_id)),
            draft_s=0.25 if step_id else 0.0,
            schedule_s=0.125,
            execute_s=0.5,
            update_s=0.0,
        )
        live.apply(told)
        history.note(told, live)
        records.append(told)
    events = trace_of(history, records)
    arguments = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert arguments["prefill"] == {"tokens": 9}
    assert arguments["decode"] == {"tokens": 8, "drafted": 6, "accepted": 2}
    assert (arguments["step 1"]["drafted_tokens"], arguments["step 1"]["accepted_tokens"]) == (4, 2)
    assert "drafted_tokens" not in arguments["step 0"]
    scheduler = complete_events(events)[1]
    drafting = [(start, end) for start, end, name in scheduler if name == "draft"]
    assert [(end - start) / 1e9 for start, end in drafting] == [0.25, 0.25]
    for spans in complete_events(events).values():
        assert_nested(spans)
