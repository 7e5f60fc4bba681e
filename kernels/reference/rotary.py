"""Rotary position embedding (arXiv 2104.09864), in Hugging Face's layout."""

import torch


def rotary_embedding(query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
    """Rotate query [T, H, D] and key [T, K, D] **in place**.

    Dimension i of the first half and i of the second half form a plane, turned by the angle of the
    token's position. cos_sin [max_model_len, D]: cosines, then sines; positions int64 [T].
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for heads in (query, key):
        first, second = heads.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads.copy_(rotated)
