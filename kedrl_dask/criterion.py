"""The Bellman criterion (eq:global_B_objective) on one chunk of conditioning points.

With F = exp(iZWᵀ) and E = exp(iγZWᵀ), the residual of the projected Bellman equation at a
conditioning point x with k = k_L(x), Φ = Φ_L(x) (eq:Phi) and ρ = Ê[exp(iWR) | x] is the vector

    f = Fᵀu − ρ ⊙ (Eᵀv) − τ,   u = Bᵀk,   v = BᵀΦ,

and the squared residual (eq:gamma_with_W) is (σ²/Q)‖f‖². τ = Ê[1{terminal}·exp(iWR) | x] is the part of
the target that has no continuation; it is absent when no episode of the data terminates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.kernels import Matern
from kedrl_dask.spectral import waves

__all__ = [
    "Chunk",
    "Penalties",
    "ReturnSpace",
    "bellman_residual",
    "moments",
    "operators",
    "product",
    "value_and_gradient",
]

Array = npt.NDArray[Any]

#: Rows worked on at a time: their feature matrices then stay in a core's cache.
BLOCK_ROWS = 512


@dataclass(frozen=True)
class ReturnSpace:
    """The return grid seen through the spectral features.

    Attributes
    ----------
    grid_waves : (m, 2Q) array
        F as [cos | sin].
    shifted_waves : (m, 2Q) array
        E as [cos | sin].
    scale : float
        σ²/Q.
    """

    grid_waves: Array
    shifted_waves: Array
    scale: float

    @classmethod
    def build(cls, grid: Array, frequencies: Array, discount: float, kernel: Matern) -> ReturnSpace:
        """Features of the atoms and of the discounted atoms."""
        return cls(
            waves(grid, frequencies), waves(discount * grid, frequencies), kernel.sigma**2 / len(frequencies)
        )

    @property
    def gram(self) -> Array:
        """K_Z, in features; (m, m)."""
        return self.scale * (self.grid_waves @ self.grid_waves.T)


@dataclass(frozen=True)
class Chunk:
    """What the criterion needs of some conditioning points; never an m×m matrix.

    Attributes
    ----------
    weights : (n,) array
        ϱ.
    basis : (n, L) array
        k_L.
    continuation : (n, L) array
        Φ_L.
    reward_waves : (n, 2Q) array
        ρ as [real | imaginary].
    terminal_waves : (n, 2Q) array or None
        τ as [real | imaginary].
    """

    weights: Array
    basis: Array
    continuation: Array
    reward_waves: Array
    terminal_waves: Array | None = None

    def __len__(self) -> int:
        """Return the number of conditioning points."""
        return len(self.weights)

    def rows(self, selection: slice | Array) -> Chunk:
        """Some of the points."""
        terminal = None if self.terminal_waves is None else self.terminal_waves[selection]
        return Chunk(
            self.weights[selection],
            self.basis[selection],
            self.continuation[selection],
            self.reward_waves[selection],
            terminal,
        )

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[Chunk]:
        """Consecutive pieces of at most ``size`` points."""
        for start in range(0, len(self), size):
            yield self.rows(slice(start, start + size))


@dataclass(frozen=True)
class Penalties:
    """λ_mass, c_mass and λ_neg of eq:global_B_objective; λ_B is applied once, by the driver."""

    mass: float = 1.0
    target_mass: float = 1.0
    negative: float = 0.0

    def homogeneous(self) -> Penalties:
        """The quadratic part alone."""
        return replace(self, target_mass=0.0, negative=0.0)


def _rotate(rho: Array, x: Array) -> Array:
    """ρ ⊙ x for complex arrays stored as [real | imaginary]."""
    n = rho.shape[1] // 2
    out = np.empty_like(x)
    np.multiply(rho[:, :n], x[:, :n], out=out[:, :n])
    out[:, :n] -= rho[:, n:] * x[:, n:]
    np.multiply(rho[:, :n], x[:, n:], out=out[:, n:])
    out[:, n:] += rho[:, n:] * x[:, :n]
    return out


def _rotate_back(rho: Array, x: Array) -> Array:
    """conj(ρ) ⊙ x for complex arrays stored as [real | imaginary]."""
    n = rho.shape[1] // 2
    out = np.empty_like(x)
    np.multiply(rho[:, :n], x[:, :n], out=out[:, :n])
    out[:, :n] += rho[:, n:] * x[:, n:]
    np.multiply(rho[:, :n], x[:, n:], out=out[:, n:])
    out[:, n:] -= rho[:, n:] * x[:, :n]
    return out


def _residual_features(chunk: Chunk, space: ReturnSpace, u: Array, v: Array) -> Array:
    """f at each point, as [real | imaginary]; (n, 2Q)."""
    f = u @ space.grid_waves
    f -= _rotate(chunk.reward_waves, v @ space.shifted_waves)
    if chunk.terminal_waves is not None:
        f -= chunk.terminal_waves
    return f


def bellman_residual(chunk: Chunk, space: ReturnSpace, coefficients: Array) -> Array:
    """Squared projected Bellman residual (eq:gamma_with_W) at each point; (n,)."""
    out = np.empty(len(chunk))
    start = 0
    for part in chunk.blocks():
        f = _residual_features(part, space, part.basis @ coefficients, part.continuation @ coefficients)
        out[start : start + len(part)] = space.scale * np.einsum("ij,ij->i", f, f)
        start += len(part)
    return out


def value_and_gradient(
    chunk: Chunk, space: ReturnSpace, penalties: Penalties, coefficients: Array
) -> tuple[float, Array]:
    """Contribution of a chunk to eq:global_B_objective without the ridge, and its gradient (L, m).

    With ``penalties.homogeneous()`` and no terminal part the criterion is a quadratic form, whose gradient
    is the product of its Hessian with B: see :func:`product`.
    """
    value, gradient = 0.0, np.zeros(coefficients.shape)
    for part in chunk.blocks():
        u, v = part.basis @ coefficients, part.continuation @ coefficients
        f = _residual_features(part, space, u, v)
        weights = part.weights
        value += space.scale * float(weights @ np.einsum("ij,ij->i", f, f))
        by_u = space.scale * (f @ space.grid_waves.T)
        by_v = -space.scale * (_rotate_back(part.reward_waves, f) @ space.shifted_waves.T)
        excess = u.sum(axis=1) - penalties.target_mass
        value += penalties.mass * float(weights @ excess**2)
        by_u += penalties.mass * excess[:, None]
        if penalties.negative > 0:
            negative = np.minimum(u, 0)
            value += penalties.negative * float(weights @ np.einsum("ij,ij->i", negative, negative))
            by_u += penalties.negative * negative
        by_u *= 2 * weights[:, None]
        by_v *= 2 * weights[:, None]
        gradient += part.basis.T @ by_u
        gradient += part.continuation.T @ by_v
    return value, gradient


def product(chunk: Chunk, space: ReturnSpace, penalties: Penalties, direction: Array) -> Array:
    """Hessian of the quadratic part of the chunk's contribution, times ``direction``; (L, m)."""
    linear = replace(chunk, terminal_waves=None)
    return value_and_gradient(linear, space, penalties.homogeneous(), direction)[1]


