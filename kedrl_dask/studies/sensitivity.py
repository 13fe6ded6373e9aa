"""How the error depends on sizes and data: each factor varied by itself, the others at their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies import figures
from kedrl_dask.studies.cell import compare, parameters_of
from kedrl_dask.studies.output import SECTION, TextTable, print_tables, write_results
from kedrl_dask.studies.runner import Cell, Outcome, Records, run_cells
from kedrl_dask.utils.arrays import Record

STUDY = "sensitivity"


class Factor(NamedTuple):
    """A size that is varied: its meaning, and the values tried by default."""

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


def cells(
    pair: str, values: Mapping[str, Sequence[int]], replicates: int, transitions: int, **parameters: object
) -> list[Cell]:
    """One cell for each value of each factor and each dataset, which all values of a factor share."""
    planned = []
    for replicate, (factor, sizes) in product(range(replicates), values.items()):
        for value in sizes:
            is_data = factor == "transitions"
            changed = parameters if is_data else {**parameters, factor: value}
            settings = {
                "pair": pair,
                "profile": "auto",
                "replicate": replicate,
                "transitions": value if is_data else transitions,
                "parameters": parameters_of(pair, "auto", replicate, **changed),
            }
            labels: dict[str, str | int] = {"pair": pair, "factor": factor, "value": value}
            planned.append(Cell(labels | {"replicate": replicate}, settings))
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
    **parameters: object,
) -> Outcome:
    """Run the missing cells of the study, and write its table and figure.

    The ``values`` to try, by the name of the factor, are those of ``FACTORS`` by default. Parameters of
    :class:`~kedrl_dask.KEDRL` take the place of the automatic profile's; for the others see
    :func:`~kedrl_dask.studies.runner.run_cells`.
    """
    values = values or {name: factor.values for name, factor in FACTORS.items()}
    for name, sizes in values.items():
        if name not in FACTORS:
            raise ValueError(f"sensitivity: {name!r} is not one of {', '.join(FACTORS)}")
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sensitivity: sizes of {name} must be whole numbers ≥ 1, got {list(sizes)}")
    output = Path(output)
    planned = cells(pair, values, replicates, transitions, **parameters)
    for cell in planned:  # refused before any work
        Settings(**KEDRL(**cell.settings["parameters"]).get_params(deep=False))
    records = run_cells(output, STUDY, compare, planned, workers)
    table = _table(records)
    summary = _summarise(records, table, pair)
    meanings = {name: factor.meaning for name, factor in FACTORS.items()}
    drawn = {"sensitivity": figures.sensitivity(table, meanings)} if draw else {}
    write_results(output, summary, {"errors": table}, drawn)
    return Outcome(records, summary, {"errors": table})


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


def _summarise(records: Records, table: pd.DataFrame, pair: str) -> Record:
    groups = table.drop(columns=["pair", "replicate"]).groupby(["factor", "value"], sort=False)
    rows = [
        {**group.mean(numeric_only=True), "factor": factor, "value": int(value), "replicates": len(group)}
        for (factor, value), group in groups
    ]
    return records.summary(STUDY, pair=pair, results=rows)


def render(summary: Record, console: Console) -> None:
    """Print the errors by factor and size."""
    rows: list[Sequence[str]] = []
    factor = None
    for row in summary["results"]:
        is_next, factor = row["factor"] != factor, row["factor"]
        rows += [SECTION] if is_next else []
        rows.append(
            (
                FACTORS[factor].meaning if is_next else "",
                f"{row['value']:,}",
                str(row["replicates"]),
                *(f"{row[name]:.4f}" for name in ("rmse", "absolute_bias", "mmd")),
                f"{row['bellman_risk']:.1e}",
                f"{row['seconds']:.0f}",
            )
        )
    title = f"Error of the embedding by size, {summary['pair']}, automatic settings otherwise"
    heads = ("", "size", "replicates", "RMSE", "|bias|", "RKHS", "Bellman risk", "s")
    note = "Means over the pair's points and the replicates; seconds of a fit on one thread."
    print_tables([TextTable(title, heads, rows, note)], console)
