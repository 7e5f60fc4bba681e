"""Memory for weights in large pages.

Weights are read from end to end in every step. In pages of 4 KiB the processor looks up an address
a hundred thousand times a step and its prefetching stops at every page end; in pages of 2 MiB it
reads about a third faster (measured: 60 against 42 GB/s). numpy asks the kernel for large pages
where an array is large, so matrices are cut from large arrays.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

CHUNK_ELEMENTS: Final = 16 * 1024 * 1024
"""float32 elements of one array: 64 MiB."""
ALIGNMENT: Final = 16
"""Elements to which a matrix is aligned: one cache line."""


class WeightMemory:
    """Cuts matrices from large arrays. An array lives as long as any matrix cut from it."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.float32)

    def empty(self, rows: int, columns: int) -> torch.Tensor:
        """Return an uninitialized contiguous float32 tensor [rows, columns]."""
        size = rows * columns
        if size > self._free.size:
            self._free = np.empty(max(size + ALIGNMENT, CHUNK_ELEMENTS), np.float32)
            skip = -self._free.ctypes.data // 4 % ALIGNMENT
            self._free = self._free[skip:]
        matrix, self._free = self._free[:size], self._free[-(-size // ALIGNMENT) * ALIGNMENT :]
        return torch.from_numpy(matrix.reshape(rows, columns))
