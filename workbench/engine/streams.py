"""A request's events as an async iterator, for handlers that live in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workbench.engine.messages import Event, RequestFinished


class EventStream:
    """Yields the TokenEvents of one request and, for each of its answers, a RequestFinished; then it ends.

    Leaving it early, by `aclose()` or at the end of `async with`, aborts the request.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[Event], None]], str],
        abort: Callable[[str], None],
        num_answers: int = 1,
    ) -> None:
        """Submit a request from within a running event loop.

        Args:
            submit: queues the request with the listener it is given and returns the request id.
            abort: ends a request by id.
            num_answers: how many answers it has.
        """
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._abort = abort
        self._num_unfinished = num_answers
        self.request_id = submit(self._listen)

    def _listen(self, event: Event) -> None:
        """Hand an event over to the loop; runs in the engine thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        if self._num_unfinished == 0:
            raise StopAsyncIteration
        return self._count(await self._queue.get())

    def _count(self, event: Event) -> Event:
        self._num_unfinished -= isinstance(event, RequestFinished)
        return event

    def drain(self) -> list[Event]:
        """Return the events that have come already, without waiting."""
        events: list[Event] = []
        while not self._queue.empty():
            events.append(self._count(self._queue.get_nowait()))
        return events

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        if self._num_unfinished:
            self._num_unfinished = 0
            self._abort(self.request_id)

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
