"""Potential shaping: the return less a function of the state obeys the same Bellman equation.

For any Ψ, Z(s, a) − Ψ(s) is the return of the rewards r + γ·Ψ(s') − Ψ(s), without the middle term after a
terminal transition. With Ψ near the mean return, atoms have to cover the spread of the return at an input,
and not how its mean varies over inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from kedrl_dask.numerics.simulation.smooth_regression import KERNEL, LINEAR_WEIGHT, SmoothRegression
from kedrl_dask.utils.arrays import Array, Mask, Matrix, Points, Vector


@dataclass(frozen=True)
class Potential:
    """Ψ(s) = k(y·directions, V)·weights + y·slopes + constant, with y = (s − center)/scale.

    Attributes
    ----------
    center, scale : (p,) arrays
        Mean and standard deviation of the states.
    directions : (p, r) array
        From standardised states to coordinates in which the kernel has unit length.
    landmarks : (l, r) array
        V.
    weights : (l, d) array
        Of the kernel sections.
    slopes : (p, d) array
        Of the standardised state.
    constant : (d,) array
    """

    center: Vector
    scale: Vector
    directions: Matrix
    landmarks: Points
    weights: Matrix
    slopes: Matrix
    constant: Vector

    @classmethod
    def from_regression(cls, regression: SmoothRegression) -> Potential:
        """The regression of returns on states, as a potential."""
        features, metric, rank = regression.features, regression.metric, regression.features.rank
        linear = LINEAR_WEIGHT * regression.coefficients[rank:]
        weights = features.whitening @ regression.coefficients[:rank]
        fixed = metric.center, metric.scale, metric.directions, features.landmarks
        return cls(*fixed, weights, linear[:-1], linear[-1])

    def __call__(self, state: Points) -> Points:
        """Ψ at each state; (n, d)."""
        standard = (state - self.center) / self.scale
        sections = KERNEL(standard @ self.directions, self.landmarks)
        return sections @ self.weights + standard @ self.slopes + self.constant

    def shape(
        self, reward: Points, state: Points, next_state: Points, terminal: Mask, discount: float
    ) -> Points:
        """Rewards r + γ·Ψ(s') − Ψ(s), without γ·Ψ(s') where the episode ended; (n, d)."""
        ahead = np.where(terminal[:, None], 0.0, self(next_state))
        return reward + discount * ahead - self(state)

    def to_arrays(self) -> dict[str, Array]:
        """The arrays of ``schema.POTENTIAL``."""
        return {f"potential_{name}": value for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Potential:
        """The potential that these arrays hold."""
        return cls(**{field.name: arrays[f"potential_{field.name}"] for field in fields(cls)})
