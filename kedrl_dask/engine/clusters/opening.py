"""From the description of a cluster to the cluster, and to a report of what it would be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import dask
from dask.system import CPU_COUNT, cpu_count
from dask.utils import parse_bytes
from distributed import Client
from distributed.system import memory_limit

from kedrl_dask.engine.clusters.batch_systems import QUEUES, QueueError
from kedrl_dask.engine.clusters.descriptions import (
    Address,
    ClusterDescription,
    Jobs,
    Kubernetes,
    Local,
    Threads,
)
from kedrl_dask.engine.clusters.jobqueue import batch_cluster, job_options, job_script, scheduler_host
from kedrl_dask.engine.clusters.kubernetes import checked_manifest, kubernetes_cluster
from kedrl_dask.engine.clusters.local import cluster_at, local_cluster
from kedrl_dask.engine.execute.dask_client import PATIENCE
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.execute.tls import Certificates, is_loopback
from kedrl_dask.utils.arrays import Record

#: Seconds that an existing scheduler may take to answer.
ANSWER_SECONDS = 30.0


@contextmanager
def open_cluster(
    described: ClusterDescription | None, patience: float = PATIENCE
) -> Iterator[Executor | None]:
    """An executor on the cluster described, which is started here and stopped at the end.

    Without a description there is no executor: a fit then uses the active client, or threads. The cluster may
    have no workers for ``patience`` seconds, at the start and later.
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
            "the address of the scheduler is missing: give --cluster address=tls://host:8786, or set the "
            "variable DASK_SCHEDULER_ADDRESS"
        )
    return str(address)


def cluster_status(described: ClusterDescription) -> Record:
    """What would run where, and the current state of the cluster if it exists; nothing is started.

    Raises a ValueError for the same reasons for which the cluster could not be opened.
    """
    match described:
        case Threads():
            found: Record = {"threads": described.threads or CPU_COUNT}
        case Local():
            found = {
                "workers": described.workers or CPU_COUNT,
                "host": described.host,
                "tls": _tls(described.host, described.certificates()),
            }
        case Address():
            found = _reached(described)
        case Jobs():
            found = _jobs(described)
        case Kubernetes():
            manifest = checked_manifest(described)
            found = {"manifest": str(manifest), "namespace": described.namespace, **_number(described)}
        case _:
            raise TypeError(f"not a cluster: {described!r}")
    return {"kind": described.kind, **found}


def _number(described: Jobs | Kubernetes) -> Record:
    if described.is_adaptive:
        return {"minimum": described.minimum or 0, "maximum": described.maximum}
    return {described.main: getattr(described, described.main) or (1 if described.main == "jobs" else None)}


def _tls(host: str, certificates: Certificates | None) -> str:
    if certificates is not None:
        return "with the given certificates"
    return "none, because it is on loopback" if is_loopback(host) else "with temporary certificates"


def _reached(described: Address) -> Record:
    with open_cluster(described, ANSWER_SECONDS) as executor:
        assert executor is not None
        return {
            "address": described.address,
            "workers": executor.n_workers,
            "threads": executor.n_threads,
            "memory": executor.memory,
        }


def _jobs(described: Jobs) -> Record:
    queue, options, host = QUEUES[described.kind], job_options(described), scheduler_host(described)
    found = {
        **_number(described),
        "cores": options["cores"],
        "workers_per_job": options["processes"],
        "memory_per_worker": parse_bytes(options["memory"]) // options["processes"],
        "walltime": options["walltime"],
        "scheduler": host,
        "tls": _tls(host, described.certificates()),
        "logs": options["log_directory"],
        "commands": {name: shutil.which(name) for name in (queue.submit, queue.listing[0])},
        "script": job_script(described),
    }
    try:
        return {**found, "queue": queue.states()}
    except QueueError as error:
        return {**found, "queue": None, "error": str(error)}


def granted() -> tuple[int, int]:
    """Cores and bytes of memory that this process may use, after all limits."""
    return cpu_count(), memory_limit()


class SchedulerFacts(TypedDict):
    """Numbers of workers and of their threads, and packages whose versions differ from this process's."""

    workers: int
    threads: int
    differing: list[str]


def reach_scheduler(address: str, seconds: float) -> SchedulerFacts:
    """Look at the cluster of the scheduler at an address; an OSError if it does not answer in time."""
    with Client(address, timeout=seconds, set_as_default=False) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        found = client.get_versions(check=False)
    own = found["client"]["packages"]
    differing = {
        name
        for other in (found["scheduler"], *found["workers"].values())
        for name in ("python", "dask", "distributed", "numpy")
        if other["packages"].get(name) != own.get(name)
    }
    threads = sum(worker["nthreads"] for worker in workers)
    return {"workers": len(workers), "threads": threads, "differing": sorted(differing)}