def moments(chunk: Chunk, whitening: Array) -> tuple[Array, Array]:
    """Σϱ (Tᵀk)(Tᵀk)ᵀ (rank, rank) and Σϱ|ρ|² (Q,) over the chunk: what the preconditioner is made of.

    The rows are whitened before they are multiplied: Tᵀ(Σϱkkᵀ)T would lose the small eigenvalues of a
    nearly singular K_L to rounding, and with them the convergence of the solver.
    """
    whitened = chunk.basis @ whitening
    real, imaginary = np.split(chunk.reward_waves, 2, axis=1)
    return whitened.T @ (chunk.weights[:, None] * whitened), chunk.weights @ (real**2 + imaginary**2)


def operators(space: ReturnSpace, reward_waves: Array) -> tuple[Array, Array]:
    """H(x) and G(x) (eq:h_ij, eq:g_ij) in features, for each row ρ(x) of ``reward_waves``; (n, m, m) each."""
    n_features = reward_waves.shape[1] // 2
    rho = reward_waves[:, :n_features] + 1j * reward_waves[:, n_features:]
    grid = space.grid_waves[:, :n_features] + 1j * space.grid_waves[:, n_features:]
    shifted = space.shifted_waves[:, :n_features] + 1j * space.shifted_waves[:, n_features:]
    h = space.scale * np.einsum("iw,nw,kw->nik", grid.conj(), rho, shifted, optimize=True).real
    g = (
        space.scale
        * np.einsum("iw,nw,kw->nik", shifted.conj(), np.abs(rho) ** 2, shifted, optimize=True).real
    )
    return h, g
