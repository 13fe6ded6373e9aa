"""Whitened Nyström features of the input kernel, and regression on them.

With landmarks V and the Cholesky factor K_VV = CCᵀ, T = C⁻ᵀ, the features ψ(x) = Tᵀ k_V(x) are
orthonormal in the RKHS. The conditional weights Γ(x) of the paper (eq:Gamma) never exist as N-vectors: for
any response y, Ê[y | x] = Γ(x)ᵀy = ψ(x)ᵀ (A + NλI)⁻¹ C_y with A = Σ ψ(x_j)ψ(x_j)ᵀ and C_y = Σ ψ(x_j) y_jᵀ,
exactly when every input is a landmark. The factor is pivoted: landmarks that the others explain are left
out, and T is triangular, which halves the cost of whitening against a factor from eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, get_blas_funcs, solve_triangular
from scipy.linalg.lapack import dpstrf

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Matrix
from kedrl_dask.utils.scratch import scratch

#: Landmarks whitened first. After these, the remainder of the others' sections is small.
HEAD = 128


def pivoted_cholesky(gram: Matrix, unexplained: float) -> tuple[Indices, Matrix]:
    """Order of the rows of a Gram matrix, the most informative first, and its factor (n, r) in this order.

    It stops where the rows so far leave at most the variance ``unexplained`` of every other.
    """
    # With tol = 0 LAPACK stops at the first pivot that is not positive; negative values mean its own choice.
    factor, pivots, rank, _ = dpstrf(gram, tol=unexplained, lower=1)
    return pivots.astype(np.intp) - 1, np.tril(factor[:, :rank])


def whiten(gram: Matrix, threshold: float) -> tuple[Indices, Matrix]:
    """Rows kept of a Gram matrix, and upper triangular T with Tᵀ·gram[kept, kept]·T = I.

    A row is kept as long as the rows before it, the most informative first, leave more than ``threshold``
    of the largest variance unexplained.
    """
    order, factor = pivoted_cholesky(gram, threshold * float(np.max(np.diag(gram))))
    rank = factor.shape[1]
    return order[:rank], solve_triangular(factor[:rank], np.eye(rank), lower=True).T


@dataclass(frozen=True)
class NystromFeatures:
    """The map x ↦ ψ(x) = Tᵀ k_V(x), in two steps.

    The first step whitens the leading landmarks, the :attr:`head`, and takes their part out of the other
    sections: φ = (ψ_head, k_tail − C_tail,head ψ_head). The remainder is small, so that sums of φ keep
    their digits in single precision, while sums of the raw k_V(x) lose every one. The second step whitens
    the tail. It is linear, so for sums of φyᵀ it is applied once, at the end, in double precision: only ψψᵀ
    needs it row by row. Of the landmarks (r, p + q) the most informative come first; ``whitening`` is T.
    """

    kernel: Matern
    landmarks: Inputs
    whitening: Matrix

    @classmethod
    def from_landmarks(cls, kernel: Matern, landmarks: Inputs, threshold: float = 1e-7) -> NystromFeatures:
        """Whiten the Gram matrix of ``landmarks``, leaving out those that the others explain."""
        landmarks = np.asarray(landmarks, dtype=np.float64)
        kept, whitening = whiten(kernel(landmarks, landmarks), threshold)
        return cls(kernel, landmarks[kept], whitening)

    @property
    def rank(self) -> int:
        """Number r of features."""
        return len(self.landmarks)

    @property
    def head(self) -> int:
        """Number of leading landmarks that the first step whitens."""
        return min(HEAD, self.rank)

    @cached_property
    def coupling(self) -> Matrix:
        """C_tail,headᵀ = −T_head⁻¹ T_head,tail T_tail⁻¹, from the blocks of the inverse of Cᵀ."""
        h, t = self.head, self.whitening
        inner = solve_triangular(t[:h, :h], t[:h, h:])
        return -solve_triangular(t[h:, h:], inner.T, trans="T").T

    @cached_property
    def _tail(self) -> Matrix:
        """T of the tail, in one piece: BLAS would copy it for every product."""
        return np.ascontiguousarray(self.whitening[self.head :, self.head :])

    def astype(self, dtype: npt.DTypeLike) -> NystromFeatures:
        """The same map, evaluated in another precision."""
        features = NystromFeatures(self.kernel, self.landmarks, self.whitening.astype(dtype))
        features.__dict__["coupling"] = self.coupling.astype(dtype)
        return features

    def partial(self, inputs: Inputs, out: Features | None = None) -> Features:
        """φ of each row of ``inputs``; (n, r), into ``out`` if given."""
        if out is None:
            out = np.empty((len(inputs), self.rank), self.whitening.dtype)
        return self.deflate(self.kernel(inputs, self.landmarks, out=out))

    def deflate(self, sections: Features) -> Features:
        """φ in the place of sections k_V, or of means of them; (n, r)."""
        phi, h = sections, self.head
        head = _times_triangle("head", phi[:, :h], self.whitening[:h, :h])
        phi[:, :h] = head
        tail = scratch("tail", (len(phi), self.rank - h), phi.dtype)
        phi[:, h:] -= np.matmul(head, self.coupling, out=tail)
        return phi

    def complete(self, phi: Features, out: Features | None = None) -> Features:
        """ψ from φ, row by row; (n, r), into ``out`` if given."""
        h = self.head
        psi = np.empty_like(phi) if out is None else out
        psi[:, :h] = phi[:, :h]
        psi[:, h:] = _times_triangle("tail", phi[:, h:], self._tail)
        return psi

    def complete_sums(self, sums: Matrix) -> Matrix:
        """Σ ψyᵀ from Σ φyᵀ (…, r, k)."""
        h = self.head
        tail = np.matmul(self.whitening[h:, h:].T, sums[..., h:, :])
        return np.concatenate([sums[..., :h, :], tail], axis=-2)

    def complete_sums_adjoint(self, sums: Matrix) -> Matrix:
        """The transpose of :meth:`complete_sums`."""
        h = self.head
        tail = np.matmul(self.whitening[h:, h:], sums[..., h:, :])
        return np.concatenate([sums[..., :h, :], tail], axis=-2)

    def __call__(self, inputs: Inputs) -> Features:
        """ψ of each row of ``inputs``; (n, r)."""
        return self.complete(self.partial(inputs))

    def residual(self, inputs: Inputs) -> float:
        """Mean of 1 − ‖ψ(x)‖²/k(x, x): the part of the kernel that the landmarks do not see."""
        psi = self(inputs)
        return float(1 - np.einsum("ij,ij->i", psi, psi).mean() / self.kernel.sigma**2)


def _times_triangle(name: str, x: Features, triangle: Matrix) -> Features:
    """x times an upper triangular matrix, at half the cost of a full product, in scratch memory."""
    product = scratch(name, x.shape, x.dtype)
    product[...] = x
    # BLAS counts by columns, so it sees transposes: triangleᵀ·xᵀ, in the place of xᵀ.
    (trmm,) = get_blas_funcs(("trmm",), (product,))
    trmm(1.0, triangle.T, product.T, lower=1, overwrite_b=1)
    return product


def solve_ridge(gram: Matrix, responses: Matrix, n_transitions: float, ridge: float) -> Matrix:
    """(A + NλI)⁻¹ C for the sums A (r, r) and C (r, k) of the streaming pass."""
    system = gram + n_transitions * ridge * np.eye(len(gram))
    return cho_solve(cho_factor(system, lower=True, overwrite_a=True), responses)
