"""The command ``kedrl``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from kedrl_dask import demo, report
from kedrl_dask._version import __version__
from kedrl_dask.datasets.simulation import PAIRS

__all__ = ["main"]

SUCCESS, BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 0, 2, 3, 130

EXIT_CODES = """\
exit codes:
  0    success
  1    unexpected error, with its traceback
  2    bad input or usage
  3    the fit did not converge; its results are written all the same
  130  interrupted; nothing is left half written
"""

PROFILE_NOTE = """\
profiles:
  auto         successor actions drawn from the target policy, settings by cross-validation, exact minimiser
  paper        the paper's settings of the pair: density ratio by uLSIF, AdamW for its whole budget (which
               is then success, exit code 0). Target actions are three quadrature nodes, not random draws,
               because one node would be the policy's location alone
  paper-exact  as paper, with the exact minimiser in place of AdamW

The error is taken at the ten points of the paper's table for Uniform→Gaussian, whatever the pair.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    try:
        with _log_lines():
            return _demo(options)
    except KeyboardInterrupt:
        print(f"kedrl: interrupted; nothing was written to {options.output}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"kedrl: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kedrl",
        description="Offline evaluation of the joint law of multivariate discounted returns (KE-DRL).",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kedrl {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="verb")
    demo_parser = verbs.add_parser(
        "demo",
        help="simulate the paper's system, fit it, and compare with the truth; about a minute",
        description="Simulate the paper's linear-Gaussian system, fit the law of its return under the "
        "target policy, and compare with the closed form.",
        epilog=PROFILE_NOTE + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, options in DEMO_OPTIONS.items():
        demo_parser.add_argument(name, **options)
    return parser


def _count(text: str) -> int:
    """Integer from 0 on; argparse turns the error into a usage message."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number ≥ 0")
    return int(text)


def _positive(text: str) -> int:
    """Integer from 1 on."""
    if _count(text) == 0:
        raise argparse.ArgumentTypeError("0 is not a whole number ≥ 1")
    return int(text)


DEMO_OPTIONS: dict[str, dict[str, Any]] = {
    "--output": {
        "type": Path,
        "default": Path("kedrl-demo"),
        "metavar": "DIR",
        "help": "new or empty directory for data, model, plots and summary.json (default: %(default)s)",
    },
    "--overwrite": {"action": "store_true", "help": "replace an earlier demo in DIR, and nothing else"},
    "--profile": {
        "choices": demo.PROFILES,
        "default": "auto",
        "help": "settings of the fit (default: %(default)s)",
    },
    "--pair": {
        "choices": sorted(PAIRS),
        "default": "uniform-gaussian",
        "metavar": "PAIR",
        "help": "behaviour and target policy: %(choices)s (default: %(default)s)",
    },
    "--transitions": {
        "type": _positive,
        "default": 14_700,
        "metavar": "N",
        "help": "how many to simulate (default: %(default)s)",
    },
    "--seed": {
        "type": _count,
        "default": 0,
        "metavar": "N",
        "help": "seed of data and fit (default: %(default)s)",
    },
    "--workers": {
        "type": _count,
        "default": 0,
        "metavar": "N",
        "help": "worker processes of a local Dask cluster; 0 uses threads of this process "
        "(default: %(default)s)",
    },
    "--json": {
        "action": "store_true",
        "help": "print the summary as JSON, and nothing else, to standard output; progress still goes to "
        "standard error",
    },
    "--no-plots": {"dest": "draw", "action": "store_false", "help": "draw no figures"},
}


def _demo(options: argparse.Namespace) -> int:
    outcome = demo.run(
        options.output,
        pair=options.pair,
        profile=options.profile,
        transitions=options.transitions,
        seed=options.seed,
        workers=options.workers,
        draw=options.draw,
        overwrite=options.overwrite,
    )
    _print(
        json.dumps(outcome.summary, indent=1, allow_nan=False) if options.json else _text(outcome, options)
    )
    if outcome.did_its_work:
        return SUCCESS
    print(f"kedrl: the fit did not converge: {outcome.model.solution_.result.value}", file=sys.stderr)
    return NOT_CONVERGED


def _text(outcome: demo.Outcome, options: argparse.Namespace) -> str:
    """The tables, and where everything is."""
    console = Console()
    with console.capture() as captured:
        report.render(outcome.model, outcome.errors, console, paper_rmse=demo.PAPER_RMSE[options.pair])
        if options.pair != "uniform-gaussian":
            console.print(
                "The points are the paper's for Uniform→Gaussian; its figure for this pair is at others."
            )
        names = ", ".join(sorted(entry.name for entry in options.output.iterdir()))
        console.print(f"\n{outcome.summary['seconds']:.0f} s in all. Written to {options.output}: {names}")
    return "\n" + captured.get().rstrip()


def _print(text: str) -> None:
    """Print to a reader who may have left, as ``head`` does; the results are on disk all the same."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _log_lines() -> Iterator[None]:
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
