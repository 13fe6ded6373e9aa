"""The demonstration: the paper's simulation study from data to figures, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kedrl_dask import plots
from kedrl_dask import report as reporting
from kedrl_dask._version import __version__
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.atomic import cleaned_up, remove
from kedrl_dask.engine.storage.manifest import read_json, write_json
from kedrl_dask.engine.storage.untrusted import check_parent
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.design import return_grid as grids
from kedrl_dask.report import terminal
from kedrl_dask.studies import profiles
from kedrl_dask.studies.cell import parameters_of
from kedrl_dask.utils.arrays import Matrix, Record, Vector
from kedrl_dask.utils.progress import Reporter

KIND = "kedrl demo"
#: Files and directories of a demo, in the order in which they are removed; the summary appears last.
WRITTEN = ("summary.json", "data", "model", "plots", "report.html")
#: Directory of an incomplete demo.
PARTIAL = ".kedrl-demo-partial"
#: Inputs whose coefficients are drawn.
N_INPUTS = 1_000


@dataclass(frozen=True)
class Evaluation:
    """Estimated and true embedding (n, g) at n points, and the errors."""

    estimate: Matrix
    true: Matrix
    errors: dict[str, Vector]


class Outcome(NamedTuple):
    """What a demonstration returns: the model, its errors (n,) by name, and the summary."""

    model: KEDRL
    errors: dict[str, Vector]
    summary: Record


def run(
    output: str | Path,
    *,
    pair: str = "uniform-gaussian",
    profile: profiles.Profile = "auto",
    transitions: int = 14_700,
    seed: int = 0,
    workers: int = 0,
    draw: bool = True,
    overwrite: bool = False,
    **parameters: object,
) -> Outcome:
    """Simulate, fit, compare with the truth, and write everything into a new or empty directory.

    The directory gets ``data`` and ``model`` (Zarr), ``plots`` (PNG), ``report.html`` and ``summary.json``,
    all at once when everything is complete: an error or an interruption leaves nothing. With ``overwrite`` an
    earlier demonstration may be replaced; nothing else ever is.

    The error is taken at the ten points of :func:`kedrl_dask.datasets.benchmark_points.evaluation_points`.
    Without ``workers`` of a local cluster, threads of this process are used. For profiles see
    :func:`kedrl_dask.studies.profiles.settings`; ``parameters`` of :class:`KEDRL` take the place of theirs.
    """
    start = time.perf_counter()
    policies = simulation.PAIRS[pair]
    model = KEDRL(**parameters_of(pair, profile, seed, **parameters))
    reporter = Reporter()
    with _complete_or_absent(Path(output), overwrite) as path:
        with reporter.stage("simulation", transitions) as advance:
            store = simulation.write(path / "data", policies, transitions, seed=seed, advance=advance)
        with local_cluster(workers) if workers else nullcontext() as executor:
            profiles.prepare(model, profile, store).fit(store, policies.target, executor=executor)
        with reporter.stage("comparison with the truth"):
            evaluation = _evaluate(model, pair)
        if draw:
            _draw(model, store, pair, evaluation, path / "plots", reporter)
        with reporter.stage("saving"):
            model.save(path / "model")
        with reporter.stage("report"):
            content = reporting.from_model(model, str(output), np.hstack(evaluation_points(pair)))
            reporting.write(content, path / "report.html")
        summary: Record = {
            "kind": KIND,
            "version": __version__,
            "pair": pair,
            "profile": profile,
            "seed": seed,
            "workers": workers,
            "points": np.hstack(evaluation_points(pair)).tolist(),
            "errors": terminal.errors_summary(evaluation.errors),
            "paper_mean_rmse": profiles.PAPER[pair].rmse.mean,
            "fit": terminal.summary(model),
            "seconds": time.perf_counter() - start,
        }
        write_json(path / "summary.json", summary)
    return Outcome(model, evaluation.errors, summary)


def _evaluate(model: KEDRL, pair: str) -> Evaluation:
    """Compare with the closed form at the pair's ten points, each on its own grid of returns."""
    state, action = evaluation_points(pair)
    law = truth.return_law(state, action, simulation.PAIRS[pair].target, model.discount)
    at = truth.evaluation_grid(law)
    estimate, true = model.embed(state, action, at=at), law.embed(at, model.return_kernel_)
    return Evaluation(estimate, true, truth.embedding_errors(estimate, true))


def _draw(
    model: KEDRL, store: TransitionStore, pair: str, evaluation: Evaluation, path: Path, reporter: Reporter
) -> None:
    """Draw every figure for which the fit has numbers."""
    rng = np.random.default_rng(model.random_state)
    state, action = evaluation_points(pair)
    target = simulation.PAIRS[pair].target
    law = truth.return_law(state[:1], action[:1], target, model.discount)
    successors = store.sample(N_INPUTS, rng).next_state
    rows = store.episode_windows(20_000, rng)
    returns = grids.discounted_returns(rows.reward, rows.episode, rows.terminated, model.discount)
    figures = {
        "convergence": lambda: plots.convergence(model),
        "embedding_curves": lambda: plots.embedding_curves(evaluation.estimate, evaluation.true),
        "embedding_contours": lambda: plots.embedding_contours(model, state[0], action[0], law=law),
        "embedding_surface": lambda: plots.embedding_surface(model, state[0], action[0], law=law),
        "grid_coverage": lambda: plots.grid_coverage(model, returns),
        "coefficient_mass": lambda: plots.coefficient_mass(model, successors, target.sample(successors, rng)),
    }
    if model.diagnostics_["tuning"]:
        figures["tuning"] = lambda: plots.tuning(model)
    if model.diagnostics_["relevance"] is not None:
        figures["relevance"] = lambda: plots.relevance(model)
    if model.ratio_ is not None:
        figures["density_ratio"] = lambda: plots.density_ratio(model, store)
    path.mkdir()
    with reporter.stage("plots", len(figures)) as advance:
        for name, draw in figures.items():
            draw().savefig(path / f"{name}.png", dpi=150)
            advance()


@contextmanager
def _complete_or_absent(output: Path, overwrite: bool) -> Iterator[Path]:
    """Directory whose content moves to ``output`` if the body succeeds, and is removed if it does not."""
    _check_output(output, overwrite)
    remove(output / PARTIAL)
    with cleaned_up(output.absolute() / PARTIAL) as partial:
        partial.mkdir()
        yield partial
    # Entry by entry, because an existing directory may be a mount point, which cannot be renamed. Without its
    # summary it does not look complete; the partial directory still marks it as a demo's.
    for name in WRITTEN:
        remove(output / name)
    for name in reversed(WRITTEN):
        if (partial / name).exists():
            (partial / name).rename(output / name)
    partial.rmdir()


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse a directory that contains anything except, with ``overwrite``, an earlier demonstration."""
    check_parent(output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; choose another directory with --output")
    found = {entry.name for entry in output.iterdir()} if output.exists() else set()
    if not found:
        return
    if not overwrite:
        raise ValueError(
            f"{output} is not empty; choose another directory with --output, or add --overwrite if an "
            "earlier demo in it may be replaced"
        )
    foreign = sorted(found - {*WRITTEN, PARTIAL})
    if foreign:
        raise ValueError(
            f"{output} holds {foreign[0]!r}, which no demo wrote, so --overwrite does not replace it; "
            "choose another directory with --output"
        )
    if PARTIAL not in found and read_json(output / "summary.json").get("kind") != KIND:
        raise ValueError(
            f"{output} has no summary.json of an earlier demo, so --overwrite does not replace it; "
            "choose another directory with --output"
        )
