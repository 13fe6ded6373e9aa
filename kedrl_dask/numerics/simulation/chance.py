"""The chance of an event given an input: logistic regression on the features of a smooth regression."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from kedrl_dask.numerics.simulation.metric_search import Each, fit_smooth
from kedrl_dask.numerics.simulation.smooth_regression import (
    Resampling,
    SmoothFunction,
    SmoothRegression,
)
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Mask, Matrix, Vector

#: Ridges tried, largest first, as shares of the number of inputs; inputs with which they are tried, half of
#: them with the event if there are as many.
RIDGES, TRIAL_INPUTS = 10.0 ** np.arange(0.0, -8.1, -1.0), 5_000
#: Most Newton steps for one ridge, the gain of mean logarithmic likelihood below which they end, and the
#: largest logit. A step is halved so many times at most, until it gains this share of what it promises.
MOST_STEPS, LEAST_GAIN, LARGEST, MOST_HALVINGS, LEAST_SHARE = 50, 1e-6, 30.0, 12, 1e-4
#: Ridges that may be worse than the best before no smaller ones are tried.
PATIENCE = 2
#: Least weight of an input, so that no system is singular.
LEAST_WEIGHT = 1e-6


def fit_chance(
    inputs: Inputs, happened: Mask, fold: Indices, resampling: Resampling, seed: int, each: Each = map
) -> list[SmoothFunction]:
    """The logit of the chance that the event happens at an input, and that of each replicate.

    Metric and features are those of the regression of the flag itself, and the ridge is chosen by
    cross-validated likelihood. A replicate is one Newton step away.
    """
    flags = happened.astype(np.float64)
    found = fit_smooth(inputs, flags[:, None], fold, seed, each=each).regression
    design = found.design(inputs)
    rows, weights = _trial(happened, seed)
    trial = _Weighted(design[rows], flags[rows], weights)
    ridges = RIDGES[: trial.best_ridge(fold[rows]) + 1]
    whole = _Weighted(design, flags, np.ones(len(flags)))
    fitted = whole.fit(ridges[-1], trial.path(ridges))
    replicates = _resampled(design, flags, fitted, ridges[-1] * len(flags), resampling)
    return [SmoothFunction.from_regression(_with(found, own)) for own in (fitted, *replicates)]


def _trial(happened: Mask, seed: int) -> tuple[Indices, Vector]:
    """Inputs of both kinds, and how many of the same kind each stands for: a rare event is not left out."""
    rng = np.random.default_rng([seed, 37])
    kinds = [rng.permutation(np.flatnonzero(happened == kind)) for kind in (True, False)]
    rows, weights = [], []
    for kind, other in zip(kinds, kinds[::-1], strict=True):
        kept = kind[: max(TRIAL_INPUTS // 2, TRIAL_INPUTS - len(other))]
        rows.append(kept)
        weights.append(np.full(len(kept), len(kind) / len(kept)))
    order = np.argsort(np.concatenate(rows))
    return np.concatenate(rows)[order], np.concatenate(weights)[order]


def _resampled(
    design: Features, flags: Vector, coefficients: Vector, penalty: float, resampling: Resampling
) -> list[Vector]:
    """Coefficients of the replicates."""
    if not len(resampling.counts):
        return []
    sums = [_newton(design[rows], flags[rows], coefficients) for rows in resampling.rows()]
    systems, slopes = (np.stack(part) for part in zip(*sums, strict=True))
    found = []
    for count in resampling.counts.astype(np.float64):
        system = np.tensordot(count, systems, 1) + penalty * np.eye(len(coefficients))
        slope = np.tensordot(count, slopes, 1) - penalty * coefficients
        found.append(coefficients + cho_solve(cho_factor(system), slope))
    return found


def _newton(
    design: Features, flags: Vector, coefficients: Vector, weights: Vector | float = 1.0
) -> tuple[Matrix, Vector]:
    """Negative Hessian and gradient of the logarithmic likelihood."""
    chance = expit(np.clip(design @ coefficients, -LARGEST, LARGEST))
    curvature = weights * np.maximum(chance * (1 - chance), LEAST_WEIGHT)
    return (design.T * curvature) @ design, design.T @ (weights * (flags - chance))


def _with(regression: SmoothRegression, coefficients: Vector) -> SmoothRegression:
    return replace(regression, coefficients=coefficients[:, None])


class _Weighted(NamedTuple):
    """Inputs that each stand for a number of them."""

    design: Features
    flags: Vector
    weights: Vector

    def best_ridge(self, fold: Indices) -> int:
        """Index of the ridge with the least held-out logarithmic loss."""
        parts = [fold == part for part in np.unique(fold)]
        fitted: list[Vector] = [np.zeros(self.design.shape[1]) for _ in parts]
        losses: list[float] = []
        while len(losses) < len(RIDGES) and len(losses) <= np.argmin([np.inf, *losses]) + PATIENCE:
            for i, held_out in enumerate(parts):
                fitted[i] = self.kept(~held_out).fit(RIDGES[len(losses)], fitted[i])
            found = zip(parts, fitted, strict=True)
            losses.append(sum(self.kept(held_out).loss(own) for held_out, own in found))
        return int(np.argmin(losses))

    def kept(self, rows: Mask) -> _Weighted:
        """Some of the inputs."""
        return _Weighted(*(part[rows] for part in self))

    def loss(self, coefficients: Vector) -> float:
        """Logarithmic loss."""
        logits = self.design @ coefficients
        return float(self.weights @ np.logaddexp(0, np.where(self.flags > 0, -logits, logits)))

    def path(self, ridges: Vector) -> Vector:
        """Coefficients of the last ridge, each begun at those of the one before."""
        coefficients: Vector = np.zeros(self.design.shape[1])
        for ridge in ridges:
            coefficients = self.fit(ridge, coefficients)
        return coefficients

    def fit(self, ridge: float, coefficients: Vector) -> Vector:
        """Coefficients for a ridge, by Newton's method from others, with steps halved until they help."""
        penalty = ridge * self.weights.sum()

        def objective(at: Vector) -> float:
            return self.loss(at) + penalty * float(at @ at) / 2

        value = objective(coefficients)
        for _ in range(MOST_STEPS):
            system, slope = _newton(self.design, self.flags, coefficients, self.weights)
            system[np.diag_indices_from(system)] += penalty
            slope = slope - penalty * coefficients
            step = cho_solve(cho_factor(system), slope)
            lengths = 0.5 ** np.arange(MOST_HALVINGS)
            tried = ((objective(coefficients + length * step), length) for length in lengths)
            promised = LEAST_SHARE * float(slope @ step)
            found, length = next(
                ((low, length) for low, length in tried if low <= value - length * promised), (value, 0.0)
            )
            gained, value, coefficients = value - found, found, coefficients + length * step
            if gained < LEAST_GAIN * self.weights.sum():
                break
        return coefficients
