"""Coordinates in which the Bellman criterion is nearly isotropic.

In terms of C, the coefficients with respect to the whitened basis (B = T_L C, so that λ_B tr(BᵀK_LB) is
λ_B‖C‖²), the Hessian of the criterion over two is a mean of Kronecker products over the conditioning points,

    Σϱ k̃k̃ᵀ⊗(K_Z + λ_mass 11ᵀ) − Σϱ (k̃Φ̃ᵀ⊗H + Φ̃k̃ᵀ⊗Hᵀ) + Σϱ Φ̃Φ̃ᵀ⊗G + λ_B I.

It is at most about twice S⊗R + λ_B I, where S = Σϱ (k̃k̃ᵀ + Φ̃Φ̃ᵀ) and R = K_Z + Ḡ + λ_mass 11ᵀ, Ḡ the mean
of G. That matrix is diagonal in the eigenvectors of S on the left and of R on the right, so that the
preconditioner is a change of coordinates C = V (Y / D) Rᵀ, after which it is the identity. Without Φ̃ in S
there is no such bound: a policy that leads where conditioning points are few has large Φ̃ in directions of
small Σϱ k̃k̃ᵀ.

H depends on the point through ρ(x) alone, linearly, G through |ρ(x)|². Both are smooth functions of the
input, so that a few of their principal components say nearly all: with ρ ≈ Σ_j c_j(x)·R_j the second term is
Σ_j (Σϱ c_j k̃Φ̃ᵀ)⊗H[R_j], a short sum that knows neither the number of points nor that of features. A
:class:`Surrogate` is the Hessian with such sums; conjugate gradients on it, which the driver runs by itself,
take the place of most products with the Hessian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from kedrl_dask.numerics.criterion.separated import ReturnSpace, Space
from kedrl_dask.numerics.kernels.spectral import as_complex
from kedrl_dask.utils.arrays import Array

__all__ = [
    "EXPANSION_SAMPLE",
    "MOST_DIRECTIONS",
    "SEEN_SHARE",
    "USUAL_TERMS",
    "Coordinates",
    "Expansion",
    "Surrogate",
    "SurrogateCost",
    "return_gram",
]


#: Conditioning points whose ρ gives the principal components, and the share of its power that they leave out.
EXPANSION_SAMPLE, EXPANSION_TAIL = 512, 1e-4
#: Most directions on the input's side that a surrogate sees: the largest of S. Others are left as they are.
MOST_DIRECTIONS = 400
#: Share of the trace of S that they must hold for a surrogate to be worth its steps. Where S falls off
#: slowly, as with short length scales, the other directions decide how many products it takes: on 1,500
#: transitions of the Expedia application, with 800 basis points, 102 with a surrogate and 96 without, when S
#: was of the conditioning points alone.
SEEN_SHARE = 0.99
#: Reduction of the residual at which the iteration on a surrogate ends, and the most steps it takes.
INNER_TOLERANCE, INNER_STEPS = 0.1, 60
#: Products with the Hessian that a surrogate usually saves, and steps on it that a solution usually takes.
SAVED_PRODUCTS, USUAL_STEPS = 80, 150
#: Components of ρ and of |ρ|² that usually suffice.
USUAL_TERMS = (18, 10)


@dataclass(frozen=True)
class Coordinates:
    """C = left · (Y / spread) · rightᵀ, with orthogonal ``left`` and ``right``.

    ``moment`` are the eigenvalues of S in the order of the columns of ``left``, rising; ``ridge`` is λ_B.
    """

    left: Array
    right: Array
    spread: Array
    moment: Array
    ridge: float

    @classmethod
    def build(cls, moment: Array, return_gram: Array, ridge: float) -> Coordinates:
        """Diagonalise moment⊗return_gram + ridge·I.

        Parameters
        ----------
        moment : (rank, rank) array
            S, from :func:`~kedrl_dask.numerics.criterion.separated.moments`;
            Σϱ k̃k̃ᵀ alone in the paired construction.
        return_gram : (m, m) array
            K_Z + Ḡ + λ_mass 11ᵀ.
        ridge : float
            λ_B.
        """
        by_input, left = eigh(moment)
        by_return, right = eigh(return_gram)
        by_input = np.maximum(by_input, 0)
        spread = np.outer(by_input, np.maximum(by_return, 0)) + ridge
        return cls(left, right, np.sqrt(2 * spread), by_input, ridge)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of Y, and of C."""
        return self.spread.shape

    def directions(self) -> Array:
        """The columns of ``left`` that a surrogate sees: those of the largest eigenvalues of S."""
        return self.left[:, -MOST_DIRECTIONS:]

    @property
    def seen_share(self) -> float:
        """Share of the trace of S in these directions."""
        total = float(self.moment.sum())
        return float(self.moment[-MOST_DIRECTIONS:].sum()) / total if total > 0 else 1.0

    def to_coefficients(self, y: Array) -> Array:
        """C of the coordinates Y."""
        return self.left @ (y / self.spread) @ self.right.T

    def pull_back(self, gradient: Array) -> Array:
        """Gradient with respect to Y of a function whose gradient with respect to C is given."""
        return (self.left.T @ gradient @ self.right) / self.spread

    def from_coefficients(self, coefficients: Array) -> Array:
        """Y of C."""
        return (self.left.T @ coefficients @ self.right) * self.spread


