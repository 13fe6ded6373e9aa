"""The simulation study: six pairs of policies, profiles of settings, replicates (sec:simulation)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from kedrl_dask.datasets.simulation import PAIRS
from kedrl_dask.studies import figures, tables
from kedrl_dask.studies.cell import compare, parameters_of
from kedrl_dask.studies.output import SECTION, TextTable, print_tables, write_results
from kedrl_dask.studies.profiles import PAPER, PROFILES, Profile
from kedrl_dask.studies.runner import Cell, Outcome, Records, run_cells
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.progress import Reporter

STUDY = "simulation"
LABELS = ("pair", "profile", "replicate")


def cells(
    pairs: Sequence[str],
    profiles: Sequence[Profile],
    replicates: int,
    transitions: int,
    monte_carlo: int = 0,
    **parameters: object,
) -> list[Cell]:
    """Cells of the study, replicate by replicate, so that an interrupted study covers every combination.

    The Monte Carlo diagnostic holds an estimate fixed: it is that of replicate 0.
    """
    return [
        Cell.build(
            {"pair": pair, "profile": profile, "replicate": replicate},
            transitions=transitions,
            parameters=parameters_of(pair, profile, replicate, **parameters),
            monte_carlo=0 if replicate else monte_carlo,
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
    **parameters: object,
) -> Outcome:
    """Run the missing cells of the study and write its tables and figures.

    The Monte Carlo diagnostic is repeated ``monte_carlo`` times on replicate 0 of each pair and profile.
    Parameters of :class:`~kedrl_dask.KEDRL` take the place of every profile's; for the others see
    :func:`~kedrl_dask.studies.runner.run_cells`.
    """
    output, reporter = Path(output), Reporter()
    planned = cells(pairs, profiles, replicates, transitions, monte_carlo, **parameters)
    records = run_cells(output, STUDY, compare, planned, workers, reporter)
    with reporter.stage("tables"):
        points, fits = tables.points_table(records), tables.fits_table(records)
        tables.write_dataset(output / "results.zarr", points, fits, LABELS, "Simulation study")
    summary = _summarise(records, points, fits)
    with reporter.stage("results"):
        drawn = figures.simulation(records, points) if draw else {}
        write_results(output, summary, {"points": points, "fits": fits}, drawn)
    return Outcome(records, summary, {"points": points, "fits": fits})


def _summarise(records: Records, points: pd.DataFrame, fits: pd.DataFrame) -> Record:
    """The content of the printed tables, as JSON."""
    across = tables.across_points(points, LABELS)
    by_fit = fits.groupby(["pair", "profile"], sort=False)
    means, numbers = by_fit.mean(numeric_only=True), by_fit.size()
    rows = [
        {
            "pair": key[0],
            "profile": key[1],
            "replicates": int(numbers.loc[key]),
            "points": {
                metric: {"mean": _plain(row[metric, "mean"]), "std": _plain(row[metric, "std"])}
                for metric in across.columns.levels[0]
            },
            "fits": {name: _plain(value) for name, value in means.loc[key].drop("replicate").items()},
            "paper": {name: figure._asdict() for name, figure in PAPER[key[0]]._asdict().items()},
            "rmse_over_paper": row["rmse", "mean"] / PAPER[key[0]].rmse.mean,
        }
        for key, row in across.iterrows()
    ]
    return records.summary(STUDY, results=rows)


def _plain(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def render(summary: Record, console: Console) -> None:
    """Print the results beside the paper's (tab:metric_summary_across_points)."""
    errors: list[Sequence[str]] = []
    further: list[Sequence[str]] = []
    pair = None
    for row in summary["results"]:
        points, paper = row["points"], row["paper"]
        if row["pair"] != pair:
            pair = row["pair"]
            for rows, metrics in ((errors, ("bias", "rmse", "mae")), (further, ("bellman_risk",))):
                figures_of_paper = (f"[dim]{_figure(**paper[name])}[/dim]" for name in metrics)
                rows += [SECTION, (f"[bold]{pair}[/bold]",), ("[dim]  the paper[/dim]", *figures_of_paper)]
        shown = {metric: _figure(*points[metric].values()) for metric in points}
        name, ratio = f"  {row['profile']}", f"{row['rmse_over_paper']:.2f}"
        errors.append((name, *(shown[metric] for metric in ("bias", "rmse", "mae")), ratio))
        further.append(
            (
                name,
                shown["unshifted_risk"],
                f"{points['bellman_risk']['mean']:.1e}",
                f"{points['mmd']['mean']:.4f}",
                f"{points['coefficient_mass']['mean']:.3f}",
                f"{row['fits']['seconds']:.0f}",
            )
        )
    numbers = sorted({row["replicates"] for row in summary["results"]})
    print_tables(
        [
            TextTable(
                f"Error of the embedding (replicates: {'–'.join(map(str, numbers))})",
                ("", "bias", "RMSE", "MAE", "ratio"),
                errors,
                "Mean over the points of the mean over replicates, and in parentheses the standard deviation "
                "across points. Ratio: RMSE over the paper's.",
            ),
            TextTable(
                "Bellman risk at the points, and other figures",
                ("", "risk, no shift", "risk", "RKHS", "mass", "s"),
                further,
                "No shift: the authors' code and the paper's table omit the reward shift of the formula. "
                "RKHS: norm of the error. Mass: sum of the coefficients, ideally 1. s: seconds of a fit on "
                "one thread.",
            ),
        ],
        console,
    )


def _figure(mean: float, deviation: float | None) -> str:
    return f"{mean:z.4f}" + ("" if deviation is None else f" ({deviation:.4f})")
