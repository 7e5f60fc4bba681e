"""The register tile: the one inner loop that linears and attention are made of.

out[r, j] (+)= Σ_k a[r, k] * b[k, j], k one after the other, for a few rows r and a few vectors of j.

The lanes of a vector are neighbouring outputs j, which is why weights lie in panels (`panels.py`) and
keys position beside position. Each element has an accumulator lane of its own, to which its products
are added in the order of k, one rounding each. So an element's bits depend on its own row and column
only, whatever else the tile holds, and a sum may be interrupted at any k, stored and resumed.

All addresses are integers (bytes); all strides count float32 elements. Nothing is checked here.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Final

from llvmlite import ir

from kernels.cpu.vector_code import FLOAT, HAS_AVX512, INT, LANES, VECTOR, Emitter, define, function_of

TILE_VECTORS: Final = 3
"""Vectors of outputs in the largest tile."""
TILE_ROWS: Final = 8 if HAS_AVX512 else 4
"""Rows in the largest tile: as many accumulators as the registers hold beside the operands."""
PARTIAL: Final = 0
"""In place of a number of vectors: one vector of which only the first `width` lanes exist."""
VECTORS_PER_LINE: Final = 16 // LANES
_ROW_KEY: Final = 2 * (TILE_VECTORS + 1)
_NUM_ARGUMENTS: Final = 11


def _emit_tile(
    num_rows: int,
    num_vectors: int,
    asks_ahead: bool,
    e: Emitter,
    a: Any,
    a_stride: Any,
    b: Any,
    b_stride: Any,
    b_vector_stride: Any,
    size: Any,
    out: Any,
    out_stride: Any,
    width: Any,
    accumulate: Any,
    ahead: Any,
) -> None:
    builder = e.builder
    mask = e.mask_of_first(width) if num_vectors == PARTIAL else None
    num_vectors = max(num_vectors, 1)
    a_rows = [e.address(a, builder.mul(a_stride, INT(r))) for r in range(num_rows)]
    b_vectors = [e.address(b, builder.mul(b_vector_stride, INT(v))) for v in range(num_vectors)]
    places = [
        e.address(out, builder.mul(out_stride, INT(r)), INT(v * LANES))
        for r in range(num_rows)
        for v in range(num_vectors)
    ]

    def add_products(k: Any, sums: list[Any]) -> list[Any]:
        offset = builder.mul(k, b_stride)
        values = [e.load(e.address(vector, offset), mask) for vector in b_vectors]
        if asks_ahead:
            for v in range(0, num_vectors, VECTORS_PER_LINE):
                e.prefetch(e.address(ahead, offset, INT(v * LANES)))
        result = []
        for r, row in enumerate(a_rows):
            factor = e.broadcast(e.load(e.address(row, k), kind=FLOAT))
            result += [e.fma(factor, value, sums[r * num_vectors + v]) for v, value in enumerate(values)]
        return result

    zero = ir.Constant(VECTOR, [0.0] * LANES)
    goes_on = builder.icmp_signed("!=", accumulate, INT(0))
    initial = [builder.select(goes_on, e.load(place, mask), zero) for place in places]
    for place, total in zip(places, e.loop(size, initial, add_products), strict=True):
        e.store(total, place, mask)


def _emit_choice(e: Emitter, rows: Any, vectors: Any, *arguments: Any) -> None:
    """Jump to the tile of that many rows and vectors."""
    builder = e.builder
    done = builder.append_basic_block("done")
    asks = builder.zext(builder.icmp_signed("!=", arguments[-1], INT(0)), INT)
    key = builder.add(builder.mul(rows, INT(_ROW_KEY)), builder.add(builder.mul(vectors, INT(2)), asks))
    choice = builder.switch(key, done)
    shapes = itertools.product(range(1, TILE_ROWS + 1), range(TILE_VECTORS + 1), (False, True))
    for num_rows, num_vectors, asks_ahead in shapes:
        name = f"tile_{num_rows}x{num_vectors}" + "_ahead" * asks_ahead
        emit = partial(_emit_tile, num_rows, num_vectors, asks_ahead)
        block = builder.append_basic_block(name)
        choice.add_case(INT(num_rows * _ROW_KEY + 2 * num_vectors + asks_ahead), block)
        builder.position_at_end(block)
        builder.call(function_of(builder.module, name, _NUM_ARGUMENTS, emit), arguments)
        builder.branch(done)
    builder.position_at_end(done)


multiply_tile = define("multiply_tile", 2 + _NUM_ARGUMENTS, _emit_choice)
"""multiply_tile(rows, vectors, a, a_stride, b, b_stride, b_vector_stride, size, out, out_stride, width, accumulate,
ahead).

Row r of a begins at a + r * a_stride, its elements are contiguous. Vector v of b[k] begins at
b + k * b_stride + v * b_vector_stride. out[r] begins at out + r * out_stride; its vectors are
contiguous. rows 1 … TILE_ROWS, vectors 1 … TILE_VECTORS or PARTIAL; `width` is read when PARTIAL only. accumulate 1
adds to what out holds, 0 begins at zero. ahead: address of what will be read next in the place and with
the strides of b, to be asked for meanwhile, or 0.
"""
