"""A client that does not read, over real sockets: frames wait for it, and do not pile up in the server."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from fastapi import FastAPI

from tests.server.fake_service import FakeService
from tests.server.live_client import LiveClient, states_in
from tests.server.test_history import run_random_steps
from workbench.server.feed import LiveFeed
from workbench.server.live import build_live_router
from workbench.ui import explain

SOON_S = 20.0
BUFFER_BYTES = 4096
"""Asked of the kernel, which takes about twice as much and no less than it likes."""


class CountingFeed(LiveFeed):
    """Notes the size of each frame that is built."""

    def __init__(self, service: FakeService) -> None:
        super().__init__(service, explain)
        self.sizes: list[int] = []

    def frame(self, base_version: int) -> bytes:
        data = super().frame(base_version)
        self.sizes.append(len(data))
        return data


@pytest.fixture
def service() -> FakeService:
    return FakeService(num_blocks=2048, seed=5)


@pytest.fixture
def feed(service: FakeService) -> CountingFeed:
    return CountingFeed(service)


@pytest.fixture
def port(service: FakeService, feed: CountingFeed) -> Iterator[int]:
    app = FastAPI()
    app.include_router(build_live_router(service, explain, feed=feed, interval_s=0.001, heartbeat_s=0.002))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield int(listener.getsockname()[1])
        server.should_exit = True
        thread.join(SOON_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_feed(port: int) -> socket.socket:
    """A socket on which the server has been asked for frames, and from which nothing is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    client.settimeout(SOON_S)
    client.connect(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["GET /live HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""]
    client.sendall("\r\n".join(lines).encode())
    return client


def read_exactly(client: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = client.recv(num_bytes - len(data))
        assert part, "the server hung up"
        data += part
    return bytes(data)


def read_message(client: socket.socket) -> bytes:
    """One unfragmented binary message of a server."""
    first, length = read_exactly(client, 2)
    if length == 126:
        length = int.from_bytes(read_exactly(client, 2), "big")
    elif length == 127:
        length = int.from_bytes(read_exactly(client, 8), "big")
    data = read_exactly(client, length)
    return data if first == 0x82 else read_message(client)


def run_until_no_frame_is_built(service: FakeService, feed: CountingFeed) -> int:
    """Run steps until, for 20 of them, the server has built no frame; return how many it had built."""
    before, num_idle, deadline = -1, 0, time.monotonic() + SOON_S
    while num_idle < 20:
        assert time.monotonic() < deadline, "frames go on piling up"
        run_random_steps(service, 1)
        time.sleep(0.01)
        num_idle = num_idle + 1 if len(feed.sizes) == before else 0
        before = len(feed.sizes)
    return before


def test_client_that_does_not_read_gets_fewer_frames_and_all_of_the_state(
    service: FakeService, feed: CountingFeed, port: int
) -> None:
    with contextlib.closing(open_feed(port)) as slow:
        wait_until(lambda: len(feed.sizes) >= 2)

        stuck = run_until_no_frame_is_built(service, feed)
        assert sum(feed.sizes) < 3_000_000
        run_random_steps(service, 200)
        time.sleep(0.1)
        assert len(feed.sizes) == stuck

        client, header = LiveClient(), b""
        while not header.endswith(b"\r\n\r\n"):
            header += read_exactly(slow, 1)
        while client.frame is None or client.frame.step_id < service.engine.step_id:
            client.apply(read_message(slow))
        assert client.states() == states_in(service.pool_snapshot())
