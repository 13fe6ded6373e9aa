"""Systems unlike the paper's: errors of the recovered laws with plain defaults, and which were refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from scipy.spatial.distance import cdist
from scipy.special import ndtri
from scipy.stats import qmc, wasserstein_distance

from kedrl_dask.datasets.benchmark import NAMES, case, check, installed
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fitted.answers import FittedLaw
from kedrl_dask.estimator.fitted.findings import CODES, Refused
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.studies import figures
from kedrl_dask.studies.output import SECTION, TextTable, print_tables, write_results
from kedrl_dask.studies.runner import Cell, Outcome, Records, run_cells
from kedrl_dask.utils.arrays import Array, Matrix, Points, Record, Vector, Weights
from kedrl_dask.utils.checks import check_count

STUDY = "systems"
#: Transitions of the datasets, by default.
SIZES = (3_000, 15_000, 60_000)
#: Levels of the quantiles, and share of the tail mean.
LEVELS, TAIL = (0.05, 0.25, 0.5, 0.75, 0.95), 0.1
#: Directions of the sliced distance, true returns of the energy distance, and nodes of a smoothed atom.
N_DIRECTIONS, N_TRUE, N_NODES = 32, 2_000, 8
#: Errors, in standard deviations of the true return.
METRICS = {
    "mean": "mean",
    "quantiles": f"quantiles {', '.join(f'{level:.0%}' for level in LEVELS)}",
    "cvar": f"mean of the lowest {TAIL:.0%}",
    "energy": "energy distance of the joint laws",
    "sliced": "sliced Wasserstein-1 distance of the joint laws",
}
#: Largest error of mean and tail mean of an answer that is right.
RIGHT = 0.3
#: Error below which it need not fall with more data: noise of the true returns is a part of it.
SMALL = 0.05


def empirical(returns: Array) -> Mixture:
    """Returns (n, size, d) at n inputs as laws whose atoms have equal weights."""
    n, size, dim = returns.shape
    return Mixture(returns, np.full((n, size), 1 / size), np.zeros(dim))


def samples(law: Mixture, row: int) -> tuple[Points, Weights]:
    """Points (k, d) and weights (k,) of one law: its atoms, each spread over a few nodes if smoothed.

    Nodes are normal quantiles of Sobol points, of which each atom takes a block of its own.
    """
    atoms, weights, smooth = law.atoms_of(row), law.weights[row], np.flatnonzero(law.bandwidth)
    if not smooth.size:
        return atoms, weights
    points = np.repeat(atoms, N_NODES, axis=0)
    n_log = int(np.ceil(np.log2(len(points))))
    uniform = qmc.Sobol(smooth.size, seed=0).random_base2(n_log)[: len(points)]
    points[:, smooth] += ndtri(uniform) * law.bandwidth[smooth]
    return points, np.repeat(weights, N_NODES) / N_NODES


def errors(law: Mixture, returns: Array) -> dict[str, Vector]:
    """Each of ``METRICS`` at n inputs, averaged over coordinates; (n,).

    Parameters
    ----------
    law : Mixture
        Estimated laws of the n inputs.
    returns : (n, size, d) array
        True returns there, whose standard deviations are the unit.
    """
    true, deviation = empirical(returns), returns.std(axis=1)
    off = np.abs(_summaries(law) - _summaries(true)) / deviation[:, None]
    joint = []
    for row, scale in enumerate(deviation):
        points, weights = samples(law, row)
        scaled, other = points / scale, returns[row] / scale
        energy = energy_distance(scaled, weights, other[:N_TRUE])
        joint.append((energy, sliced_distance(scaled, weights, other)))
    energies, sliced = np.array(joint).T
    by_part = {"mean": off[:, 0], "quantiles": off[:, 1:-1].mean(axis=1), "cvar": off[:, -1]}
    marginal = {name: part.mean(axis=1) for name, part in by_part.items()}
    return marginal | {"energy": energies, "sliced": sliced}


def _summaries(law: Mixture) -> Array:
    """Means, quantiles and tail means; (n, 2 + levels, d)."""
    coordinates = range(law.dim)
    quantiles = np.stack([law.quantile(LEVELS, c) for c in coordinates], axis=2)
    tails = np.stack([law.cvar(TAIL, c) for c in coordinates], axis=1)
    return np.concatenate([law.mean()[:, None], quantiles, tails[:, None]], axis=1)


def energy_distance(points: Points, weights: Weights, returns: Points) -> float:
    """√(2E|X − Y| − E|X − X'| − E|Y − Y'|) of weighted points and a sample, in one dimension SciPy's."""
    equal = np.full(len(returns), 1 / len(returns))

    def apart(x: Points, w: Weights, y: Points, v: Weights) -> float:
        return float(w @ cdist(x, y) @ v)

    between = apart(points, weights, returns, equal)
    within = apart(points, weights, points, weights) + apart(returns, equal, returns, equal)
    return float(np.sqrt(max(2 * between - within, 0.0)))


