"""The chance of an event given an input: logistic regression on the features of a smooth regression."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from kedrl_dask.numerics.simulation.smooth_regression import (
    Each,
    Resampling,
    SmoothFunction,
    SmoothRegression,
    fit_smooth,
)
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Mask, Matrix, Vector

#: Ridges tried, largest first, as shares of the number of inputs; inputs with which they are tried.
RIDGES, TRIAL_INPUTS = 10.0 ** np.arange(0.0, -8.1, -1.0), 5_000
#: Newton steps for one ridge, the change of the logits at which they end, and the largest logit.
MOST_STEPS, NEAR, LARGEST = 12, 1e-3, 30.0
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
    rows = np.sort(np.random.default_rng([seed, 37]).permutation(len(inputs))[:TRIAL_INPUTS])
    losses = sum(_losses(design[rows], flags[rows], fold[rows] == part) for part in np.unique(fold[rows]))
    last = int(np.argmin(losses)) + 1
    fitted = _path(design, flags, RIDGES[:last])[-1]
    replicates = _resampled(design, flags, fitted, RIDGES[last - 1] * len(flags), resampling)
    return [SmoothFunction.from_regression(_with(found, own)) for own in (fitted, *replicates)]


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


def _newton(design: Features, flags: Vector, coefficients: Vector) -> tuple[Matrix, Vector]:
    """Negative Hessian and gradient of the logarithmic likelihood."""
    chance = expit(np.clip(design @ coefficients, -LARGEST, LARGEST))
    weights = np.maximum(chance * (1 - chance), LEAST_WEIGHT)
    return (design.T * weights) @ design, design.T @ (flags - chance)


def _with(regression: SmoothRegression, coefficients: Vector) -> SmoothRegression:
    return replace(regression, coefficients=coefficients[:, None])


def _losses(design: Features, flags: Vector, held_out: Mask) -> Vector:
    """Held-out logarithmic loss of each ridge."""
    logits = design[held_out] @ _path(design[~held_out], flags[~held_out], RIDGES).T
    own = flags[held_out, None]
    return np.logaddexp(0, np.where(own > 0, -logits, logits)).sum(axis=0)


def _path(design: Features, flags: Vector, ridges: Vector) -> Matrix:
    """Coefficients for each ridge, each begun at the one before; (k, rank)."""
    coefficients, found = np.zeros(design.shape[1]), []
    for ridge in ridges:
        penalty = ridge * len(flags)
        for _ in range(MOST_STEPS):
            system, slope = _newton(design, flags, coefficients)
            system[np.diag_indices_from(system)] += penalty
            step = cho_solve(cho_factor(system), slope - penalty * coefficients)
            coefficients = coefficients + step
            if np.abs(design @ step).max() < NEAR:
                break
        found.append(coefficients)
    return np.array(found)
