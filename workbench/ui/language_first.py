"""Tells Gradio the visitor's language before it starts, since it asks the browser once and never again."""

from __future__ import annotations

import re
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workbench.ui.texts import COOKIE

_NAMES: Final = {"en": "en", "zh": "zh-CN"}
"""What browsers call the languages."""
_SCRIPT: Final = '<script>Object.defineProperty(navigator, "language", {{ get: () => "{name}" }});</script>'


class LanguageFirst:
    """Middleware: puts the language that the visitor chose into the page's document, where Gradio looks for it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap the application that serves the page."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; only HTML for a visitor who has chosen is changed."""
        name = _NAMES.get(_chosen(scope)) if scope["type"] == "http" else None
        await self._app(scope, receive, send if name is None else _Rewriter(name, send))


def _chosen(scope: Scope) -> str:
    try:
        cookie = SimpleCookie(Headers(scope=scope).get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


class _Rewriter:
    """Sends a response on; an HTML document is held back until it is whole, and changed."""

    def __init__(self, name: str, send: Send) -> None:
        self._name, self._send = name, send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if message.get("more_body", False):
                return
            await self._send_changed(self._start)
            return
        await self._send(message)

    async def _send_changed(self, start: Message) -> None:
        script = _SCRIPT.format(name=self._name).encode()
        body = re.sub(rb"<head>", lambda found: found.group() + script, self._body, count=1)
        body = re.sub(rb'(<html\s+lang=)"en"', rb'\g<1>"' + self._name.encode() + b'"', body, count=1)
        MutableHeaders(raw=start["headers"])["content-length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
