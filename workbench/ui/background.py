"""Background load: real requests of varied length that share the pool with the visitor's own.

They go through the same door as every other request, run to their end, and are dropped unread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Final

from workbench.engine.messages import Event, RequestFinished
from workbench.engine.service import EngineService
from workbench.errors import QueueFullError
from workbench.sampling_params import SamplingParams

REQUESTS_PER_CLICK: Final = 8
MAX_UNFINISHED: Final = 64
"""Most background requests that are queued or running at a time."""

PROMPT_TOKENS: Final = (24, 120, 60, 180, 40, 96, 144, 72)
OUTPUT_TOKENS: Final = (160, 96, 200, 128, 240, 112, 80, 176)
TEMPERATURE: Final = 1.0
FIRST_SEED: Final = 1000


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
    """Submits background requests and counts those that have not ended. Safe to use from any thread."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._unfinished = 0
        self._next_index = 0

    @property
    def num_unfinished(self) -> int:
        """Background requests that are queued or running."""
        return self._unfinished

    def add(self, count: int = REQUESTS_PER_CLICK) -> tuple[str, ...]:
        """Submit `count` requests and return their ids.

        Raises:
            QueueFullError: more than `MAX_UNFINISHED` would be queued or running; none was added.
            EngineStoppedError: the engine is not running.
            RequestRejectedError: the engine refused one; those before it stay.
        """
        with self._lock:
            if self._unfinished + count > MAX_UNFINISHED:
                raise QueueFullError(
                    f"{self._unfinished} background requests are still queued or running and at most "
                    f"{MAX_UNFINISHED} may be: wait until some have ended"
                )
            self._unfinished += count
            first = self._next_index
            self._next_index += count
        submitted: list[str] = []
        try:
            for index in range(first, first + count):
                submitted.append(self._submit(index))  # noqa: PERF401  (a failure must keep those before it)
        finally:
            with self._lock:
                self._unfinished -= count - len(submitted)
        return tuple(submitted)

    def _submit(self, index: int) -> str:
        status = self._service.status
        shape = shape_of(index, min(status.max_model_len, status.num_blocks * status.block_size))
        text = topics[sorted(topics)[index % len(topics)]]
        # A token is at least one character, so this many characters suffice and encoding stays short.
        prompt = self._service.tokenizer.encode(text[: 12 * shape.prompt_tokens])[: shape.prompt_tokens]
        params = SamplingParams(temperature=TEMPERATURE, seed=shape.seed, max_tokens=shape.output_tokens)
        return self._service.submit(prompt, params, self._on_event)

    def _on_event(self, event: Event) -> None:
        """Count an end. Runs in the engine thread."""
        if isinstance(event, RequestFinished):
            with self._lock:
                self._unfinished -= 1
