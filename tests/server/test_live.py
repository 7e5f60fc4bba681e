"""The live feed's routes: equality with the pool over both transports, deltas, epochs, heartbeats, origin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient, states_in
from workbench.engine.messages import ServiceState
from workbench.server.feed import SLICE, LiveFeed
from workbench.server.feed_router import send_frames
from workbench.server.live import build_live_router
from workbench.ui import explain


@pytest.fixture
def service() -> FakeService:
    return FakeService(num_blocks=24, seed=5, num_swap_blocks=12)


@pytest.fixture
def http(service: FakeService) -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(build_live_router(service, explain, interval_s=0.005, heartbeat_s=0.02))
    with TestClient(app) as client:
        yield client


def poll(http: TestClient, client: LiveClient) -> None:
    response = http.get("/live/frame", params=client.known)
    assert response.status_code == 200
    client.apply(response.content)


def run_random_steps(service: FakeService, num_steps: int) -> None:
    for _ in range(num_steps):
        service.engine.act_at_random()
        service.step()


def test_polling_equals_the_pool_after_hundreds_of_random_steps(service: FakeService, http: TestClient) -> None:
    client = LiveClient()
    kinds = set()
    for _ in range(60):
        run_random_steps(service, 5)
        poll(http, client)
        assert client.frame is not None
        kinds.add(client.frame.is_full)
        assert client.states() == states_in(service.pool_snapshot())
    assert kinds == {True, False}


def test_websocket_equals_the_pool_after_hundreds_of_random_steps(service: FakeService, http: TestClient) -> None:
    client = LiveClient()
    with http.websocket_connect("/live") as socket:
        for _ in range(60):
            run_random_steps(service, 5)
            while client.frame is None or client.frame.step_id < service.engine.step_id:
                client.apply(socket.receive_bytes())
            assert client.states() == states_in(service.pool_snapshot())


def test_websocket_first_frame_is_full_and_the_next_are_deltas(service: FakeService, http: TestClient) -> None:
    service.engine.add(40, 50)
    service.step()
    client = LiveClient()
    with http.websocket_connect("/live") as socket:
        assert client.apply(socket.receive_bytes()).is_full
        service.step()
        frame = client.apply(socket.receive_bytes())
        while frame.step_id < 1:
            frame = client.apply(socket.receive_bytes())
        assert not frame.is_full
        assert frame.block_ids is not None
        assert frame.block_ids.tolist() == [2]


def test_websocket_resumes_with_a_delta_when_the_client_names_its_state(service: FakeService, http: TestClient) -> None:
    service.engine.add(40, 50)
    service.step()
    client = LiveClient()
    poll(http, client)
    service.step()
    known = "&".join(f"{k}={v}" for k, v in client.known.items())
    with http.websocket_connect(f"/live?{known}") as socket:
        frame = client.apply(socket.receive_bytes())
    assert not frame.is_full
    assert client.states() == states_in(service.pool_snapshot())


def test_websocket_first_frame_is_the_present_after_a_long_time_without_a_client(service: FakeService) -> None:
    run_random_steps(service, 6 * SLICE + 3)
    app = FastAPI()
    app.include_router(build_live_router(service, explain, heartbeat_s=60))
    client = LiveClient()
    with TestClient(app) as http, http.websocket_connect("/live") as socket:
        assert client.apply(socket.receive_bytes()).step_id == 6 * SLICE + 2
    assert client.states() == states_in(service.pool_snapshot())


def test_websocket_shows_that_it_lives_while_it_catches_up(service: FakeService) -> None:
    run_random_steps(service, 6 * SLICE + 3)
    app = FastAPI()
    app.include_router(build_live_router(service, explain, heartbeat_s=0))
    with TestClient(app) as http, http.websocket_connect("/live") as socket:
        steps = [LiveClient().apply(socket.receive_bytes()).step_id]
    assert steps[0] < 6 * SLICE + 2


def test_websocket_sends_heartbeats_when_nothing_changes(http: TestClient) -> None:
    client = LiveClient()
    with http.websocket_connect("/live") as socket:
        versions = [client.apply(socket.receive_bytes()).version for _ in range(4)]
    assert len(set(versions)) == 1


def test_websocket_client_that_does_not_read_gets_one_delta_over_all_missed_steps(
    service: FakeService, http: TestClient
) -> None:
    client = LiveClient()
    poll(http, client)
    run_random_steps(service, 200)
    poll(http, client)
    assert client.states() == states_in(service.pool_snapshot())


class SlowSocket:
    """A client that takes a frame only when the test says so."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_offered = asyncio.Event()
        self.is_taken = asyncio.Event()

    async def send_bytes(self, data: bytes) -> None:
        self.frames.append(data)
        self.is_offered.set()
        await self.is_taken.wait()
        self.is_taken.clear()

    async def take(self) -> bytes:
        await self.is_offered.wait()
        self.is_offered.clear()
        self.is_taken.set()
        return self.frames[-1]


