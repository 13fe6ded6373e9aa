"""Running chunk functions: in threads of this process, or on a Dask cluster. Nothing else knows Dask.

A chunk function takes an item (a row range, a path) and shared values and returns arrays. An executor
moves it. Results always come back in the order of the items, so sums do not depend on which worker
finished first.
"""

from __future__ import annotations

from dask.utils import parse_bytes
from distributed import Client

from kedrl_dask.checks import shown
from kedrl_dask.execute.base import Executor
from kedrl_dask.execute.batch import job_script
from kedrl_dask.execute.cluster import (
    PATIENCE,
    PIECE_BYTES,
    DistributedExecutor,
    PoisonError,
)
from kedrl_dask.execute.kinds import (
    KINDS,
    ClusterDescription,
    chosen_cluster,
    cluster_keys,
    describe_cluster,
    parse_cluster,
)
from kedrl_dask.execute.opening import open_cluster
from kedrl_dask.execute.processes import cluster_at, local_cluster
from kedrl_dask.execute.status import cluster_status
from kedrl_dask.execute.threads import ThreadExecutor
from kedrl_dask.execute.tls import Certificates, InsecureClusterWarning, cluster_security, warn_of_plain_text

__all__ = [
    "KINDS",
    "PATIENCE",
    "PIECE_BYTES",
    "Certificates",
    "ClusterDescription",
    "DistributedExecutor",
    "Executor",
    "InsecureClusterWarning",
    "PoisonError",
    "ThreadExecutor",
    "checked_executor",
    "chosen_cluster",
    "cluster_at",
    "cluster_keys",
    "cluster_security",
    "cluster_status",
    "default_executor",
    "describe_cluster",
    "job_script",
    "local_cluster",
    "open_cluster",
    "parse_cluster",
    "parse_memory",
]


def parse_memory(value: int | str) -> int:
    """Bytes, from a number or from words such as "2 GiB"."""
    try:
        n_bytes = int(parse_bytes(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0 or isinstance(value, bool):
        raise ValueError(f"memory must be a number of bytes or words such as '2 GiB', got {shown(value)}")
    return n_bytes


def default_executor() -> Executor:
    """The active :class:`distributed.Client` if there is one, else threads in this process.

    A client whose traffic others can read and forge is used with a warning.
    """
    try:
        client = Client.current()
    except ValueError:
        return ThreadExecutor()
    warn_of_plain_text(client)
    return DistributedExecutor(client)


def checked_executor(given: Executor | None) -> Executor:
    """The executor given, or the default one; anything else is refused."""
    if given is None:
        return default_executor()
    if not isinstance(given, Executor):
        raise ValueError(
            f"executor must be an Executor of kedrl_dask.execute, got {shown(given)}; leave it out to use "
            "the active distributed.Client, or threads"
        )
    return given
