"""Coordinates in which the Bellman criterion is nearly isotropic.

The Hessian of the criterion over two is close to S⊗R + λ_B K_L⊗I, where S = Σϱ k kᵀ and
R = K_Z + Ḡ + λ_mass 11ᵀ, Ḡ the mean target-target Gram matrix. That matrix is diagonal in the basis of
the generalised eigenvectors V of (S, K_L) on the left and the eigenvectors of R on the right, so the
preconditioner is a change of coordinates B = V (Y / D) Rᵀ, after which it is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from kedrl_dask.criterion import ReturnSpace
from kedrl_dask.nystrom import whiten

__all__ = ["Coordinates", "basis_whitening", "return_gram"]

Array = npt.NDArray[Any]

#: Directions of the basis with a smaller share of K_L are rounding noise: their functions are zero.
BASIS_THRESHOLD = 1e-13


@dataclass(frozen=True)
class Coordinates:
    """B = left · (Y / spread) · rightᵀ, with Y of shape (rank, m)."""

    left: Array
    right: Array
    spread: Array

    @classmethod
    def build(cls, whitening: Array, moment: Array, return_gram: Array, ridge: float) -> Coordinates:
        """Diagonalise S⊗return_gram + ridge·K_L⊗I.

        Parameters
        ----------
        whitening : (L, rank) array
            T with TᵀK_LT = I.
        moment : (rank, rank) array
            TᵀST, from :func:`~kedrl_dask.criterion.moments`.
        return_gram : (m, m) array
            K_Z + Ḡ + λ_mass 11ᵀ.
        ridge : float
            λ_B.
        """
        by_input, rotation = eigh(moment)
        by_return, right = eigh(return_gram)
        spread = np.outer(np.maximum(by_input, 0), np.maximum(by_return, 0)) + ridge
        return cls(whitening @ rotation, right, np.sqrt(2 * spread))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of Y."""
        return self.spread.shape

    def to_coefficients(self, y: Array) -> Array:
        """B of the coordinates Y."""
        return self.left @ (y / self.spread) @ self.right.T

    def pull_back(self, gradient: Array) -> Array:
        """Gradient with respect to Y of a function whose gradient with respect to B is given."""
        return (self.left.T @ gradient @ self.right) / self.spread

    def from_coefficients(self, coefficients: Array, basis_gram: Array) -> Array:
        """Y of B, as leftᵀ K_L left = I."""
        return (self.left.T @ basis_gram @ coefficients @ self.right) * self.spread


def basis_whitening(basis_gram: Array) -> Array:
    """T with TᵀK_LT = I, without the directions of K_L that are rounding noise; (L, rank)."""
    return whiten(basis_gram, BASIS_THRESHOLD)


def return_gram(space: ReturnSpace, reward_power: Array, mass_penalty: float) -> Array:
    """K_Z + Ḡ + λ_mass 11ᵀ with Ḡ = (σ²/Q) Re E diag(Σϱ|ρ|²) Eᴴ; ``reward_power`` is Σϱ|ρ|² (Q,)."""
    power = np.repeat(reward_power, 2)
    mean_target = space.scale * ((space.shifted_waves * power) @ space.shifted_waves.T)
    return space.gram + mean_target + mass_penalty
