"""The choice of a construction: a test of separation before the streaming pass.

The test compares the two targets of the Bellman equation, for which it needs an embedding of what follows a
transition. Before a fit there is none, so a small separated problem is solved first: the design's features,
basis and atoms, with a few frequencies and conditioning points, on a sample of the transitions. This stand-in
obeys the same equation as the fit. It therefore needs no returns, simulated or observed, and its own Bellman
residual is what the difference of the targets is compared with, by the rule that is applied after a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from kedrl_dask.engine.data.sampling import KIND
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.passes.continuation import Continuation, TargetActions
from kedrl_dask.engine.passes.separated_objective import Objective, ValueAndGradient
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache, Facts
from kedrl_dask.engine.storage.schema import BLOCK_SCALARS
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.estimator.fit.pilot import policy_facts
from kedrl_dask.estimator.fit.problem import choose_mass_penalty, choose_ridge_b
from kedrl_dask.estimator.fit.regression import RegressionSums, choose_ridges, regress
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fit.streaming import choose_n_draws
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.numerics.criterion.preconditioner import Coordinates, return_gram
from kedrl_dask.numerics.criterion.separated import Chunk, Penalties, ReturnSpace, bellman_residual
from kedrl_dask.numerics.criterion.separation_test import (
    FEWEST_BLOCKS,
    LEVEL,
    SHARE,
    SeparatedParts,
    separation,
)
from kedrl_dask.numerics.design.sizes import N_FOLDS, SEPARATION_BLOCKS, SEPARATION_SAMPLE
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.utils.arrays import Coefficients, Features, Frequencies, Indices, Mask, Record, Waves

#: Version of the rules below, so that cached decisions of earlier rules are not reused.
RULES = 1
#: Frequencies, conditioning points and held-out inputs of the small problem.
N_FREQUENCIES, N_CONDITIONING, N_HELD_OUT = 64, 1_000, 500
#: Its solver: the figures of the test need two digits.
SOLVER = PCG(tolerance=1e-3, max_iterations=60)

#: Most frequencies of a paired construction that the test chose.
PAIRED_FEATURES = 128

#: The rule that is applied to the figures.
RULE = {"level": LEVEL, "share": SHARE}
#: Kinds of cached decisions: those of the test before a fit, and those that the test after it corrected.
TESTED, REVISED = "construction", "construction-revised"

Construction = Literal["separated", "paired"]


@dataclass(frozen=True)
class Decision:
    """The construction of a fit, and why.

    Attributes
    ----------
    chosen : {"separated", "paired"}
    how : str
        "given", "required" by other settings, "tested" before the streaming pass, or "tested after the fit".
    evidence : dict
        The figures of the test, and of the rule that was applied to them.
    """

    chosen: Construction
    how: str
    evidence: Record

    def settle(self, settings: Settings, choices: Choices) -> tuple[Settings, Choices]:
        """Settings and choices of this construction; the paired one has no trend of the reward.

        Its cost is in proportion to the frequencies: one that was not asked for has no more than
        ``PAIRED_FEATURES``.
        """
        if self.chosen == "separated":
            return replace(settings, construction="separated"), choices
        settings, choices = replace(settings, reward_trend="none"), replace(choices, trend=None)
        if settings.construction == "auto" and len(choices.frequencies) > PAIRED_FEATURES:
            dim, drawn = choices.grid.shape[1], (settings.spectral, settings.random_state)
            fewer = frequencies(choices.return_kernel, dim, PAIRED_FEATURES, *drawn)
            settings, choices = (
                replace(settings, n_features=PAIRED_FEATURES),
                replace(choices, frequencies=fewer),
            )
        return replace(settings, construction="paired"), choices

    def to_dict(self) -> Record:
        """Plain values, for diagnostics."""
        return {"chosen": self.chosen, "how": self.how, **self.evidence}

    @classmethod
    def from_dict(cls, record: Record) -> Decision:
        """Inverse of :meth:`to_dict`."""
        rest = {name: value for name, value in record.items() if name not in ("chosen", "how")}
        return cls(record["chosen"], record["how"], rest)


def choose_construction(
    settings: Settings, store: TransitionStore, policy: Policy, choices: Choices, cache: Cache
) -> Decision:
    """The construction as given, as other settings require, or as the test recommends.

    A decision depends on the rows from which the design was made, so that fits on a grown store keep it.
    """
    if settings.construction != "auto":
        return Decision(settings.construction, "given", {})
    if not settings.is_undecided:
        return Decision("separated", "required", {})
    facts = _facts(settings, store, policy, choices, cache)
    kind = REVISED if cache.has(REVISED, facts) else TESTED
    return _filed(cache, kind, facts, lambda: _decide(settings, policy, choices))


def after_the_fit(found: Record) -> Decision:
    """The decision for the paired construction that the test of separation recommends after a fit."""
    figures = ("difference", "noise", "p_value", "residual")
    return Decision("paired", "tested after the fit", {name: found[name] for name in figures} | RULE)


def revise(
    decision: Decision,
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    choices: Choices,
    cache: Cache,
) -> Decision:
    """File a decision made after a fit, so that the same fit, or its resumed run, begins with it."""
    facts = _facts(settings, store, policy, choices, cache)
    return _filed(cache, REVISED, facts, lambda: decision)


def _facts(
    settings: Settings, store: TransitionStore, policy: Policy, choices: Choices, cache: Cache
) -> Facts:
    features, basis = choices.features, choices.basis
    return {
        "rules": RULES,
        "data": store.base.fingerprint,
        "policy": policy_facts(policy, cache),
        "settings": {name: value for name, value in settings.get_params().items() if name != "solver"},
        "features": [features.kernel, features.landmarks, features.whitening],
        "basis": [basis.landmarks, basis.whitening],
        "returns": [choices.grid, choices.return_kernel],
    }


def _filed(cache: Cache, kind: str, facts: Facts, decide: Callable[[], Decision]) -> Decision:
    def make(path: Path) -> None:
        write_arrays(path, KIND, (), {}, {"decision": decide().to_dict()}).finish()

    return Decision.from_dict(ArrayStore.open(cache.get(kind, facts, make), KIND).attributes["decision"])


class Rows(NamedTuple):
    """A block of whole episodes of the sample: ψ, exp(iWr), κ, and which transitions are terminal."""

    features: Features
    reward: Waves
    continuation: Features
    terminal: Mask


def sampled_blocks(
    choices: Choices, chosen: Frequencies, continuation: Continuation, random_state: int
) -> Iterator[Rows]:
    """The transitions of the test, by blocks of whole episodes."""
    rng = np.random.default_rng([random_state, 9])
    sample = choices.sample.select(np.sort(rng.permutation(len(choices.sample))[:SEPARATION_SAMPLE]))
    # The sample is no group of rows: its draws have a seed of their own.
    target = continuation.target
    continuation = replace(continuation, target=replace(target, seed=target.seed + 2))
    episodes = np.unique(sample.episode, return_inverse=True)[1]
    n_blocks = min(SEPARATION_BLOCKS, int(episodes.max()) + 1)
    for number in range(n_blocks):
        part = sample.select(np.flatnonzero(episodes * n_blocks // (episodes.max() + 1) == number))
        kappa, _ = continuation(number, part, slice(None), np.float64)
        yield Rows(choices.features(part.inputs), waves(part.reward, chosen), kappa.copy(), part.terminal)


def _decide(settings: Settings, policy: Policy, choices: Choices) -> Decision:
    """Solve the small problem on the sample, and test separation with its solution.

    The continuation averages over actions of the policy even if the fit uses a density ratio, which is not
    known yet and targets the same expectation.
    """
    if len(np.unique(choices.sample.episode)) < FEWEST_BLOCKS:
        return Decision("separated", "too few episodes for a test", {})
    seed, kernel = settings.random_state, choices.return_kernel
    n_frequencies = min(N_FREQUENCIES, len(choices.frequencies))
    chosen = frequencies(kernel, choices.grid.shape[1], n_frequencies, settings.spectral, seed)
    choices = replace(choices, frequencies=chosen, trend=None)
    target = TargetActions(policy, choose_n_draws(settings, policy, choices), seed)
    kappa = Continuation(choices.features.kernel, choices.basis.landmarks, target, None)
    blocks = list(sampled_blocks(choices, chosen, kappa, seed))
    sums = _sums(blocks)
    ridges, _ = choose_ridges(settings.ridge_gamma, sums, has_trend=False)
    operators = regress(choices, sums, ridges)
    space = ReturnSpace.build(choices.grid, chosen, settings.discount, kernel)
    rng = np.random.default_rng([seed, 41])
    inputs = choices.sample.inputs
    rows = np.sort(rng.permutation(len(inputs))[:N_CONDITIONING])
    points, _ = operators(inputs[rows], np.full(len(rows), 1 / len(rows)))
    whitening = choices.basis.whitening
    points = replace(points, basis=choices.basis(inputs[rows]), continuation=points.continuation @ whitening)
    penalties = Penalties(choose_mass_penalty(settings.mass_penalty, kernel))
    ridge_b = choose_ridge_b(settings.ridge_b, choices.features.kernel, kernel, sums.n_transitions)
    problem = SmallProblem(points, space, penalties, ridge_b)
    coefficients = whitening @ SOLVER.solve(problem).coefficients
    rows = np.sort(rng.permutation(len(inputs))[:N_HELD_OUT])
    state = choices.sample.next_state[rows]
    held_out = np.hstack([state, policy.sample(state, rng)])
    residual = float(np.sqrt(bellman_residual(operators(held_out)[0], space, coefficients).mean()))
    ahead = coefficients @ space.shifted_waves
    parts = (SeparatedParts(block.features, block.reward, block.continuation @ ahead) for block in blocks)
    found = separation(parts, choices.features(held_out), ridges.gamma, space.scale, seed)
    return Decision(found.recommends(residual), "tested", {**asdict(found), "residual": residual, **RULE})


def _sums(blocks: Sequence[Rows]) -> RegressionSums:
    """The sums of the streaming pass over the sample, by folds of episodes."""
    n_folds = min(N_FOLDS, len(blocks))
    folds: list[Record] = [{} for _ in range(n_folds)]
    for number, (psi, reward, kappa, terminal) in enumerate(blocks):
        scalar = np.zeros(len(BLOCK_SCALARS))
        scalar[BLOCK_SCALARS.index("continuation_square")] = np.vdot(kappa, kappa)
        summed = {
            "gram": psi.T @ psi,
            "mass": psi.sum(axis=0),
            "count": len(psi),
            "reward": psi.T @ reward,
            "reward_sum": reward.sum(axis=0),
            "continuation": psi.T @ kappa,
            "continuation_sum": kappa.sum(axis=0),
            "scalar": scalar,
            "terminal": psi[terminal].T @ reward[terminal],
        }
        fold = folds[number % n_folds]
        fold |= {name: fold.get(name, 0.0) + value for name, value in summed.items()}
    return RegressionSums(**{name: np.stack([fold[name] for fold in folds]) for name in folds[0]})


class SmallProblem(Objective):
    """The separated criterion at points that this process holds, with products in single precision."""

    products_are_exact = False
    whitening = None

    def __init__(self, points: Chunk, space: ReturnSpace, penalties: Penalties, ridge: float) -> None:
        super().__init__(penalties, ridge)
        self.n_points = len(points)
        moment, target_moment = separated.moments(points)
        right = return_gram(space, target_moment, penalties.mass)
        self.coordinates = Coordinates.build(moment, right, ridge)
        self._exact = points, space
        self._fast = points.astype(np.float32), space.astype(np.float32)

    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Value and gradient, in double precision."""
        value, gradient = separated.value_and_gradient(*self._exact, self._penalties, coefficients)
        return self._with_ridge(value, gradient, coefficients)

    def product(self, direction: Coefficients) -> Coefficients:
        """Product of the Hessian with a direction."""
        size = float(np.abs(direction).max()) or 1.0
        scaled = (direction / size).astype(np.float32)
        image = separated.product(*self._fast, self._penalties, scaled)
        return size * image + 2 * self._ridge * direction

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Not for mini-batches: the gradient of all points."""
        return self.value_and_gradient(coefficients)[1]
