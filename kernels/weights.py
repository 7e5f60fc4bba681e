"""Weights of linears: what every backend's own layout can do, and the plain one that loaders fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


class LinearWeight(Protocol):
    """A matrix [out, in] in some layout. A backend multiplies by the layout that its `prepare_weight` makes."""

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""

    def dense(self) -> torch.Tensor:
        """Return the matrix, float32 [out, in]; may be a copy."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return some rows, float32 [S, in], for indices int64 [S]: an embedding."""


@dataclass(frozen=True)
class RowWeight:
    """A matrix stored row after row."""

    matrix: torch.Tensor
    """float32 or float16 [out, in], contiguous."""

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""
        return self.matrix.shape[0]

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        return self.matrix.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        return self.matrix.numel() * self.matrix.element_size()

    def dense(self) -> torch.Tensor:
        """Return the matrix, float32: itself where it is that already."""
        return self.matrix.float()

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return some rows, float32 [S, in], for indices int64 [S]."""
        return self.matrix[indices].float()
