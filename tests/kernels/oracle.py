"""Dense oracles in float64 numpy, independent of every backend, and inputs for the ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.ops import AttentionMetadata, Ops
from kernels.weights import LinearWeight, RowWeight


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return reproducible float32 noise."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def prepared(ops: Ops, matrix: torch.Tensor) -> LinearWeight:
    """Return a matrix as the backend multiplies by it; the matrix itself is left alone."""
    return ops.prepare_weight(RowWeight(matrix.clone()))


def linear(x, weight, bias=None):
    result = x.double().numpy() @ weight.double().numpy().T
    return result if bias is None else result + bias.double().numpy()


def rms_norm(x, weight, eps):
    x = x.double().numpy()
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight.double().numpy()


def rotate(heads, cos_sin, positions):
    """Rotate each plane (i, i + D/2) as a complex number."""
    half = heads.shape[-1] // 2
    table = cos_sin.double().numpy()[positions.numpy()][:, None, :]
    turn = table[..., :half] + 1j * table[..., half:]
    values = heads.double().numpy()
    turned = (values[..., :half] + 1j * values[..., half:]) * turn
    return np.concatenate((turned.real, turned.imag), axis=-1)


def silu_and_mul(gate_up):
    gate, up = np.split(gate_up.double().numpy(), 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def attention(query, keys, values, scale, window=None):
    """Causal attention of the last rows of one whole context. query [t, H, D], keys, values [L, K, D].

    window: how many of the positions up to its own a token sees; None for all.
    """
    query, keys, values = (a.double().numpy() for a in (query, keys, values))
    length, num_kv_heads, _ = keys.shape
    num_tokens, num_heads, _ = query.shape
    out = np.empty_like(query)
    for token in range(num_tokens):
        end = length - num_tokens + token + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            scores = keys[seen, kv_head] @ query[token, head] * scale
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values[seen, kv_head] / weights.sum()
    return out


@dataclass
class PagedCase:
    """Requests with contexts scattered over a poisoned pool: whatever is not context is NaN.

    With a window, neither are blocks wholly before it context: the table names a poisoned one for them.
    """

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    metadata: AttentionMetadata
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    scale: float
    window: int | None

    @property
    def arguments(self):
        return self.query, self.key_cache, self.value_cache, self.metadata, self.scale, self.window

    def expected(self):
        """Return the dense answer, float64 [T, H, D]."""
        starts = self.metadata.query_start.tolist()
        parts = zip(starts[:-1], starts[1:], self.keys, self.values, strict=True)
        return np.concatenate([attention(self.query[a:b], k, v, self.scale, self.window) for a, b, k, v in parts])


def paged_case(
    lengths: list[int],
    num_new: list[int],
    *,
    block_size: int = 16,
    num_heads: int = 9,
    num_kv_heads: int = 3,
    head_size: int = 64,
    window: int | None = None,
    seed: int = 0,
) -> PagedCase:
    """Build requests of `lengths` tokens of context, the last num_new of which are computed now.

    A request's content depends on its place in the list and on `seed` only, not on block size or window.
    """
    num_blocks = [-(-length // block_size) for length in lengths]
    pool = sum(num_blocks) + 3
    shuffled = torch.randperm(pool, generator=torch.Generator().manual_seed(seed + 1)).tolist()
    key_cache = torch.full((pool, num_kv_heads, head_size, block_size), float("nan"))
    value_cache = torch.full((pool, num_kv_heads, block_size, head_size), float("nan"))
    tables = torch.full((len(lengths), max(num_blocks) + 2), -1, dtype=torch.int32)
    poisoned = shuffled.pop()
    queries, keys, values, slots, positions = [], [], [], [], []
    for request, (length, new) in enumerate(zip(lengths, num_new, strict=True)):
        blocks = [shuffled.pop() for _ in range(num_blocks[request])]
        tables[request, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        context_slots = torch.tensor([blocks[i // block_size] * block_size + i % block_size for i in range(length)])
        key, value = (randn(length, num_kv_heads, head_size, seed=seed + 10 * request + n) for n in (2, 3))
        held, offsets = context_slots // block_size, context_slots % block_size
        key_cache[held, :, :, offsets] = key
        value_cache[held, :, offsets] = value
        num_dropped = 0 if window is None else max(0, length - new + 1 - window) // block_size
        key_cache[blocks[:num_dropped]] = value_cache[blocks[:num_dropped]] = float("nan")
        tables[request, :num_dropped] = poisoned
        queries.append(randn(length, num_heads, head_size, seed=seed + 10 * request + 4)[length - new :])
        keys.append(key)
        values.append(value)
        slots.append(context_slots[length - new :])
        positions.append(torch.arange(length - new, length))
    metadata = AttentionMetadata(
        query_start=torch.tensor([0, *np.cumsum(num_new)], dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.cat(slots),
        positions=torch.cat(positions),
    )
    scale = head_size**-0.5
    return PagedCase(torch.cat(queries), key_cache, value_cache, metadata, keys, values, scale, window)
