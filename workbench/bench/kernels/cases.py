"""Every op in the shapes of a model, beside what torch offers for the same result.

Weights and KV are cycled through copies that together exceed every cache, as a model's layers do.
Activations are not: in a model, too, they were written a moment before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional as F

from kernels.ops import AttentionMetadata, Ops, kv_cache_shapes
from kernels.weights import LinearWeight, RowWeight
from workbench.bench.kernels.timing import Case, fastest
from workbench.models.config import ModelConfig
from workbench.models.weight_memory import WeightMemory

FLOAT_BYTES: Final = 4
BLOCK_SIZE: Final = 16


@dataclass(frozen=True)
class Linear:
    """A projection of the model."""

    name: str
    num_outputs: int
    num_inputs: int
    per_pass: int
    """How many of them one forward pass runs."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of one such weight."""
        return FLOAT_BYTES * self.num_outputs * self.num_inputs

    def flops(self, rows: int) -> int:
        """Operations for so many input rows."""
        return 2 * rows * self.num_outputs * self.num_inputs


def linears(config: ModelConfig) -> tuple[Linear, ...]:
    """Return the projections of a Llama-family decoder, the head last."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    queries = config.num_heads * config.head_size
    return (
        Linear("qkv", queries + 2 * config.num_kv_heads * config.head_size, hidden, layers),
        Linear("output", hidden, queries, layers),
        Linear("gate_up", 2 * inner, hidden, layers),
        Linear("down", hidden, inner, layers),
        Linear("head", config.vocab_size, hidden, 1),
    )


def linear_name(linear: Linear, rows: int) -> str:
    """Return the name of a case."""
    return f"linear_{linear.name}_rows{rows}"


def linear_cases(ops: Ops, config: ModelConfig, rows: Sequence[int], pool_bytes: int) -> Iterator[Case]:
    """Yield a case for each projection and number of rows. All take their weights from one pool."""
    # As a model keeps them: in large pages.
    pool = WeightMemory().empty(1, pool_bytes // FLOAT_BYTES)[0].uniform_(-0.1, 0.1)
    for linear in linears(config):
        weights = _copies(ops, pool, linear)
        for count in rows:
            yield _linear_case(ops, linear, weights, count)


def _copies(ops: Ops, pool: torch.Tensor, linear: Linear) -> list[tuple[LinearWeight, torch.Tensor]]:
    """Return as many weights as the pool holds, views of it; one of its own where it is too small.

    Each is given in our layout and in torch's. Both lie in the same memory, whose content is noise either way.
    """
    shape, size = (linear.num_outputs, linear.num_inputs), linear.num_outputs * linear.num_inputs
    count = pool.numel() // size
    matrices = [pool[i * size : (i + 1) * size].view(shape) for i in range(count)] or [torch.rand(shape)]
    return [(ops.prepare_weight(RowWeight(matrix)), matrix) for matrix in matrices]


def _linear_case(ops: Ops, linear: Linear, weights: Sequence[tuple[LinearWeight, torch.Tensor]], rows: int) -> Case:
    x = torch.rand(rows, linear.num_inputs)
    return Case(
        linear_name(linear, rows),
        lambda number: ops.linear(x, weights[number % len(weights)][0]),
        lambda number: F.linear(x, weights[number % len(weights)][1]),
        linear.weight_bytes + FLOAT_BYTES * rows * (linear.num_inputs + linear.num_outputs),
        linear.flops(rows),
    )


def elementwise_cases(ops: Ops, config: ModelConfig, rows: Sequence[int]) -> Iterator[Case]:
    """Yield norms, rotary embedding, SiLU-and-mul and the writing of keys and values."""
    for count in rows:
        yield from _norm_cases(ops, config, count)
        yield _rotary_case(ops, config, count)
        yield _silu_case(ops, config, count)
        yield _write_kv_case(ops, config, count)


def _silu_case(ops: Ops, config: ModelConfig, rows: int) -> Case:
    gate_up = torch.randn(rows, 2 * config.intermediate_size)

    def run_torch(_: int) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate) * up

    moved = 3 * rows * config.intermediate_size
    return Case(f"silu_and_mul_rows{rows}", lambda _: ops.silu_and_mul(gate_up), run_torch, FLOAT_BYTES * moved, 0)


def _norm_cases(ops: Ops, config: ModelConfig, rows: int) -> Iterator[Case]:
    size, eps = config.hidden_size, config.rms_norm_eps
    x, weight = torch.randn(rows, size), torch.rand(size)
    # Each sums up its own, so that both stay finite: x is added once a call.
    x_small, ours_residual = 1e-3 * x, torch.randn(rows, size)
    torch_residual = ours_residual.clone()
    yield Case(
        f"rms_norm_rows{rows}",
        lambda _: ops.rms_norm(x, weight, eps),
        lambda _: F.rms_norm(x, (size,), weight, eps),
        FLOAT_BYTES * (2 * rows + 1) * size,
        0,
    )
    yield Case(
        f"add_rms_norm_rows{rows}",
        lambda _: ops.add_rms_norm(x_small, ours_residual, weight, eps),
        lambda _: F.rms_norm(torch_residual.add_(x_small), (size,), weight, eps),
        FLOAT_BYTES * (4 * rows + 1) * size,
        0,
    )


def _rotary_case(ops: Ops, config: ModelConfig, rows: int) -> Case:
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
    angles = torch.rand(rows, size // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.arange(rows)
    ours = torch.randn(rows, heads + 2 * kv_heads, size)
    torchs = ours.clone()

    def run_ours(_: int) -> torch.Tensor:
        ops.rotary_embedding(ours[:, :heads], ours[:, heads : heads + kv_heads], cos_sin, positions)
        return ours

    def run_torch(_: int) -> torch.Tensor:
        # Query and key in one go: torch has no such op, and this is the least it needs for it.
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=2)
        first, second = torchs[:, : heads + kv_heads].chunk(2, dim=2)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
        torchs[:, : heads + kv_heads] = rotated
        return torchs

    return Case(f"rotary_rows{rows}", run_ours, run_torch, FLOAT_BYTES * rows * size * (2 * (heads + kv_heads) + 1), 0)


def _write_kv_case(ops: Ops, config: ModelConfig, rows: int) -> Case:
    shape = (config.num_kv_heads, config.head_size)
    num_blocks = 4 * rows
    keys, values = (torch.zeros(each) for each in kv_cache_shapes(num_blocks, BLOCK_SIZE, *shape))
    torchs = [torch.zeros(num_blocks * BLOCK_SIZE, *shape) for _ in "kv"]
    key, value = torch.randn(rows, *shape), torch.randn(rows, *shape)
    slots = torch.randperm(num_blocks * BLOCK_SIZE)[:rows]

    def run_ours(_: int) -> torch.Tensor:
        ops.write_kv(key, value, keys, values, slots)
        return values.transpose(1, 2).flatten(0, 1)

    def run_torch(_: int) -> torch.Tensor:
        torchs[0].index_copy_(0, slots, key)
        torchs[1].index_copy_(0, slots, value)
        return torchs[1]

    moved = 4 * rows * config.num_kv_heads * config.head_size
    return Case(f"write_kv_rows{rows}", run_ours, run_torch, FLOAT_BYTES * moved, 0)


def attention_cases(
    ops: Ops, config: ModelConfig, contexts: Sequence[int], requests: Sequence[int], prefill: int, pool_bytes: int
) -> Iterator[Case]:
    """Yield one decode step at each context and number of requests, and the prefill of one prompt."""
    for context in contexts:
        for count in requests:
            yield _decode_case(ops, config, count, context, pool_bytes)
    yield _prefill_case(ops, config, prefill, pool_bytes)


def _decode_case(ops: Ops, config: ModelConfig, requests: int, context: int, pool_bytes: int) -> Case:
    kv_heads, size = config.num_kv_heads, config.head_size
    group, scale = config.num_heads // kv_heads, size**-0.5
    kv = _PagedKV(config, requests, context, pool_bytes, query_length=1)
    query = torch.randn(requests, config.num_heads, size)
    # Heads that share keys, as rows of one query or told to torch: which is faster depends on threads and lengths.
    grouped, single = query.view(requests, kv_heads, group, size), query.unsqueeze(2)

    def run_grouped(number: int) -> torch.Tensor:
        keys, values = kv.dense(number)
        return F.scaled_dot_product_attention(grouped, keys, values, scale=scale).view(query.shape)

    def run_single(number: int) -> torch.Tensor:
        keys, values = kv.dense(number)
        return F.scaled_dot_product_attention(single, keys, values, scale=scale, enable_gqa=True).view(query.shape)

    return Case(
        f"attention_decode_requests{requests}_context{context}",
        lambda number: ops.paged_attention(query, kv.key_cache, kv.value_cache, kv.metadata(number), scale),
        fastest((run_grouped, run_single)),
        FLOAT_BYTES * requests * size * (2 * context * kv_heads + 2 * config.num_heads),
        4 * requests * config.num_heads * context * size,
    )


def _prefill_case(ops: Ops, config: ModelConfig, length: int, pool_bytes: int) -> Case:
    size = config.head_size
    kv = _PagedKV(config, 1, length, pool_bytes, query_length=length)
    query = torch.randn(length, config.num_heads, size)
    # A layout of torch's own choice, made before the clock starts.
    dense_query = query.transpose(0, 1).unsqueeze(0).contiguous()

    def run_torch(number: int) -> torch.Tensor:
        keys, values = kv.dense(number)
        out = F.scaled_dot_product_attention(
            dense_query, keys, values, is_causal=True, scale=size**-0.5, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1)

    return Case(
        f"attention_prefill_{length}",
        lambda number: ops.paged_attention(query, kv.key_cache, kv.value_cache, kv.metadata(number), size**-0.5),
        run_torch,
        FLOAT_BYTES * length * size * 2 * (config.num_kv_heads + config.num_heads),
        4 * config.num_heads * size * length * (length + 1) // 2,
    )


class _PagedKV:
    """Keys and values of many copies of the same requests: in scattered blocks for us, dense for torch."""

    def __init__(self, config: ModelConfig, requests: int, context: int, pool_bytes: int, query_length: int) -> None:
        self._requests, self._context, self._query_length = requests, context, query_length
        block_bytes = 2 * FLOAT_BYTES * BLOCK_SIZE * config.num_kv_heads * config.head_size
        blocks_each = -(-context // BLOCK_SIZE)
        self.num_copies = max(1, pool_bytes // (block_bytes * blocks_each * requests))
        num_blocks = self.num_copies * requests * blocks_each
        shapes = kv_cache_shapes(num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_size)
        memory = WeightMemory()  # in large pages, as the engine keeps them
        self.key_cache, self.value_cache = (memory.empty(1, math.prod(shape)).normal_().view(shape) for shape in shapes)
        self._tables = torch.randperm(num_blocks).to(torch.int32).view(self.num_copies, requests, blocks_each)
        self._dense = [self._gather(each) for each in (self.key_cache.transpose(2, 3), self.value_cache)]
        self._metadata = [self._describe(table) for table in self._tables]

    def metadata(self, number: int) -> AttentionMetadata:
        """Where copy `number` lies."""
        return self._metadata[number % self.num_copies]

    def dense(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [requests, kv_heads, context, head_size] of copy `number`, contiguous."""
        copy = number % self.num_copies
        return self._dense[0][copy], self._dense[1][copy]

    def _gather(self, cache: torch.Tensor) -> torch.Tensor:
        """Cache [N, K, B, D] → [copies, requests, K, context, D]."""
        blocks = cache[self._tables.long()].transpose(2, 3)
        return blocks.flatten(3, 4)[:, :, :, : self._context].contiguous()

    def _describe(self, table: torch.Tensor) -> AttentionMetadata:
        requests, length = self._requests, self._query_length
        first = self._context - length
        return AttentionMetadata(
            query_start=torch.arange(0, requests * length + 1, length, dtype=torch.int32),
            seq_lens=torch.full((requests,), self._context, dtype=torch.int32),
            block_tables=table.contiguous(),
            slot_mapping=torch.zeros(requests * length, dtype=torch.int64),
            positions=torch.arange(first, self._context).repeat(requests),
        )
