"""The live feed over HTTP: WebSocket `/live`, its polling fallback `/live/frame`, and `/health`.

A client says which state it has (`instance`, `epoch`, `version` of the last frame) and gets what it
misses: a delta, or a full frame when it has none, has one of another engine, or is ahead of us. A
socket sends at most ten frames a second and waits for each to leave before it builds the next, so
that a slow client gets fewer and larger frames, never a queue of them.
"""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import APIRouter, HTTPException, Request, Response, WebSocket, WebSocketDisconnect

from workbench.server.feed import EngineDoor, LiveFeed
from workbench.server.health import build_health_router
from workbench.server.history import build_history_router
from workbench.server.origin import is_same_host
from workbench.server.state_frame import Words

MIN_INTERVAL_S = 0.1
"""Time between two frames of a socket: 10 Hz."""
HEARTBEAT_S = 1.0
"""A frame is sent this often even when nothing changed, so that silence means a lost feed."""
POLICY_VIOLATION = 1008


def build_live_router(
    service: EngineDoor,
    words: Words,
    *,
    feed: LiveFeed | None = None,
    interval_s: float = MIN_INTERVAL_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> APIRouter:
    """Return a router with `/live`, `/live/frame`, `/history/…` and `/health`. Needs `websockets` under uvicorn.

    Args:
        service: the engine door.
        words: turns decisions into sentences, as `workbench.ui.explain` does.
        feed: what to serve, where it is not the plain feed of the service.
        interval_s: shortest time between two frames of one socket, in seconds.
        heartbeat_s: longest time between two frames of one socket, in seconds.
    """
    router = APIRouter()
    feed = LiveFeed(service, words) if feed is None else feed

    @router.get("/live/frame")
    async def poll(request: Request, instance: int = 0, epoch: int = 0, version: int = 0) -> Response:
        """One frame for a client that cannot hold a socket."""
        if not is_same_host(request.headers):
            raise HTTPException(403, "the live feed answers pages of its own host only")
        await feed.catch_up()
        base = version if feed.is_known(instance, epoch, version) else 0
        return Response(feed.frame(base), media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    @router.websocket("/live")
    async def live(socket: WebSocket, instance: int = 0, epoch: int = 0, version: int = 0) -> None:
        """Frames until the client leaves."""
        if not is_same_host(socket.headers):
            await socket.close(POLICY_VIOLATION, "the live feed answers pages of its own host only")
            return
        await socket.accept()
        feed.drain_slice()
        base = version if feed.is_known(instance, epoch, version) else 0
        gone = asyncio.create_task(_until_gone(socket))
        try:
            await _send_frames(socket, feed, base, gone, interval_s, heartbeat_s)
        finally:
            gone.cancel()

    router.include_router(build_history_router(feed, words))
    router.include_router(build_health_router(service))
    return router


async def _send_frames(
    socket: WebSocket, feed: LiveFeed, base: int, gone: asyncio.Task[None], interval_s: float, heartbeat_s: float
) -> None:
    """A client that comes after a long time without any waits for the present; meanwhile heartbeats show the past."""
    loop = asyncio.get_running_loop()
    epoch, is_first = feed.state.epoch, True
    last_sent_s = loop.time()
    while not gone.done():
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
