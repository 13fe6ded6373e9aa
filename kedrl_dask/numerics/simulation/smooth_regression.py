"""Regression of a few responses on inputs: linear terms and features of coordinates in a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Mask, Matrix, Points, Vector

#: Ridges tried, as shares of the number of inputs; the weight of linear terms, which are hardly penalised.
RIDGES = 10.0 ** np.arange(-9.0, 1.1, 0.5)
LINEAR_WEIGHT = 300.0
#: Degrees of freedom that a residual keeps at least, when it is corrected for its leverage.
LEAST_FREEDOM = 0.05
#: Groups of episodes from which replicates are drawn.
N_GROUPS = 40
#: Inputs at which sensitivity is averaged, and the step of its differences in standard deviations.
GRADIENT_INPUTS, GRADIENT_STEP = 500, 1e-3

KERNEL = Matern(nu=5.5, length_scale=1.0, sigma=1.0)


class Metric(NamedTuple):
    """Coordinates u = ((x − center)/scale)·directions in which the kernel has unit length."""

    center: Vector
    scale: Vector
    directions: Matrix
    kind: str

    def standardise(self, inputs: Inputs) -> Points:
        """Inputs in standard deviations from their mean."""
        return (inputs - self.center) / self.scale

    def __call__(self, inputs: Inputs) -> Points:
        """Coordinates of inputs; (n, r)."""
        return self.standardise(inputs) @ self.directions


class FeatureMap(Protocol):
    """Features of coordinates."""

    @property
    def rank(self) -> int:
        """Number of features."""

    def __call__(self, inputs: Points) -> Features:
        """Features of each row; (n, rank)."""


class Products:
    """Products of two coordinates, or squares.

    Attributes
    ----------
    left, right : (rank,) arrays
        The coordinates that are multiplied.
    """

    def __init__(self, dim: int) -> None:
        self.left, self.right = np.triu_indices(dim)

    @property
    def rank(self) -> int:
        """Number of features."""
        return len(self.left)

    def __call__(self, inputs: Points) -> Features:
        """Features of each row; (n, rank)."""
        return inputs[:, self.left] * inputs[:, self.right]


class Resampling(NamedTuple):
    """Replicates on groups of episodes drawn with replacement.

    Attributes
    ----------
    group : (n,) array
        The group of each transition.
    counts : (n_replicates, n_groups) array
        How often each group was drawn.
    """

    group: Indices
    counts: Indices

    @classmethod
    def drawn(cls, episode: Indices, n_replicates: int, seed: int) -> Resampling:
        """Replicates of groups of episodes; ``episode`` (n,) names that of each transition."""
        names, index = np.unique(episode, return_inverse=True)
        n_groups = min(N_GROUPS, len(names))
        rng = np.random.default_rng([seed, 39])
        counts = rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=n_replicates)
        return cls(index % n_groups, counts)

    def of(self, chosen: Mask) -> Resampling:
        """The same replicates of some of the transitions."""
        return Resampling(self.group[chosen], self.counts)

    def rows(self) -> list[Indices]:
        """Transitions of each group."""
        return [np.flatnonzero(self.group == number) for number in range(self.counts.shape[1])]


@dataclass(frozen=True)
class SmoothRegression:
    """Means of k responses given an input.

    Attributes
    ----------
    metric : Metric
    features : FeatureMap
        Of the metric's coordinates; of :data:`KERNEL`, if it is to become a :class:`SmoothFunction`.
    coefficients : (rank + D + 1, k) array
        Of the features, of the standardised inputs and of the constant.
    error : (k,) array
        Cross-validated mean squared error, as a share of the variance.
    penalty : (k,) array
        Ridge times the number of inputs, for responses in units of their standard deviation.
    """

    metric: Metric
    features: FeatureMap
    coefficients: Matrix
    error: Vector
    penalty: Vector

    def design(self, inputs: Inputs) -> Features:
        """Features, linear terms and the constant; (n, rank + D + 1)."""
        return _design(self.metric, self.features, inputs)

    def __call__(self, inputs: Inputs) -> Points:
        """Means at inputs; (n, k)."""
        return self.design(inputs) @ self.coefficients

    def of(self, responses: Sequence[int]) -> SmoothRegression:
        """The regression of some of the responses."""
        chosen = list(responses)
        parts = self.coefficients[:, chosen], self.error[chosen], self.penalty[chosen]
        return SmoothRegression(self.metric, self.features, *parts)

    def resampled(self, inputs: Inputs, responses: Points, resampling: Resampling) -> list[SmoothRegression]:
        """The regressions of the replicates, with the same features and penalties."""
        if not len(resampling.counts):
            return []
        mean, scale = responses.mean(axis=0), standard_deviations(responses)
        design, scaled = self.design(inputs), (responses - mean) / scale
        pairs = ((design[rows], scaled[rows]) for rows in resampling.rows())
        grams, crosses = (
            np.stack(sums) for sums in zip(*((x.T @ x, x.T @ y) for x, y in pairs), strict=True)
        )
        found = []
        for count in resampling.counts.astype(np.float64):
            gram, cross = np.tensordot(count, grams, 1), np.tensordot(count, crosses, 1)
            coefficients = np.empty_like(cross)
            for penalty in np.unique(self.penalty):
                own = self.penalty == penalty
                system = gram + penalty * np.eye(len(gram))
                coefficients[:, own] = cho_solve(cho_factor(system), cross[:, own])
            coefficients *= scale
            coefficients[-1] += mean / LINEAR_WEIGHT
            found.append(replace(self, coefficients=coefficients))
        return found

    def gradients(self, inputs: Inputs, linear: bool) -> Matrix:
        """Derivatives (n, D, k) by each coordinate in standard deviations, linear terms included or not."""
        rank, dim = self.features.rank, inputs.shape[1]
        slopes = LINEAR_WEIGHT * self.coefficients[rank:-1]
        found = np.empty((len(inputs), dim, self.coefficients.shape[1]))
        for coordinate in range(dim):
            shift = np.zeros(dim)
            shift[coordinate] = GRADIENT_STEP * self.metric.scale[coordinate]
            ahead, behind = (self.features(self.metric(inputs + sign * shift)) for sign in (1, -1))
            found[:, coordinate] = (ahead - behind) @ self.coefficients[:rank] / (2 * GRADIENT_STEP)
        return found + slopes if linear else found


@dataclass(frozen=True)
class SmoothFunction:
    """f(x) = k(y·directions, V)·weights + y·slopes + constant, with y = (x − center)/scale.

    Attributes
    ----------
    center, scale : (D,) arrays
        Mean and standard deviation of the inputs.
    directions : (D, r) array
        From standardised inputs to coordinates in which the kernel has unit length.
    landmarks : (l, r) array
        V.
    weights : (l, k) array
        Of the kernel sections.
    slopes : (D, k) array
        Of the standardised inputs.
    constant : (k,) array
    """

    center: Vector
    scale: Vector
    directions: Matrix
    landmarks: Points
    weights: Matrix
    slopes: Matrix
    constant: Vector

    @classmethod
    def from_regression(cls, regression: SmoothRegression) -> Self:
        """What a regression predicts."""
        features, metric, rank = regression.features, regression.metric, regression.features.rank
        assert isinstance(features, NystromFeatures)
        linear = LINEAR_WEIGHT * regression.coefficients[rank:]
        weights = features.whitening @ regression.coefficients[:rank]
        fixed = metric.center, metric.scale, metric.directions, features.landmarks
        return cls(*fixed, weights, linear[:-1], linear[-1])

    def is_accurate(self, dtype: npt.DTypeLike, tolerance: float) -> bool:
        """Whether rounding in a precision leaves the values within a tolerance of what they are.

        Long lengths have large weights of nearly equal sections.
        """
        return bool(np.finfo(dtype).eps * np.abs(self.weights).sum(axis=0).max(initial=0.0) <= tolerance)

    def __call__(self, inputs: Inputs) -> Points:
        """Values in the precision of the inputs; (n, k)."""
        center, scale, directions, landmarks, weights, slopes, constant = (
            part.astype(inputs.dtype, copy=False) for part in vars(self).values()
        )
        standard = (inputs - center) / scale
        return KERNEL(standard @ directions, landmarks) @ weights + standard @ slopes + constant


def _design(metric: Metric, features: FeatureMap, inputs: Inputs) -> Features:
    standard = metric.standardise(inputs)
    linear = LINEAR_WEIGHT * np.column_stack([standard, np.ones(len(inputs))])
    return np.hstack([features(standard @ metric.directions), linear])


def relevance(
    regression: SmoothRegression,
    inputs: Inputs,
    responses: Points,
    linear: bool,
    weights: Vector | None = None,
) -> Matrix:
    """E[∇f∇fᵀ] in standard deviations of inputs and responses, which may have weights; (D, D)."""
    gradients = regression.gradients(inputs[:GRADIENT_INPUTS], linear) / standard_deviations(responses)
    counts = np.ones(responses.shape[1]) if weights is None else weights
    return np.einsum("nik,njk,k->ij", gradients, gradients, counts, optimize=True) / len(gradients)


def sensitivity(regression: SmoothRegression, inputs: Inputs) -> Matrix:
    """Root mean square of the derivative of each response by each input; (D, k).

    Inputs are in standard deviations, and the response in those of its mean over the inputs.
    """
    rows = inputs[:: max(1, len(inputs) // GRADIENT_INPUTS)]
    gradients = regression.gradients(rows, linear=True) / standard_deviations(regression(rows))
    return np.asarray(np.sqrt((gradients**2).mean(axis=0)))


class Fitted(NamedTuple):
    """A regression, and the residuals (n, k) of what it was fitted to."""

    regression: SmoothRegression
    residuals: Points

    @property
    def score(self) -> float:
        """Cross-validated error, averaged over the responses."""
        return float(self.regression.error.mean())


def regress(
    metric: Metric,
    features: FeatureMap,
    inputs: Inputs,
    responses: Points,
    fold: Indices,
    ridges: Vector = RIDGES,
) -> Fitted:
    """Ridge regression with each response's ridge by cross-validation over the folds.

    Residuals are divided by the root of one minus the leverage, so that their variance is the noise's.
    """
    order = np.argsort(fold, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(fold[order])) + 1).tolist(), len(order)]
    parts = [slice(*ends) for ends in pairwise(bounds)]
    design = _design(metric, features, inputs[order])
    mean, scale = responses.mean(axis=0), standard_deviations(responses)
    scaled = ((responses - mean) / scale)[order]
    grams = [design[part].T @ design[part] for part in parts]
    crosses = [design[part].T @ scaled[part] for part in parts]
    gram, cross, penalties = sum(grams), sum(crosses), ridges * len(inputs)
    errors = np.zeros((len(ridges), responses.shape[1]))
    for part, own_gram, own_cross in zip(parts, grams, crosses, strict=True):
        values, vectors = np.linalg.eigh(gram - own_gram)
        shrunk = 1 / (np.maximum(values, 0.0)[:, None] + penalties)
        # All ridges in one product: columns are ridges, and responses within a ridge.
        coefficients = shrunk[:, :, None] * (vectors.T @ (cross - own_cross))[:, None]
        predicted = design[part] @ (vectors @ coefficients.reshape(len(values), -1))
        left = scaled[part][:, None] - predicted.reshape(-1, *errors.shape)
        errors += np.einsum("nik,nik->ik", left, left)
    best = errors.argmin(axis=0)
    values, vectors = np.linalg.eigh(gram)
    shrunk = np.maximum(values, 0.0)[:, None] + penalties[best]
    coefficients = vectors @ ((vectors.T @ cross) / shrunk)
    leverage = (design @ vectors) ** 2 @ (1 / shrunk)
    residuals = np.empty_like(scaled)
    residuals[order] = (scaled - design @ coefficients) / np.sqrt(np.maximum(1 - leverage, LEAST_FREEDOM))
    coefficients *= scale
    coefficients[-1] += mean / LINEAR_WEIGHT
    error = errors.min(axis=0) / len(inputs)
    found = SmoothRegression(metric, features, coefficients, error, penalties[best])
    return Fitted(found, residuals * scale)
