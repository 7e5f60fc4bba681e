"""The register tile: the one inner loop that linears and attention are made of.

out[r, j] (+)= Σ_k a[r, k] * b[k, j], k one after the other, for a few rows r and a few vectors of j.

The lanes of a vector are neighbouring outputs j, which is why weights lie in panels (`panels.py`) and
keys position beside position. Each element has an accumulator lane of its own, to which its products
are added in the order of k, one rounding each. So an element's bits depend on its own row and column
only, whatever else the tile holds, and a sum may be interrupted at any k, stored and resumed.

b may be float16: each value is then multiplied as the float32 that it stands for, so only the memory
that it takes is another.

All addresses are integers (bytes); all strides count elements. Nothing is checked here.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Final

from llvmlite import ir
from numba import njit

from kernels.cpu.vector_code import FLOAT, HAS_AVX512, INT, LANES, VECTOR, Emitter, define, function_of

TALL_VECTORS: Final = 2
WIDE_VECTORS: Final = 3
TALL_ROWS: Final = 12 if HAS_AVX512 else 6
"""Rows of a tile of up to two vectors: as many accumulators as the registers hold beside the operands."""
WIDE_ROWS: Final = 8 if HAS_AVX512 else 4
"""Rows of a tile of three vectors, whose many accumulators keep the units busy when rows are few."""
PARTIAL: Final = 0
"""In place of a number of vectors: one vector of which only the first `width` lanes exist."""
CACHE_LINE_BYTES: Final = 64
_SHAPES: Final = (
    *itertools.product(range(1, TALL_ROWS + 1), (PARTIAL, 1, TALL_VECTORS)),
    *itertools.product(range(1, WIDE_ROWS + 1), (WIDE_VECTORS,)),
)
_NUM_ARGUMENTS: Final = 12


def _emit_tile(
    num_rows: int,
    num_vectors: int,
    is_half: bool,
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
    ahead_step: Any,
) -> None:
    builder = e.builder
    mask = e.mask_of_first(width) if num_vectors == PARTIAL else None
    b_bytes, load_b = (2, e.load_half) if is_half else (4, e.load)
    num_vectors = max(num_vectors, 1)
    a_rows = [e.address(a, builder.mul(a_stride, INT(r))) for r in range(num_rows)]
    b_vectors = [e.address(b, builder.mul(b_vector_stride, INT(v)), item_bytes=b_bytes) for v in range(num_vectors)]
    places = [
        e.address(out, builder.mul(out_stride, INT(r)), INT(v * LANES))
        for r in range(num_rows)
        for v in range(num_vectors)
    ]

    def add_products(k: Any, sums: list[Any]) -> list[Any]:
        offset = builder.mul(k, b_stride)
        values = [load_b(e.address(vector, offset, item_bytes=b_bytes), mask) for vector in b_vectors]
        e.prefetch(builder.add(ahead, builder.mul(k, ahead_step)))
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


def _emit_choice(is_half: bool, e: Emitter, rows: Any, vectors: Any, *arguments: Any) -> None:
    """Jump to the tile of that many rows and vectors."""
    builder = e.builder
    done = builder.append_basic_block("done")
    key = builder.add(builder.mul(rows, INT(WIDE_VECTORS + 1)), vectors)
    choice = builder.switch(key, done)
    for num_rows, num_vectors in _SHAPES:
        name = f"{'half_' if is_half else ''}tile_{num_rows}x{num_vectors}"
        emit = partial(_emit_tile, num_rows, num_vectors, is_half)
        block = builder.append_basic_block(name)
        choice.add_case(INT(num_rows * (WIDE_VECTORS + 1) + num_vectors), block)
        builder.position_at_end(block)
        builder.call(function_of(builder.module, name, _NUM_ARGUMENTS, emit), arguments)
        builder.branch(done)
    builder.position_at_end(done)


@njit(nogil=True)
def tile_width(left, most_vectors):  # type: ignore[no-untyped-def]
    """Return vectors and outputs of the next tile where `left` outputs are left."""
    vectors = min(most_vectors, left // LANES)
    return vectors, (left if vectors == PARTIAL else vectors * LANES)


multiply_tile = define("multiply_tile", 2 + _NUM_ARGUMENTS, partial(_emit_choice, False))
"""multiply_tile(rows, vectors, a, a_stride, b, b_stride, b_vector_stride, size, out, out_stride, width, accumulate,
ahead, ahead_step).

Row r of a begins at a + r * a_stride, its elements are contiguous. Vector v of b[k] begins at
b + k * b_stride + v * b_vector_stride. out[r] begins at out + r * out_stride; its vectors are
contiguous. `width` is read when vectors is PARTIAL only. accumulate 1 adds to what out holds, 0 begins
at zero. Rows are at most TALL_ROWS, with WIDE_VECTORS at most WIDE_ROWS.

Meanwhile memory that will be needed soon is asked for: at step k the line at ahead + k * ahead_step
bytes. Spread evenly over the arithmetic, reading ahead costs next to nothing; in bursts it stalls.
"""

multiply_half_tile = define("multiply_half_tile", 2 + _NUM_ARGUMENTS, partial(_emit_choice, True))
"""The same with a b of float16. Only where `HAS_HALF`."""
