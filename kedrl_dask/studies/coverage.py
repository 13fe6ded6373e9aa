"""Coverage of the bootstrap's intervals, on many small datasets of which the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.datasets.true_marginals import CentredMarginal
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.bootstrap import Interval
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.studies.cell import parameters_of
from kedrl_dask.studies.output import TextTable, print_tables, write_results
from kedrl_dask.studies.runner import Cell, Outcome, Records, run_cells
from kedrl_dask.utils.arrays import Mask, Matrix, Points, Record

#: What the bootstrap can resample: the paper's construction, with the trend that its linear rewards have.
SETTINGS: Record = {**VERSION_ONE, "reward_trend": "auto"}
STUDY = "coverage"
#: Sizes of a fit that takes seconds; the bootstrap takes as long for every ten replicates.
REDUCED = {"n_atoms": 100, "n_basis": 150, "n_landmarks": 200, "n_features": 128, "n_conditioning": 1_000}
#: Values of the embedding that are examined at each point.
N_VALUES = 20
#: Levels of the true distribution function, and share of the tail mean.
CDF_LEVELS, TAIL = (0.1, 0.25, 0.5, 0.75, 0.9), 0.1
QUANTITIES = {
    "embedding": "embedding values",
    "mean": "recovered means",
    "cdf": "recovered CDF",
    "cvar": "recovered CVaR",
}


def cover(
    work: Path, pair: str, replicate: int, transitions: int, bootstrap: int, level: float, parameters: Record
) -> Record:
    """Simulate, fit and bootstrap in this thread, and find which intervals contain the truth.

    The directory ``work`` is for data and sums, and the caller removes it; ``replicate`` is the seed of data,
    fit and bootstrap. Returns for each of ``QUANTITIES`` lists over its entries: ``covered``,
    ``covered_unbiased`` (by intervals that allow for no bias), the ``error`` of the estimate and its
    ``standard_error``.
    """
    policies = simulation.PAIRS[pair]
    store = simulation.write(work / "data", policies, transitions, seed=replicate)
    shared: Record = {"executor": ThreadExecutor(1), "cache": work / "cache", "progress": "none"}
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

    def covers(interval: Interval) -> Mask:
        return (interval.low <= values) & (values <= interval.high)

    by_entry = {
        "covered": covers(draws.interval(level)),
        "covered_unbiased": covers(draws.interval(level, bias=0.0)),
        "error": draws.estimate - values,
        "standard_error": draws.standard_error,
    }
    edges = np.cumsum([part.shape[1] for part in true.values()])[:-1]
    parts = {name: np.split(array, edges, axis=1) for name, array in by_entry.items()}
    return {
        quantity: {name: parts[name][i].ravel().tolist() for name in parts} for i, quantity in enumerate(true)
    }


def _summaries(fit: KEDRL, state: Points, action: Points, thresholds: Sequence[Matrix]) -> Matrix:
    """Means, distribution function at each point's thresholds, and tail means of the recovered laws."""
    # No finding is refused: the study is about how often intervals cover.
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
    **parameters: object,
) -> Outcome:
    """Run the missing cells of the study, and count how often intervals contain the truth.

    Each of the datasets has one fit and ``bootstrap`` replicates; ``level`` is the nominal coverage.
    Parameters of :class:`~kedrl_dask.KEDRL` take the place of ``REDUCED``; for the others see
    :func:`~kedrl_dask.studies.runner.run_cells`.
    """
    if bootstrap < 2:
        raise ValueError(f"coverage: bootstrap must be at least 2, got {bootstrap}")
    if not 0 < level < 1:
        raise ValueError(f"coverage: level must lie strictly between 0 and 1, got {level!r}")
    output, sizes = Path(output), {**REDUCED, **parameters}
    fixed = {"transitions": transitions, "bootstrap": bootstrap, "level": level}
    cells = [
        Cell.build(
            {"pair": pair, "replicate": n},
            parameters=parameters_of(pair, "auto", n, **SETTINGS | sizes),
            **fixed,
        )
        for n in range(replicates)
    ]
    records = run_cells(output, STUDY, cover, cells, workers)
    summary = records.summary(STUDY, pair=pair, **fixed, results=_results(records))
    write_results(output, summary)
    return Outcome(records, summary, {})


def _results(records: Records) -> Record:
    """Coverage of each quantity with its standard error over datasets, and what explains it."""
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
    return results


def render(summary: Record, console: Console) -> None:
    """Print the coverage, and what explains it."""
    rows = [
        (
            row["meaning"],
            f"{row['coverage']:.1%}",
            "" if row["coverage_error"] is None else f"{row['coverage_error']:.1%}",
            f"{row['coverage_unbiased']:.1%}",
            f"{row['lowest']:.0%}",
            *(f"{row[name]:.4f}" for name in ("bias", "deviation", "standard_error")),
        )
        for row in summary["results"].values()
    ]
    table = TextTable(
        f"Coverage of {summary['level']:.0%} intervals over {summary['cells']} datasets of "
        f"{summary['transitions']:,} transitions, {summary['bootstrap']} bootstrap replicates",
        ("", "coverage", "±", "unbiased", "lowest", "bias", "sd", "s.e."),
        rows,
        "±: standard error over datasets. Unbiased: coverage of intervals that allow for no bias. Lowest: "
        "coverage of a single entry. Bias: root mean square of the mean error, which resampling cannot show; "
        "sd: standard deviation between datasets; s.e.: its estimate by the bootstrap.",
    )
    print_tables([table], console)
