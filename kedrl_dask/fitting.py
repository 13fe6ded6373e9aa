"""The stages of a fit, in order: design, ratio, streaming pass, regression, conditioning points, solver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from kedrl_dask import ratio as ratios
from kedrl_dask.cache import Cache, Facts
from kedrl_dask.choices import TUNING_SAMPLE, Choices, make_choices
from kedrl_dask.conditioning import find_conditioning
from kedrl_dask.criterion import Penalties, Space
from kedrl_dask.division import RowBlock, in_groups, pieces
from kedrl_dask.evaluation import exact_operators, return_space
from kedrl_dask.execute import Executor
from kedrl_dask.objective import BellmanObjective
from kedrl_dask.operators import ConditionalOperators
from kedrl_dask.passes import (
    CONDITIONING_KIND,
    SUMS_KIND,
    Conditioning,
    Continuation,
    StreamingPass,
    TargetActions,
    accumulate,
    combine_sums,
    evaluate_points,
    ratio_moments,
    write_block,
)
from kedrl_dask.plan import Plan
from kedrl_dask.policies import LocationScale, Policy
from kedrl_dask.progress import Reporter
from kedrl_dask.schema import (
    BLOCK_SCALARS,
    CONDITIONING,
    CONDITIONING_BLOCKS,
    CONDITIONING_CONTINUATION,
    CONDITIONING_FEATURES,
    CONTINUATION_SUMS,
    INPUT_SUMS,
    REWARD_SUMS,
)
from kedrl_dask.settings import Settings
from kedrl_dask.solvers import Solution, by_name
from kedrl_dask.solvers.solution import Record
from kedrl_dask.store import ArrayStore, remove
from kedrl_dask.sums import RegressionSums, choose_ridge, recalibrate, regress
from kedrl_dask.transitions import TransitionStore
from kedrl_dask.tuning import RIDGES

__all__ = ["Fit", "run_fit", "workspace"]

Array = npt.NDArray[Any]

#: λ_B in units of σ_X²σ_Z²: below it the error no longer changes, above it shrinkage shows.
RELATIVE_RIDGE_B = 1e-7
#: Draws from a policy that has no quadrature, and the most nodes of one that has.
RANDOM_DRAWS, MOST_DRAWS = 8, 64


@dataclass(frozen=True)
class Fit:
    """Everything that a fit produced."""

    choices: Choices
    operators: ConditionalOperators
    space: Space
    solution: Solution
    ridge_gamma: float
    ridge_b: float
    ridge_errors: Array | None
    ratio: ratios.DensityRatio | None
    sums: RegressionSums
    gamma_mass: Array
    plan: Plan


@contextmanager
def workspace(store: TransitionStore, cache: str | Path | None) -> Iterator[Cache]:
    """Directory for what the passes write: ``cache`` if given, which is kept, else one that is removed.

    It stands beside the store, because workers on other machines reach that place.
    """
    if cache is not None:
        yield Cache(Path(cache))
        return
    try:
        path = Path(mkdtemp(prefix=".kedrl-", dir=store.path.resolve().parent))
    except OSError as error:
        raise OSError(
            f"{store.path.resolve().parent}: cannot be written ({error}); "
            "give fit(..., cache=directory) a place that all workers reach"
        ) from error
    try:
        yield Cache(path)
    finally:
        remove(path)


def run_fit(
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    executor: Executor,
    plan: Plan,
    cache: Cache,
    reporter: Reporter,
) -> Fit:
    """Run all stages; see the module."""
    with reporter.stage("design"):
        choices = make_choices(settings, store, cache)
    blocks = [RowBlock(i, *edges) for i, edges in enumerate(pairwise(store.block_edges(settings.n_blocks)))]
    target = TargetActions(policy, _n_draws(settings, policy, choices), settings.random_state)
    ratio = None
    if settings.continuation == "ratio":
        with reporter.stage("density ratio", len(blocks)) as advance:
            ratio = _fit_ratio(settings, store, choices, target, blocks, executor, advance)
    with reporter.stage("streaming pass", len(blocks)) as advance:
        paths = _stream(settings, store, choices, target, ratio, blocks, executor, cache, advance)
    with reporter.stage("regression"):
        sums = RegressionSums.from_blocks(paths, choices.features)
        if ratio is not None and ratio.clip is not None:
            ratio, sums = recalibrate(ratio, sums)
        ridge_gamma, errors = choose_ridge(settings.ridge_gamma, sums)
        operators = regress(choices.features, choices.basis.landmarks, sums, ridge_gamma)
        if settings.operators == "exact":
            operators = exact_operators(
                operators, store, choices.grid, choices.return_kernel, settings.discount, ridge_gamma
            )
    ranges = settings.ranges(store.n_transitions)
    with reporter.stage("conditioning points", len(ranges)) as advance:
        points = _condition(settings, store, choices, operators, ranges, executor, cache, advance)
    space = return_space(
        operators, choices.grid, choices.frequencies, settings.discount, choices.return_kernel
    )
    ridge_b = settings.ridge_b
    if ridge_b == "auto":
        ridge_b = RELATIVE_RIDGE_B * (choices.features.kernel.sigma * choices.return_kernel.sigma) ** 2
    with reporter.stage("solver") as advance:
        penalties = Penalties(settings.mass_penalty, 1.0, settings.negative_penalty)
        groups = in_groups(ranges, executor.n_threads)
        problem = BellmanObjective(executor, points, groups, plan.residency, space, penalties, float(ridge_b))

        def report(record: Record) -> None:
            advance(1, f"criterion {record.value:.4g}, gradient {record.certificate:.1e}")

        solution = by_name(settings.solver).solve(problem, report=report)
    # From the whitened basis to B.
    solution = replace(solution, coefficients=choices.basis.whitening @ solution.coefficients)
    gamma_mass = ArrayStore.open(points.points, CONDITIONING_KIND).read("mass")
    return Fit(
        choices,
        operators,
        space,
        solution,
        ridge_gamma,
        float(ridge_b),
        errors,
        ratio,
        sums,
        gamma_mass,
        plan,
    )


def _n_draws(settings: Settings, policy: Policy, choices: Choices) -> int:
    """Target actions per successor state: as few Gauss nodes as average the input kernel accurately."""
    if not isinstance(settings.n_draws, str):
        return settings.n_draws
    sample, kernel = choices.sample, choices.features.kernel
    n_states = sample.next_state.shape[1]
    n_actions = sample.inputs.shape[1] - n_states
    if not isinstance(policy, LocationScale):
        return RANDOM_DRAWS
    lengths = np.broadcast_to(kernel.length_scale, n_states + n_actions)[n_states:]
    spread = float((policy.scale_at(sample.next_state) / lengths).max())
    return min(policy.noise.nodes_needed(spread, kernel) ** n_actions, MOST_DRAWS)


def _fit_ratio(
    settings: Settings,
    store: TransitionStore,
    choices: Choices,
    target: TargetActions,
    blocks: list[RowBlock],
    executor: Executor,
    advance: Any,
) -> ratios.DensityRatio:
    """Fit uLSIF: centres and ridge from a sample, coefficients from sums over all transitions."""
    options = settings.ratio or ratios.ULSIF()
    kernel = options.kernel or choices.features.kernel
    rng = np.random.default_rng([settings.random_state, 5])
    sample = choices.sample.select(~choices.sample.terminal)
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
    shared = (store.path.resolve(), kernel, executor.share(centers), target, settings.dtype)
    parts = executor.map(ratio_moments, blocks, *shared, advance=advance)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return ratios.DensityRatio(kernel, centers, ratios.solve(total, ridge), options.clip, ridge)


def _stream(
    settings: Settings,
    store: TransitionStore,
    choices: Choices,
    target: TargetActions,
    ratio: ratios.DensityRatio | None,
    blocks: list[RowBlock],
    executor: Executor,
    cache: Cache,
    advance: Any,
) -> list[Path]:
    """Run the streaming pass for the sums that the cache does not have; returns where all of them are."""
    features, basis = choices.features, choices.basis.landmarks
    reward = tuple(spec for spec in REWARD_SUMS if spec.name != "terminal" or store.n_terminal > 0)
    parts = {"inputs": INPUT_SUMS, "rewards": reward, "continuation": CONTINUATION_SUMS}
    sizes = {"block": len(blocks), "rank": features.rank, "rank_again": features.rank}
    sizes |= {"wave": 2 * len(choices.frequencies), "basis": len(basis), "scalar_name": len(BLOCK_SCALARS)}

    def make(missing: dict[str, Path]) -> None:
        stores = {
            kind: ArrayStore.create(path, SUMS_KIND, parts[kind], sizes, {"block": 1}, compressed=False)
            for kind, path in missing.items()
        }
        task = StreamingPass(
            store.path.resolve(),
            features.astype(settings.dtype),
            {path: tuple(spec.name for spec in parts[kind]) for kind, path in missing.items()},
            choices.frequencies,
            Continuation(features.kernel, basis, target, ratio) if "continuation" in missing else None,
        )
        groups = [pieces(block) for block in blocks]
        executor.reduce(accumulate, groups, combine_sums, write_block, executor.share(task), advance=advance)
        for sums in stores.values():
            sums.finish()

    facts: dict[str, Facts] = {}
    facts["inputs"] = {
        "data": store.fingerprint,
        "features": [features.kernel, features.landmarks, features.whitening],
        "blocks": len(blocks),
        "precision": settings.dtype.name,
    }
    facts["rewards"] = {**facts["inputs"], "frequencies": choices.frequencies}
    facts["continuation"] = {
        **facts["inputs"],
        "basis": basis,
        "policy": policy_facts(target.policy),
        "draws": [target.n_draws, target.seed],
        "ratio": ratio,
    }
    return list(cache.get_all(facts, make).values())


def policy_facts(policy: Policy) -> Facts:
    """What identifies a policy: its numbers. Code has none, so that nothing is ever found for it."""
    return policy.to_dict() if isinstance(policy, LocationScale) else {"code": uuid4().hex}


def _condition(
    settings: Settings,
    store: TransitionStore,
    choices: Choices,
    operators: ConditionalOperators,
    ranges: list[tuple[int, int]],
    executor: Executor,
    cache: Cache,
    advance: Any,
) -> Conditioning:
    """Choose the conditioning points and evaluate the operators there."""
    n_points = ranges[-1][1]
    inputs, weights = find_conditioning(settings, store, operators.kernel, cache)
    target = CONDITIONING_BLOCKS if settings.operators == "exact" else CONDITIONING_FEATURES
    target = tuple(spec for spec in target if store.n_terminal > 0 or "terminal" not in spec.name)
    stored = {"basis", "continuation", *(spec.name for spec in target)}
    dtype, m = settings.dtype, len(choices.grid)
    sizes = {"point": n_points, "input_dim": inputs.shape[1], "basis": choices.basis.rank}
    sizes |= {"wave": operators.reward.shape[1], "atom": m, "atom_again": m}
    whitened = replace(operators, continuation=operators.continuation @ choices.basis.whitening)

    def create(path: Path, specs: Any) -> ArrayStore:
        specs = [replace(s, dtype=dtype.name) if s.name in stored else s for s in specs]
        chunks = {"point": ranges[0][1]}
        return ArrayStore.create(path, CONDITIONING_KIND, specs, sizes, chunks, compressed=False)

    def make(missing: dict[str, Path]) -> None:
        stores = [create(missing["conditioning-policy"], CONDITIONING_CONTINUATION)]
        with_shared = "conditioning" in missing
        if with_shared:
            stores.append(create(missing["conditioning"], CONDITIONING + target))
            stores[-1].write("input", 0, inputs)
            stores[-1].write("weight", 0, weights)
        points = missing.get("conditioning", cache.path("conditioning", facts["conditioning"]))
        task = Conditioning(points, missing["conditioning-policy"], whitened, choices.basis, dtype)
        executor.map(evaluate_points, ranges, executor.share(task), with_shared, advance=advance)
        for filled in stores:
            filled.finish()

    facts: dict[str, Facts] = {}
    facts["conditioning"] = {
        "points": [inputs, weights, ranges[0][1]],
        "basis": [choices.basis.kernel, choices.basis.landmarks, choices.basis.whitening],
        "features": [choices.features.landmarks, choices.features.whitening],
        "operators": operators.target_facts,
        "precision": dtype.name,
    }
    facts["conditioning-policy"] = {**facts["conditioning"], "continuation": whitened.continuation}
    paths = cache.get_all(facts, make)
    return Conditioning(paths["conditioning"], paths["conditioning-policy"], whitened, choices.basis, dtype)
