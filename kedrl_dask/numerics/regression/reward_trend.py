"""A linear trend of the reward, taken out before its law given x is estimated.

With any fixed function m and the residual e = r − m(x), E[exp(iWr)|x] = exp(iWm(x)) ⊙ E[exp(iWe)|x]. If m is
near the mean of the reward, the second factor varies less with x and can be smoothed more. The estimate is
consistent whatever the law of the reward, because the law of the residual may still depend on x; but if it
does, a trend may cost accuracy even where it predicts better. So an automatic one is taken only where
cross-validation makes the law of the residual nearly the same for all inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import as_complex, waves
from kedrl_dask.numerics.regression.cross_validation import (
    RIDGES,
    TUNING_FOLDS,
    best_ridge,
    gain,
    held_out_errors,
)
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.utils.arrays import Frequencies, Indices, Inputs, Matrices, Matrix, Points, Vector, Waves

#: Ridges tried for the residual of the reward: with the largest its law hardly depends on x.
REWARD_RIDGES = tuple(float(v) for v in 10.0 ** np.arange(-8, 2.1, 0.5))
#: Ridge of the residual from which its law hardly depends on the input, and the share of what a trend saves
#: that such a ridge may cost. Where it costs more, a trend that predicts better may still cost accuracy.
LEAST_RIDGE, TOLERATED = 0.03, 0.1
#: Frequencies whose waves are predicted to compare regressions with and without a trend, at most.
TRIAL_FREQUENCIES = 64
#: Share of the largest eigenvalue of Σx̃x̃ᵀ, in standard deviations, below which it is one of rounding.
COLLINEAR = 1e-12


class TrendMoments(NamedTuple):
    """Σx̃x̃ᵀ and Σx̃(r − m(x))ᵀ over transitions, with x̃ = (1, x − center)."""

    gram: Matrix
    cross: Matrix


@dataclass(frozen=True)
class LinearTrend:
    """m(x) = mean + (x − center)ᵀ·weights, with the mean reward (d,) and the mean input (p + q,)."""

    center: Vector
    weights: Matrix
    mean: Vector

    @classmethod
    def fit(cls, inputs: Inputs, reward: Points) -> LinearTrend:
        """Least squares; of several solutions the one with the smallest weights, in standard deviations."""
        center, mean = inputs.mean(axis=0), reward.mean(axis=0)
        spread = standard_deviations(inputs)
        scaled = np.linalg.lstsq((inputs - center) / spread, reward - mean, rcond=None)[0]
        return cls(center, scaled / spread[:, None], mean)

    def moments(self, inputs: Inputs, residual: Points) -> TrendMoments:
        """Sums over transitions with residuals r − m(x), from which :meth:`refit` finds their trend."""
        design = np.column_stack([np.ones(len(inputs)), inputs - self.center])
        return TrendMoments(design.T @ design, design.T @ residual)

    def refit(self, moments: TrendMoments) -> LinearTrend:
        """The least-squares trend of the transitions behind the moments; of several, the nearest to this."""
        diagonal = moments.gram.diagonal()
        spread = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        scaled = moments.gram / np.outer(spread, spread), moments.cross / spread[:, None]
        change = np.linalg.lstsq(*scaled, rcond=COLLINEAR)[0] / spread[:, None]
        return LinearTrend(self.center, self.weights + change[1:], self.mean + change[0])

    def __call__(self, inputs: Inputs) -> Points:
        """m at each row of ``inputs``; (n, d)."""
        return self.mean + (inputs - self.center) @ self.weights

    def to_arrays(self) -> dict[str, Matrix]:
        """Its arrays by their names in a stored model (``schema.TREND``)."""
        return {f"trend_{name}": value for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Matrix]) -> LinearTrend:
        """Inverse of :meth:`to_arrays`."""
        return cls(**{field.name: arrays[f"trend_{field.name}"] for field in fields(cls)})

    def explained(self, inputs: Inputs, reward: Points) -> Vector:
        """Share of each reward coordinate's variance that the trend explains; zero for a constant; (d,)."""
        left, total = (reward - self(inputs)).var(axis=0), reward.var(axis=0)
        varies = np.ptp(reward, axis=0) > 0
        return np.where(varies, 1 - left / np.where(varies, total, 1.0), 0.0)


