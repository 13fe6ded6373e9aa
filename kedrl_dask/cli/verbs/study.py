"""``kedrl study``: the paper's studies, resumable, one process for each core."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kedrl_dask.cli.common import (
    EXIT_CODES,
    JSON,
    NOT_CONVERGED,
    SUCCESS,
    Verbs,
    add_verb,
    as_json,
    count,
    path,
    positive,
    print_out,
    printing,
    replicates,
    workers,
    written,
)
from kedrl_dask.cli.pair import PAIR
from kedrl_dask.cli.studies import expedia, reservoir
from kedrl_dask.datasets.simulation import PAIRS
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies import coverage, sensitivity, simulation
from kedrl_dask.studies.profiles import PROFILES

__all__ = ["add"]

#: Options that every study has.
SHARED: dict[str, dict[str, Any]] = {
    "--output": {
        "type": path,
        "required": True,
        "metavar": "DIR",
        "help": "new or empty directory, or that of an earlier run: finished cells are kept",
    },
    "--replicates": {
        "type": replicates,
        "default": 10,
        "metavar": "R",
        "help": "independent datasets (default: %(default)s; the paper has 100)",
    },
    "--transitions": {
        "type": positive,
        "default": 14_700,
        "metavar": "N",
        "help": "transitions of each dataset (default: %(default)s)",
    },
    "--workers": {
        "type": workers,
        "default": None,
        "metavar": "N",
        "help": "worker processes, one cell each at a time; 0 uses threads of this process (default: the "
        "number of cores)",
    },
    "--json": JSON,
}

NO_PLOTS: dict[str, Any] = {"dest": "draw", "action": "store_false", "help": "draw no figures"}

SIMULATION: dict[str, dict[str, Any]] = {
    "--no-plots": NO_PLOTS,
    "--pairs": {
        "nargs": "+",
        "choices": tuple(PAIRS),
        "default": tuple(PAIRS),
        "metavar": "PAIR",
        "help": "behaviour and target policies: %(choices)s (default: all)",
    },
    "--profiles": {
        "nargs": "+",
        "choices": PROFILES,
        "default": PROFILES,
        "metavar": "PROFILE",
        "help": "settings of the fits, as in kedrl demo: %(choices)s (default: all)",
    },
    "--monte-carlo": {
        "type": count,
        "default": 50,
        "metavar": "B",
        "help": "Monte Carlo references of the repeated diagnostic, on replicate 0; 0 leaves it out "
        "(default: %(default)s)",
    },
}

SENSITIVITY: dict[str, dict[str, Any]] = {
    "--pair": PAIR,
    "--replicates": SHARED["--replicates"] | {"default": 3, "help": "independent datasets (default: 3)"},
    "--values": {
        "action": "append",
        "type": lambda text: _sizes(text),
        "metavar": "FACTOR=N,N,…",
        "help": "sizes of one factor, of " + ", ".join(sensitivity.FACTORS) + "; may be repeated (default: "
        "all factors, up to a million transitions)",
    },
    "--set": {
        "dest": "parameters",
        "action": "append",
        "type": lambda text: _parameter(text),
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "a parameter of KEDRL for all fits in place of the automatic one; may be repeated",
    },
    "--no-plots": NO_PLOTS,
}

COVERAGE: dict[str, dict[str, Any]] = {
    "--pair": PAIR,
    "--replicates": SHARED["--replicates"] | {"default": 200, "help": "independent datasets (default: 200)"},
    "--transitions": SHARED["--transitions"] | {"default": 4_000},
    "--bootstrap": {
        "type": replicates,
        "default": 30,
        "metavar": "B",
        "help": "bootstrap replicates of each fit (default: %(default)s)",
    },
    "--level": {
        "type": float,
        "default": 0.9,
        "metavar": "P",
        "help": "probability with which intervals are to cover (default: %(default)s)",
    },
}

NOTE = """\
examples:
  kedrl study simulation --output study --replicates 10 --profiles auto
  kedrl study coverage --output coverage --replicates 100 --bootstrap 12
  kedrl study sensitivity --output sensitivity --values n_atoms=50,100

A cell is one fit on one simulated dataset. Each is written when it is finished: the same command goes on
where an earlier one stopped, and with more replicates, pairs or profiles computes only what is missing.

