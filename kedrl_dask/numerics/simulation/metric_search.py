"""A smooth regression in the metric that predicts best.

The metric says along which directions of the input the responses vary, and how fast. It is chosen by
cross-validation over episodes: first all coordinates count the same, or as much as in a linear or a quadratic
regression; then each as much as the regression found so far is sensitive to it, or each direction (average
gradient outer products).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Protocol, TypeVar

import numpy as np

from kedrl_dask.numerics.design.points import choose_points
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.numerics.simulation.smooth_regression import (
    KERNEL,
    RIDGES,
    Fitted,
    Metric,
    Products,
    SmoothRegression,
    regress,
    relevance,
)
from kedrl_dask.utils.arrays import Indices, Inputs, Matrix, Points

#: Multiples of the unit length that are tried in each metric, and rounds of sensitivity.
MULTIPLES, N_ROUNDS = (1.0, 2.0, 4.0, 8.0), 2
#: Inputs and landmarks with which metrics are compared, and landmarks of the regression itself.
TRIAL_INPUTS, TRIAL_LANDMARKS, N_LANDMARKS = 3_000, 150, (100, 200, 400)
#: Dimension from which on a quadratic regression is tried, and the most products that it may have.
LEAST_CURVED_DIM, MOST_PRODUCTS = 4, 500
#: Factors by which lengths may be shorter for all inputs than for that sample.
SHORTENED = (2.0, 4.0, 8.0)
#: Inputs from which landmarks are chosen.
CLUSTERED = 4_000
#: A metric is taken if it lowers the error at least by this share.
LEAST_GAIN = 1e-4
#: Directions to which the response is less sensitive, as a share of the largest, are left out of the metric.
NEGLIGIBLE_DIRECTION = 1e-3

T = TypeVar("T")


class Each(Protocol):
    """``map``, or that of a pool of threads."""

    def __call__(self, function: Callable[[T], Fitted], values: Iterable[T], /) -> Iterable[Fitted]:
        """Apply a function to each value."""


def fit_smooth(
    inputs: Inputs,
    responses: Points,
    fold: Indices,
    seed: int,
    hints: Sequence[Matrix] = (),
    each: Each = map,
) -> Fitted:
    """Choose a metric on a sample, then regress on all inputs; folds are of whole episodes.

    ``hints`` are directions (D, r) of other metrics, which are tried as well. ``each`` applies a function to
    independent trials, as ``map`` does: that of a pool of threads does it at once.
    """
    rng = np.random.default_rng([seed, 31])
    chosen = np.sort(rng.permutation(len(inputs))[:TRIAL_INPUTS])
    x, y, f = inputs[chosen], responses[chosen], fold[chosen]
    drawn = x[rng.permutation(len(x))[: min(TRIAL_LANDMARKS, len(x) // 5 + 1)]]

    def tried(metric: Metric) -> Fitted:
        features = NystromFeatures.from_landmarks(KERNEL, metric(drawn))
        return regress(metric, features, x, y, f, RIDGES[::2])

    first = [*_first_metrics(x, y, hints), *_curved_metrics(inputs, responses, fold)]
    best = reduce(_better, each(tried, first))
    for _ in range(N_ROUNDS):
        trials = each(tried, list(_sensitive_metrics(best.regression, x, y)))
        best = reduce(_better, trials, best)
    return _grown(best.regression.metric, inputs, responses, fold, seed)


def _grown(metric: Metric, inputs: Inputs, responses: Points, fold: Indices, seed: int) -> Fitted:
    """The regression on all inputs, with lengths as long and landmarks as few as others hardly improve on.

    All inputs can tell more details than the sample on which the metric was chosen.
    """
    rng = np.random.default_rng([seed, 35])
    clustered = inputs[np.sort(rng.permutation(len(inputs))[:CLUSTERED])]

    def fitted(shortened: float, size: int) -> Fitted:
        shorter = metric._replace(directions=metric.directions * shortened)
        points = shorter(clustered)
        landmarks = choose_points(points, min(size, len(inputs) // 10 + 1), KERNEL, "kmeans", seed)
        features = NystromFeatures.from_landmarks(KERNEL, landmarks)
        return regress(shorter, features, inputs, responses, fold)

    best, shortened = fitted(1.0, N_LANDMARKS[0]), 1.0
    for factor in SHORTENED:
        found = fitted(factor, N_LANDMARKS[0])
        if found.score > (1 - LEAST_GAIN) * best.score:
            break
        best, shortened = found, factor
    for size in N_LANDMARKS[1:]:
        found = fitted(shortened, size)
        if found.score > (1 - LEAST_GAIN) * best.score:
            break
        best = found
    return best


def _better(best: Fitted, trial: Fitted) -> Fitted:
    """The trial if it is better by more than a little."""
    return trial if trial.score < (1 - LEAST_GAIN) * best.score else best


def _first_metrics(inputs: Inputs, responses: Points, hints: Sequence[Matrix]) -> Iterator[Metric]:
    """All coordinates alike; by the slopes of a linear regression; hints."""
    center, scale, dim = inputs.mean(axis=0), standard_deviations(inputs), inputs.shape[1]
    slopes = np.linalg.lstsq((inputs - center) / scale, responses - responses.mean(axis=0), rcond=None)[0]
    slopes = slopes / standard_deviations(responses)
    shapes = [("alike", np.eye(dim) * 2 / np.sqrt(dim)), *_shapes("slopes", slopes @ slopes.T)]
    for kind, directions in [*shapes, *(("hint", hint) for hint in hints)]:
        for multiple in MULTIPLES:
            yield Metric(center, scale, directions / multiple, kind)


def _curved_metrics(inputs: Inputs, responses: Points, fold: Indices) -> Iterator[Metric]:
    """By the sensitivity of a quadratic regression, with its slopes or without.

    In many dimensions it finds the few directions along which responses bend, where landmarks see nothing.
    """
    dim = inputs.shape[1]
    products = Products(dim)
    if dim < LEAST_CURVED_DIM or products.rank > MOST_PRODUCTS:
        return
    plain = Metric(inputs.mean(axis=0), standard_deviations(inputs), np.eye(dim), "curvature")
    found = regress(plain, products, inputs, responses, fold, RIDGES[::2]).regression
    for linear in (False, True):
        for kind, directions in _shapes("curvature", relevance(found, inputs, responses, linear)):
            for multiple in MULTIPLES:
                yield Metric(plain.center, plain.scale, directions / multiple, kind)


def _shapes(kind: str, outer: Matrix) -> Iterator[tuple[str, Matrix]]:
    """Coordinates and directions by the root of what a matrix of outer products gives them."""
    values, vectors = np.linalg.eigh(outer)
    lengths, diagonal = np.sqrt(np.maximum(values, 0.0)), np.sqrt(np.diag(outer))
    if lengths[-1] > 0:
        kept = lengths > NEGLIGIBLE_DIRECTION * lengths[-1]
        yield f"{kind} of coordinates", np.diag(diagonal / diagonal.max())
        yield f"{kind} of directions", vectors[:, kept] * lengths[kept] / lengths[-1]


def _sensitive_metrics(found: SmoothRegression, inputs: Inputs, responses: Points) -> Iterator[Metric]:
    """Coordinates, or directions, by how sensitive the nonlinear part is to them."""
    outer = relevance(found, inputs, responses, linear=False)
    for kind, directions in _shapes("sensitivity", outer):
        for multiple in MULTIPLES:
            yield Metric(found.metric.center, found.metric.scale, directions / multiple, kind)
