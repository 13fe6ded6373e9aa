"""What a description of a cluster comes to, in plain words and numbers; nothing is started."""

from __future__ import annotations

import shutil
from typing import Any

from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from kedrl_dask.engine.clusters.batch_systems import QUEUES, QueueError
from kedrl_dask.engine.clusters.descriptions import (
    Address,
    ClusterDescription,
    Jobs,
    Kubernetes,
    Local,
    Threads,
)
from kedrl_dask.engine.clusters.jobqueue import job_options, job_script, scheduler_host
from kedrl_dask.engine.clusters.kubernetes import checked_manifest
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.execute.tls import Certificates, is_loopback

__all__ = ["cluster_status"]

#: Seconds that a scheduler which should be there may take to answer.
ANSWER_SECONDS = 30.0


def cluster_status(described: ClusterDescription) -> dict[str, Any]:
    """What would run where, and what can be said about the place now.

    Raises
    ------
    ValueError
        For the same reasons for which the cluster could not be opened.
    """
    match described:
        case Threads():
            found = {"threads": described.threads or CPU_COUNT}
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
            raise TypeError(f"no cluster: {described!r}")
    return {"kind": described.kind, **found}


def _number(described: Jobs | Kubernetes) -> dict[str, Any]:
    if described.is_adaptive:
        return {"minimum": described.minimum or 0, "maximum": described.maximum}
    return {described.main: getattr(described, described.main) or (1 if described.main == "jobs" else None)}


def _tls(host: str, certificates: Certificates | None) -> str:
    if certificates is not None:
        return "with the certificates given"
    return "none, as it is on loopback" if is_loopback(host) else "with temporary certificates"


def _reached(described: Address) -> dict[str, Any]:
    with open_cluster(described, ANSWER_SECONDS) as executor:
        assert executor is not None
        return {
            "address": described.address,
            "workers": executor.n_workers,
            "threads": executor.n_threads,
            "memory": executor.memory,
        }


def _jobs(described: Jobs) -> dict[str, Any]:
    queue, options, host = QUEUES[described.kind], job_options(described), scheduler_host(described)
    return {
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
        **_queued(described.kind),
    }


def _queued(kind: str) -> dict[str, Any]:
    """This user's jobs, whatever they are, or why they are not known."""
    try:
        return {"queue": QUEUES[kind].states()}
    except QueueError as error:
        return {"queue": None, "error": str(error)}
