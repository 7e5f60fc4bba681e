"""A saved run served again: the same frames, rows and details at the same steps, and nothing that computes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient, states_in
from tests.server.test_history import run_random_steps
from tests.telemetry.chunk_reader import read_chunk
from workbench.engine.messages import ServiceState
from workbench.errors import EngineStoppedError, ReplayFileError
from workbench.server.live import build_live_router
from workbench.server.replay import ReplayService, open_replay
from workbench.telemetry.frames import decode
from workbench.ui import explain

INSTANCE_BYTES = slice(8, 12)


@pytest.fixture
def service() -> FakeService:
    return FakeService(num_blocks=24, seed=5, num_swap_blocks=12)


def client_of(service: FakeService | ReplayService) -> TestClient:
    app = FastAPI()
    feed = service.feed(explain) if isinstance(service, ReplayService) else None
    app.include_router(build_live_router(service, explain, feed=feed))
    return TestClient(app)


def save(http: TestClient, path: Path, **params: int) -> Path:
    response = http.get("/history/save", params=params)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/gzip")
    pattern = r'attachment; filename="workbench-run-\d{4}-\d\d-\d\d\.jsonl\.gz"'
    assert re.fullmatch(pattern, response.headers["content-disposition"])
    path.write_bytes(response.content)
    return path


@pytest.fixture(params=[10_000, 90], ids=["whole-run", "its-end"])
def both(service: FakeService, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[TestClient, ...]]:
    """Clients of a run that is live, and of the same one from its file."""
    service.recorder.capacity = request.param
    with client_of(service) as live:
        for _ in range(40):  # the live feed is watched from the beginning on
            run_random_steps(service, 5)
            live.get("/history/range")
        with client_of(open_replay(save(live, tmp_path / "run.jsonl.gz"))) as replay:
            yield live, replay


def test_frames_of_a_replay_are_those_of_the_live_run_byte_for_byte(both: tuple[TestClient, TestClient]) -> None:
    known, again = (http.get("/history/range").json() for http in both)
    assert known.pop("instance") != again.pop("instance")
    assert known == again
    assert known["last"] - known["first"] > 50
    for step in range(known["first"], known["last"] + 1):
        ours, theirs = (bytearray(http.get("/history/frame", params={"step": step}).content) for http in both)
        ours[INSTANCE_BYTES] = theirs[INSTANCE_BYTES] = bytes(4)
        assert ours == theirs
        details = [http.get("/history/step", params={"step": step}).json() for http in both]
        assert details[0] == details[1]


def test_rows_of_a_replay_are_those_of_the_live_run(both: tuple[TestClient, TestClient]) -> None:
    ours, theirs = (read_chunk(http.get("/history/steps").content) for http in both)
    assert ours.rows == theirs.rows
    assert ours.entries == theirs.entries
    assert ours.requests == theirs.requests


def test_replay_that_is_saved_again_is_the_same_run(both: tuple[TestClient, TestClient], tmp_path: Path) -> None:
    once, twice = (gzip.decompress(http.get("/history/save").content).splitlines() for http in both)
    assert once[1:] == twice[1:]


def test_live_feed_of_a_replay_shows_the_last_step_and_says_what_it_is(service: FakeService, tmp_path: Path) -> None:
    run_random_steps(service, 150)
    with client_of(service) as live:
        path = save(live, tmp_path / "run.jsonl.gz")
        expected = decode(live.get("/history/frame", params={"step": 149}).content)
    with client_of(open_replay(path)) as replay:
        client = LiveClient()
        client.apply(replay.get("/live/frame").content)
        assert replay.get("/health").json()["state"] == "ready"
    assert client.states() == states_in(service.pool_snapshot())
    assert client.frame is not None
    body = client.frame.body
    assert body["figures"] == expected.body["figures"] | {"first_step": 0}
    told = body["service"]
    assert (told["state"], told["model_name"], told["epoch"]) == ("ready", "simulated", 1)
    assert told["notices"][0] == "Replay of run.jsonl.gz: nothing is computed"


def test_replay_refuses_to_compute(service: FakeService, tmp_path: Path) -> None:
    run_random_steps(service, 30)
    with client_of(service) as live:
        replay = open_replay(save(live, tmp_path / "run.jsonl.gz"))
    assert replay.is_replay
    assert replay.status.state is ServiceState.READY
    for ask in (
        lambda: replay.submit("hello"),
        lambda: replay.stream("hello"),
        lambda: replay.preempt("r1"),
        lambda: replay.set_limits(max_num_seqs=1),
        lambda: replay.reload(replay.config),
        lambda: replay.tokenizer,
    ):
        with pytest.raises(EngineStoppedError, match=r"Replay of run.jsonl.gz: nothing is computed\. Start the"):
            ask()


def test_replay_knows_its_blocks_after_the_last_step(service: FakeService, tmp_path: Path) -> None:
    service.recorder.capacity = 90
    with client_of(service) as live:
        for _ in range(40):
            run_random_steps(service, 5)
            live.get("/history/range")
        replay = open_replay(save(live, tmp_path / "run.jsonl.gz"))
    assert states_in(replay.pool_snapshot()) == states_in(service.pool_snapshot())
    details = replay.block_details(0)
    assert (details.status, details.request_ids) == (service.engine.state(0).status, tuple(service.engine.owners[0]))
    assert details.tokens == ()
    with pytest.raises(IndexError, match="block_id=24 does not exist: blocks are 0 to 23"):
        replay.block_details(24)


def test_redacted_file_names_nobody(service: FakeService, tmp_path: Path) -> None:
    run_random_steps(service, 60)
    with client_of(service) as live:
        path = save(live, tmp_path / "run.jsonl.gz", redacted=1)
    header, _, *steps = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    assert header["is_redacted"]
    assert {request["request_id"][0] for step in steps for request in step["requests"]} == {"q"}
    assert client_of(open_replay(path)).get("/history/range").json()["last"] == 59


@pytest.mark.parametrize("path", ["save", "trace"])
def test_nothing_can_be_saved_before_the_first_step(service: FakeService, path: str) -> None:
    response = client_of(service).get(f"/history/{path}")
    assert (response.status_code, response.json()) == (404, {"error": "no step is recorded yet: send a request first"})


def test_trace_is_sent_as_a_file_of_json(service: FakeService) -> None:
    run_random_steps(service, 60)
    response = client_of(service).get("/history/trace")
    assert response.headers["content-type"] == "application/json"
    assert re.search(r'filename="workbench-trace-\d{4}-\d\d-\d\d\.json"', response.headers["content-disposition"])
    events = response.json()["traceEvents"]
    assert sum(event["name"].startswith("step ") for event in events) == 60
    assert events[0]["args"]["name"] == "engine · simulated"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_layout": "round"}, "damaged at line 1: kv_layout='round'"),
        ({"block_size": 12}, "damaged at line 1: kv_layout='paged', block_size=12"),
        ({"status": {"state": "asleep"}}, "damaged at line 1: Invalid enum value 'asleep'"),
    ],
)
def test_file_of_an_engine_that_cannot_be_is_refused(
    service: FakeService, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    run_random_steps(service, 5)
    with client_of(service) as live:
        path = save(live, tmp_path / "run.jsonl.gz")
    first, *others = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    header = json.dumps(json.loads(first) | change).encode() + b"\n"
    path.write_bytes(gzip.compress(b"".join([header, *others])))
    with pytest.raises(ReplayFileError, match=message):
        open_replay(path)
