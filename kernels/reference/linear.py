"""Matrix product with a weight."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T (+ bias). x [T, in], weight [out, in], bias [out] → [T, out]."""
    result = x @ weight.T
    return result if bias is None else result + bias
