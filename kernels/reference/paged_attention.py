"""Causal attention over keys and values that lie in scattered blocks (arXiv 2309.06180)."""

import torch

from kernels.ops import AttentionMetadata


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Return softmax(scale * q · k) v for each token over positions 0 … its own. query [T, H, D] → [T, H, D].

    With a window, over the last `window` of these positions. Keys [N, K, D, B], values [N, K, B, D];
    query head h reads key/value head h * K // H.
    """
    block_size, num_heads, num_kv_heads = value_cache.shape[2], query.shape[1], value_cache.shape[1]
    output = torch.empty(query.shape, dtype=query.dtype)
    for request in range(metadata.seq_lens.shape[0]):
        first, last = int(metadata.query_start[request]), int(metadata.query_start[request + 1])
        for token in range(first, last):
            length = int(metadata.positions[token]) + 1
            begin = 0 if window is None else max(0, length - window)
            first_block, num_blocks = begin // block_size, -(-length // block_size)
            blocks = metadata.block_tables[request, first_block:num_blocks].long()
            seen = slice(begin - first_block * block_size, length - first_block * block_size)
            # [length - begin, H, D]: what the token sees, each key/value head repeated for its query heads.
            keys = key_cache[blocks].permute(0, 3, 1, 2).flatten(0, 1)[seen]
            values = value_cache[blocks].transpose(1, 2).flatten(0, 1)[seen]
            keys, values = (each.repeat_interleave(num_heads // num_kv_heads, dim=1) for each in (keys, values))
            scores = torch.einsum("hd,lhd->hl", query[token], keys) * scale
            output[token] = torch.einsum("hl,lhd->hd", torch.softmax(scores, dim=-1), values)
    return output
