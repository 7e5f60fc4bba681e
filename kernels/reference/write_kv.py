"""Writing keys and values into the paged cache."""

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Scatter key and value [T, K, D] into the caches [N, K, D, B] and [N, K, B, D], **mutated**.

    slot_mapping int64 [T]: block_id * B + offset.
    """
    blocks, offsets = slot_mapping // value_cache.shape[2], slot_mapping % value_cache.shape[2]
    key_cache[blocks, :, :, offsets] = key
    value_cache[blocks, :, offsets] = value