def test_websocket_builds_no_frame_while_the_client_is_busy_with_the_last(service: FakeService) -> None:
    async def scenario() -> None:
        feed, socket, client = LiveFeed(service, explain), SlowSocket(), LiveClient()
        gone: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(3600))
        feed.drain()
        sending = asyncio.create_task(send_frames(socket, lambda: feed, 0, gone, 0.001, 60))  # type: ignore[arg-type]
        client.apply(await socket.take())
        run_random_steps(service, 1)
        await socket.is_offered.wait()
        run_random_steps(service, 100)
        await asyncio.sleep(0.05)
        assert len(socket.frames) == 2
        while client.frame is None or client.frame.step_id < service.engine.step_id:
            client.apply(await socket.take())
        assert len(socket.frames) <= 2 + 101 // SLICE + 1
        assert client.states() == states_in(service.pool_snapshot())
        gone.cancel()
        socket.is_taken.set()
        await sending

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "known",
    [
        {"instance": 1, "epoch": 1, "version": 1},
        {"instance": None, "epoch": 7, "version": 1},
        {"instance": None, "epoch": 1, "version": 4_000_000},
        {"instance": None, "epoch": 1, "version": 0},
    ],
    ids=["another-server", "another-epoch", "ahead-of-us", "nothing-held"],
)
def test_polling_answers_a_full_frame_to_an_unknown_state(
    service: FakeService, http: TestClient, known: dict[str, int | None]
) -> None:
    client = LiveClient()
    poll(http, client)
    params = {k: client.known[k] if v is None else v for k, v in known.items()}
    service.engine.add(4, 4)
    service.step()
    response = http.get("/live/frame", params=params)
    assert client.apply(response.content).is_full


def test_two_servers_never_share_an_epoch() -> None:
    clients = []
    for _ in range(2):
        app = FastAPI()
        app.include_router(build_live_router(FakeService(), explain))
        client = LiveClient()
        poll(TestClient(app), client)
        clients.append(client)
    first, second = (c.frame.instance for c in clients if c.frame is not None)
    assert first != second


def test_reload_leaves_no_stale_block(service: FakeService, http: TestClient) -> None:
    run_random_steps(service, 40)
    client = LiveClient()
    with http.websocket_connect("/live") as socket:
        client.apply(socket.receive_bytes())
        service.load(num_blocks=12, seed=1)
        while client.frame is None or client.frame.epoch != 2:
            client.apply(socket.receive_bytes())
        assert client.frame.is_full
        assert client.states() == [(0, 0, 0, (), -1)] * 12
        assert client.frame.body["requests"] == []
        service.engine.add(20, 5)
        service.step()
        while client.frame.step_id < 0:
            client.apply(socket.receive_bytes())
        assert client.states() == states_in(service.pool_snapshot())


def test_records_of_the_old_engine_are_dropped_after_a_reload(service: FakeService, http: TestClient) -> None:
    client = LiveClient()
    poll(http, client)
    run_random_steps(service, 10)
    service.load(num_blocks=24)
    poll(http, client)
    assert client.states() == [(0, 0, 0, (), -1)] * 24


