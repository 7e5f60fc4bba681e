"""The token: whoever is not on this machine has to bring it, for the page and for everything behind it.

A browser opens `/?token=…` once and keeps a cookie. Programs send `Authorization: Bearer …`. The
cookie holds a digest, so that the token itself is not kept in browsers.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from workbench.errors import ConfigurationError
from workbench.server.listener import is_loopback

MIN_TOKEN_LENGTH: Final = 8
POLICY_VIOLATION: Final = 1008
PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Token needed</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 40em; margin: 4em auto; padding: 0 1em">
<h1>This workbench needs its token</h1>
<p>Open <code>/?token=…</code> with the token that the workbench was started with
(<code>--token</code> or <code>WORKBENCH_TOKEN</code>). The browser then remembers it.</p>
<p>Programs send it as <code>Authorization: Bearer …</code>.</p>
"""


def check_token(listener: socket.socket, token: str | None) -> None:
    """Refuse to serve other machines without a token, or anyone with one that is guessed at once.

    Raises:
        ConfigurationError: the token is missing or too short.
    """
    if token is None and not is_loopback(listener):
        raise ConfigurationError(
            f"host {listener.getsockname()[0]} can be reached from other machines and no token is given: "
            "set one with --token TOKEN or WORKBENCH_TOKEN, or listen on 127.0.0.1"
        )
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise ConfigurationError(
            f"the token has {len(token)} characters, at least {MIN_TOKEN_LENGTH} are needed: "
            'take what python -c "import secrets; print(secrets.token_urlsafe())" prints'
        )


class TokenGate:
    """ASGI middleware in front of everything."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Let pass to `app` what brings `token`."""
        self._app = app
        self._token = token.encode()
        self._digest = hashlib.sha256(self._token).hexdigest()
        # Cookies do not know ports: two workbenches on one host must not overwrite each other's.
        self._cookie = f"workbench_{hashlib.sha256(self._digest.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, answer 401, or trade a token in the address for a cookie."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        is_in_address = any(self._is_token(value.encode()) for value in given)
        if scope["type"] == "http" and scope["method"] == "GET" and is_in_address:
            await self._trade(scope, query)(scope, receive, send)
        elif is_in_address or self._has_credentials(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "the token is missing"})
        else:
            headers = {"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"}
            await HTMLResponse(PAGE, 401, headers)(scope, receive, send)

    def _trade(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """The same address without the token, so that it stays in no history, and a cookie."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        target = "./" + quote(scope["path"].rpartition("/")[2]) + (f"?{rest}" if rest else "")
        response = RedirectResponse(target, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        response.set_cookie(
            self._cookie, self._digest, httponly=True, samesite="lax", secure=scope.get("scheme") == "https"
        )
        return response

    def _has_credentials(self, headers: Headers) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(value.strip().encode("latin-1")):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._digest.encode())

    def _is_token(self, value: bytes) -> bool:
        return hmac.compare_digest(value, self._token)
