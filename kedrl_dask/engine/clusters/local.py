"""Worker processes on this machine, and clusters that somebody else has started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster

from kedrl_dask.engine.execute.dask_client import PATIENCE, DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.tls import Certificates, cluster_security, warn_of_plain_text
from kedrl_dask.utils.process import opened

__all__ = ["QUIET", "WORKER_DASHBOARD", "cluster_at", "local_cluster"]

#: What Dask does beside the work takes a twentieth of the cores that it shares with the work: its profiler,
#: its watch on the event loop, and on processor and memory.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
#: Workers have pages of their own, without TLS, and on their host's address unless told otherwise.
WORKER_DASHBOARD = "127.0.0.1:0"
_ALLOCATION = "distributed.nanny.pre-spawn-environ.MALLOC"
#: Bytes that a worker keeps when they are freed, and the size from which arrays have pages of their own.
KEEPS_MEMORY = {f"{_ALLOCATION}_TRIM_THRESHOLD_": 2**27, f"{_ALLOCATION}_MMAP_THRESHOLD_": 2**25}


@contextmanager
def local_cluster(
    n_workers: int,
    patience: float = PATIENCE,
    host: str = "127.0.0.1",
    certificates: Certificates | None = None,
    dashboard: str = "127.0.0.1:0",
    keeps_memory: bool = False,
) -> Iterator[Executor]:
    """Worker processes on this machine with one thread each; stopped at the end.

    Unless another host is given they can be reached from this machine alone; on another they speak TLS, with
    the certificates given or temporary ones. The dashboard is on loopback, at any free port, unless asked
    for elsewhere: it tells its visitors everything, and none needs a certificate.

    Workers give freed memory back at once. With ``keeps_memory`` they keep some of it, for tasks that are
    whole fits: these would else have every array paged in anew, which takes a quarter of their time.
    """
    security = cluster_security(host, certificates)

    def open_on(stack: ExitStack) -> Client:
        with _interrupts_ignored(), dask.config.set(QUIET | (KEEPS_MEMORY if keeps_memory else {})):
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=n_workers, threads_per_worker=1, host=host, dashboard_address=dashboard,
                    worker_dashboard_address=WORKER_DASHBOARD, security=security,
                )
            )  # fmt: skip
        return stack.enter_context(Client(cluster, set_as_default=False))

    with opened(open_on) as client:
        yield DistributedExecutor(client, patience)


@contextmanager
def cluster_at(
    address: str, patience: float = PATIENCE, certificates: Certificates | None = None
) -> Iterator[Executor]:
    """The cluster of the scheduler at an address."""
    security = certificates.security() if certificates else None
    with _Caller(address, set_as_default=False, security=security) as client:
        warn_of_plain_text(client)
        yield DistributedExecutor(client, patience)


class _Caller(Client):
    """A client that may be interrupted while it waits for a scheduler to answer: it closes itself then."""

    def start(self, **options: Any) -> None:
        try:
            super().start(**options)
        except BaseException:
            self.close()
            raise


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started here inherit it: Ctrl-C reaches this process alone, and it stops the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
