"""Causal attention in place over scattered blocks (arXiv 2309.06180), grouped queries together.

For each token: scores of all positions, softmax, weighted sum of values. The query heads that
share a key/value head go through each block together, so keys and values are read once.

Order: a score is one dot product in the fixed order of `tile.py`. The softmax's sum runs over 16
lanes (position mod 16) that are added in turn at the end. Values are added position by position. All
three depend on positions only; hence neither neighbours nor chunks nor threads nor the block size
change a bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, prange

from kernels.cpu.scalar import address_of, exp_float32, next_task
from kernels.cpu.tile import LANES, TILE_OUTPUTS, TILE_ROWS, dot_tile, weighted_sum_tile

SUM_LANES: Final = 16
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)
_MINUS_INFINITY: Final = np.float32(-np.inf)


@njit(nogil=True, cache=True, parallel=True)
def paged_attention(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, order, scale, out, num_threads
):
    """Fill out [T, H, D]. query [T, H, D] (strided), caches [N, B, K, D], order int64 [T]: longest context first."""
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = key_cache.shape[2]
    # With many tokens a task takes all heads of one, so that blocks are read from end to end; with
    # few, one head, so that all threads have work.
    heads_per_task = num_kv_heads if num_tokens >= 4 * num_threads else 1
    parts = num_kv_heads // heads_per_task
    longest = positions[order[0]] + 1
    padded = (longest + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        scores = np.empty((num_heads // num_kv_heads * heads_per_task, padded), np.float32)
        task = next_task(counter)
        while task < num_tokens * parts:
            token = order[task // parts]
            table = block_tables[_request_of(token, query_start)]
            first_head = task % parts * heads_per_task
            heads = (first_head, first_head + heads_per_task)
            _attend(query, key_cache, value_cache, table, token, positions[token] + 1, heads, scale, scores, out)
            task = next_task(counter)


@njit(nogil=True, cache=True)
def _request_of(token, query_start):  # type: ignore[no-untyped-def]
    """Return the request whose rows contain the token, by bisection."""
    low, high = 0, query_start.shape[0] - 2
    while low < high:
        middle = (low + high + 1) // 2
        if query_start[middle] <= token:
            low = middle
        else:
            high = middle - 1
    return low


@njit(nogil=True, cache=True)
def _attend(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, table, token, length, heads, scale, scores, out
):
    """Fill out[token] for the query heads of key/value heads heads[0] … heads[1] - 1."""
    _, block_size, num_kv_heads, head_size = key_cache.shape
    group = query.shape[1] // num_kv_heads
    first_row, num_rows = heads[0] * group, (heads[1] - heads[0]) * group
    num_blocks = (length + block_size - 1) // block_size
    for block in range(num_blocks):
        filled = min(block_size, length - block * block_size)
        for head in range(heads[0], heads[1]):
            keys = address_of(key_cache) + 4 * head_size * (table[block] * block_size * num_kv_heads + head)
            queries = address_of(query) + token * query.strides[0] + head * group * query.strides[1]
            place = address_of(scores) + 4 * ((head * group - first_row) * scores.shape[1] + block * block_size)
            _score_block(
                queries,
                query.strides[1] // 4,
                group,
                keys,
                num_kv_heads * head_size,
                filled,
                head_size,
                place,
                scores.shape[1],
            )
    sums = np.empty(num_rows, np.float32)
    for row in range(num_rows):
        sums[row] = _softmax_weights(scores[row], length, scale)
        out[token, first_row + row, :] = _ZERO
    for block in range(num_blocks):
        filled = min(block_size, length - block * block_size)
        for head in range(heads[0], heads[1]):
            values = address_of(value_cache) + 4 * head_size * (table[block] * block_size * num_kv_heads + head)
            weights = address_of(scores) + 4 * ((head * group - first_row) * scores.shape[1] + block * block_size)
            place = address_of(out) + 4 * head_size * (token * out.shape[1] + head * group)
            _add_values(weights, scores.shape[1], group, values, num_kv_heads * head_size, filled, head_size, place)
    for row in range(num_rows):
        factor = _ONE / sums[row]
        for i in range(head_size):
            out[token, first_row + row, i] *= factor


@njit(nogil=True, cache=True)
def _score_block(  # type: ignore[no-untyped-def]
    queries, query_stride, group, keys, key_stride, filled, head_size, place, stride
):
    """Write the dot products of `group` query heads with the first `filled` keys of one block."""
    position = 0
    while position < filled:
        outputs = TILE_OUTPUTS if filled - position >= TILE_OUTPUTS else 1
        for row in range(0, group, TILE_ROWS):
            rows = min(TILE_ROWS, group - row)
            q, k = queries + 4 * query_stride * row, keys + 4 * key_stride * position
            dot_tile(
                rows, outputs, q, query_stride, k, key_stride, head_size, place + 4 * (stride * row + position), stride
            )
        position += outputs


@njit(nogil=True, cache=True)
def _add_values(  # type: ignore[no-untyped-def]
    weights, weight_stride, group, values, value_stride, filled, head_size, place
):
    """Add the first `filled` values of one block, weighted, to the results of `group` heads."""
    for row in range(0, group, TILE_ROWS):
        rows = min(TILE_ROWS, group - row)
        column = 0
        while column < head_size:
            vectors = 4 if head_size - column >= 4 * LANES else 1
            width = min(vectors * LANES, head_size - column)
            p, v = weights + 4 * weight_stride * row, values + 4 * column
            target = place + 4 * (head_size * row + column)
            weighted_sum_tile(rows, vectors, p, weight_stride, v, value_stride, filled, width, target, head_size)
            column += width


@njit(nogil=True, cache=True)
def _softmax_weights(row, length, scale):  # type: ignore[no-untyped-def]
    """Replace scores by exp(scale * score - largest) **in place** and return their sum.

    Loops run over whole groups of lanes, so that they are vector code and yet have one order.
    """
    padded = (length + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    for i in range(length):
        row[i] *= scale
    for i in range(length, padded):
        row[i] = _MINUS_INFINITY
    largest = row[0]
    for i in range(length):
        largest = max(largest, row[i])
    for i in range(padded):
        row[i] = exp_float32(row[i] - largest)
    lanes = np.zeros(SUM_LANES, np.float32)
    for start in range(0, padded, SUM_LANES):
        for lane in range(SUM_LANES):
            lanes[lane] += row[start + lane]
    total = _ZERO
    for lane in range(SUM_LANES):
        total += lanes[lane]
    return total
