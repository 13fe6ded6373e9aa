"""The regression behind the conditional weights Γ, from sums over blocks of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.passes.streaming_pass import SUMS_KIND, combine_scalars
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.schema import BLOCK_SCALARS
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.numerics.design.sizes import N_FOLDS
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.regression.cross_validation import RIDGES, BlockSums, cross_validate_ridge
from kedrl_dask.numerics.regression.density_ratio import DensityRatio
from kedrl_dask.numerics.regression.exact_operators import RewardShifts
from kedrl_dask.numerics.regression.operators import ConditionalOperators, ExactOperators
from kedrl_dask.numerics.regression.reward_trend import REWARD_RIDGES, TrendMoments, TrendWaves
from kedrl_dask.utils.arrays import Atoms, Matrices, Matrix, Real, Vector

#: Ridges tried and their cross-validated errors, by the name of what was chosen.
Tried = dict[str, dict[str, list[float]]]


class Ridges(NamedTuple):
    """λ_Γ, and the ridge of the reward's waves: another one only where they have a trend."""

    gamma: float
    reward: float


@dataclass(frozen=True)
class StoredBlocks:
    """Sums of one kind over all blocks of episodes, and the store and index of each block."""

    places: Sequence[tuple[Path, int]]

    @cached_property
    def _stores(self) -> dict[Path, ArrayStore]:
        return {path: ArrayStore.open(path, SUMS_KIND) for path, _ in self.places}

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.places)

    @property
    def names(self) -> list[str]:
        """Names of the sums."""
        return list(dict.fromkeys(name for store in self._stores.values() for name in store.names))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one block of a sum."""
        return next(store for store in self._stores.values() if name in store.names).shape(name)[1:]

    def read(self, name: str, number: int) -> Real:
        """One block of a sum; zero if its store lacks the sum, as without terminal rows."""
        path, place = self.places[number]
        store = self._stores[path]
        return store.read(name, place, place + 1)[0] if name in store.names else np.zeros(self.shape(name))


@dataclass(frozen=True)
class RegressionSums:
    """The block sums of the streaming pass, added up over folds of episodes (the first axis).

    Sums are over products with ψ; those made with φ are completed here, in double precision. With a trend of
    the reward, ``reward``, ``reward_sum`` and ``terminal`` are sums of its residual, and the moments allow
    the trend to be fitted again.
    """

    gram: Matrices
    mass: Matrix
    count: Vector
    reward: Matrices
    reward_sum: Matrix
    continuation: Matrices
    continuation_sum: Matrix
    scalar: Matrix
    terminal: Matrices | None = None
    trend_gram: Matrices | None = None
    trend_cross: Matrices | None = None

    def scalars(self, name: str) -> Vector:
        """One of BLOCK_SCALARS, by fold."""
        return self.scalar[:, BLOCK_SCALARS.index(name)]

    @property
    def n_transitions(self) -> float:
        """Number N of transitions."""
        return float(self.count.sum())

    @property
    def reward_mean(self) -> Vector:
        """Mean of exp(iWr) over all transitions; (2Q,)."""
        return self.reward_sum.sum(axis=0) / self.n_transitions

    @property
    def trend_moments(self) -> TrendMoments:
        """Moments of all transitions, from which a trend of the reward is fitted again."""
        if self.trend_gram is None or self.trend_cross is None:
            raise ValueError("these sums were made without a trend of the reward")
        return TrendMoments(self.trend_gram.sum(axis=0), self.trend_cross.sum(axis=0))

    @property
    def centred_reward(self) -> Matrices:
        """Sums with ψ of exp(iWr) less its mean."""
        return self.reward - self.mass[:, :, None] * self.reward_mean


def read_folds(
    blocks: Sequence[StoredBlocks], features: NystromFeatures, n_folds: int = N_FOLDS
) -> dict[str, Real]:
    """Deal the stored blocks out to at most ``n_folds`` folds in turn, one block in memory at a time.

    Sums made with φ are completed to sums with ψ.
    """
    folds = {name: _fold(of_kind, name, n_folds) for of_kind in blocks for name in of_kind.names}
    for name in {"reward", "terminal", "continuation", "response"} & set(folds):
        folds[name] = features.complete_sums(folds[name])
    return folds


def _fold(blocks: StoredBlocks, name: str, most: int) -> Real:
    n_folds = min(most, len(blocks))
    folds = [blocks.read(name, i) for i in range(n_folds)]
    for i in range(n_folds, len(blocks)):
        block, fold = blocks.read(name, i), i % n_folds
        folds[fold] = combine_scalars(folds[fold], block) if name == "scalar" else folds[fold] + block
    return np.stack(folds)


def _total(folds: Real) -> Matrix:
    """Sum over folds, without a copy of a single one, which may be large."""
    return folds[0] if len(folds) == 1 else folds.sum(axis=0)


def recalibrate(ratio: DensityRatio, sums: RegressionSums) -> tuple[DensityRatio, RegressionSums]:
    """Scale clipped ratios to mean one: all sums with κ are linear in it, so no pass is needed."""
    mean = sums.scalars("ratio").sum() / sums.scalars("successors").sum()
    return replace(ratio, scale=1 / mean), replace(
        sums,
        continuation=sums.continuation / mean,
        continuation_sum=sums.continuation_sum / mean,
        scalar=sums.scalar / np.array([1, mean**2, mean, mean**2, mean, mean]),
    )


def choose_ridges(given: float | str, sums: RegressionSums, has_trend: bool) -> tuple[Ridges, Tried]:
    """Ridges as given, or by cross-validation over folds of episodes from the stored sums alone.

    All responses share one ridge. With a trend of the reward, its residual has another, and the continuation
    chooses that of the others: being zero after a terminal transition, it reflects those as well.
    """
    if not isinstance(given, str):
        return Ridges(float(given), float(given)), {}
    if len(sums.count) < 2:
        raise ValueError(
            "ridge_gamma='auto' needs at least two episodes to leave one out; give ridge_gamma a number"
        )
    continuation = sums.continuation, sums.continuation_sum, sums.scalars("continuation_square")
    # |exp(iWr)|² = 1 at each frequency.
    reward = sums.reward, sums.reward_sum, sums.count * (sums.reward.shape[2] // 2)
    if not has_trend:
        errors = cross_validate_ridge(_scaled(sums, reward, continuation))
        ridge = RIDGES[int(np.argmin(errors))]
        return Ridges(ridge, ridge), {"ridge_gamma": _tried(RIDGES, errors)}
    errors = cross_validate_ridge(_scaled(sums, continuation))
    of_reward = cross_validate_ridge(_centred(sums, *reward), REWARD_RIDGES)
    # Of equal errors the largest ridge: a residual that does not vary does not depend on x.
    largest = len(of_reward) - 1 - int(np.argmin(of_reward[::-1]))
    return Ridges(RIDGES[int(np.argmin(errors))], REWARD_RIDGES[largest]), {
        "ridge_gamma": _tried(RIDGES, errors),
        "ridge_reward": _tried(REWARD_RIDGES, of_reward),
    }


def _tried(ridges: Sequence[float], errors: Vector) -> dict[str, list[float]]:
    return {"ridges": list(ridges), "errors": errors.tolist()}


def _scaled(sums: RegressionSums, *groups: tuple[Matrices, Matrix, Vector]) -> BlockSums:
    """Responses side by side, each group with unit total variance, from Σψyᵀ, Σy and Σ‖y‖²."""
    responses, squares = [], np.zeros(len(sums.count))
    for response, total, square in groups:
        scale = _scale(total, square, sums.n_transitions)
        responses.append(np.sqrt(scale) * response)
        squares += scale * square
    return BlockSums(sums.gram, np.concatenate(responses, axis=2), squares, sums.count)


def _centred(sums: RegressionSums, response: Matrices, total: Matrix, square: Vector) -> BlockSums:
    """A group of responses less their mean, with unit total variance."""
    scale, mean = _scale(total, square, sums.n_transitions), total.sum(axis=0) / sums.n_transitions
    squares = square - 2 * total @ mean + sums.count * (mean @ mean)
    centred = response - sums.mass[:, :, None] * mean
    return BlockSums(sums.gram, np.sqrt(scale) * centred, scale * squares, sums.count)


def _scale(total: Matrix, square: Vector, n_transitions: float) -> float:
    """One over the total variance of a response.

    Zero for a constant response, whose rounding errors must not be magnified.
    """
    mean = total.sum(axis=0) / n_transitions
    variance = float(square.sum() / n_transitions - mean @ mean)
    return 1 / variance if variance > 1e-12 * square.sum() / n_transitions else 0.0


def regress(choices: Choices, sums: RegressionSums, ridges: Ridges) -> ConditionalOperators:
    """The conditional operators of all transitions."""
    gram, n = _total(sums.gram), sums.n_transitions
    parts = {"continuation": sums.continuation, "reward": sums.reward, "mass": sums.mass[:, :, None]}
    if sums.terminal is not None:
        parts["terminal"] = sums.terminal
    if choices.trend is None:
        solved, trend = _solve(gram, parts, n, ridges.gamma), None
    else:
        del parts["reward"]
        solved = _solve(gram, parts, n, ridges.gamma)
        solved |= _solve(gram, {"reward": sums.centred_reward}, n, ridges.reward)
        trend = TrendWaves(choices.trend, choices.frequencies, sums.reward_mean)
    found = solved["continuation"], solved["reward"], solved.get("terminal"), solved["mass"][:, 0]
    return ConditionalOperators(choices.features, choices.basis.landmarks, *found, trend)


def exact_operators(
    operators: ConditionalOperators,
    store: TransitionStore,
    grid: Atoms,
    kernel: Matern,
    discount: float,
    ridge: float,
) -> ExactOperators:
    """The operators with H and G from the return kernel itself; all transitions are read into memory."""
    transitions = store.transitions()
    shifts = RewardShifts(kernel, grid, discount, transitions.reward, transitions.terminal)
    return ExactOperators.build(operators, transitions.inputs, shifts, ridge)


def _solve(gram: Matrix, parts: dict[str, Matrices], n_transitions: float, ridge: float) -> dict[str, Matrix]:
    """Regression coefficients of several responses with one ridge."""
    totals = [_total(part) for part in parts.values()]
    solved = solve_ridge(gram, np.hstack(totals), n_transitions, ridge)
    pieces = np.split(solved, np.cumsum([total.shape[1] for total in totals])[:-1], axis=1)
    return {name: np.ascontiguousarray(piece) for name, piece in zip(parts, pieces, strict=True)}