@pytest.mark.parametrize("capacity", [10_000, 5], ids=["recorder-knows-all", "recorder-forgot-some"])
def test_feed_catches_up_when_records_were_lost(service: FakeService, http: TestClient, capacity: int) -> None:
    service.recorder.capacity = capacity
    client = LiveClient()
    run_random_steps(service, 3)
    poll(http, client)
    for _ in range(30):
        service.engine.add_random()
        service.step(tell=False)
    run_random_steps(service, 1)
    poll(http, client)
    assert client.states() == states_in(service.pool_snapshot())


def test_feed_that_starts_late_shows_the_steps_before_it() -> None:
    service = FakeService(num_blocks=24, seed=2)
    service.engine.add(4, 1000)
    for _ in range(50):
        service.step()
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    client = LiveClient()
    poll(TestClient(app), client)
    assert client.states() == states_in(service.pool_snapshot())
    assert client.blocks["since_step"].tolist()[0] == 0


def test_feed_without_a_client_holds_a_bounded_number_of_records(service: FakeService, http: TestClient) -> None:
    service.engine.add(4, 10_000)
    run_random_steps(service, 2 * SLICE + 50)
    client = LiveClient()
    poll(http, client)
    assert client.states() == states_in(service.pool_snapshot())


def test_frame_carries_load_progress_and_then_the_model(service: FakeService, http: TestClient) -> None:
    ready = service.status
    service.status = msgspec.structs.replace(
        ready, state=ServiceState.LOADING, phase="weights", done_bytes=61, total_bytes=97
    )
    client = LiveClient()
    poll(http, client)
    assert client.frame is not None
    body = client.frame.body["service"]
    assert (body["state"], body["phase"], body["done_bytes"], body["total_bytes"]) == ("loading", "weights", 61, 97)
    poll(http, client)
    assert "service" not in client.frame.body
    service.status = ready
    poll(http, client)
    assert client.frame.body["service"]["state"] == "ready"


def test_request_rows_name_status_slot_and_tokens(service: FakeService, http: TestClient) -> None:
    service.engine.add(20, 5)
    service.engine.add(500, 5)
    service.step()
    service.step()
    client = LiveClient()
    poll(http, client)
    assert client.frame is not None
    waiting = "waiting: needs 33 blocks, 22 are free"
    numbers = {"needed_blocks": 33, "free_blocks": 22}
    assert client.frame.body["requests"] == [
        [1, "r1", "running", 0, 20, 2, 21, 2, False, 0, "r1", 1, 0, 0, "", 0, 25, None, None],
        [
            *(2, "r2", "waiting", None, 500, 0, 0, 0, False, 0, "r2", 1, 0, 0, "", 0, 505),
            ["deferred", "no_free_blocks", numbers, None, 0, waiting],
            None,
        ],
    ]
    assert client.frame.body["living"] == [1, 2]
    figures = client.frame.body["figures"]
    assert (figures["running"], figures["waiting"], figures["active_blocks"]) == (1, 1, 2)


def test_rows_come_again_only_when_they_changed_and_the_queue_keeps_its_order(
    service: FakeService, http: TestClient
) -> None:
    service.engine.add(20, 50)
    service.engine.add(500, 5)
    service.engine.add(600, 5)
    service.step()
    client = LiveClient()
    poll(http, client)
    service.engine.waiting.reverse()
    service.step()
    poll(http, client)
    assert client.frame is not None
    assert not client.frame.is_full
    assert client.frame.body["living"] == [1, 3, 2]
    assert [row["id"] for row in client.rows.values()] == ["r1", "r3", "r2"]
    service.step()
    poll(http, client)
    assert [row[1] for row in client.frame.body["requests"]] == ["r1"]
    assert [row["id"] for row in client.rows.values()] == ["r1", "r3", "r2"]


def test_rows_of_ended_requests_are_dropped(service: FakeService, http: TestClient) -> None:
    service.engine.add(4, 2)
    service.engine.add(4, 50)
    service.step()
    client = LiveClient()
    poll(http, client)
    service.step()
    poll(http, client)
    assert [row["id"] for row in client.rows.values()] == ["r2"]


