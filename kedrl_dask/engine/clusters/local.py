"""Worker processes on this machine, and existing clusters."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dask
from distributed import Client, LocalCluster

from kedrl_dask.engine.execute.dask_client import PATIENCE, DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.tls import Certificates, cluster_security, warn_of_plain_text
from kedrl_dask.utils.process import opened

#: Disables Dask's profiler, and makes its monitors of event loop, processor and memory run less often: by
#: default, these take a twentieth of the processor time.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
#: Dashboards of workers have no TLS, and by default listen on their host's address.
WORKER_DASHBOARD = "127.0.0.1:0"
_ALLOCATION = "distributed.nanny.pre-spawn-environ.MALLOC"
#: Amount of freed memory that a worker keeps, and the size above which arrays are mapped separately.
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
    """Worker processes on this machine with one thread each, which are stopped at the end.

    By default, they can only be reached from this machine; on any other host they use TLS, with the given or
    with temporary certificates. The dashboard requires no certificate and shows everything; it is on
    loopback, at a free port, unless another address is given.

    Workers return freed memory to the system at once. With ``keeps_memory`` they keep some of it, which saves
    a quarter of the time of tasks that are whole fits, because their arrays need not be paged in again.
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
    """A client that closes itself if it is interrupted while it waits for the scheduler."""

    def start(self, **options: object) -> None:
        try:
            super().start(**options)
        except BaseException:
            self.close()
            raise


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Make new processes ignore Ctrl-C, so that only this process receives it and stops the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
