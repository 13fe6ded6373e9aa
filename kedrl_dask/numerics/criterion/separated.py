"""The Bellman criterion (eq:global_B_objective) on one chunk of conditioning points.

With F = exp(iZWᵀ) and E = exp(iγZWᵀ), the residual of the projected Bellman equation at a
conditioning point x with k = k_L(x), Φ = Φ_L(x) (eq:Phi) and ρ = Ê[exp(iWR) | x] is the vector

    f = Fᵀu − ρ ⊙ (Eᵀv) − τ,   u = Bᵀk,   v = BᵀΦ,

and the squared residual (eq:gamma_with_W) is (σ²/Q)‖f‖². τ = Ê[1{terminal}·exp(iWR) | x] is the part of
the target that has no continuation; it is absent when no episode of the data terminates.

With the kernel itself in place of features, or whenever the blocks H(x) and G(x) (eq:h_ij, eq:g_ij) are
written out, the squared residual is uᵀK_Zu − 2uᵀHv + vᵀGv plus, with t = Σ_j Γ_j 1{terminal_j} k_Z(r_j, ·),

    − 2uᵀ⟨k_Z(z_i, ·), t⟩ + 2vᵀ⟨Σ_j Γ_j k_Z(r_j + γz_i, ·), t⟩ + ‖t‖².

The two kinds of chunk differ only in this step, (u, v) ↦ squared residual and its gradient; weights,
penalties and the gradient with respect to the coefficients are common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import as_complex, waves
from kedrl_dask.utils.arrays import (
    Atoms,
    Coefficients,
    Features,
    Frequencies,
    Indices,
    Matrices,
    Matrix,
    Real,
    Vector,
    Waves,
    Weights,
)
from kedrl_dask.utils.scratch import scratch

#: Bytes of the features, or of H and G, of a block of points: about a core's second-level cache.
CACHE_BYTES = 2**21


@dataclass(frozen=True)
class ReturnSpace:
    """The return grid seen through the spectral features: F and E (m, 2Q), and the scale σ²/Q."""

    grid_waves: Waves
    shifted_waves: Waves
    scale: float

    @classmethod
    def build(cls, grid: Atoms, frequencies: Frequencies, discount: float, kernel: Matern) -> ReturnSpace:
        """Features of the atoms and of the discounted atoms."""
        return cls(
            waves(grid, frequencies), waves(discount * grid, frequencies), kernel.sigma**2 / len(frequencies)
        )

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the features."""
        return self.grid_waves.dtype

    def astype(self, dtype: npt.DTypeLike) -> ReturnSpace:
        """The same features in another precision."""
        return ReturnSpace(self.grid_waves.astype(dtype), self.shifted_waves.astype(dtype), self.scale)

    @property
    def n_atoms(self) -> int:
        """Number m of atoms."""
        return len(self.grid_waves)

    @property
    def point_bytes(self) -> int:
        """Working memory of the residual at one point: two rows of features."""
        return 2 * self.grid_waves.itemsize * self.grid_waves.shape[1]

    @property
    def gram(self) -> Matrix:
        """K_Z, in features; (m, m)."""
        return self.scale * (self.grid_waves @ self.grid_waves.T)

    def mean_target(self, moment: Vector) -> Matrix:
        """Ḡ = (σ²/Q) Re E diag(Σϱ|ρ|²) Eᴴ from Σϱ|ρ|² (Q,); (m, m)."""
        return self.scale * ((self.shifted_waves * np.repeat(moment, 2)) @ self.shifted_waves.T)


