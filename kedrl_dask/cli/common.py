"""What the verbs share: how one is declared, exit codes, types of arguments, and printing."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypedDict, Unpack

from kedrl_dask.engine.storage.untrusted import checked_path
from kedrl_dask.utils.checks import MOST_SEED, printable, shown

if TYPE_CHECKING:
    from rich.console import Console

    from kedrl_dask.utils.arrays import Record

#: What each verb does; the module of its name, imported when the verb is given, declares it as ``VERB``.
VERBS = {
    "demo": "simulate the paper's system, fit it, and compare with the truth; about a minute",
    "simulate": "write transitions of the paper's system, as many as wanted, to a store",
    "ingest": "store a table of your own: CSV, Parquet or Arrow, of any size and in any order",
    "plan": "project time, memory and disk of a fit, stage by stage",
    "fit": "fit a policy's return in a run that can be interrupted and resumed",
    "evaluate": "evaluate policies again if data were appended or settings changed; for schedules",
    "report": "write one HTML page with the answers, and how far to trust them",
    "study": "many fits compared with the truth: the paper's simulation study",
    "doctor": "examine this machine: versions, memory, disk, cluster and a small fit",
    "cluster": "show the cluster that a file or an option describes, with the script of its jobs",
    "completion": "print a completion script for bash, zsh or fish",
}

#: Largest number of replicates, and of worker processes on one machine.
MOST_REPLICATES, MOST_WORKERS = 10**5, 1_024

SUCCESS, BAD_INPUT, NOT_CONVERGED, STOPPED, INTERRUPTED, TERMINATED = 0, 2, 3, 4, 130, 143
#: Exit codes of ``kedrl evaluate`` (the first three) and of ``kedrl doctor``.
DRIFT, REFUSED, BUSY, UNWELL = 5, 6, 7, 8

EXIT_CODES = """\
exit codes:
  0    success
  1    unexpected error, with its traceback
  2    bad input or usage
  3    the fit did not converge, or cells of a study failed; the results are written all the same
  4    stopped: workers, the scheduler or disk space were lost, or a task killed every worker that ran it
  5    evaluate: done, with drift alerts
  6    evaluate: answers were refused because they would mislead; there is no new result
  7    evaluate: another process is working on the same evaluation; nothing was done
  8    doctor: a problem was found
  130  interrupted; no partial output is left
  143  terminated (SIGTERM); no partial output is left
After 4, 130 and 143, repeat the command to resume a run, a study or an evaluation.
"""

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Settings(TypedDict, total=False):
    """Arguments of ``add_argument`` other than ``help`` and ``default``."""

    action: str
    nargs: str
    type: Callable[[str], object]
    choices: Iterable[str]
    required: bool
    metavar: str
    dest: str


class Option(Settings, total=False):
    """Arguments of ``add_argument``."""

    help: str
    default: object


def option(help: str, default: object = None, **settings: Unpack[Settings]) -> Option:
    """An option or positional argument; the help states the default unless it mentions one itself."""
    if default is None:
        return {"help": help, **settings}
    is_stated = default in ((), []) or "(default: " in help
    return {"help": help if is_stated else f"{help} (default: %(default)s)", "default": default, **settings}


@dataclass(frozen=True)
class Verb:
    """A verb of ``kedrl``, or a kind of one.

    Attributes
    ----------
    description : str
        Text above the options in the help.
    options : mapping
        Options by name, in the order of the help.
    run : callable, optional
        Called with the parsed options; returns the exit code. Needed unless there are ``kinds``.
    note : str
        Examples and remarks, shown above the exit codes.
    alternatives : mapping
        Further options, of which at most one may be given.
    interrupted : str
        What an interrupted command leaves. If empty: nothing was written to ``output``.
    kinds : mapping
        Kinds of the verb by name.
    """

    description: str
    options: Mapping[str, Option]
    run: Callable[[argparse.Namespace], int] | None = None
    note: str = ""
    alternatives: Mapping[str, Option] = field(default_factory=dict)
    interrupted: str = ""
    kinds: Mapping[str, Verb] = field(default_factory=dict)

    def add(self, verbs: Verbs, name: str, summary: str) -> None:
        """Add the verb to a parser."""
        parser = verbs.add_parser(
            name,
            help=summary,
            description=self.description,
            epilog=self.note + EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(run=self.run, interrupted=self.interrupted)
        if self.alternatives:
            group = parser.add_mutually_exclusive_group()
            for flag, settings in self.alternatives.items():
                group.add_argument(flag, **settings)
        for flag, settings in self.options.items():
            parser.add_argument(flag, **settings)
        if self.kinds:
            parser.set_defaults(run=lambda _: parser.error(f"name a {name}: {', '.join(self.kinds)}"))
            kinds = parser.add_subparsers(dest=name, metavar=name)
            for kind, verb in self.kinds.items():
                verb.add(kinds, kind, verb.description[0].lower() + verb.description[1:].rstrip("."))


def given(options: argparse.Namespace) -> Record:
    """The values of a verb's own options by name, those of ``--json`` and of the parser left out."""
    return {
        name: value
        for name, value in vars(options).items()
        if name not in ("json", "verb", "study", "run", "interrupted")
    }


class Parser(argparse.ArgumentParser):
    """Parser whose messages escape control characters in what the user typed."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message, and exit with code 2."""
        super().error(printable(message))


def path(text: str) -> Path:
    """Path without control characters."""
    try:
        return checked_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Integer ≥ 0; argparse turns the error into a usage message."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number ≥ 0")
    if len(text) > len(str(MOST_SEED)) or int(text) > MOST_SEED:
        raise argparse.ArgumentTypeError(f"{shown(text)} is above {MOST_SEED}")
    return int(text)


def positive(text: str) -> int:
    """Integer ≥ 1."""
    if count(text) == 0:
        raise argparse.ArgumentTypeError("0 is not a whole number ≥ 1")
    return int(text)


def number(text: str) -> float:
    """A number, whose range is checked by its user."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def replicates(text: str) -> int:
    """Number of replicates ≥ 1, small enough to be listed."""
    if positive(text) > MOST_REPLICATES:
        raise argparse.ArgumentTypeError(f"{text} is above {MOST_REPLICATES:,}")
    return int(text)


def workers(text: str) -> int:
    """Number of worker processes ≥ 0 on one machine."""
    if count(text) > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} processes are more than {MOST_WORKERS:,}; give fewer")
    return int(text)


def show(options: argparse.Namespace, summary: Record, text: str | Callable[[Console], object]) -> None:
    """Print the summary if ``--json`` was given, and otherwise the text, or what a function writes."""
    if options.json:
        print_out(json.dumps(summary, indent=1, allow_nan=False))
    elif isinstance(text, str):
        print_out(text)
    else:
        from rich.console import Console  # not for `kedrl --help`, which is to be quick

        console = Console()
        with console.capture() as captured:
            text(console)
        print_out("\n" + captured.get().rstrip())


def print_out(text: str) -> None:
    """Print to a reader that may have closed the pipe, as ``head`` does; the results are on disk anyway."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failures(messages: Sequence[str]) -> int:
    """Print what failed on standard error; returns the exit code."""
    for message in messages:
        print(f"kedrl: {message}", file=sys.stderr)
    return NOT_CONVERGED if messages else SUCCESS


def written(output: Path) -> str:
    """What a verb has written to its directory, in words."""
    names = ", ".join(sorted(entry.name for entry in output.iterdir() if not entry.name.startswith(".")))
    return f"Written to {output}: {names}"


@contextmanager
def log_lines() -> Iterator[None]:
    """Send the package's log to standard error, where it shows progress if there is no terminal."""
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
