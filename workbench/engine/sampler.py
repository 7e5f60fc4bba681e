"""Logits to tokens, vectorized over the batch: greedy, temperature, min-p, top-k, top-p.

A function of tensors with no state. Every row is treated by itself, so a request's tokens do not
depend on its neighbours. Sampling draws one uniform number per row and inverts the cumulative
distribution; the number comes from (seed, output position), see `random_numbers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from workbench.engine.random_numbers import Purpose, uniform
from workbench.sampling_params import SamplingParams

NUM_CANDIDATES = 1024
"""Rows with top-k or top-p look at this many best logits first; sorting the whole vocabulary is a
hundred times slower and almost never needed."""


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of S rows, as arrays [S]."""

    temperature: np.ndarray
    top_k: np.ndarray
    """Vocabulary size where all tokens are kept."""
    top_p: np.ndarray
    min_p: np.ndarray
    uniforms: np.ndarray
    """float64 in [0, 1): the one random number of each row."""

    @classmethod
    def build(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int], vocab_size: int
    ) -> SamplingBatch:
        """Gather the parameters of a step's sampled rows. Greedy rows alone need no random numbers, and have none."""
        temperature = np.array([p.temperature for p in params], dtype=np.float64)
        return cls(
            temperature=temperature,
            top_k=np.array([min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]),
            top_p=np.array([p.top_p for p in params], dtype=np.float64),
            min_p=np.array([p.min_p for p in params], dtype=np.float64),
            uniforms=uniform(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.int64), Purpose.SAMPLE)
            if temperature.any()
            else np.zeros(len(params)),
        )

    def rows(self, index: np.ndarray | slice) -> SamplingBatch:
        """Return the parameters of some of the rows."""
        return SamplingBatch(*(getattr(self, field.name)[index] for field in fields(SamplingBatch)))


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Return one token id per row, int64 [S]. Temperature 0 is greedy whatever else is set.

    Order of filters as in vLLM: temperature, min-p, top-k, top-p. The token that crosses the top-p
    threshold is kept; of equal logits at the top-k boundary all are kept.

    Args:
        logits: float32 [S, vocab].
        batch: parameters of the S rows.
    """
    tokens = torch.from_numpy(logits.numpy(force=True).argmax(axis=1))  # torch takes five times as long
    is_random = batch.temperature > 0
    if not is_random.any():
        return tokens
    vocab_size = logits.shape[-1]
    is_cut = _is_cut(batch, vocab_size)
    for rows, draw in (
        (np.flatnonzero(is_random & ~is_cut), _draw_from_all),
        (np.flatnonzero(is_random & is_cut), _draw_from_best),
    ):
        if rows.size:
            index = torch.from_numpy(rows)
            tokens[index] = draw(logits[index], batch.rows(rows))
    return tokens


def probabilities(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Return what `sample` draws from, float64 [S, vocab]; rows sum to 1 but for rounding.

    Args:
        logits: float32 [S, vocab].
        batch: parameters of the S rows, their temperatures above 0.
    """
    scaled = _scaled(logits, batch)
    weights = scaled.exp()
    cut = np.flatnonzero(_is_cut(batch, logits.shape[-1]))
    if cut.size:
        for rows, kept, token_ids in _kept(scaled[cut], batch.rows(cut)):
            weights[cut[rows]] = torch.zeros_like(scaled[cut[rows]]).scatter_(1, token_ids, kept)
    return weights / weights.sum(dim=-1, keepdim=True)


def _is_cut(batch: SamplingBatch, vocab_size: int) -> np.ndarray:
    return (batch.top_k < vocab_size) | (batch.top_p < 1) | (batch.min_p > 0)


def _scaled(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Logits over temperature in float64, shifted so that the best is 0: no temperature overflows."""
    wide = logits.double()
    wide = wide - wide.amax(dim=-1, keepdim=True)
    return wide / torch.from_numpy(batch.temperature).unsqueeze(1)


def _draw_from_all(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Sample from the whole vocabulary."""
    return _invert(_scaled(logits, batch).exp(), batch.uniforms)


def _draw_from_best(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Sample from what min-p, top-k and top-p leave, looking at the best candidates only where they do."""
    tokens = torch.empty(len(logits), dtype=torch.int64)
    for rows, weights, token_ids in _kept(_scaled(logits, batch), batch):
        places = _invert(weights, batch.uniforms[rows]).unsqueeze(1)
        tokens[rows] = token_ids.gather(1, places).squeeze(1)
    return tokens


def _kept(scaled: torch.Tensor, batch: SamplingBatch) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
    """Yield groups of rows with the weights [G, C] that the filters leave, and the tokens of the C columns [G, C].

    Which of equal logits stand first is decided here alone: `sample` and `probabilities` must agree on it.
    """
    total, vocab_size = scaled.exp().sum(dim=-1), scaled.shape[-1]
    values, token_ids = scaled.topk(min(NUM_CANDIDATES, vocab_size), dim=-1)
    weights, is_complete = _filter(values, total, batch, vocab_size)
    rows = np.flatnonzero(is_complete)
    if rows.size:
        yield rows, weights[rows], token_ids[rows]
    for row in np.flatnonzero(~is_complete):
        here = slice(row, row + 1)
        values, token_ids = scaled[here].sort(dim=-1, descending=True)
        weights, _ = _filter(values, total[here], batch.rows(here), vocab_size)
        yield np.array([row]), weights, token_ids


def _filter(
    values: torch.Tensor, total: torch.Tensor, batch: SamplingBatch, vocab_size: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Weights [S, C] of sorted candidates after min-p, top-k and top-p, zero where cut.

    Also returns, per row, whether the candidates hold everything that the filters keep.

    Args:
        values: scaled logits [S, C], best first.
        total: sum of exp over the whole vocabulary [S].
        batch: parameters of the S rows.
        vocab_size: size of the whole vocabulary.
    """
    count = values.shape[1]
    top_k = torch.from_numpy(np.minimum(batch.top_k, count)).unsqueeze(1)
    has_top_k = torch.from_numpy(batch.top_k < vocab_size).unsqueeze(1)
    boundary = values.gather(1, top_k - 1)
    has_min_p = torch.from_numpy(batch.min_p > 0).unsqueeze(1)
    likely = values.exp()
    weights = likely.masked_fill(has_top_k & (values < boundary), 0.0)
    weights = weights.masked_fill(likely < torch.from_numpy(batch.min_p).unsqueeze(1), 0.0)
    mass = torch.where((has_top_k | has_min_p).squeeze(1), weights.sum(dim=-1), total).unsqueeze(1)
    before = weights.cumsum(dim=-1) - weights
    threshold = torch.from_numpy(batch.top_p).unsqueeze(1) * mass
    has_top_p = torch.from_numpy(batch.top_p < 1).unsqueeze(1)  # at top_p = 1 rounding must not cut anything
    kept = weights.masked_fill(has_top_p & (before >= threshold), 0.0)
    if count == vocab_size:
        return kept, np.ones(len(kept), dtype=bool)
    # The mass that top-p looks at is only right when the candidates hold all that the others keep.
    holds_top_k = (batch.top_k <= count) | (batch.top_k == vocab_size)
    holds_min_p = (batch.min_p == 0) | (likely[:, -1].numpy() < batch.min_p) | (batch.top_k <= count)
    return kept, (kept[:, -1] == 0).numpy() & holds_top_k & holds_min_p


def _invert(weights: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """Index where the cumulative weight passes uniform * total, int64 [S]; never a zero weight."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # a product that rounds up must not step off the end
    target = torch.minimum(torch.from_numpy(uniforms).unsqueeze(1) * total, below)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)
