"""Causal attention in place over scattered blocks (arXiv 2309.06180), grouped queries together.

A context is cut into chunks of 256 positions. Within a chunk: scores, softmax weights relative to
the chunk's largest score, weighted sum of values; then the chunks are merged one after the other,
rescaled to their common largest score (online softmax, arXiv 1805.02867). With few tokens the
chunks are shared among the threads, so that one long context keeps all of them busy (the split of
Flash-Decoding); with many, a thread walks through all chunks of a few neighbouring tokens of one
prompt, which share the keys and values they read. The arithmetic is the same.

With a sliding window a token begins with the chunk in which its window does, whose scores before the
window get no weight; chunks and blocks before it are not touched.

Both products are tiles (see `tile.py`): a block's keys [D, B] are a panel whose lanes are positions,
its values [B, D] one whose lanes are dimensions.

Order: a score is summed over the dimensions in turn. The softmax's sum runs over 16 lanes (position
mod 16) that are added first to last. Values are added position by position, chunks in order. All of
it depends on positions and the window only; hence neither neighbours nor the cut of the prompt nor
threads nor the block size change a bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit, prange

from kernels.cpu.scalar import address_of, exp_float32, next_task
from kernels.cpu.tile import CACHE_LINE_BYTES, WIDE_ROWS, WIDE_VECTORS, multiply_tile, tile_width
from kernels.cpu.vector_code import LANES

CHUNK: Final = 256
"""Positions that are one unit of work; a multiple of every block size."""
GROUP_TOKENS: Final = WIDE_ROWS
"""Neighbouring tokens of a prompt that go through its keys and values together."""
BLOCKS_AHEAD: Final = 2
"""How far ahead blocks are asked for: they lie scattered, so the processor cannot guess the next one."""
SUM_LANES: Final = 16
NO_WINDOW: Final = 2**62
"""A window that no context fills."""
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)
_LOWEST: Final = np.float32(-np.inf)


@njit(nogil=True, cache=True)
def paged_attention(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, scale, window, out, num_threads
):
    """Fill out [T, H, D]; keys are [N, K, D, B], values [N, K, B, D]. A token sees its last `window` positions.

    query: (1-D array, elements from token to token, elements from head to head) of [T, H, D]. Not a 3-D
    array, because numba would compile everything once for contiguous queries and once for strided ones.
    """
    groups = _token_groups(query_start, positions, window)
    if groups.shape[0] >= 4 * num_threads:
        _attend_by_tokens(
            query, key_cache, value_cache, block_tables, positions, groups, scale, window, out, num_threads
        )
    else:
        _attend_by_chunk(
            query, key_cache, value_cache, query_start, block_tables, positions, scale, window, out, num_threads
        )


@njit(nogil=True, cache=True)
def _first_chunk(position, window):  # type: ignore[no-untyped-def]
    """Return the number of the chunk in which the window of the token at `position` begins."""
    return max(0, position - window + 1) // CHUNK


@njit(nogil=True, cache=True)
def _num_chunks(position, window):  # type: ignore[no-untyped-def]
    """Return how many chunks the token at `position` attends to."""
    return position // CHUNK - _first_chunk(position, window) + 1


@njit(nogil=True, cache=True)
def _token_groups(query_start, positions, window):  # type: ignore[no-untyped-def]
    """Return groups (first token, tokens, request), the longest contexts first so that the last tasks are short.

    The tokens of a group are neighbours of one request whose positions lie in one chunk, and whose
    windows begin in one chunk: so every token sees something of each chunk that the group goes through.
    """
    num_tokens = positions.shape[0]
    groups, longest = np.empty((num_tokens, 3), np.int64), 0
    count = 0
    for request in range(query_start.shape[0] - 1):
        token, end = query_start[request], query_start[request + 1]
        while token < end:
            position = positions[token]
            size = min(GROUP_TOKENS, end - token, CHUNK - position % CHUNK)
            size = min(size, (_first_chunk(position, window) + 1) * CHUNK - (position - window + 1))
            groups[count, 0], groups[count, 1], groups[count, 2] = token, size, request
            longest = max(longest, _num_chunks(position, window))
            count += 1
            token += size
    # By the number of chunks: that is what a task costs, and it needs no sorting.
    ordered, place = np.empty((count, 3), np.int64), 0
    for num_chunks in range(longest, 0, -1):
        for group in range(count):
            if _num_chunks(positions[groups[group, 0]], window) == num_chunks:
                for i in range(3):
                    ordered[place, i] = groups[group, i]
                place += 1
    return ordered


@njit(nogil=True, cache=True, parallel=True)
def _attend_by_tokens(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, block_tables, positions, groups, scale, window, out, num_threads
):
    """A task is a group of tokens with all its heads."""
    num_heads, head_size = out.shape[1], out.shape[2]
    num_kv_heads = key_cache.shape[1]
    heads_per_kv = num_heads // num_kv_heads
    most_rows = GROUP_TOKENS * heads_per_kv
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        queries = np.empty((most_rows, head_size), np.float32)
        scores, lanes = np.empty((most_rows, CHUNK), np.float32), np.empty(SUM_LANES, np.float32)
        total, part = np.empty((most_rows, head_size), np.float32), np.empty((most_rows, head_size), np.float32)
        total_largest, total_sum = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
        largest, sums = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
        task = next_task(counter, 0)
        while task < groups.shape[0]:
            token, num_tokens = groups[task, 0], groups[task, 1]
            table, position = block_tables[groups[task, 2]], positions[token]
            rows, begin = num_tokens * heads_per_kv, _first_chunk(position, window) * CHUNK
            for head in range(num_kv_heads):
                _collect_queries(query, token, head, heads_per_kv, rows, queries)
                for start in range(begin, position + num_tokens, CHUNK):
                    first = start == begin
                    _attend_chunk(
                        address_of(queries),
                        head_size,
                        heads_per_kv,
                        (position, num_tokens, window),
                        key_cache,
                        value_cache,
                        head,
                        table,
                        start,
                        scale,
                        scores,
                        lanes,
                        total if first else part,
                        total_largest if first else largest,
                        total_sum if first else sums,
                    )
                    if not first:
                        _merge(rows, total, total_largest, total_sum, part, largest, sums)
                for row in range(rows):
                    place = out[token + row // heads_per_kv, head * heads_per_kv + row % heads_per_kv]
                    _divide(total[row], total_sum[row], place)
            task = next_task(counter, 0)


@njit(nogil=True, cache=True)
def _collect_queries(query, token, head, heads_per_kv, rows, queries):  # type: ignore[no-untyped-def]
    """Fill queries [rows, D] with what reads one key/value head, token by token."""
    elements, token_stride, head_stride = query
    for row in range(rows):
        place = (token + row // heads_per_kv) * token_stride + (head * heads_per_kv + row % heads_per_kv) * head_stride
        for i in range(queries.shape[1]):
            queries[row, i] = elements[place + i]


@njit(nogil=True, cache=True, parallel=True)
def _attend_by_chunk(  # type: ignore[no-untyped-def]
    query, key_cache, value_cache, query_start, block_tables, positions, scale, window, out, num_threads
):
    """A task is one chunk of one token and one key/value head; the chunks are merged afterwards."""
    elements, token_stride, head_stride = query
    num_tokens, num_heads, head_size = out.shape
    num_kv_heads = key_cache.shape[1]
    heads_per_kv = num_heads // num_kv_heads
    num_chunks = 0
    for token in range(num_tokens):
        num_chunks = max(num_chunks, _num_chunks(positions[token], window))
    parts = np.empty((num_tokens, num_chunks, num_heads, head_size), np.float32)
    largest = np.empty((num_tokens, num_chunks, num_heads), np.float32)
    sums = np.empty((num_tokens, num_chunks, num_heads), np.float32)
    num_tasks = num_tokens * num_chunks * num_kv_heads
    counter = np.zeros(1, np.int64)
    for _ in prange(num_threads):
        scores, lanes = np.empty((heads_per_kv, CHUNK), np.float32), np.empty(SUM_LANES, np.float32)
        task = next_task(counter, 0)
        while task < num_tasks:
            token, rest = task // (num_chunks * num_kv_heads), task % (num_chunks * num_kv_heads)
            chunk, head = rest // num_kv_heads, rest % num_kv_heads
            if chunk < _num_chunks(positions[token], window):
                first, last = head * heads_per_kv, (head + 1) * heads_per_kv
                _attend_chunk(
                    address_of(elements) + 4 * (token * token_stride + first * head_stride),
                    head_stride,
                    heads_per_kv,
                    (positions[token], 1, window),
                    key_cache,
                    value_cache,
                    head,
                    block_tables[_request_of(token, query_start)],
                    (_first_chunk(positions[token], window) + chunk) * CHUNK,
                    scale,
                    scores,
                    lanes,
                    parts[token, chunk, first:last],
                    largest[token, chunk, first:last],
                    sums[token, chunk, first:last],
                )
            task = next_task(counter, 0)
    for token in range(num_tokens):
        total, total_largest, total_sum = parts[token, 0], largest[token, 0], sums[token, 0]
        for chunk in range(1, _num_chunks(positions[token], window)):
            part, part_largest, part_sum = parts[token, chunk], largest[token, chunk], sums[token, chunk]
            _merge(num_heads, total, total_largest, total_sum, part, part_largest, part_sum)
        for row in range(num_heads):
            _divide(total[row], total_sum[row], out[token, row])


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
    queries,
    query_stride,
    heads_per_kv,
    tokens,
    key_cache,
    value_cache,
    head,
    table,
    start,
    scale,
    scores,
    lanes,
    part,
    largest,
    sums,
):
    """Let the rows of some tokens attend to the chunk's positions start … start + CHUNK - 1, each to its last `window`.

    queries: address of the rows, token by token, the query heads of key/value head `head` each.
    tokens: (position of the first, how many, window); each sees some of the chunk, nor do they end in different ones.

    Fills, for each row: part [rows, D] with the sum of exp(score - largest) * value, largest [rows]
    and sums [rows] with the sum of exp(score - largest). scores [rows, CHUNK] and lanes are scratch.
    """
    head_size, block_size = key_cache.shape[2:]
    position, num_tokens, window = tokens
    rows = num_tokens * heads_per_kv
    end = min(start + CHUNK, position + num_tokens)
    first_block, end_block = max(start, position - window + 1) // block_size, (end + block_size - 1) // block_size
    # Whoever attends to this chunk with one head mostly goes on with the next.
    next_keys = _address_in(key_cache, table[first_block], min(head + 1, key_cache.shape[1] - 1))

    for block in range(first_block, end_block):
        keys = _address_in(key_cache, table[block], head)
        ahead = _address_in(value_cache, table[first_block], head)
        if block + BLOCKS_AHEAD < end_block:
            ahead = _address_in(key_cache, table[block + BLOCKS_AHEAD], head)
        place = address_of(scores) + 4 * (block * block_size - start)
        _multiply(rows, queries, query_stride, keys, block_size, head_size, block_size, place, CHUNK, 0, ahead)

    # What lies before the first block is left out, in steps that leave every position its lane.
    left_out = (first_block * block_size - start) // SUM_LANES * SUM_LANES
    begin = start + left_out
    for row in range(rows):
        own_end = position + row // heads_per_kv + 1
        hidden, seen = max(0, own_end - window - begin), min(start + CHUNK, own_end) - begin
        largest[row], sums[row] = _softmax_weights(scores[row, left_out:], hidden, seen, end - begin, scale, lanes)

    # Weights outside a token's window are 0 and add nothing: all rows go through all blocks together.
    for block in range(first_block, end_block):
        values = _address_in(value_cache, table[block], head)
        ahead = next_keys
        if block + BLOCKS_AHEAD < end_block:
            ahead = _address_in(value_cache, table[block + BLOCKS_AHEAD], head)
        seen = min(block_size, end - block * block_size)
        weights, goes_on = address_of(scores) + 4 * (block * block_size - start), block > first_block
        place = address_of(part)
        _multiply(rows, weights, CHUNK, values, head_size, seen, head_size, place, head_size, goes_on, ahead)


@njit(nogil=True, cache=True)
def _address_in(cache, block_id, head):  # type: ignore[no-untyped-def]
    """Return the address of one head's part of a block."""
    return address_of(cache) + 4 * cache.shape[2] * cache.shape[3] * (block_id * cache.shape[1] + head)


