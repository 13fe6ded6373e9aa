"""This process: its memory, its BLAS threads, and its interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import psutil
from threadpoolctl import ThreadpoolController

T = TypeVar("T")

#: Number of rows of matrices from which several BLAS threads are faster than one.
MANY_ROWS = 3_000


@contextmanager
def driver_blas_threads(n_rows: int = 0) -> Iterator[None]:
    """Use one BLAS thread in this process, unless it works on matrices of many rows.

    On the small matrices of a driver several threads wait for each other, and the last digit of a product may
    depend on their number.
    """
    if n_rows >= MANY_ROWS:
        yield
        return
    with ThreadpoolController().limit(limits=1):
        yield


def own_memory() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


class Stopped(RuntimeError):
    """A computation lost a resource, such as its workers or disk space, and can be resumed later."""


class Terminated(SystemExit):
    """The process was asked to end, as by a batch system shortly before a job's time limit."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise :class:`Terminated` in the body, so that it can clean up.

    Only in the main thread, which receives signals, and only if the signal has no handler yet.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up is not interrupted again
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the end of the body.

    Only in the main thread, which receives signals, and only if they have handlers in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda received, _: held.append(received))
    try:
        yield
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


@contextmanager
def opened(open_on: Callable[[ExitStack], T]) -> Iterator[T]:
    """Yield what a function opens on a stack, and close the stack; neither step can be interrupted.

    An object whose constructor is interrupted has no owner to close it. A Dask client would then wait a
    minute at the end of the process for an event loop whose thread has ended, and print a traceback.
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
    """The result of a thread is no longer wanted."""


_abandoned = threading.Event()


@contextmanager
def abandoning(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Close the pool at the end; after an interruption its functions end at :func:`check_abandoned`.

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
        if is_interrupted:  # by now all its functions have ended
            _abandoned.clear()


def check_abandoned() -> None:
    """End a long computation if the process was interrupted."""
    if _abandoned.is_set():
        raise Abandoned
