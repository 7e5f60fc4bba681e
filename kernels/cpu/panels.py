"""Weights in panels: as many outputs side by side as a vector has lanes, one input after the other.

Rows p * L … p * L + L - 1 of a matrix [out, in] are one panel [in, L], L = LANES; the last one may be
narrower. A linear reads its panels from end to end, which is what memory is fastest at, and finds the
lanes of a vector next to each other. A panel takes exactly the place of its rows, so a matrix is
packed in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from kernels.cpu.vector_code import HAS_HALF, LANES
from kernels.weights import RowWeight


@dataclass(frozen=True)
class PanelWeight:
    """A matrix [out, in] in panels."""

    panels: npt.NDArray[Any]
    """[out, in] in shape, panel after panel in content: float32, or uint16 with the bits of float16."""

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""
        return self.panels.shape[0]

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        return self.panels.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        return self.panels.nbytes

    def dense(self) -> torch.Tensor:
        """Return a copy of the matrix, float32 [out, in]."""
        return self.rows(torch.arange(self.num_outputs))

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return some rows, float32 [S, in], for indices int64 [S].

        Raises:
            IndexError: an index is negative or no row.
        """
        out = np.empty((indices.shape[0], self.num_inputs), self.panels.dtype)
        if not _gather(self.panels, indices.numpy(), out):
            raise IndexError(f"a row is not within 0 … {self.num_outputs - 1}")
        return torch.from_numpy(out.view(np.float16) if out.dtype == np.uint16 else out).float()


def pack(weight: RowWeight) -> PanelWeight:
    """Return the weight in panels. Its matrix is reordered **in place** and must not be used as rows again."""
    is_half = weight.matrix.dtype == torch.float16
    matrix = weight.matrix.numpy().view(np.uint16) if is_half and HAS_HALF else weight.matrix.float().numpy()
    _pack(matrix)
    return PanelWeight(matrix)


@njit(nogil=True, cache=True)
def _pack(matrix):  # type: ignore[no-untyped-def]
    """Turn the rows of each panel [L, in] into [in, L], **in place**."""
    num_outputs, size = matrix.shape
    flat = matrix.reshape(num_outputs * size)
    scratch = np.empty((LANES, size), matrix.dtype)
    for first in range(0, num_outputs, LANES):
        width = min(LANES, num_outputs - first)
        scratch[:width] = matrix[first : first + width]
        start = first * size
        for k in range(size):
            for lane in range(width):
                flat[start + k * width + lane] = scratch[lane, k]


@njit(nogil=True, cache=True)
def _gather(panels, indices, out):  # type: ignore[no-untyped-def]
    """Fill out [S, in] with the matrix's rows; return False where an index is none."""
    num_outputs, size = panels.shape
    flat = panels.reshape(num_outputs * size)
    for i in range(indices.shape[0]):
        row = indices[i]
        if row < 0 or row >= num_outputs:
            return False
        first = row // LANES * LANES
        width = min(LANES, num_outputs - first)
        start = first * size + row - first
        for k in range(size):
            out[i, k] = flat[start + k * width]
    return True
