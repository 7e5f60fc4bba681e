"""Small parts of kernels: addresses, taking tasks, the exponential."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def next_task(typingctx: Any, counters: Any, index: Any) -> Any:
    """Return counters[index] and add one to it, atomically (counters: int64 array).

    Threads take the next task when they are done with their last one, so a thread that the system
    holds up delays one task, not half of the work. Who computes a task never changes its result.
    """
    signature = types.int64(counters, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "monotonic")

    return signature, codegen


@intrinsic
def address_of(typingctx: Any, array: Any) -> Any:
    """Return the address of an array's first element as int64.

    The array must be used, or held by a caller, for as long as the address is: numba frees a local
    array after its last use, and an address is none.
    """
    signature = types.int64(array)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, cgutils.intp_t)

    return signature, codegen


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """Return an int64 address as a float32 pointer, for `numba.carray`."""
    signature = types.CPointer(types.float32)(types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, codegen


_LOG2_E: Final = np.float32(1.44269504088896341)
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)
_ROUNDER: Final = np.float32(12582912.0)
_ROUNDER_BITS: Final = 0x4B400000
"""1.5 * 2**23: adding it leaves the nearest whole number in the low bits of the mantissa."""
_SMALLEST: Final = np.float32(-87.0)
_LARGEST: Final = np.float32(88.0)
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@intrinsic
def _power_of_two(typingctx: Any, rounded: Any) -> Any:
    """Return 2**n as float32, given float32 _ROUNDER + n."""
    signature = types.float32(types.float32)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        exponent = builder.add(builder.bitcast(arguments[0], word), word(127 - _ROUNDER_BITS))
        return builder.bitcast(builder.shl(exponent, word(23)), ir.FloatType())

    return signature, codegen


@njit(nogil=True)
def exp_float32(x):  # type: ignore[no-untyped-def]
    """Return e**x within two units in the last place; 0 below -87, e**88 above 88.

    Written out (range reduction by ln 2, then Cephes' polynomial) instead of calling libm, because
    a compiler may use one routine for full vectors and another for what is left over, with other bits.
    """
    bounded = _LARGEST if x > _LARGEST else (_SMALLEST if x < _SMALLEST else x)
    rounded = bounded * _LOG2_E + _ROUNDER
    n = rounded - _ROUNDER
    r = bounded - n * _LN2_HIGH - n * _LN2_LOW
    y = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
    result = (y * r * r + r + _ONE) * _power_of_two(rounded)
    return _ZERO if x < _SMALLEST else result
