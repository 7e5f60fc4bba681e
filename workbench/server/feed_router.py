"""A feed over HTTP: WebSocket `/live`, its polling fallback `/live/frame`, and `/history/…`.

A client says which state it has (`instance`, `epoch`, `version` of the last frame) and gets what it
misses: a delta, or a full frame when it has none, has one of another engine, or is ahead of us. A
socket sends at most ten frames a second and waits for each to leave before it builds the next, so
that a slow client gets fewer and larger frames, never a queue of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response, WebSocket, WebSocketDisconnect

from workbench.server.feed import LiveFeed
from workbench.server.feed_finder import FeedGoneError, FindFeed, feed_dependency
from workbench.server.history import build_history_router
from workbench.server.origin import is_same_host
from workbench.server.state_frame import Words

MIN_INTERVAL_S: Final = 0.1
"""Time between two frames of a socket: 10 Hz."""
HEARTBEAT_S: Final = 1.0
"""A frame is sent this often even when nothing changed, so that silence means a lost feed."""
POLICY_VIOLATION: Final = 1008
FEED_GONE: Final = 4404
"""Closes the socket of a feed that there is no more; feed.js knows it."""


def build_feed_router(
    find: FindFeed, words: Words, *, interval_s: float = MIN_INTERVAL_S, heartbeat_s: float = HEARTBEAT_S
) -> APIRouter:
    """Return a router with `/live`, `/live/frame` and `/history/…`. Needs `websockets` under uvicorn.

    Args:
        find: finds the feed that a request is for.
        words: turns decisions into sentences, as `workbench.ui.explain` does.
        interval_s: shortest time between two frames of one socket, in seconds.
        heartbeat_s: longest time between two frames of one socket, in seconds.
    """
    router = APIRouter()
    feed_of = feed_dependency(find)

    @router.get("/live/frame")
    async def poll(
        request: Request, instance: int = 0, epoch: int = 0, version: int = 0, feed: LiveFeed = feed_of
    ) -> Response:
        """One frame for a client that cannot hold a socket."""
        if not is_same_host(request.headers):
            raise HTTPException(403, "the live feed answers pages of its own host only")
        await feed.catch_up()
        base = version if feed.is_known(instance, epoch, version) else 0
        return Response(feed.frame(base), media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    @router.websocket("/live")
    async def live(socket: WebSocket, instance: int = 0, epoch: int = 0, version: int = 0) -> None:
        """Frames until the client leaves, or until the feed is gone."""
        if not is_same_host(socket.headers):
            await socket.close(POLICY_VIOLATION, "the live feed answers pages of its own host only")
            return
        await socket.accept()
        gone = asyncio.create_task(_until_gone(socket))
        try:
            feed = find(socket.path_params)
            feed.drain_slice()
            base = version if feed.is_known(instance, epoch, version) else 0
            await send_frames(socket, lambda: find(socket.path_params), base, gone, interval_s, heartbeat_s)
        except FeedGoneError as error:
            await socket.close(FEED_GONE, str(error))
        finally:
            gone.cancel()

    router.include_router(build_history_router(find, words))
    return router


async def send_frames(
    socket: WebSocket,
    find: Callable[[], LiveFeed],
    base: int,
    gone: asyncio.Task[None],
    interval_s: float,
    heartbeat_s: float,
) -> None:
    """Send frames until `gone`. Raises FeedGoneError: `find` does not find the feed any more.

    A client that comes after a long time without any waits for the present; meanwhile heartbeats show the past.
    """
    loop = asyncio.get_running_loop()
    epoch, is_first = find().state.epoch, True
    last_sent_s = loop.time()
    while not gone.done():
        feed = find()  # each time: a saved run that is looked at stays open
        is_behind = feed.drain_slice()
        if feed.state.epoch != epoch:
            base, epoch = 0, feed.state.epoch
        version, waited_s = feed.state.version, loop.time() - last_sent_s
        is_due = is_first or (version != base and waited_s >= interval_s)
        if (is_due and not is_behind) or waited_s >= heartbeat_s:
            with contextlib.suppress(WebSocketDisconnect):  # `gone` ends the loop
                await socket.send_bytes(feed.frame(base))
            base, is_first, last_sent_s = version, False, loop.time()
        await asyncio.wait({gone}, timeout=0 if is_behind else interval_s)


async def _until_gone(socket: WebSocket) -> None:
    """Return when the client leaves. What it sends is read and dropped."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