@dataclass(frozen=True)
class ExactReturnSpace:
    """The return grid seen through the kernel itself; :attr:`gram` is K_Z (m, m)."""

    gram: Matrix

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Precision of the Gram matrix."""
        return self.gram.dtype

    def astype(self, dtype: npt.DTypeLike) -> ExactReturnSpace:
        """The same space in another precision."""
        return ExactReturnSpace(self.gram.astype(dtype))

    @property
    def n_atoms(self) -> int:
        """Number m of atoms."""
        return len(self.gram)

    @property
    def point_bytes(self) -> int:
        """Working memory of the residual at one point: H and G."""
        return 2 * self.gram.nbytes

    def mean_target(self, moment: Matrix) -> Matrix:
        """Ḡ = ΣϱG, which is the moment itself; (m, m)."""
        return moment


Space = ReturnSpace | ExactReturnSpace


@dataclass(frozen=True)
class Chunk(ABC):
    """The data of the criterion at some conditioning points; here the part that both kinds of chunk share.

    ϱ (n,), k_L (n, L) and Φ_L (n, L), in a fit in their whitened form; coefficients belong to the one form
    or the other.
    """

    weights: Weights
    basis: Features
    continuation: Features

    def __len__(self) -> int:
        """Return the number of conditioning points."""
        return len(self.weights)

    @classmethod
    def target_names(cls) -> list[str]:
        """Names of the arrays that a kind of chunk adds: those of the target, independent of the policy."""
        common = {field.name for field in fields(Chunk)}
        return [field.name for field in fields(cls) if field.name not in common]

    def _each(self, function: Callable[[str, Real], Real]) -> Self:
        """The chunk with a function of name and array applied to each of its arrays."""
        changed = {name: function(name, array) for name, array in vars(self).items() if array is not None}
        return replace(self, **changed)

    def astype(self, dtype: npt.DTypeLike) -> Self:
        """The same points in another precision; copied only if that differs."""
        return self._each(lambda _, array: array.astype(dtype, copy=False))

    def rows(self, selection: slice | Indices) -> Self:
        """Some of the points."""
        return self._each(lambda _, array: array[selection])

    def block(self, which: slice, dtype: np.dtype[np.floating]) -> Self:
        """Some of the points in the working precision; in shared memory if that differs from theirs."""
        part = self.rows(which)
        if part.basis.dtype == dtype:
            return replace(part, weights=part.weights.astype(dtype, copy=False))
        return part._each(lambda name, array: _copied(f"block {name}", array, dtype))

    @abstractmethod
    def residual(self, space: Any, u: Weights, v: Weights, with_gradient: bool) -> Vector:
        """Squared residual (eq:gamma_with_W) at each point, from u and v (n, m); (n,).

        With ``with_gradient``, half of its gradient with respect to u and v replaces these. ``space``
        is the one that belongs to this kind of chunk.
        """

    @abstractmethod
    def without_terminal(self) -> Self:
        """The same points without the part of the target that has no continuation."""

    @abstractmethod
    def target_moment(self) -> Matrix:
        """Weighted mean that ``space.mean_target`` takes, in double precision."""


@dataclass(frozen=True)
class FeatureChunk(Chunk):
    """Conditioning points in features, ρ and τ (n, 2Q); never an m×m matrix."""

    reward_waves: Waves
    terminal_waves: Waves | None = None

    def residual(self, space: ReturnSpace, u: Weights, v: Weights, with_gradient: bool) -> Vector:
        """(σ²/Q)‖f‖²; see :meth:`Chunk.residual`."""
        f, work = scratch("residual", (2, len(self), space.grid_waves.shape[1]), space.dtype)
        np.matmul(u, space.grid_waves, out=f)
        np.matmul(v, space.shifted_waves, out=work)
        rotated = as_complex(work)
        rotated *= as_complex(self.reward_waves)
        f -= work
        if self.terminal_waves is not None:
            f -= self.terminal_waves
        if with_gradient:
            scale = space.dtype.type(space.scale)
            np.matmul(f, space.grid_waves.T, out=u)
            u *= scale
            rotated_back = np.conjugate(as_complex(self.reward_waves), out=rotated)
            rotated_back *= as_complex(f)
            np.matmul(work, space.shifted_waves.T, out=v)
            v *= -scale
        return space.scale * np.einsum("ij,ij->i", f, f)

    def without_terminal(self) -> FeatureChunk:
        """The same points with τ = 0."""
        return replace(self, terminal_waves=None)

    def target_moment(self) -> Vector:
        """Σϱ|ρ|²; (Q,)."""
        power = self.weights @ np.square(self.reward_waves, dtype=np.float64)
        return power[0::2] + power[1::2]

    def with_blocks(self, space: ReturnSpace) -> BlockChunk:
        """The same points with H and G written out, in features."""
        h, g = operators(space, self.reward_waves)
        chunk, tau = BlockChunk(self.weights, self.basis, self.continuation, h, g), self.terminal_waves
        if tau is None:
            return chunk
        turned = as_complex(self.reward_waves).conj() * as_complex(tau)
        return replace(
            chunk,
            grid_terminal=space.scale * tau @ space.grid_waves.T,
            shifted_terminal=space.scale * turned.view(tau.dtype) @ space.shifted_waves.T,
            terminal_square=space.scale * np.einsum("ij,ij->i", tau, tau),
        )


@dataclass(frozen=True)
class BlockChunk(Chunk):
    """Conditioning points with H and G (n, m, m).

    The terminal terms are ⟨k_Z(z_i, ·), t⟩ and ⟨Σ_j Γ_j k_Z(r_j + γz_i, ·), t⟩ (n, m), and ‖t‖² (n,).
    """

    h: Matrices
    g: Matrices
    grid_terminal: Matrix | None = None
    shifted_terminal: Matrix | None = None
    terminal_square: Vector | None = None

    def residual(self, space: Space, u: Weights, v: Weights, with_gradient: bool) -> Vector:
        """uᵀK_Zu − 2uᵀHv + vᵀGv and the terminal terms; see :meth:`Chunk.residual`."""
        by_u = u @ space.gram - np.matmul(self.h, v[:, :, None])[:, :, 0]
        by_v = np.matmul(self.g, v[:, :, None])[:, :, 0] - np.matmul(u[:, None, :], self.h)[:, 0]
        square = np.einsum("ij,ij->i", u, by_u) + np.einsum("ij,ij->i", v, by_v)
        if self.terminal_square is not None:
            assert self.grid_terminal is not None
            assert self.shifted_terminal is not None
            square += self.terminal_square
            square += 2 * np.einsum("ij,ij->i", v, self.shifted_terminal)
            square -= 2 * np.einsum("ij,ij->i", u, self.grid_terminal)
            by_u -= self.grid_terminal
            by_v += self.shifted_terminal
        if with_gradient:
            u[...], v[...] = by_u, by_v
        return square

    def without_terminal(self) -> BlockChunk:
        """The same points with t = 0."""
        return replace(self, grid_terminal=None, shifted_terminal=None, terminal_square=None)

    def target_moment(self) -> Matrix:
        """ΣϱG; (m, m)."""
        return np.tensordot(self.weights.astype(np.float64, copy=False), self.g, axes=1)


def return_space(
    chunk_type: type[Chunk], grid: Atoms, frequencies: Frequencies, discount: float, kernel: Matern
) -> Space:
    """The return grid as this kind of chunk sees it: through features, or through the kernel itself."""
    if issubclass(chunk_type, BlockChunk):
        return ExactReturnSpace(kernel(grid, grid))
    return ReturnSpace.build(grid, frequencies, discount, kernel)


def _copied(name: str, array: Real, dtype: npt.DTypeLike) -> Real:
    out = scratch(name, array.shape, dtype)
    out[...] = array
    return out


@dataclass(frozen=True)
class Penalties:
    """λ_mass, c_mass and λ_neg of eq:global_B_objective; λ_B is applied once, by the driver."""

    mass: float = 1.0
    target_mass: float = 1.0
    negative: float = 0.0

    def homogeneous(self) -> Penalties:
        """The quadratic part alone."""
        return replace(self, target_mass=0.0, negative=0.0)


def _blocks(
    chunk: Chunk, space: Space, coefficients: Coefficients
) -> Iterator[tuple[slice, Chunk, Weights, Weights]]:
    """Rows, points, u and v for each block of a chunk in turn, in memory that the blocks share.

    A block is small enough to stay in a core's own cache. The precision is that of the return space.
    """
    rows = max(1, min(max(32, CACHE_BYTES // space.point_bytes), len(chunk)))
    atoms = scratch("atoms", (2, rows, space.n_atoms), space.dtype)
    for start in range(0, len(chunk), rows):
        which = slice(start, start + rows)
        part = chunk.block(which, space.dtype)
        u, v = atoms[:, : len(part)]
        np.matmul(part.basis, coefficients, out=u)
        np.matmul(part.continuation, coefficients, out=v)
        yield which, part, u, v


def bellman_residual(chunk: Chunk, space: Space, coefficients: Coefficients) -> Vector:
    """Squared projected Bellman residual (eq:gamma_with_W) at each point; (n,)."""
    out = np.empty(len(chunk))
    for which, part, u, v in _blocks(chunk, space, coefficients):
        out[which] = part.residual(space, u, v, with_gradient=False)
    return out


def value_and_gradient(
    chunk: Chunk, space: Space, penalties: Penalties, coefficients: Coefficients
) -> tuple[float, Coefficients]:
    """Contribution of a chunk to eq:global_B_objective without the ridge, and its gradient.

    Products are in the precision of ``coefficients`` and ``space``; the sums over blocks are in double
    precision. With ``penalties.homogeneous()`` and no terminal part the criterion is a quadratic form,
    whose gradient is the product of its Hessian with the coefficients: see :func:`product`.
    """
    total, gradient = 0.0, np.zeros(coefficients.shape)
    block_gradient = scratch("gradient", coefficients.shape, space.dtype)
    for _, part, u, v in _blocks(chunk, space, coefficients):
        excess = u.sum(axis=1, keepdims=True) - space.dtype.type(penalties.target_mass)
        negative = np.minimum(u, 0) if penalties.negative > 0 else None
        square = part.residual(space, u, v, with_gradient=True)
        square += penalties.mass * excess[:, 0] ** 2
        u += space.dtype.type(penalties.mass) * excess
        if negative is not None:
            square += penalties.negative * np.einsum("ij,ij->i", negative, negative)
            u += space.dtype.type(penalties.negative) * negative
        total += float(part.weights @ square)
        for derivative, sections in ((u, part.basis), (v, part.continuation)):
            derivative *= part.weights[:, None]
            gradient += np.matmul(sections.T, derivative, out=block_gradient)
    return total, 2 * gradient


def product(chunk: Chunk, space: Space, penalties: Penalties, direction: Coefficients) -> Coefficients:
    """Hessian of the quadratic part of the chunk's contribution, times ``direction``."""
    return value_and_gradient(chunk.without_terminal(), space, penalties.homogeneous(), direction)[1]


