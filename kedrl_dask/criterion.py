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
from kedrl_dask.scratch import scratch
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
    def dtype(self) -> np.dtype[Any]:
        """Precision of the features."""
        return self.grid_waves.dtype

    def astype(self, dtype: npt.DTypeLike) -> ReturnSpace:
        """The same features in another precision."""
        return ReturnSpace(self.grid_waves.astype(dtype), self.shifted_waves.astype(dtype), self.scale)

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
        k_L, or in a fit its whitened form; coefficients belong to the one or the other.
    continuation : (n, L) array
        Φ_L, likewise.
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

    def astype(self, dtype: npt.DTypeLike) -> Chunk:
        """The same points in another precision; no copy where it is theirs."""
        terminal = self.terminal_waves
        return Chunk(
            self.weights.astype(dtype, copy=False),
            self.basis.astype(dtype, copy=False),
            self.continuation.astype(dtype, copy=False),
            self.reward_waves.astype(dtype, copy=False),
            None if terminal is None else terminal.astype(dtype, copy=False),
        )

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


def _block_rows(width: int, itemsize: int) -> int:
    """Points worked on at a time: two rows of features for each stay in a core's own cache."""
    return max(32, CACHE_BYTES // (2 * width * itemsize))


class _Workspace:
    """Goes over the blocks of a chunk, in memory that they share.

    The precision is that of the return space; where the chunk is stored in another one, its blocks are
    converted as they come.
    """

    def __init__(self, chunk: Chunk, space: ReturnSpace) -> None:
        (n_atoms, width), self.dtype = space.grid_waves.shape, space.grid_waves.dtype
        self.chunk, self.space = chunk, space
        self.rows = min(_block_rows(width, self.dtype.itemsize), len(chunk))
        self.features = scratch("residual", (2, self.rows, width), self.dtype)
        self.atoms = scratch("atoms", (2, self.rows, n_atoms), self.dtype)

    def _block(self, which: slice) -> Chunk:
        """Some points in the precision of the work."""
        part = self.chunk.rows(which)
        if part.basis.dtype == self.dtype:
            return replace(part, weights=part.weights.astype(self.dtype, copy=False))
        arrays: dict[str, Any] = {}
        for name, array in vars(part).items():
            if array is not None:
                array = _copied(f"block {name}", array, self.dtype)
            arrays[name] = array
        return Chunk(**arrays)

    def blocks(self, coefficients: Array) -> Iterator[tuple[slice, Chunk, Array, Array, Array, Array]]:
        """Rows, points, u, v, the residual's features f, and spare features, for each block in turn."""
        for start in range(0, len(self.chunk), self.rows):
            which = slice(start, start + self.rows)
            part = self._block(which)
            (u, v), (f, work) = (memory[:, : len(part)] for memory in (self.atoms, self.features))
            np.matmul(part.basis, coefficients, out=u)
            np.matmul(part.continuation, coefficients, out=v)
            np.matmul(u, self.space.grid_waves, out=f)
            np.matmul(v, self.space.shifted_waves, out=work)
            rotated = as_complex(work)
            rotated *= as_complex(part.reward_waves)
            f -= work
            if part.terminal_waves is not None:
                f -= part.terminal_waves
            yield which, part, u, v, f, work


def _copied(name: str, array: Array, dtype: npt.DTypeLike) -> Array:
    out = scratch(name, array.shape, dtype)
    out[...] = array
    return out


def bellman_residual(chunk: Chunk, space: ReturnSpace, coefficients: Array) -> Array:
    """Squared projected Bellman residual (eq:gamma_with_W) at each point; (n,)."""
    out = np.empty(len(chunk))
    for which, _, _, _, f, _ in _Workspace(chunk, space).blocks(coefficients):
        np.einsum("ij,ij->i", f, f, out=out[which])
    return space.scale * out


def value_and_gradient(
    chunk: Chunk, space: ReturnSpace, penalties: Penalties, coefficients: Array
) -> tuple[float, Array]:
    """Contribution of a chunk to eq:global_B_objective without the ridge, and its gradient.

    Products are in the precision of ``coefficients`` and ``space``; the sums over blocks are in double
    precision. With ``penalties.homogeneous()`` and no terminal part the criterion is a quadratic form,
    whose gradient is the product of its Hessian with the coefficients: see :func:`product`.
    """
    total, gradient = 0.0, np.zeros(coefficients.shape)
    block_gradient = scratch("gradient", coefficients.shape, space.dtype)
    for _, part, u, v, f, work in _Workspace(chunk, space).blocks(coefficients):
        square = space.scale * np.einsum("ij,ij->i", f, f)
        excess = u.sum(axis=1, keepdims=True) - space.dtype.type(penalties.target_mass)
        square += penalties.mass * excess[:, 0] ** 2
        weights = part.weights[:, None]
        negative = None
        if penalties.negative > 0:
            negative = np.minimum(u, 0)
            square += penalties.negative * np.einsum("ij,ij->i", negative, negative)
        total += float(part.weights @ square)
        by_u = np.matmul(f, space.grid_waves.T, out=u)
        by_u *= space.dtype.type(space.scale)
        by_u += space.dtype.type(penalties.mass) * excess
        if negative is not None:
            by_u += space.dtype.type(penalties.negative) * negative
        by_u *= weights
        rotated_back = np.conjugate(as_complex(part.reward_waves), out=as_complex(work))
        rotated_back *= as_complex(f)
        by_v = np.matmul(work, space.shifted_waves.T, out=v)
        by_v *= -space.dtype.type(space.scale) * weights
        gradient += np.matmul(part.basis.T, by_u, out=block_gradient)
        gradient += np.matmul(part.continuation.T, by_v, out=block_gradient)
    return total, 2 * gradient


def product(chunk: Chunk, space: ReturnSpace, penalties: Penalties, direction: Array) -> Array:
    """Hessian of the quadratic part of the chunk's contribution, times ``direction``."""
    linear = replace(chunk, terminal_waves=None)
    return value_and_gradient(linear, space, penalties.homogeneous(), direction)[1]


def moments(chunk: Chunk) -> tuple[Array, Array]:
    """Σϱ k̃k̃ᵀ and Σϱ|ρ|² (Q,) over the chunk, in double precision: what the preconditioner is made of."""
    basis = chunk.basis.astype(np.float64, copy=False)
    power = chunk.weights @ np.square(chunk.reward_waves, dtype=np.float64)
    return basis.T @ (chunk.weights[:, None] * basis), power[0::2] + power[1::2]


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
