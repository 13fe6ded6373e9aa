"""Do the bootstrap's intervals cover? Many small datasets, each with a fit, its bootstrap, and the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.datasets.true_marginals import CentredMarginal
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies.cell import parameters_of
from kedrl_dask.studies.runner import Cell, Records, run_cells
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.progress import Reporter

__all__ = ["REDUCED", "STUDY", "Outcome", "cover", "render", "run"]


STUDY = "coverage"
#: Sizes of a fit that takes seconds; the bootstrap takes as long for every ten replicates.
REDUCED = {"n_atoms": 100, "n_basis": 150, "n_landmarks": 200, "n_features": 128, "n_conditioning": 1_000}
#: Values of the embedding that are looked at, for each point.
N_VALUES = 20
#: Levels of the true distribution function, and share of the tail mean.
CDF_LEVELS, TAIL = (0.1, 0.25, 0.5, 0.75, 0.9), 0.1
QUANTITIES = {
    "embedding": "embedding values",
    "mean": "recovered means",
    "cdf": "recovered CDF",
    "cvar": "recovered CVaR",
}


class Outcome(NamedTuple):
    """What a study gives."""

    records: Records
    summary: dict[str, Any]


def cover(
    work: Path,
    pair: str,
    replicate: int,
    transitions: int,
    bootstrap: int,
    level: float,
    parameters: dict[str, Any],
) -> dict[str, Any]:
    """Simulate, fit and bootstrap in this thread, and see which intervals hold the truth.

    Parameters
    ----------
    work : Path
        Directory for data and sums, which the caller removes.
    pair : str
    replicate : int
        Seed of data, fit and bootstrap.
    transitions, bootstrap : int
        Size of the dataset, and replicates of the bootstrap.
    level : float
        Probability with which intervals are to cover.
    parameters : dict
        Parameters of :class:`KEDRL`.

    Returns
    -------
    dict
        For each of ``QUANTITIES`` lists over its entries: ``covered``, ``covered_unbiased`` by intervals that
        allow for no bias, ``error`` of the estimate and its ``standard_error``.
    """
    policies = simulation.PAIRS[pair]
    store = simulation.write(work / "data", policies, transitions, seed=replicate)
    shared: dict[str, Any] = {"executor": ThreadExecutor(1), "cache": work / "cache", "progress": "none"}
    model = KEDRL(**parameters).fit(store, policies.target, **shared)
    replicates = model.bootstrap(
        store, policies.target, n_replicates=bootstrap, random_state=replicate, **shared
    )
    state, action = evaluation_points(pair)
    law = truth.return_law(state, action, policies.target, model.discount)
    at = truth.evaluation_grid(law, N_VALUES)
    marginals = [CentredMarginal.build(law, c) for c in range(law.mean.shape[1])]
    thresholds = [law.mean[:, c, None] + [m.quantile(q) for q in CDF_LEVELS] for c, m in enumerate(marginals)]
    true = {
        "embedding": law.embed(at, model.return_kernel_),
        "mean": law.mean,
        "cdf": np.tile(CDF_LEVELS, (len(state), len(marginals))),
        "cvar": law.mean + [marginal.cvar(TAIL) for marginal in marginals],
    }
    # One array of all quantities, so that a law is recovered once for each replicate.
    draws = replicates.apply(
        lambda fit: np.hstack([fit.embed(state, action, at=at), _summaries(fit, state, action, thresholds)])
    )
    values = np.hstack(list(true.values()))

    def holds(**options: Any) -> Array:
        low, high = draws.interval(level, **options)
        return (low <= values) & (values <= high)

    by_entry = {
        "covered": holds(),
        "covered_unbiased": holds(bias=0.0),
        "error": draws.estimate - values,
        "standard_error": draws.standard_error,
    }
    edges = np.cumsum([part.shape[1] for part in true.values()])[:-1]
    parts = {name: np.split(array, edges, axis=1) for name, array in by_entry.items()}
    return {
        quantity: {name: parts[name][i].ravel().tolist() for name in parts} for i, quantity in enumerate(true)
    }


def _summaries(fit: KEDRL, state: Array, action: Array, thresholds: list[Array]) -> Array:
    """Means, distribution function at each point's thresholds, and tail means of the recovered laws."""
    # Whatever speaks against a fit: the study is of how often its intervals hold.
    laws, points = fit.recover(state, action, accept=tuple(CODES)), np.arange(len(state))
    below = [
        np.stack([laws.cdf(t, c)[points, points] for t in at.T], axis=1) for c, at in enumerate(thresholds)
    ]
    tails = [laws.cvar(TAIL, c)[:, None] for c in range(len(thresholds))]
    return np.hstack([laws.mean(), *below, *tails])


