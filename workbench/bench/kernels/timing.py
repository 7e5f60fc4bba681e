"""Times two implementations of one operation in turns: median per call, with the least and the greatest."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Call = Callable[[int], object]
"""Runs the operation once. The number rises with every call, so that each can take another copy of its data."""

MAX_CALLS: Final = 2000
TRIAL_CALLS: Final = 10


@dataclass(frozen=True)
class Case:
    """One operation in one shape, ours and torch's."""

    name: str
    ours: Call
    torch: Call
    num_bytes: float
    """Bytes that must at least be moved."""
    flops: float
    """Operations that must at least be done; a multiplication with its addition counts as two."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one value for each repetition."""

    ours_s: tuple[float, ...]
    torch_s: tuple[float, ...]

    @property
    def ours_median_s(self) -> float:
        """Our typical time."""
        return statistics.median(self.ours_s)

    @property
    def torch_median_s(self) -> float:
        """Torch's typical time."""
        return statistics.median(self.torch_s)

    @property
    def ratio_to_torch(self) -> float:
        """How many times as fast as torch; median over neighbouring repetitions."""
        return statistics.median(b / a for a, b in zip(self.ours_s, self.torch_s, strict=True))


def fastest(ways: Sequence[Call], clock: Callable[[], float] = time.perf_counter) -> Call:
    """Return the one of several equal ways whose best call is the shortest: a comparison deserves the best of each."""

    def best_s(call: Call) -> float:
        call(0)  # what happens once only
        times = []
        for number in range(1, TRIAL_CALLS + 1):
            started_s = clock()
            call(number)
            times.append(clock() - started_s)
        return min(times)

    return min(ways, key=best_s)


def time_case(case: Case, repetitions: int, least_s: float, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """Time a case in turns; each repetition runs as many calls as take about `least_s` seconds."""
    runners = [_Runner(call, least_s, clock) for call in (case.ours, case.torch)]
    times: list[list[float]] = [[], []]
    for _ in range(repetitions):
        for runner, own in zip(runners, times, strict=True):
            own.append(runner.time_call())
    return Timing(tuple(times[0]), tuple(times[1]))


class _Runner:
    """Repeats one call and goes on counting."""

    def __init__(self, call: Call, least_s: float, clock: Callable[[], float]) -> None:
        self._call, self._clock = call, clock
        self._numbers: Iterator[int] = itertools.count()
        self._call(next(self._numbers))  # what happens once only
        self._num_calls = 1
        once_s = self.time_call()
        self._num_calls = max(1, min(MAX_CALLS, round(least_s / max(once_s, 1e-9))))

    def time_call(self) -> float:
        """Return the seconds of one call, the mean of this repetition's."""
        call, numbers = self._call, list(itertools.islice(self._numbers, self._num_calls))
        started_s = self._clock()
        for number in numbers:
            call(number)
        return (self._clock() - started_s) / self._num_calls
