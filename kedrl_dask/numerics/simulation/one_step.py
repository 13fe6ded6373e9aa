"""Transitions of one kind: regressions of reward and change of state, and their noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.numerics.simulation.donors import Donors
from kedrl_dask.numerics.simulation.metric_search import Each, fit_smooth
from kedrl_dask.numerics.simulation.smooth_regression import (
    LINEAR_WEIGHT,
    Resampling,
    SmoothFunction,
    SmoothRegression,
)
from kedrl_dask.utils.arrays import Indices, Inputs, Mask, Matrix, Points

#: Responses that have a regression of their own, at most; and the least share of nonlinear variance for one.
MOST_OWN, LEAST_NONLINEAR = 8, 1e-3
#: Rounding errors of a mean, in standard deviations of the response, that single precision may leave.
ROUNDING = 1e-4


@dataclass(frozen=True)
class OneStep:
    """What follows an input: mean and noise of the reward and of the change of state.

    Attributes
    ----------
    means : tuple of SmoothFunction
        Of combinations of responses, one block of columns after the other.
    mixing : (k, d + p) array
        From those combinations to the reward and the change of state.
    donors : Donors
        The noise.
    """

    means: tuple[SmoothFunction, ...]
    mixing: Matrix
    donors: Donors

    @classmethod
    def fit(
        cls,
        inputs: Inputs,
        reward: Points,
        change: Points,
        terminal: Mask,
        fold: Indices,
        resampling: Resampling,
        seed: int,
        each: Each = map,
    ) -> list[OneStep]:
        """Fit to transitions, and to each replicate; the changes of terminal ones are not looked at."""
        d, goes_on = reward.shape[1], ~terminal
        residuals = np.zeros((len(inputs), d + change.shape[1]))
        rewards = _fit_responses(inputs, reward, fold, resampling, seed, each)
        residuals[:, :d] = rewards.residuals
        means, mixing = rewards.means, rewards.mixing
        if goes_on.any():
            rows = inputs[goes_on], change[goes_on], fold[goes_on], resampling.of(goes_on)
            hints = [function.directions for function in rewards.means[0]]
            changes = _fit_responses(*rows, seed, each, hints)
            residuals[goes_on, d:] = changes.residuals
            means = [(*left, *right) for left, right in zip(means, changes.means, strict=True)]
            mixing = block_diag(mixing, changes.mixing)
        else:
            mixing = np.hstack([mixing, np.zeros((len(mixing), change.shape[1]))])
        donors = Donors.gather(inputs, residuals, terminal, fold, resampling, d, seed, each)
        return [cls(own, mixing, noise) for own, noise in zip(means, donors, strict=True)]

    def mean(self, inputs: Inputs) -> Points:
        """Mean reward and change of state; (n, d + p)."""
        by_precision = {dtype: inputs.astype(dtype, copy=False) for dtype in set(self._precisions)}
        parts = [mean(by_precision[dtype]) for mean, dtype in zip(self.means, self._precisions, strict=True)]
        return np.hstack(parts) @ self.mixing

    @cached_property
    def _precisions(self) -> list[type[np.floating]]:
        """Single where it is accurate enough for a mean, in standard deviations, to which noise is added."""
        return [np.float32 if mean.is_accurate(np.float32, ROUNDING) else np.float64 for mean in self.means]

    def draw(self, inputs: Inputs, rng: np.random.Generator) -> tuple[Points, Mask]:
        """Reward and change of state after each input (n, d + p), and whether the episode ends."""
        noise, ends = self.donors.draw(inputs, rng)
        return self.mean(inputs) + noise, ends


class _Responses(NamedTuple):
    """Functions of combinations of responses, of the fit and of each replicate, and the residuals."""

    means: list[tuple[SmoothFunction, ...]]
    mixing: Matrix
    residuals: Points


def _fit_responses(
    inputs: Inputs,
    responses: Points,
    fold: Indices,
    resampling: Resampling,
    seed: int,
    each: Each,
    hints: Sequence[Matrix] = (),
) -> _Responses:
    """One regression for all responses, and for those that are nonlinear one each where it is better."""
    scale = standard_deviations(responses)
    turned = np.diag(1 / scale)
    shared = fit_smooth(inputs, responses @ turned, fold, seed, hints, each)
    rotation = _rotation(shared.regression, inputs)
    if rotation is not None:
        turned = turned @ rotation
        shared = fit_smooth(inputs, responses @ turned, fold, seed, hints, each)
    single, k = responses @ turned, responses.shape[1]
    nonlinear = np.diag(_nonlinear_covariance(shared.regression, inputs))
    candidates = [
        int(i) for i in np.argsort(-nonlinear)[:MOST_OWN] if nonlinear[i] > LEAST_NONLINEAR and k > 1
    ]
    fits = each(lambda i: fit_smooth(inputs, single[:, i : i + 1], fold, seed, hints), candidates)
    tried = zip(candidates, fits, strict=True)
    own = {i: found for i, found in tried if found.score < shared.regression.error[i]}
    rest = [i for i in range(k) if i not in own]
    parts = [([i], found.regression) for i, found in own.items()]
    if rest:
        parts.insert(0, (rest, shared.regression.of(rest)))
    residuals = shared.residuals.copy()
    for i, found in own.items():
        residuals[:, i] = found.residuals[:, 0]
    of_parts = ((part, part.resampled(inputs, single[:, columns], resampling)) for columns, part in parts)
    by_part = [[SmoothFunction.from_regression(x) for x in (part, *others)] for part, others in of_parts]
    back = np.linalg.inv(turned)
    return _Responses(list(zip(*by_part, strict=True)), back[[*rest, *own]], residuals @ back)


def _nonlinear_covariance(regression: SmoothRegression, inputs: Inputs) -> Matrix:
    """Covariance of the nonlinear part of the means, linear terms taken out; (k, k)."""
    rank = regression.features.rank
    design = regression.design(inputs[:2_000])
    part, linear = design[:, :rank] @ regression.coefficients[:rank], design[:, rank:] / LINEAR_WEIGHT
    left = part - linear @ np.linalg.lstsq(linear, part, rcond=None)[0]
    return np.atleast_2d(np.cov(left, rowvar=False))


def _rotation(regression: SmoothRegression, inputs: Inputs) -> Matrix | None:
    """Combinations of responses that concentrate what is nonlinear in few of them, if they do."""
    covariance = _nonlinear_covariance(regression, inputs)
    values, vectors = np.linalg.eigh(covariance)
    before, after = ((v > LEAST_NONLINEAR).sum() for v in (np.diag(covariance), values))
    return vectors if before > MOST_OWN and 2 * after < before else None
