"""Running chunk functions: in threads of this process, or on a Dask cluster. Nothing else knows Dask.

A chunk function takes an item (a row range, a path) and shared values and returns arrays. An executor
moves it. Results always come back in the order of the items, so sums do not depend on which worker
finished first.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

import dask
import psutil
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed import Client, Future, KilledWorker, LocalCluster, as_completed
from distributed.system import MEMORY_LIMIT
from threadpoolctl import ThreadpoolController

from kedrl_dask.checks import shown
from kedrl_dask.execute.base import Advance, Executor, tree
from kedrl_dask.execute.tls import Certificates, InsecureClusterWarning, cluster_security, warn_of_plain_text
from kedrl_dask.process import own_memory

__all__ = [
    "Certificates",
    "DistributedExecutor",
    "Executor",
    "InsecureClusterWarning",
    "ThreadExecutor",
    "checked_executor",
    "cluster_security",
    "default_executor",
    "local_cluster",
    "parse_memory",
]

#: Pieces in which large shared values travel; Dask warns about tasks that carry more than 10 MB.
PIECE_BYTES = 8 * 2**20
#: Values up to this size go along with each task: a dependency costs a round trip more.
INLINE_BYTES = 2**18
#: What Dask does beside the work takes a twentieth of the cores that it shares with the work: its profiler,
#: its watch on the event loop, and on processor and memory.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
#: Workers have pages of their own, without TLS, and on their host's address unless told otherwise.
WORKER_DASHBOARD = "127.0.0.1:0"
#: How often a task that failed or lost its worker is tried again.
RETRIES = 3


class ThreadExecutor(Executor):
    """Threads of this process, one BLAS thread each.

    Parameters
    ----------
    n_threads : int, optional
        The cores that this process may use, unless given.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        self._n_threads = n_threads or CPU_COUNT
        # Finding the BLAS libraries takes milliseconds, setting their threads none.
        self._blas = ThreadpoolController()

    @property
    def n_threads(self) -> int:
        """Number of threads."""
        return self._n_threads

    @property
    def n_workers(self) -> int:
        """This process."""
        return 1

    @property
    def memory(self) -> int:
        """What this process has and four fifths of what is free."""
        free = min(MEMORY_LIMIT, psutil.virtual_memory().available)
        return int(own_memory() + 0.8 * free)

    def share(self, value: Any) -> Any:
        """Return the value: all threads see it."""
        return value

    def hold(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Results, in this process."""
        return self.map(function, items, *shared)

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """Run on a pool of threads; the first error cancels what has not started."""
        # Threads times BLAS threads would overload the cores; and a product split over another
        # number of threads may differ in its last digit.
        with self._blas.limit(limits=1), ThreadPoolExecutor(self._n_threads) as pool:
            futures = [pool.submit(function, item, *shared) for item in items]
            try:
                if advance is not None:
                    for future in futures:
                        future.add_done_callback(lambda _: advance())
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                failed = [future for future in done if future.exception() is not None]
                return [future.result() for future in failed or futures]
            finally:
                for future in futures:
                    future.cancel()

    def reduce(
        self,
        function: Callable[..., Any],
        groups: Sequence[Sequence[Any]],
        combine: Callable[[Any, Any], Any],
        finish: Callable[..., Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """One thread for each group, item by item."""

        def one(number: int) -> Any:
            total = tree(groups[number], lambda item: function(item, *shared), combine)
            return finish(total, number, *shared)

        return self.map(one, range(len(groups)), advance=advance)


class DistributedExecutor(Executor):
    """A Dask cluster, through its client.

    Workers must reach the paths of the stores. Handles are futures; Dask recomputes what a lost worker
    held.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = uuid4().hex[:12]
        self._count = 0
        self._driver = (socket.gethostname(), os.getpid())
        self._blas = ThreadpoolController()
        self._latest: list[Future] = []

    @property
    def n_threads(self) -> int:
        """Threads of all workers; at least one, as workers may yet arrive."""
        return max(1, sum(self._client.nthreads().values()))

    @property
    def n_workers(self) -> int:
        """Workers there now; at least one."""
        return max(1, len(self._client.nthreads()))

    @property
    def memory(self) -> int:
        """Three fifths of the smallest worker's limit, where Dask begins to write memory to disk."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
        return int(0.6 * min(limits, default=MEMORY_LIMIT))

    def _key(self, name: str) -> str:
        self._count += 1
        return f"kedrl-{name}-{self._run}-{self._count}"

    def share(self, value: Any) -> Any:
        """Turn the value into a task that returns it: unlike scattered data it outlives its worker.

        A small value goes along with every task instead.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) <= INLINE_BYTES:
            return value
        key = self._key("share")
        pieces = [
            self._client.submit(bytes, data[start : start + PIECE_BYTES], key=f"{key}-{start}", pure=False)
            for start in range(0, len(data), PIECE_BYTES)
        ]
        return self._client.submit(_join, pieces, key=key, pure=False, retries=RETRIES)

    def _submit(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        shared: tuple[Any, ...],
        worker: str | None = None,
        retries: int = RETRIES,
    ) -> list[Future]:
        """One message to the scheduler, whatever the number of items; others stand in for a lost worker."""
        if not items:
            return []
        n, key = len(items), self._key(function.__name__)
        # As sequences of arguments: keyword arguments that are large become tasks named like them.
        arguments = [[value] * n for value in (function, self._driver, *shared)]
        keys = [f"{key}-{i}" for i in range(n)]
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        return self._client.map(_call, items, *arguments, key=keys, pure=False, retries=retries, **where)

    def hold(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Futures of the results; each stays on the worker that computed it.

        Items are dealt out to the threads of all workers: left to itself, Dask would put all of them where
        the shared values are.
        """
        threads = sorted(self._client.nthreads().items())
        workers = [address for address, n in threads for _ in range(n)]
        if not workers:
            return self._submit(function, items, shared)
        return [
            self._submit(function, [item], shared, worker=workers[i * len(workers) // len(items)])[0]
            for i, item in enumerate(items)
        ]

    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """Submit one task per item and gather the results in order."""
        # Workers in this very process, as LocalCluster(processes=False) has, share its BLAS.
        with self._blas.limit(limits=1):
            futures = self._submit(function, items, shared)
            # The client holds messages back for 10 ms after each one: word that the last futures can be
            # forgotten must not go out before the next tasks do.
            self._latest = futures
            return self._gather(futures, advance)

    def attempt(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """One task per item; those whose workers died are tried once more, each by itself.

        Dask blames all tasks that a dead worker had been given.
        """
        outcomes = self._outcomes(function, items, shared, advance)
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, KilledWorker):
                (outcomes[i],) = self._outcomes(function, [items[i]], shared, None)
        return outcomes

    def _outcomes(self, function: Any, items: Any, shared: Any, advance: Advance | None) -> list[Any]:
        with self._blas.limit(limits=1):
            futures = self._submit(function, items, shared, retries=0)
            try:
                if advance is not None:
                    for _ in as_completed(futures, loop=self._client.loop):
                        advance()
                return [_outcome(future) for future in futures]
            except BaseException:
                self._client.cancel(futures)
                raise

    def reduce(
        self,
        function: Callable[..., Any],
        groups: Sequence[Sequence[Any]],
        combine: Callable[[Any, Any], Any],
        finish: Callable[..., Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """One task per item and per pair; only what ``finish`` returns comes back."""
        with self._blas.limit(limits=1):

            def submit(called: Callable[..., Any], *arguments: Any) -> Future:
                return self._submit(called, [arguments[0]], arguments[1:])[0]

            totals = [
                tree(group, lambda item: submit(function, item, *shared), lambda a, b: submit(combine, a, b))
                for group in groups
            ]
            finished = [submit(finish, total, number, *shared) for number, total in enumerate(totals)]
            del totals  # the scheduler keeps them as long as they are needed
            return self._gather(finished, advance)

    def _gather(self, futures: list[Future], advance: Advance | None) -> list[Any]:
        """Results in the order of the futures; an interruption cancels them."""
        try:
            if advance is not None:
                for _ in as_completed(futures, loop=self._client.loop):
                    advance()
            return list(self._client.gather(futures))
        except BaseException:
            self._client.cancel(futures)
            raise


def parse_memory(value: int | str) -> int:
    """Bytes, from a number or from words such as "2 GiB"."""
    try:
        n_bytes = int(parse_bytes(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0 or isinstance(value, bool):
        raise ValueError(f"memory must be a number of bytes or words such as '2 GiB', got {shown(value)}")
    return n_bytes


def _outcome(future: Future) -> Any:
    """Result of a future, or the exception that it ended with."""
    error = future.exception()  # waits: a future that was done goes on again if the holder of its result died
    return future.result() if error is None else error.with_traceback(future.traceback())


def _join(pieces: Sequence[bytes]) -> Any:
    return pickle.loads(b"".join(pieces))


def _call(item: Any, function: Callable[..., Any], driver: tuple[str, int], *shared: Any) -> Any:
    """Run a chunk function on a worker with one BLAS thread."""
    if driver != (socket.gethostname(), os.getpid()):
        _use_one_blas_thread()
    return function(item, *shared)


@cache
def _use_one_blas_thread() -> None:
    """Once per worker process; under a nanny the environment has done it already."""
    ThreadpoolController().limit(limits=1)


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


@contextmanager
def local_cluster(
    n_workers: int,
    host: str = "127.0.0.1",
    certificates: Certificates | None = None,
    dashboard: str = "127.0.0.1:0",
) -> Iterator[Executor]:
    """Worker processes on this machine with one thread each; stopped at the end.

    Unless another host is given they can be reached from this machine alone; on another they speak TLS, with
    the certificates given or temporary ones. The dashboard is on loopback, at any free port, unless asked
    for elsewhere: it tells its visitors everything, and none needs a certificate.
    """
    security = cluster_security(host, certificates)
    with _interrupts_ignored(), dask.config.set(QUIET):
        cluster = LocalCluster(
            n_workers=n_workers, threads_per_worker=1, host=host, dashboard_address=dashboard,
            worker_dashboard_address=WORKER_DASHBOARD, security=security,
        )  # fmt: skip
    with cluster, Client(cluster, set_as_default=False) as client:
        yield DistributedExecutor(client)


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
