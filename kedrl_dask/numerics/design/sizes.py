"""Automatic sizes: landmarks, basis, atoms and frequencies, each grown until its error is small enough.

Every estimate is the mean square of an approximation error for a kernel of unit variance, on a sample alone.
It need not be smaller than the data can resolve: tolerances fall as N^(-1/3) with the number of transitions.
Their constants give about 500 landmarks, 250 basis points, 100 atoms and 256 frequencies on the simulation
study with N = 14,700, where larger sizes did not lower the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import Method, frequencies, kernel_error
from kedrl_dask.utils.arrays import Atoms, Inputs, Points, Record, Vector

#: Number of transitions in the sample from which the design is chosen.
DESIGN_SAMPLE = 20_000
#: Number of transitions of that sample in the test of separation, and of its blocks with random signs.
SEPARATION_SAMPLE, SEPARATION_BLOCKS = 10_000, 20
#: Number of folds of the cross-validation over blocks of episodes.
N_FOLDS = 5
#: Number of inputs at which the Bellman risk is evaluated with exact operators.
EXACT_HELD_OUT = 100

#: The settings that may be chosen automatically.
Size = Literal["n_landmarks", "n_basis", "n_atoms", "n_features"]

#: Sizes tried, in steps of about a half.
LADDERS: dict[Size, tuple[int, ...]] = {
    "n_landmarks": (50, 75, 110, 170, 250, 375, 500, 750, 1_000, 1_500, 2_000),
    "n_basis": (50, 75, 110, 170, 250, 375, 500, 750, 1_000),
    "n_atoms": (30, 50, 75, 100, 150, 200, 300, 400),
    "n_features": (64, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048),
}
#: The largest that can be chosen.
MOST: dict[Size, int] = {name: ladder[-1] for name, ladder in LADDERS.items()}
#: Mean squares times N^(1/3) below which an estimate is small enough.
TOLERANCES: dict[Size, float] = {"n_landmarks": 1e-3, "n_basis": 4e-3, "n_atoms": 0.7, "n_features": 1e-2}
#: Most landmarks and basis points, in units of √N: a regression on N rows resolves no more directions.
PER_ROOT = {"n_landmarks": 8.0, "n_basis": 4.0}
#: A step that leaves more than this share of the estimate is not worth its cost.
STALLED = 0.95
#: Points at which residuals are taken, and feature kernels compared.
N_HELD_OUT, N_COMPARED = 1_000, 400
#: Keeps the factor of a nearly singular Gram matrix finite; far below any tolerance.
JITTER = 1e-10


@dataclass(frozen=True)
class Growth:
    """A chosen size, the sizes tried with the mean square of the error at each, and why it is no larger.

    The reason is "tolerance met", "no longer falling" or "largest allowed".
    """

    size: int
    sizes: tuple[int, ...]
    estimates: tuple[float, ...]
    tolerance: float
    reason: str

    def to_dict(self) -> Record:
        """Numbers, strings and lists, for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def grow(sizes: Sequence[int], estimates: Sequence[float] | Vector, tolerance: float) -> Growth:
    """The smallest size whose estimate is within the tolerance, or after which it hardly decreases."""
    tried = tuple(int(size) for size in sizes), tuple(float(estimate) for estimate in estimates), tolerance
    for i, estimate in enumerate(estimates):
        if estimate <= tolerance:
            return Growth(tried[0][i], *tried, "tolerance met")
        if i + 1 < len(sizes) and estimates[i + 1] > STALLED * estimate:
            return Growth(tried[0][i], *tried, "no longer falling")
    return Growth(tried[0][-1], *tried, "largest allowed")


