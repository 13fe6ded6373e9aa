"""The return grid Z (app:Grid-Z): its atoms, and how well they cover the Bellman image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls
from scipy.stats import qmc

from kedrl_dask.numerics.design.points import cluster_centers
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Atoms, Indices, Mask, Points, Vector


def discounted_returns(
    reward: Points, episode: Indices, terminated: Mask, discount: float, tail: float = 0.01
) -> Points:
    """Discounted returns observed from every row of whole episodes; (n, d).

    Rows are in the order of (episode, step); a terminated episode has its whole return. Rows from which less
    than 1 − ``tail`` of the discounted weight was observed are left out. If all episodes are too short, the
    first row of each episode is taken, and the unobserved weight is filled with the mean reward.
    """
    returns = np.array(reward, dtype=np.float64)
    missing = np.ones(len(reward))
    missing[terminated] = 0.0
    is_last = np.append(episode[1:] != episode[:-1], True)
    missing[is_last & ~terminated] = discount
    # Backwards by the number of steps to the episode's end: each pass serves all episodes at once.
    position = np.arange(len(reward))
    last_row = position[is_last][np.searchsorted(position[is_last], position)]
    to_end = last_row - position
    order = np.argsort(to_end, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(to_end[order])) + 1)[1:]:
        returns[rows] += discount * returns[rows + 1]
        missing[rows] = discount * missing[rows + 1]
    complete = missing <= tail
    if complete.any():
        return returns[complete]
    first = np.append(True, episode[1:] != episode[:-1])
    return returns[first] + missing[first, None] / (1 - discount) * reward.mean(axis=0)


def return_grid(
    returns: Points, n_atoms: int, kernel: Matern, expansion: float = 1.25, n_directions: int = 32,
    random_state: int = 0,
) -> Atoms:  # fmt: skip
    """Exactly ``n_atoms`` atoms: k-means centres of returns, the extreme ones moved out (app:Grid-Z).

    Clustering and directions use the coordinates of the return kernel. Extremes are sought in random
    directions beside the coordinates and their negatives, and move away from the mean centre by the factor
    c_exp, the ``expansion``.
    """
    dim = returns.shape[1]
    if len(np.unique(returns, axis=0)) < n_atoms:
        raise ValueError(
            f"the return grid needs at least n_atoms={n_atoms} distinct observed returns, "
            f"found {len(np.unique(returns, axis=0))}; lower n_atoms or give the grid"
        )
    scaled = kernel.scale(returns)
    centers = cluster_centers(scaled, n_atoms, random_state)
    random = np.random.default_rng(random_state).standard_normal((n_directions, dim))
    directions = np.vstack([np.eye(dim), -np.eye(dim), random])
    extreme = np.unique(np.argmax(centers @ directions.T, axis=0))
    middle = centers.mean(axis=0)
    centers[extreme] = middle + expansion * (centers[extreme] - middle)
    return kernel.unscale(centers)


def bellman_box(
    reward_low: npt.ArrayLike, reward_high: npt.ArrayLike, discount: float
) -> tuple[Vector, Vector]:
    """Corners of the box with R + γZ ⊆ Z, for rewards between the given bounds (app:Grid-Z)."""
    low, high = (np.atleast_1d(np.asarray(bound, dtype=np.float64)) for bound in (reward_low, reward_high))
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise ValueError(f"reward bounds must be finite with low ≤ high, got {low} and {high}")
    return low / (1 - discount), high / (1 - discount)


def box_grid(low: Vector, high: Vector, n_atoms: int, random_state: int = 0) -> Atoms:
    """``n_atoms`` low-discrepancy atoms that fill a box."""
    sobol = qmc.Sobol(len(low), scramble=True, rng=np.random.default_rng(random_state))
    points = sobol.random_base2(int(np.ceil(np.log2(max(n_atoms, 2)))))[:n_atoms]
    return low + points * (high - low)


@dataclass(frozen=True)
class Coverage:
    """How well the grid represents the shifted sections k(r + γz, ·) (app:Grid-Z).

    Quantiles of the normalised projection residual, 0 if perfect and 1 if not at all; and the fraction of the
    shifted points r + γz inside the convex hull of the grid.
    """

    median: float
    p90: float
    p99: float
    inside: float


def coverage(
    grid: Atoms, reward: Points, discount: float, kernel: Matern, n_pairs: int = 2_000, random_state: int = 0
) -> Coverage:
    """Projection residuals of shifted sections for random pairs of a reward and an atom."""
    rng = np.random.default_rng(random_state)
    shifted = reward[rng.integers(len(reward), size=n_pairs)]
    shifted = shifted + discount * grid[rng.integers(len(grid), size=n_pairs)]
    gram = kernel(grid, grid)
    # The jitter bounds the coefficients; at this size it moves the residual by at most 10⁻⁵.
    gram[np.diag_indices_from(gram)] += 1e-10 * kernel.sigma**2
    cross = kernel(grid, shifted)
    explained = np.einsum("ij,ij->j", cross, cho_solve(cho_factor(gram), cross))
    residual = np.sqrt(np.clip(1 - explained / kernel.sigma**2, 0, 1))
    median, p90, p99 = np.quantile(residual, [0.5, 0.9, 0.99])
    inside = np.mean([_is_in_hull(grid, point) for point in shifted[:300]])
    return Coverage(float(median), float(p90), float(p99), float(inside))


def _is_in_hull(grid: Atoms, point: Vector) -> bool:
    """Whether a point is a convex combination of the atoms: non-negative least squares, in any dimension."""
    offsets = (grid - point).T
    equalities = np.vstack([offsets / (np.abs(offsets).max() or 1.0), np.ones(len(grid))])
    return bool(nnls(equalities, np.append(np.zeros(len(offsets)), 1.0))[1] < 1e-9)
