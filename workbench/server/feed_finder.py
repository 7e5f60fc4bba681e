"""Which feed a request is for: the engine's, or that of a saved run which is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import Depends, HTTPException, Request

from workbench.server.feed import LiveFeed

FindFeed = Callable[[Mapping[str, Any]], LiveFeed]
"""Takes the parameters in a route's path. Raises `FeedGoneError`."""


class FeedGoneError(LookupError):
    """There is no such feed, or not any more. The message says what to do."""


def feed_dependency(find: FindFeed) -> Any:
    """Return the default value of an endpoint's parameter for the feed. An unknown one is answered with HTTP 404."""

    async def feed_of(request: Request) -> LiveFeed:
        try:
            return find(request.path_params)
        except FeedGoneError as error:
            raise HTTPException(404, str(error), {"Cache-Control": "no-store"}) from error

    return Depends(feed_of)
