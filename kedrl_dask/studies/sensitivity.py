"""Does the error fall as sizes and data grow? One of them at a time, the others as they are by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kedrl_dask.engine.storage.atomic import write_atomic
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure
from kedrl_dask.studies.cell import compare, parameters_of
from kedrl_dask.studies.runner import Cell, Records, run_cells
from kedrl_dask.utils.progress import Reporter

__all__ = ["FACTORS", "STUDY", "Factor", "Outcome", "cells", "render", "run"]

STUDY = "sensitivity"


class Factor(NamedTuple):
    """Something whose size is changed: what it is, and the sizes tried unless others are given."""

    meaning: str
    values: tuple[int, ...]


FACTORS: dict[str, Factor] = {
    "n_atoms": Factor("m, atoms of the return grid", (25, 50, 100, 200)),
    "n_basis": Factor("L, rows of the coefficients", (60, 125, 250, 350)),
    "n_landmarks": Factor("s, landmarks", (125, 250, 500, 1_000)),
    "n_features": Factor("Q, frequencies", (64, 128, 256, 512)),
    "n_conditioning": Factor("M, conditioning points", (500, 1_500, 5_000, 14_700)),
    "transitions": Factor("N, transitions", (1_470, 14_700, 147_000, 1_000_000)),
}


class Outcome(NamedTuple):
    """What a study gives."""

    records: Records
    table: pd.DataFrame
    summary: dict[str, Any]


def cells(
    pair: str, values: Mapping[str, Sequence[int]], replicates: int, transitions: int, **parameters: Any
) -> list[Cell]:
    """One cell for each value of each factor and each dataset, which is the same for all of its values."""
    planned = []
    for replicate in range(replicates):
        for factor, sizes in values.items():
            for value in sizes:
                is_data = factor == "transitions"
                changed = parameters | ({} if is_data else {factor: value})
                planned.append(
                    Cell(
                        {"pair": pair, "factor": factor, "value": value, "replicate": replicate},
                        {
                            "pair": pair,
                            "profile": "auto",
                            "replicate": replicate,
                            "transitions": value if is_data else transitions,
                            "parameters": parameters_of(pair, "auto", replicate, **changed),
                        },
                    )
                )
    return planned


def run(
    output: str | Path,
    *,
    pair: str = "uniform-gaussian",
    values: Mapping[str, Sequence[int]] | None = None,
    replicates: int = 3,
    transitions: int = 14_700,
    workers: int | None = 0,
    draw: bool = True,
    **parameters: Any,
) -> Outcome:
    """Run what is missing of the study, and write its table and figure.

    Parameters
    ----------
    output : path
        New or empty directory, or that of an earlier run, of which finished cells are kept.
    pair : str
        A key of :data:`~kedrl_dask.datasets.simulation.PAIRS`.
    values : dict, optional
        Sizes to try by the name of the factor; unless given, those of ``FACTORS``.
    replicates, transitions : int
        Independent datasets, and the transitions of each where these are not what is changed.
    workers : int
        Worker processes of a local cluster; 0 uses the active client, or threads of this process.
    draw : bool
        Whether to draw the figure.
    **parameters
        Parameters of :class:`~kedrl_dask.KEDRL` in place of the automatic profile's.
    """
    values = values or {name: factor.values for name, factor in FACTORS.items()}
    for name, sizes in values.items():
        if name not in FACTORS:
            raise ValueError(f"sensitivity: {name!r} is not one of {', '.join(FACTORS)}")
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sensitivity: sizes of {name} must be whole numbers ≥ 1, got {list(sizes)}")
    output, reporter = Path(output), Reporter()
    planned = cells(pair, values, replicates, transitions, **parameters)
    for cell in planned:  # refused before any work
        Settings(**KEDRL(**cell.settings["parameters"]).get_params(deep=False))
    records = run_cells(output, STUDY, compare, planned, workers, reporter)
    table = _table(records)
    write_atomic(output / "errors.csv", table.to_csv(index=False))
    summary = _summarise(records, table, pair)
    write_json(output / "summary.json", summary)
    if draw:
        (output / "plots").mkdir(exist_ok=True)
        _draw(table).savefig(output / "plots" / "sensitivity.png", dpi=150)
    return Outcome(records, table, summary)


def _table(records: Records) -> pd.DataFrame:
    """One row for each cell: means over the points, and the fit's seconds."""
    metrics = ("rmse", "bias", "mmd", "bellman_risk")
    return pd.DataFrame(
        {
            **cell.labels,
            **{metric: float(np.mean(result[metric])) for metric in metrics},
            "absolute_bias": float(np.mean(np.abs(result["bias"]))),
            "seconds": result["fit"]["seconds"],
        }
        for cell, result in records.done
    )


def _summarise(records: Records, table: pd.DataFrame, pair: str) -> dict[str, Any]:
    means = table.drop(columns=["pair", "replicate"]).groupby(["factor", "value"], sort=False)
    rows = [
        {
            **group.mean(numeric_only=True),
            "factor": factor,
            "value": int(value),
            "replicates": len(group),
        }
        for (factor, value), group in means
    ]
    return records.summary(STUDY, pair=pair, results=rows)


def render(summary: dict[str, Any], console: Console) -> None:
    """Print the errors by factor and size."""
    table = Table(
        title=f"Error of the embedding by size, {summary['pair']}, automatic settings otherwise",
        title_justify="left",
        caption="Means over the pair's points and the replicates; seconds of a fit on one thread.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("")
    for name in ("size", "replicates", "RMSE", "|bias|", "RKHS", "Bellman risk", "s"):
        table.add_column(name, justify="right")
    factor = None
    for row in summary["results"]:
        if row["factor"] != factor:
            table.add_section()
        table.add_row(
            "" if row["factor"] == factor else FACTORS[row["factor"]].meaning,
            f"{row['value']:,}",
            str(row["replicates"]),
            f"{row['rmse']:.4f}",
            f"{row['absolute_bias']:.4f}",
            f"{row['mmd']:.4f}",
            f"{row['bellman_risk']:.1e}",
            f"{row['seconds']:.0f}",
        )
        factor = row["factor"]
    console.print(table)


def _draw(table: pd.DataFrame) -> Figure:
    """RMSE and bias by size, a panel for each factor; points are datasets, lines their mean."""
    factors = list(table["factor"].unique())
    columns = min(3, len(factors))
    rows = -(-len(factors) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.4, 2.9 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for name, axes in zip(factors, panels, strict=False):
        part = table[table["factor"] == name]
        for metric, colour, label in (("rmse", BLUE, "RMSE"), ("absolute_bias", ORANGE, "mean |bias|")):
            axes.loglog(part["value"], part[metric], "o", color=colour, alpha=0.35, markersize=4)
            mean = part.groupby("value")[metric].mean()
            axes.loglog(mean.index, mean, "-", color=colour, label=label)
        if name == "transitions":
            first = part.groupby("value")["rmse"].mean().iloc[0]
            sizes = np.array(sorted(part["value"].unique()), dtype=np.float64)
            axes.loglog(sizes, first * np.sqrt(sizes[0] / sizes), ":", color=GREY, label="N^(-1/2)")
        ticks = sorted(part["value"].unique())
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:.4g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=FACTORS[name].meaning)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    for axes in panels[len(factors) :]:
        axes.set_axis_off()
    figure.supylabel("error of the embedding", fontsize=10)
    return figure
