"""Matrix product with a weight."""

import torch

from kernels.weights import LinearWeight


def linear(x: torch.Tensor, weight: LinearWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T (+ bias). x [T, in], weight [out, in] in any layout, bias [out] → [T, out]."""
    result = x @ weight.dense().T
    return result if bias is None else result + bias
