"""Copying whole blocks: for a block that is about to be written by one of its owners, and for swapping."""

import torch


def copy_blocks(source: torch.Tensor, target: torch.Tensor, block_ids: torch.Tensor) -> None:
    """Copy blocks of source to target, both [L, N, ...], in every layer and in order. Target is **mutated**.

    block_ids int64 [P, 2]: a block of the source, a block of the target.
    """
    for source_block, target_block in block_ids.tolist():
        target[:, target_block] = source[:, source_block]
