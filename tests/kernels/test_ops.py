"""Every op of every backend against a dense float64 oracle."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cpu import panels
from kernels.ops import DecoderLayerShape, DecoderLayerWeights, Ops, load_backend
from kernels.reference.decoder_layer import decoder_layer
from kernels.weights import RowWeight
from tests.kernels import oracle
from tests.kernels.oracle import paged_case, prepared, randn


@pytest.fixture(scope="module", params=["reference", "cpu"])
def ops(request):
    return load_backend(request.param)


def assert_close(result, expected, tolerance=2e-6):
    """Compare in units of the expected values' own size."""
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 8, 33, 257])
@pytest.mark.parametrize(("out_size", "in_size"), [(576, 576), (5, 1), (1, 17), (13, 100), (66, 1536)])
def test_linear_matches_the_dense_product(ops, num_rows, out_size, in_size):
    x, weight = randn(num_rows, in_size), randn(out_size, in_size, seed=1)
    assert_close(ops.linear(x, prepared(ops, weight)), oracle.linear(x, weight))


def test_linear_adds_the_bias(ops):
    x, weight, bias = randn(3, 32), randn(8, 32, seed=1), randn(8, seed=2)
    assert_close(ops.linear(x, prepared(ops, weight), bias), oracle.linear(x, weight, bias))


def test_linear_reads_rows_that_lie_apart(ops):
    x, weight = randn(13, 40), randn(9, 32, seed=1)
    assert_close(ops.linear(x[1::6, 4:36], prepared(ops, weight)), oracle.linear(x[1::6, 4:36].clone(), weight))


def test_linear_refuses_a_weight_of_another_backend():
    with pytest.raises(TypeError, match="weights that it prepared, not by a RowWeight"):
        load_backend("cpu").linear(randn(1, 32), RowWeight(randn(8, 32)))


