"""Ridge regressions scored by cross-validation over blocks of whole episodes, from their sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from kedrl_dask.utils.arrays import Features, Indices, Matrices, Matrix, Vector

#: Ridges λ_Γ tried.
RIDGES = tuple(float(v) for v in 10.0 ** np.arange(-8, -0.9, 0.5))
#: Folds of episodes.
TUNING_FOLDS = 5


@dataclass(frozen=True)
class BlockSums:
    """Sums Σψψᵀ (r, r), Σψyᵀ (r, k), Σ‖y‖² and the number of transitions of a regression.

    The first axis of each array are blocks of whole episodes.
    """

    gram: Matrices
    response: Matrices
    square: Vector
    count: Indices | Vector

    @classmethod
    def gather(cls, features: Features, targets: Features, block: Indices, n_blocks: int) -> BlockSums:
        """Sums of arrays in memory, by the number of each row's block."""
        parts = [(features[block == b], targets[block == b]) for b in range(n_blocks)]
        return cls(
            np.stack([x.T @ x for x, _ in parts]),
            np.stack([x.T @ y for x, y in parts]),
            np.array([np.vdot(y, y) for _, y in parts]),
            np.array([len(x) for x, _ in parts]),
        )

    def merge(self, n_folds: int) -> BlockSums:
        """Blocks dealt out to ``n_folds`` folds in turn."""
        folds = [slice(f, None, n_folds) for f in range(n_folds)]
        return BlockSums(*(np.stack([sums[f].sum(axis=0) for f in folds]) for sums in vars(self).values()))


def cross_validate_ridge(sums: BlockSums, ridges: Sequence[float] = RIDGES, n_folds: int = 5) -> Vector:
    """Mean squared prediction error for each ridge, leaving out one fold at a time; (len(ridges),)."""
    return cross_validate_folds(sums, ridges, n_folds).sum(axis=0)


def cross_validate_folds(sums: BlockSums, ridges: Sequence[float] = RIDGES, n_folds: int = 5) -> Matrix:
    """Each fold's share of the mean squared prediction error of each ridge; (folds, len(ridges)).

    Uses nothing but the sums: for a fold with sums A_f, C_f the error of coefficients β is
    Σ‖y‖² − 2 tr(βᵀC_f) + tr(βᵀA_fβ).
    """
    folds = sums.merge(min(n_folds, len(sums.count)))
    total = [part.sum(axis=0) for part in (folds.gram, folds.response, folds.count)]
    errors = []
    for gram, response, square, count in zip(*vars(folds).values(), strict=True):
        train = total[0] - gram, total[1] - response, total[2] - count
        errors.append(held_out_errors(*train, gram, response, square, ridges))
    return np.array(errors) / total[2]


def held_out_errors(
    gram: Matrix, response: Matrix, count: float, held_gram: Matrix, held_response: Matrix,
    held_square: float, ridges: Sequence[float],
) -> Vector:  # fmt: skip
    """Squared error on held-out rows of a regression with each ridge, from the sums of both; (len(ridges),).

    ``gram`` Σψψᵀ, ``response`` Σψyᵀ and ``count`` are sums over the training rows; ``held_square`` is Σ‖y‖²
    over the others.
    """
    values, vectors = eigh(gram)
    fitted, held = vectors.T @ response, vectors.T @ held_response
    # tr(βᵀCβ)-type terms need only these r×r inner products, whatever the number of responses.
    inner = (vectors.T @ held_gram @ vectors) * (fitted @ fitted.T)
    cross = np.einsum("ij,ij->i", fitted, held)
    shrinks = [1 / (np.maximum(values, 0) + count * ridge) for ridge in ridges]
    return np.array([held_square - 2 * shrink @ cross + shrink @ inner @ shrink for shrink in shrinks])


def best_ridge(errors: Matrix) -> Vector:
    """The parts by fold (folds,) of the smallest total error, from those of all ridges (folds, ridges)."""
    return np.asarray(errors[:, np.argmin(errors.sum(axis=0))])


def gain(before: Vector, after: Vector) -> tuple[float, float]:
    """How much smaller the sum of errors by fold (folds,) is, and the standard error of that difference."""
    gains = before - after
    return float(gains.sum()), float(np.sqrt(len(gains)) * gains.std(ddof=1))
