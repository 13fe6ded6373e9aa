"""From the description of a cluster to the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from dask.system import CPU_COUNT

from kedrl_dask.engine.clusters.descriptions import (
    Address,
    ClusterDescription,
    Jobs,
    Kubernetes,
    Local,
    Threads,
)
from kedrl_dask.engine.clusters.jobqueue import batch_cluster
from kedrl_dask.engine.clusters.kubernetes import kubernetes_cluster
from kedrl_dask.engine.clusters.local import cluster_at, local_cluster
from kedrl_dask.engine.execute.dask_client import PATIENCE
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.threads import ThreadExecutor

__all__ = ["open_cluster"]


@contextmanager
def open_cluster(
    described: ClusterDescription | None, patience: float = PATIENCE
) -> Iterator[Executor | None]:
    """An executor on the cluster described, which is started here and stopped at the end.

    Without a description there is no executor: a fit then takes the active client, or threads.

    Parameters
    ----------
    described : ClusterDescription or None
    patience : float
        Seconds that the cluster may be without any worker, at the beginning and later.
    """
    match described:
        case Threads():
            yield ThreadExecutor(described.threads)
        case Local():
            workers, certificates = described.workers or CPU_COUNT, described.certificates()
            with local_cluster(workers, patience, described.host, certificates) as executor:
                yield executor
        case Address():
            with cluster_at(_address(described), patience, described.certificates()) as executor:
                yield executor
        case Jobs():
            with batch_cluster(described, patience) as executor:
                yield executor
        case Kubernetes():
            with kubernetes_cluster(described, patience) as executor:
                yield executor
        case _:
            yield None


def _address(described: Address) -> str:
    address = described.address or dask.config.get("scheduler-address", None)
    if not address:
        raise ValueError(
            "which scheduler? Give its address, as --cluster address=tls://host:8786, or in the variable "
            "DASK_SCHEDULER_ADDRESS"
        )
    return str(address)
