"""Chunk functions on a Dask cluster."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures as threads
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic
from typing import Any, NamedTuple, cast
from uuid import uuid4

from distributed import Client, Future, KilledWorker, as_completed
from distributed.comm import CommClosedError
from distributed.protocol import pickle as dask_pickle
from distributed.system import MEMORY_LIMIT
from distributed.utils import CancelledError
from threadpoolctl import ThreadpoolController

from kedrl_dask.engine.execute.executor import Advance, Executor, Item, Reduction, Result, Task, Value, tree
from kedrl_dask.utils.process import Stopped

#: Size of the pieces in which large shared values travel; Dask warns about tasks that carry more than 10 MB.
PIECE_BYTES = 8 * 2**20
#: Values up to this size are sent with each task, because a dependency costs another round trip.
INLINE_BYTES = 2**18
#: Number of retries of a task that raised an exception. Dask itself gives up on a task after four of the
#: workers that were assigned it have died; such a task then runs alone, this many times.
RETRIES, LONE_TRIES = 3, 2
#: Seconds for which a cluster may have no workers, and the interval between checks while waiting.
PATIENCE, LOOK_EVERY = 600.0, 2.0
#: Number of consecutive checks with idle workers after which unfinished tasks are considered lost.
STALLS = 3


class PoisonError(Stopped):
    """Every worker that runs a certain task dies."""


class _Stalled(Stopped):
    """Workers are idle although tasks are unfinished."""


class _Handle:
    """A task whose result stays on a worker; it is submitted again if Dask lost it or gave up on it."""

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

    Workers must have access to the paths of the stores. Handles are futures; Dask recomputes what a lost
    worker held. When too many workers that were assigned a task have died, Dask gives up on the task; it is
    then run alone, and only if workers keep dying is it blamed, by a :class:`PoisonError` that names it.
    A task that Dask has lost is run again too: one assigned to a particular worker can wait forever if the
    cluster was without workers for a moment, even if other workers are allowed to run it. The computation is
    :class:`~kedrl_dask.utils.process.Stopped` if there are no workers for ``patience`` seconds.
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
        """Number of threads of all workers; at least one, because workers may still arrive."""
        return max(1, sum(self._workers().values()))

    @property
    def n_workers(self) -> int:
        """Current number of workers; at least one."""
        return max(1, len(self._workers()))

    @property
    def memory(self) -> int:
        """Three fifths of the smallest worker's limit, above which Dask begins to spill to disk."""
        limits = [facts["memory_limit"] for facts in self._worker_facts().values() if facts["memory_limit"]]
        return int(0.6 * min(limits, default=MEMORY_LIMIT))

    def _workers(self) -> dict[str, int]:
        """Number of threads of each current worker, by its address."""
        with self._reached():
            return dict(self._client.nthreads())

    def _worker_facts(self) -> dict[str, dict[str, Any]]:
        """What the scheduler knows about each worker, by its address."""
        with self._reached():
            return self._client.scheduler_info(n_workers=-1)["workers"]

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors caused by the loss of the scheduler into :class:`Stopped`."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CommClosedError | CancelledError) or self._client.status != "running":
                raise Stopped(f"the Dask scheduler has ended, or cannot be reached ({error})") from error
            raise

    def _key(self, name: str) -> str:
        self._count += 1
        return f"kedrl-{name}-{self._run}-{self._count}"

    def share(self, value: Value) -> Value:
        """Turn the value into a task that returns it: unlike scattered data, it survives its worker.

        A small value is sent with every task instead.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) <= INLINE_BYTES:
            return cast(Value, _Packed(data))
        return cast(Value, _Handle(partial(self._send, data), f"a shared {type(value).__name__}"))

    def _send(self, data: bytes) -> Future:
        key, submit = self._key("share"), self._client.submit
        starts = range(0, len(data), PIECE_BYTES)
        with self._reached():
            pieces = [submit(bytes, data[i : i + PIECE_BYTES], key=f"{key}-{i}", pure=False) for i in starts]
            return submit(_join, pieces, key=key, pure=False, retries=RETRIES)

    def _submit(
        self,
        task: Task[Item, Result],
        items: Sequence[object],
        worker: str | None = None,
        retries: int = RETRIES,
    ) -> list[Future]:
        """Submit one task per item in a single message; other workers may replace the preferred one."""
        if not items:
            return []
        n, key = len(items), self._key(task.function.__name__)
        # As sequences of arguments: large keyword arguments would become tasks named after them.
        arguments = [[_sent(value)] * n for value in (task.function, self._driver, *task.shared)]
        keys = [f"{key}-{i}" for i in range(n)]
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        given = [_sent(item) for item in items]
        with self._reached():
            return self._client.map(_call, given, *arguments, key=keys, pure=False, retries=retries, **where)

    def warm_up(self, function: Callable[[int], None]) -> None:
        """Submit one task for each current worker; later ones warm up in their first task."""
        workers = sorted(self._client.nthreads())
        self._warming = [
            self._submit(Task(function), [number], worker)[0] for number, worker in enumerate(workers)
        ]

    def _hold(self, task: Task[Item, Result], items: Sequence[Item]) -> list[Result]:
        """Distribute the items over the threads of all workers.

        By default, Dask would put all of them where the shared values are.
        """
        threads = sorted(self._workers().items())
        workers: list[str | None] = [address for address, n in threads for _ in range(n)] or [None]

        def submit(item: Item, worker: str | None) -> Future:
            return self._submit(task, [item], worker if worker in self._workers() else None)[0]

        handles = [
            _Handle(partial(submit, item, workers[i * len(workers) // len(items)]), task.words(item))
            for i, item in enumerate(items)
        ]
        return cast(list[Result], handles)

    def _map(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None = None
    ) -> list[Result]:
        """Submit one task per item and gather the results in order."""
        # Workers in this very process, such as those of LocalCluster(processes=False), share its BLAS.
        with self._blas.limit(limits=1):
            futures = self._submit(task, items)
            # After each message the client holds back others for 10 ms: the release of the previous futures
            # must not go out before the next tasks do.
            self._latest = futures
            results = self._gather(futures, [task.words(item) for item in items], advance)
            for i in _given_up(results):

                def submit(item: Item = items[i]) -> Future:
                    for value in (*task.shared, item):
                        if isinstance(value, _Handle):
                            value.renew()
                    return self._submit(task, [item])[0]

                results[i] = self._computed(submit, task.words(items[i]))
            return cast(list[Result], results)

    def _attempt(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None
    ) -> list[Result | Exception]:
        """Submit one task per item; those whose workers died are tried again, one at a time.

        Dask blames every task that was assigned to a worker when it died.
        """
        outcomes = self._outcomes(task, items, advance)
        for i in _given_up(outcomes):
            for _ in range(LONE_TRIES):
                if isinstance(outcomes[i], KilledWorker):
                    (outcomes[i],) = self._outcomes(task, [items[i]], None)
        return outcomes

    def _outcomes(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None
    ) -> list[Result | Exception]:
        with self._blas.limit(limits=1):
            futures = self._submit(task, items, retries=0)

            def wait() -> list[Result | Exception]:
                self._count_done(futures, advance)
                return [_outcome(future) for future in futures]

            return self._patiently(futures, wait)

    def _reduce(
        self, how: Reduction[Item, Value, Result], groups: Sequence[Sequence[Item]], advance: Advance | None
    ) -> list[Result]:
        """Submit one task per item and per pair; only what ``finish`` returns comes back."""

        task = how.task

        def leaf(item: Item) -> Future:
            return self._submit(task, [item])[0]

        def merged(first: Future, second: Future) -> Future:
            return self._submit(Task(how.combine, (second,)), [first])[0]

        def finished(group: Sequence[Item], total: Future) -> Future:
            return self._submit(how.finishing(group), [total])[0]

        with self._blas.limit(limits=1):
            futures = [finished(group, tree(group, leaf, merged)) for group in groups]
            words = [task.words(group) for group in groups]
            results = self._gather(futures, words, advance)
            for i in _given_up(results):
                settled = [self._settle(partial(leaf, item), task.words(item)) for item in groups[i]]

                def submit(group: Sequence[Item] = groups[i], leaves: list[Future] = settled) -> Future:
                    return finished(group, tree(leaves, lambda future: future, merged))

                results[i] = self._result(self._settle(submit, words[i]))
            return cast(list[Result], results)

    def _gather(self, futures: list[Future], words: Sequence[str], advance: Advance | None) -> list[object]:
        """Results in the order of the futures, with a KilledWorker for each task that Dask gave up on."""

        def wait() -> list[object]:
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
                outcome.add_note(f"in {described}")
                raise outcome
        return results

    def _count_done(self, futures: list[Future], advance: Advance | None) -> None:
        if advance is not None:
            for _ in as_completed(futures, loop=self._client.loop):
                advance()

    def _result(self, future: Future) -> object:
        return _landed(self._patiently([future], future.result))

    def _computed(self, submit: Callable[[], Future], words: str) -> object:
        """Result of a task that runs alone."""
        while True:
            try:
                return self._result(self._settle(submit, words))
            except _Stalled:  # workers came and went; the current ones can do it
                continue

    def _settle(self, submit: Callable[[], Future], words: str) -> Future:
        """Run a task alone, and again if its workers die, because other tasks of theirs may be the cause."""
        for _ in range(LONE_TRIES):
            future = submit()
            error = self._patiently([future], future.exception)
            if error is None:
                return future
            if not isinstance(error, KilledWorker):
                error.add_note(f"in {words}")
                raise error
        raise PoisonError(
            f"{words} ended every worker that ran it, {LONE_TRIES} times while nothing else was running: see "
            "the workers' logs; it may need more memory than they have, or more time than they are given"
        )

    def _patiently(self, futures: list[Future], wait: Callable[[], Value]) -> Value:
        """Return what ``wait`` returns, unless the cluster is lost or the user interrupts before.

        It waits in its own thread, because no function of Dask can wait and check the cluster.
        """
        answer: threads.Future[Value] = threads.Future()

        def run() -> None:
            try:
                answer.set_result(wait())
            except BaseException as error:  # raised below
                answer.set_exception(error)

        threading.Thread(target=run, name="kedrl-wait", daemon=True).start()
        latest_workers, n_stalls = monotonic(), 0
        try:
            while not threads.wait([answer], LOOK_EVERY).done:
                latest_workers = self._look(latest_workers)
                n_stalls = n_stalls + 1 if self._is_idle(futures) else 0
                if n_stalls == STALLS:
                    raise _Stalled("the Dask scheduler has lost tasks; run the same command again")
            with self._reached():
                return answer.result()
        except BaseException:
            self._cancel(futures)
            raise

    def _look(self, latest_workers: float) -> float:
        """Return the time at which there were workers last; stop if that is too long ago."""
        if self._workers():
            return monotonic()
        if monotonic() - latest_workers > self._patience:
            raise Stopped(f"the Dask cluster had no worker for {self._patience:.0f} s; start workers")
        return latest_workers

    def _is_idle(self, futures: list[Future]) -> bool:
        """Whether some futures are pending, a worker is idle, and none is running any of our tasks."""
        if not any(future.status == "pending" for future in futures):
            return False
        with self._reached():
            busy: dict[str, Sequence[str]] = dict(self._client.processing())
        workers = self._worker_facts()
        is_idle = any(not busy.get(name) and facts["status"] == "running" for name, facts in workers.items())
        ours = f"-{self._run}-"
        return is_idle and not any(ours in str(key) for keys in busy.values() for key in keys)

    def _cancel(self, futures: list[Future]) -> None:
        if self._client.status == "running":
            self._client.cancel(futures)


def _outcome(future: Future) -> Any:
    """Result of a future, or the exception that it ended with."""
    error = future.exception()  # waits: a finished future runs again if the worker with its result died
    return _landed(future.result()) if error is None else error.with_traceback(future.traceback())


class _Packed(NamedTuple):
    """A value as pickled bytes that include its arrays.

    By default, Dask takes arrays out of the message that they came in, at whatever address they have there.
    NumPy copies an array at an odd address before a product, with a memory layout that differs from that of
    a transposed array, and some BLAS kernels then round differently. Unpickled arrays are aligned.
    """

    data: bytes


def _sent(value: object) -> object:
    """What is sent with a task for a value: its future if workers have it, otherwise its bytes."""
    if isinstance(value, _Handle):
        return value.future
    return value if isinstance(value, _Packed | Future) else _Packed(dask_pickle.dumps(value))


def _landed(value: Value) -> Value:
    """A value that came from another process, with its arrays aligned; see :class:`_Packed`."""
    return pickle.loads(dask_pickle.dumps(value))


def _given_up(results: Sequence[object]) -> list[int]:
    return [i for i, result in enumerate(results) if isinstance(result, KilledWorker)]


def _join(pieces: Sequence[bytes]) -> object:
    return pickle.loads(b"".join(pieces))


def _call(*sent: Any) -> object:
    """Run a chunk function on a worker with one BLAS thread; see ``DistributedExecutor._submit``."""
    item, function, driver, *shared = (
        pickle.loads(value.data) if isinstance(value, _Packed) else value for value in sent
    )
    if driver != (socket.gethostname(), os.getpid()):
        _use_one_blas_thread()
    return function(item, *shared)


@cache
def _use_one_blas_thread() -> None:
    """Once per worker process; under a nanny, its environment has done so already."""
    ThreadpoolController().limit(limits=1)