def run(
    output: str | Path,
    *,
    pair: str = "uniform-gaussian",
    replicates: int = 200,
    transitions: int = 4_000,
    bootstrap: int = 30,
    level: float = 0.9,
    workers: int | None = 0,
    **parameters: Any,
) -> Outcome:
    """Run what is missing of the study, and count.

    Parameters
    ----------
    output : path
        New or empty directory, or that of an earlier run, of which finished cells are kept.
    pair : str
        A key of :data:`~kedrl_dask.datasets.simulation.PAIRS`.
    replicates, transitions : int
        Independent datasets, and the transitions of each.
    bootstrap : int
        Bootstrap replicates of each fit.
    level : float
        Probability with which intervals are to cover.
    workers : int
        Worker processes of a local cluster; 0 uses the active client, or threads of this process.
    **parameters
        Parameters of :class:`~kedrl_dask.KEDRL` in place of ``REDUCED``.
    """
    if bootstrap < 2:
        raise ValueError(f"coverage: bootstrap must be at least 2, got {bootstrap}")
    if not 0 < level < 1:
        raise ValueError(f"coverage: level must lie strictly between 0 and 1, got {level!r}")
    output = Path(output)
    fixed = {"pair": pair, "transitions": transitions, "bootstrap": bootstrap, "level": level}
    cells = [
        Cell(
            {"pair": pair, "replicate": replicate},
            {**fixed, "replicate": replicate}
            | {"parameters": parameters_of(pair, "auto", replicate, **(REDUCED | parameters))},
        )
        for replicate in range(replicates)
    ]
    records = run_cells(output, STUDY, cover, cells, workers, Reporter())
    summary = _summarise(records, fixed)
    write_json(output / "summary.json", summary)
    return Outcome(records, summary)


def _summarise(records: Records, fixed: dict[str, Any]) -> dict[str, Any]:
    """Coverage of each quantity with its standard error over datasets, and what it misses."""
    results = {}
    for quantity, meaning in QUANTITIES.items():
        covered, unbiased, error, standard_error = (
            np.array([result[quantity][name] for _, result in records.done], dtype=np.float64)
            for name in ("covered", "covered_unbiased", "error", "standard_error")
        )
        n = len(covered)
        variance = error.var(axis=0, ddof=1) if n > 1 else np.zeros(error.shape[1])
        # The mean error over n datasets has this variance over n, by which its square is too large.
        bias = np.maximum(error.mean(axis=0) ** 2 - variance / n, 0)
        by_dataset = covered.mean(axis=1)
        results[quantity] = {
            "meaning": meaning,
            "coverage": float(by_dataset.mean()),
            "coverage_error": float(by_dataset.std(ddof=1) / np.sqrt(n)) if n > 1 else None,
            "coverage_unbiased": float(unbiased.mean()),
            "lowest": float(covered.mean(axis=0).min()),
            "bias": float(np.sqrt(bias.mean())),
            "deviation": float(np.sqrt(variance.mean())),
            "standard_error": float(np.sqrt((standard_error**2).mean())),
        }
    return records.summary(STUDY, **fixed, results=results)


def render(summary: dict[str, Any], console: Console) -> None:
    """Print the coverage, and what explains it."""
    table = Table(
        title=f"Coverage of {summary['level']:.0%} intervals over {summary['cells']} datasets of "
        f"{summary['transitions']:,} transitions, {summary['bootstrap']} bootstrap replicates",
        title_justify="left",
        caption="±: standard error over datasets. Unbiased: by intervals that allow for no bias. Lowest: of "
        "a single entry. Bias: root mean square of what the estimates are off on average, which no "
        "resampling sees; sd: what they vary by between datasets; s.e.: what the bootstrap says of that.",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for name in ("coverage", "±", "unbiased", "lowest", "bias", "sd", "s.e."):
        table.add_column(name, justify="right")
    for row in summary["results"].values():
        uncertain = row["coverage_error"]
        table.add_row(
            row["meaning"],
            f"{row['coverage']:.1%}",
            "" if uncertain is None else f"{uncertain:.1%}",
            f"{row['coverage_unbiased']:.1%}",
            f"{row['lowest']:.0%}",
            *(f"{row[name]:.4f}" for name in ("bias", "deviation", "standard_error")),
        )
    console.print(table)
