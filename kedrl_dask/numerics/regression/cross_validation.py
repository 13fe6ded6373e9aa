"""Automatic settings: the lengths of the input kernel, and λ_Γ, by trajectory-blocked cross-validation.

The regression behind the estimator predicts, from x, features of the reward and of the successor state.
Both enter here, and neither knows the policy, so that one choice serves every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from kedrl_dask.numerics.design.points import choose_points, median_distance
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.utils.arrays import Array

__all__ = [
    "BlockSums",
    "InputTuning",
    "Trial",
    "cross_validate_folds",
    "cross_validate_ridge",
    "held_out_errors",
    "median_kernel",
    "refine_lengths",
    "regression_targets",
    "tune_input_kernel",
]


#: Length scales tried, in standard deviations of each coordinate.
LENGTH_SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
#: Ridges λ_Γ tried.
RIDGES = tuple(float(v) for v in 10.0 ** np.arange(-8, -0.9, 0.5))
#: Most changes tried of the length of one coordinate; each costs as much as one of LENGTH_SCALES.
MOST_TRIALS = 40
#: Share of the error that a change of one coordinate's length must save. The regression is not the estimate:
#: gains of 0.1 %, though well above their noise, made the basis too small for the kernel, and the error of
#: the embedding larger. A coordinate that says nothing gains several per cent.
WORTHWHILE = 0.01
#: Folds of episodes.
TUNING_FOLDS = 5


def standard_deviations(points: Array) -> Array:
    """Standard deviation of each coordinate; one where it is constant, as it then carries no scale."""
    spread = points.std(axis=0)
    return np.where(spread > 1e-12 * np.abs(points).max(axis=0), spread, 1.0)


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
    """Mean squared prediction error for each ridge, leaving out one fold at a time; (len(ridges),)."""
    return cross_validate_folds(sums, ridges, n_folds).sum(axis=0)


def cross_validate_folds(sums: BlockSums, ridges: Sequence[float] = RIDGES, n_folds: int = 5) -> Array:
    """What each fold adds to the mean squared prediction error of each ridge; (folds, len(ridges)).

    Uses nothing but the sums: for a fold with sums A_f, C_f the error of coefficients β is
    Σ‖y‖² − 2 tr(βᵀC_f) + tr(βᵀA_fβ).
    """
    folds = sums.merge(min(n_folds, len(sums.count)))
    total = [part.sum(axis=0) for part in (folds.gram, folds.response, folds.count)]
    errors = []
    for gram, response, square, count in zip(
        folds.gram, folds.response, folds.square, folds.count, strict=True
    ):
        train = total[0] - gram, total[1] - response, total[2] - count
        errors.append(held_out_errors(*train, gram, response, square, ridges))
    return np.array(errors) / total[2]


def held_out_errors(
    gram: Array,
    response: Array,
    count: float,
    held_gram: Array,
    held_response: Array,
    held_square: float,
    ridges: Sequence[float],
) -> Array:
    """Squared error on held-out rows of a regression with each ridge, from the sums of both; (len(ridges),).

    ``gram`` Σψψᵀ, ``response`` Σψyᵀ and ``count`` are of the rows that are regressed, ``held_square`` is
    Σ‖y‖².
    """
    values, vectors = eigh(gram)
    fitted, held = vectors.T @ response, vectors.T @ held_response
    # tr(βᵀCβ)-type terms need only these r×r inner products, whatever the number of responses.
    inner = (vectors.T @ held_gram @ vectors) * (fitted @ fitted.T)
    cross = np.einsum("ij,ij->i", fitted, held)
    shrinks = [1 / (np.maximum(values, 0) + count * ridge) for ridge in ridges]
    return np.array([held_square - 2 * shrink @ cross + shrink @ inner @ shrink for shrink in shrinks])


@dataclass(frozen=True)
class Trial:
    """One coordinate's length doubled or halved, the others as they were.

    Attributes
    ----------
    coordinate : int
        Column of the inputs.
    length_scale : float
        The length tried, in standard deviations.
    error : float
        Cross-validated error, at the best ridge.
    gain, noise : float
        How much less that is than before, and the standard error of this difference over the folds.
    accepted : bool
        Whether the gain exceeds its noise, and one per cent of the error.
    """

    coordinate: int
    length_scale: float
    error: float
    gain: float
    noise: float
    accepted: bool


@dataclass(frozen=True)
class InputTuning:
    """The chosen input kernel, and what was tried.

    Attributes
    ----------
    kernel : Matern
    length_scales : (k,) array
        Lengths tried for all coordinates in common, in standard deviations.
    ridges : (j,) array
    errors : (k, j) array
        Cross-validated error of each pair; the total variance of the targets is 2.
    trials : tuple of Trial
        Lengths tried for single coordinates after that.
    """

    kernel: Matern
    length_scales: Array
    ridges: Array
    errors: Array
    trials: tuple[Trial, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the kernel, as numbers and lists that JSON can hold."""
        return {
            "length_scales": self.length_scales.tolist(),
            "ridges": self.ridges.tolist(),
            "errors": self.errors.tolist(),
            "trials": [asdict(trial) for trial in self.trials],
        }


