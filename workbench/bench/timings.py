"""From the moments at which tokens arrived to the field's usual figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RequestTimes:
    """When one request's tokens arrived, in seconds after the whole workload was submitted."""

    deliveries: tuple[tuple[float, int], ...]
    """(time, number of tokens that came together), in order."""

    @property
    def num_tokens(self) -> int:
        """All tokens of the request."""
        return sum(count for _, count in self.deliveries)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.deliveries[0][0]

    @property
    def itl_s(self) -> list[float]:
        """Gaps between deliveries."""
        times = [time for time, _ in self.deliveries]
        return [after - before for before, after in itertools.pairwise(times)]

    @property
    def decode_tok_per_s(self) -> float:
        """Tokens after the first delivery, per second from the first delivery to the last."""
        (first_s, first_count), (last_s, _) = self.deliveries[0], self.deliveries[-1]
        return (self.num_tokens - first_count) / (last_s - first_s)


def summarise(requests: Sequence[RequestTimes]) -> dict[str, float]:
    """Return throughput, TTFT and ITL figures of requests that were submitted together.

    A lone request also gets `decode_tok_per_s`, its speed without the prefill.
    """
    duration_s = max(request.deliveries[-1][0] for request in requests)
    num_tokens = sum(request.num_tokens for request in requests)
    ttft_ms = [1000 * request.ttft_s for request in requests]
    itl_ms = [1000 * gap for request in requests for gap in request.itl_s]
    figures: dict[str, float] = {
        "output_tok_per_s": num_tokens / duration_s,
        "ttft_p50_ms": float(np.percentile(ttft_ms, 50)),
        "ttft_p95_ms": float(np.percentile(ttft_ms, 95)),
        "itl_p50_ms": float(np.percentile(itl_ms, 50)),
        "itl_p95_ms": float(np.percentile(itl_ms, 95)),
        "duration_s": duration_s,
        "output_tokens": num_tokens,
    }
    if len(requests) == 1:
        figures["decode_tok_per_s"] = requests[0].decode_tok_per_s
    return figures
