"""Norms, rotary embedding, activation and cache writes: one row at a time, each row alone.

A few rows are done by the calling thread, since waking others costs more than the work; many rows
are shared. Both ways run the same function per row, so the bits are the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import carray, njit, prange

from kernels.cpu.scalar import address_of, as_pointer, exp_float32

PARALLEL_ELEMENTS: Final = 32 * 1024
"""Elements from which on waking the other threads pays (about 5 µs)."""

SUM_LANES: Final = 16
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)


@njit(nogil=True, cache=True, parallel=True)
def rms_norm(x, weight, eps, out):  # type: ignore[no-untyped-def]
    """Fill out [T, C] with the norm of x [T, C] times weight [C]."""
    if x.size < PARALLEL_ELEMENTS:
        for row in range(x.shape[0]):
            _norm_row(x, row, weight, eps, out)
    else:
        for row in prange(x.shape[0]):
            _norm_row(x, row, weight, eps, out)


@njit(nogil=True, cache=True, parallel=True)
def add_rms_norm(x, residual, weight, eps, out):  # type: ignore[no-untyped-def]
    """Add x to residual **in place** and fill out with the norm of the sum. All [T, C]."""
    if x.size < PARALLEL_ELEMENTS:
        for row in range(x.shape[0]):
            _add_row(x, row, residual)
            _norm_row(residual, row, weight, eps, out)
    else:
        for row in prange(x.shape[0]):
            _add_row(x, row, residual)
            _norm_row(residual, row, weight, eps, out)


@njit(nogil=True, cache=True)
def _add_row(x, row, residual):  # type: ignore[no-untyped-def]
    for i in range(x.shape[1]):
        residual[row, i] += x[row, i]


@njit(nogil=True, cache=True)
def _norm_row(x, row, weight, eps, out):  # type: ignore[no-untyped-def]
    size = x.shape[1]
    scale = _ONE / np.sqrt(_sum_of_squares(x[row]) / np.float32(size) + np.float32(eps))
    for i in range(size):
        out[row, i] = x[row, i] * scale * weight[i]


@njit(nogil=True, cache=True)
def _sum_of_squares(row):  # type: ignore[no-untyped-def]
    """Return the sum over 16 lanes (place mod 16), each in order, that are added first to last."""
    size = row.shape[0]
    lanes = np.zeros(SUM_LANES, np.float32)
    full = size // SUM_LANES * SUM_LANES
    for start in range(0, full, SUM_LANES):
        for lane in range(SUM_LANES):
            lanes[lane] += row[start + lane] * row[start + lane]
    for i in range(full, size):
        lanes[i - full] += row[i] * row[i]
    total = _ZERO
    for lane in range(SUM_LANES):
        total += lanes[lane]
    return total


@njit(nogil=True, cache=True, parallel=True)
def rotary_embedding(query, key, cos_sin, positions):  # type: ignore[no-untyped-def]
    """Rotate query [T, H, D] and key [T, K, D] **in place**; cos_sin [max_model_len, D]."""
    if query.size < PARALLEL_ELEMENTS:
        for token in range(query.shape[0]):
            _rotate_token(query, token, cos_sin, positions[token])
            _rotate_token(key, token, cos_sin, positions[token])
    else:
        for token in prange(query.shape[0]):
            _rotate_token(query, token, cos_sin, positions[token])
            _rotate_token(key, token, cos_sin, positions[token])


@njit(nogil=True, cache=True)
def _rotate_token(heads, token, cos_sin, position):  # type: ignore[no-untyped-def]
    half = heads.shape[2] // 2
    table = cos_sin[position]
    for head in range(heads.shape[1]):
        start = address_of(heads) + token * heads.strides[0] + head * heads.strides[1]
        first = carray(as_pointer(start), (half,))
        second = carray(as_pointer(start + 4 * half), (half,))
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * table[i] - b * table[half + i]
            second[i] = b * table[i] + a * table[half + i]


@njit(nogil=True, cache=True, parallel=True)
def silu_and_mul(gate_up, out):  # type: ignore[no-untyped-def]
    """Fill out [T, I] with silu(gate) * up; gate_up [T, 2 * I], gate first."""
    if out.size < PARALLEL_ELEMENTS:
        for row in range(out.shape[0]):
            _silu_row(gate_up[row], out[row])
    else:
        for row in prange(out.shape[0]):
            _silu_row(gate_up[row], out[row])


@njit(nogil=True, cache=True, error_model="numpy")  # a check for division by zero would keep it scalar
def _silu_row(gate_up, out):  # type: ignore[no-untyped-def]
    size = out.shape[0]
    gate, up = gate_up[:size], gate_up[size:]
    for i in range(size):
        out[i] = gate[i] / (_ONE + exp_float32(-gate[i])) * up[i]


@njit(nogil=True, cache=True, parallel=True)
def write_kv(key, value, key_cache, value_cache, slot_mapping):  # type: ignore[no-untyped-def]
    """Scatter key and value [T, K, D] into the caches [N, K, D, B] and [N, K, B, D], **mutated**.

    A run of neighbouring slots in one block is written together: its keys share cache lines.
    """
    starts, num_runs = _runs(slot_mapping, key_cache.shape[3])
    if num_runs == 1:
        _write_run(key, value, key_cache, value_cache, slot_mapping, 0, key.shape[0])
    else:
        for run in prange(num_runs):
            _write_run(key, value, key_cache, value_cache, slot_mapping, starts[run], starts[run + 1])


@njit(nogil=True, cache=True)
def _runs(slot_mapping, block_size):  # type: ignore[no-untyped-def]
    """Return where runs of neighbouring slots in one block begin, the end behind the last, and how many they are."""
    num_tokens = slot_mapping.shape[0]
    starts, count = np.empty(num_tokens + 1, np.int64), 0
    for token in range(num_tokens):
        slot = slot_mapping[token]
        if token == 0 or slot != slot_mapping[token - 1] + 1 or slot % block_size == 0:
            starts[count] = token
            count += 1
    starts[count] = num_tokens
    return starts, count


@njit(nogil=True, cache=True)
def _write_run(key, value, key_cache, value_cache, slot_mapping, first, last):  # type: ignore[no-untyped-def]
    """Write tokens first … last - 1, whose slots are neighbours in one block."""
    head_size, block_size = key_cache.shape[2:]
    block, offset = slot_mapping[first] // block_size, slot_mapping[first] % block_size
    for head in range(key.shape[1]):
        own_keys, own_values = key_cache[block, head], value_cache[block, head]
        for i in range(head_size):
            for token in range(first, last):
                own_keys[i, offset + token - first] = key[token, head, i]
        for token in range(first, last):
            for i in range(head_size):
                own_values[offset + token - first, i] = value[token, head, i]
