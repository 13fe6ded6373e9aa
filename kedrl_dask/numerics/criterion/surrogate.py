"""A small matrix that stands for the Hessian of the criterion, on which the driver iterates by itself.

In the Hessian (see :mod:`~kedrl_dask.numerics.criterion.preconditioner`), H depends on the point through ρ(x)
alone, linearly, and G through |ρ(x)|². Both are smooth functions of the input, so that a few principal
components capture nearly all of them: with ρ ≈ Σ_j c_j(x)·R_j the second term is Σ_j (Σϱ c_j k̃Φ̃ᵀ)⊗H[R_j], a
short sum whose size depends neither on the number of points nor on that of features. A :class:`Surrogate` is
the Hessian with such sums; conjugate gradients on it replace most products with the Hessian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from kedrl_dask.numerics.criterion.preconditioner import MOST_DIRECTIONS, Coordinates
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.kernels.spectral import as_complex
from kedrl_dask.utils.arrays import Coefficients, Features, Matrices, Matrix, Vector, Waves

#: Conditioning points whose ρ gives the principal components, and the share of its power that they leave out.
EXPANSION_SAMPLE, EXPANSION_TAIL = 512, 1e-4
#: Share of the trace of S that the directions of a surrogate must hold for it to be worth its steps. If S
#: falls off slowly, as with short length scales, the other directions decide how many products it takes: on
#: 1,500 transitions of the Expedia application, with 800 basis points, 102 with a surrogate and 96 without,
#: when S was that of the conditioning points alone.
SEEN_SHARE = 0.99
#: Reduction of the residual at which the iteration on a surrogate ends, and the most steps it takes.
INNER_TOLERANCE, INNER_STEPS = 0.1, 60
#: Products with the Hessian that a surrogate usually saves, and steps on it that a solution usually takes.
SAVED_PRODUCTS, USUAL_STEPS = 80, 150
#: Components of ρ and of |ρ|² that usually suffice.
USUAL_TERMS = (18, 10)


@dataclass(frozen=True)
class Expansion:
    """ρ(x) ≈ Σ_j c_j(x)·R_j and |ρ(x)|² ≈ Σ_j p_j(x)·P_j: means first, then principal components.

    ``waves`` is R (J, 2Q), ``powers`` P (J', Q).
    """

    waves: Waves
    powers: Matrix

    @classmethod
    def of_sample(cls, reward_waves: Waves) -> Expansion:
        """Components of the rows ρ (n, 2Q) of a sample."""
        return cls(_components(reward_waves), _components(_power(reward_waves)))

    def __call__(self, reward_waves: Waves) -> tuple[Features, Features]:
        """Coordinates c (n, J) and p (n, J') of rows ρ (n, 2Q)."""
        return _coordinates(reward_waves, self.waves), _coordinates(_power(reward_waves), self.powers)

    def astype(self, dtype: npt.DTypeLike) -> Expansion:
        """The same in another precision."""
        return replace(self, waves=self.waves.astype(dtype), powers=self.powers.astype(dtype))


def _power(waves: Waves) -> Features:
    square = np.square(waves)
    return square[:, 0::2] + square[:, 1::2]


def _components(sample: Features) -> Matrix:
    """Mean, and principal components that leave out at most EXPANSION_TAIL of the power."""
    mean = sample.mean(axis=0)
    centred = sample - mean
    # There are fewer rows than columns, or not many more.
    variance, vectors = eigh(centred @ centred.T)
    variance, vectors = np.maximum(variance[::-1], 0), vectors[:, ::-1]
    missing = variance.sum() - np.cumsum(variance)
    enough = EXPANSION_TAIL * (len(sample) * (mean @ mean) + variance.sum())
    n = int(np.count_nonzero(missing > enough)) + 1
    n = min(n, int(np.count_nonzero(variance > 1e-12 * variance[0])))
    return np.vstack([mean, (vectors[:, :n] / np.sqrt(variance[:n])).T @ centred])


def _coordinates(rows: Features, components: Matrix) -> Features:
    """One, and the projections of the rows minus their mean."""
    coordinates = np.ones((len(rows), len(components)), rows.dtype)
    coordinates[:, 1:] = (rows - components[0]) @ components[1:].T
    return coordinates


class Surrogate:
    """The Hessian over two with ρ expanded, in preconditioned coordinates and single precision.

    ``moments`` are Σϱ k̃k̃ᵀ (l, l), Σϱ c_j k̃Φ̃ᵀ (J, l, l) and Σϱ p_j Φ̃Φ̃ᵀ (J', l, l), in the ``directions`` of
    the coordinates.
    """

    def __init__(
        self, coordinates: Coordinates, expansion: Expansion, moments: tuple[Matrix, Matrices, Matrices],
        space: ReturnSpace, mass_penalty: float,
    ) -> None:  # fmt: skip
        right, scale = coordinates.right, space.scale
        moment, cross, square = moments
        grid, shifted = right.T @ space.grid_waves, right.T @ space.shifted_waves
        h = [scale * grid @ _turned(shifted, waves).T for waves in expansion.waves]
        g = [scale * (shifted * np.repeat(powers, 2)) @ shifted.T for powers in expansion.powers]
        gram = scale * grid @ grid.T + mass_penalty * np.outer(right.sum(axis=0), right.sum(axis=0))
        self._n, self._rows = 1 + 2 * len(h) + len(g), len(moment)
        left = [moment, *(-cross), *(-cross.transpose(0, 2, 1)), *square]
        self._left = np.concatenate(left).astype(np.float32)
        self._right = np.concatenate([gram, *(x.T for x in h), *h, *g]).astype(np.float32)
        self._ridge = np.float32(coordinates.ridge)
        self._scale = (np.sqrt(2) / coordinates.spread[-self._rows :]).astype(np.float32)

    def product(self, y: Coefficients) -> Coefficients:
        """The surrogate times coordinates Y (l, m), in single precision."""
        z = y * self._scale
        # All terms at once: (A_1Z, A_2Z, …) side by side, times their partners one above the other.
        stacked = (self._left @ z).reshape(self._n, *z.shape)
        image = stacked.transpose(1, 0, 2).reshape(len(z), -1) @ self._right
        image += self._ridge * z
        return image * self._scale

    def __call__(self, residual: Coefficients) -> Coefficients:
        """Approximate solution Y of surrogate·Y = residual, by a few steps of conjugate gradients.

        A surrogate may be indefinite. In a direction of negative curvature the iteration ends with its
        current solution, which still is a direction of descent.
        """
        solution = np.array(residual, dtype=np.float64)
        part = residual[-self._rows :]
        size = float(np.linalg.norm(part))
        if size == 0:
            return solution
        rest: Coefficients = (part / size).astype(np.float32)
        y: Coefficients
        y, direction, square = np.zeros_like(rest), rest, 1.0
        for _ in range(INNER_STEPS):
            image = self.product(direction)
            curvature = float(np.vdot(direction, image))
            if not curvature > 0:
                break
            y = y + np.float32(square / curvature) * direction
            rest = rest - np.float32(square / curvature) * image
            previous, square = square, float(np.vdot(rest, rest))
            if square <= INNER_TOLERANCE**2:
                break
            direction = rest + np.float32(square / previous) * direction
        if y.any():
            solution[-self._rows :] = size * y
        return solution


def _turned(waves: Waves, by: Vector) -> Waves:
    """Rows of waves (m, 2Q) times a complex vector (2Q,), real and imaginary parts in turn."""
    return (as_complex(np.ascontiguousarray(waves)) * as_complex(by)).view(waves.dtype)


class SurrogateCost(NamedTuple):
    """Flop of the sums over all points, of all steps of a solution, and whether products cost more."""

    sums: float
    steps: float
    pays: bool

    @classmethod
    def of(
        cls, rank: int, n_atoms: int, n_waves: int, n_points: int, n_terms: tuple[int, int] = USUAL_TERMS
    ) -> SurrogateCost:
        """With ``n_waves`` = 2Q, and as many components of ρ and of |ρ|² as ``n_terms`` says."""
        n, m, (n_cross, n_square) = min(rank, MOST_DIRECTIONS), n_atoms, n_terms
        sums = 2.0 * n * (2 * rank + n * (n_cross + n_square)) * n_points
        steps = USUAL_STEPS * 2.0 * (2 * n_cross + n_square) * n * m * (n + m)
        product = 8.0 * m * (rank + n_waves) * n_points
        return cls(sums, steps, sums + steps < SAVED_PRODUCTS * product)