def moments(chunk: Chunk) -> tuple[Matrix, Matrix]:
    """Σϱ (k̃k̃ᵀ + Φ̃Φ̃ᵀ) and the mean of the target, in double precision: for the preconditioner."""
    sections = np.concatenate([chunk.basis, chunk.continuation], dtype=np.float64)
    weights = np.tile(chunk.weights, 2)[:, None]
    return sections.T @ (weights * sections), chunk.target_moment()


def expanded_moments(
    chunk: FeatureChunk, expansion: Callable[[Waves], tuple[Features, Features]], directions: Matrix
) -> tuple[Matrix, Matrices, Matrices]:
    """Σϱ k̃k̃ᵀ (l, l), Σϱ c_j k̃Φ̃ᵀ (J, l, l) and Σϱ p_j Φ̃Φ̃ᵀ (J', l, l), rotated to ``directions`` (L, l).

    For the surrogate, in the precision of the points; c and p are the ``expansion`` of ρ.
    """
    basis, continuation = chunk.basis @ directions, chunk.continuation @ directions
    weights, moments = chunk.weights[:, None].astype(basis.dtype), []
    for coordinates, rows in zip(expansion(chunk.reward_waves), (basis, continuation), strict=True):
        weighted = weights * coordinates
        moments.append(np.stack([rows.T @ (column[:, None] * continuation) for column in weighted.T]))
    return basis.T @ (weights * basis), moments[0], moments[1]


def operators(space: ReturnSpace, reward_waves: Waves) -> tuple[Matrices, Matrices]:
    """H(x) and G(x) (eq:h_ij, eq:g_ij) in features, for each row ρ(x) of ``reward_waves``; (n, m, m) each."""
    rho, grid, shifted = (
        as_complex(np.ascontiguousarray(x)) for x in (reward_waves, space.grid_waves, space.shifted_waves)
    )
    h = space.scale * np.einsum("iw,nw,kw->nik", grid.conj(), rho, shifted, optimize=True).real
    power = np.abs(rho) ** 2
    return h, space.scale * np.einsum("iw,nw,kw->nik", shifted.conj(), power, shifted, optimize=True).real