def sliced_distance(points: Points, weights: Weights, returns: Points) -> float:
    """Wasserstein-1 distance of weighted points and a sample, averaged over projections on directions."""
    return float(
        np.mean(
            [
                wasserstein_distance(points @ direction, returns @ direction, weights)
                for direction in _directions(points.shape[1])
            ]
        )
    )


def _directions(dim: int) -> Matrix:
    """Unit vectors, always the same; (k, d)."""
    if dim == 1:
        return np.ones((1, 1))
    drawn = np.random.default_rng(0).standard_normal((N_DIRECTIONS, dim))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def evaluate(work: Path, system: str, transitions: int, replicate: int, parameters: Record) -> Record:
    """Simulate, fit in this thread, and compare the recovered laws with true returns.

    The directory ``work`` is for the data, and the caller removes it; ``replicate`` is the seed of data, fit
    and truth. Returns a list over the inputs for each of ``METRICS``, the codes for which the answer was
    ``refused``, all ``findings`` against it, the held-out ``bellman_risk`` and the ``seconds`` of the fit.
    """
    chosen = case(system)
    store = chosen.write(work / "data", transitions, seed=replicate)
    start = time.perf_counter()
    model = KEDRL(discount=chosen.discount, random_state=replicate, **parameters)
    model.fit(store, chosen.target, executor=ThreadExecutor(1), progress="none")
    seconds = time.perf_counter() - start
    truth = chosen.truth(replicate)
    law, refused = _asked(model, truth.state, truth.action)
    return {
        **{name: values.tolist() for name, values in errors(law, truth.returns).items()},
        "refused": refused,
        "findings": sorted({finding.code for finding in law.findings}),
        "bellman_risk": model.diagnostics_["held_out"]["bellman_risk"],
        "seconds": seconds,
    }


def _asked(model: KEDRL, state: Points, action: Points) -> tuple[FittedLaw, list[str]]:
    """Recovered laws, and the codes for which a plain question was refused."""
    try:
        return model.recover(state, action), []
    except Refused as refusal:
        codes = sorted({finding.code for finding in refusal.findings})
        return model.recover(state, action, accept=tuple(CODES)), codes


def cells(systems: Sequence[str], sizes: Sequence[int], replicates: int, **parameters: object) -> list[Cell]:
    """One cell for each system, number of transitions and replicate."""
    return [
        Cell.build(
            {"system": system, "transitions": size, "replicate": replicate}, parameters=dict(parameters)
        )
        for replicate, system, size in product(range(replicates), systems, sizes)
    ]


def run(
    output: str | Path,
    *,
    systems: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    replicates: int = 3,
    workers: int | None = 0,
    draw: bool = True,
    **parameters: object,
) -> Outcome:
    """Run the missing cells of the study, and write its table and figure.

    Parameters
    ----------
    output : path-like
        Directory of the study.
    systems : sequence of str, optional
        Some of ``kedrl_dask.datasets.benchmark.NAMES``; by default all whose libraries are installed.
    sizes : sequence of int
        Transitions of the datasets.
    replicates : int
        Datasets of each size.
    workers : int
        See :func:`~kedrl_dask.studies.runner.run_cells`.
    draw : bool
        Whether to write the figure.
    **parameters
        Parameters of :class:`~kedrl_dask.KEDRL` for all fits, instead of the defaults.
    """
    left_out = [name for name in NAMES if name not in installed()] if systems is None else []
    systems = installed() if systems is None else systems
    for name in systems:
        check(name)
    for size in sizes:
        check_count("systems: sizes", size)
    if not (systems and sizes):
        raise ValueError("systems: give at least one system and one size")
    checked: Record = {"discount": 0.5, **parameters}
    Settings(**KEDRL(**checked).get_params(deep=False))  # refused before any work
    output = Path(output)
    planned = cells(list(dict.fromkeys(systems)), sorted(set(sizes)), replicates, **parameters)
    records = run_cells(output, STUDY, evaluate, planned, workers)
    table = _table(records)
    summary = _summarise(records, table) | {"left_out": left_out}
    drawn = {"systems": figures.systems(table, RIGHT)} if draw else {}
    write_results(output, summary, {"errors": table}, drawn)
    return Outcome(records, summary, {"errors": table})


