"""Element-wise functions for which NumPy needs a dozen passes over memory, compiled into one.

Single precision only; in double precision NumPy's own functions are the most accurate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numba import njit

from kedrl_dask.utils.arrays import Vector

#: Elements worked on at a time: two arrays of them stay in the first-level cache.
TILE = 512
_F = np.float32
#: log₂e, and log 2 in two parts, the first of which has few digits, so that multiples of it are exact.
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(1.4426950408889634), _F(0.693359375), _F(-2.1219444e-4)
#: Beyond this the kernel is below 10⁻³⁰, and exp(−t) soon leaves the normal numbers: it is set to zero.
_FARTHEST = _F(87)

F = TypeVar("F", bound=Callable[..., None])


def _compiled(function: F) -> F:
    """Compile for the machine on the first call, without the interpreter's lock.

    The machine code is cached on disk if a folder is writable. Fused multiply-adds are the only liberty taken
    with the order of operations.
    """
    compiler = partial(njit, nogil=True, fastmath={"contract"}, error_model="numpy")
    try:
        return compiler(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's is writable
        return compiler()(function)


@_compiled
def half_integer_kernel(values: Vector, coefficients: Vector) -> None:
    """p(√s)·exp(−√s) in the place of each s of ``values``, single precision, one-dimensional, contiguous.

    ``coefficients`` are those of the polynomial p, the highest first. Negative s, the result of rounding,
    count as zero.
    """
    t, p = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    for start in range(0, values.size, TILE):
        tile = values[start : start + TILE]
        for i in range(tile.size):
            s = tile[i]
            t[i] = np.sqrt(_F(0) if s < _F(0) else s)
            p[i] = coefficients[0]
        for k in range(1, coefficients.size):
            c = coefficients[k]
            for i in range(tile.size):
                p[i] = p[i] * t[i] + c
        for i in range(tile.size):
            # exp(−t) = 2⁻ⁿ·exp(r) with |r| ≤ ½·log 2, where eight terms of the series are enough.
            n = min(np.floor(t[i] * _LOG2_E + _F(0.5)), _F(126))
            r = (n * _LN2_HIGH - t[i]) + n * _LN2_LOW
            e = _F(1 / 5040) * r + _F(1 / 720)
            e = e * r + _F(1 / 120)
            e = e * r + _F(1 / 24)
            e = e * r + _F(1 / 6)
            e = e * r + _F(1 / 2)
            e = e * r + _F(1)
            e = e * r + _F(1)
            power = np.int32((np.int32(127) - np.int32(n)) << np.int32(23)).view(np.float32)
            tile[i] = _F(0) if t[i] > _FARTHEST else p[i] * e * power
