"""Coordinates in which the Bellman criterion is nearly isotropic.

In terms of C, the coefficients with respect to the whitened basis (B = T_L C, so that λ_B tr(BᵀK_LB) is
λ_B‖C‖²), the Hessian of the criterion over two is close to S⊗R + λ_B I, where S = Σϱ k̃k̃ᵀ and
R = K_Z + Ḡ + λ_mass 11ᵀ, Ḡ the mean target-target Gram matrix. That matrix is diagonal in the eigenvectors
of S on the left and of R on the right, so the preconditioner is a change of coordinates C = V (Y / D) Rᵀ,
after which it is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from kedrl_dask.criterion import Space

__all__ = ["Coordinates", "return_gram"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Coordinates:
    """C = left · (Y / spread) · rightᵀ, with orthogonal ``left`` and ``right``."""

    left: Array
    right: Array
    spread: Array

    @classmethod
    def build(cls, moment: Array, return_gram: Array, ridge: float) -> Coordinates:
        """Diagonalise moment⊗return_gram + ridge·I.

        Parameters
        ----------
        moment : (rank, rank) array
            S, from :func:`~kedrl_dask.criterion.moments`.
        return_gram : (m, m) array
            K_Z + Ḡ + λ_mass 11ᵀ.
        ridge : float
            λ_B.
        """
        by_input, left = eigh(moment)
        by_return, right = eigh(return_gram)
        spread = np.outer(np.maximum(by_input, 0), np.maximum(by_return, 0)) + ridge
        return cls(left, right, np.sqrt(2 * spread))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of Y, and of C."""
        return self.spread.shape

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
    """K_Z + Ḡ + λ_mass 11ᵀ; ``target_moment`` is from :func:`~kedrl_dask.criterion.moments`."""
    return space.gram + space.mean_target(target_moment) + mass_penalty
