"""All routes beside the page: the engine's live feed and history, saved runs that are open, and `/health`."""

from __future__ import annotations

from fastapi import APIRouter

from workbench.server.feed import EngineDoor, LiveFeed
from workbench.server.feed_router import HEARTBEAT_S, MIN_INTERVAL_S, build_feed_router
from workbench.server.health import build_health_router
from workbench.server.saved_runs import build_saved_runs_router
from workbench.server.state_frame import Words


def build_live_router(
    service: EngineDoor,
    words: Words,
    *,
    feed: LiveFeed | None = None,
    interval_s: float = MIN_INTERVAL_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> APIRouter:
    """Return a router with `/live`, `/live/frame`, `/history/…`, `/runs/…` and `/health`.

    Args:
        service: the engine door.
        words: turns decisions into sentences, as `workbench.ui.explain` does.
        feed: what to serve, where it is not the plain feed of the service.
        interval_s: shortest time between two frames of one socket, in seconds.
        heartbeat_s: longest time between two frames of one socket, in seconds.
    """
    engine_feed = LiveFeed(service, words) if feed is None else feed
    router = APIRouter()
    router.include_router(
        build_feed_router(lambda _: engine_feed, words, interval_s=interval_s, heartbeat_s=heartbeat_s)
    )
    router.include_router(build_saved_runs_router(words))
    router.include_router(build_health_router(service))
    return router