@dataclass(frozen=True)
class TrendWaves:
    """The rotation that turns waves of the residual into waves of the reward.

    The regression leaves out the mean of exp(iWe), (2Q,).
    """

    trend: LinearTrend
    frequencies: Frequencies
    mean: Vector

    def turn(self, inputs: Inputs, residual_waves: Waves) -> Waves:
        """exp(iWm(x)) ⊙ the waves at each input; (n, 2Q)."""
        turned = waves(self.trend(inputs), self.frequencies)
        turning = as_complex(turned)
        turning *= as_complex(residual_waves)
        return turned


@dataclass(frozen=True)
class TrendTrial:
    """The reward's law predicted for episodes left out, without a trend and around one.

    Errors are mean squares of the waves exp(iWr), over their number, each with its best ridge. The gain says
    how much smaller the error is with a trend; its noise, which it must exceed, is the standard error of this
    difference over the folds. ``lost`` is what a ridge with which the law of the residual hardly depends on
    the input would cost: a small share of the gain, if the trend is accepted; zero for given ridges.
    """

    error_none: float
    error_linear: float
    gain: float
    noise: float
    lost: float
    accepted: bool


def try_trend(
    features: NystromFeatures, inputs: Inputs, reward: Points, episode: Indices, frequencies: Frequencies,
    ridges: Sequence[float] | None = None,
) -> TrendTrial:  # fmt: skip
    """Cross-validate the regression of the reward's waves over whole episodes, with and without a trend.

    Turning by exp(iWm(x)) keeps distances, so that both errors are of the same waves. Each fold is predicted
    with the trend of the others. By default the ridges are those of a fit.
    """
    numbers = np.unique(episode, return_inverse=True)[1]
    if numbers[-1] == 0:
        raise ValueError(
            "reward_trend='auto' needs at least two episodes to leave one out; give 'none' or 'linear'"
        )
    fold = numbers % min(TUNING_FOLDS, int(numbers[-1]) + 1)
    chosen = frequencies[:: -(-len(frequencies) // TRIAL_FREQUENCIES)]
    trends = [LinearTrend.fit(inputs[fold != f], reward[fold != f]) for f in range(fold.max() + 1)]
    sums = _FoldSums.gather(features, inputs, reward, fold, trends, chosen)
    none = [sums.errors(f, -1, False, ridges or RIDGES) for f in range(len(trends))]
    linear = [sums.errors(f, f, True, ridges or REWARD_RIDGES) for f in range(len(trends))]
    n_waves = len(inputs) * len(chosen)
    before, after = (best_ridge(np.array(by_fold)) / n_waves for by_fold in (none, linear))
    saved, noise = gain(before, after)
    lost = 0.0
    if ridges is None:
        errors = np.array(linear).sum(axis=0) / n_waves
        lost = float(errors[np.array(REWARD_RIDGES) >= LEAST_RIDGE].min() - errors.min())
    accepted = saved > noise and lost <= TOLERATED * saved
    return TrendTrial(float(before.sum()), float(after.sum()), saved, noise, lost, accepted)


class _FoldSums(NamedTuple):
    """Sums over each fold, the first axis, for waves around each trend and, last, without one."""

    gram: Matrices
    mass: Matrix
    size: Indices
    response: Matrices
    total: Matrices

    @classmethod
    def gather(
        cls, features: NystromFeatures, inputs: Inputs, reward: Points, fold: Indices,
        trends: Sequence[LinearTrend], frequencies: Frequencies,
    ) -> _FoldSums:  # fmt: skip
        parts = []
        for f in range(len(trends)):  # one fold of features is in memory at a time
            x, r = inputs[fold == f], reward[fold == f]
            psi = features(x)
            targets = [*(waves(r - trend(x), frequencies) for trend in trends), waves(r, frequencies)]
            response = np.stack([psi.T @ y for y in targets])
            total = np.stack([y.sum(axis=0) for y in targets])
            parts.append((psi.T @ psi, psi.sum(axis=0), len(x), response, total))
        return cls(*(np.stack(part) for part in zip(*parts, strict=True)))

    def errors(self, held: int, trend: int, is_centred: bool, ridges: Sequence[float]) -> Vector:
        """Squared errors on one fold of regressions on the others, with each ridge."""
        others = np.arange(len(self.size)) != held
        total, size = self.total[:, trend], self.size
        mean = is_centred * total[others].sum(axis=0) / size[others].sum()
        response = self.response[:, trend] - self.mass[:, :, None] * mean
        # |exp(iWr)|² = 1 at each frequency.
        square = size[held] * (len(mean) / 2 + mean @ mean) - 2 * total[held] @ mean
        train = self.gram[others].sum(axis=0), response[others].sum(axis=0), size[others].sum()
        return held_out_errors(*train, self.gram[held], response[held], square, ridges)
