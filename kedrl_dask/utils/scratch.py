"""Memory to work in that is asked for once.

Dask's workers give freed memory back to the system at once; asking for it again in every block costs as much
as a quarter of the arithmetic.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["scratch"]

_of_thread = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Array of this thread under a name, with anything in it, until the next call for that name.

    For what does not outlive the function that asks for it.
    """
    buffers = vars(_of_thread)
    size = prod(shape) * np.dtype(dtype).itemsize
    if name not in buffers or buffers[name].nbytes < size:
        buffers[name] = np.empty(size, np.uint8)
    return buffers[name][:size].view(dtype).reshape(shape)
