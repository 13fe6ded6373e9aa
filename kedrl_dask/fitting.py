"""The stages of a fit, in order: design, ratio, streaming pass, regression, conditioning points, solver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask import grid as grids
from kedrl_dask import ratio as ratios
from kedrl_dask.criterion import Penalties, ReturnSpace
from kedrl_dask.design import choose_points
from kedrl_dask.execute import Executor
from kedrl_dask.kernels import Matern
from kedrl_dask.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.objective import BellmanObjective
from kedrl_dask.operators import ConditionalOperators
from kedrl_dask.passes import (
    CONDITIONING_KIND,
    SUMS_KIND,
    Continuation,
    RowBlock,
    StreamingPass,
    TargetActions,
    accumulate_block,
    combine_scalars,
    empty_scalars,
    evaluate_points,
    ratio_moments,
)
from kedrl_dask.plan import even_ranges
from kedrl_dask.policies import Policy
from kedrl_dask.progress import Reporter
from kedrl_dask.schema import BLOCK_SCALARS, BLOCK_SUMS, CONDITIONING
from kedrl_dask.settings import Settings
from kedrl_dask.solvers import Solution, by_name
from kedrl_dask.solvers.solution import Record
from kedrl_dask.spectral import frequencies
from kedrl_dask.store import ArrayStore
from kedrl_dask.transitions import Transitions, TransitionStore
from kedrl_dask.tuning import (
    RIDGES,
    BlockSums,
    InputTuning,
    cross_validate_ridge,
    median_kernel,
    tune_input_kernel,
)

__all__ = ["Fit", "RegressionSums", "run_fit", "workspace"]

Array = npt.NDArray[Any]

#: Transitions in memory for the choice of landmarks, basis and grid, and for tuning.
DESIGN_SAMPLE, TUNING_SAMPLE = 20_000, 4_000
#: Folds of the cross-validation over blocks of episodes.
N_FOLDS = 5
#: λ_B in units of σ_X²σ_Z²: below it the error no longer changes, above it shrinkage shows.
RELATIVE_RIDGE_B = 1e-7


@dataclass(frozen=True)
class Design:
    """Choices that do not depend on the policy."""

    sample: Transitions
    returns: Array
    features: NystromFeatures
    basis: Array
    grid: Array
    frequencies: Array
    return_kernel: Matern
    tuning: InputTuning | None


@dataclass(frozen=True)
class RegressionSums:
    """The block sums of the streaming pass, added up over folds of episodes (the first axis)."""

    gram: Array
    mass: Array
    reward: Array
    reward_sum: Array
    continuation: Array
    continuation_sum: Array
    scalar: Array
    terminal: Array | None = None

    @classmethod
    def from_blocks(cls, sums: ArrayStore) -> RegressionSums:
        """Deal the stored blocks out to folds in turn; one block is in memory at a time."""
        n_blocks = sums.size("block")
        n_folds = min(N_FOLDS, n_blocks)
        folds: dict[str, Array] = {name: np.zeros((n_folds, *sums.shape(name)[1:])) for name in sums.names}
        folds["scalar"][:] = empty_scalars()
        for name, total in folds.items():
            for i in range(n_blocks):
                block = sums.read(name, i, i + 1)[0]
                fold = total[i % n_folds]
                fold[...] = combine_scalars(fold, block) if name == "scalar" else fold + block
        return cls(**folds)

    def scalars(self, name: str) -> Array:
        """One of BLOCK_SCALARS, by fold."""
        return self.scalar[:, BLOCK_SCALARS.index(name)]

    @property
    def count(self) -> float:
        """Number N of transitions."""
        return float(self.scalars("transitions").sum())


@dataclass(frozen=True)
class Fit:
    """Everything that a fit produced."""

    design: Design
    operators: ConditionalOperators
    space: ReturnSpace
    solution: Solution
    ridge_gamma: float
    ridge_b: float
    ridge_errors: Array | None
    ratio: ratios.DensityRatio | None
    sums: RegressionSums
    gamma_mass: Array


@contextmanager
def workspace(store: TransitionStore, run: str | Path | None) -> Iterator[Path]:
    """Directory for what the passes write: ``run`` if given, which is kept, else one that is removed.

    It stands beside the store, because workers on other machines reach that place.
    """
    if run is not None:
        path = Path(run)
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    try:
        path = Path(mkdtemp(prefix=".kedrl-", dir=store.path.resolve().parent))
    except OSError as error:
        raise OSError(
            f"{store.path.resolve().parent}: cannot be written ({error}); "
            "give fit(..., run=directory) a place that all workers reach"
        ) from error
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)


def run_fit(
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    executor: Executor,
    path: Path,
    reporter: Reporter,
) -> Fit:
    """Run all stages; see the module."""
    with reporter.stage("design"):
        design = make_design(settings, store)
    blocks = [RowBlock(i, *edges) for i, edges in enumerate(pairwise(store.block_edges(settings.n_blocks)))]
    target = TargetActions(policy, settings.draws(store.action_dim), settings.random_state)
    ratio = None
    if settings.continuation == "ratio":
        with reporter.stage("density ratio", len(blocks)) as advance:
            ratio = _fit_ratio(settings, store, design, target, blocks, executor, advance)
    with reporter.stage("streaming pass", len(blocks)) as advance:
        continuation = Continuation(design.features.kernel, design.basis, target, ratio)
        sums = _stream(store, design, continuation, blocks, executor, path / "sums", advance)
    if ratio is not None and ratio.clip is not None:
        ratio, sums = _recalibrate(ratio, sums)
    with reporter.stage("regression"):
        ridge_gamma, errors = _choose_ridge(settings, sums)
        operators = _regress(design, sums, ridge_gamma)
    ranges = even_ranges(settings.n_points(store.n_transitions), settings.chunk_points)
    with reporter.stage("conditioning points", len(ranges)) as advance:
        gamma_mass = _condition(settings, store, operators, ranges, executor, path / "conditioning", advance)
    space = ReturnSpace.build(design.grid, design.frequencies, settings.discount, design.return_kernel)
    ridge_b = settings.ridge_b
    if ridge_b == "auto":
        ridge_b = RELATIVE_RIDGE_B * (design.features.kernel.sigma * design.return_kernel.sigma) ** 2
    with reporter.stage("solver") as advance:
        penalties = Penalties(settings.mass_penalty, 1.0, settings.negative_penalty)
        basis_gram = design.features.kernel(design.basis, design.basis)
        problem = BellmanObjective(
            executor, path / "conditioning", ranges, space, penalties, basis_gram, float(ridge_b)
        )

        def report(record: Record) -> None:
            advance(1, f"criterion {record.value:.4g}, gradient {record.certificate:.1e}")

        solution = by_name(settings.solver).solve(problem, report=report)
    return Fit(
        design, operators, space, solution, ridge_gamma, float(ridge_b), errors, ratio, sums, gamma_mass
    )


def make_design(settings: Settings, store: TransitionStore) -> Design:
    """Kernels, landmarks, basis, grid and frequencies, from a sample in memory."""
    seed = settings.random_state
    sample = store.sample(DESIGN_SAMPLE, np.random.default_rng([seed, 1]))
    tuning = None
    if isinstance(settings.input_kernel, Matern):
        input_kernel = settings.input_kernel
    else:
        tuning = _tune(settings, sample)
        input_kernel = tuning.kernel
    windows = store.episode_windows(5 * DESIGN_SAMPLE, np.random.default_rng([seed, 2]))
    returns = grids.discounted_returns(windows.reward, windows.episode, windows.terminated, settings.discount)
    if len(returns) > DESIGN_SAMPLE:
        returns = np.random.default_rng([seed, 3]).choice(returns, DESIGN_SAMPLE, replace=False)
    return_kernel = settings.return_kernel
    if not isinstance(return_kernel, Matern):
        return_kernel = median_kernel(returns, random_state=seed)
    landmarks = choose_points(
        sample.inputs, settings.n_landmarks, input_kernel, settings.points, random_state=seed
    )
    basis = choose_points(
        sample.inputs, settings.n_basis, input_kernel, settings.points, random_state=seed + 1
    )
    return Design(
        sample,
        returns,
        NystromFeatures.from_landmarks(input_kernel, landmarks, settings.landmark_threshold),
        basis,
        _make_grid(settings, returns, return_kernel),
        frequencies(return_kernel, store.reward_dim, settings.n_features, settings.spectral, seed),
        return_kernel,
        tuning,
    )


def _tune(settings: Settings, sample: Transitions) -> InputTuning:
    rng = np.random.default_rng([settings.random_state, 4])
    rows = np.sort(rng.permutation(len(sample))[:TUNING_SAMPLE])
    part = sample.select(rows)
    return tune_input_kernel(
        part.inputs, part.reward, part.next_state, part.episode, random_state=settings.random_state
    )


def _make_grid(settings: Settings, returns: Array, kernel: Matern) -> Array:
    if settings.grid is not None:
        return np.array(settings.grid, dtype=np.float64)
    if settings.reward_bounds is not None:
        low, high = grids.bellman_box(*settings.reward_bounds, settings.discount)
        return grids.box_grid(low, high, settings.n_atoms, settings.random_state)
    return grids.return_grid(
        returns, settings.n_atoms, kernel, settings.grid_expansion, random_state=settings.random_state
    )


def _fit_ratio(
    settings: Settings,
    store: TransitionStore,
    design: Design,
    target: TargetActions,
    blocks: list[RowBlock],
    executor: Executor,
    advance: Any,
) -> ratios.DensityRatio:
    """Fit uLSIF: centres and ridge from a sample, coefficients from sums over all transitions."""
    options = settings.ratio or ratios.ULSIF()
    kernel = options.kernel or design.features.kernel
    rng = np.random.default_rng([settings.random_state, 5])
    sample = design.sample.select(~design.sample.terminal)
    sample = sample.select(np.sort(rng.permutation(len(sample))[: max(TUNING_SAMPLE, options.n_centers)]))
    logged = np.hstack([sample.next_state, sample.next_action])
    # The sample is no group of rows: its draws have a seed of their own.
    successors, weights = replace(target, seed=settings.random_state + 1)(0, sample, slice(None))
    pool = successors.reshape(-1, logged.shape[1]) if options.centers_from == "numerator" else logged
    centers = pool[rng.choice(len(pool), min(options.n_centers, len(pool)), replace=False)]
    ridge = 0.0 if options.ridge == "auto" else options.ridge
    if options.ridge == "auto":
        sections = kernel(logged, centers), ratios.section_means(kernel, centers, successors, weights)
        ridge = min(RIDGES, key=lambda value: ratios.leave_one_out_score(sections[0], sections[1], value))
    parts = executor.map(
        ratio_moments, blocks, store.path.resolve(), kernel, executor.share(centers), target, advance=advance
    )
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return ratios.DensityRatio(kernel, centers, ratios.solve(total, ridge), options.clip, ridge)


def _stream(
    store: TransitionStore,
    design: Design,
    continuation: Continuation,
    blocks: list[RowBlock],
    executor: Executor,
    path: Path,
    advance: Any,
) -> RegressionSums:
    """Run the streaming pass and add its block sums up to folds."""
    specs = [spec for spec in BLOCK_SUMS if spec.name != "terminal" or store.n_terminal > 0]
    rank = design.features.rank
    sizes = {"block": len(blocks), "rank": rank, "rank_again": rank, "scalar_name": len(BLOCK_SCALARS)}
    sizes |= {"wave": 2 * len(design.frequencies), "basis": len(design.basis)}
    sums = ArrayStore.create(path, SUMS_KIND, specs, sizes, {"block": 1}, {"input": store.fingerprint})
    task = StreamingPass(
        store.path.resolve(), path.resolve(), design.features, design.frequencies, continuation
    )
    executor.map(accumulate_block, blocks, executor.share(task), advance=advance)
    sums.finish()
    return RegressionSums.from_blocks(sums)


def _recalibrate(
    ratio: ratios.DensityRatio, sums: RegressionSums
) -> tuple[ratios.DensityRatio, RegressionSums]:
    """Scale clipped ratios to mean one: everything made of κ is linear in it, so no pass is needed."""
    mean = sums.scalars("ratio").sum() / sums.scalars("successors").sum()
    scalar = sums.scalar / np.array([1, 1, mean**2, mean, mean**2, mean, mean])
    return replace(ratio, scale=1 / mean), replace(
        sums,
        continuation=sums.continuation / mean,
        continuation_sum=sums.continuation_sum / mean,
        scalar=scalar,
    )


def _choose_ridge(settings: Settings, sums: RegressionSums) -> tuple[float, Array | None]:
    """λ_Γ, by cross-validation over folds of episodes from the stored sums alone."""
    if settings.ridge_gamma != "auto":
        return float(settings.ridge_gamma), None
    if len(sums.scalar) < 2:
        raise ValueError(
            "ridge_gamma='auto' needs at least two episodes to leave one out; give ridge_gamma a number"
        )
    count, n = sums.scalars("transitions"), sums.count
    responses, squares = [], np.zeros(len(count))
    # |exp(iWr)|² = 1 at each frequency. Each group of responses is scaled to unit total variance.
    reward_square = count * (sums.reward.shape[2] // 2)
    groups = (
        (sums.reward, sums.reward_sum, reward_square),
        (sums.continuation, sums.continuation_sum, sums.scalars("continuation_square")),
    )
    for response, total, square in groups:
        mean = total.sum(axis=0) / n
        variance = square.sum() / n - mean @ mean
        # A response that does not vary says nothing; its rounding errors must not be blown up.
        scale = 1 / variance if variance > 1e-12 * square.sum() / n else 0.0
        responses.append(np.sqrt(scale) * response)
        squares += scale * square
    errors = cross_validate_ridge(BlockSums(sums.gram, np.concatenate(responses, axis=2), squares, count))
    return RIDGES[int(np.argmin(errors))], errors


def _regress(design: Design, sums: RegressionSums, ridge: float) -> ConditionalOperators:
    gram = sums.gram.sum(axis=0)
    parts = [sums.continuation, sums.reward, sums.mass[:, :, None]]
    if sums.terminal is not None:
        parts.append(sums.terminal)
    totals = [part.sum(axis=0) for part in parts]
    solved = solve_ridge(gram, np.hstack(totals), sums.count, ridge)
    pieces = np.split(solved, np.cumsum([total.shape[1] for total in totals])[:-1], axis=1)
    continuation, reward, mass = (np.ascontiguousarray(piece) for piece in pieces[:3])
    terminal = np.ascontiguousarray(pieces[3]) if sums.terminal is not None else None
    return ConditionalOperators(design.features, design.basis, continuation, reward, terminal, mass[:, 0])


def _condition(
    settings: Settings,
    store: TransitionStore,
    operators: ConditionalOperators,
    ranges: list[tuple[int, int]],
    executor: Executor,
    path: Path,
    advance: Any,
) -> Array:
    """Choose the conditioning points and evaluate the operators there; returns ΣΓ at each."""
    n_points = ranges[-1][1]
    inputs = store.sample(n_points, np.random.default_rng([settings.random_state, 6])).inputs
    specs = [s for s in CONDITIONING if s.name != "terminal_waves" or operators.terminal is not None]
    sizes = {"point": n_points, "input_dim": inputs.shape[1], "basis": len(operators.basis)}
    sizes["wave"] = operators.reward.shape[1]
    length = ranges[0][1]
    points = ArrayStore.create(path, CONDITIONING_KIND, specs, sizes, {"point": length})
    points.write("input", 0, inputs)
    points.write("weight", 0, np.full(n_points, 1.0 / n_points))
    executor.map(evaluate_points, ranges, path.resolve(), executor.share(operators), advance=advance)
    points.finish()
    return points.read("mass")
