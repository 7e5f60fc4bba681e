"""Rows for the timeline: literal kinds and flags, and equality with the records of random runs."""

from __future__ import annotations

import pytest

from tests.telemetry.chunk_reader import read_chunk
from tests.telemetry.test_history import random_run
from tests.telemetry.test_live_requests import record, state
from workbench.telemetry.history import History
from workbench.telemetry.live_state import LiveState
from workbench.telemetry.recorder import Recorder
from workbench.telemetry.records import RequestState, RequestStatus

RUNNING = RequestStatus.RUNNING


def entries_of(*steps: tuple[RequestState, ...]) -> list[list[tuple[int, int, int, int, int]]]:
    live, history = LiveState(), History(Recorder())
    live.reset(1, 4, 16)
    history.begin(live)
    for step_id, states in enumerate(steps):
        told = record(step_id, *states)
        live.apply(told)
        history.note(told, live)
    return read_chunk(history.chunk(1, -1, 100)).entries


def test_entries_tell_the_whole_life_of_a_request() -> None:
    prefill = {"num_scheduled_tokens": 9, "is_prefill": True}
    decode = {"num_scheduled_tokens": 1, "num_new_tokens": 1, "num_computed_tokens": 10}
    assert entries_of(
        (state("r1"),),
        (state("r1", RUNNING, **prefill, num_new_tokens=1),),
        (state("r1", RUNNING, **decode),),
        (state("r1", RequestStatus.PREEMPTED, num_preemptions=1),),
        (state("r1", RUNNING, **prefill, num_preemptions=1),),
        (state("r1", RequestStatus.SWAPPED, num_preemptions=2),),
        (state("r1", RequestStatus.SWAPPED, num_preemptions=2),),
        (state("r1", RUNNING, **decode, num_preemptions=2),),
        (state("r1", RUNNING, num_preemptions=2),),
        (state("r1", RequestStatus.FINISHED, **decode, num_preemptions=2),),
    ) == [
        [(1, 0, 0, 1, 0)],
        [(1, 9, 1, 2, 1)],
        [(1, 1, 2, 0, 1)],
        [(1, 0, 3, 8, 0)],
        [(1, 9, 1, 4, 0)],
        [(1, 0, 4, 8 | 16, 0)],
        [(1, 0, 4, 0, 0)],
        [(1, 1, 2, 4, 1)],
        [(1, 0, 0, 0, 0)],
        [(1, 1, 2, 32, 1)],
    ]


def test_request_that_comes_and_ends_within_one_step_has_an_entry() -> None:
    done = state("r1", RequestStatus.FINISHED, num_scheduled_tokens=9, is_prefill=True, num_computed_tokens=9)
    gone = state("r2", RequestStatus.ABORTED)
    assert entries_of((state("r3", RUNNING), done, gone)) == [
        [(3, 0, 0, 1 | 2, 0), (1, 9, 1, 1 | 2 | 32, 0), (2, 0, 0, 1 | 64, 0)]
    ]


def test_name_that_is_used_again_in_the_step_of_its_end_is_another_request() -> None:
    assert entries_of((state("r1", RUNNING),), (state("r1"), state("r1", RequestStatus.FAILED)))[1] == [
        (2, 0, 0, 1, 0),
        (1, 0, 0, 64, 0),
    ]


def test_waiting_requests_have_entries_as_far_as_they_are_named() -> None:
    entries = entries_of(tuple(state(f"r{i}") for i in range(70)))
    assert [entry[0] for entry in entries[0]] == list(range(1, 65))


@pytest.mark.parametrize("seed", [1, 2])
def test_chunks_equal_the_records(seed: int) -> None:
    run = random_run(150, seed)
    records = run.source.recorder.since(-1)
    chunks = [read_chunk(run.history.chunk(7, after, 40)) for after in (-1, 39, 79, 119)]
    assert [chunk.steps for chunk in chunks] == [list(range(i, min(i + 40, 150))) for i in (0, 40, 80, 120)]
    rows = [row for chunk in chunks for row in chunk.rows]
    entries = [each for chunk in chunks for each in chunk.entries]
    requests = {key: facts for chunk in chunks for key, facts in chunk.requests.items()}
    for told, row, ours in zip(records, rows, entries, strict=True):
        assert row[1] == pytest.approx(told.duration_s * 1000)
        assert row[:1] + row[2:11] == (
            told.step_id,
            told.started_s,
            told.num_scheduled_tokens,
            told.num_prefill_tokens,
            told.num_decode_tokens,
            told.max_num_batched_tokens,
            told.num_running,
            told.num_waiting,
            told.num_active_blocks,
            told.num_cached_blocks,
        )
        assert [(requests[key][1], tokens, new) for key, tokens, _, _, new in ours] == [
            (each.request_id, each.num_scheduled_tokens, each.num_new_tokens) for each in told.requests
        ]
        for each, (key, tokens, kind, flags, _) in zip(told.requests, ours, strict=True):
            assert (flags & 32 != 0) == (each.status is RequestStatus.FINISHED)
            assert (kind == 2) == (tokens == 1 and not each.is_prefill)
            assert requests[key][3:] == [each.family, each.priority, each.arrival_time_s]


def test_chunk_names_the_requests_of_its_steps_with_their_colours() -> None:
    run = random_run(150, seed=3)
    chunk = read_chunk(run.history.chunk(7, 99, 10))
    assert set(chunk.requests) == {entry[0] for entries in chunk.entries for entry in entries}
    state_then = run.history.state_at(105)
    for request in state_then.named:
        assert chunk.requests[request.key][1] == request.state.request_id
        assert request.slot is None or chunk.requests[request.key][2] == request.slot


def test_chunk_is_empty_when_nothing_follows() -> None:
    run = random_run(10, seed=3)
    chunk = read_chunk(run.history.chunk(7, 9, 10))
    assert (chunk.instance, chunk.epoch, chunk.first_step, chunk.rows, chunk.requests) == (7, 1, -1, [], {})


def test_chunk_starts_at_the_oldest_step_when_those_asked_for_are_gone() -> None:
    run = random_run(300, seed=3, capacity=70)
    chunk = read_chunk(run.history.chunk(7, 5, 3))
    first = run.history.first_step
    assert (chunk.first_step, chunk.steps) == (first, [first, first + 1, first + 2])
