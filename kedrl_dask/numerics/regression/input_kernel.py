"""The lengths of the input kernel, by cross-validation over whole episodes.

The regression behind the estimator predicts, from x, features of the reward and of the successor state. Both
count in the score, and neither depends on the policy, so that one choice serves every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from kedrl_dask.numerics.design.points import choose_points, median_distance
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.numerics.regression.cross_validation import (
    RIDGES,
    TUNING_FOLDS,
    BlockSums,
    best_ridge,
    cross_validate_folds,
    gain,
)
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Matrix, Points, Record, Vector

#: Length scales tried, in standard deviations of each coordinate.
LENGTH_SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
#: Most changes tried of the length of one coordinate; each costs as much as one of LENGTH_SCALES.
MOST_TRIALS = 40
#: Share of the error that a change of one coordinate's length must save. The regression is not the estimate:
#: gains of 0.1 %, though well above their noise, made the basis too small for the kernel, and the error of
#: the embedding larger. Lengthening an uninformative coordinate gains several per cent.
WORTHWHILE = 0.01


def standard_deviations(points: Points) -> Vector:
    """Standard deviation of each coordinate; one for a constant, which carries no scale."""
    spread = points.std(axis=0)
    return np.where(spread > 1e-12 * np.abs(points).max(axis=0), spread, 1.0)


def median_kernel(points: Points, nu: float = 5.5, random_state: int = 0) -> Matern:
    """Matérn kernel whose length scales are standard deviations times their median distance."""
    spread = standard_deviations(points)
    length = median_distance(points / spread, random_state=random_state)
    return Matern(nu, tuple(spread * (length if length > 0 else 1.0)), 1.0)


def regression_targets(
    reward: Points, next_state: Points | None, n_features: int = 64, random_state: int = 0
) -> Features:
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
class Trial:
    """One coordinate's length, in standard deviations, doubled or halved, the others as they were.

    ``error`` is cross-validated, at the best ridge; ``gain`` says how much smaller it is than before, and
    ``noise`` is the standard error of this difference over the folds. See :func:`refine_lengths`.
    """

    coordinate: int
    length_scale: float
    error: float
    gain: float
    noise: float
    accepted: bool


@dataclass(frozen=True)
class InputTuning:
    """The chosen input kernel, and the trials behind the choice.

    ``errors`` (k, j) are cross-validated, for k lengths common to all coordinates, in standard deviations,
    and j ridges; the total variance of the targets is 2. Then single coordinates were tried.
    """

    kernel: Matern
    length_scales: Vector
    ridges: Vector
    errors: Matrix
    trials: tuple[Trial, ...] = ()

    def to_dict(self) -> Record:
        """Everything but the kernel, as numbers and lists that JSON can hold."""
        arrays = {name: getattr(self, name).tolist() for name in ("length_scales", "ridges", "errors")}
        return {**arrays, "trials": [asdict(trial) for trial in self.trials]}


def tune_input_kernel(
    inputs: Inputs, reward: Points, next_state: Points | None, episode: Indices, n_landmarks: int = 300,
    nu: float = 5.5, length_scales: Sequence[float] = LENGTH_SCALES, random_state: int = 0,
    most_trials: int = MOST_TRIALS,
) -> InputTuning:  # fmt: skip
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

    def score(lengths: Vector) -> Matrix:
        features = NystromFeatures.from_landmarks(Matern(nu, tuple(lengths * spread)), landmarks)
        return cross_validate_folds(BlockSums.gather(features(inputs), targets, fold, n_folds))

    scores = [score(np.full(len(spread), length)) for length in length_scales]
    errors = np.array([by_fold.sum(axis=0) for by_fold in scores])
    best = int(np.argmin(errors.min(axis=1)))
    varying = np.flatnonzero(np.ptp(inputs, axis=0) > 0).tolist()
    common = np.full(len(spread), float(length_scales[best]))
    lengths, trials = refine_lengths(score, common, scores[best], varying, most_trials)
    kernel = Matern(nu, tuple(lengths * spread))
    return InputTuning(kernel, np.array(length_scales), np.array(RIDGES), errors, trials)


def refine_lengths(
    score: Callable[[Vector], Matrix], lengths: Vector, errors: Matrix, coordinates: Sequence[int], most: int
) -> tuple[Vector, tuple[Trial, ...]]:
    """Double or halve the length of one coordinate at a time, as long as that lowers the error.

    A change is accepted if it lowers the error by more than one per cent, and by more than the standard error
    of the difference, which comes from its parts by fold: both errors are of the same held-out rows. A
    coordinate whose length changed is tried again in the same direction after all the others.

    ``score`` gives, for lengths (dim,), each fold's share of the error of each ridge (folds, ridges);
    ``errors`` is that of the ``lengths`` to start from. It is called ``most`` times at most.
    """
    lengths = lengths.copy()
    trials: list[Trial] = []
    current = best_ridge(errors)
    waiting = [(coordinate, [2.0, 0.5]) for coordinate in coordinates]
    while waiting and len(trials) < most:
        coordinate, (factor, *others) = waiting.pop(0)
        tried = lengths.copy()
        tried[coordinate] *= factor
        parts = best_ridge(score(tried))
        saved, noise = gain(current, parts)
        accepted = saved > max(noise, WORTHWHILE * float(current.sum()))
        trials.append(Trial(coordinate, float(tried[coordinate]), float(parts.sum()), saved, noise, accepted))
        if accepted:
            lengths, current = tried, parts
            waiting.append((coordinate, [factor]))
        elif others:
            waiting.insert(0, (coordinate, others))
    return lengths, tuple(trials)
