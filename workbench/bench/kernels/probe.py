"""Measures memory bandwidth and matrix rate in the calling thread.

As a program (argument: number of threads) it prints them as one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Final

# Before torch, so that both share one OpenMP runtime.
import kernels.cpu.numba_setup  # noqa: F401

# isort: split
import numba
import numpy as np
import numpy.typing as npt
import torch

from workbench.bench.machine import Machine
from workbench.config import prepare_process

BUFFER_BYTES: Final = 512 << 20
"""Far beyond any cache."""
MATRIX_SIZE: Final = 2048
PASSES: Final = 6


def probe(num_threads: int, buffer_bytes: int = BUFFER_BYTES, matrix_size: int = MATRIX_SIZE) -> Machine:
    """Return the best of six passes: reading with numba and with torch, multiplying with torch."""
    numba.set_num_threads(num_threads)
    torch.set_num_threads(num_threads)
    buffer = np.ones(buffer_bytes // 8, np.int64)
    as_floats = torch.from_numpy(buffer.view(np.float32))
    matrix = torch.ones(matrix_size, matrix_size)
    product = torch.empty_like(matrix)
    _read_all(buffer[:1024])  # compile
    read_s, multiply_s = [], []
    for _ in range(PASSES):
        started_s = time.perf_counter()
        _read_all(buffer)
        read_once_s = time.perf_counter()
        torch.sum(as_floats)
        read_twice_s = time.perf_counter()
        torch.matmul(matrix, matrix, out=product)
        ended_s = time.perf_counter()
        read_s += [read_once_s - started_s, read_twice_s - read_once_s]
        multiply_s.append(ended_s - read_twice_s)
    return Machine(buffer.nbytes / min(read_s), 2 * matrix_size**3 / min(multiply_s))


@numba.njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]  # numba carries no types
def _read_all(values: npt.NDArray[np.int64]) -> int:
    """Return the sum of all values; whole numbers, so that the compiler may use vectors."""
    total = 0
    for i in numba.prange(values.size):
        total += values[i]
    return total


if __name__ == "__main__":
    prepare_process()
    sys.stdout.write(json.dumps(dataclasses.asdict(probe(int(sys.argv[1])))) + "\n")
