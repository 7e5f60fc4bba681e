"""The socket that the workbench listens on, and a server that stops without leaving anyone hanging."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from workbench.errors import ConfigurationError

GRACE_S: Final = 1
"""Seconds that connections get when the server stops."""
MAX_PORT: Final = 65535


def listen(host: str, port: str) -> socket.socket:
    """Return a bound socket, so that a taken port is known before anything is loaded.

    Raises:
        ConfigurationError: the port is not a number, is taken, or the address is not ours.
    """
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigurationError(f"port={port!r} is not a port: give a number from 0 to {MAX_PORT}, 0 for any free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=128)
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        other = int(port) + 1 if int(port) < MAX_PORT else int(port) - 1
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {cause}. "
            f"Stop what uses it, or give another one with PORT={other} or --port {other}"
        ) from error


def address_of(listener: socket.socket) -> str:
    """Return the address to open in a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Whether a log record of the stopping server is more than "a connection was still open"."""
    is_cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not is_cancelled and "timeout graceful shutdown exceeded" not in record.getMessage()


class WorkbenchServer(uvicorn.Server):
    """uvicorn that stops the engine first: open answers then end by themselves, and their connections with them."""

    def __init__(self, app: ASGIApp, stop_engine: Callable[[], None]) -> None:
        """Serve `app`; `stop_engine` ends every request and may block for some seconds."""
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_S))
        self._stop_engine = stop_engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the engine, then the connections. Those that stay open are cut, which is no error."""
        logging.getLogger("uvicorn.error").addFilter(_is_worth_telling)
        await asyncio.to_thread(self._stop_engine)
        await super().shutdown(sockets)
