"""Progress bars in terminals and notebooks, log lines elsewhere; and the times of stages."""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kedrl_dask.utils.checks import check_word

ProgressMode = Literal["auto", "bars", "log", "none"]

logger = logging.getLogger("kedrl_dask")

#: Called with the amount done and a short remark.
Advance = Callable[..., None]
#: Seconds between log lines of one stage.
LOG_INTERVAL = 10.0
#: Seconds between updates of a bar in a notebook.
NOTEBOOK_INTERVAL = 0.25


def _unnoted(event: str, **facts: object) -> None:
    """Keep no record."""


class Reporter:
    """Shows the stages of a computation as they run, and records in ``seconds`` how long each took.

    "auto" draws bars if standard error is a terminal or a notebook, and otherwise writes log lines to the
    logger ``kedrl_dask`` at level INFO. ``note(event, **facts)`` is called when a stage begins or ends, and
    for other events worth recording.
    """

    def __init__(self, show: ProgressMode = "auto", note: Callable[..., None] | None = None) -> None:
        check_word("progress", show, get_args(ProgressMode))
        self.seconds: dict[str, float] = {}
        self.note = note or _unnoted
        console = Console(stderr=True)
        can_draw = console.is_jupyter or (sys.stderr is not None and sys.stderr.isatty())
        self._show = ("bars" if can_draw else "log") if show == "auto" else show
        self._console = console

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        """Run the body as a stage, and yield ``advance(amount=1, remark="")``."""
        start = time.perf_counter()
        self.note("stage started", stage=name)
        body = {"bars": self._bar, "log": self._log, "none": self._silence}[self._show]
        with body(name, total) as advance:
            yield advance
        seconds = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.note("stage finished", stage=name, seconds=seconds)

    @contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Advance]:
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total}" if total else ""),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        bars = Progress(*columns, console=self._console)
        with _shown_in_notebook(bars) if self._console.is_jupyter else bars:
            task = bars.add_task(name, total=total, remark="")

            def advance(amount: int = 1, remark: str = "") -> None:
                bars.update(task, advance=amount, remark=remark)

            yield advance
            done = bars.tasks[0].completed
            # Fill the bar of a stage that ended early, as a solver may, or that has no steps.
            bars.update(task, total=done or 1, completed=done or 1)

    @contextmanager
    def _log(self, name: str, total: int | None) -> Iterator[Advance]:
        start = last = time.perf_counter()
        done = 0

        def advance(amount: int = 1, remark: str = "") -> None:
            nonlocal last, done
            done += amount
            now = time.perf_counter()
            if now - last >= LOG_INTERVAL:
                last = now
                of = f" of {total}" if total else ""
                logger.info("%s: %d%s after %.0f s %s", name, done, of, now - start, remark)

        logger.info("%s", name)
        yield advance
        logger.info("%s: done in %.1f s", name, time.perf_counter() - start)

    @contextmanager
    def _silence(self, name: str, total: int | None) -> Iterator[Advance]:
        yield lambda amount=1, remark="": None


@contextmanager
def _shown_in_notebook(bars: Progress) -> Iterator[None]:
    """Show bars as an output that is updated repeatedly.

    Rich itself would use an output widget, to which the front end replies. Replies that arrive while a cell
    ends can make programs that run notebooks (nbclient, nbconvert, papermill) miss the end and wait for ever.
    """
    from IPython.display import display

    shown = display(bars, display_id=True)
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(NOTEBOOK_INTERVAL):
            shown.update(bars)

    # In this context, so that the output appears below this cell.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(draw,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shown.update(bars)
