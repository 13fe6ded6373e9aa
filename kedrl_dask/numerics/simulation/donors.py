"""Noise of logged transitions, found again near an input.

Inputs are divided into cells in a metric that says where the law of the residuals changes: their size, their
sign, and whether the transition was terminal. A cell's residuals stand for the noise at every input in it;
their mean is taken out, as it is noise too: what happens on average, the regression knows better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kedrl_dask.numerics.design.points import cluster_centers
from kedrl_dask.numerics.simulation.smooth_regression import Each, Metric, fit_smooth, relevance
from kedrl_dask.utils.arrays import Indices, Inputs, Mask, Points
from kedrl_dask.utils.scratch import scratch

#: Residuals in a cell on average, at least, and most cells.
CELL_SIZE, MOST_CELLS = 40, 400
#: Least share of the variance of a residual's size, sign or flag that inputs explain, for more than one cell.
LEAST_TOLD = 0.005
#: Inputs whose cells are found by clustering; the others join the nearest.
CLUSTERED = 10_000
#: Inputs whose cells are found at a time, in memory that stays in the cache.
NEAREST_ROWS = 1_000
#: Below this share of a response's standard deviation a residual's size no longer counts.
SMALLEST_SIZE = 1e-3
#: Least share of the sensitivity that every direction keeps, so that no cell is without bounds.
FLOOR = 1e-6


@dataclass(frozen=True)
class Donors:
    """Residuals by cell.

    Attributes
    ----------
    metric : Metric
    centers : (c, r) array
        Of the cells, in the metric's coordinates.
    first : (c + 1,) array
        Where each cell's residuals begin, and the last one's end.
    residuals : (n, d + p) array
        Of reward and change of state, in the order of the cells.
    terminal : (n,) bool array
        Whether the transition was terminal.
    """

    metric: Metric
    centers: Points
    first: Indices
    residuals: Points
    terminal: Mask

    @classmethod
    def gather(
        cls,
        inputs: Inputs,
        residuals: Points,
        terminal: Mask,
        fold: Indices,
        reward_dim: int,
        seed: int,
        each: Each = map,
    ) -> Donors:
        """Divide logged transitions into cells; the first ``reward_dim`` residuals are of the reward."""
        metric, told = _metric(inputs, residuals, terminal, fold, seed, each)
        points = metric(inputs)
        rng = np.random.default_rng([seed, 32])
        sample = points[np.sort(rng.permutation(len(points))[:CLUSTERED])]
        n_cells = min(MOST_CELLS, len(points) // CELL_SIZE, len(np.unique(sample, axis=0)))
        centers = cluster_centers(sample, max(1, n_cells if told > LEAST_TOLD else 1), seed)
        cell = _nearest(points, centers)
        used, cell = np.unique(cell, return_inverse=True)
        order = np.argsort(cell, kind="stable")
        first = np.searchsorted(cell[order], np.arange(len(used) + 1))
        centred = _centred(residuals[order], terminal[order], reward_dim, first)
        return cls(metric, centers[used], first, centred, terminal[order])

    def pick(self, inputs: Inputs, rng: np.random.Generator) -> Indices:
        """One transition of its cell for each input; (n,).

        Inputs in one cell draw from it evenly, as far as their number allows.
        """
        cell = _nearest(self.metric(inputs), self.centers)
        begin, end = self.first[cell], self.first[cell + 1]
        uniform = (rng.permutation(len(inputs)) + rng.random(len(inputs))) / len(inputs)
        return begin + np.minimum(uniform * (end - begin), end - begin - 1).astype(np.intp)


def _nearest(points: Points, centers: Points) -> Indices:
    """The centre nearest to each point; (n,). One product: scikit-learn's threads take ten times as long."""
    right = np.vstack([-centers.T, 0.5 * np.einsum("ij,ij->i", centers, centers)]).astype(np.float32)
    found = np.empty(len(points), dtype=np.intp)
    for start in range(0, len(points), NEAREST_ROWS):
        part = points[start : start + NEAREST_ROWS]
        left = np.column_stack([part, np.ones(len(part))]).astype(np.float32)
        work = scratch("cells", (len(part), len(centers)), np.float32)
        found[start : start + len(part)] = np.matmul(left, right, out=work).argmin(axis=1)
    return found


def _centred(residuals: Points, terminal: Mask, reward_dim: int, first: Indices) -> Points:
    """Residuals less the mean of their cell, and with the variance that they had around it.

    Those of the change of state count where the episode goes on.
    """
    centred = np.zeros_like(residuals)
    for begin, end in pairwise(first):
        goes_on = begin + np.flatnonzero(~terminal[begin:end])
        for rows, columns in (
            (np.arange(begin, end), slice(None, reward_dim)),
            (goes_on, slice(reward_dim, None)),
        ):
            n, own = len(rows), residuals[rows, columns]
            if n > 1:
                centred[rows, columns] = (own - own.mean(axis=0)) * np.sqrt(n / (n - 1))
    return centred


def _metric(
    inputs: Inputs, residuals: Points, terminal: Mask, fold: Indices, seed: int, each: Each
) -> tuple[Metric, float]:
    """Directions by how sensitive the law of the residuals is to them, and how much inputs tell of it."""
    spread = residuals.std(axis=0)
    varies = spread > 0
    scaled = residuals[:, varies] / spread[varies]
    signs = [np.log(SMALLEST_SIZE + np.abs(scaled)), np.sign(scaled)]
    if terminal.any():
        signs.append(terminal[:, None].astype(np.float64))
    responses = np.hstack(signs)
    found = fit_smooth(inputs, responses, fold, seed, each=each).regression
    told = np.clip(1 - found.error, 0.0, 1.0)
    values, vectors = np.linalg.eigh(relevance(found, inputs, responses, linear=True, weights=told))
    largest = max(float(values[-1]), np.finfo(float).tiny)
    lengths = np.sqrt(np.maximum(values / largest, FLOOR))
    metric = Metric(found.metric.center, found.metric.scale, vectors * lengths, "residuals")
    return metric, float(told.max())