def _table(records: Records) -> pd.DataFrame:
    """One row for each cell: means over the inputs, and what was found."""
    return pd.DataFrame(
        {
            **cell.labels,
            **{metric: float(np.mean(result[metric])) for metric in METRICS},
            "refused": bool(result["refused"]),
            "refused_codes": " ".join(result["refused"]),
            "findings": " ".join(result["findings"]),
            "bellman_risk": result["bellman_risk"],
            "seconds": result["seconds"],
        }
        for cell, result in records.done
    )


def _summarise(records: Records, table: pd.DataFrame) -> Record:
    groups = table.drop(columns="replicate").groupby(["system", "transitions"], sort=False)
    rows = []
    for (system, size), group in groups:
        means = {name: float(group[name].mean()) for name in (*METRICS, "refused", "bellman_risk", "seconds")}
        rows.append({"system": system, "transitions": int(size), "replicates": len(group), **means})
    return records.summary(STUDY, results=rows, verdict=verdict(table))


def verdict(table: pd.DataFrame) -> Record:
    """Which systems are right or refused in every cell, and which do not profit from more data.

    A cell is right if the errors of mean and tail mean are at most ``RIGHT``. The error of a system that does
    not fall is above ``SMALL`` at the largest size, and at least what it is at the smallest.
    """
    is_right = (table[["mean", "cvar"]] <= RIGHT).all(axis=1)
    is_fine = (is_right | table["refused"]).groupby(table["system"], sort=False).all()
    error = table[["mean", "cvar"]].mean(axis=1)
    by_size = error.groupby([table["system"], table["transitions"]]).mean().unstack()
    last = by_size.iloc[:, -1]
    stays = (last >= by_size.iloc[:, 0]) & (last > SMALL) if by_size.shape[1] > 1 else last < 0
    return {
        "systems": len(is_fine),
        "right_or_refused": is_fine.index[is_fine].tolist(),
        "wrong": is_fine.index[~is_fine].tolist(),
        "share_refused": float(table["refused"].mean()),
        "not_falling": [name for name in is_fine.index if stays[name]],
    }


def render(summary: Record, console: Console) -> None:
    """Print the errors by system and size, and the verdict."""
    rows: list[Sequence[str]] = []
    system = None
    for row in summary["results"]:
        is_next, system = row["system"] != system, row["system"]
        rows += [SECTION] if is_next and rows else []
        figures_of_row = (f"{row[name]:.3f}" for name in METRICS)
        name, size = system if is_next else "", f"{row['transitions']:,}"
        rows.append((name, size, *figures_of_row, f"{row['refused']:.0%}", f"{row['seconds']:.0f}"))
    heads = ("system", "N", "mean", "quantiles", "CVaR", "energy", "sliced", "refused", "s")
    note = (
        "N transitions. Errors in standard deviations of the true return, averaged over inputs, coordinates "
        "and replicates; energy and sliced Wasserstein-1 distances of joint laws; seconds of a fit on one "
        "thread."
    )
    title = "Recovered laws beside true returns, with plain defaults"
    print_tables([TextTable(title, heads, rows, note)], console)
    console.print(sentence(summary["verdict"]))
    if summary["left_out"]:
        names = ", ".join(summary["left_out"])
        console.print(f"Left out, need the extra, pip install 'kedrl-dask[rl]': {names}.", markup=False)


def sentence(found: Record) -> str:
    """The verdict in words."""
    n_fine, wrong, stays = len(found["right_or_refused"]), found["wrong"], found["not_falling"]
    text = f"{n_fine} of {found['systems']} systems are right (errors of mean and CVaR ≤ {RIGHT}) or refused"
    text += f", wrong: {', '.join(wrong)}" if wrong else ""
    text += f". {found['share_refused']:.0%} of the answers were refused. "
    if stays:
        return text + f"The error does not fall with more transitions: {', '.join(stays)}."
    return text + "No error above noise fails to fall with more transitions."
