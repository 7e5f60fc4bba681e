"""Saved runs that visitors have opened in the page: each is served under `/runs/ID` as the engine is at the root.

A run is read and folded in a thread of its own before anybody can ask for it, so that neither the
event loop nor the engine waits. Few are kept, and none for long: the file is with the visitor.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Final, cast

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from workbench.errors import ReplayFileError
from workbench.server.feed import LiveFeed
from workbench.server.feed_finder import FeedGoneError
from workbench.server.feed_router import build_feed_router
from workbench.server.origin import is_same_host
from workbench.server.replay import ReplayService
from workbench.server.state_frame import Words
from workbench.telemetry.run_file import read_run_file

MOST_RUNS: Final = 4
IDLE_S: Final = 15 * 60.0
"""Seconds after which a run that nobody asked for is dropped. A page that shows it asks all the time."""
TIDY_EVERY_S: Final = 60.0
MOST_FILE_BYTES: Final = 64 << 20
"""Of an uploaded file; saved_run.js knows it, too."""
MOST_TEXT_BYTES: Final = 512 << 20
"""What a file may decompress to: some 10,000 steps of 120 requests."""
MOST_NAME_LENGTH: Final = 120
IN_MEMORY_BYTES: Final = 1 << 20
"""A larger upload waits on the disk."""
NO_STORE: Final = {"Cache-Control": "no-store"}
UNNAMED: Final = "the file"
GONE: Final = "this run is not open any more: open the file again"


@dataclass
class OpenRun:
    """A run and when it was last asked for."""

    feed: LiveFeed
    used_s: float


class SavedRuns:
    """The runs that are open, the least recently used first. All methods belong to the event loop's thread."""

    def __init__(
        self, words: Words, clock: Callable[[], float] = time.monotonic, most_text_bytes: int = MOST_TEXT_BYTES
    ) -> None:
        """Hold nothing yet.

        Args:
            words: turns decisions into sentences.
            clock: seconds that only grow.
            most_text_bytes: limit on what a file decompresses to.
        """
        self._words = words
        self._clock = clock
        self._most_text_bytes = most_text_bytes
        self._runs: OrderedDict[str, OpenRun] = OrderedDict()
        self._reading = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._runs)

    async def open(self, file: IO[bytes], name: str) -> str:
        """Read a run and return the id that it is open under. One is read at a time: they are large.

        Raises:
            ReplayFileError: see `read_run_file`.
        """
        async with self._reading:
            feed = await asyncio.to_thread(self._read, file, name)
        run_id = secrets.token_urlsafe(16)
        self._runs[run_id] = OpenRun(feed, self._clock())
        while len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)
        if self._timer is None:
            self._tidy()
        return run_id

    def _read(self, file: IO[bytes], name: str) -> LiveFeed:
        run = read_run_file(file, name, self._most_text_bytes)
        feed = ReplayService(name, run, is_alone=False).feed(self._words)
        feed.drain()
        return feed

    def feed(self, run_id: str) -> LiveFeed:
        """Return the feed of an open run. FeedGoneError: it is not open, or not any more."""
        self.drop_idle()
        run = self._runs.get(run_id)
        if run is None:
            raise FeedGoneError(GONE)
        run.used_s = self._clock()
        self._runs.move_to_end(run_id)
        return run.feed

    def close(self, run_id: str) -> None:
        """Let go of a run; it may be gone already."""
        self._runs.pop(run_id, None)

    def drop_idle(self) -> None:
        """Let go of the runs that nobody has asked for in a long time."""
        oldest_s = self._clock() - IDLE_S
        while self._runs and next(iter(self._runs.values())).used_s < oldest_s:
            self._runs.popitem(last=False)

    def _tidy(self) -> None:
        """Give memory back also when nobody asks for any run again."""
        self.drop_idle()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TIDY_EVERY_S, self._tidy) if self._runs else None


def build_saved_runs_router(
    words: Words, runs: SavedRuns | None = None, most_file_bytes: int = MOST_FILE_BYTES
) -> APIRouter:
    """Return a router that opens, serves and closes saved runs.

    ::

        POST /runs?name=NAME   the file as body → its id and facts; 400, 413, 422 with {"detail": …}
        DELETE /runs/ID        closes it
        /runs/ID/live, …       as `feed_router`; 404 and socket code 4404 when it is not open any more

    Args:
        words: turns decisions into sentences.
        runs: those that are open; none by default.
        most_file_bytes: limit on an uploaded file.
    """
    opened = SavedRuns(words) if runs is None else runs
    router = APIRouter(prefix="/runs")

    @router.post("", dependencies=[Depends(_check_origin)])
    async def open_run(request: Request, name: str = "") -> JSONResponse:
        """Open the file that comes as the request's body."""
        name = _clean(name)
        with SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as spool:
            file = cast("IO[bytes]", spool)
            await _receive(request, file, name, most_file_bytes)
            try:
                run_id = await opened.open(file, name)
            except ReplayFileError as error:
                raise HTTPException(422, str(error), NO_STORE) from error
        facts = opened.feed(run_id).saved_run
        return JSONResponse({"id": run_id, **msgspec.to_builtins(facts)}, headers=NO_STORE)

    @router.delete("/{run_id}", dependencies=[Depends(_check_origin)])
    async def close_run(run_id: str) -> Response:
        """Let go of a run."""
        opened.close(run_id)
        return Response(status_code=204, headers=NO_STORE)

    router.include_router(build_feed_router(lambda path: opened.feed(path["run_id"]), words), prefix="/{run_id}")
    return router


def _check_origin(request: Request) -> None:
    if not is_same_host(request.headers):
        raise HTTPException(403, "saved runs are opened by pages of this host only")


def _clean(name: str) -> str:
    """A file's name as messages may show it: without folders and without what cannot be printed."""
    name = name.replace("\\", "/").rpartition("/")[2]
    return "".join(each for each in name if each.isprintable())[:MOST_NAME_LENGTH].strip() or UNNAMED


async def _receive(request: Request, file: IO[bytes], name: str, most_bytes: int) -> None:
    """Write a request's body to `file`. HTTPException: there is none, or too much of it."""
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > most_bytes:
                raise HTTPException(413, _too_large(name, most_bytes), NO_STORE)
            file.write(chunk)
    except ClientDisconnect as error:
        raise HTTPException(400, f"{name} did not come to its end: send it again", NO_STORE) from error
    if num_bytes == 0:
        raise HTTPException(400, f"{name} is empty: give a file that was saved on the Blocks tab", NO_STORE)
    file.seek(0)


def _too_large(name: str, most_bytes: int) -> str:
    return (
        f"{name} has more than {most_bytes >> 20} MiB, which is the most that the page opens: "
        "open it with python app.py --replay FILE, which has no limit"
    )
