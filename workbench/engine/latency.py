"""How long one request took: the field's usual latencies, from four kinds of moments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from workbench.engine.request import Request
from workbench.telemetry.records import RequestMetrics


class RequestLatency:
    """Collects the moments of one request, in seconds of one monotonic clock."""

    def __init__(self, arrival_time_s: float) -> None:
        """Begin at the arrival of the request."""
        self._arrival_s = arrival_time_s
        self._first_scheduled_s: float | None = None
        self._token_times_s: list[float] = []
        self._num_output_tokens = 0

    def on_scheduled(self, now_s: float) -> None:
        """The request takes part in a step; only the first time counts."""
        if self._first_scheduled_s is None:
            self._first_scheduled_s = now_s

    def on_tokens(self, now_s: float, count: int) -> None:
        """`count` new tokens were delivered together."""
        self._token_times_s.append(now_s)
        self._num_output_tokens += count

    def finish(self, now_s: float, request: Request) -> RequestMetrics:
        """Return the latencies of the request, which ends now, beside its own counts."""
        times = self._token_times_s
        gaps = sorted(after - before for before, after in pairwise(times))
        first, queued = (times[0] if times else None), self._first_scheduled_s
        later = self._num_output_tokens - 1
        return RequestMetrics(
            arrival_time_s=self._arrival_s,
            queue_time_s=None if queued is None else queued - self._arrival_s,
            ttft_s=None if first is None else first - self._arrival_s,
            itl_p50_s=percentile(gaps, 0.50),
            itl_p95_s=percentile(gaps, 0.95),
            tpot_s=(times[-1] - times[0]) / later if later > 0 else None,
            e2e_s=now_s - self._arrival_s,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=request.num_preemptions,
            num_cached_tokens=request.num_cached_prompt_tokens,
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
        )


def percentile(ordered: Sequence[float], fraction: float) -> float | None:
    """Return the nearest-rank percentile of sorted values, None when there are none."""
    if not ordered:
        return None
    rank = max(1, -(-int(fraction * 10_000) * len(ordered) // 10_000))
    return ordered[rank - 1]
