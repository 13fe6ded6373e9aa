"""This process: its memory, its threads of linear algebra, and how it is asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import psutil
from threadpoolctl import ThreadpoolController

__all__ = [
    "Abandoned",
    "Stopped",
    "Terminated",
    "abandoning",
    "check_abandoned",
    "driver_blas_threads",
    "interrupts_held",
    "opened",
    "own_memory",
    "terminable",
]

T = TypeVar("T")

#: Rows of matrices on which several BLAS threads are faster than one.
MANY_ROWS = 3_000


@contextmanager
def driver_blas_threads(n_rows: int = 0) -> Iterator[None]:
    """One BLAS thread in this process, unless it works on matrices of many rows.

    On the small matrices of a driver several wait for each other, and where they share a product its last
    digit may depend on their number.
    """
    if n_rows >= MANY_ROWS:
        yield
        return
    with ThreadpoolController().limit(limits=1):
        yield


def own_memory() -> int:
    """Bytes that this process has in memory."""
    return int(psutil.Process().memory_info().rss)


class Stopped(RuntimeError):
    """A computation lost what it needs, such as its workers or room on the disk, and can go on later."""


class Terminated(SystemExit):
    """The process was asked to end, as a batch system does shortly before a job's time is up."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` in the body, so that it can put things in order.

    Only in the main thread, which signals go to, and not where the signal has a handler already.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # putting things in order is not interrupted again
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM that come during the body take effect at its end.

    Only in the main thread, which signals go to, and only where they raise an exception there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _: Any) -> None:
        held.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


@contextmanager
def opened(open_on: Callable[[ExitStack], T]) -> Iterator[T]:
    """What a function opens on a stack, which is closed at the end; nothing is interrupted halfway.

    An object whose constructor is interrupted has no owner to close it. A client of Dask's then waits, as
    the process ends, a minute for an event loop whose thread has ended, and prints a traceback.
    """
    stack = ExitStack()
    try:
        with interrupts_held():
            found = open_on(stack)
        yield found
    finally:
        with interrupts_held():
            stack.close()


class Abandoned(BaseException):
    """What a thread works on is no longer wanted."""


_abandoned = threading.Event()


@contextmanager
def abandoning(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """The pool, closed at the end; an interruption makes its functions end at their :func:`check_abandoned`.

    Nothing else can interrupt a thread.
    """
    is_interrupted = False
    try:
        with pool:
            try:
                yield pool
            except Exception:
                raise
            except BaseException:
                is_interrupted = True
                _abandoned.set()
                raise
    finally:
        if is_interrupted:  # and all its functions have ended
            _abandoned.clear()


def check_abandoned() -> None:
    """In a long computation: end it if the process was interrupted."""
    if _abandoned.is_set():
        raise Abandoned