def test_frame_gives_all_owners_of_shared_blocks_as_runs(service: FakeService, http: TestClient) -> None:
    service.engine.add(40, 50)
    service.step()
    service.engine.fork("r1")
    service.engine.fork("r1")
    service.step()
    client = LiveClient()
    poll(http, client)
    assert client.frame is not None
    assert client.frame.body["shared"] == [[0, 2, 2, 3]]
    assert [owners for _, _, _, owners, _ in client.states()[:5]] == [
        ("r1", "r1.1", "r1.2"),
        ("r1", "r1.1", "r1.2"),
        ("r1.2",),
        ("r1",),
        ("r1.1",),
    ]


def test_frame_tells_each_movement_once_and_the_last_ones_when_full(service: FakeService, http: TestClient) -> None:
    client = LiveClient()
    service.engine.add(40, 50)
    service.step()
    poll(http, client)
    service.engine.fork("r1")
    service.step()
    poll(http, client)
    assert client.frame is not None
    assert client.frame.body["transfers"] == [[1, "copy", "r1", [2, 3]]]
    assert client.frame.body["figures"]["copy"] == 1
    service.step()
    poll(http, client)
    assert client.frame.body["transfers"] == []
    late = LiveClient()
    poll(http, late)
    assert late.frame is not None
    assert late.frame.body["transfers"] == [[1, "copy", "r1", [2, 3]]]


def test_frame_tells_a_swap_its_reason_and_what_is_left_of_the_swap_space(
    service: FakeService, http: TestClient
) -> None:
    client = LiveClient()
    service.engine.add(150, 200)
    service.engine.add(150, 200)
    while not service.engine.transfers:
        service.step()
    poll(http, client)
    assert client.frame is not None
    row = client.rows[2]
    assert (row["status"], row["num_swapped_blocks"], row["num_blocks"]) == ("swapped", 12, 0)
    decision, reason, numbers, cause, step_id, sentence = row["preemption"]
    assert (decision, reason, cause, step_id) == ("preempted", "no_free_blocks", "r1", service.engine.step_id)
    assert numbers == {"needed_blocks": 1, "free_blocks": 0, "swapped_blocks": 12}
    assert sentence == "preempted: r1 needed 1 block, 0 were free; kept in host memory (12 blocks)"
    figures = client.frame.body["figures"]
    assert (figures["swap_blocks"], figures.get("free_swap_blocks", 0), figures["swap_out"]) == (12, 0, 12)
    assert [move[1:3] for move in client.frame.body["transfers"]] == [["swap_out", "r2"]]


def test_frame_gives_waste_and_what_a_contiguous_allocator_would_have_reserved(
    service: FakeService, http: TestClient
) -> None:
    service.engine.add(20, 50)
    service.step()
    client = LiveClient()
    poll(http, client)
    assert client.frame is not None
    figures = client.frame.body["figures"]
    assert (figures["waste_slots"], figures["contiguous_blocks"]) == (12, 5)
    assert "waste_blocks" not in figures


def test_frame_says_which_layout_the_engine_has(service: FakeService, http: TestClient) -> None:
    client = LiveClient()
    poll(http, client)
    assert client.frame is not None
    assert client.frame.body["service"]["kv_layout"] == "paged"
    service.config = replace(service.config, kv_layout="contiguous")
    poll(http, client)
    assert client.frame.body["service"]["kv_layout"] == "contiguous"


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "http://testserver:81", "null"])
def test_live_refuses_pages_of_another_host(http: TestClient, origin: str) -> None:
    assert http.get("/live/frame", headers={"origin": origin}).status_code == 403
    with pytest.raises(WebSocketDisconnect), http.websocket_connect("/live", headers={"origin": origin}):
        pass


def test_live_accepts_pages_of_its_own_host(http: TestClient) -> None:
    headers = {"origin": "http://testserver"}
    assert http.get("/live/frame", headers=headers).status_code == 200
    with http.websocket_connect("/live", headers=headers) as socket:
        assert LiveClient().apply(socket.receive_bytes()).is_full
