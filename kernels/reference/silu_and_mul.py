"""The gated activation of SwiGLU (arXiv 2002.05202)."""

import torch


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gate * sigmoid(gate) * up. gate_up [T, 2 * I], gate first → [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up
