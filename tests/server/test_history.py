"""The history's routes: frames of past steps, rows, one step in detail, and what is not recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient, states_in
from tests.telemetry.chunk_reader import Chunk, read_chunk
from workbench.engine.messages import ServiceState
from workbench.server.feed import SLICE, LiveFeed
from workbench.server.live import build_live_router
from workbench.telemetry.frames import Frame, decode
from workbench.telemetry.records import PoolSnapshot
from workbench.ui import explain


@pytest.fixture
def service() -> FakeService:
    return FakeService(num_blocks=24, seed=5, num_swap_blocks=12)


@pytest.fixture
def http(service: FakeService) -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    with TestClient(app) as client:
        yield client


def run_random_steps(service: FakeService, num_steps: int) -> list[PoolSnapshot]:
    snapshots = []
    for _ in range(num_steps):
        service.engine.act_at_random()
        service.step()
        snapshots.append(service.pool_snapshot())
    return snapshots


def frame_of(http: TestClient, step: int) -> Frame:
    response = http.get("/history/frame", params={"step": step})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/octet-stream")
    return decode(response.content)


def steps_of(http: TestClient, **params: int) -> Chunk:
    return read_chunk(http.get("/history/steps", params=params).content)


def test_range_is_empty_before_the_first_step_and_grows(service: FakeService, http: TestClient) -> None:
    before = http.get("/history/range").json()
    assert before == {
        "instance": before["instance"],
        "epoch": 1,
        "first": -1,
        "last": -1,
        "num_blocks": 24,
        "block_size": 16,
    }
    run_random_steps(service, 7)
    assert http.get("/history/range").json() == before | {"first": 0, "last": 6}


def test_frame_of_every_step_equals_the_pool_of_that_step(service: FakeService, http: TestClient) -> None:
    snapshots = run_random_steps(service, 120)
    client = LiveClient()
    for step, snapshot in enumerate(snapshots):
        client.apply(http.get("/history/frame", params={"step": step}).content)
        assert client.states() == states_in(snapshot)


def test_frame_of_the_last_step_is_the_live_one_but_for_what_belongs_to_now(
    service: FakeService, http: TestClient
) -> None:
    run_random_steps(service, 90)
    past, live = frame_of(http, 89), decode(http.get("/live/frame").content)
    assert (past.is_full, past.version, past.base_version, past.step_id) == (True, 0, 0, 89)
    assert (past.instance, past.epoch, past.num_blocks, past.block_size) == (live.instance, 1, 24, 16)
    assert past.blocks.tolist() == live.blocks.tolist()
    for part in ("requests", "living", "shared"):
        assert past.body[part] == live.body[part]
    assert past.body["transfers"] == [row for row in live.body["transfers"] if row[0] == 89]
    assert live.body["figures"] == past.body["figures"] | {
        "first_step": 0,
        "tokens_per_s": live.body["figures"]["tokens_per_s"],
    }
    assert "service" not in past.body


def test_frame_has_the_transfers_and_the_decisions_of_its_step(service: FakeService, http: TestClient) -> None:
    service.engine.add(150, 200)
    service.engine.add(150, 200)
    while not service.engine.transfers:
        service.step()
    step = service.engine.step_id
    for _ in range(40):
        service.step()
    body = frame_of(http, step).body
    assert [row[:3] for row in body["transfers"]] == [[step, "swap_out", "r2"]]
    [preemption] = [row[-1] for row in body["requests"] if row[1] == "r2"]
    assert preemption[:2] == ["preempted", "no_free_blocks"]
    assert preemption[-1] == "preempted: r1 needed 1 block, 0 were free; kept in host memory (12 blocks)"
    assert frame_of(http, step - 1).body["transfers"] == []


@pytest.mark.parametrize("path", ["frame", "step"])
def test_step_that_is_not_recorded_is_404_with_the_range(service: FakeService, http: TestClient, path: str) -> None:
    run_random_steps(service, 5)
    response = http.get(f"/history/{path}", params={"step": 5})
    assert (response.status_code, response.json()) == (
        404,
        {"error": "step 5 is not recorded: steps 0 to 4 are"},
    )


def test_keys_and_colours_are_those_of_the_live_feed(service: FakeService, http: TestClient) -> None:
    run_random_steps(service, 80)
    client = LiveClient()
    client.apply(http.get("/live/frame").content)
    chunk = steps_of(http, after=-1, epoch=1)
    named = {(key, row["id"], row["slot"]) for key, row in client.rows.items()}
    assert named <= {(key, *facts[1:3]) for key, facts in chunk.requests.items()}
    assert {key for key, *_ in chunk.entries[-1]} >= set(client.rows)


def test_steps_come_in_parts_that_follow_each_other(service: FakeService, http: TestClient) -> None:
    run_random_steps(service, 50)
    first = steps_of(http, after=-1, epoch=1, limit=30)
    assert (first.epoch, first.first_step, first.steps) == (1, 0, list(range(30)))
    assert steps_of(http, after=29, epoch=1, instance=first.instance).steps == list(range(30, 50))
    assert steps_of(http, after=49, epoch=1).steps == []


@pytest.mark.parametrize("other", [{"epoch": 2}, {"epoch": 1, "instance": 12}], ids=["epoch", "instance"])
def test_steps_start_anew_for_a_client_of_another_engine(
    service: FakeService, http: TestClient, other: dict[str, int]
) -> None:
    run_random_steps(service, 50)
    chunk = steps_of(http, after=29, **other)
    assert (chunk.epoch, chunk.first_step, len(chunk.rows)) == (1, 0, 50)


def test_history_begins_anew_with_a_new_engine(service: FakeService, http: TestClient) -> None:
    run_random_steps(service, 50)
    assert http.get("/history/range").json()["last"] == 49
    service.load(num_blocks=12)
    assert http.get("/history/range").json() | {"instance": 0} == {
        "instance": 0,
        "epoch": 2,
        "first": -1,
        "last": -1,
        "num_blocks": 12,
        "block_size": 16,
    }
    run_random_steps(service, 3)
    assert steps_of(http, after=49, epoch=1).steps == [0, 1, 2]


def test_history_begins_anew_where_steps_were_lost(service: FakeService, http: TestClient) -> None:
    run_random_steps(service, 10)
    assert http.get("/history/range").json()["last"] == 9
    service.recorder.capacity = 40
    snapshots = run_random_steps(service, 100)
    known = http.get("/history/range").json()
    assert (known["first"], known["last"]) == (71, 109)
    client = LiveClient()
    for step in range(71, 110):
        client.apply(http.get("/history/frame", params={"step": step}).content)
        assert client.states() == states_in(snapshots[step - 10])


def test_step_in_detail_tells_times_tokens_blocks_and_reasons(service: FakeService, http: TestClient) -> None:
    service.engine.add(20, 5)
    service.engine.add(500, 5)
    service.step()
    service.step()
    assert http.get("/history/step", params={"step": 1}).json() == {
        "step": 1,
        "started_s": 100.05,
        "duration_ms": pytest.approx(50.0),
        "draft_ms": 0.0,
        "schedule_ms": 1.0,
        "execute_ms": pytest.approx(48.0),
        "update_ms": 1.0,
        "tokens": {"scheduled": 1, "prefill": 0, "decode": 1, "budget": 64},
        "blocks": {"total": 24, "free": 22, "active": 2, "cached": 0},
        "swap": {"total": 12, "free": 12},
        "waste": {"slots": 11, "blocks": 0},
        "running": 1,
        "waiting": 1,
        "explanations": [
            {
                "key": 2,
                "id": "r2",
                "decision": "deferred",
                "reason": "no_free_blocks",
                "numbers": {"needed_blocks": 33, "free_blocks": 22},
                "cause": None,
                "text": "waiting: needs 33 blocks, 22 are free",
            }
        ],
        "transfers": [],
        "drafts": [],
        "lookups": {"looked_up": 0, "cached": 0},
    }


def test_step_in_detail_lists_each_transfer(service: FakeService, http: TestClient) -> None:
    service.engine.add(40, 50)
    service.step()
    service.engine.fork("r1")
    service.step()
    assert http.get("/history/step", params={"step": 1}).json()["transfers"] == [["copy", 2, 3, "r1"]]


@pytest.mark.parametrize("path", ["range", "frame?step=0", "steps", "step?step=0"])
def test_history_refuses_pages_of_another_host(service: FakeService, http: TestClient, path: str) -> None:
    service.step()
    assert http.get(f"/history/{path}", headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert http.get(f"/history/{path}", headers={"origin": "http://testserver"}).status_code == 200


def test_catching_up_lets_others_have_their_turn(service: FakeService) -> None:
    run_random_steps(service, 5 * SLICE)

    async def scenario() -> list[int]:
        feed, seen = LiveFeed(service, explain), []
        catching_up = asyncio.create_task(feed.catch_up())
        while not catching_up.done():
            await asyncio.sleep(0)
            seen.append(feed.state.step_id)
        return seen

    seen = asyncio.run(scenario())
    assert [step for step in seen if step < 5 * SLICE - 1] == [SLICE * i - 1 for i in range(1, 5)]


def test_nothing_is_folded_while_nobody_asks(service: FakeService) -> None:
    feed = LiveFeed(service, explain)
    run_random_steps(service, 50)
    assert (feed.state.step_id, feed.history.last_step) == (-1, -1)


def test_history_is_empty_while_no_engine_is_loaded(service: FakeService, http: TestClient) -> None:
    service.status = msgspec.structs.replace(service.status, state=ServiceState.LOADING, epoch=0, num_blocks=0)
    known = http.get("/history/range").json()
    assert (known["epoch"], known["first"], known["last"], known["num_blocks"]) == (0, -1, -1, 0)
    assert steps_of(http).rows == []
    response = http.get("/history/frame", params={"step": 0})
    assert (response.status_code, response.json()) == (404, {"error": "step 0 is not recorded: no step is yet"})


@pytest.mark.parametrize("number", [-(10**30), -5, 10**6, 2**63, 10**30])
def test_numbers_out_of_any_range_are_answered(service: FakeService, http: TestClient, number: int) -> None:
    run_random_steps(service, 5)
    assert http.get("/history/frame", params={"step": number}).status_code == 404
    assert http.get("/history/step", params={"step": number}).status_code == 404
    expected = [0, 1, 2, 3, 4] if number < 0 else []
    assert steps_of(http, after=number, epoch=1).steps == expected
    assert len(steps_of(http, after=-1, epoch=number, limit=number).steps) == (1 if number < 0 else 5)
