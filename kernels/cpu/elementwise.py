"""Norms, rotary embedding, activation and cache writes: one row at a time, each row alone.

A few rows are done by the calling thread, since waking others costs more than the work; many rows
are shared. Both ways run the same function per row, so the bits are the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import carray, njit, prange

from kernels.cpu.scalar import address_of, as_pointer, exp_float32
from kernels.cpu.tile import dot_1x1

PARALLEL_ELEMENTS: Final = 32 * 1024
"""Elements from which on waking the other threads pays (about 5 µs)."""

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
    # The sum of squares is the row's dot product with itself, in the fixed order of the tiles. It
    # passes through the first place of the result, which is overwritten below.
    source = address_of(x) + 4 * size * row
    dot_1x1(source, size, source, size, size, address_of(out) + 4 * size * row, 1)
    scale = _ONE / np.sqrt(out[row, 0] / np.float32(size) + np.float32(eps))
    for i in range(size):
        out[row, i] = x[row, i] * scale * weight[i]


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


@njit(nogil=True, cache=True)
def write_kv(key, value, key_cache, value_cache, slot_mapping):  # type: ignore[no-untyped-def]
    """Scatter key and value [T, K, D] into the caches [N, B, K, D], **mutated**."""
    size = key.shape[1] * key.shape[2]
    for token in range(key.shape[0]):
        offset = 4 * size * slot_mapping[token]
        _copy(address_of(key) + token * key.strides[0], address_of(key_cache) + offset, size)
        _copy(address_of(value) + token * value.strides[0], address_of(value_cache) + offset, size)


@njit(nogil=True, cache=True)
def _copy(source, target, size):  # type: ignore[no-untyped-def]
    source_row, target_row = carray(as_pointer(source), (size,)), carray(as_pointer(target), (size,))
    for i in range(size):
        target_row[i] = source_row[i]
