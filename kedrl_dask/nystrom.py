"""Whitened Nyström features of the input kernel, and regression on them.

With landmarks V, K_VV = U diag(e) Uᵀ and T = U/√e on the eigenvalues kept, the features
ψ(x) = Tᵀ k_V(x) are orthonormal in the RKHS. The conditional weights Γ(x) of the paper (eq:Gamma)
never exist as N-vectors: for any response y, Ê[y | x] = Γ(x)ᵀy = ψ(x)ᵀ (A + NλI)⁻¹ C_y with
A = Σ ψ(x_j)ψ(x_j)ᵀ and C_y = Σ ψ(x_j) y_jᵀ, exactly when every input is a landmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, eigh

from kedrl_dask.kernels import Matern

__all__ = ["NystromFeatures", "solve_ridge", "whiten"]

Array = npt.NDArray[Any]


def whiten(gram: Array, threshold: float) -> Array:
    """T with Tᵀ·gram·T = I on the eigenvalues above ``threshold`` times the largest; shape (n, rank)."""
    values, vectors = eigh(gram)
    keep = values > threshold * values[-1]
    # Largest first: the leading columns are the smooth features whatever the threshold.
    return vectors[:, keep][:, ::-1] / np.sqrt(values[keep][::-1])


@dataclass(frozen=True)
class NystromFeatures:
    """The map x ↦ ψ(x) = Tᵀ k_V(x).

    Attributes
    ----------
    kernel : Matern
    landmarks : (s, p + q) array
    whitening : (s, r) array
        T. Whitening is not optional: sums of the raw k_V(x) lose every digit in single precision.
    """

    kernel: Matern
    landmarks: Array
    whitening: Array

    @classmethod
    def from_landmarks(cls, kernel: Matern, landmarks: Array, threshold: float = 1e-8) -> NystromFeatures:
        """Whiten the Gram matrix of ``landmarks``."""
        landmarks = np.asarray(landmarks, dtype=np.float64)
        return cls(kernel, landmarks, whiten(kernel(landmarks, landmarks), threshold))

    @property
    def rank(self) -> int:
        """Number r of features."""
        return int(self.whitening.shape[1])

    def __call__(self, inputs: Array) -> Array:
        """ψ of each row of ``inputs``; shape (n, r)."""
        return self.kernel(inputs, self.landmarks) @ self.whitening

    def residual(self, inputs: Array) -> float:
        """Mean of 1 − ‖ψ(x)‖²/k(x, x): the part of the kernel that the landmarks do not see."""
        psi = self(inputs)
        return float(1 - np.einsum("ij,ij->i", psi, psi).mean() / self.kernel.sigma**2)


def solve_ridge(gram: Array, responses: Array, n_transitions: float, ridge: float) -> Array:
    """(A + NλI)⁻¹ C for the sums A (r, r) and C (r, k) of the streaming pass."""
    system = gram + n_transitions * ridge * np.eye(len(gram))
    return cho_solve(cho_factor(system, lower=True, overwrite_a=True), responses)
