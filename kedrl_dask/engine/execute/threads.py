"""Chunk functions in threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import psutil
from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT
from threadpoolctl import ThreadpoolController

from kedrl_dask.engine.execute.executor import Advance, Executor, Item, Result, Task, Value
from kedrl_dask.utils.process import abandoning, own_memory


class ThreadExecutor(Executor):
    """Threads of this process with one BLAS thread each; by default, as many as it may use cores.

    Examples
    --------
    >>> ThreadExecutor(2).map(pow, [1, 2, 3], 2)
    [1, 4, 9]
    """

    def __init__(self, n_threads: int | None = None) -> None:
        self._n_threads = n_threads or CPU_COUNT
        # Finding the BLAS libraries takes milliseconds; limiting their threads takes no time.
        self._blas = ThreadpoolController()

    @property
    def n_threads(self) -> int:
        """Number of threads."""
        return self._n_threads

    @property
    def n_workers(self) -> int:
        """One: this process."""
        return 1

    @property
    def memory(self) -> int:
        """Memory that this process uses already, plus four fifths of what is free."""
        free = min(MEMORY_LIMIT, psutil.virtual_memory().available)
        return int(own_memory() + 0.8 * free)

    def share(self, value: Value) -> Value:
        """Return the value itself, which all threads see."""
        return value

    def _map(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None = None
    ) -> list[Result]:
        """Run on a pool of threads; the first error cancels what has not started."""
        # Several BLAS threads in each of our threads would overload the cores, and a product that is split
        # over a different number of threads may differ in its last digit.
        with self._blas.limit(limits=1), abandoning(ThreadPoolExecutor(self._n_threads)) as pool:
            futures = [pool.submit(task.noted, item) for item in items]
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
