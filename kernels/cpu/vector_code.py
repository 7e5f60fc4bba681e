"""LLVM vector code from Python: what the compiler would have to guess is written down.

A compiler may sum in many orders, and picks one by the shape of the loop nest, so the same row would
get other bits next to other rows. Code emitted here has one order, and one rounding per fused
multiply-add, whatever surrounds it.

All addresses are integers (bytes); all strides count elements. Nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

import kernels.cpu.numba_setup  # noqa: F401  (the threading layer and the cache, before any kernel)

_FEATURES: Final = llvmlite.binding.get_host_cpu_features()
HAS_AVX512: Final = bool(_FEATURES.get("avx512f"))
HAS_AVX2: Final = bool(_FEATURES.get("avx2") and _FEATURES.get("fma"))
HAS_HALF: Final = bool(_FEATURES.get("f16c"))
"""Whether float16 becomes float32 in one instruction; without it there is no code for that at all."""

LANES: Final = 16 if HAS_AVX512 else 8
"""Floats in one vector."""
FLOAT: Final = ir.FloatType()
INT: Final = ir.IntType(64)
VECTOR: Final = ir.VectorType(FLOAT, LANES)
HALF_VECTOR: Final = ir.VectorType(ir.HalfType(), LANES)
MASK: Final = ir.VectorType(ir.IntType(1), LANES)


class Emitter:
    """Shorthand around one LLVM builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def address(self, base: Any, *elements: Any, item_bytes: int = 4) -> Any:
        """Return base + the sum of elements, which are float32 or of other `item_bytes`."""
        for count in elements:
            base = self.builder.add(base, self.builder.mul(count, INT(item_bytes)))
        return base

    def load(self, address: Any, mask: Any = None, kind: Any = VECTOR) -> Any:
        """Load a vector from any alignment; lanes outside the mask are 0 and their memory is not touched."""
        pointer = self.builder.inttoptr(address, ir.PointerType())
        if mask is None:
            return self.builder.load(pointer, align=4, typ=kind)
        signature = ir.FunctionType(VECTOR, [ir.PointerType(), ir.IntType(32), MASK, VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.masked.load.v{LANES}f32.p0")
        return self.builder.call(function, [pointer, ir.IntType(32)(4), mask, ir.Constant(VECTOR, [0.0] * LANES)])

    def load_half(self, address: Any, mask: Any = None) -> Any:
        """Load a vector of float16 as float32; as `load` otherwise."""
        pointer = self.builder.inttoptr(address, ir.PointerType())
        if mask is None:
            return self.builder.fpext(self.builder.load(pointer, align=2, typ=HALF_VECTOR), VECTOR)
        signature = ir.FunctionType(HALF_VECTOR, [ir.PointerType(), ir.IntType(32), MASK, HALF_VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.masked.load.v{LANES}f16.p0")
        zeros = ir.Constant(HALF_VECTOR, [ir.Constant(ir.HalfType(), 0.0)] * LANES)
        return self.builder.fpext(self.builder.call(function, [pointer, ir.IntType(32)(2), mask, zeros]), VECTOR)

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a vector or a scalar to any alignment; lanes outside the mask are left alone."""
        pointer = self.builder.inttoptr(address, ir.PointerType())
        if mask is None:
            self.builder.store(value, pointer, align=4)
            return
        signature = ir.FunctionType(ir.VoidType(), [VECTOR, ir.PointerType(), ir.IntType(32), MASK])
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
        signature = ir.FunctionType(VECTOR, [VECTOR, VECTOR, VECTOR])
        function = cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.fma.v{LANES}f32")
        return self.builder.call(function, [a, b, c])

    def broadcast(self, scalar: Any) -> Any:
        """Return a vector with the scalar in every lane."""
        undefined = ir.Constant(VECTOR, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.IntType(32)(0))
        return self.shuffle(first, undefined, [0] * LANES)

    def mask_of_first(self, count: Any) -> Any:
        """Return a mask of the first count lanes (all when count is larger)."""
        wide = ir.VectorType(INT, LANES)
        undefined = ir.Constant(wide, ir.Undefined)
        first = self.builder.insert_element(undefined, count, ir.IntType(32)(0))
        counts = self.shuffle(first, undefined, [0] * LANES)
        return self.builder.icmp_signed("<", ir.Constant(wide, list(range(LANES))), counts)

    def shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """Return the chosen lanes of a followed by b."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))

    def loop(self, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run body(index, values) → values count times with the values in registers; return the last ones."""
        builder = self.builder
        before = builder.basic_block
        head, inside, after = (builder.append_basic_block(name) for name in ("tile.head", "tile.body", "tile.end"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(INT)
        values = [builder.phi(value.type) for value in initial]
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
        results = body(index, values)
        for phi, first, again in zip([index, *values], [INT(0), *initial], [None, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(builder.add(index, INT(1)) if again is None else again, builder.basic_block)
        builder.branch(head)
        builder.position_at_end(after)
        return values


def define(name: str, num_arguments: int, emit: Callable[..., None]) -> Any:
    """Wrap an emitter, called as emit(Emitter, *arguments), as a numba intrinsic of int64 arguments without result."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(function_of(builder.module, name, num_arguments, emit), list(arguments))
        return context.get_dummy_value()

    signature = types.void(*[types.int64] * num_arguments)
    names = ", ".join(f"a{i}" for i in range(num_arguments))
    scope: dict[str, Any] = {"result": (signature, codegen)}
    exec(f"def {name}(typingctx, {names}):\n    return result\n", scope)  # numba wants named arguments
    return intrinsic(scope[name])


def function_of(module: Any, name: str, num_arguments: int, emit: Callable[..., None]) -> Any:
    """Return the code as a function of this module, emitted on first use.

    It is never inlined: a loop in a function of its own gets the registers that it needs.
    """
    full_name = f"workbench.{name}"
    if full_name in module.globals:
        return module.globals[full_name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [INT] * num_arguments), full_name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(Emitter(builder), *function.args)
    builder.ret_void()
    return function
