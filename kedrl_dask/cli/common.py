"""What the verbs share: exit codes, options, and where words go."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from kedrl_dask.cli.verb_names import VERBS
from kedrl_dask.engine.storage.untrusted import checked_path
from kedrl_dask.utils.checks import MOST_SEED, printable, shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "BAD_INPUT",
    "BUSY",
    "DRIFT",
    "EXIT_CODES",
    "INTERRUPTED",
    "JSON",
    "NOT_CONVERGED",
    "REFUSED",
    "STOPPED",
    "SUCCESS",
    "TERMINATED",
    "UNWELL",
    "Parser",
    "Verbs",
    "add_verb",
    "as_json",
    "count",
    "log_lines",
    "number",
    "path",
    "positive",
    "print_out",
    "printing",
    "replicates",
    "workers",
    "written",
]

#: Most cells of a kind, and worker processes, that can be meant.
MOST_REPLICATES, MOST_WORKERS = 10**5, 1_024

SUCCESS, BAD_INPUT, NOT_CONVERGED, STOPPED, INTERRUPTED, TERMINATED = 0, 2, 3, 4, 130, 143
#: Of ``kedrl evaluate`` and ``kedrl doctor``.
DRIFT, REFUSED, BUSY, UNWELL = 5, 6, 7, 8

EXIT_CODES = """\
exit codes:
  0    success
  1    unexpected error, with its traceback
  2    bad input or usage
  3    the fit did not converge, or cells of a study failed; the results are written all the same
  4    stopped: workers, the scheduler or room on the disk were lost, or a task ended every worker that ran it
  5    evaluate: done, with drift alerts
  6    evaluate: answers were refused, because they would mislead; there is no new result
  7    evaluate: another process is at work on the same evaluation; nothing was done
  8    doctor: something is wrong
  130  interrupted; nothing is left half written
  143  terminated (SIGTERM); nothing is left half written
After 4, 130 and 143 the same command goes on with a run, a study or an evaluation.
"""

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: Options that mean the same in every verb that has them.
JSON: dict[str, Any] = {
    "action": "store_true",
    "help": "print the summary as JSON, and nothing else, to standard output; progress still goes to "
    "standard error",
}


class Parser(argparse.ArgumentParser):
    """Words of the user in messages cannot move the cursor or begin a line."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with code 2."""
        super().error(printable(message))


def path(text: str) -> Path:
    """Path that can be printed as it is."""
    try:
        return checked_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_verb(
    verbs: Verbs,
    name: str,
    run: Callable[[argparse.Namespace], int],
    description: str,
    note: str = "",
) -> argparse.ArgumentParser:
    """Add a verb and return its parser.

    Parameters
    ----------
    verbs : Verbs
        The verbs so far.
    name : str
        A key of :data:`kedrl_dask.cli.verb_names.VERBS`.
    run : callable
        Runs the verb with the parsed options, of which ``output`` is where it writes, if it does, and
        returns the exit code.
    description : str
        For the help of the verb.
    note : str
        Shown above the exit codes.
    """
    parser = verbs.add_parser(
        name,
        help=VERBS[name],
        description=description,
        epilog=note + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def count(text: str) -> int:
    """Integer from 0 on; argparse turns the error into a usage message."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number ≥ 0")
    if len(text) > len(str(MOST_SEED)) or int(text) > MOST_SEED:
        raise argparse.ArgumentTypeError(f"{shown(text)} is above {MOST_SEED}")
    return int(text)


def positive(text: str) -> int:
    """Integer from 1 on."""
    if count(text) == 0:
        raise argparse.ArgumentTypeError("0 is not a whole number ≥ 1")
    return int(text)


def number(text: str) -> float:
    """A number; what it is for checks its range."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def replicates(text: str) -> int:
    """Integer from 1 on of things of which there is a list."""
    if positive(text) > MOST_REPLICATES:
        raise argparse.ArgumentTypeError(f"{text} is above {MOST_REPLICATES:,}")
    return int(text)


def workers(text: str) -> int:
    """Integer from 0 on of processes on one machine."""
    if count(text) > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} processes are more than {MOST_WORKERS:,}; give fewer")
    return int(text)


def as_json(summary: dict[str, Any]) -> str:
    """A summary as text for machines."""
    return json.dumps(summary, indent=1, allow_nan=False)


def print_out(text: str) -> None:
    """Print to a reader who may have left, as ``head`` does; the results are on disk all the same."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def printing() -> Iterator[Console]:
    """A console whose words are printed at the end, by :func:`print_out`."""
    from rich.console import Console  # not for `kedrl --help`, which is to be quick

    console = Console()
    with console.capture() as captured:
        yield console
    print_out("\n" + captured.get().rstrip())


def written(output: Path) -> str:
    """Names of what a verb has left in its directory for its user."""
    return ", ".join(sorted(entry.name for entry in output.iterdir() if not entry.name.startswith(".")))


@contextmanager
def log_lines() -> Iterator[None]:
    """Log lines of the package on standard error: there progress shows when there is no terminal."""
    logger, handler = logging.getLogger("kedrl_dask"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
