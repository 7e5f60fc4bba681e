"""What a head can begin with to copy: attention that finds where the last tokens stood before, and reads what followed.

Keys know tokens r - 1, r and r + 1 of position r (see `EagleHead`). The last group of heads asks with tokens p
and p + 1, is answered by the positions where these are r - 1 and r, and takes over token r + 1. Training could find
this by itself, as models do (induction heads, arXiv 2209.11895), but had not after seven passes over 650,000 tokens.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

from workbench.speculation.train.head_module import TrainingHead

MATCH_SCORES: Final = (4.0, 16.0)
"""Attention score of a position where the last token but one, and the last one, are those that are looked for. Both are
compared in the same few dimensions, where each is noise to the other: the first one is only to tip the balance."""
COPIED_SIZE: Final = 0.5
"""Root mean square of what a copied token adds to the stream, whose own is about 1."""
FAR: Final = 256
"""Tokens over which rotary may turn a pair of dimensions by little, if it is to compare tokens."""
MOST_TURN: Final = 0.45
"""Radians."""
SPREAD_OVER: Final = 256
"""Principal components of the embeddings that tokens are told apart by."""


@torch.no_grad()
def begin_copying(head: TrainingHead) -> None:
    """Set the last group of query heads, and the key and value head that they share, to copy."""
    shape, size = head.shape, head.shape.head_size
    hidden, group = head.fuse.shape[0], shape.num_heads // shape.num_kv_heads
    tokens = F.rms_norm(head.embedding[head.vocabulary], (hidden,), head.token_norm, shape.eps)
    mean = tokens.mean(dim=0)
    centred = tokens - mean
    variances, components = torch.linalg.eigh(centred.T @ centred / len(tokens))
    variances, components = variances.flip(0), components.flip(1).T
    off_mean = torch.eye(hidden) - torch.outer(mean, mean) / mean.square().sum()

    places = _slow_dimensions(head)
    count = min(SPREAD_OVER, hidden)
    whitened = components[:count] / variances[:count].sqrt().unsqueeze(1) @ off_mean
    generator = torch.Generator().manual_seed(0)
    matchers = []
    for score in MATCH_SCORES:
        matcher = torch.randn(len(places), count, generator=generator) @ whitened
        matcher /= (centred @ matcher.T).square().sum(dim=1).mean().sqrt()  # a token's own product is then about 1
        matchers.append(matcher * (score * size**0.5) ** 0.5)
    copier = components[:size] @ off_mean
    back = copier.T / head.final_norm.unsqueeze(1)
    back *= COPIED_SIZE / (centred @ copier.T @ back.T).square().mean().sqrt()

    own, behind = slice(hidden, 2 * hidden), slice(2 * hidden, 3 * hidden)
    first_key = shape.num_heads * size
    for query in range(shape.num_heads - group, shape.num_heads):
        rows = head.qkv[query * size : (query + 1) * size]
        rows.zero_()
        rows[places, own], rows[places, behind] = matchers
        head.output[:, query * size : (query + 1) * size] = back / group
    last_key = first_key + (shape.num_kv_heads - 1) * size
    keys, keys_before = head.qkv[last_key : last_key + size], head.key_before[-size:]
    for matcher, weight, columns in zip(matchers, (keys_before, keys), (slice(None), own), strict=True):
        weight.zero_()
        weight[places, columns] = matcher
    values = head.qkv[last_key + shape.num_kv_heads * size :][:size]
    values.zero_()
    values[:, behind] = copier


def _slow_dimensions(head: TrainingHead) -> torch.Tensor:
    """Dimensions of a head that rotary hardly turns over `FAR` tokens, int64 [n]; the slowest pair at least."""
    half = head.shape.head_size // 2
    far = min(FAR, len(head.cos_sin) - 1)
    # The first position's turn tells the frequency: later ones may have gone round.
    turn = far * torch.atan2(head.cos_sin[1, half:], head.cos_sin[1, :half]).abs()
    pairs = (turn <= max(MOST_TURN, float(turn.min()))).nonzero().flatten()
    return torch.cat([pairs, pairs + half])
