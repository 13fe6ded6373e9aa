"""``kedrl study reservoir``: a worked example on an environment of MO-Gymnasium."""

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
    replicates,
    written,
)
from kedrl_dask.studies import reservoir

__all__ = ["NOTE", "OPTIONS", "SUMMARY", "run"]

SUMMARY = "a dam of MO-Gymnasium: estimates beside returns of the environment itself"
NOTE = """\
Needs the extra: pip install 'kedrl-dask[rl]'. Data, returns and sums are kept in DIR.

"""

OPTIONS: dict[str, dict[str, Any]] = {
    "--output": {
        "type": path,
        "required": True,
        "metavar": "DIR",
        "help": "new or empty directory, or that of an earlier run, whose data and returns are kept",
    },
    "--episodes": {
        "type": positive,
        "default": 250,
        "metavar": "N",
        "help": "logged episodes of 60 steps (default: %(default)s)",
    },
    "--returns": {
        "type": positive,
        "default": 2_000,
        "metavar": "B",
        "help": "returns of the environment at each of ten levels (default: %(default)s)",
    },
    "--bootstrap": {
        "type": replicates,
        "default": 12,
        "metavar": "B",
        "help": "bootstrap replicates (default: %(default)s)",
    },
    "--seed": {"type": count, "default": 0, "metavar": "N", "help": "seed (default: %(default)s)"},
    "--no-plots": {"dest": "draw", "action": "store_false", "help": "draw no figures"},
    "--json": JSON,
}


def run(options: argparse.Namespace) -> int:
    """Run the example and print its tables."""
    summary = reservoir.run(
        options.output,
        episodes=options.episodes,
        returns=options.returns,
        bootstrap=options.bootstrap,
        seed=options.seed,
        draw=options.draw,
    )
    if options.json:
        print_out(as_json(summary))
    else:
        with printing() as console:
            reservoir.render(summary, console)
            console.print(f"\nWritten to {options.output}: {written(options.output)}")
    if summary["result"] != "converged":
        print(f"kedrl: the fit did not converge: {summary['result']}", file=sys.stderr)
        return NOT_CONVERGED
    return SUCCESS
