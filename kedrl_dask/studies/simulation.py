"""The simulation study: six pairs of policies, profiles of settings, replicates (sec:simulation)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kedrl_dask.datasets.simulation import PAIRS
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.studies import figures, tables
from kedrl_dask.studies.cell import compare, parameters_of
from kedrl_dask.studies.profiles import PAPER, PROFILES, Profile
from kedrl_dask.studies.runner import Cell, Records, run_cells
from kedrl_dask.utils.progress import Reporter

__all__ = ["LABELS", "STUDY", "Outcome", "cells", "render", "run"]

STUDY = "simulation"
LABELS = ("pair", "profile", "replicate")


class Outcome(NamedTuple):
    """What a study gives: its records, the tables of points and of fits, and the summary."""

    records: Records
    points: pd.DataFrame
    fits: pd.DataFrame
    summary: dict[str, Any]


def cells(
    pairs: Sequence[str],
    profiles: Sequence[Profile],
    replicates: int,
    transitions: int,
    monte_carlo: int = 0,
    **parameters: Any,
) -> list[Cell]:
    """Cells of the study, replicate by replicate, so that an interrupted one has something of everything.

    The Monte Carlo diagnostic holds an estimate fixed: it is that of replicate 0.
    """
    return [
        Cell(
            {"pair": pair, "profile": profile, "replicate": replicate},
            {
                "pair": pair,
                "profile": profile,
                "replicate": replicate,
                "transitions": transitions,
                "parameters": parameters_of(pair, profile, replicate, **parameters),
                "monte_carlo": 0 if replicate else monte_carlo,
            },
        )
        for replicate in range(replicates)
        for pair in dict.fromkeys(pairs)
        for profile in dict.fromkeys(profiles)
    ]


def run(
    output: str | Path,
    *,
    pairs: Sequence[str] = tuple(PAIRS),
    profiles: Sequence[Profile] = PROFILES,
    replicates: int = 100,
    transitions: int = 14_700,
    workers: int | None = 0,
    monte_carlo: int = 50,
    draw: bool = True,
    **parameters: Any,
) -> Outcome:
    """Run what is missing of the study and write its tables and figures.

    Parameters
    ----------
    output : path
        New or empty directory, or that of an earlier run, of which finished cells are kept.
    pairs, profiles : sequences of str
        Keys of :data:`~kedrl_dask.datasets.simulation.PAIRS`, and of
        :data:`~kedrl_dask.studies.profiles.PROFILES`.
    replicates, transitions : int
        Independent datasets 0, 1, …, and the transitions of each.
    workers : int
        Worker processes of a local cluster; 0 uses the active client, or threads of this process.
    monte_carlo : int
        Repeats of the Monte Carlo diagnostic, on replicate 0 of each pair and profile.
    draw : bool
        Whether to draw the figures.
    **parameters
        Parameters of :class:`~kedrl_dask.KEDRL` in place of every profile's.
    """
    output, reporter = Path(output), Reporter()
    planned = cells(pairs, profiles, replicates, transitions, monte_carlo, **parameters)
    records = run_cells(output, STUDY, compare, planned, workers, reporter)
    with reporter.stage("tables"):
        points, fits = tables.write(output, records, "Simulation study")
    summary = _summarise(records, points, fits)
    write_json(output / "summary.json", summary)
    if draw:
        with reporter.stage("plots"):
            (output / "plots").mkdir(exist_ok=True)
            for name, figure in figures.simulation(records, points).items():
                figure.savefig(output / "plots" / f"{name}.png", dpi=150)
    return Outcome(records, points, fits, summary)


def _summarise(records: Records, points: pd.DataFrame, fits: pd.DataFrame) -> dict[str, Any]:
    """What the printed table has, as JSON can hold it."""
    across = tables.across_points(points, LABELS)
    by_fit = fits.groupby(["pair", "profile"], sort=False)
    means, numbers = by_fit.mean(numeric_only=True), by_fit.size()
    rows = []
    for key, row in across.iterrows():
        pair, profile = key
        of_fits = {name: _plain(value) for name, value in means.loc[key].drop("replicate").items()}
        rows.append(
            {
                "pair": pair,
                "profile": profile,
                "replicates": int(numbers.loc[key]),
                "points": {
                    metric: {"mean": _plain(row[metric, "mean"]), "std": _plain(row[metric, "std"])}
                    for metric in across.columns.levels[0]
                },
                "fits": of_fits,
                "paper": {name: figure._asdict() for name, figure in PAPER[pair]._asdict().items()},
                "rmse_over_paper": row["rmse", "mean"] / PAPER[pair].rmse.mean,
            }
        )
    return records.summary(STUDY, results=rows)


def _plain(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def render(summary: dict[str, Any], console: Console) -> None:
    """Print the results beside the paper's (tab:metric_summary_across_points)."""
    numbers = sorted({row["replicates"] for row in summary["results"]})
    title = f"Error of the embedding (replicates: {'–'.join(map(str, numbers))})"
    errors = _table(
        title,
        ("bias", "RMSE", "MAE", "ratio"),
        "Mean over the points of the mean over replicates, in parentheses the standard deviation across "
        "points. Ratio: RMSE over the paper's.",
    )
    further = _table(
        "Bellman risk at the points, and other figures",
        ("risk, no shift", "risk", "RKHS", "mass", "s"),
        "No shift: the authors' code, and the paper's table, leave out the formula's reward shift. RKHS: "
        "norm of the error. Mass: of the coefficients, 1 is right. s: of a fit on one thread.",
    )
    pair = None
    for row in summary["results"]:
        points, paper = row["points"], row["paper"]
        if row["pair"] != pair:
            pair = row["pair"]
            for table, metrics in ((errors, ("bias", "rmse", "mae")), (further, ("bellman_risk",))):
                table.add_section()
                table.add_row(f"[bold]{pair}[/bold]")
                table.add_row("  the paper", *(_figure(**paper[name]) for name in metrics), style="dim")
        name = f"  {row['profile']}"
        shown = {metric: _figure(*points[metric].values()) for metric in points}
        ratio = f"{row['rmse_over_paper']:.2f}"
        errors.add_row(name, *(shown[metric] for metric in ("bias", "rmse", "mae")), ratio)
        further.add_row(
            name,
            shown["unshifted_risk"],
            f"{points['bellman_risk']['mean']:.1e}",
            f"{points['mmd']['mean']:.4f}",
            f"{points['coefficient_mass']['mean']:.3f}",
            f"{row['fits']['seconds']:.0f}",
        )
    for table in (errors, further):
        console.print(table)


def _table(title: str, columns: Sequence[str], caption: str) -> Table:
    table = Table(
        title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD,
        pad_edge=False, show_edge=False, padding=(0, 1),
    )  # fmt: skip
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figure(mean: float, deviation: float | None) -> str:
    return f"{mean:z.4f}" + ("" if deviation is None else f" ({deviation:.4f})")
