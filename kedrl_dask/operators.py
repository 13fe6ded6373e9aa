"""The conditional operators at any input: k_L, Φ_L, ρ, τ and the mass ΣΓ, from one ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.criterion import Chunk
from kedrl_dask.kernels import Matern
from kedrl_dask.nystrom import NystromFeatures

__all__ = ["ConditionalOperators"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ConditionalOperators:
    """x ↦ what the criterion needs there.

    Attributes
    ----------
    features : NystromFeatures
        ψ.
    basis : (L, p + q) array
        The state-action basis.
    continuation : (r, L) array
        (A + NλI)⁻¹ C_κ, so that Φ_L(x) = ψ(x)ᵀ of it (eq:Phi).
    reward : (r, 2Q) array
        The same for exp(iWr).
    terminal : (r, 2Q) array or None
        The same for 1{terminal}·exp(iWr); None when no episode terminates.
    mass : (r,) array
        The same for the constant 1.
    """

    features: NystromFeatures
    basis: Array
    continuation: Array
    reward: Array
    terminal: Array | None
    mass: Array

    @property
    def kernel(self) -> Matern:
        """The input kernel."""
        return self.features.kernel

    def __call__(self, inputs: Array, weights: Array | None = None) -> tuple[Chunk, Array]:
        """Chunk of the criterion at the rows of ``inputs``, and the mass ΣΓ there.

        ``weights`` are the ϱ of the inputs; equal ones that sum to one unless given.
        """
        if weights is None:
            weights = np.full(len(inputs), 1.0 / max(1, len(inputs)))
        psi = self.features(inputs)
        chunk = Chunk(
            weights,
            self.kernel(inputs, self.basis),
            psi @ self.continuation,
            psi @ self.reward,
            None if self.terminal is None else psi @ self.terminal,
        )
        return chunk, psi @ self.mass
