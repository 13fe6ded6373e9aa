"""The command ``kedrl``: one module per verb."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kedrl_dask._version import __version__
from kedrl_dask.checks import printable
from kedrl_dask.cli import cluster, demo, fit, plan, report, simulate, study
from kedrl_dask.cli.common import (
    BAD_INPUT,
    EXIT_CODES,
    INTERRUPTED,
    STOPPED,
    TERMINATED,
    Parser,
    log_lines,
)
from kedrl_dask.process import Stopped, Terminated, terminable

__all__ = ["main"]

#: Each has ``add``, which adds the verb with its options and the function that runs it.
VERBS = (demo, simulate, plan, fit, report, study, cluster)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    try:
        with log_lines(), terminable():
            return options.run(options)
    except KeyboardInterrupt:
        return _say("kedrl: interrupted", _left(options), INTERRUPTED)
    except Terminated:
        return _say("kedrl: terminated", _left(options), TERMINATED)
    except Stopped as error:
        return _say(f"kedrl: stopped: {error}", "", STOPPED)
    except (ValueError, OSError) as error:
        return _say(f"kedrl: error: {error}", "; ".join(getattr(error, "__notes__", ())), BAD_INPUT)


def _left(options: argparse.Namespace) -> str:
    """What there is of the work."""
    left: str = getattr(options, "interrupted", "")
    return left or (f"nothing was written to {options.output}" if "output" in options else "")


def _say(what: str, more: str, code: int) -> int:
    """One line on standard error; returns the exit code."""
    print(printable("; ".join(filter(None, [what, more]))), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kedrl",
        description="Offline evaluation of the joint law of multivariate discounted returns (KE-DRL).",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kedrl {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="verb")
    for verb in VERBS:
        verb.add(verbs)
    return parser
