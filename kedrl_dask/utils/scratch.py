"""Working memory that is allocated once per thread.

Dask's workers return freed memory to the system at once; allocating it again in every block would cost as
much as a quarter of the arithmetic.
"""

from __future__ import annotations

import threading
from math import prod

import numpy as np
import numpy.typing as npt

from kedrl_dask.utils.arrays import Array

_of_thread = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return this thread's uninitialised array of a name, which is valid until the next call for that name.

    For arrays that do not outlive the function that requests them.
    """
    buffers = vars(_of_thread)
    size = prod(shape) * np.dtype(dtype).itemsize
    if name not in buffers or buffers[name].nbytes < size:
        buffers[name] = np.empty(size, np.uint8)
    return buffers[name][:size].view(dtype).reshape(shape)
