"""The paired Bellman criterion (app:paired_bellman_estimator) in features, in time linear in the data.

The target keeps reward and continuation of a transition together: component w of its features at x is
Ê[exp(i w·R)·κ | x]ᵀ B E_w. With κ̃ = T_Lᵀκ, B = T_L C and the regression on ψ it is ψ(x)ᵀ P_w C E_w, where
P_w = (A + NλI)⁻¹ Σ_j ψ_j exp(i w·r_j) κ̃_jᵀ does not depend on B. So the residual

    f(x) = (CF)ᵀ k̃(x) − (D + τ)ᵀ ψ(x),   D_w = P_w C E_w,

is linear in k̃(x) and ψ(x), and the sum of ϱ‖f‖² over the conditioning points needs no more of them than
their second moments: M points are worth as many as k̃ and ψ have coordinates, those of :class:`Points`.
The cost of a product of the Hessian depends neither on N nor on M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.kernels.spectral import as_complex
from kedrl_dask.utils.arrays import Coefficients, Complex, Features, Matrices, Matrix, Vector, Waves, Weights
from kedrl_dask.utils.scratch import scratch

#: Waves whose products with κ̃ are formed at a time: those of four frequencies.
WAVES = 8


@dataclass(frozen=True)
class Points:
    """Rows √ϱ k̃ (n, L) and √ϱ ψ (n, r), or others with the same second moments Σϱ (k̃, ψ)(k̃, ψ)ᵀ."""

    basis: Features
    features: Features

    @classmethod
    def of(cls, basis: Features, features: Features, weights: Weights) -> Points:
        """The points themselves, multiplied by the roots of their weights ϱ."""
        root = np.sqrt(weights)[:, None].astype(basis.dtype)
        return cls(root * basis, root * features)

    def compressed(self) -> Points:
        """At most L + r rows with the same moments: the triangular factor of a QR decomposition."""
        n_basis = self.basis.shape[1]
        triangle: Matrix = np.linalg.qr(np.hstack([self.basis, self.features]), mode="r")  # type: ignore[assignment]
        return Points(triangle[:, :n_basis], triangle[:, n_basis:])

    def merged(self, other: Points) -> Points:
        """At most L + r rows for both sets of points."""
        basis = np.vstack([self.basis, other.basis])
        return Points(basis, np.vstack([self.features, other.features])).compressed()

    def astype(self, dtype: npt.DTypeLike) -> Points:
        """The same in another precision."""
        return Points(self.basis.astype(dtype), self.features.astype(dtype))


@dataclass(frozen=True)
class FrequencyBlock:
    """P_w (q, r, L), the regression coefficients of τ (r, 2q) and the return space at some frequencies."""

    operator: Complex
    terminal: Matrix | None
    space: ReturnSpace


def forward(operator: Complex, shifted_waves: Waves, coefficients: Coefficients) -> Matrix:
    """D with columns P_w C E_w, real and imaginary parts in turn; (r, 2q)."""
    rotated = as_complex(coefficients @ shifted_waves)
    target = np.matmul(operator, np.ascontiguousarray(rotated.T)[:, :, None])[:, :, 0]
    return _as_real(np.ascontiguousarray(target.T))


def adjoint(operator: Complex, shifted_waves: Waves, by_target: Matrix) -> Coefficients:
    """The transpose of :func:`forward`, (r, 2q) to (L, m)."""
    conjugate = np.ascontiguousarray(as_complex(by_target).conj().T)[:, :, None]
    back = np.matmul(operator.transpose(0, 2, 1), conjugate)[:, :, 0].conj()
    return _as_real(np.ascontiguousarray(back.T)) @ shifted_waves.T


def _as_real(x: Complex) -> Waves:
    """View complex numbers (n, q) as real and imaginary parts in turn (n, 2q)."""
    return x.view(x.real.dtype)


def residual(
    points: Points, grid_waves: Waves, coefficients: Coefficients, target: Matrix
) -> tuple[float, Coefficients, Matrix]:
    """Sum of ϱ‖f‖², and half its derivatives by C, for a given target, and by the target D + τ."""
    f = points.basis @ coefficients @ grid_waves
    f -= points.features @ target
    square = float(np.einsum("ij,ij->", f, f, dtype=np.float64))
    return square, points.basis.T @ (f @ grid_waves.T), -(points.features.T @ f)


def value_and_gradient(
    block: FrequencyBlock, points: Points, coefficients: Coefficients, with_terminal: bool = True
) -> tuple[float, Coefficients]:
    """Contribution of some frequencies to Σϱ(σ²/Q)‖f‖² and its gradient by C, in double precision.

    In the precision of ``coefficients``. Without the terminal part, a quadratic form, the gradient is the
    product of its Hessian with the coefficients.
    """
    dtype, space = coefficients.dtype, block.space
    grid_waves, shifted_waves = (x.astype(dtype, copy=False) for x in (space.grid_waves, space.shifted_waves))
    operator = block.operator.astype(np.result_type(dtype, np.complex64), copy=False)
    total = forward(operator, shifted_waves, coefficients)
    if with_terminal and block.terminal is not None:
        total += block.terminal
    square, by_basis, by_target = residual(points, grid_waves, coefficients, total)
    gradient = by_basis + adjoint(operator, shifted_waves, by_target)
    return space.scale * square, 2 * space.scale * gradient.astype(np.float64)


def target(block: FrequencyBlock, coefficients: Coefficients) -> Matrix:
    """D + τ at some frequencies, in double precision."""
    operator = block.operator.astype(np.complex128, copy=False)
    total = forward(operator, block.space.shifted_waves, coefficients)
    return total if block.terminal is None else total + block.terminal


def mass_penalty(
    moment: Matrix, mean: Vector, target_mass: float, coefficients: Coefficients
) -> tuple[float, Coefficients]:
    """Σϱ(1ᵀu − c)² and its gradient by C, from the moment Σϱk̃k̃ᵀ and the mean Σϱk̃ of the points."""
    total = coefficients.sum(axis=1)
    by_total = moment @ total - target_mass * mean
    value = total @ (moment @ total) - 2 * target_mass * (mean @ total) + target_mass**2
    return float(value), np.broadcast_to(2 * by_total[:, None], coefficients.shape)


def negative_penalty(
    basis: Features, weights: Weights, coefficients: Coefficients
) -> tuple[float, Coefficients]:
    """Σϱ‖(u)₋‖² at some points, and its gradient by C."""
    negative = np.minimum(basis @ coefficients, 0)
    weighted = weights[:, None] * negative
    return float(np.vdot(weighted, negative)), 2 * basis.T @ weighted


def residual_norms(
    basis: Features, features: Features, space: ReturnSpace, coefficients: Coefficients, target: Matrix
) -> Vector:
    """Squared projected Bellman residual at each point, for the target D + τ; (n,)."""
    f = basis @ coefficients @ space.grid_waves - features @ target
    return space.scale * np.einsum("ij,ij->i", f, f)


class Batch(NamedTuple):
    """φ (n, r), κ̃ (n, L) and exp(iWr) (n, 2Q) of some transitions."""

    phi: Features
    kappa: Features
    waves: Waves

    def astype(self, dtype: npt.DTypeLike) -> Batch:
        """The same in another precision; copied only if that differs."""
        return Batch(*(part.astype(dtype, copy=False) for part in self))


def contract(batch: Batch, total: Matrices) -> None:
    """Add Σ_j φ_j ⊗ κ̃_j for each wave to ``total`` (2q, r, L), in double precision."""
    (n, width), rank = batch.kappa.shape, batch.phi.shape[1]
    for start in range(0, batch.waves.shape[1], WAVES):
        which = batch.waves[:, start : start + WAVES]
        n_waves = which.shape[1]
        responses = scratch("paired responses", (n, n_waves, width), batch.phi.dtype)
        np.multiply(which[:, :, None], batch.kappa[:, None, :], out=responses)
        products = scratch("paired products", (rank, n_waves, width), batch.phi.dtype)
        np.matmul(batch.phi.T, responses.reshape(n, -1), out=products.reshape(rank, -1))
        total[start : start + WAVES] += products.transpose(1, 0, 2)


def sweep_forward(batch: Batch, space: ReturnSpace, coefficients: Coefficients) -> Matrix:
    """Sum of φ_j times exp(iWr_j) ⊙ (CE)ᵀκ̃_j over some transitions; (r, 2Q)."""
    responses = batch.kappa @ coefficients @ space.shifted_waves
    rotated = as_complex(responses)
    rotated *= as_complex(batch.waves)
    return batch.phi.T @ responses


def sweep_adjoint(batch: Batch, space: ReturnSpace, by_sums: Matrix) -> Coefficients:
    """The transpose of :func:`sweep_forward`, (r, 2Q) to (L, m)."""
    responses = batch.phi @ by_sums
    rotated = as_complex(responses)
    rotated *= as_complex(batch.waves).conj()
    return batch.kappa.T @ (responses @ space.shifted_waves.T)
