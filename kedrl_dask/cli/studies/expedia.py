"""``kedrl study expedia``: the paper's application, from the published file or from simulated searches."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kedrl_dask.cli.common import (
    JSON,
    NOT_CONVERGED,
    SUCCESS,
    as_json,
    count,
    path,
    positive,
    print_out,
    printing,
    written,
)
from kedrl_dask.datasets.expedia.panel import PAPER_TEST, PAPER_TRAINING
from kedrl_dask.studies.expedia import application
from kedrl_dask.studies.expedia.specification import Sizes
from kedrl_dask.studies.expedia.tables import render

__all__ = ["NOTE", "OPTIONS", "SOURCES", "SUMMARY", "run"]

SUMMARY = "two policies on hotel searches: the paper's tables, figures and a page"
NOTE = """\
The published data, train.csv of Kaggle's "Personalize Expedia Hotel Searches", may not be redistributed: get
it there and give it with --data. Without it searches are simulated: the same columns, invented numbers.

Stores and fits are kept in DIR: the same command goes on where an earlier one stopped.

"""

#: Of which one may be given.
SOURCES: dict[str, dict[str, Any]] = {
    "--data": {"type": path, "metavar": "FILE", "help": "train.csv as published"},
    "--simulated": {
        "type": positive,
        "default": application.SEARCHES,
        "metavar": "N",
        "help": "simulate so many searches (default: %(default)s)",
    },
}

OPTIONS: dict[str, dict[str, Any]] = {
    "--output": {
        "type": path,
        "required": True,
        "metavar": "DIR",
        "help": "new or empty directory, or that of an earlier run: finished fits are kept",
    },
    "--all": {
        "dest": "takes_all",
        "action": "store_true",
        "help": "take all searches, and not as many as the paper",
    },
    "--training": {
        "type": positive,
        "default": PAPER_TRAINING,
        "metavar": "N",
        "help": "training transitions (default: %(default)s)",
    },
    "--test": {
        "type": positive,
        "default": PAPER_TEST,
        "metavar": "N",
        "help": "test transitions (default: %(default)s)",
    },
    "--atoms": {
        "type": positive,
        "default": Sizes.n_atoms,
        "metavar": "M",
        "help": "m (default: %(default)s)",
    },
    "--basis": {
        "type": positive,
        "default": Sizes.n_basis,
        "metavar": "L",
        "help": "L (default: %(default)s)",
    },
    "--landmarks": {
        "type": positive,
        "default": Sizes.n_landmarks,
        "metavar": "S",
        "help": "landmarks of the conditional weights, of the paper's setting (default: %(default)s)",
    },
    "--centers": {
        "type": positive,
        "default": Sizes.n_centers,
        "metavar": "B",
        "help": "centres of uLSIF (default: %(default)s)",
    },
    "--seed": {"type": count, "default": 0, "metavar": "N", "help": "seed (default: %(default)s)"},
    "--no-adamw": {
        "dest": "with_adamw",
        "action": "store_false",
        "help": "leave out the run of AdamW, which takes as long as the solver of one fit",
    },
    "--no-plots": {"dest": "draw", "action": "store_false", "help": "draw no figures"},
    "--json": JSON,
}


def run(options: argparse.Namespace) -> int:
    """Run the application and print its tables."""
    sizes = Sizes(
        n_atoms=options.atoms,
        n_basis=options.basis,
        n_landmarks=options.landmarks,
        n_centers=options.centers,
        n_own_basis=min(options.basis, Sizes.n_own_basis),
        n_own_landmarks=min(options.landmarks, Sizes.n_own_landmarks),
    )
    summary = application.run(
        options.output,
        data=options.data,
        searches=options.simulated,
        training=None if options.takes_all else options.training,
        test=None if options.takes_all else options.test,
        sizes=sizes,
        seed=options.seed,
        with_adamw=options.with_adamw,
        draw=options.draw,
    )
    if options.json:
        print_out(as_json(summary))
    else:
        with printing() as console:
            render(summary, console)
            where = f"{options.output}: {written(options.output)}"
            console.print(f"\n{summary['seconds']:.0f} s in all. Written to {where}")
    unsolved = [
        f"{profile}, {name}: {fit['solver']['meaning']}"
        for profile, by_policy in summary["fits"].items()
        for name, fit in by_policy.items()
        if fit["solver"]["result"] != "converged"
    ]
    for words in unsolved:
        print(f"kedrl: the fit did not converge: {words}", file=sys.stderr)
    return NOT_CONVERGED if unsolved else SUCCESS
