"""Writing keys and values into the paged cache."""

import torch


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Scatter key and value [T, K, D] into the caches [N, B, K, D], **mutated**, at slot_mapping int64 [T].

    A slot is block_id * B + offset.
    """
    key_cache.flatten(0, 1)[slot_mapping] = key
    value_cache.flatten(0, 1)[slot_mapping] = value
