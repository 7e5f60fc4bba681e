"""Register tiles in LLVM vector code: the two inner loops that linears and attention are made of.

Why not let the compiler vectorize? A dot product may be summed in many orders, and a compiler picks
one by the shape of the loop nest, so the same row would get other bits next to other rows. Here the
order is written down: lane j of an accumulator takes elements j, j + L, j + 2L, … in turn (fused
multiply-add, one rounding each), then the L lanes are added as a fixed binary tree, upper half onto
lower half. A tile of any number of rows and outputs repeats exactly that for each of its elements,
so an element's bits depend on its own row and its own output only.

All addresses are integers (bytes); all strides count float32 elements. Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

import kernels.cpu.numba_setup  # noqa: F401  (the threading layer and the cache, before any kernel)

_FEATURES: Final = llvmlite.binding.get_host_cpu_features()
HAS_AVX512: Final = bool(_FEATURES.get("avx512f"))
HAS_AVX2: Final = bool(_FEATURES.get("avx2") and _FEATURES.get("fma"))

LANES: Final = 16 if HAS_AVX512 else 8
"""Floats in one accumulator."""
TILE_ROWS: Final = 4 if HAS_AVX512 else 3
"""Input rows of the largest tile: with four outputs, as many accumulators as the registers hold."""
TILE_OUTPUTS: Final = 4

_FLOAT: Final = ir.FloatType()
_INT: Final = ir.IntType(64)
_VECTOR: Final = ir.VectorType(_FLOAT, LANES)
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)


class _Emitter:
    """Shorthand around one LLVM builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def address(self, base: Any, *elements: Any) -> Any:
        """Return base + the sum of elements, in float32 elements."""
        for count in elements:
            base = self.builder.add(base, self.builder.mul(count, _INT(4)))
        return base

    def load(self, address: Any, mask: Any = None, kind: Any = _VECTOR) -> Any:
        """Load a vector from any alignment; lanes outside the mask are 0 and their memory is not touched."""
        pointer = self.builder.inttoptr(address, ir.PointerType())
        if mask is None:
            return self.builder.load(pointer, align=4, typ=kind)
        signature = ir.FunctionType(_VECTOR, [ir.PointerType(), ir.IntType(32), _MASK, _VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.masked.load.v{LANES}f32.p0")
        return self.builder.call(function, [pointer, ir.IntType(32)(4), mask, ir.Constant(_VECTOR, [0.0] * LANES)])

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a vector or a scalar to any alignment; lanes outside the mask are left alone."""
        pointer = self.builder.inttoptr(address, ir.PointerType())
        if mask is None:
            self.builder.store(value, pointer, align=4)
            return
        signature = ir.FunctionType(ir.VoidType(), [_VECTOR, ir.PointerType(), ir.IntType(32), _MASK])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.masked.store.v{LANES}f32.p0")
        self.builder.call(function, [value, pointer, ir.IntType(32)(4), mask])

    def prefetch(self, address: Any) -> None:
        """Ask for a cache line to be brought into the second-level cache. Any address is harmless."""
        word = ir.IntType(32)
        pointer = self.builder.inttoptr(address, ir.PointerType())
        signature = ir.FunctionType(ir.VoidType(), [ir.PointerType(), word, word, word])
        function = cgutils.get_or_insert_function(self.builder.module, signature, "llvm.prefetch.p0")
        self.builder.call(function, [pointer, word(0), word(2), word(1)])  # read, level 2, data

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c with one rounding."""
        signature = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.fma.v{LANES}f32")
        return self.builder.call(function, [a, b, c])

    def broadcast(self, scalar: Any) -> Any:
        """Return a vector with the scalar in every lane."""
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.IntType(32)(0))
        return self.shuffle(first, undefined, [0] * LANES)

    def mask_of_first(self, count: Any) -> Any:
        """Return a mask of the first count lanes (all when count is larger)."""
        wide = ir.VectorType(_INT, LANES)
        undefined = ir.Constant(wide, ir.Undefined)
        first = self.builder.insert_element(undefined, count, ir.IntType(32)(0))
        counts = self.shuffle(first, undefined, [0] * LANES)
        return self.builder.icmp_signed("<", ir.Constant(wide, list(range(LANES))), counts)

    def shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """Return the chosen lanes of a followed by b."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))

    def sum_lanes(self, vectors: list[Any]) -> Any:
        """Return one vector whose lane i is the sum of vectors[i]'s lanes, by the fixed tree.

        While several vectors are left, two are halved and packed into one; then one is halved alone.
        Both add lane j + w/2 to lane j of the same element, so the result does not depend on company.
        """
        elements, width = 1, LANES
        while width > 1:
            half = width // 2
            low = [e * width + j for e in range(elements) for j in range(half)]
            high = [lane + half for lane in low]
            if len(vectors) > 1:
                shift = elements * width
                low, high = low + [lane + shift for lane in low], high + [lane + shift for lane in high]
                pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
                elements *= 2
            else:
                pairs = [(vectors[0], vectors[0])]
            vectors = [self.builder.fadd(self.shuffle(a, b, low), self.shuffle(a, b, high)) for a, b in pairs]
            width = half
        return vectors[0]

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, values) → values count times with the values in registers; return the last ones."""
        builder = self.builder
        before = builder.basic_block
        head, inside, after = (builder.append_basic_block(name) for name in ("tile.head", "tile.body", "tile.end"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(_INT)
        values = [builder.phi(value.type) for value in initial]
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
        results = body(index, values)
        for phi, first, again in zip([index, *values], [_INT(0), *initial], [None, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(builder.add(index, _INT(1)) if again is None else again, builder.basic_block)
        builder.branch(head)
        builder.position_at_end(after)
        return values


def _define(name: str, num_arguments: int, emit: Callable[..., None]) -> Any:
    """Wrap an emitter as a numba intrinsic that takes int64 arguments and returns nothing."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _internal_function(builder.module, name, num_arguments, emit)
        builder.call(function, list(arguments))
        return context.get_dummy_value()

    signature = types.void(*[types.int64] * num_arguments)
    names = ", ".join(f"a{i}" for i in range(num_arguments))
    scope: dict[str, Any] = {"result": (signature, codegen)}
    exec(f"def {name}(typingctx, {names}):\n    return result\n", scope)  # numba wants named arguments
    return intrinsic(scope[name])


def _internal_function(module: Any, name: str, num_arguments: int, emit: Callable[..., None]) -> Any:
    """Return the tile as a function of this module, emitted on first use."""
    full_name = f"workbench.{name}"
    if full_name in module.globals:
        return module.globals[full_name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_INT] * num_arguments), full_name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(_Emitter(builder), *function.args)
    builder.ret_void()
    return function


def _dot_tile(num_rows: int, num_outputs: int) -> Any:
    """Return dot_tile(x, x_stride, w, w_stride, size, out, out_stride).

    out[r, o] = Σ_k x[r, k] * w[o, k] for num_rows rows of x and num_outputs rows of w.

    Weights come from memory, which is fast only when asked early. One input row does so little with
    a weight that the hardware's own prefetching has to run at full stretch, for which it wants one
    long stream: the weight rows one after the other, the next row asked for meanwhile. More input
    rows share each weight they load, so the weight rows go side by side, and the next tile is asked
    for. Neither changes the order in which any element is summed.
    """
    side_by_side = num_outputs if num_rows > 1 else 1

    def emit(e: _Emitter, x: Any, x_stride: Any, w: Any, w_stride: Any, size: Any, out: Any, out_stride: Any) -> None:
        builder = e.builder
        x_rows = [e.address(x, builder.mul(x_stride, _INT(r))) for r in range(num_rows)]
        w_rows = [e.address(w, builder.mul(w_stride, _INT(o))) for o in range(num_outputs)]

        full = builder.sdiv(size, _INT(LANES))
        done = builder.mul(full, _INT(LANES))
        rest = builder.sub(size, done)
        has_rest = builder.zext(builder.icmp_signed(">", rest, _INT(0)), _INT)
        ahead = builder.mul(w_stride, _INT(side_by_side))

        def sums_of(rows: list[Any]) -> list[Any]:
            """Products of all input rows with some weight rows, input row by input row."""

            def add_products(offset: Any, sums: list[Any], mask: Any = None) -> list[Any]:
                weights = [e.load(e.address(row, offset), mask) for row in rows]
                if num_outputs > 1 and mask is None:
                    for row in rows:
                        e.prefetch(e.address(row, offset, ahead))
                result = []
                for r, x_row in enumerate(x_rows):
                    value = e.load(e.address(x_row, offset), mask)
                    result += [e.fma(value, w, sums[r * len(rows) + o]) for o, w in enumerate(weights)]
                return result

            zeros = [ir.Constant(_VECTOR, [0.0] * LANES)] * (num_rows * len(rows))
            sums = e.loop(full, zeros, lambda i, values: add_products(builder.mul(i, _INT(LANES)), values))
            # The last, partial vector. Absent lanes multiply 0 by 0, which changes no sum.
            return e.loop(has_rest, sums, lambda _, values: add_products(done, values, e.mask_of_first(rest)))

        groups = [w_rows[o : o + side_by_side] for o in range(0, num_outputs, side_by_side)]
        sums = [total for group in groups for total in sums_of(group)]
        for r in range(num_rows):
            total = e.sum_lanes(sums[r * num_outputs : (r + 1) * num_outputs])
            e.store(total, e.address(out, builder.mul(out_stride, _INT(r))))

    return _define(f"dot_tile_{num_rows}x{num_outputs}", 7, emit)


def _weighted_sum_tile(num_rows: int, num_vectors: int) -> Any:
    """Return weighted_sum_tile(p, p_stride, v, v_stride, count, width, out, out_stride).

    out[r, :width] += Σ_i p[r, i] * v[i, :width], one i after the other. width <= num_vectors * L;
    with one vector it may be partial, with more it is taken as full.
    """

    def emit(
        e: _Emitter, p: Any, p_stride: Any, v: Any, v_stride: Any, count: Any, width: Any, out: Any, out_stride: Any
    ) -> None:
        builder = e.builder
        mask = e.mask_of_first(width) if num_vectors == 1 else None
        places = [
            e.address(out, builder.mul(out_stride, _INT(r)), _INT(c * LANES))
            for r in range(num_rows)
            for c in range(num_vectors)
        ]

        def add_position(i: Any, sums: list[Any]) -> list[Any]:
            row = e.address(v, builder.mul(i, v_stride))
            values = [e.load(e.address(row, _INT(c * LANES)), mask) for c in range(num_vectors)]
            result = []
            for r in range(num_rows):
                weight = e.load(e.address(p, builder.mul(p_stride, _INT(r)), i), kind=_FLOAT)
                factor = e.broadcast(weight)
                result += [e.fma(factor, values[c], sums[r * num_vectors + c]) for c in range(num_vectors)]
            return result

        sums = e.loop(count, [e.load(place, mask) for place in places], add_position)
        for place, total in zip(places, sums, strict=True):
            e.store(total, place, mask)

    return _define(f"weighted_sum_tile_{num_rows}x{num_vectors}", 8, emit)


dot_1x1, dot_2x1, dot_3x1, dot_4x1 = (_dot_tile(rows, 1) for rows in (1, 2, 3, 4))
dot_1x4, dot_2x4, dot_3x4, dot_4x4 = (_dot_tile(rows, 4) for rows in (1, 2, 3, 4))


@njit(nogil=True)
def dot_tile(rows, outputs, x, x_stride, w, w_stride, size, out, out_stride):  # type: ignore[no-untyped-def]
    """Fill out[:rows, :outputs] with dot products of x's and w's rows; rows 1 … 4, outputs 4 or 1."""
    if outputs == 4:
        if rows == 4:
            dot_4x4(x, x_stride, w, w_stride, size, out, out_stride)
        elif rows == 3:
            dot_3x4(x, x_stride, w, w_stride, size, out, out_stride)
        elif rows == 2:
            dot_2x4(x, x_stride, w, w_stride, size, out, out_stride)
        else:
            dot_1x4(x, x_stride, w, w_stride, size, out, out_stride)
    elif rows == 4:
        dot_4x1(x, x_stride, w, w_stride, size, out, out_stride)
    elif rows == 3:
        dot_3x1(x, x_stride, w, w_stride, size, out, out_stride)
    elif rows == 2:
        dot_2x1(x, x_stride, w, w_stride, size, out, out_stride)
    else:
        dot_1x1(x, x_stride, w, w_stride, size, out, out_stride)


weighted_sum_1x1, weighted_sum_2x1, weighted_sum_3x1, weighted_sum_4x1 = (
    _weighted_sum_tile(r, 1) for r in (1, 2, 3, 4)
)
weighted_sum_1x4, weighted_sum_2x4, weighted_sum_3x4, weighted_sum_4x4 = (
    _weighted_sum_tile(r, 4) for r in (1, 2, 3, 4)
)


@njit(nogil=True)
def weighted_sum_tile(rows, vectors, p, p_stride, v, v_stride, count, width, out, out_stride):  # type: ignore[no-untyped-def]
    """Add Σ_i p[r, i] * v[i] to out[:rows, :width]; rows 1 … 4, vectors 4 (width = 4 L) or 1 (width <= L)."""
    if vectors == 4:
        if rows == 4:
            weighted_sum_4x4(p, p_stride, v, v_stride, count, width, out, out_stride)
        elif rows == 3:
            weighted_sum_3x4(p, p_stride, v, v_stride, count, width, out, out_stride)
        elif rows == 2:
            weighted_sum_2x4(p, p_stride, v, v_stride, count, width, out, out_stride)
        else:
            weighted_sum_1x4(p, p_stride, v, v_stride, count, width, out, out_stride)
    elif rows == 4:
        weighted_sum_4x1(p, p_stride, v, v_stride, count, width, out, out_stride)
    elif rows == 3:
        weighted_sum_3x1(p, p_stride, v, v_stride, count, width, out, out_stride)
    elif rows == 2:
        weighted_sum_2x1(p, p_stride, v, v_stride, count, width, out, out_stride)
    else:
        weighted_sum_1x1(p, p_stride, v, v_stride, count, width, out, out_stride)
