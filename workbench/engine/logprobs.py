"""Log-probabilities of chosen tokens and of the most likely ones, from the model's own logits.

They are taken before any rule, temperature or filter, as vLLM reports them by default.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.engine.messages import TokenLogprobs


def compute_logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return for each row the chosen token's log-probability and rank, and the most likely tokens.

    Args:
        logits: float32 [S, vocab].
        token_ids: the chosen token of each row.
        counts: how many of the most likely tokens each row wants.
    """
    if not token_ids:
        return []
    logprobs = logits.log_softmax(dim=-1)
    chosen = torch.tensor(token_ids).unsqueeze(1)
    chosen_logprobs = logprobs.gather(1, chosen)
    ranks = (logprobs > chosen_logprobs).sum(dim=-1) + 1
    values, best = logprobs.topk(max(*counts, 1), dim=-1)
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top=tuple(zip(best_ids[:count], best_values[:count], strict=True)),
        )
        for token_id, logprob, rank, best_ids, best_values, count in zip(
            token_ids,
            chosen_logprobs.squeeze(1).tolist(),
            ranks.tolist(),
            best.tolist(),
            values.tolist(),
            counts,
            strict=True,
        )
    ]
