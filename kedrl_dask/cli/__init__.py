"""The command ``kedrl``: one module per verb, imported when the verb is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from kedrl_dask._version import __version__
from kedrl_dask.cli.common import (
    BAD_INPUT,
    EXIT_CODES,
    INTERRUPTED,
    STOPPED,
    TERMINATED,
    VERBS,
    Parser,
    log_lines,
)
from kedrl_dask.utils.checks import printable
from kedrl_dask.utils.process import Stopped, Terminated, terminable

__all__ = ["main", "make_parser"]

EXAMPLES = """\
examples:
  kedrl demo                              simulate, fit and compare with the truth
  kedrl plan transitions.zarr             resources that a fit will take
  kedrl fit run.toml                      begin or resume a fit
  kedrl evaluate config.toml --dry-run    what a scheduled evaluation would do
  kedrl fit --help                        options of one verb

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace()
    try:
        parser = make_parser(next((word for word in given if not word.startswith("-")), None))
        options = parser.parse_args(given)
        if options.verb is None:
            parser.print_help(sys.stderr)
            return BAD_INPUT
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
    """What an interrupted command has left."""
    left: str = getattr(options, "interrupted", "")
    return left or (f"nothing was written to {options.output}" if "output" in options else "")


def _say(what: str, more: str, code: int) -> int:
    """Print one line on standard error; returns the exit code."""
    print(printable("; ".join(filter(None, [what, more]))), file=sys.stderr)
    return code


def make_parser(*verbs: str | None) -> argparse.ArgumentParser:
    """The parser with the names of all verbs, and the options of those given, whose modules are imported."""
    parser = Parser(
        prog="kedrl",
        description="Offline evaluation of the joint law of multivariate discounted returns (KE-DRL).",
        epilog=EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kedrl {__version__}")
    added = parser.add_subparsers(dest="verb", metavar="verb")
    for name, summary in VERBS.items():
        if name in verbs:
            import_module(f"kedrl_dask.cli.verbs.{name}").VERB.add(added, name, summary)
        else:
            added.add_parser(name, help=summary)
    return parser
