"""Which browser tabs hold the stream open that brings them their updates.

Gradio ends an answer when that stream breaks. A tab that is left before it has opened the stream breaks
nothing, and Gradio would go on computing for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

_STREAM: Final = "/queue/data"
"""Where Gradio's page listens, behind a prefix of Gradio's."""


class Listeners:
    """Counts the open streams of each session. Used from the event loop only."""

    def __init__(self) -> None:
        """Nobody listens."""
        self._num_streams: Counter[str] = Counter()

    def are_there(self, session: str) -> bool:
        """Whether a session has a stream open."""
        return session in self._num_streams

    @contextmanager
    def listening(self, session: str) -> Iterator[None]:
        """Count a stream for as long as it is open."""
        self._num_streams[session] += 1
        try:
            yield
        finally:
            self._num_streams[session] -= 1
            if not self._num_streams[session]:
                del self._num_streams[session]


class ListenersCounted:
    """Middleware in front of Gradio: notes when a session's stream opens and closes."""

    def __init__(self, app: ASGIApp, listeners: Listeners) -> None:
        """Wrap the application that serves the page."""
        self._app, self._listeners = app, listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; nothing is changed."""
        session = _listening_session(scope)
        if session is None:
            await self._app(scope, receive, send)
            return
        with self._listeners.listening(session):
            await self._app(scope, receive, send)


def _listening_session(scope: Scope) -> str | None:
    if scope["type"] != "http" or not scope["path"].endswith(_STREAM):
        return None
    return parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [None])[0]
