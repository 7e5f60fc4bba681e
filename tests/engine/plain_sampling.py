"""What sampling is defined to draw from, in plain float64, and a test whether draws come from it.

Written from the definitions and sharing nothing with the engine, so that it can be its oracle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from workbench.sampling_params import SamplingParams

FEWEST_EXPECTED = 10
"""Cells with fewer expected draws are counted together, so that Pearson's statistic follows its distribution."""

Array = np.ndarray


def plain_probabilities(
    logits: Array, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], held_back_ids: Sequence[int]
) -> Array:
    """Return the distribution of the token behind `prompt` and `output`, float64 [vocab].

    held_back_ids: what min_tokens forbids while the output is shorter.
    """
    scores = logits.astype(np.float64)
    if params.allowed_token_ids is not None:
        scores[np.setdiff1d(np.arange(len(scores)), params.allowed_token_ids)] = -np.inf
    if len(output) < params.min_tokens:
        scores[list(held_back_ids)] = -np.inf
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in {*prompt, *output}:
        scores[token] *= params.repetition_penalty if scores[token] <= 0 else 1 / params.repetition_penalty
    for token in set(output):
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return _filtered(np.exp((scores - scores.max()) / params.temperature), params)


def _filtered(weights: Array, params: SamplingParams) -> Array:
    """Cut by min_p, top_k and top_p; of equal weights at the border of top_k all stay."""
    weights = np.where(weights < params.min_p * weights.max(), 0.0, weights)
    if 0 < params.top_k < len(weights):
        weights = np.where(weights < np.sort(weights)[-params.top_k], 0.0, weights)
    weights = weights / weights.sum()
    if params.top_p < 1:
        best = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[best]) - weights[best]
        weights[best[before >= params.top_p]] = 0.0
    return weights / weights.sum()


def p_value(counts: Array, probabilities: Array) -> float:
    """Return how probable counts are that fit as badly as these, or worse (Pearson's chi-square).

    Both have one shape, [vocab] or [vocab, vocab]. Rare cells are counted together with their neighbours.
    """
    observed, expected = counts.ravel(), probabilities.ravel() * counts.sum()
    if observed[expected == 0].sum():
        return 0.0  # what never comes came
    is_rare = expected < FEWEST_EXPECTED
    bins = (np.cumsum(expected[is_rare]) // (2 * FEWEST_EXPECTED)).astype(np.int64)
    bins = np.minimum(bins, max(0, bins.max(initial=0) - 1))  # the last may be small
    found, wanted = (
        np.concatenate([each[~is_rare], np.bincount(bins, each[is_rare])]).astype(np.float64)
        for each in (observed, expected)
    )
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    half = torch.tensor([(len(wanted) - 1) / 2, ((found - wanted) ** 2 / wanted).sum() / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
