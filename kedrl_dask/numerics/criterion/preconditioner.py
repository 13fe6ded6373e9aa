"""Coordinates in which the Bellman criterion is nearly isotropic.

In terms of C, the coefficients with respect to the whitened basis (B = T_L C, so that λ_B tr(BᵀK_LB) is
λ_B‖C‖²), the Hessian of the criterion over two is a mean of Kronecker products over the conditioning points,

    Σϱ k̃k̃ᵀ⊗(K_Z + λ_mass 11ᵀ) − Σϱ (k̃Φ̃ᵀ⊗H + Φ̃k̃ᵀ⊗Hᵀ) + Σϱ Φ̃Φ̃ᵀ⊗G + λ_B I.

It is at most about twice S⊗R + λ_B I, where S = Σϱ (k̃k̃ᵀ + Φ̃Φ̃ᵀ) and R = K_Z + Ḡ + λ_mass 11ᵀ, Ḡ the mean
of G. That matrix is diagonal in the eigenvectors of S on the left and of R on the right, so that the
preconditioner is a change of coordinates C = V (Y / D) Rᵀ, after which it is the identity. Without Φ̃ in S
there is no such bound: a policy that leads where conditioning points are few has large Φ̃ in directions of
small Σϱ k̃k̃ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from kedrl_dask.numerics.criterion.separated import Space
from kedrl_dask.utils.arrays import Coefficients, Matrix, Vector

#: Most directions on the input's side that a surrogate of the Hessian sees: those of the largest eigenvalues
#: of S. The others are left as they are.
MOST_DIRECTIONS = 400


@dataclass(frozen=True)
class Coordinates:
    """C = left · (Y / spread) · rightᵀ, with orthogonal ``left`` and ``right``.

    ``moment`` holds the eigenvalues of S, increasing, in the order of the columns of ``left``; ``ridge`` is
    λ_B.
    """

    left: Matrix
    right: Matrix
    spread: Matrix
    moment: Vector
    ridge: float

    @classmethod
    def build(cls, moment: Matrix, return_gram: Matrix, ridge: float) -> Coordinates:
        """Diagonalise S⊗(K_Z + Ḡ + λ_mass 11ᵀ) + λ_B·I.

        S is ``moment``, from :func:`~kedrl_dask.numerics.criterion.separated.moments`; in the paired
        construction Σϱ k̃k̃ᵀ alone.
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

    def directions(self) -> Matrix:
        """The columns of ``left`` that a surrogate sees: those of the largest eigenvalues of S."""
        return self.left[:, -MOST_DIRECTIONS:]

    @property
    def seen_share(self) -> float:
        """Share of the trace of S in these directions."""
        total = float(self.moment.sum())
        return float(self.moment[-MOST_DIRECTIONS:].sum()) / total if total > 0 else 1.0

    def to_coefficients(self, y: Coefficients) -> Coefficients:
        """C of the coordinates Y."""
        return self.left @ (y / self.spread) @ self.right.T

    def pull_back(self, gradient: Coefficients) -> Coefficients:
        """Gradient with respect to Y of a function whose gradient with respect to C is given."""
        return (self.left.T @ gradient @ self.right) / self.spread

    def from_coefficients(self, coefficients: Coefficients) -> Coefficients:
        """Y of C."""
        return (self.left.T @ coefficients @ self.right) * self.spread


def return_gram(space: Space, target_moment: Matrix, mass_penalty: float) -> Matrix:
    """K_Z + Ḡ + λ_mass 11ᵀ; ``target_moment`` is from ``separated.moments``."""
    return space.gram + space.mean_target(target_moment) + mass_penalty
