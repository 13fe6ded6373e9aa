"""Noise of logged transitions, found again near an input.

Inputs are divided into cells in a metric that says where the law of the residuals changes: their size, their
sign, and whether the transition was terminal. A cell's residuals stand for the noise at every input in it;
their mean is taken out, as it is noise too: what happens on average, the regression knows better. Held-out
residuals tell how many cells there are, and whether residuals are divided by a size that varies with the
input: many cells have laws of few residuals, few cells laws of distant ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kedrl_dask.numerics.design.points import cluster_centers
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.numerics.simulation.metric_search import Each, fit_smooth
from kedrl_dask.numerics.simulation.smooth_regression import (
    LINEAR_WEIGHT,
    Metric,
    Resampling,
    SmoothFunction,
    relevance,
)
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Mask, Points
from kedrl_dask.utils.scratch import scratch

#: Residuals in a cell on average, at least, and numbers of cells that are tried.
CELL_SIZE, N_CELLS = 40, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Least share of the variance of a residual's size, sign or flag that inputs explain, for more than one cell.
LEAST_TOLD = 0.005
#: Least share for a size that varies with the input, and the largest logarithm of that.
SIZE_TOLD, LARGEST_SIZE = 0.01, 2.0
#: Waves by which laws of residuals are compared; inputs, and residuals drawn at each, for two sorts of noise.
N_WAVES, N_JUDGED, N_DRAWN = 64, 8_000, 20
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
    log_size : SmoothFunction or None
        Logarithm of the size by which residuals are multiplied at an input.
    redrawn : Redrawn or None
        Of a replicate: what it draws in place of each residual.
    """

    metric: Metric
    centers: Points
    first: Indices
    residuals: Points
    terminal: Mask
    log_size: SmoothFunction | None = None
    redrawn: Redrawn | None = None

    @classmethod
    def gather(
        cls,
        inputs: Inputs,
        residuals: Points,
        terminal: Mask,
        fold: Indices,
        resampling: Resampling,
        reward_dim: int,
        seed: int,
        each: Each = map,
    ) -> list[Donors]:
        """Divide logged transitions into cells, and draw those of each replicate from them.

        The first ``reward_dim`` residuals are of the reward.
        """
        shared = inputs, residuals, terminal, fold
        log_size = _log_size(inputs, residuals, fold, seed, each)
        candidates = [_Cells.choose(*shared, None, seed, each)]
        if log_size is not None:
            candidates.append(_Cells.choose(*shared, log_size, seed, each))
        errors = [0.0]
        if len(candidates) > 1:
            errors = [one.error_of_draws(*shared, seed) for one in candidates]
        return candidates[int(np.argmin(errors))].donors(terminal, resampling, reward_dim, seed)

    def draw(self, inputs: Inputs, rng: np.random.Generator) -> tuple[Points, Mask]:
        """The noise at each input, and whether the transition that it is of was terminal."""
        cell = _nearest(self.metric(inputs), self.centers)
        rows = self._pick(cell, rng)
        if self.redrawn is None:
            noise = self.residuals[rows]
        else:
            rows = self.redrawn.rows[rows]
            noise = self.residuals[rows] - self.redrawn.mean[cell]
        return noise if self.log_size is None else noise * _size(self.log_size, inputs), self.terminal[rows]

    def _pick(self, cell: Indices, rng: np.random.Generator) -> Indices:
        """One transition of each cell asked for; (n,).

        Those of one cell are drawn evenly, as far as their number allows.
        """
        begin, end = self.first[cell], self.first[cell + 1]
        uniform = (rng.permutation(len(cell)) + rng.random(len(cell))) / len(cell)
        return begin + np.minimum(uniform * (end - begin), end - begin - 1).astype(np.intp)

    def resampled(self, times: Indices, reward_dim: int, rng: np.random.Generator) -> Donors:
        """Those of a replicate, in which each residual was drawn so many times.

        Those that were not drawn are replaced by others of their cell that were drawn twice: with the same
        random numbers as the fit, its noise is mostly the same.
        """
        rows = _replaced(times, self.first, rng)
        mean = _means(self.residuals[rows], self.terminal[rows], reward_dim, self.first)
        return replace(self, redrawn=Redrawn(rows.astype(np.int32), mean))


@dataclass(frozen=True)
class Redrawn:
    """What a replicate draws: rows (n,) of the fit's residuals, less their mean (c, d + p) in each cell."""

    rows: npt.NDArray[np.int32]
    mean: Points


