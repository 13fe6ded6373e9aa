"""The command ``kedrl``: one module per verb."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kedrl_dask._version import __version__
from kedrl_dask.checks import printable
from kedrl_dask.cli import demo, plan, simulate, study
from kedrl_dask.cli.common import BAD_INPUT, EXIT_CODES, INTERRUPTED, Parser, log_lines

__all__ = ["main"]

#: Each has ``add``, which adds the verb with its options and the function that runs it.
VERBS = (demo, simulate, plan, study)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    try:
        with log_lines():
            return options.run(options)
    except KeyboardInterrupt:
        left = getattr(options, "interrupted", "")
        if not left and "output" in options:
            left = f"nothing was written to {printable(str(options.output))}"
        print("; ".join(["kedrl: interrupted", *filter(None, [left])]), file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"kedrl: error: {printable(str(error))}", file=sys.stderr)
        return BAD_INPUT


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
