"""This process: its memory, and its threads of linear algebra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread", "own_memory"]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One BLAS thread in this process: on the small matrices of a driver several wait for each other."""
    with ThreadpoolController().limit(limits=1):
        yield


def own_memory() -> int:
    """Bytes that this process has in memory."""
    return int(psutil.Process().memory_info().rss)
