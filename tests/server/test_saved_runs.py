"""Saved runs opened in the page: served beside the engine, few and not for long, and wrong files refused in words."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import IO, Any
from unittest import mock

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient, states_in
from tests.server.test_history import run_random_steps
from tests.telemetry.chunk_reader import read_chunk
from workbench.engine.messages import ServiceState
from workbench.errors import ReplayFileError
from workbench.server.access import TokenGate
from workbench.server.feed_finder import FeedGoneError
from workbench.server.feed_router import FEED_GONE
from workbench.server.live import build_live_router
from workbench.server.saved_runs import GONE, IDLE_S, MOST_RUNS, SavedRuns, build_saved_runs_router
from workbench.telemetry import run_file
from workbench.ui import explain

INSTANCE_BYTES = slice(8, 12)
NUM_STEPS = 120
ELSEWHERE = {"Origin": "http://elsewhere.example"}


@pytest.fixture
def service() -> FakeService:
    service = FakeService(num_blocks=24, seed=5, num_swap_blocks=12)
    run_random_steps(service, NUM_STEPS)
    return service


@pytest.fixture
def http(service: FakeService) -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(build_live_router(service, explain, interval_s=0.005, heartbeat_s=0.02))
    with TestClient(app) as client:
        yield client


@pytest.fixture
def saved(http: TestClient) -> bytes:
    return http.get("/history/save").content


def open_run(http: TestClient, data: bytes, name: str = "run.jsonl.gz", **headers: str) -> str:
    response = http.post("/runs", params={"name": name}, content=data, headers=headers)
    assert response.status_code == 200, response.text
    return f"/runs/{response.json()['id']}"


def refusal(http: TestClient, data: bytes, name: str = "run.jsonl.gz") -> tuple[int, str]:
    response = http.post("/runs", params={"name": name}, content=data)
    return response.status_code, response.json()["detail"]


def changed_header(data: bytes, **change: Any) -> bytes:
    first, *others = gzip.decompress(data).splitlines(keepends=True)
    return gzip.compress(b"".join([json.dumps(json.loads(first) | change).encode() + b"\n", *others]))


def receive_until_it_closes(socket: WebSocketTestSession) -> None:
    while True:
        socket.receive_bytes()


# ------------------------------------------------------------------ what is served


def test_opening_a_run_tells_its_id_and_what_it_is(http: TestClient, saved: bytes) -> None:
    told = http.post("/runs", params={"name": "run.jsonl.gz"}, content=saved).json()
    header = json.loads(gzip.decompress(saved).splitlines()[0])
    assert len(told.pop("id")) >= 20
    assert told == {
        "name": "run.jsonl.gz",
        "first": 0,
        "last": NUM_STEPS - 1,
        "model": "simulated",
        "saved_at": header["saved_at"],
        "is_redacted": False,
    }


def test_open_run_is_served_as_the_engine_was_while_the_engine_goes_on(
    service: FakeService, http: TestClient, saved: bytes
) -> None:
    paths = [f"/history/frame?step={step}" for step in range(NUM_STEPS)]
    details = [f"/history/step?step={step}" for step in range(0, NUM_STEPS, 7)]
    frames = [http.get(path).content for path in paths]
    told = [http.get(path).json() for path in details]
    rows, known = read_chunk(http.get("/history/steps").content), http.get("/history/range").json()
    trace = http.get("/history/trace").json()
    root = open_run(http, saved)
    service.load(num_blocks=40, seed=9)
    run_random_steps(service, 10)

    for path, frame in zip(paths, frames, strict=True):
        ours, theirs = bytearray(frame), bytearray(http.get(root + path).content)
        assert ours[INSTANCE_BYTES] != theirs[INSTANCE_BYTES]
        ours[INSTANCE_BYTES] = theirs[INSTANCE_BYTES] = bytes(4)
        assert ours == theirs
    assert [http.get(root + path).json() for path in details] == told
    again = read_chunk(http.get(f"{root}/history/steps").content)
    assert (again.rows, again.entries, again.requests) == (rows.rows, rows.entries, rows.requests)
    assert http.get(f"{root}/history/range").json() | {"instance": 0} == known | {"instance": 0}
    assert http.get(f"{root}/history/trace").json() == trace
    twice = http.get(f"{root}/history/save").content
    assert gzip.decompress(twice).splitlines()[1:] == gzip.decompress(saved).splitlines()[1:]
    assert http.get("/history/range").json()["last"] == 9


@pytest.mark.parametrize("way", ["socket", "poll"])
def test_live_feed_of_an_open_run_shows_its_last_step_and_names_the_file(
    service: FakeService, http: TestClient, saved: bytes, way: str
) -> None:
    expected = states_in(service.pool_snapshot())
    root = open_run(http, saved, name="night.jsonl.gz")
    run_random_steps(service, 30)
    client = LiveClient()
    if way == "poll":
        frame = client.apply(http.get(f"{root}/live/frame").content)
    else:
        with http.websocket_connect(f"{root}/live") as socket:
            frame = client.apply(socket.receive_bytes())
    assert (frame.step_id, client.states()) == (NUM_STEPS - 1, expected)
    told = frame.body["service"]
    assert (told["state"], told["saved_run"]["name"], told["saved_run"]["last"]) == ("ready", "night.jsonl.gz", 119)
    engine = LiveClient().apply(http.get("/live/frame").content)
    assert (engine.step_id, "saved_run" in engine.body["service"]) == (NUM_STEPS + 29, False)


@pytest.mark.parametrize("state", [ServiceState.LOADING, ServiceState.FAILED])
def test_run_opens_without_an_engine(saved: bytes, state: ServiceState) -> None:
    service = FakeService()
    service.status = msgspec.structs.replace(service.status, state=state, num_blocks=0, epoch=0)
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    with TestClient(app) as http:
        assert http.get(f"{open_run(http, saved)}/history/range").json()["last"] == NUM_STEPS - 1


def test_redacted_run_stays_redacted_when_it_is_saved_again(http: TestClient) -> None:
    hidden = http.get("/history/save", params={"redacted": 1}).content
    response = http.post("/runs", content=hidden).json()
    assert response["is_redacted"]
    again = http.get(f"/runs/{response['id']}/history/save").content
    assert json.loads(gzip.decompress(again).splitlines()[0])["is_redacted"]
    assert gzip.decompress(again).splitlines()[1:] == gzip.decompress(hidden).splitlines()[1:]


# ------------------------------------------------------------------ wrong files


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def corrupt(data: bytes) -> bytes:
    return data[:200] + bytes([data[200] ^ 0xFF]) + data[201:]


WRONG: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "empty": (lambda _: b"", 400, "is empty: give a file that was saved on the Blocks tab"),
    "no-gzip": (lambda _: b"hello", 422, "is damaged or no gzip file (Not a gzipped file (b'he'))"),
    "no-run": (lambda _: gzip.compress(b"hello\n"), 422, "is no saved run: its first line does not say"),
    "corrupt": (corrupt, 422, "is damaged"),
    "truncated": (truncated, 422, "ends too early: it was not saved or copied to its end; save it again"),
    "newer": (lambda data: changed_header(data, version=9), 422, "has version 9, this workbench reads 1: open it with"),
    "engine": (lambda data: changed_header(data, kv_layout="round"), 422, "damaged at line 1: kv_layout='round'"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_file_is_refused_with_one_message_that_names_it(http: TestClient, saved: bytes, kind: str) -> None:
    damage, status, message = WRONG[kind]
    given, text = refusal(http, damage(saved), name="C:\\runs\\night.gz")
    assert (given, message in text) == (status, True), text
    assert text.startswith("night.gz ")
    assert "/" not in text.split(":")[0]


def test_file_that_is_too_large_is_refused_before_it_is_read(service: FakeService, saved: bytes) -> None:
    app = FastAPI()
    app.include_router(build_saved_runs_router(explain, most_file_bytes=1 << 20))
    with TestClient(app) as http, mock.patch("workbench.server.saved_runs.read_run_file") as read:
        status, text = refusal(http, bytes((1 << 20) + 1))
        assert (status, read.called) == (413, False)
    assert text == (
        "run.jsonl.gz has more than 1 MiB, which is the most that the page opens: "
        "open it with python app.py --replay FILE, which has no limit"
    )


@pytest.mark.parametrize("after", ["at-once", "after-a-header"])
def test_decompression_bomb_is_refused_while_it_is_decompressed(saved: bytes, after: str) -> None:
    runs = SavedRuns(explain, most_text_bytes=1 << 20)
    start = b"" if after == "at-once" else gzip.decompress(saved).splitlines(keepends=True)[0]
    press = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    bomb = press.compress(start) + b"".join(press.compress(bytes(1 << 20)) for _ in range(64)) + press.flush()
    decompressed = 0
    plain = gzip.GzipFile.readline

    def counted(self: Any, size: int | None = -1) -> bytes:
        nonlocal decompressed
        line = plain(self, size)
        decompressed += len(line)
        return line

    with (
        mock.patch.object(gzip.GzipFile, "readline", counted),
        pytest.raises(ReplayFileError, match=r"^bomb.gz decompresses to more than 1 MiB: open it with python app\.py"),
    ):
        asyncio.run(runs.open(BytesIO(bomb), "bomb.gz"))
    assert decompressed == (1 << 20) + 1
    assert len(runs) == 0


def test_refused_file_leaves_open_runs_and_the_engine_alone(http: TestClient, saved: bytes) -> None:
    root = open_run(http, saved)
    refusal(http, truncated(saved))
    assert http.get(f"{root}/history/range").json()["last"] == NUM_STEPS - 1
    assert http.get("/history/range").json()["last"] == NUM_STEPS - 1


# ------------------------------------------------------------------ who may, and for how long


@pytest.mark.parametrize("path", ["/history/range", "/live/frame", "/history/save"])
def test_unknown_run_is_404_with_a_remedy(http: TestClient, path: str) -> None:
    response = http.get(f"/runs/nobody{path}")
    assert (response.status_code, response.json()) == (404, {"detail": GONE})
    assert GONE == "this run is not open any more: open the file again"


def test_socket_of_an_unknown_run_is_closed_with_a_code_of_its_own(http: TestClient) -> None:
    with http.websocket_connect("/runs/nobody/live") as socket, pytest.raises(WebSocketDisconnect) as caught:
        socket.receive_bytes()
    assert (caught.value.code, caught.value.reason) == (FEED_GONE, GONE)


def test_ids_differ_for_the_same_file(http: TestClient, saved: bytes) -> None:
    assert len({open_run(http, saved) for _ in range(MOST_RUNS)}) == MOST_RUNS


def test_closed_run_is_gone_and_closing_it_again_is_no_error(http: TestClient, saved: bytes) -> None:
    root = open_run(http, saved)
    assert [http.delete(root).status_code for _ in range(2)] == [204, 204]
    assert http.get(f"{root}/history/range").status_code == 404


def test_least_recently_used_run_makes_room_for_one_more(http: TestClient, saved: bytes) -> None:
    roots = [open_run(http, saved) for _ in range(MOST_RUNS)]
    http.get(f"{roots[0]}/history/range")
    roots.append(open_run(http, saved))
    found = [http.get(f"{root}/history/range").status_code for root in roots]
    assert found == [200, 404, 200, 200, 200]


def test_socket_keeps_its_run_open_and_is_closed_with_it(http: TestClient, saved: bytes) -> None:
    watched = open_run(http, saved)
    with http.websocket_connect(f"{watched}/live") as socket:
        others = []
        for _ in range(MOST_RUNS):
            others.append(open_run(http, saved))
            for _ in range(3):  # the socket asks again for each frame
                socket.receive_bytes()
        assert http.get(f"{others[0]}/history/range").status_code == 404
        assert http.get(f"{watched}/history/range").status_code == 200
        http.delete(watched)
        with pytest.raises(WebSocketDisconnect) as caught:
            receive_until_it_closes(socket)
    assert caught.value.code == FEED_GONE


def test_run_that_nobody_asks_for_is_dropped_after_a_while(saved: bytes) -> None:
    now_s = 100.0
    runs = SavedRuns(explain, clock=lambda: now_s)

    async def scenario() -> None:
        nonlocal now_s
        first, second = [await runs.open(BytesIO(saved), "run.gz") for _ in range(2)]
        now_s += IDLE_S
        runs.feed(second)
        now_s += 1
        runs.drop_idle()
        assert len(runs) == 1
        runs.feed(second)
        with pytest.raises(FeedGoneError, match="open the file again"):
            runs.feed(first)

    asyncio.run(scenario())


def test_memory_is_given_back_when_nobody_ever_asks_again(saved: bytes) -> None:
    now_s = 0.0
    runs = SavedRuns(explain, clock=lambda: now_s)

    async def scenario() -> None:
        nonlocal now_s
        await runs.open(BytesIO(saved), "run.gz")
        now_s += IDLE_S + 1
        while len(runs):
            await asyncio.sleep(0)

    with mock.patch("workbench.server.saved_runs.TIDY_EVERY_S", 0.0):
        asyncio.run(asyncio.wait_for(scenario(), 20))


def test_file_is_read_in_a_thread_one_at_a_time(saved: bytes) -> None:
    runs = SavedRuns(explain)
    may_read, readers = threading.Event(), []
    plain = run_file.read_run_file

    def slow(file: IO[bytes], name: str, most_bytes: int | None) -> Any:
        readers.append(threading.current_thread())
        assert may_read.wait(20)
        return plain(file, name, most_bytes)

    async def scenario() -> None:
        opening = [asyncio.create_task(runs.open(BytesIO(saved), "run.gz")) for _ in range(2)]
        while not readers:
            await asyncio.sleep(0)  # the event loop goes on meanwhile
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(readers), threading.current_thread() in readers) == (1, False)
        may_read.set()
        await asyncio.gather(*opening)
        assert (len(readers), len(runs)) == (2, 2)

    with mock.patch("workbench.server.saved_runs.read_run_file", slow):
        asyncio.run(scenario())


def test_pages_of_other_hosts_can_neither_open_nor_read_nor_close(http: TestClient, saved: bytes) -> None:
    assert http.post("/runs", content=saved, headers=ELSEWHERE).status_code == 403
    root = open_run(http, saved, Origin="http://testserver")
    for path in ("/history/range", "/history/frame?step=3", "/live/frame"):
        assert http.get(root + path, headers=ELSEWHERE).status_code == 403
    with pytest.raises(WebSocketDisconnect), http.websocket_connect(f"{root}/live", headers=ELSEWHERE):
        pass
    assert http.delete(root, headers=ELSEWHERE).status_code == 403
    assert http.get(f"{root}/history/range").status_code == 200


def test_token_is_needed_for_opening_and_for_what_is_open(service: FakeService, saved: bytes) -> None:
    app = FastAPI()
    app.include_router(build_live_router(service, explain))
    with TestClient(TokenGate(app, "a token of its own")) as http:
        assert http.post("/runs", content=saved).status_code == 401
        assert http.post("/runs", content=saved, headers={"Authorization": "Bearer wrong"}).status_code == 401
        known = {"Authorization": "Bearer a token of its own"}
        root = open_run(http, saved, **known)
        for path in ("/history/range", "/live/frame"):
            assert [http.get(root + path, headers=each).status_code for each in ({}, known)] == [401, 200]
        assert http.delete(root).status_code == 401
        with pytest.raises(WebSocketDisconnect) as caught, http.websocket_connect(f"{root}/live"):
            pass
        assert caught.value.code == 1008
        with http.websocket_connect(f"{root}/live", headers=known) as socket:
            assert LiveClient().apply(socket.receive_bytes()).step_id == NUM_STEPS - 1
