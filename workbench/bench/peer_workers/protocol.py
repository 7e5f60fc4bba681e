"""What a peer's worker and the benchmark say to each other: one JSON object a line.

The worker says `{"ready": {...}}` once its model is loaded, with what describes it. Then, for each
`{"prompts": [[ids]], "max_tokens": [n]}` it runs all prompts, submitted at once, and answers
`{"deliveries": [[[seconds, tokens], ...], ...]}`: for each prompt, when its tokens came, counted
from the submission. Whatever else a peer prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Deliveries = list[list[tuple[float, int]]]
Run = Callable[[list[list[int]], list[int]], Deliveries]


def serve(load: Callable[[], tuple[Run, dict[str, str]]]) -> None:
    """Load the peer and answer until the input ends. `load` returns how to run it and what describes it."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the peer's own prints must not reach the protocol
    run, description = load()
    print(json.dumps({"ready": description}), file=out, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        deliveries = run(order["prompts"], order["max_tokens"])
        print(json.dumps({"deliveries": deliveries}), file=out, flush=True)


class Stopwatch:
    """Notes when tokens of each prompt come, in seconds after its creation."""

    def __init__(self, num_prompts: int) -> None:
        self._started_s = time.perf_counter()
        self.deliveries: Deliveries = [[] for _ in range(num_prompts)]

    def note(self, index: int, count: int) -> None:
        """`count` tokens of prompt `index` have come now."""
        self.deliveries[index].append((time.perf_counter() - self._started_s, count))
