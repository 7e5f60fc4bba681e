"""Answers under way are stopped on request, and where nobody listens any more."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from workbench.ui import active_turns
from workbench.ui.active_turns import ActiveTurns
from workbench.ui.listeners import Listeners, ListenersCounted

MOMENT_S = 0.01


class Door:
    """Notes what is aborted."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_turns, "PATIENCE_S", 3 * MOMENT_S)
    monkeypatch.setattr(active_turns, "LOOK_S", MOMENT_S)


def turns_of(door: Door, listeners: Listeners | None) -> ActiveTurns:
    return ActiveTurns(door, listeners)  # type: ignore[arg-type]


async def started(turns: ActiveTurns, session: str, request_id: str | None) -> active_turns.ActiveTurn:
    turn = turns.start(session)
    turn.request_id = request_id
    return turn


def test_session_that_nobody_ever_listens_to_is_stopped():
    async def run() -> None:
        door = Door()
        turns = turns_of(door, Listeners())
        accepted, waiting = await started(turns, "tab", "r1"), await started(turns, "tab", None)
        await asyncio.sleep(10 * MOMENT_S)
        assert door.aborted == ["r1"]
        assert accepted.is_stopped
        assert waiting.is_stopped

    asyncio.run(run())


def test_session_is_stopped_after_its_stream_has_been_closed_and_no_other_one():
    async def run() -> None:
        door, listeners = Door(), Listeners()
        turns = turns_of(door, listeners)
        with listeners.listening("other"), listeners.listening("other"):
            with listeners.listening("tab"):
                await started(turns, "tab", "r1")
                await started(turns, "other", "r2")
                await asyncio.sleep(10 * MOMENT_S)
                assert door.aborted == []
            with listeners.listening("other"):
                pass
            await asyncio.sleep(10 * MOMENT_S)
        assert door.aborted == ["r1"]

    asyncio.run(run())


def test_session_without_answers_is_no_longer_watched():
    async def run() -> None:
        door, listeners = Door(), Listeners()
        turns = turns_of(door, listeners)
        turns.end("tab", await started(turns, "tab", "r1"))
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1  # this one
        assert not turns.is_busy("tab")

    asyncio.run(run())


def test_everybody_counts_as_listening_where_that_is_not_known():
    async def run() -> None:
        door = Door()
        turns = turns_of(door, None)
        await started(turns, "tab", "r1")
        await asyncio.sleep(10 * MOMENT_S)
        assert door.aborted == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "path", "query", "listens"),
    [
        ("http", "/gradio_api/queue/data", b"session_hash=tab", True),
        ("http", "/gradio_api/queue/join", b"session_hash=tab", False),
        ("http", "/gradio_api/queue/data", b"", False),
        ("websocket", "/gradio_api/queue/data", b"session_hash=tab", False),
    ],
)
def test_stream_counts_while_it_is_served_even_if_it_fails(kind: str, path: str, query: bytes, listens: bool):
    listeners = Listeners()
    seen: list[bool] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(listeners.are_there("tab"))
        raise ConnectionError

    async def run() -> None:
        with pytest.raises(ConnectionError):
            await ListenersCounted(page, listeners)(
                {"type": kind, "path": path, "query_string": query},
                None,  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
            )

    asyncio.run(run())
    assert seen == [listens]
    assert not listeners.are_there("tab")
