"""Running chunk functions: in threads of this process, or on a Dask cluster. Nothing else knows Dask.

A chunk function takes an item (a row range, a path) and shared values and returns arrays. An executor
moves it. Results always come back in the order of the items, so sums do not depend on which worker
finished first.
"""

from __future__ import annotations

from dask.utils import parse_bytes
from distributed import Client

from kedrl_dask.execute.base import Executor
from kedrl_dask.execute.cluster import (
    PATIENCE,
    PIECE_BYTES,
    DistributedExecutor,
    PoisonError,
    cluster_at,
    local_cluster,
)
from kedrl_dask.execute.threads import ThreadExecutor

__all__ = [
    "PATIENCE",
    "PIECE_BYTES",
    "DistributedExecutor",
    "Executor",
    "PoisonError",
    "ThreadExecutor",
    "cluster_at",
    "default_executor",
    "local_cluster",
    "parse_memory",
]


def parse_memory(value: int | str) -> int:
    """Bytes, from a number or from words such as "2 GiB"."""
    try:
        n_bytes = int(parse_bytes(value))
    except ValueError:
        n_bytes = 0
    if n_bytes <= 0:
        raise ValueError(f"memory must be a number of bytes or words such as '2 GiB', got {value!r}")
    return n_bytes


def default_executor() -> Executor:
    """The active :class:`distributed.Client` if there is one, else threads in this process."""
    try:
        return DistributedExecutor(Client.current())
    except ValueError:
        return ThreadExecutor()
