"""The passes over all transitions: the density ratio, and the sums of the regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kedrl_dask import ratio as ratios
from kedrl_dask.cache import Cache, Facts
from kedrl_dask.choices import TUNING_SAMPLE, Choices
from kedrl_dask.division import RowBlock, pieces
from kedrl_dask.execute import Executor
from kedrl_dask.nystrom import NystromFeatures
from kedrl_dask.passes import (
    SUMS_KIND,
    Continuation,
    StreamingPass,
    TargetActions,
    accumulate,
    combine_sums,
    ratio_moments,
    write_block,
)
from kedrl_dask.policies import LocationScale, Policy
from kedrl_dask.progress import Reporter
from kedrl_dask.schema import (
    BLOCK_SCALARS,
    CONTINUATION_SUMS,
    INPUT_SUMS,
    RATIO_SUMS,
    REWARD_SUMS,
    ArraySpec,
)
from kedrl_dask.settings import Settings
from kedrl_dask.store import ArrayStore
from kedrl_dask.sums import RegressionSums, recalibrate
from kedrl_dask.transitions import TransitionStore
from kedrl_dask.tuning import RIDGES

__all__ = ["Streamed", "create_sums", "episode_blocks", "policy_facts", "stream", "sum_blocks"]

#: Draws from a policy that has no quadrature, and the most nodes of one that has.
RANDOM_DRAWS, MOST_DRAWS = 8, 64


@dataclass(frozen=True)
class Streamed:
    """What the passes left.

    Attributes
    ----------
    paths : list of Path
        Stores of the sums over blocks of episodes.
    continuation : Continuation
        κ, with the policy's draws and the density ratio if there is one.
    facts : Facts
        What identifies φ and κ of all transitions.
    """

    paths: list[Path]
    continuation: Continuation
    facts: Facts

    def collect(self, features: NystromFeatures, n_folds: int) -> tuple[RegressionSums, Continuation]:
        """The sums by folds, and κ; of a ratio that is clipped, both are scaled to its mean."""
        sums, ratio = RegressionSums.from_blocks(self.paths, features, n_folds), self.continuation.ratio
        if ratio is None or ratio.clip is None:
            return sums, self.continuation
        ratio, sums = recalibrate(ratio, sums)
        return sums, replace(self.continuation, ratio=ratio)


def stream(
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    choices: Choices,
    executor: Executor,
    cache: Cache,
    reporter: Reporter,
) -> Streamed:
    """Run the passes, as far as the cache does not have their results."""
    blocks = episode_blocks(store, settings.n_blocks)
    target = TargetActions(policy, _n_draws(settings, policy, choices), settings.random_state)
    ratio = None
    if settings.continuation == "ratio":
        with reporter.stage("density ratio", len(blocks)) as advance:
            ratio = _fit_ratio(settings, store, choices, target, blocks, executor, cache, advance)
    facts = _facts(settings, store, choices, target, ratio, len(blocks), cache)
    continuation = Continuation(choices.features.kernel, choices.basis.landmarks, target, ratio)
    with reporter.stage("streaming pass", len(blocks)) as advance:
        paths = _sum_blocks(settings, store, choices, continuation, blocks, facts, executor, cache, advance)
    return Streamed(paths, continuation, facts["continuation"])


def episode_blocks(store: TransitionStore, n_blocks: int) -> list[RowBlock]:
    """Blocks of whole episodes, by which sums are kept."""
    return [RowBlock(i, *edges) for i, edges in enumerate(pairwise(store.block_edges(n_blocks)))]


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
    cache: Cache,
    advance: Any,
) -> ratios.DensityRatio:
    """Fit uLSIF: centres and ridge from a sample, coefficients from sums over all transitions."""
    options = settings.ratio or ratios.ULSIF()
    kernel = options.kernel or choices.features.kernel
    rng = np.random.default_rng([settings.random_state, 5])
    sample = choices.sample.select(~choices.sample.terminal)
    if len(sample) == 0:
        raise ValueError(
            "continuation='ratio' weights logged successors, and every transition is terminal; use "
            "continuation='sampled'"
        )
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
    facts = {
        "data": store.fingerprint,
        "blocks": len(blocks),
        "kernel": kernel,
        "centers": centers,
        "target": _target_facts(target, cache),
        "precision": settings.dtype.name,
    }
    sizes = {"block": len(blocks), "center": len(centers), "center_again": len(centers)}

    def compute(paths: dict[str, Path], numbers: list[int]) -> None:
        shared = (store.path.resolve(), kernel, executor.share(centers), target, settings.dtype)
        chosen = [blocks[i] for i in numbers]
        executor.map(ratio_moments, chosen, paths["ratio-sums"], *shared, advance=advance)

    paths = cache.complete(
        {"ratio-sums": facts}, len(blocks), lambda _, path: create_sums(path, RATIO_SUMS, sizes), compute
    )
    sums = ArrayStore.open(paths["ratio-sums"], SUMS_KIND)
    total = ratios.RatioMoments(*(sums.read(spec.name).sum(axis=0) for spec in RATIO_SUMS))
    return ratios.DensityRatio(kernel, centers, ratios.solve(total, ridge), options.clip, ridge)


def _sum_blocks(
    settings: Settings,
    store: TransitionStore,
    choices: Choices,
    continuation: Continuation,
    blocks: list[RowBlock],
    facts: dict[str, Facts],
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

    def compute(paths: dict[str, Path], numbers: list[int]) -> None:
        task = StreamingPass(
            store.path.resolve(),
            features.astype(settings.dtype),
            {path: tuple(spec.name for spec in parts[kind]) for kind, path in paths.items()},
            choices.frequencies,
            continuation if "continuation" in paths else None,
        )
        sum_blocks(task, [blocks[i] for i in numbers], executor, advance)

    def create(kind: str, path: Path) -> None:
        create_sums(path, parts[kind], sizes)

    return list(cache.complete(facts, len(blocks), create, compute).values())


def create_sums(path: Path, specs: Sequence[ArraySpec], sizes: dict[str, int]) -> None:
    """Create an empty store of sums over blocks."""
    ArrayStore.create(path, SUMS_KIND, specs, sizes, {"block": 1}, compressed=False).finish()


def sum_blocks(task: StreamingPass, blocks: list[RowBlock], executor: Executor, advance: Any) -> None:
    """Run the streaming pass over some blocks, into the stores of the task."""
    groups = [pieces(block) for block in blocks]
    executor.reduce(accumulate, groups, combine_sums, write_block, executor.share(task), advance=advance)


def _facts(
    settings: Settings,
    store: TransitionStore,
    choices: Choices,
    target: TargetActions,
    ratio: ratios.DensityRatio | None,
    n_blocks: int,
    cache: Cache,
) -> dict[str, Facts]:
    """What each part of the sums depends on."""
    features = choices.features
    facts: dict[str, Facts] = {}
    facts["inputs"] = {
        "data": store.fingerprint,
        "features": [features.kernel, features.landmarks, features.whitening],
        "blocks": n_blocks,
        "precision": settings.dtype.name,
    }
    facts["rewards"] = {**facts["inputs"], "frequencies": choices.frequencies}
    facts["continuation"] = {
        **facts["inputs"],
        "basis": choices.basis.landmarks,
        **_target_facts(target, cache),
        "ratio": ratio,
    }
    return facts


def _target_facts(target: TargetActions, cache: Cache) -> Facts:
    """What identifies the actions of the target policy."""
    return {"policy": policy_facts(target.policy, cache), "draws": [target.n_draws, target.seed]}


def policy_facts(policy: Policy, cache: Cache) -> Facts:
    """What identifies a policy: its numbers. Code has none; the cache says what stands for it."""
    return policy.to_dict() if isinstance(policy, LocationScale) else {"code": cache.code}
