"""Workers in jobs of a batch system, through dask-jobqueue."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client
from distributed.utils import get_ip, get_ip_interface

from kedrl_dask.engine.clusters.batch_systems import QUEUES
from kedrl_dask.engine.clusters.descriptions import Jobs, parse_walltime
from kedrl_dask.engine.clusters.local import QUIET, WORKER_DASHBOARD
from kedrl_dask.engine.clusters.watchdog import Watchdog
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.tls import cluster_security
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.process import Stopped, interrupts_held, opened

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster

logger = logging.getLogger(__name__)

#: A worker ends this many seconds before its job's time limit, or this share of the limit if that is less, so
#: that its data can move to other workers.
MARGIN, MARGIN_SHARE = 300, 0.1
#: Seconds between checks for the first worker, and between messages about it.
LOOK_EVERY, SPEAK_EVERY = 0.5, 60.0
JOB_NAME = "kedrl-worker"


def lifetime(walltime: int) -> tuple[int, int]:
    """Lifetime of a worker in seconds, and the size of its random variation.

    Workers that start together do not end together, and the last one ends a margin before its job does.
    """
    margin = int(min(MARGIN, MARGIN_SHARE * walltime))
    return walltime - 2 * margin, margin


def _module() -> ModuleType:
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        raise ValueError(
            "jobs of a batch system need the package dask-jobqueue: pip install 'kedrl-dask[jobqueue]'"
        ) from error
    if signal.getsignal(signal.SIGINT) is not interrupt:
        # Its import makes Ctrl-C end the process silently with exit code 0.
        signal.signal(signal.SIGINT, interrupt)
    return dask_jobqueue


def _cluster_class(kind: str) -> type[JobQueueCluster]:
    return getattr(_module(), f"{kind.upper()}Cluster")


def _site(kind: str, key: str) -> Any:
    """A value of the site's dask-jobqueue configuration, which may have any type."""
    return dask.config.get(f"jobqueue.{kind}.{key}", None)


def _site_walltime(kind: str) -> str:
    text = str(_site(kind, "walltime"))
    return f"{text}:00" if kind == "lsf" and text.count(":") == 1 else text


def job_options(described: Jobs) -> Record:
    """Arguments of dask-jobqueue's jobs, whose cores and memory must be given here or by the site."""
    kind, queue = described.kind, QUEUES[described.kind]
    _module()  # its import reads the site's configuration
    cores, memory = described.cores or _site(kind, "cores"), described.memory or _site(kind, "memory")
    for name, value in (("cores", cores), ("memory", memory)):
        if value is None:
            raise ValueError(
                f"a {kind} cluster needs the {name} of a job: set {name} in the table [cluster] of a file, "
                f"or jobqueue.{kind}.{name} in Dask's configuration"
            )
    walltime = parse_walltime("walltime", described.walltime or _site_walltime(kind))
    seconds, stagger = lifetime(walltime)
    quiet = {key.upper().replace("-", "_").replace(".", "__"): value for key, value in QUIET.items()}
    options = {
        "cores": cores,
        "memory": memory,
        "processes": described.processes or _site(kind, "processes") or cores,
        "walltime": queue.duration(walltime),
        "queue": described.queue,
        "account" if kind in ("slurm", "pbs") else "project": described.account,
        "interface": described.interface,
        "local_directory": described.local_directory,
        "log_directory": str(described.log_directory.absolute()),
        "job_extra_directives": [
            queue.no_requeue, *(_site(kind, "job-extra-directives") or ()), *described.directives
        ],
        "job_script_prologue": [
            *(f"export DASK_{key}={value}" for key, value in quiet.items()),
            *(_site(kind, "job-script-prologue") or ()), *described.prologue
        ],
        "worker_extra_args": [
            "--lifetime", f"{seconds}s", "--lifetime-stagger", f"{stagger}s",
            "--dashboard-address", WORKER_DASHBOARD,
        ],
        "python": shlex.quote(sys.executable),
        "job_name": JOB_NAME,
    }  # fmt: skip
    return {name: value for name, value in options.items() if value is not None}


def job_script(described: Jobs) -> str:
    """The script of one job; nothing is started."""
    job = _cluster_class(described.kind).job_cls
    return job("<scheduler>", name="<name>", **job_options(described)).job_script()


def scheduler_host(described: Jobs) -> str:
    """The address on which the driver's scheduler listens."""
    interface = described.scheduler_interface or described.interface or _site(described.kind, "interface")
    return get_ip_interface(interface) if interface else get_ip()


@contextmanager
def batch_cluster(described: Jobs, patience: float) -> Iterator[Executor]:
    """Jobs with a scheduler in this process, which are all cancelled at the end.

    The body starts when the first worker has connected.
    """
    queue, options = QUEUES[described.kind], job_options(described)
    queue.check()
    host = scheduler_host(described)

    def open_on(stack: ExitStack) -> tuple[Watchdog, Client]:
        stack.enter_context(dask.config.set(QUIET))
        cluster = stack.enter_context(
            _cluster_class(described.kind)(
                **options,
                security=cluster_security(host, described.certificates()),
                shared_temp_directory=options["log_directory"],
                scheduler_options={"host": host, "dashboard_address": WORKER_DASHBOARD},
            )
        )
        bounds = (described.minimum or 0, described.maximum) if described.maximum else None
        watchdog = Watchdog(cluster, queue, described.first_jobs, bounds, described.watch_seconds)
        return stack.enter_context(watchdog), stack.enter_context(Client(cluster, set_as_default=False))

    with opened(open_on) as (watchdog, client):
        _wait_for_worker(client, watchdog, options["log_directory"], patience)
        yield DistributedExecutor(client, patience)


def _wait_for_worker(client: Client, watchdog: Watchdog, logs: str, patience: float) -> None:
    """Wait for the first worker, because the memory budget of a fit is unknown before."""
    start = spoken = monotonic()
    while True:
        with interrupts_held():  # an interrupted call of the event loop would print a traceback
            if client.nthreads():
                return
            waiting_for = watchdog.waiting_for
        now = monotonic()
        if watchdog.has_given_up:
            raise Stopped(f"jobs end before any worker has started; see their logs in {logs}")
        if now - start > patience:
            raise Stopped(f"no worker has connected within {patience:g} s ({waiting_for}); see {logs}")
        if now - spoken > SPEAK_EVERY:
            logger.info("waiting for the first worker: %s", waiting_for)
            spoken = now
        sleep(LOOK_EVERY)
