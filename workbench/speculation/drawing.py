"""The next token of a drafting model, and what it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workbench.speculation.rejection_sampler import invert


@dataclass(frozen=True)
class Drawn:
    """One drafted token."""

    token_id: int
    probabilities: torch.Tensor | None
    """float32 [V], over what the model can draft; None for a greedy request, whose token is the likeliest."""


def draw(
    logits: torch.Tensor,
    vocabulary: torch.Tensor | None,
    temperatures: Sequence[float],
    uniforms: Sequence[float],
) -> list[Drawn]:
    """Return a token for each row: the likeliest at temperature 0, else drawn at its request's temperature.

    Args:
        logits: float32 [S, V].
        vocabulary: token ids of the V columns, int64; None where they are their own.
        temperatures: S temperatures.
        uniforms: S random numbers in [0, 1).
    """
    best = logits.argmax(dim=-1)
    found: list[Drawn] = []
    for row, (temperature, uniform) in enumerate(zip(temperatures, uniforms, strict=True)):
        column, probabilities = int(best[row]), None
        if temperature > 0:
            scaled = (logits[row] - logits[row, column]).double() / temperature  # the best is 0: none overflows
            probabilities = scaled.softmax(dim=-1).float()
            column = invert(probabilities.double(), uniform)
        found.append(Drawn(column if vocabulary is None else int(vocabulary[column]), probabilities))
    return found