def tune_input_kernel(
    inputs: Array,
    reward: Array,
    next_state: Array | None,
    episode: Array,
    n_landmarks: int = 300,
    nu: float = 5.5,
    length_scales: Sequence[float] = LENGTH_SCALES,
    random_state: int = 0,
    most_trials: int = MOST_TRIALS,
) -> InputTuning:
    """Choose one length for each coordinate by cross-validation over whole episodes.

    First a common multiple of the standard deviations, so that coordinates of different scales are
    standardised; then each coordinate by itself, as :func:`refine_lengths` says.
    """
    n_episodes = len(np.unique(episode))
    if n_episodes < 2:
        raise ValueError(
            "input_kernel='auto' needs at least two episodes to leave one out; give input_kernel a Matern"
        )
    spread = standard_deviations(inputs)
    targets = regression_targets(reward, next_state, random_state=random_state)
    n_folds = min(TUNING_FOLDS, n_episodes)
    fold = np.unique(episode, return_inverse=True)[1] % n_folds
    landmarks = choose_points(inputs, n_landmarks, Matern(nu, tuple(spread)), random_state=random_state)

    def score(lengths: Array) -> Array:
        features = NystromFeatures.from_landmarks(Matern(nu, tuple(lengths * spread)), landmarks)
        return cross_validate_folds(BlockSums.gather(features(inputs), targets, fold, n_folds))

    scores = [score(np.full(len(spread), length)) for length in length_scales]
    errors = np.array([by_fold.sum(axis=0) for by_fold in scores])
    best = int(np.argmin(errors.min(axis=1)))
    varying = np.flatnonzero(np.ptp(inputs, axis=0) > 0).tolist()
    lengths, trials = refine_lengths(
        score, np.full(len(spread), float(length_scales[best])), scores[best], varying, most_trials
    )
    kernel = Matern(nu, tuple(lengths * spread))
    return InputTuning(kernel, np.array(length_scales), np.array(RIDGES), errors, trials)


def refine_lengths(
    score: Callable[[Array], Array], lengths: Array, errors: Array, coordinates: Sequence[int], most: int
) -> tuple[Array, tuple[Trial, ...]]:
    """Double or halve the length of one coordinate at a time, as long as that lowers the error.

    A change is accepted if it lowers the error by more than one per cent, and by more than the standard error
    of the difference, which comes from its parts by fold: both errors are of the same held-out rows. A
    coordinate that moved is tried again in the same direction, when all the others had their turn.

    Parameters
    ----------
    score : callable
        From lengths (dim,) to what each fold adds to the error of each ridge (folds, ridges).
    lengths, errors : (dim,) and (folds, ridges) arrays
        Where to start, and its score.
    coordinates : sequence of int
        Those to change.
    most : int
        Bound on the calls of ``score``.
    """
    lengths = lengths.copy()
    trials: list[Trial] = []
    current = _best_ridge(errors)
    waiting = [(coordinate, [2.0, 0.5]) for coordinate in coordinates]
    while waiting and len(trials) < most:
        coordinate, (factor, *others) = waiting.pop(0)
        tried = lengths.copy()
        tried[coordinate] *= factor
        parts = _best_ridge(score(tried))
        gains = current - parts
        gain, noise = float(gains.sum()), float(np.sqrt(len(gains)) * gains.std(ddof=1))
        accepted = gain > max(noise, WORTHWHILE * float(current.sum()))
        trials.append(Trial(coordinate, float(tried[coordinate]), float(parts.sum()), gain, noise, accepted))
        if accepted:
            lengths, current = tried, parts
            waiting.append((coordinate, [factor]))
        elif others:
            waiting.insert(0, (coordinate, others))
    return lengths, tuple(trials)


def _best_ridge(errors: Array) -> Array:
    """The parts by fold of the smallest error; (folds,)."""
    return np.asarray(errors[:, np.argmin(errors.sum(axis=0))])