@dataclass(frozen=True)
class _Cells:
    """A division of transitions into cells, and their residuals in units of the size."""

    metric: Metric
    centers: Points
    cell: Indices
    residuals: Points
    log_size: SmoothFunction | None

    @classmethod
    def choose(
        cls,
        inputs: Inputs,
        residuals: Points,
        terminal: Mask,
        fold: Indices,
        log_size: SmoothFunction | None,
        seed: int,
        each: Each,
    ) -> _Cells:
        """As many cells as predict the law of held-out residuals best.

        That is judged by the distance of their waves from the mean of their cell in the other folds.
        """
        if log_size is not None:
            residuals = residuals / _size(log_size, inputs)
        metric, told = _metric(inputs, residuals, terminal, fold, seed, each)
        points = metric(inputs)
        rng = np.random.default_rng([seed, 32])
        sample = points[np.sort(rng.permutation(len(points))[:CLUSTERED])]
        most = min(len(points) // CELL_SIZE, len(np.unique(sample, axis=0))) if told > LEAST_TOLD else 1
        found, least = _waves(residuals, terminal, residuals, seed), np.inf
        for size in (size for size in N_CELLS if size <= max(1, most)):
            tried = cluster_centers(sample, size, seed)
            joined = _nearest(points, tried)
            error = _held_out_error(found, joined, fold, size)
            if error < least:
                least, centers, cell = error, tried, joined
        used, cell = np.unique(cell, return_inverse=True)
        return cls(metric, centers[used], cell, residuals, log_size)

    def donors(self, terminal: Mask, resampling: Resampling, reward_dim: int, seed: int) -> list[Donors]:
        """Residuals in the order of the cells, centred, and those of each replicate."""
        order, first = self._sorted()
        residuals, ends = self.residuals[order], terminal[order]
        centred = _centred(residuals, ends, reward_dim, first)
        fit = Donors(self.metric, self.centers, first, centred, ends, self.log_size)
        rng, group = np.random.default_rng([seed, 40]), resampling.group[order]
        return [fit, *(fit.resampled(count[group], reward_dim, rng) for count in resampling.counts)]

    def error_of_draws(
        self, inputs: Inputs, residuals: Points, terminal: Mask, fold: Indices, seed: int
    ) -> float:
        """Mean squared distance of the waves of residuals from those of what is drawn there.

        Draws are of other folds.
        """
        rng = np.random.default_rng([seed, 38])
        rows = np.sort(rng.permutation(len(inputs))[:N_JUDGED])
        order, first = self._sorted()
        begin, end = first[self.cell[rows]], first[self.cell[rows] + 1]
        drawn = order[
            begin[:, None] + (rng.random((len(rows), N_DRAWN)) * (end - begin)[:, None]).astype(int)
        ]
        size = np.ones((1, 1)) if self.log_size is None else _size(self.log_size, inputs[rows])
        own = (self.residuals[drawn] * size[:, None]).reshape(-1, residuals.shape[1])
        true = _waves(residuals[rows], terminal[rows], residuals, seed)
        found = _waves(own, terminal[drawn].ravel(), residuals, seed)
        other = (fold[drawn] != fold[rows][:, None]).astype(np.float64)
        counts = other.sum(axis=1)
        kept = counts > 0
        mean = np.einsum("ijk,ij->ik", found.reshape(*drawn.shape, -1), other)[kept] / counts[kept, None]
        return float(np.mean(np.sum((true[kept] - mean) ** 2, axis=1)))

    def _sorted(self) -> tuple[Indices, Indices]:
        """Rows in the order of the cells, and where each begins."""
        order = np.argsort(self.cell, kind="stable")
        return order, np.searchsorted(self.cell[order], np.arange(len(self.centers) + 1))


def _replaced(times: Indices, first: Indices, rng: np.random.Generator) -> Indices:
    """Itself for each residual that was drawn, and for the others one of its cell that was drawn again."""
    rows = np.arange(len(times))
    for begin, end in pairwise(first):
        own = times[begin:end]
        again = begin + np.repeat(np.arange(end - begin), np.maximum(own - 1, 0))
        missed = begin + np.flatnonzero(own == 0)
        if len(again):
            rows[missed] = np.resize(rng.permutation(again), len(missed))
    return rows


def _waves(residuals: Points, terminal: Mask, unit: Points, seed: int) -> Features:
    """Waves of residuals, each in standard deviations of those of a unit, and of flags."""
    spread = unit.std(axis=0)
    columns = np.column_stack([residuals[:, spread > 0] / spread[spread > 0], terminal])
    kernel = Matern(nu=5.5, length_scale=float(np.sqrt(columns.shape[1])), sigma=1.0)
    return waves(columns, frequencies(kernel, columns.shape[1], N_WAVES, random_state=seed))


def _held_out_error(found: Features, cell: Indices, fold: Indices, n_cells: int) -> float:
    """Mean squared distance of waves from the mean of their cell in the other folds."""
    n_folds = int(fold.max()) + 1
    place = fold * n_cells + cell
    order = np.argsort(place, kind="stable")
    used, first = np.unique(place[order], return_index=True)
    sums = np.zeros((n_folds * n_cells, found.shape[1]))
    sums[used] = np.add.reduceat(found[order], first, axis=0)
    by_fold = sums.reshape(n_folds, n_cells, -1)
    counts = np.bincount(place, minlength=n_folds * n_cells).reshape(n_folds, n_cells, 1)
    other, n_other = by_fold.sum(axis=0) - by_fold, counts.sum(axis=0) - counts
    # A cell without others has the law of all.
    mean = np.where(n_other > 0, other / np.maximum(n_other, 1), found.mean(axis=0))
    return float(np.sum(found**2) - 2 * np.sum(mean * by_fold) + np.sum(counts * mean**2)) / len(found)


def _size(log_size: SmoothFunction, inputs: Inputs) -> Points:
    """Sizes of the residuals at inputs."""
    return np.exp(np.clip(log_size(inputs), -LARGEST_SIZE, LARGEST_SIZE))


def _log_size(
    inputs: Inputs, residuals: Points, fold: Indices, seed: int, each: Each
) -> SmoothFunction | None:
    """The mean logarithm of the size of residuals less its average, for those of which inputs tell it."""
    spread = residuals.std(axis=0)
    varies = spread > 0
    if not varies.any():
        return None
    logs = np.zeros_like(residuals)
    logs[:, varies] = np.log(SMALLEST_SIZE + np.abs(residuals[:, varies] / spread[varies]))
    found = fit_smooth(inputs, logs, fold, seed, each=each).regression
    told = varies & (found.error < 1 - SIZE_TOLD)
    if not told.any():
        return None
    coefficients = np.where(told, found.coefficients, 0.0)
    coefficients[-1] -= np.where(told, logs.mean(axis=0), 0.0) / LINEAR_WEIGHT
    return SmoothFunction.from_regression(replace(found, coefficients=coefficients))


def _nearest(points: Points, centers: Points) -> Indices:
    """The centre nearest to each point; (n,). One product: scikit-learn's threads take ten times as long."""
    if len(centers) == 1:
        return np.zeros(len(points), dtype=np.intp)
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
    for _, rows, columns in _parts(terminal, reward_dim, first):
        n, own = len(rows), residuals[rows, columns]
        if n > 1:
            centred[rows, columns] = (own - own.mean(axis=0)) * np.sqrt(n / (n - 1))
    return centred


def _means(residuals: Points, terminal: Mask, reward_dim: int, first: Indices) -> Points:
    """Mean residuals of each cell, those of the change of state where the episode goes on."""
    means = np.zeros((len(first) - 1, residuals.shape[1]))
    for cell, rows, columns in _parts(terminal, reward_dim, first):
        if len(rows):
            means[cell, columns] = residuals[rows, columns].mean(axis=0)
    return means


def _parts(terminal: Mask, reward_dim: int, first: Indices) -> Iterator[tuple[int, Indices, slice]]:
    """Of each cell, the rows and columns of rewards, and of changes of state where the episode goes on."""
    for cell, (begin, end) in enumerate(pairwise(first)):
        yield cell, np.arange(begin, end), slice(None, reward_dim)
        yield cell, begin + np.flatnonzero(~terminal[begin:end]), slice(reward_dim, None)


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
    if not responses.shape[1]:
        responses = np.zeros((len(inputs), 1))
    found = fit_smooth(inputs, responses, fold, seed, each=each).regression
    told = np.clip(1 - found.error, 0.0, 1.0)
    values, vectors = np.linalg.eigh(relevance(found, inputs, responses, linear=True, weights=told))
    largest = max(float(values[-1]), np.finfo(float).tiny)
    lengths = np.sqrt(np.maximum(values / largest, FLOOR))
    metric = Metric(found.metric.center, found.metric.scale, vectors * lengths, "residuals")
    return metric, float(told.max())
