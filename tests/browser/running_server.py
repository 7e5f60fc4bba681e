"""A web application on a port of its own, for as long as a test needs it."""

from __future__ import annotations

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

DEADLINE_MS = 20_000


class RunningServer:
    """An ASGI app under uvicorn in a thread, on a port of its own."""

    def __init__(self, app: ASGIApp, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()
        assert not self._thread.is_alive()
