"""Who may ask: pages of the host that is asked, and programs that are no page."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers


def is_same_host(headers: Headers) -> bool:
    """Whether a request comes from a page of the host it is sent to, or from no page at all."""
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
