"""Competing methods on the systems of the benchmark: the data, truth and metrics of ``kedrl study systems``.

Run ``python -m tests.benchmarks.peers --environment DIR --output DIR``. The first directory is an environment
of Python for torch and d3rlpy, which is made if it is not there; the second keeps each finished cell, so that
the command can be interrupted and repeated (delete ``cells`` there to begin anew). ``--kedrl errors.csv``
takes the table of the study and shows ours beside the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console

from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.studies.output import print_tables
from tests.benchmarks.peers import cells, environment, tables


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--environment", type=Path, metavar="DIR", help="of Python; default: this one")
    parser.add_argument("--output", type=Path, metavar="DIR", required=True, help="of cells and peers.csv")
    parser.add_argument("--systems", nargs="+", metavar="NAME", default=list(CASES))
    parser.add_argument("--sizes", nargs="+", type=positive, metavar="N", default=[15_000])
    parser.add_argument("--replicates", type=positive, metavar="K", default=1)
    parser.add_argument("--methods", nargs="+", metavar="NAME", default=list(cells.METHODS))
    parser.add_argument("--kedrl", type=Path, metavar="FILE", help="errors.csv of kedrl study systems")
    return parser


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def passed_on(options):
    """The options for the same command in the other environment."""
    arguments = ["--output", str(options.output.absolute()), "--replicates", str(options.replicates)]
    for name in ("systems", "sizes", "methods"):
        arguments += [f"--{name}", *map(str, getattr(options, name))]
    return arguments + (["--kedrl", str(options.kedrl.absolute())] if options.kedrl else [])


def show(table, kedrl, console):
    """Print the table and the summary."""
    if kedrl:
        n_peers, table = len(table), tables.with_ours(table, pd.read_csv(kedrl))
        if n_left := n_peers - int((table["method"] != tables.OURS).sum()):
            console.print(f"{n_left} cells that {kedrl} has no counterpart of are not shown", soft_wrap=True)
    found = tables.means(table)
    print_tables([tables.text_table(found)], console)
    for line in tables.summary(found):
        console.print(line, highlight=False, soft_wrap=True)


def main(arguments=None):
    options = make_parser().parse_args(arguments)
    try:
        cells.check(options.systems, CASES, "systems")
        cells.check(options.methods, cells.METHODS, "methods")
        if options.kedrl and not options.kedrl.is_file():
            raise ValueError(f"kedrl: {options.kedrl} is not a file")
        if options.environment:
            return environment.run_in(environment.prepare(options.environment), passed_on(options))
        names = ("systems", "sizes", "replicates", "methods")
        chosen = {name: getattr(options, name) for name in names}
        table = cells.run(
            options.output, **chosen, report=lambda text: print(text, file=sys.stderr, flush=True)
        )
        show(table, options.kedrl, Console())
    except ValueError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    n_cells = len(options.systems) * len(options.sizes) * options.replicates * len(options.methods)
    return 0 if len(table) == n_cells else 1


if __name__ == "__main__":
    sys.exit(main())
