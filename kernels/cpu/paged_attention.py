"""Causal attention in place over scattered blocks (arXiv 2309.06180), grouped queries together.

A context is cut into chunks of 256 positions. Within a chunk: scores, softmax weights relative to
the chunk's largest score, weighted sum of values; then the chunks are merged one after the other,
rescaled to their common largest score (online softmax, arXiv 1805.02867). With few tokens the
chunks are shared among the threads, so that one long context keeps all of them busy (the split of
Flash-Decoding); with many, a thread walks through all chunks of its token. The arithmetic is the
same. The query heads that share a key/value head go through each block together, so keys and
values are read once.

Order: a score is one dot product in the fixed order of `tile.py`. The softmax's sum runs over 16
lanes (position mod 16) that are added first to last. Values are added position by position, chunks
in order. All of it depends on positions only; hence neither neighbours nor the cut of the prompt
nor threads nor the block size change a bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, prange

from kernels.cpu.scalar import address_of, exp_float32, next_task
from kernels.cpu.tile import LANES, TILE_OUTPUTS, TILE_ROWS, dot_tile, weighted_sum_tile

CHUNK: Final = 256
"""Positions that are one unit of work; a multiple of every block size."""
SUM_LANES: Final = 16
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)


@njit(nogil=True, cache=True)
def paged_attention(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, scale, out, num_threads
):
    """Fill out [T, H, D]. query [T, H, D] may be strided; caches are [N, B, K, D]."""
    if query.shape[0] >= 4 * num_threads:
        order = np.argsort(-positions)  # the longest contexts first, so that the last tasks are short
        _attend_by_token(
            query, key_cache, value_cache, query_start, block_tables, positions, order, scale, out, num_threads
        )
    else:
        _attend_by_chunk(query, key_cache, value_cache, query_start, block_tables, positions, scale, out, num_threads)


@njit(nogil=True, cache=True, parallel=True)
def _attend_by_token(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, order, scale, out, num_threads
):
    """A task is one token with all its heads, so that blocks are read from end to end."""
    num_tokens, num_heads, head_size = query.shape
    heads = (0, key_cache.shape[2])
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        scores = np.empty((num_heads, CHUNK), np.float32)
        part, total_largest, total_sum = (
            np.empty((num_heads, head_size), np.float32),
            np.empty(num_heads, np.float32),
            np.empty(num_heads, np.float32),
        )
        largest, sums = np.empty(num_heads, np.float32), np.empty(num_heads, np.float32)
        task = next_task(counter)
        while task < num_tokens:
            token = order[task]
            table = block_tables[_request_of(token, query_start)]
            length = positions[token] + 1
            total = out[token]
            end = min(CHUNK, length)
            _attend_chunk(
                query,
                key_cache,
                value_cache,
                table,
                token,
                0,
                end,
                heads,
                scale,
                scores,
                total,
                total_largest,
                total_sum,
            )
            for start in range(CHUNK, length, CHUNK):
                end = min(start + CHUNK, length)
                _attend_chunk(
                    query, key_cache, value_cache, table, token, start, end, heads, scale, scores, part, largest, sums
                )
                _merge(total, total_largest, total_sum, part, largest, sums)
            _divide(total, total_sum)
            task = next_task(counter)


@njit(nogil=True, cache=True, parallel=True)
def _attend_by_chunk(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, scale, out, num_threads
):
    """A task is one chunk of one token and one key/value head; the chunks are merged afterwards."""
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = key_cache.shape[2]
    group = num_heads // num_kv_heads
    num_chunks = (positions.max() + CHUNK) // CHUNK
    parts = np.empty((num_tokens, num_chunks, num_heads, head_size), np.float32)
    largest = np.empty((num_tokens, num_chunks, num_heads), np.float32)
    sums = np.empty((num_tokens, num_chunks, num_heads), np.float32)
    num_tasks = num_tokens * num_chunks * num_kv_heads
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        scores = np.empty((group, CHUNK), np.float32)
        task = next_task(counter)
        while task < num_tasks:
            token, rest = task // (num_chunks * num_kv_heads), task % (num_chunks * num_kv_heads)
            chunk, head = rest // num_kv_heads, rest % num_kv_heads
            start, end = chunk * CHUNK, min((chunk + 1) * CHUNK, positions[token] + 1)
            if start < end:
                rows = slice(head * group, (head + 1) * group)
                _attend_chunk(
                    query,
                    key_cache,
                    value_cache,
                    block_tables[_request_of(token, query_start)],
                    token,
                    start,
                    end,
                    (head, head + 1),
                    scale,
                    scores,
                    parts[token, chunk, rows],
                    largest[token, chunk, rows],
                    sums[token, chunk, rows],
                )
            task = next_task(counter)
    for token in range(num_tokens):
        out[token] = parts[token, 0]
        for chunk in range(1, positions[token] // CHUNK + 1):
            _merge(
                out[token],
                largest[token, 0],
                sums[token, 0],
                parts[token, chunk],
                largest[token, chunk],
                sums[token, chunk],
            )
        _divide(out[token], sums[token, 0])


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
def _attend_chunk(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, table, token, start, end, heads, scale, scores, part, largest, sums
):
    """Attend to positions start … end - 1 for the query heads of key/value heads heads[0] … heads[1] - 1.

    Fills, for each query head: part [rows, D] with the sum of exp(score - largest) * value, largest
    [rows] and sums [rows] with the sum of exp(score - largest). scores [rows, CHUNK] is scratch.
    """
    _, block_size, num_kv_heads, head_size = key_cache.shape
    group = query.shape[1] // num_kv_heads
    first_row, num_rows = heads[0] * group, (heads[1] - heads[0]) * group
    first_block, last_block = start // block_size, (end + block_size - 1) // block_size
    for block in range(first_block, last_block):
        filled = min(block_size, end - block * block_size)
        for head in range(heads[0], heads[1]):
            keys = address_of(key_cache) + 4 * head_size * (table[block] * block_size * num_kv_heads + head)
            queries = address_of(query) + token * query.strides[0] + head * group * query.strides[1]
            column = block * block_size - start
            place = address_of(scores) + 4 * ((head * group - first_row) * CHUNK + column)
            _score_block(
                queries,
                query.strides[1] // 4,
                group,
                keys,
                num_kv_heads * head_size,
                filled,
                head_size,
                place,
                CHUNK,
            )
    for row in range(num_rows):
        largest[row], sums[row] = _softmax_weights(scores[row], end - start, scale)
        for i in range(head_size):
            part[row, i] = _ZERO
    for block in range(first_block, last_block):
        filled = min(block_size, end - block * block_size)
        for head in range(heads[0], heads[1]):
            values = address_of(value_cache) + 4 * head_size * (table[block] * block_size * num_kv_heads + head)
            row = head * group - first_row
            weights = address_of(scores) + 4 * (row * CHUNK + block * block_size - start)
            place = address_of(part) + 4 * head_size * row
            _add_values(weights, CHUNK, group, values, num_kv_heads * head_size, filled, head_size, place)


@njit(nogil=True, cache=True)
def _merge(total, total_largest, total_sum, part, largest, sums):  # type: ignore[no-untyped-def]
    """Add the next chunk to what came before, both rescaled to their common largest score, **in place**."""
    for row in range(total.shape[0]):
        common = max(total_largest[row], largest[row])
        before, after = exp_float32(total_largest[row] - common), exp_float32(largest[row] - common)
        for i in range(total.shape[1]):
            total[row, i] = total[row, i] * before + part[row, i] * after
        total_sum[row] = total_sum[row] * before + sums[row] * after
        total_largest[row] = common


@njit(nogil=True, cache=True)
def _divide(total, sums):  # type: ignore[no-untyped-def]
    """Divide each row by its sum of weights, **in place**."""
    for row in range(total.shape[0]):
        factor = _ONE / sums[row]
        for i in range(total.shape[1]):
            total[row, i] *= factor


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
    """Replace scores by exp(scale * score - largest) **in place**; return the largest and the sum."""
    padded = (length + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    for i in range(length):
        row[i] *= scale
    largest = row[0]
    for i in range(length):
        largest = max(largest, row[i])
    for i in range(length):
        row[i] = exp_float32(row[i] - largest)
    for i in range(length, padded):
        row[i] = _ZERO
    lanes = np.zeros(SUM_LANES, np.float32)
    for start in range(0, padded, SUM_LANES):
        for lane in range(SUM_LANES):
            lanes[lane] += row[start + lane]
    total = _ZERO
    for lane in range(SUM_LANES):
        total += lanes[lane]
    return largest, total
