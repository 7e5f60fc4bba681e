"""Matrix product with a weight: one order of accumulation per output element, whatever surrounds it.

The work is cut by output rows of the weight, since weights are what has to be read from memory, and
each is read once: a tile of four weight rows stays in the first-level cache while all input rows
pass by. Large inputs are cut into blocks that stay in the second-level cache. Every element of
every tile is summed by the very same inner loop (see `tile.py`), so cutting changes no bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, prange

from kernels.cpu.scalar import address_of, next_task
from kernels.cpu.tile import TILE_OUTPUTS, TILE_ROWS, dot_tile

INPUT_BLOCK_BYTES: Final = 384 * 1024
"""Bytes of input rows that are multiplied by one weight tile in a row: a part of the second-level cache."""
TASK_WEIGHT_BYTES: Final = 64 * 1024
"""Bytes of weights in one task: large against the cost of taking a task, small against the whole."""


@njit(nogil=True, cache=True, parallel=True)
def linear(x, weight, out, num_threads):  # type: ignore[no-untyped-def]
    """Fill out [T, out] with x [T, in] times weight [out, in] transposed. All contiguous float32."""
    num_outputs, size = weight.shape
    row_bytes = 4 * size
    outputs_per_task = max(TILE_OUTPUTS, TASK_WEIGHT_BYTES // row_bytes // TILE_OUTPUTS * TILE_OUTPUTS)
    num_tasks = (num_outputs + outputs_per_task - 1) // outputs_per_task
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        task = next_task(counter)
        while task < num_tasks:
            first = task * outputs_per_task
            _linear_task(x, weight, out, first, min(first + outputs_per_task, num_outputs))
            task = next_task(counter)


@njit(nogil=True, cache=True)
def _linear_task(x, weight, out, first, last):  # type: ignore[no-untyped-def]
    """Fill out[:, first:last]."""
    num_rows, size = x.shape
    num_outputs = weight.shape[0]
    x_address, w_address, out_address = address_of(x), address_of(weight), address_of(out)
    block = max(TILE_ROWS, INPUT_BLOCK_BYTES // (4 * size) // TILE_ROWS * TILE_ROWS)
    for block_start in range(0, num_rows, block):
        block_end = min(block_start + block, num_rows)
        output = first
        while output < last:
            outputs = TILE_OUTPUTS if last - output >= TILE_OUTPUTS else 1
            w = w_address + 4 * size * output
            for row in range(block_start, block_end, TILE_ROWS):
                rows = min(TILE_ROWS, block_end - row)
                x_tile = x_address + 4 * size * row
                out_tile = out_address + 4 * (num_outputs * row + output)
                dot_tile(rows, outputs, x_tile, size, w, size, size, out_tile, num_outputs)
            output += outputs
