"""A burst of requests that begin alike: one computes the common beginning, the others find it in the cache.

The others are submitted when the first has its first token. Blocks can be shared only once they are
computed: requests that start in the same step all compute for themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Final

from workbench.engine.messages import Event, RequestFinished
from workbench.engine.service import EngineService
from workbench.errors import WorkbenchError
from workbench.sampling_params import SamplingParams
from workbench.speculation_params import NO_SPECULATION, SpeculationParams
from workbench.ui.background import TEMPERATURE, BackgroundLoad
from workbench.ui.turns import context_limit

logger = logging.getLogger(__name__)

REQUESTS: Final = 6
PREFIX_TOPIC: Final = "compound"
PREFIX_TOKENS: Final = 320
OWN_TOKENS: Final = 12
"""Tokens of each prompt after the common ones."""
OUTPUT_TOKENS: Final = 120
FIRST_SEED: Final = 2000


@dataclass(frozen=True)
class PrefixBurst:
    """Submits bursts, on places of the background load."""

    service: EngineService
    load: BackgroundLoad
    speculation: SpeculationParams = NO_SPECULATION

    def start(self) -> str:
        """Submit the first request of a burst and return its id; the others follow by themselves.

        Raises:
            QueueFullError: there are not enough places for all of them.
            EngineStoppedError: the engine is not running.
            RequestRejectedError: the engine refused it.
        """
        self.load.reserve(REQUESTS)
        try:
            prompts = self._prompts()
            followers = _Followers(self.load, prompts[1:], self._params, self.speculation)
            return self.load.submit(prompts[0], self._params(0), followers, self.speculation)
        except BaseException:
            self.load.release(REQUESTS)
            raise

    def _prompts(self) -> list[list[int]]:
        """At most half of the context: a common beginning, then a few tokens of each one's own."""
        encode = self.service.tokenizer.encode
        length = max(1, min(PREFIX_TOKENS, context_limit(self.service) // 2 - OWN_TOKENS))
        prefix = encode(topics[PREFIX_TOPIC][: 12 * length])[:length]
        names = sorted(topics)[:REQUESTS]
        return [[*prefix, *encode(topics[name][: 12 * OWN_TOKENS])[:OWN_TOKENS]] for name in names]

    def _params(self, index: int) -> SamplingParams:
        most = max(1, min(OUTPUT_TOKENS, context_limit(self.service) // 4))
        return SamplingParams(temperature=TEMPERATURE, seed=FIRST_SEED + index, max_tokens=most)


class _Followers:
    """Listens to the first request of a burst, in the engine thread, and submits the others once it has a token."""

    def __init__(
        self,
        load: BackgroundLoad,
        prompts: list[list[int]],
        params: Callable[[int], SamplingParams],
        speculation: SpeculationParams,
    ) -> None:
        self._load, self._prompts, self._speculation = load, prompts, speculation
        self._params = [params(index) for index in range(1, len(prompts) + 1)]

    def __call__(self, event: Event) -> None:
        prompts, self._prompts = self._prompts, []
        if isinstance(event, RequestFinished):
            self._load.release(len(prompts))  # it ended without a token: nothing to share
            return
        for index, prompt in enumerate(prompts):
            try:
                self._load.submit(prompt, self._params[index], speculation=self._speculation)
            except WorkbenchError as error:  # the queue is full, or the engine stops
                logger.warning("a burst ended after %d of %d requests: %s", index + 1, len(prompts) + 1, error)
                self._load.release(len(prompts) - index)
                return
