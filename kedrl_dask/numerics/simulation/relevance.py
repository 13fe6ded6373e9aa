"""The input kernel along the directions that matter for the return.

An input matters if the return depends on it, at once or through what it leads to. No regression of one step
sees that: there, inputs that persist without consequence count as much as others. Simulated returns do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from kedrl_dask.numerics.design.points import choose_points
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.regression.cross_validation import (
    BlockSums,
    best_ridge,
    cross_validate_folds,
    gain,
)
from kedrl_dask.numerics.regression.input_kernel import regression_targets
from kedrl_dask.numerics.simulation.smooth_regression import Metric
from kedrl_dask.utils.arrays import Inputs, Matrix, Points, Record, Vector

#: Multiples of the metric's lengths that are tried.
MULTIPLES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
#: Share of what a kernel explains that another must explain in addition. Of five systems it was 18 % and 74 %
#: where the error of the embedding fell to less than a half, and 5 % or less where it fell a little, or rose.
WORTHWHILE = 0.05
#: Standard errors that this must exceed: it is the best of several multiples.
ESTABLISHED = 3.0
#: Share of what the best multiple explains that a longer one may lose: longer lengths need fewer sections.
NEGLIGIBLE = 0.02
#: Longest length, in units of the shortest: directions that do not matter have it.
LONGEST = 100.0
#: Simulated returns on which kernels are compared, those that landmarks are chosen from, landmarks,
#: frequencies and folds.
N_COMPARED, N_CLUSTERED, N_LANDMARKS, N_FREQUENCIES, N_FOLDS = 10_000, 4_000, 250, 32, 5


@dataclass(frozen=True)
class RelevanceTrial:
    """How well the law of simulated returns is predicted with both kernels.

    ``error`` is that of the kernel to beat and ``errors`` are those along the directions, at ``multiples`` of
    their lengths, as shares of the variance; ``gain`` is the difference at the smallest, with the standard
    error ``noise``.
    """

    error: float
    multiples: tuple[float, ...]
    errors: tuple[float, ...]
    multiple: float
    gain: float
    noise: float
    accepted: bool

    def to_dict(self) -> Record:
        """Plain numbers, for JSON."""
        return asdict(self)


def relevant_lengths(metric: Metric) -> Matrix:
    """Lengths of a kernel along the directions of a metric, as ``Matern`` takes them; (dim, dim)."""
    vectors, inverse, _ = np.linalg.svd(metric.directions, full_matrices=True)
    lengths = np.full(len(vectors), LONGEST / inverse[0])
    lengths[: len(inverse)] = 1 / np.maximum(inverse, inverse[0] / LONGEST)
    return (vectors * lengths).T * metric.scale


def choose_relevance(
    given: Matern, lengths: Matrix, inputs: Inputs, returns: Points, seed: int
) -> tuple[Matern, RelevanceTrial]:
    """The kernel, or that with other lengths, which predicts simulated returns (n, d) from inputs (n, p + q).

    What is predicted are waves exp(iWz), whose expectations make up the embedding.
    """
    rng = np.random.default_rng([seed, 41])
    rows = np.sort(rng.permutation(len(inputs))[:N_COMPARED])
    inputs, targets = inputs[rows], regression_targets(returns[rows], None, N_FREQUENCIES, seed)
    clustered = inputs[rng.permutation(len(inputs))[:N_CLUSTERED]]

    def error(tried: Matern) -> Vector:
        landmarks = choose_points(clustered, min(N_LANDMARKS, len(rows) // 10), tried, random_state=seed)
        features = NystromFeatures.from_landmarks(tried, landmarks)(inputs)
        sums = BlockSums.gather(features, targets, np.arange(len(rows)) % N_FOLDS, N_FOLDS)
        return best_ridge(cross_validate_folds(sums))

    kernels = [replace(given, length_scale=(multiple * lengths).tolist()) for multiple in MULTIPLES]
    before, parts = error(given), [error(tried) for tried in kernels]
    errors = np.array([part.sum() for part in parts])
    best = int(errors.argmin())
    saved, noise = gain(before, parts[best])
    accepted = saved > max(ESTABLISHED * noise, WORTHWHILE * (1 - float(before.sum())))
    lost = max(NEGLIGIBLE * (1 - float(errors[best])), 0.0)
    chosen = int(np.flatnonzero(errors <= errors[best] + lost).max())
    trial = RelevanceTrial(
        float(before.sum()), MULTIPLES, tuple(errors.tolist()), MULTIPLES[chosen], saved, noise, accepted
    )
    return kernels[chosen] if accepted else given, trial
