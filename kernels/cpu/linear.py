"""Matrix product with a weight: one order of accumulation per output element, whatever surrounds it.

The work is cut by panels of the weight, since weights are what has to be read from memory, and each
is read from there once: a few panels stay in the nearer caches while all input rows pass by. Every
element is summed over k from first to last (see `tile.py`), so cutting changes no bit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from kernels.cpu.scalar import address_of, next_task
from kernels.cpu.tile import (
    PARTIAL,
    TALL_ROWS,
    TALL_VECTORS,
    WIDE_ROWS,
    WIDE_VECTORS,
    multiply_half_tile,
    multiply_tile,
    tile_width,
)
from kernels.cpu.vector_code import LANES

COUNTER_STRIDE: Final = 8
"""int64 from one thread's counter to the next: a cache line, so that counting does not disturb the others."""


@njit(nogil=True, cache=True, parallel=True)
def linear(x, panels, out, num_threads):  # type: ignore[no-untyped-def]
    """Fill out [T, out] with x [T, in] times the weight [out, in], given in panels, transposed.

    All float32, but panels of uint16 are the bits of float16.

    Each thread has a stretch of the weight, which it reads from front to back, one tile after the
    other: memory likes long streams. Who is done helps where tiles are left.
    """
    num_outputs = panels.shape[0]
    most_vectors, most_rows = _tile_shape(x.shape[0])
    tile_outputs = most_vectors * LANES
    num_tiles = (num_outputs + tile_outputs - 1) // tile_outputs
    counters = np.zeros(num_threads * COUNTER_STRIDE, np.int64)
    for thread in prange(num_threads):
        for step in range(num_threads):
            owner = (thread + step) % num_threads
            first, last = owner * num_tiles // num_threads, (owner + 1) * num_tiles // num_threads
            tile = first + next_task(counters, owner * COUNTER_STRIDE)
            while tile < last:
                _linear_tile(x, panels, out, tile * tile_outputs, most_vectors, most_rows)
                tile = first + next_task(counters, owner * COUNTER_STRIDE)


@njit(nogil=True, cache=True)
def _linear_tile(x, panels, out, first, most_vectors, most_rows):  # type: ignore[no-untyped-def]
    """Fill out[:, first : first + most_vectors * LANES], as far as there are outputs; first is a multiple of LANES."""
    num_rows, size = x.shape
    num_outputs = panels.shape[0]
    last = min(first + most_vectors * LANES, num_outputs)
    num_groups = (num_rows + most_rows - 1) // most_rows
    output = first
    while output < last:
        vectors, width = tile_width(last - output, most_vectors)
        lanes = width if vectors == PARTIAL else LANES
        w = address_of(panels) + panels.itemsize * size * output
        # Each group of rows asks for its share of the next tile. One group alone is as fast as memory is, and
        # better served by the processor's own prefetching: it asks for what it holds already.
        tile_bytes = panels.itemsize * size * width
        ahead, share = (w + tile_bytes, tile_bytes // num_groups) if num_groups > 1 else (address_of(x), 0)
        row = 0
        for group in range(num_groups):
            rows = (num_rows - row) // (num_groups - group)  # groups of nearly equal size: no group of one row
            _multiply(
                panels,
                rows,
                vectors,
                address_of(x) + 4 * size * row,
                size,
                w,
                lanes,
                size * LANES,
                size,
                address_of(out) + 4 * (num_outputs * row + output),
                num_outputs,
                width,
                0,
                ahead + group * share,
                share // size,
            )
            row += rows
        output += width


def _multiply(panels: Any, *arguments: Any) -> None:
    """Multiply a tile, with the code for the panels' type: `_multiply_for`, wherever numba compiles a call."""


@overload(_multiply)
def _multiply_for(panels: Any, *arguments: Any) -> Any:
    multiply = multiply_half_tile if panels.dtype == types.uint16 else multiply_tile

    def run(panels: Any, *arguments: Any) -> None:
        multiply(*arguments)

    return run


@njit(nogil=True, cache=True)
def _tile_shape(num_rows):  # type: ignore[no-untyped-def]
    """Return vectors and most rows of the tiles: wide ones where one of them holds all rows, else tall ones."""
    if num_rows <= WIDE_ROWS:
        return WIDE_VECTORS, WIDE_ROWS
    return TALL_VECTORS, TALL_ROWS