def return_gram(space: Space, target_moment: Array, mass_penalty: float) -> Array:
    """K_Z + Ḡ + λ_mass 11ᵀ; ``target_moment`` is from ``separated.moments``."""
    return space.gram + space.mean_target(target_moment) + mass_penalty


@dataclass(frozen=True)
class Expansion:
    """ρ(x) ≈ Σ_j c_j(x)·R_j and |ρ(x)|² ≈ Σ_j p_j(x)·P_j: means first, then principal components.

    Attributes
    ----------
    waves : (J, 2Q) array
        R, real and imaginary parts in turn.
    powers : (J', Q) array
        P.
    """

    waves: Array
    powers: Array

    @classmethod
    def of_sample(cls, reward_waves: Array) -> Expansion:
        """Components of the rows ρ (n, 2Q) of a sample."""
        return cls(_components(reward_waves), _components(_power(reward_waves)))

    def __call__(self, reward_waves: Array) -> tuple[Array, Array]:
        """Coordinates c (n, J) and p (n, J') of rows ρ (n, 2Q)."""
        return _coordinates(reward_waves, self.waves), _coordinates(_power(reward_waves), self.powers)

    def astype(self, dtype: npt.DTypeLike) -> Expansion:
        """The same in another precision."""
        return replace(self, waves=self.waves.astype(dtype), powers=self.powers.astype(dtype))


def _power(waves: Array) -> Array:
    square = np.square(waves)
    return square[:, 0::2] + square[:, 1::2]


def _components(sample: Array) -> Array:
    """Mean, and the principal components without which more than EXPANSION_TAIL of the power would miss."""
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


def _coordinates(rows: Array, components: Array) -> Array:
    """One, and the projections of what is left of the rows without the mean."""
    coordinates = np.ones((len(rows), len(components)), rows.dtype)
    coordinates[:, 1:] = (rows - components[0]) @ components[1:].T
    return coordinates


class Surrogate:
    """The Hessian over two with ρ expanded, in preconditioned coordinates and single precision.

    Parameters
    ----------
    coordinates : Coordinates
    expansion : Expansion
    moments : tuple of (l, l), (J, l, l) and (J', l, l) arrays
        Σϱ k̃k̃ᵀ, Σϱ c_j k̃Φ̃ᵀ and Σϱ p_j Φ̃Φ̃ᵀ, in the :meth:`directions` of the coordinates.
    space : ReturnSpace
    mass_penalty : float
        λ_mass.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        expansion: Expansion,
        moments: tuple[Array, ...],
        space: ReturnSpace,
        mass_penalty: float,
    ) -> None:
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

    def product(self, y: Array) -> Array:
        """The surrogate times coordinates Y (l, m), in single precision."""
        z = y * self._scale
        # All terms at once: (A_1Z, A_2Z, …) side by side, times their partners one above the other.
        stacked = (self._left @ z).reshape(self._n, *z.shape)
        image = stacked.transpose(1, 0, 2).reshape(len(z), -1) @ self._right
        image += self._ridge * z
        return image * self._scale

    def __call__(self, residual: Array) -> Array:
        """Approximate solution Y of surrogate·Y = residual, by a few steps of conjugate gradients.

        A surrogate may be indefinite. In a direction of negative curvature the iteration ends with what it
        has, which is a direction of descent still.
        """
        solution = np.array(residual, dtype=np.float64)
        part = residual[-self._rows :]
        size = float(np.linalg.norm(part))
        if size == 0:
            return solution
        rest: Array = (part / size).astype(np.float32)
        y: Array
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


def _turned(waves: Array, by: Array) -> Array:
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
