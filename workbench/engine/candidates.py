"""The most likely next tokens of a beam."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.engine.beam_search import Candidate


def best_candidates(
    logits: torch.Tensor, counts: Sequence[int], held_back_ids: Sequence[Sequence[int]]
) -> list[tuple[Candidate, ...]]:
    """Return of each row the most likely tokens with their log-probabilities, best first.

    Args:
        logits: float32 [S, vocab].
        counts: how many tokens each row wants.
        held_back_ids: of each row, tokens that must not come. They keep their share of the probability, as with
            transformers, whose rules change log-probabilities and not logits when beams are searched.
    """
    if not counts:
        return []
    logprobs = logits.log_softmax(dim=-1)
    for row, token_ids in enumerate(held_back_ids):
        logprobs[row, list(token_ids)] = -torch.inf
    values, best = logprobs.topk(min(max(counts), logits.shape[-1]), dim=-1)
    return [
        tuple(zip(best_ids[:count], best_values[:count], strict=True))
        for best_ids, best_values, count in zip(best.tolist(), values.tolist(), counts, strict=True)
    ]
