"""Automatic settings: the scale of the input kernel, and λ_Γ, by trajectory-blocked cross-validation.

The regression behind the estimator predicts, from x, features of the reward and of the successor state.
Both enter here, and neither knows the policy, so that one choice serves every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from kedrl_dask.design import choose_points, median_distance
from kedrl_dask.kernels import Matern
from kedrl_dask.nystrom import NystromFeatures
from kedrl_dask.spectral import frequencies, waves

__all__ = [
    "BlockSums",
    "InputTuning",
    "cross_validate_ridge",
    "median_kernel",
    "regression_targets",
    "tune_input_kernel",
]

Array = npt.NDArray[Any]

#: Length scales tried, in standard deviations of each coordinate.
LENGTH_SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
#: Ridges λ_Γ tried.
RIDGES = tuple(float(v) for v in 10.0 ** np.arange(-8, -0.9, 0.5))


def standard_deviations(points: Array) -> Array:
    """Standard deviation of each coordinate; one where it is constant, as it then carries no scale."""
    spread = points.std(axis=0)
    return np.where(spread > 1e-12 * np.maximum(np.abs(points).max(axis=0), 1), spread, 1.0)


def median_kernel(points: Array, nu: float = 5.5, random_state: int = 0) -> Matern:
    """Matérn kernel whose length scales are standard deviations times their median distance."""
    spread = standard_deviations(points)
    length = median_distance(points / spread, random_state=random_state)
    return Matern(nu, tuple(spread * (length if length > 0 else 1.0)), 1.0)


def regression_targets(
    reward: Array, next_state: Array | None, n_features: int = 64, random_state: int = 0
) -> Array:
    """Spectral features of reward and successor state, each group centred with unit total variance.

    Without successor states, of the reward alone.
    """
    groups = []
    for points in (reward,) if next_state is None else (reward, next_state):
        kernel = median_kernel(points, random_state=random_state)
        group = waves(points, frequencies(kernel, points.shape[1], n_features, random_state=random_state))
        group -= group.mean(axis=0)
        total = np.sqrt(np.mean(np.einsum("ij,ij->i", group, group)))
        # The waves have norm √n_features: of a constant only rounding noise is left.
        is_constant = total <= 1e-8 * np.sqrt(n_features)
        groups.append(np.zeros_like(group) if is_constant else group / total)
    return np.hstack(groups)


@dataclass(frozen=True)
class BlockSums:
    """Sums of a regression over blocks of whole episodes, the first axis of each array.

    Attributes
    ----------
    gram : (blocks, r, r) array
        Σ ψψᵀ.
    response : (blocks, r, k) array
        Σ ψyᵀ.
    square : (blocks,) array
        Σ ‖y‖².
    count : (blocks,) array
        Number of transitions.
    """

    gram: Array
    response: Array
    square: Array
    count: Array

    @classmethod
    def gather(cls, features: Array, targets: Array, block: Array, n_blocks: int) -> BlockSums:
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
        return BlockSums(
            *(np.stack([a[f].sum(axis=0) for f in folds])
              for a in (self.gram, self.response, self.square, self.count))
        )  # fmt: skip


def cross_validate_ridge(sums: BlockSums, ridges: Sequence[float] = RIDGES, n_folds: int = 5) -> Array:
    """Mean squared prediction error for each ridge, leaving out one fold at a time; (len(ridges),).

    Uses nothing but the sums: for a fold with sums A_f, C_f the error of coefficients β is
    Σ‖y‖² − 2 tr(βᵀC_f) + tr(βᵀA_fβ).
    """
    folds = sums.merge(min(n_folds, len(sums.count)))
    gram, response, count = folds.gram.sum(axis=0), folds.response.sum(axis=0), folds.count.sum()
    errors = np.zeros(len(ridges))
    for f in range(len(folds.count)):
        values, vectors = eigh(gram - folds.gram[f])
        train = vectors.T @ (response - folds.response[f])
        held_gram, held = vectors.T @ folds.gram[f] @ vectors, vectors.T @ folds.response[f]
        # tr(βᵀCβ)-type terms need only these r×r inner products, whatever the number of responses.
        inner, cross = held_gram * (train @ train.T), np.einsum("ij,ij->i", train, held)
        for i, ridge in enumerate(ridges):
            shrink = 1 / (np.maximum(values, 0) + (count - folds.count[f]) * ridge)
            errors[i] += folds.square[f] - 2 * shrink @ cross + shrink @ inner @ shrink
    return errors / count


@dataclass(frozen=True)
class InputTuning:
    """The chosen input kernel, and what was tried.

    Attributes
    ----------
    kernel : Matern
    length_scales : (k,) array
        Tried length scales, in standard deviations.
    ridges : (j,) array
    errors : (k, j) array
        Cross-validated error of each pair; the total variance of the targets is 2.
    """

    kernel: Matern
    length_scales: Array
    ridges: Array
    errors: Array


def tune_input_kernel(
    inputs: Array,
    reward: Array,
    next_state: Array | None,
    episode: Array,
    n_landmarks: int = 300,
    nu: float = 5.5,
    length_scales: Sequence[float] = LENGTH_SCALES,
    random_state: int = 0,
) -> InputTuning:
    """Choose the length scale of the input kernel by cross-validation over whole episodes.

    The kernel has one length per coordinate, a common multiple of the standard deviations, so
    coordinates of different scales are standardised.
    """
    if len(np.unique(episode)) < 2:
        raise ValueError(
            "input_kernel='auto' needs at least two episodes to leave one out; give input_kernel a Matern"
        )
    spread = standard_deviations(inputs)
    targets = regression_targets(reward, next_state, random_state=random_state)
    fold = np.unique(episode, return_inverse=True)[1] % 5
    landmarks = choose_points(inputs, n_landmarks, Matern(nu, tuple(spread)), random_state=random_state)
    errors = []
    for length in length_scales:
        features = NystromFeatures.from_landmarks(Matern(nu, tuple(length * spread)), landmarks)
        errors.append(cross_validate_ridge(BlockSums.gather(features(inputs), targets, fold, 5)))
    best = length_scales[int(np.argmin(np.min(errors, axis=1)))]
    return InputTuning(
        Matern(nu, tuple(best * spread)), np.array(length_scales), np.array(RIDGES), np.array(errors)
    )