@njit(nogil=True, cache=True)
def _multiply(rows, a, a_stride, b, b_stride, size, width, out, out_stride, accumulate, ahead):  # type: ignore[no-untyped-def]
    """Fill out[:rows, :width] with a [rows, size] times b [size, width], or add it to what is there.

    All are addresses. Meanwhile what lies from `ahead` on is asked for.
    """
    column = 0
    while column < width:
        vectors, columns = tile_width(width - column, WIDE_VECTORS)
        for row in range(0, rows, WIDE_ROWS):
            multiply_tile(
                min(WIDE_ROWS, rows - row),
                vectors,
                a + 4 * a_stride * row,
                a_stride,
                b + 4 * column,
                b_stride,
                LANES,
                size,
                out + 4 * (out_stride * row + column),
                out_stride,
                columns,
                accumulate,
                ahead,
                CACHE_LINE_BYTES,
            )
            ahead += CACHE_LINE_BYTES * size
        column += columns


@njit(nogil=True, cache=True)
def _merge(rows, total, total_largest, total_sum, part, largest, sums):  # type: ignore[no-untyped-def]
    """Add the next chunk to what came before, both rescaled to their common largest score, **in place**."""
    for row in range(rows):
        common = max(total_largest[row], largest[row])
        before, after = exp_float32(total_largest[row] - common), exp_float32(largest[row] - common)
        for i in range(total.shape[1]):
            total[row, i] = total[row, i] * before + part[row, i] * after
        total_sum[row] = total_sum[row] * before + sums[row] * after
        total_largest[row] = common


