"""Chunk functions in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import psutil
from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT
from threadpoolctl import ThreadpoolController

from kedrl_dask.engine.execute.executor import Advance, Executor, noted, tree, words_of
from kedrl_dask.utils.process import abandoning, own_memory

__all__ = ["ThreadExecutor"]


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
        with self._blas.limit(limits=1), abandoning(ThreadPoolExecutor(self._n_threads)) as pool:
            futures = [pool.submit(_named, function, item, *shared) for item in items]
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

        def one(group: Sequence[Any]) -> Any:
            return finish(tree(group, lambda item: function(item, *shared), combine), group, *shared)

        return self.map(one, groups, advance=advance)


def _named(function: Callable[..., Any], item: Any, *shared: Any) -> Any:
    """Run a chunk function in this process; its error says on what."""
    try:
        return function(item, *shared)
    except Exception as error:
        raise noted(error, words_of(function, item))  # noqa: B904 - it is the same error
