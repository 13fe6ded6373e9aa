"""Chunk functions on a Dask cluster."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

from distributed import Client, Future, KilledWorker, as_completed
from distributed.comm import CommClosedError
from distributed.protocol import pickle as dask_pickle
from distributed.system import MEMORY_LIMIT
from distributed.utils import CancelledError
from threadpoolctl import ThreadpoolController

from kedrl_dask.engine.execute.executor import Advance, Executor, noted, tree, words_of
from kedrl_dask.utils.process import Stopped

__all__ = ["PATIENCE", "PIECE_BYTES", "DistributedExecutor", "PoisonError"]

#: Pieces in which large shared values travel; Dask warns about tasks that carry more than 10 MB.
PIECE_BYTES = 8 * 2**20
#: Values up to this size go along with each task: a dependency costs a round trip more.
INLINE_BYTES = 2**18
#: How often a task that failed is tried again. Dask itself gives up on a task when four workers died that had
#: been given it. Then it is run by itself, until it is given up again, and once more.
RETRIES, LONE_TRIES = 3, 2
#: Seconds that a cluster may be without workers, and how often it is looked at while nothing else happens.
PATIENCE, LOOK_EVERY = 600.0, 2.0
#: Looks in a row that find workers idle after which tasks are taken for lost.
STALLS = 3


class PoisonError(Stopped):
    """A task ends every worker that runs it."""


class _Stalled(Stopped):
    """Workers have nothing to do, and tasks are not done."""


class _Handle:
    """A task whose result stays on a worker; it can be submitted anew when Dask has lost or refused it."""

    def __init__(self, submit: Callable[[], Future], words: str) -> None:
        self._submit, self._words = submit, words
        self.future = submit()

    def renew(self) -> None:
        if self.future.status != "finished":
            self.future = self._submit()

    def __repr__(self) -> str:
        return self._words


class DistributedExecutor(Executor):
    """A Dask cluster, through its client.

    Workers must reach the paths of the stores. Handles are futures; Dask recomputes what a lost worker
    held. A task that Dask gave up on, because too many workers died that had been given it, is run again by
    itself: only if they go on dying under it alone it is to blame, and a :class:`PoisonError` names it.
    So is one that Dask has lost: a task that was given to a worker, though others may do it, waits for ever
    if there was a moment without any worker.

    Parameters
    ----------
    client : distributed.Client
    patience : float
        Seconds that the cluster may be without any worker; then the computation is
        :class:`~kedrl_dask.utils.process.Stopped`.
    """

    def __init__(self, client: Client, patience: float = PATIENCE) -> None:
        self._client = client
        self._patience = patience
        self._run = uuid4().hex[:12]
        self._count = 0
        self._driver = (socket.gethostname(), os.getpid())
        self._blas = ThreadpoolController()
        self._latest: list[Future] = []
        self._warming: list[Future] = []

    @property
    def n_threads(self) -> int:
        """Threads of all workers; at least one, as workers may yet arrive."""
        return max(1, sum(self._workers().values()))

    @property
    def n_workers(self) -> int:
        """Workers there now; at least one."""
        return max(1, len(self._workers()))

    @property
    def memory(self) -> int:
        """Three fifths of the smallest worker's limit, where Dask begins to write memory to disk."""
        with self._reached():
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
        return int(0.6 * min(limits, default=MEMORY_LIMIT))

    def _workers(self) -> dict[str, int]:
        """Threads of the workers that are there, by their address."""
        with self._reached():
            return dict(self._client.nthreads())

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Whatever goes wrong in the body because the scheduler is gone is that."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CommClosedError | CancelledError) or self._client.status != "running":
                raise Stopped(f"the Dask scheduler has ended, or cannot be reached ({error})") from error
            raise

    def _key(self, name: str) -> str:
        self._count += 1
        return f"kedrl-{name}-{self._run}-{self._count}"

    def share(self, value: Any) -> Any:
        """Turn the value into a task that returns it: unlike scattered data it outlives its worker.

        A small value goes along with every task instead.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) <= INLINE_BYTES:
            return _Packed(data)
        return _Handle(partial(self._send, data), f"a shared {type(value).__name__}")

    def _send(self, data: bytes) -> Future:
        key, submit = self._key("share"), self._client.submit
        starts = range(0, len(data), PIECE_BYTES)
        with self._reached():
            pieces = [submit(bytes, data[i : i + PIECE_BYTES], key=f"{key}-{i}", pure=False) for i in starts]
            return submit(_join, pieces, key=key, pure=False, retries=RETRIES)

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
        arguments = [[_sent(value)] * n for value in (function, self._driver, *shared)]
        keys = [f"{key}-{i}" for i in range(n)]
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        given = [_sent(item) for item in items]
        with self._reached():
            return self._client.map(_call, given, *arguments, key=keys, pure=False, retries=retries, **where)

    def warm_up(self, function: Callable[[int], None]) -> None:
        """One task for each worker that is there; one that comes later warms up in its first task."""
        workers = sorted(self._client.nthreads())
        self._warming = [
            self._submit(function, [number], (), worker=worker)[0] for number, worker in enumerate(workers)
        ]

    def hold(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Handles of the results; each stays on the worker that computed it.

        Items are dealt out to the threads of all workers: left to itself, Dask would put all of them where
        the shared values are.
        """
        threads = sorted(self._workers().items())
        workers: list[str | None] = [address for address, n in threads for _ in range(n)] or [None]

        def submit(item: Any, worker: str | None) -> Future:
            return self._submit(function, [item], shared, worker if worker in self._workers() else None)[0]

        return [
            _Handle(partial(submit, item, workers[i * len(workers) // len(items)]), words_of(function, item))
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
            results = self._gather(futures, [words_of(function, item) for item in items], advance)
            for i in _given_up(results):

                def submit(item: Any = items[i]) -> Future:
                    for handle in (*shared, item):
                        if isinstance(handle, _Handle):
                            handle.renew()
                    return self._submit(function, [item], shared)[0]

                results[i] = self._computed(submit, words_of(function, items[i]))
            return results

    def attempt(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """One task per item; those whose workers died are tried again, each by itself.

        Dask blames all tasks that a dead worker had been given, even while it was dying.
        """
        outcomes = self._outcomes(function, items, shared, advance)
        for i in _given_up(outcomes):
            for _ in range(LONE_TRIES):
                if isinstance(outcomes[i], KilledWorker):
                    (outcomes[i],) = self._outcomes(function, [items[i]], shared, None)
        return outcomes

    def _outcomes(self, function: Any, items: Any, shared: Any, advance: Advance | None) -> list[Any]:
        with self._blas.limit(limits=1):
            futures = self._submit(function, items, shared, retries=0)

            def wait() -> list[Any]:
                self._count_done(futures, advance)
                return [_outcome(future) for future in futures]

            return self._patiently(futures, wait)

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

        def submit(called: Callable[..., Any], *arguments: Any) -> Future:
            return self._submit(called, [arguments[0]], arguments[1:])[0]

        def leaf(item: Any) -> Future:
            return submit(function, item, *shared)

        def reduced(group: Sequence[Any], items: Sequence[Any], leaf: Callable[[Any], Future]) -> Future:
            total = tree(items, leaf, lambda a, b: submit(combine, a, b))
            return submit(finish, total, group, *shared)

        with self._blas.limit(limits=1):
            futures = [reduced(group, group, leaf) for group in groups]
            words = [words_of(function, group) for group in groups]
            results = self._gather(futures, words, advance)
            for i in _given_up(results):
                settled = [self._settle(partial(leaf, item), words_of(function, item)) for item in groups[i]]
                last = self._settle(partial(reduced, groups[i], settled, lambda x: x), words[i])
                results[i] = self._result(last)
            return results

    def _gather(self, futures: list[Future], words: Sequence[str], advance: Advance | None) -> list[Any]:
        """Results in the order of the futures; for those that Dask gave up on, why."""

        def wait() -> list[Any]:
            self._count_done(futures, advance)
            try:
                return [_landed(result) for result in self._client.gather(futures)]
            except Exception:
                return [_outcome(future) for future in futures]

        try:
            results = self._patiently(futures, wait)
        except _Stalled:
            return [KilledWorker(word, None, 0) for word in words]
        for outcome, described in zip(results, words, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, KilledWorker):
                self._cancel(futures)
                raise noted(outcome, described)
        return results

    def _count_done(self, futures: list[Future], advance: Advance | None) -> None:
        if advance is not None:
            for _ in as_completed(futures, loop=self._client.loop):
                advance()

    def _result(self, future: Future) -> Any:
        return _landed(self._patiently([future], future.result))

    def _computed(self, submit: Callable[[], Future], words: str) -> Any:
        """Result of a task that is run by itself."""
        while True:
            try:
                return self._result(self._settle(submit, words))
            except _Stalled:  # workers came and went; those that are there now can do it
                continue

    def _settle(self, submit: Callable[[], Future], words: str) -> Future:
        """Run a task by itself, and once more if its workers die: other tasks of theirs may be the cause."""
        for _ in range(LONE_TRIES):
            future = submit()
            error = self._patiently([future], future.exception)
            if error is None:
                return future
            if not isinstance(error, KilledWorker):
                raise noted(error, words)
        raise PoisonError(
            f"{words} ended every worker that ran it, {LONE_TRIES} times over while nothing else ran: look "
            "into the workers' logs; it may need more memory than they have, or longer than they live"
        )

    def _patiently(self, futures: list[Future], wait: Callable[[], Any]) -> Any:
        """What ``wait`` returns; a cluster that is lost meanwhile, or an interruption, ends it.

        It waits in a thread of its own, as nothing that Dask offers can wait and look around.
        """
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((wait(), None))
            except BaseException as error:  # raised below, where it belongs
                answers.put((None, error))

        threading.Thread(target=run, name="kedrl-wait", daemon=True).start()
        latest_workers, n_stalls = monotonic(), 0
        try:
            while True:
                try:
                    result, error = answers.get(timeout=LOOK_EVERY)
                except queue.Empty:
                    latest_workers = self._look(latest_workers)
                    n_stalls = n_stalls + 1 if self._is_idle(futures) else 0
                    if n_stalls == STALLS:
                        raise _Stalled("the Dask scheduler has lost tasks; run the same again") from None
                    continue
                if error is None:
                    return result
                with self._reached():
                    raise error
        except BaseException:
            self._cancel(futures)
            raise

    def _look(self, latest_workers: float) -> float:
        """When there were workers last; refuse to wait longer than patience goes."""
        if self._workers():
            return monotonic()
        if monotonic() - latest_workers > self._patience:
            raise Stopped(f"the Dask cluster had no worker for {self._patience:.0f} s; start workers")
        return latest_workers

    def _is_idle(self, futures: list[Future]) -> bool:
        """Whether there are futures to wait for, and a worker that does nothing, and none that does them."""
        if not any(future.status == "pending" for future in futures):
            return False
        with self._reached():
            busy: dict[str, Sequence[str]] = dict(self._client.processing())
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        is_idle = any(not busy.get(name) and facts["status"] == "running" for name, facts in workers.items())
        ours = f"-{self._run}-"
        return is_idle and not any(ours in str(key) for keys in busy.values() for key in keys)

    def _cancel(self, futures: list[Future]) -> None:
        if self._client.status == "running":
            self._client.cancel(futures)


def _outcome(future: Future) -> Any:
    """Result of a future, or the exception that it ended with."""
    error = future.exception()  # waits: a future that was done goes on again if the holder of its result died
    return _landed(future.result()) if error is None else error.with_traceback(future.traceback())


class _Packed(NamedTuple):
    """A value as bytes of pickle, with its arrays among them.

    Left to itself, Dask cuts arrays out of the message that they came in, at whatever address they have
    there. NumPy copies an array at an odd address before it multiplies, in another order of memory than a
    transposed one has, and some kernels of BLAS then round otherwise. Out of a pickle arrays come aligned.
    """

    data: bytes


def _sent(value: Any) -> Any:
    """What goes along with a task for a value: its future, if workers have it, or its bytes."""
    if isinstance(value, _Handle):
        return value.future
    return value if isinstance(value, _Packed | Future) else _Packed(dask_pickle.dumps(value))


def _landed(value: Any) -> Any:
    """A value that came from another process, with its arrays aligned; see :class:`_Packed`."""
    return pickle.loads(dask_pickle.dumps(value))


def _given_up(results: list[Any]) -> list[int]:
    return [i for i, result in enumerate(results) if isinstance(result, KilledWorker)]


def _join(pieces: Sequence[bytes]) -> Any:
    return pickle.loads(b"".join(pieces))


def _call(*sent: Any) -> Any:
    """Run a chunk function on a worker with one BLAS thread; see ``DistributedExecutor._submit``."""
    item, function, driver, *shared = (
        pickle.loads(value.data) if isinstance(value, _Packed) else value for value in sent
    )
    if driver != (socket.gethostname(), os.getpid()):
        _use_one_blas_thread()
    return function(item, *shared)


@cache
def _use_one_blas_thread() -> None:
    """Once per worker process; under a nanny the environment has done it already."""
    ThreadpoolController().limit(limits=1)
