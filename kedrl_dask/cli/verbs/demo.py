"""``kedrl demo``: the whole workflow, from data to figures."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import Verb, failures, given, option, path, positive, show, written
from kedrl_dask.estimator.fitted.findings import did_its_work
from kedrl_dask.report import terminal
from kedrl_dask.studies import demo
from kedrl_dask.studies.profiles import PAPER, PROFILES

NOTE = """\
examples:
  kedrl demo
  kedrl demo --output other --profile paper-exact --pair logistic-gaussian

profiles:
  auto         successor actions drawn from the target policy, settings by cross-validation, exact minimiser
  paper        the paper's settings of the pair: density ratio by uLSIF, AdamW for its whole budget (which
               counts as success, exit code 0). Target actions are three quadrature nodes rather than random
               draws, because a single node would be the policy's location alone; the return grid is made of
               one-step rewards, as in the authors' code
  paper-exact  as paper, with the exact minimiser in place of AdamW

The error is measured at ten points: for Uniform→Gaussian those printed in the paper, for any other pair the
first four of these and six draws of its target policy in the region of the logged inputs.

"""


def _run(options: argparse.Namespace) -> int:
    outcome = demo.run(**given(options))
    show(options, outcome.summary, partial(_render, outcome, options))
    is_done = did_its_work(outcome.model.fitted_)
    return failures([] if is_done else [f"the fit did not converge: {outcome.model.solution_.result.value}"])


def _render(outcome: demo.Outcome, options: argparse.Namespace, console: Console) -> None:
    """Write the tables, and where everything is."""
    terminal.render(outcome.model, outcome.errors, console, paper_rmse=PAPER[options.pair].rmse.mean)
    if options.pair != "uniform-gaussian":
        console.print(
            "The paper prints points for Uniform→Gaussian alone; its figure for this pair is at others."
        )
    console.print(f"\n{outcome.summary['seconds']:.0f} s in all. {written(options.output)}")


VERB = Verb(
    "Simulate the paper's linear-Gaussian system, fit the law of its return under the target policy, and\n"
    "compare it with the closed form.",
    {
        "--output": option(
            "new or empty directory for data, model, plots, report.html and summary.json",
            Path("kedrl-demo"),
            type=path,
            metavar="DIR",
        ),
        "--overwrite": option("replace an earlier demo in DIR, and nothing else", action="store_true"),
        "--profile": option("settings of the fit", "auto", choices=PROFILES),
        "--pair": shared.pair(),
        "--transitions": option("how many to simulate", 14_700, type=positive, metavar="N"),
        "--seed": shared.SEED,
        "--workers": shared.WORKERS,
        "--json": shared.JSON,
        "--no-plots": shared.NO_PLOTS,
    },
    _run,
    NOTE,
)