def residual_curve(kernel: Matern, points: Points, at: Points, sizes: Sequence[int]) -> Vector:
    """Mean squared projection residual of k(x, ·)/σ, x in ``at``, on the first points; for each size.

    One factor serves all sizes: the leading block of a Cholesky factor is that of the leading block.
    """
    gram = kernel(points, points) / kernel.sigma**2
    gram[np.diag_indices_from(gram)] += JITTER
    factor = cholesky(gram, lower=True, overwrite_a=True)
    psi = solve_triangular(factor, kernel(points, at) / kernel.sigma**2, lower=True)
    explained = np.cumsum(np.einsum("ij,ij->i", psi, psi)) / len(at)
    return np.maximum(1 - explained[np.asarray(sizes) - 1], 0)


def choose_landmarks(
    name: Literal["n_landmarks", "n_basis"], kernel: Matern, inputs: Inputs, n_transitions: int,
    random_state: int = 0,
) -> Growth:  # fmt: skip
    """Number of landmarks or of basis points, by the sections at held-out inputs of a sample.

    Points are drawn from the sample at random, which covers it a little less well than k-means centres.
    ``n_transitions`` is N, of all the data.
    """
    distinct = np.unique(inputs, axis=0)
    distinct = distinct[np.random.default_rng([random_state, 11]).permutation(len(distinct))]
    limit = min(MOST[name], int(PER_ROOT[name] * np.sqrt(n_transitions)))
    sizes = _ladder(name, min(limit, (len(distinct) + 1) // 2))
    held_out = distinct[max(sizes[-1], len(distinct) - N_HELD_OUT) :]
    if len(held_out) == 0:  # a single input
        held_out = distinct
    curve = residual_curve(kernel, distinct[: sizes[-1]], held_out, sizes)
    return grow(sizes, curve, _tolerance(name, n_transitions))


def choose_atoms(
    kernel: Matern, atoms: Atoms, returns: Points, reward: Points, discount: float, n_transitions: int,
    random_state: int = 0,
) -> Growth:  # fmt: skip
    """Number of atoms, by the shifted sections k(r + γz, ·) (app:Grid-Z) of rewards r and returns z.

    ``atoms`` are candidates, taken in order: shuffled returns, or points that fill a box. ``returns`` and
    ``reward`` are samples; ``n_transitions`` is N, of all the data.
    """
    rng = np.random.default_rng([random_state, 12])
    shifted = reward[rng.integers(len(reward), size=N_HELD_OUT)]
    shifted = shifted + discount * returns[rng.integers(len(returns), size=N_HELD_OUT)]
    sizes = _ladder("n_atoms", len(atoms))
    curve = residual_curve(kernel, atoms[: sizes[-1]], shifted, sizes)
    return grow(sizes, curve, _tolerance("n_atoms", n_transitions))


def choose_features(
    kernel: Matern, grid: Atoms, reward: Points, discount: float, method: Method, n_transitions: int,
    random_state: int = 0,
) -> Growth:  # fmt: skip
    """Number of frequencies, by the error of their kernel between grid points z and shifted ones r + γz.

    ``reward`` is a sample; ``method`` says how frequencies are drawn, with the same seed;
    ``n_transitions`` is N, of all the data.
    """
    rng = np.random.default_rng([random_state, 13])
    atoms = grid[rng.permutation(len(grid))[: N_COMPARED // 2]]
    shifted = reward[rng.integers(len(reward), size=len(atoms))] + discount * atoms
    points, dim, sizes = np.vstack([atoms, shifted]), grid.shape[1], LADDERS["n_features"]
    drawn = (frequencies(kernel, dim, size, method, random_state) for size in sizes)
    errors = [kernel_error(kernel, points, frequency) for frequency in drawn]
    return grow(sizes, np.square(errors), _tolerance("n_features", n_transitions))


def _tolerance(name: Size, n_transitions: int) -> float:
    return float(TOLERANCES[name] * n_transitions ** (-1 / 3))


def _ladder(name: Size, limit: int) -> list[int]:
    """Sizes up to a limit, which is one of them if the ladder is longer."""
    limit = max(1, min(limit, MOST[name]))
    return [size for size in LADDERS[name] if size < limit] + [limit]