@njit(nogil=True, cache=True)
def _divide(total, weight_sum, out):  # type: ignore[no-untyped-def]
    """Fill out [D] with total [D] divided by the sum of its weights."""
    factor = _ONE / weight_sum
    for i in range(out.shape[0]):
        out[i] = total[i] * factor


@njit(nogil=True, cache=True)
def _softmax_weights(row, hidden, length, end, scale, lanes):  # type: ignore[no-untyped-def]
    """Replace scores hidden … length - 1 by exp(scale * score - largest) **in place**; return the largest and the sum.

    The scores before them, and behind them up to `end`, become 0.

    Lane by lane, so that it runs in vectors: a maximum has no order, and the sum has this one.
    """
    padded = (end + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    for i in range(length):
        row[i] *= scale
    for i in range(hidden):
        row[i] = _LOWEST
    for i in range(length, padded):
        row[i] = _LOWEST
    for lane in range(SUM_LANES):
        lanes[lane] = row[lane]
    for start in range(SUM_LANES, padded, SUM_LANES):
        for lane in range(SUM_LANES):
            value = row[start + lane]
            lanes[lane] = value if value > lanes[lane] else lanes[lane]
    largest = lanes[0]
    for lane in range(1, SUM_LANES):
        largest = max(largest, lanes[lane])
    for i in range(padded):
        row[i] = exp_float32(row[i] - largest)
    for lane in range(SUM_LANES):
        lanes[lane] = row[lane]
    for start in range(SUM_LANES, padded, SUM_LANES):
        for lane in range(SUM_LANES):
            lanes[lane] += row[start + lane]
    total = _ZERO
    for lane in range(SUM_LANES):
        total += lanes[lane]
    return largest, total
