"""Tensors of a proposer beside the engine's keys and values: other contents under the same block ids.

There is no second block manager. What the engine copies or swaps is copied here, too, and a slot that the
engine writes anew counts as empty here until the proposer has filled it again. So a proposer can be idle
for any number of steps, and begin in the middle of a request, of a shared prefix or of a swapped context:
it sees which slots it has to fill first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops import Ops

COPY: Final = "copy"
SWAP_OUT: Final = "swap_out"
SWAP_IN: Final = "swap_in"


class PagedStore:
    """Tensors [L, N, ...] and, for each slot, whether they hold what belongs to its token."""

    def __init__(
        self,
        ops: Ops,
        shapes: Sequence[tuple[int, ...]],
        *,
        num_blocks: int,
        num_spare_blocks: int,
        num_swap_blocks: int,
        block_size: int,
    ) -> None:
        """Allocate zeros.

        Args:
            ops: copies blocks.
            shapes: of each tensor, (layers, *contents of one block), float32.
            num_blocks: of the engine's pool.
            num_spare_blocks: more blocks, with ids from `num_blocks` on, for tokens that the engine has none for yet.
            num_swap_blocks: of the engine's swap space.
            block_size: tokens per block.
        """
        self._ops = ops
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tensors, self._host = (
            tuple(torch.zeros((layers, count, *block)) for layers, *block in shapes)
            for count in (num_blocks + num_spare_blocks, num_swap_blocks)
        )
        self._is_filled = torch.zeros((num_blocks + num_spare_blocks, block_size), dtype=torch.bool)
        self._host_is_filled = torch.zeros((num_swap_blocks, block_size), dtype=torch.bool)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.tensors, *self._host))

    def transfer(self, kind: str, block_ids: torch.Tensor) -> None:
        """Do what the engine did to its blocks. kind: `COPY`, `SWAP_OUT` or `SWAP_IN`; block_ids int64 [P, 2]."""
        sources = self._host if kind == SWAP_IN else self.tensors
        targets = self._host if kind == SWAP_OUT else self.tensors
        for source, target in zip(sources, targets, strict=True):
            self._ops.copy_blocks(source, target, block_ids)
        is_source = self._host_is_filled if kind == SWAP_IN else self._is_filled
        is_target = self._host_is_filled if kind == SWAP_OUT else self._is_filled
        for source_id, target_id in block_ids.tolist():
            is_target[target_id] = is_source[source_id]

    def empty(self, slots: torch.Tensor) -> None:
        """Note that slots, int64 [T], hold nothing of use: the engine has just written other tokens there."""
        self._is_filled.view(-1)[slots] = False

    def fill(self, slots: torch.Tensor) -> None:
        """Note that slots, int64 [T], hold what belongs to their tokens."""
        self._is_filled.view(-1)[slots] = True

    def num_filled(self, block_table: npt.NDArray[np.int32], num_tokens: int) -> int:
        """Return how many of the first `num_tokens` tokens of a context are filled before the first that is not."""
        is_filled = self._is_filled[torch.from_numpy(block_table)].view(-1)[:num_tokens]
        return num_tokens if bool(is_filled.all()) else int(is_filled.logical_not().to(torch.uint8).argmax())
