"""Background load: real requests of varied length that share the pool with the visitor's own.

They go through the same door as every other request, run to their end, and are dropped unread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Final

from workbench.engine.messages import Event, RequestFinished
from workbench.engine.service import EngineService
from workbench.errors import QueueFullError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.ui.turns import context_limit

REQUESTS_PER_CLICK: Final = 8
MAX_UNFINISHED: Final = 64
"""Most background requests that are queued or running at a time."""

PROMPT_TOKENS: Final = (24, 120, 60, 180, 40, 96, 144, 72)
OUTPUT_TOKENS: Final = (160, 96, 200, 128, 240, 112, 80, 176)
TEMPERATURE: Final = 1.0
FIRST_SEED: Final = 1000

Listener = Callable[[Event], None]


@dataclass(frozen=True)
class BackgroundShape:
    """Size and seed of one background request."""

    prompt_tokens: int
    output_tokens: int
    seed: int


def shape_of(index: int, max_context: int) -> BackgroundShape:
    """Return the `index`-th request's shape: always the same, and never more than a third of `max_context`."""
    limit = max(2, max_context // 3)
    prompt_tokens = min(PROMPT_TOKENS[index % len(PROMPT_TOKENS)], limit)
    output_tokens = min(OUTPUT_TOKENS[index % len(OUTPUT_TOKENS)], limit)
    return BackgroundShape(prompt_tokens, output_tokens, FIRST_SEED + index)


class BackgroundLoad:
    """Submits background requests and knows those that have not ended. Safe to use from any thread."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._reserved = 0
        """Places of requests that are about to be submitted."""
        self._open: dict[str, None] = {}
        """Ids of those that have not ended, the oldest first."""
        self._next_index = 0

    @property
    def num_unfinished(self) -> int:
        """Background requests that are queued or running, or about to be."""
        return self._reserved + len(self._open)

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of background requests that have not ended, the oldest first."""
        with self._lock:
            return tuple(self._open)

    def add(self, count: int = REQUESTS_PER_CLICK, speculation: SpeculationParams = NO_SPECULATION) -> tuple[str, ...]:
        """Submit `count` requests and return their ids.

        Raises:
            QueueFullError: more than `MAX_UNFINISHED` would be queued or running; none was added.
            EngineStoppedError: the engine is not running.
            RequestRejectedError: the engine refused one; those before it stay.
        """
        self.reserve(count)
        with self._lock:
            first = self._next_index
            self._next_index += count
        submitted: list[str] = []
        try:
            for index in range(first, first + count):
                prompt, params = self._request(index)
                submitted.append(self.submit(prompt, params, speculation=speculation))
        finally:
            self.release(count - len(submitted))
        return tuple(submitted)

    # ----------------------------------------------------- for others that load the engine like this

    def reserve(self, count: int) -> None:
        """Take `count` places; each is used up by `submit`, or given back by `release`.

        Raises:
            QueueFullError: there are not so many.
        """
        with self._lock:
            if self.num_unfinished + count > MAX_UNFINISHED:
                raise QueueFullError(
                    f"{self.num_unfinished} background requests are still queued or running and at most "
                    f"{MAX_UNFINISHED} may be: wait until some have ended"
                )
            self._reserved += count

    def release(self, count: int) -> None:
        """Give back places that were not used."""
        with self._lock:
            self._reserved -= count

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        on_event: Listener | None = None,
        speculation: SpeculationParams = NO_SPECULATION,
    ) -> str:
        """Submit a request on a place that was reserved, and return its id. Errors as `EngineService.submit`.

        `on_event` is called in the engine thread with every event, after it was counted.
        """

        def listen(event: Event) -> None:
            if isinstance(event, RequestFinished):
                with self._lock:
                    del self._open[event.request_id]
            if on_event is not None:
                on_event(event)

        with self._lock:  # so that its end cannot be heard of before its name is known
            request_id = self._service.submit(prompt, params, listen, speculation=speculation)
            self._open[request_id] = None
            self._reserved -= 1
        return request_id

    def _request(self, index: int) -> tuple[Sequence[int], SamplingParams]:
        shape = shape_of(index, context_limit(self._service))
        text = topics[sorted(topics)[index % len(topics)]]
        # A token is at least one character, so this many characters suffice and encoding stays short.
        prompt = self._service.tokenizer.encode(text[: 12 * shape.prompt_tokens])[: shape.prompt_tokens]
        return prompt, SamplingParams(temperature=TEMPERATURE, seed=shape.seed, max_tokens=shape.output_tokens)
