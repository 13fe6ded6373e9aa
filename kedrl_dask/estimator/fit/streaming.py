"""The passes over all transitions: the density ratio, and the sums of the regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes import streaming_pass
from kedrl_dask.engine.passes.continuation import Continuation, TargetActions
from kedrl_dask.engine.passes.streaming_pass import SUMS_KIND, Destination, StreamingPass, write_block
from kedrl_dask.engine.plan.partition import RowBlock, pieces
from kedrl_dask.engine.storage import schema
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.cache import Cache, Facts
from kedrl_dask.engine.storage.schema import RATIO_SUMS, TREND_SUMS, ArraySpec
from kedrl_dask.estimator.fit.design import TUNING_SAMPLE, Choices
from kedrl_dask.estimator.fit.pilot import policy_facts
from kedrl_dask.estimator.fit.regression import RegressionSums, StoredBlocks, read_folds, recalibrate
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.base import NoisyLocation
from kedrl_dask.numerics.regression import density_ratio as ratios
from kedrl_dask.numerics.regression.cross_validation import RIDGES
from kedrl_dask.utils.progress import Advance, Reporter

Specs = dict[str, tuple[ArraySpec, ...]]

#: Draws from a policy that has no quadrature, and the most nodes of one that has.
RANDOM_DRAWS, MOST_DRAWS = 8, 64


@dataclass(frozen=True)
class Streamed:
    """The sums over blocks of episodes by kind, κ, and what identifies φ and κ of all transitions."""

    blocks: list[StoredBlocks]
    continuation: Continuation
    facts: Facts

    def collect(self, features: NystromFeatures, n_folds: int) -> tuple[RegressionSums, Continuation]:
        """The sums by folds, and κ; both are divided by the mean of a clipped ratio."""
        sums = RegressionSums(**read_folds(self.blocks, features, n_folds))
        ratio = self.continuation.ratio
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
    """Run the passes whose results the cache does not have."""
    blocks = episode_blocks(store, settings.n_blocks)
    target = TargetActions(policy, choose_n_draws(settings, policy, choices), settings.random_state)
    ratio = None
    passes = _Passes(settings, store, choices, target, executor, cache)
    if settings.continuation == "ratio":
        own = episode_blocks(store.base, settings.n_blocks)
        with reporter.stage("density ratio", len(own)) as advance:
            ratio = passes.fit_ratio(own, advance)
    continuation = Continuation(choices.features.kernel, choices.basis.landmarks, target, ratio)
    with reporter.stage("streaming pass", len(blocks)) as advance:
        summed = passes.sum(continuation, blocks, advance)
    whole = {"data": store.fingerprint, "blocks": len(blocks)}
    return Streamed(summed, continuation, passes.facts(whole, ratio)["continuation"])


def episode_blocks(store: TransitionStore, n_blocks: int) -> list[RowBlock]:
    """Blocks of whole episodes for which sums are kept."""
    return [RowBlock(i, *edges) for i, edges in enumerate(pairwise(store.block_edges(n_blocks)))]


def choose_n_draws(settings: Settings, policy: Policy, choices: Choices) -> int:
    """Target actions per successor state: the fewest Gauss nodes that average the input kernel accurately."""
    if not isinstance(settings.n_draws, str):
        return settings.n_draws
    sample, kernel = choices.sample, choices.features.kernel
    n_states = sample.next_state.shape[1]
    n_actions = sample.inputs.shape[1] - n_states
    if not isinstance(policy, NoisyLocation):
        return RANDOM_DRAWS
    lengths = kernel.lengths(n_states + n_actions)[n_states:]
    spread = float((policy.scale_at(sample.next_state) / lengths).max())
    return min(policy.noise.nodes_needed(spread, kernel) ** n_actions, MOST_DRAWS)


@dataclass(frozen=True)
class _Passes:
    """What the passes of a fit work with."""

    settings: Settings
    store: TransitionStore
    choices: Choices
    target: TargetActions
    executor: Executor
    cache: Cache

    def fit_ratio(self, blocks: list[RowBlock], advance: Advance) -> ratios.DensityRatio:
        """Fit uLSIF: centres and ridge from a sample, coefficients from sums over all transitions."""
        settings, choices, target, executor = self.settings, self.choices, self.target, self.executor
        store, options = self.store.base, settings.ratio or ratios.ULSIF()
        kernel = options.kernel or choices.features.kernel
        rng = np.random.default_rng([settings.random_state, 5])
        sample = choices.sample.select(~choices.sample.terminal)
        if len(sample) == 0:
            raise ValueError(
                "continuation='ratio' weights logged successors, but every transition is terminal; use "
                "continuation='sampled'"
            )
        sample = sample.select(np.sort(rng.permutation(len(sample))[: max(TUNING_SAMPLE, options.n_centers)]))
        logged = np.hstack([sample.next_state, sample.next_action])
        # The sample is not a group of rows, so its draws need another seed.
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
            "target": self.target_facts,
            "precision": settings.dtype.name,
        }
        sizes = {"block": len(blocks), "center": len(centers), "center_again": len(centers)}

        def compute(paths: dict[str, Path], numbers: list[int]) -> None:
            shared = (store.source, kernel, executor.share(centers), target, settings.dtype)
            chosen = [blocks[i] for i in numbers]
            executor.map(streaming_pass.ratio_moments, chosen, paths["ratio-sums"], *shared, advance=advance)

        paths = self.cache.complete(
            {"ratio-sums": facts}, len(blocks), lambda _, path: create_sums(path, RATIO_SUMS, sizes), compute
        )
        sums = ArrayStore.open(paths["ratio-sums"], SUMS_KIND)
        total = ratios.RatioMoments(*(sums.read(spec.name).sum(axis=0) for spec in RATIO_SUMS))
        return ratios.DensityRatio(kernel, centers, ratios.solve(total, ridge), options.clip, ridge)

    def sum(self, continuation: Continuation, blocks: list[RowBlock], advance: Advance) -> list[StoredBlocks]:
        """Run the streaming pass for the sums that the cache lacks; return where all of them are."""
        settings, store, choices = self.settings, self.store, self.choices
        features, basis = choices.features, choices.basis.landmarks
        parts = {"inputs": schema.INPUT_SUMS, "rewards": schema.REWARD_SUMS}
        if choices.trend is not None:
            parts["rewards"] += TREND_SUMS
        parts["continuation"] = schema.CONTINUATION_SUMS
        sizes = {"rank": features.rank, "rank_again": features.rank, "wave": 2 * len(choices.frequencies)}
        sizes |= {"basis": len(basis), "scalar_name": len(schema.BLOCK_SCALARS)}
        sizes |= dict.fromkeys(("trend_term", "trend_term_again"), 1 + basis.shape[1])
        sizes["reward_dim"] = store.reward_dim
        places: dict[str, list[tuple[Path, int]]] = {kind: [] for kind in parts}
        lacking: dict[tuple[str, ...], dict[int, tuple[Destination, ...]]] = {}
        for first, n_blocks, n_stored, own, has_terminal in _segments(store, settings.n_blocks, blocks):
            specs: Specs = {
                kind: tuple(spec for spec in of_kind if spec.name != "terminal" or has_terminal)
                for kind, of_kind in parts.items()
            }

            def create(kind: str, path: Path, specs: Specs = specs, n_stored: int = n_stored) -> None:
                create_sums(path, specs[kind], {**sizes, "block": n_stored})

            def need(
                paths: dict[str, Path], numbers: list[int], specs: Specs = specs, first: int = first
            ) -> None:
                names = {kind: tuple(spec.name for spec in specs[kind]) for kind in paths}
                lacking.setdefault(tuple(paths), {}).update(
                    (first + i, tuple(Destination(path, i, names[kind]) for kind, path in paths.items()))
                    for i in numbers
                )

            stored = self.cache.complete(self.facts(own, continuation.ratio), n_blocks, create, need)
            for kind, path in stored.items():
                places[kind] += [(path, i) for i in range(n_blocks)]
        source = store.source, features.astype(settings.dtype)
        for kinds, sums in lacking.items():
            kappa = continuation if "continuation" in kinds else None
            task = StreamingPass(*source, sums, choices.frequencies, kappa, trend=choices.trend)
            sum_blocks(task, [blocks[i] for i in sums], self.executor, advance)
        return [StoredBlocks(of_kind) for of_kind in places.values()]

    def facts(self, data: Facts, ratio: ratios.DensityRatio | None) -> dict[str, Facts]:
        """What identifies each kind of sum over some data."""
        choices, features = self.choices, self.choices.features
        facts: dict[str, Facts] = {}
        facts["inputs"] = {
            **data,
            "features": [features.kernel, features.landmarks, features.whitening],
            "precision": self.settings.dtype.name,
        }
        facts["rewards"] = {**facts["inputs"], "frequencies": choices.frequencies}
        if choices.trend is not None:
            facts["rewards"] = {**facts["rewards"], "trend": [choices.trend, *(s.name for s in TREND_SUMS)]}
        own = {"basis": choices.basis.landmarks, **self.target_facts, "ratio": ratio}
        facts["continuation"] = {**facts["inputs"], **own}
        return facts

    @property
    def target_facts(self) -> Facts:
        """What identifies the actions of the target policy."""
        policy = policy_facts(self.target.policy, self.cache)
        return {"policy": policy, "draws": [self.target.n_draws, self.target.seed]}


class _Segment(NamedTuple):
    """Consecutive blocks with sums in one store of ``n_stored`` blocks, and what identifies their data."""

    first: int
    n_blocks: int
    n_stored: int
    facts: Facts
    has_terminal: bool


def _segments(store: TransitionStore, n_blocks: int, blocks: list[RowBlock]) -> Iterator[_Segment]:
    """Group the blocks by the data that their sums depend on.

    Sums over the rows that a store has grown from depend on these alone, so that they are found again when
    it has more. Each block after them depends on all rows up to its end.
    """
    base = store.base
    stored = episode_blocks(base, n_blocks)
    kept = sum(block in stored for block in blocks)
    data = {"data": base.fingerprint, "blocks": len(stored)}
    yield _Segment(0, kept, len(stored), data, base.n_terminal > 0)
    has_terminal = store.n_terminal > 0
    for number, start, stop in blocks[kept:]:
        data = {"data": store.fingerprint_of(stop), "rows": [start, stop], "terminal": has_terminal}
        yield _Segment(number, 1, 1, data, has_terminal)


def create_sums(path: Path, specs: Sequence[ArraySpec], sizes: dict[str, int]) -> None:
    """Create an empty store of sums over blocks."""
    ArrayStore.create(path, SUMS_KIND, specs, sizes, {"block": 1}, compressed=False).finish()


def sum_blocks(task: StreamingPass, blocks: list[RowBlock], executor: Executor, advance: Advance) -> None:
    """Run the streaming pass over some blocks, into the stores of the task."""
    groups = [pieces(block) for block in blocks]
    steps = streaming_pass.accumulate, groups, streaming_pass.combine_sums, write_block
    executor.reduce(*steps, executor.share(task), advance=advance)
