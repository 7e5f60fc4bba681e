"""Runs of consecutive numbers."""

from __future__ import annotations

from collections.abc import Iterable

Run = tuple[int, int]
"""(first, length)"""


def runs_of(numbers: Iterable[int]) -> list[Run]:
    """Return the runs of consecutive numbers in a set of numbers, in order."""
    runs: list[Run] = []
    for number in sorted(numbers):
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def longest(runs: Iterable[Run]) -> int:
    """Return the length of the longest run, 0 without any."""
    return max((length for _, length in runs), default=0)