"""


def add(verbs: Verbs) -> None:
    """Add the verb with its kinds of study."""
    parser = add_verb(
        verbs,
        "study",
        lambda _: _without_kind(parser),
        description="Run one of the paper's studies.",
        note=NOTE,
    )
    kinds = parser.add_subparsers(dest="study", metavar="study")
    _add_kind(
        kinds,
        "simulation",
        _simulation,
        "six pairs of policies at ten points each, beside the paper's table",
        SIMULATION,
    )
    _add_kind(
        kinds,
        "coverage",
        _coverage,
        "how often the bootstrap's intervals hold the truth, on many small datasets",
        COVERAGE,
    )
    _add_kind(
        kinds,
        "sensitivity",
        _sensitivity,
        "the error against sizes and the number of transitions, one of them at a time",
        SENSITIVITY,
    )
    _add_expedia(kinds)
    _add_reservoir(kinds)


def _without_kind(parser: argparse.ArgumentParser) -> int:
    parser.error("name a study: simulation, coverage, sensitivity, expedia, reservoir")


def _add_kind(
    kinds: Verbs, name: str, run: Any, summary: str, options: dict[str, dict[str, Any]]
) -> argparse.ArgumentParser:
    parser = _parser(kinds, name, summary, NOTE)
    parser.set_defaults(run=run, interrupted="finished cells are kept; the same command goes on from them")
    for option, settings in (SHARED | options).items():
        parser.add_argument(option, **settings)
    return parser


def _parser(kinds: Verbs, name: str, summary: str, note: str) -> argparse.ArgumentParser:
    return kinds.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=note + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_expedia(kinds: Verbs) -> None:
    """The application, which has no cells: its options are its own."""
    parser = _parser(kinds, "expedia", expedia.SUMMARY, expedia.NOTE)
    left = "finished fits are kept; the same command goes on from them"
    parser.set_defaults(run=expedia.run, interrupted=left)
    source = parser.add_mutually_exclusive_group()
    for option, settings in expedia.SOURCES.items():
        source.add_argument(option, **settings)
    for option, settings in expedia.OPTIONS.items():
        parser.add_argument(option, **settings)


def _add_reservoir(kinds: Verbs) -> None:
    """The worked example, likewise."""
    parser = _parser(kinds, "reservoir", reservoir.SUMMARY, reservoir.NOTE)
    parser.set_defaults(run=reservoir.run, interrupted="data and returns that are finished are kept")
    for option, settings in reservoir.OPTIONS.items():
        parser.add_argument(option, **settings)


def _workers(options: argparse.Namespace) -> int:
    return ThreadExecutor().n_threads if options.workers is None else options.workers


def _simulation(options: argparse.Namespace) -> int:
    outcome = simulation.run(
        options.output,
        pairs=_unique(options.pairs),
        profiles=_unique(options.profiles),
        replicates=options.replicates,
        transitions=options.transitions,
        workers=_workers(options),
        monte_carlo=options.monte_carlo,
        draw=options.draw,
    )
    return _finish(outcome.summary, options, simulation.render)


def _coverage(options: argparse.Namespace) -> int:
    outcome = coverage.run(
        options.output,
        pair=options.pair,
        replicates=options.replicates,
        transitions=options.transitions,
        bootstrap=options.bootstrap,
        level=options.level,
        workers=_workers(options),
    )
    return _finish(outcome.summary, options, coverage.render)


def _sensitivity(options: argparse.Namespace) -> int:
    outcome = sensitivity.run(
        options.output,
        pair=options.pair,
        values=dict(options.values) if options.values else None,
        replicates=options.replicates,
        transitions=options.transitions,
        workers=_workers(options),
        draw=options.draw,
        **dict(options.parameters),
    )
    return _finish(outcome.summary, options, sensitivity.render)


def _sizes(text: str) -> tuple[str, list[int]]:
    """A factor and its sizes; argparse turns the error into a usage message."""
    name, _, sizes = text.partition("=")
    if name not in sensitivity.FACTORS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(sensitivity.FACTORS)}")
    return name, [positive(size) for size in sizes.split(",")]


def _parameter(text: str) -> tuple[str, Any]:
    """A parameter of KEDRL with its value, a number or a word."""
    name, given, value = text.partition("=")
    known = sorted(set(inspect.signature(KEDRL).parameters) - {"discount", "return_kernel", "random_state"})
    if not given or name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    for kind in (int, float):
        with suppress(ValueError):
            return name, kind(value)
    return name, value


def _unique(names: Sequence[str]) -> Any:
    return tuple(dict.fromkeys(names))


def _finish(summary: dict[str, Any], options: argparse.Namespace, render: Any) -> int:
    """Print the summary, and the cells that failed."""
    if options.json:
        print_out(as_json(summary))
    else:
        with printing() as console:
            render(summary, console)
            console.print(
                f"\n{summary['cells']:,} cells, {summary['computed']:,} of them computed now. "
                f"Written to {options.output}: {written(options.output)}"
            )
    for name, error in summary["failed"].items():
        print(f"kedrl: cell {name} failed: {error}", file=sys.stderr)
    return NOT_CONVERGED if summary["failed"] else SUCCESS
