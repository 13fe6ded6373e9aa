"""Potential shaping: the return less a function of the state obeys the same Bellman equation.

For any Ψ, Z(s, a) − Ψ(s) is the return of the rewards r + γ·Ψ(s') − Ψ(s), without the middle term after a
terminal transition. With Ψ near the mean return, atoms have to cover the spread of the return at an input,
and not how its mean varies over inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from kedrl_dask.numerics.simulation.smooth_regression import SmoothFunction
from kedrl_dask.utils.arrays import Array, Mask, Points


@dataclass(frozen=True)
class Potential(SmoothFunction):
    """Ψ, a smooth function of the state."""

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