@pytest.mark.parametrize(("out_size", "in_size"), [(1, 1), (3, 40), (16, 7), (37, 24), (64, 64)])
def test_prepared_weights_give_their_matrix_and_its_rows_back(ops, out_size, in_size):
    matrix = randn(out_size, in_size)
    weight = prepared(ops, matrix)
    assert (weight.num_outputs, weight.num_inputs, weight.num_bytes) == (out_size, in_size, 4 * out_size * in_size)
    assert torch.equal(weight.dense(), matrix)
    picked = torch.tensor([out_size - 1, 0, out_size // 2, 0])
    assert torch.equal(weight.rows(picked), matrix[picked])


@pytest.mark.parametrize("num_rows", [1, 5, 8, 9, 40])
@pytest.mark.parametrize(("out_size", "in_size"), [(1, 1), (5, 3), (61, 100), (576, 576)])
def test_float16_weight_multiplies_as_the_float32_that_it_stands_for(ops, num_rows, out_size, in_size):
    """Bitwise; 61 = 3 * 16 + 13, so that a narrow last panel is among them. Subnormal values are, too."""
    x, half = randn(num_rows, in_size), randn(out_size, in_size, seed=1).half()
    half[0, 0], half[-1, -1] = 6e-8, -65504.0
    assert torch.equal(ops.linear(x, prepared(ops, half)), ops.linear(x, prepared(ops, half.float())))


@pytest.mark.parametrize(("out_size", "in_size"), [(1, 1), (37, 24)])
def test_float16_weight_takes_half_the_memory_and_gives_its_values_back(ops, out_size, in_size):
    half = randn(out_size, in_size).half()
    weight = prepared(ops, half)
    assert (weight.num_outputs, weight.num_inputs, weight.num_bytes) == (out_size, in_size, 2 * out_size * in_size)
    assert torch.equal(weight.dense(), half.float())
    picked = torch.tensor([out_size - 1, 0, out_size // 2, 0])
    assert torch.equal(weight.rows(picked), half.float()[picked])


def test_float16_weight_is_kept_as_float32_where_the_processor_has_no_such_values(monkeypatch):
    monkeypatch.setattr(panels, "HAS_HALF", False)
    ops = load_backend("cpu")
    x, half = randn(3, 24), randn(37, 24, seed=1).half()
    weight = prepared(ops, half)
    assert weight.num_bytes == 4 * 37 * 24
    assert torch.equal(ops.linear(x, weight), ops.linear(x, prepared(ops, half.float())))


@pytest.mark.parametrize("row", [-1, 5])
def test_panels_have_no_row_outside_their_matrix(row):
    weight = prepared(load_backend("cpu"), randn(5, 3))
    with pytest.raises(IndexError, match="not within 0 … 4"):
        weight.rows(torch.tensor([0, row]))


def test_linear_of_no_rows_is_empty(ops):
    assert ops.linear(randn(0, 32), prepared(ops, randn(8, 32))).shape == (0, 8)


def test_linear_passes_nan_and_infinity_on(ops):
    x = torch.ones(3, 20)
    x[1, 19] = float("nan")
    x[2, 3] = float("inf")
    result = ops.linear(x, prepared(ops, torch.ones(5, 20)))
    assert torch.equal(result[0], torch.full((5,), 20.0))
    assert result[1].isnan().all()
    assert torch.equal(result[2], torch.full((5,), float("inf")))


@pytest.mark.parametrize(("num_rows", "size"), [(1, 576), (3, 5), (70, 576)])
def test_rms_norm_matches_its_definition(ops, num_rows, size):
    x, weight = randn(num_rows, size) * 3, randn(size, seed=1)
    before = x.clone()
    assert_close(ops.rms_norm(x, weight, 1e-5), oracle.rms_norm(x, weight, 1e-5))
    assert torch.equal(x, before)


@pytest.mark.parametrize("num_rows", [1, 3, 70])
def test_add_rms_norm_adds_in_place_and_norms_the_sum(ops, num_rows):
    x, residual, weight = randn(num_rows, 576), randn(num_rows, 576, seed=1), randn(576, seed=2)
    total = x + residual
    result = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_close(result, oracle.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("num_rows", [1, 3, 70])
def test_rotary_embedding_turns_each_plane_in_place_in_strided_views(ops, num_rows):
    qkv = randn(num_rows, 15, 64)
    before = qkv.clone()
    angles = torch.arange(200)[:, None] * 10000.0 ** -(torch.arange(32) / 32)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.arange(num_rows).flip(0) * 2 + 1
    query, key, value = torch.split(qkv, [9, 3, 3], dim=1)
    ops.rotary_embedding(query, key, cos_sin, positions)
    assert_close(query, oracle.rotate(before[:, :9], cos_sin, positions))
    assert_close(key, oracle.rotate(before[:, 9:12], cos_sin, positions))
    assert torch.equal(value, before[:, 12:])


@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_silu_and_mul_matches_its_definition(ops, num_rows):
    gate_up = randn(num_rows, 2 * 1536) * 4
    assert_close(ops.silu_and_mul(gate_up), oracle.silu_and_mul(gate_up))


def test_silu_and_mul_is_finite_at_the_extremes(ops):
    gate = torch.tensor([-1e30, -200.0, -88.5, -87.2, 0.0, 87.2, 200.0, 1e30])
    result = ops.silu_and_mul(torch.cat((gate, torch.ones(8)))[None])[0]
    torch.testing.assert_close(result, torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 87.2, 200.0, 1e30]))


def test_write_kv_scatters_rows_to_their_slots_and_nowhere_else(ops):
    qkv = randn(3, 5, 16)
    _, key, value = torch.split(qkv, [1, 2, 2], dim=1)
    key_cache, value_cache = torch.zeros(4, 2, 16, 8), torch.zeros(4, 2, 8, 16)
    ops.write_kv(key, value, key_cache, value_cache, torch.tensor([31, 0, 9]))
    assert torch.equal(key_cache[3, :, :, 7], key[0])
    assert torch.equal(key_cache[0, :, :, 0], key[1])
    assert torch.equal(value_cache[1, :, 1], value[2])
    assert int((key_cache != 0).sum()) == 3 * 2 * 16
    assert int((value_cache != 0).sum()) == 3 * 2 * 16


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size"), [(9, 3, 64), (4, 4, 16), (8, 1, 128), (4, 2, 24), (6, 2, 80)]
)
def test_paged_attention_matches_dense_attention(ops, block_size, num_heads, num_kv_heads, head_size):
    # Whole prompts, a chunk behind a context, and single tokens, in one step.
    case = paged_case(
        [1, 37, 50, 64, 130],
        [1, 37, 11, 1, 1],
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
    )
    assert_close(ops.paged_attention(*case.arguments), case.expected())


@pytest.mark.parametrize("length", [8, 16, 32, 64, 96])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_trap_10_paged_attention_reads_no_block_past_a_context_of_whole_blocks(ops, length, block_size):
    """TRAPS 10: the pool outside the context is NaN and the table's next entries are -1."""
    case = paged_case([length], [1], block_size=block_size)
    result = ops.paged_attention(*case.arguments)
    assert not result.isnan().any()
    assert_close(result, case.expected())


def test_paged_attention_ignores_slots_behind_the_context_in_its_last_block(ops):
    case = paged_case([17], [2], block_size=32)
    assert int(case.key_cache.isnan().any(dim=(1, 2)).sum()) == 4 * 32 - 17
    assert_close(ops.paged_attention(*case.arguments), case.expected())


def test_paged_attention_takes_a_strided_query(ops):
    case = paged_case([20, 5], [3, 1])
    qkv = torch.full((4, 15, 64), float("nan"))
    qkv[:, :9] = case.query
    result = ops.paged_attention(qkv[:, :9], *case.arguments[1:])
    assert torch.equal(result, ops.paged_attention(*case.arguments))


def test_paged_attention_survives_very_large_and_very_small_scores(ops):
    case = paged_case([40], [5])
    case.query.mul_(300)
    result = ops.paged_attention(*case.arguments)
    np.testing.assert_allclose(result.numpy(), case.expected(), rtol=0, atol=2e-4)


def test_backends_describe_themselves():
    assert load_backend("reference").describe().startswith("torch reference, ")
    assert load_backend("cpu").describe().startswith("numba omp, ")
    assert not load_backend("reference").is_batch_invariant
    assert load_backend("cpu").is_batch_invariant
    with pytest.raises(ValueError, match="'tpu' is unknown: choose 'cpu' or 'reference'"):
        load_backend("tpu")


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_new", [[1], [7, 1, 20]])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("num_more", [0, 20])
def test_decoder_layer_is_bitwise_its_ops_one_by_one(
    num_new: list[int], has_bias: bool, window: int | None, num_more: int
):
    """On the compiled backend; and it agrees with the reference backend. `num_more` columns beside the stream's."""
    shape = DecoderLayerShape(num_heads=4, num_kv_heads=2, head_size=16, eps=1e-5, sliding_window=window)
    case = paged_case([40, 9, 20][: len(num_new)], num_new, num_heads=4, num_kv_heads=2, head_size=16, window=window)
    num_tokens, hidden_size, inner = sum(num_new), 48, 56

    def bias(size: int) -> torch.Tensor | None:
        return randn(size, seed=size) if has_bias else None

    def weights_for(ops: Ops) -> DecoderLayerWeights:
        return DecoderLayerWeights(
            input_norm=randn(hidden_size),
            qkv=prepared(ops, randn(128, hidden_size + num_more, seed=1)),
            output=prepared(ops, randn(hidden_size, 64, seed=2)),
            post_attention_norm=randn(hidden_size, seed=3),
            gate_up=prepared(ops, randn(2 * inner, hidden_size, seed=4)),
            down=prepared(ops, randn(hidden_size, inner, seed=5)),
            qkv_bias=bias(128),
            output_bias=bias(hidden_size),
            gate_up_bias=bias(2 * inner),
            down_bias=bias(hidden_size),
        )

    cos_sin = randn(64, 16, seed=7)

    def run(layer: Any, weights: DecoderLayerWeights) -> tuple[torch.Tensor, ...]:
        residual = randn(num_tokens, hidden_size, seed=8)
        caches = (case.key_cache.clone(), case.value_cache.clone())
        hidden = randn(num_tokens, hidden_size + num_more, seed=9)
        next_norm = randn(hidden_size, seed=6)
        return layer(hidden, residual, weights, next_norm, shape, caches, cos_sin, case.metadata), residual, *caches

    cpu, reference = load_backend("cpu"), load_backend("reference")
    fused = run(cpu.decoder_layer, weights_for(cpu))
    one_by_one = run(partial(decoder_layer, cpu), weights_for(cpu))
    expected = run(reference.decoder_layer, weights_for(reference))

    for a, b, c in zip(fused, one_by_one, expected, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
        assert torch.allclose(a, c, rtol=1e-3, atol=1e-3, equal_nan=True)
