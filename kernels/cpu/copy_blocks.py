"""Copying whole blocks, layer by layer: a thread walks through all pairs of one layer, which keeps their order."""

from __future__ import annotations

from numba import njit, prange


@njit(nogil=True, cache=True, parallel=True)
def copy_blocks(source, target, block_ids):  # type: ignore[no-untyped-def]
    """Copy blocks of source to target, both [L, N, elements], in order. Target is **mutated**. block_ids [P, 2]."""
    for layer in prange(source.shape[0]):
        for pair in range(block_ids.shape[0]):
            from_block, to_block = source[layer, block_ids[pair, 0]], target[layer, block_ids[pair, 1]]
            for i in range(from_block.shape[0]):
                to_block[i] = from_block[i]
