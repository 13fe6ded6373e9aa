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
from kedrl_dask.spectral import as_complex, waves

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

#: What two blocks of features may take: about a core's second-level cache.
CACHE_BYTES = 2**21


@dataclass(frozen=True)
class ReturnSpace:
    """The return grid seen through the spectral features.

    Attributes
    ----------
    grid_waves : (m, 2Q) array
        F, real and imaginary parts in turn.
    shifted_waves : (m, 2Q) array
        E, likewise.
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
        ρ, real and imaginary parts in turn.
    terminal_waves : (n, 2Q) array or None
        τ, likewise.
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


@dataclass(frozen=True)
class Penalties:
    """λ_mass, c_mass and λ_neg of eq:global_B_objective; λ_B is applied once, by the driver."""

    mass: float = 1.0
    target_mass: float = 1.0
    negative: float = 0.0

    def homogeneous(self) -> Penalties:
        """The quadratic part alone."""
        return replace(self, target_mass=0.0, negative=0.0)


def _block_rows(width: int) -> int:
    """Points worked on at a time: two rows of features for each stay in a core's own cache."""
    return max(32, CACHE_BYTES // (16 * width))


def _residual_features(chunk: Chunk, space: ReturnSpace, u: Array, v: Array, f: Array, work: Array) -> None:
    """Compute f at each point into ``f`` (n, 2Q); ``work`` is of the same shape."""
    np.matmul(u, space.grid_waves, out=f)
    np.matmul(v, space.shifted_waves, out=work)
    rotated = as_complex(work)
    rotated *= as_complex(chunk.reward_waves)
    f -= work
    if chunk.terminal_waves is not None:
        f -= chunk.terminal_waves


def _blocks(chunk: Chunk, *arrays: Array) -> Iterator[tuple[Any, ...]]:
    """Pieces of the chunk with the same rows of ``arrays``, and two feature arrays to work in.

    The memory to work in is allocated once: worker processes give freed memory back to the system at
    once, and asking for it again costs more than the arithmetic.
    """
    width = chunk.reward_waves.shape[1]
    rows = min(_block_rows(width), len(chunk))
    f, work = np.empty((2, rows, width), dtype=chunk.reward_waves.dtype)
    for start in range(0, len(chunk), rows):
        which = slice(start, start + rows)
        part = chunk.rows(which)
        yield part, *(a[which] for a in arrays), f[: len(part)], work[: len(part)]


def bellman_residual(chunk: Chunk, space: ReturnSpace, coefficients: Array) -> Array:
    """Squared projected Bellman residual (eq:gamma_with_W) at each point; (n,)."""
    out = np.empty(len(chunk))
    u, v = chunk.basis @ coefficients, chunk.continuation @ coefficients
    for part, u_part, v_part, out_part, f, work in _blocks(chunk, u, v, out):
        _residual_features(part, space, u_part, v_part, f, work)
        np.einsum("ij,ij->i", f, f, out=out_part)
    return space.scale * out


def value_and_gradient(
    chunk: Chunk, space: ReturnSpace, penalties: Penalties, coefficients: Array
) -> tuple[float, Array]:
    """Contribution of a chunk to eq:global_B_objective without the ridge, and its gradient (L, m).

    With ``penalties.homogeneous()`` and no terminal part the criterion is a quadratic form, whose gradient
    is the product of its Hessian with B: see :func:`product`.
    """
    u, v = chunk.basis @ coefficients, chunk.continuation @ coefficients
    by_u, by_v, square = np.empty_like(u), np.empty_like(v), np.empty(len(chunk))
    for part, u_part, v_part, by_u_part, by_v_part, square_part, f, work in _blocks(
        chunk, u, v, by_u, by_v, square
    ):
        _residual_features(part, space, u_part, v_part, f, work)
        np.einsum("ij,ij->i", f, f, out=square_part)
        np.matmul(f, space.grid_waves.T, out=by_u_part)
        rotated_back = np.conjugate(as_complex(part.reward_waves), out=as_complex(work))
        rotated_back *= as_complex(f)
        np.matmul(work, space.shifted_waves.T, out=by_v_part)
    by_u *= space.scale
    by_v *= -space.scale
    square *= space.scale
    excess = u.sum(axis=1) - penalties.target_mass
    square += penalties.mass * excess**2
    by_u += penalties.mass * excess[:, None]
    if penalties.negative > 0:
        negative = np.minimum(u, 0)
        square += penalties.negative * np.einsum("ij,ij->i", negative, negative)
        by_u += penalties.negative * negative
    weights = chunk.weights[:, None]
    gradient = chunk.basis.T @ (weights * by_u)
    gradient += chunk.continuation.T @ (weights * by_v)
    return float(chunk.weights @ square), 2 * gradient


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
    power = chunk.weights @ chunk.reward_waves**2
    return whitened.T @ (chunk.weights[:, None] * whitened), power[0::2] + power[1::2]


def operators(space: ReturnSpace, reward_waves: Array) -> tuple[Array, Array]:
    """H(x) and G(x) (eq:h_ij, eq:g_ij) in features, for each row ρ(x) of ``reward_waves``; (n, m, m) each."""
    rho, grid, shifted = (
        as_complex(np.ascontiguousarray(x)) for x in (reward_waves, space.grid_waves, space.shifted_waves)
    )
    h = space.scale * np.einsum("iw,nw,kw->nik", grid.conj(), rho, shifted, optimize=True).real
    g = (
        space.scale
        * np.einsum("iw,nw,kw->nik", shifted.conj(), np.abs(rho) ** 2, shifted, optimize=True).real
    )
    return h, g
