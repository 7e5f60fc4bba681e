"""Attention to a sliding window: the right positions, and no block behind them (TRAPS 10, from the other end)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from kernels.ops import Ops, load_backend
from tests.kernels.oracle import PagedCase, paged_case

BLOCK_SIZE = 16
WINDOWS = [1, 5, 16, 17, 36, 255, 256, 257, 300, 600, 5000]
"""Below a block, one block, across blocks, one chunk of the cpu kernel and its neighbours, more than any context."""
LENGTHS = [1, 37, 300, 513, 700]
SMALL = {"num_heads": 4, "num_kv_heads": 2, "head_size": 16}


@pytest.fixture(scope="module", params=["reference", "cpu"])
def ops(request):
    return load_backend(request.param)


def attend(ops: Ops, case: PagedCase) -> torch.Tensor:
    return ops.paged_attention(*case.arguments)


def assert_close(result: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("num_new", [[1, 1, 1, 1, 1], [1, 37, 300, 40, 3]])
def test_window_matches_dense_attention_and_reads_nothing_behind_it(ops, window, num_new):
    """Blocks behind all windows of a request are NaN, and so is the one that the table names for them."""
    assert_close(attend(ops, case := paged_case(LENGTHS, num_new, window=window, **SMALL)), case.expected())


@pytest.mark.parametrize("window", [3, 8, 30, 260])
@pytest.mark.parametrize("block_size", [8, 32])
def test_window_matches_dense_attention_in_blocks_of_other_sizes(ops, block_size, window):
    case = paged_case(LENGTHS, [1, 7, 300, 1, 20], window=window, block_size=block_size, **SMALL)
    assert_close(attend(ops, case), case.expected())


@pytest.mark.parametrize("window", [1, 16, 36, 200])
def test_window_means_what_it_means_in_transformers(ops, window):
    from transformers.masking_utils import causal_mask_function, sliding_window_overlay

    case = paged_case([150], [150], window=window, **SMALL)
    q, kv = torch.arange(150)[:, None], torch.arange(150)[None]
    mask = causal_mask_function(0, 0, q, kv) & sliding_window_overlay(window)(0, 0, q, kv)
    query, key, value = (each.transpose(0, 1) for each in (case.query, case.keys[0], case.values[0]))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=case.scale, enable_gqa=True)
    torch.testing.assert_close(attend(ops, case), expected.transpose(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("others", [0, 1])
def test_window_ignores_what_the_table_says_of_blocks_behind_it(ops, others):
    """Block 0 is what a freed entry is filled with; a block of another request is what may be there by chance."""
    case = paged_case([200, 90], [1, 20], window=36, **SMALL)
    expected = attend(ops, case)
    tables = case.metadata.block_tables.clone()
    garbage = 0 if others == 0 else int(tables[1, 4])
    # Positions 164 … 199 and 35 … 89 are seen: from block 10 and block 2 on.
    tables[0, :10], tables[1, :2] = garbage, garbage
    changed = replace(case, metadata=replace(case.metadata, block_tables=tables))
    assert torch.equal(attend(ops, changed), expected)


def test_window_begins_inside_a_block_whose_earlier_positions_have_no_say(ops):
    case = paged_case([40], [1], window=10, **SMALL)
    expected = attend(ops, case)
    block = int(case.metadata.block_tables[0, 30 // BLOCK_SIZE])
    case.key_cache[block, :, :, : 30 % BLOCK_SIZE] = 1e6
    case.value_cache[block, :, : 30 % BLOCK_SIZE] = 1e6
    assert torch.equal(attend(ops, case), expected)


def test_window_survives_very_large_scores_just_outside_it(ops):
    """Only what a token sees may decide what its scores are measured by: the others' would leave it no weight."""
    case = paged_case([700], [400], window=40, **SMALL)
    case.query.mul_(300)
    np.testing.assert_allclose(attend(ops, case).numpy(), case.expected(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("length", [1, 16, 257, 600])
def test_window_of_the_whole_context_or_more_is_bitwise_no_window(ops, length):
    num_new = min(length, 30)
    plain = attend(ops, paged_case([length], [num_new], **SMALL))
    for window in (length, length + 1, 10**9):
        assert torch.equal(attend(ops, paged_case([length], [num_new], window=window, **SMALL)), plain)
