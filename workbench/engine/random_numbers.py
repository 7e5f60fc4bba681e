"""Random numbers as a function of (seed, position, purpose), not of a running stream.

Batch composition, preemption and drafts therefore cannot shift them: the same request with the
same seed meets the same numbers wherever and whenever it runs (the idea of counter-based
generators, Salmon et al., SC 2011). The mixing function is SplitMix64's finalizer
(Steele, Lea and Flood, OOPSLA 2014), applied once per key.
"""

from __future__ import annotations

import enum

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Purpose(enum.IntEnum):
    """What a number is for; numbers for different purposes are independent."""

    SAMPLE = 1
    DRAFT = 2
    ACCEPT = 3
    RECOVER = 4


def uniform(seeds: np.ndarray, positions: np.ndarray, purpose: Purpose) -> np.ndarray:
    """Return float64 [S] in [0, 1), one per (seed, position, purpose).

    Args:
        seeds: uint64 [S].
        positions: index of the output token, int64 [S].
        purpose: separates the uses of one position.
    """
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64) + _GOLDEN)
        state = _mix(state ^ (positions.astype(np.uint64) * _GOLDEN + np.uint64(purpose)))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
