"""The process itself: its threads of linear algebra, and signals that must wait."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

import numpy as np  # noqa: F401 - its BLAS is the one looked at
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from kedrl_dask.utils.process import (
    MANY_ROWS,
    Terminated,
    driver_blas_threads,
    interrupts_held,
    opened,
    terminable,
)


def blas_threads():
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


@pytest.mark.parametrize(("n_rows", "expected"), [(0, 1), (MANY_ROWS - 1, 1), (MANY_ROWS, 2)])
def test_driver_blas_threads__many_for_large_matrices_alone(n_rows, expected):
    with threadpool_limits(limits=2, user_api="blas"):
        with driver_blas_threads(n_rows):
            assert blas_threads() == {expected}
        assert blas_threads() == {2}


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_interrupts_held__until_the_end_of_the_body(number, error):
    steps, handlers = [], [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]

    def body():
        with terminable():
            with interrupts_held():
                with interrupts_held():
                    signal.raise_signal(number)
                    signal.raise_signal(number)
                    steps.append("inner")
                steps.append("outer")
            steps.append("after")

    with pytest.raises(error):
        body()
    assert steps == ["inner", "outer"]
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == handlers


def test_interrupts_held__what_is_ignored_and_other_threads():
    def body():
        with interrupts_held():
            seen.append(signal.getsignal(signal.SIGINT))

    seen, before = [], signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        body()
    finally:
        signal.signal(signal.SIGINT, before)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_IGN, before]


def test_opened__interrupted_while_it_opens_and_closes():
    """Everything is opened, and everything is closed, in order."""
    steps = []

    @contextmanager
    def part(name):
        signal.raise_signal(signal.SIGINT)
        steps.append(f"open {name}")
        yield name
        signal.raise_signal(signal.SIGINT)
        steps.append(f"close {name}")

    def open_on(stack):
        return [stack.enter_context(part(name)) for name in "ab"]

    with pytest.raises(KeyboardInterrupt), opened(open_on):
        steps.append("body")
    assert steps == ["open a", "open b", "close b", "close a"]


def test_opened__what_cannot_be_opened_closes_the_rest():
    def open_on(stack):
        stack.callback(steps.append, "closed")
        raise ValueError("no room")

    steps = []
    with pytest.raises(ValueError, match="no room"), opened(open_on):
        steps.append("body")
    assert steps == ["closed"]
