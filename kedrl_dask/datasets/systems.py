"""Systems that generate data with a known truth: how rewards and next states follow from an action.

The paper's own is linear with independent Gaussian noises. The others depart from it in the one way their
name tells.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PAPER_SYSTEM", "LinearGaussianSystem", "covariance_root"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class LinearGaussianSystem:
    """s' = W_s[s; a] + b_s + ε_s and r = W_r[s; a] + b_r + ε_r, with independent Gaussian noises.

    The paper's text transposes the weights; with its numbers only the form used here has the right
    dimensions.

    Parameters
    ----------
    state_weights : (p, p + q) array
        W_s.
    state_bias : (p,) array
        b_s.
    reward_weights : (d, p + q) array
        W_r.
    reward_bias : (d,) array
        b_r.
    state_cov : (p, p) array
        Covariance Σ_s of ε_s.
    reward_cov : (d, d) array
        Covariance Σ_r of ε_r.
    """

    state_weights: Array
    state_bias: Array
    reward_weights: Array
    reward_bias: Array
    state_cov: Array
    reward_cov: Array

    def __post_init__(self) -> None:
        """Take the arrays as float64, lock them, and check that their shapes agree."""
        for field in fields(self):
            value = np.array(getattr(self, field.name), dtype=np.float64)
            value.flags.writeable = False
            object.__setattr__(self, field.name, value)
        p, d = self.state_bias.size, self.reward_bias.size
        columns = self.state_weights.shape[-1]
        expected = {
            "state_weights": (p, columns),
            "state_bias": (p,),
            "reward_weights": (d, columns),
            "reward_bias": (d,),
            "state_cov": (p, p),
            "reward_cov": (d, d),
        }
        for name, shape in expected.items():
            found = getattr(self, name).shape
            if found != shape or columns <= p:
                raise ValueError(
                    f"LinearGaussianSystem: {name} has shape {found}, expected {shape} with more than "
                    f"{p} columns of weights: biases fix the dimensions, weights act on [state; action]"
                )

    @property
    def state_dim(self) -> int:
        """Dimension p of the state."""
        return self.state_weights.shape[0]

    @property
    def action_dim(self) -> int:
        """Dimension q of the action."""
        return self.state_weights.shape[1] - self.state_weights.shape[0]

    @property
    def reward_dim(self) -> int:
        """Dimension d of the reward."""
        return self.reward_weights.shape[0]

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Rewards (n, d) and next states (n, p) of one step from states (n, p) and actions (n, q)."""
        pair = np.concatenate([state, action], axis=1)
        reward = pair @ self.reward_weights.T + self.reward_bias
        following = pair @ self.state_weights.T + self.state_bias
        reward += rng.standard_normal(reward.shape) @ self._reward_root.T
        following += rng.standard_normal(following.shape) @ self._state_root.T
        return reward, following

    @cached_property
    def _state_root(self) -> Array:
        return covariance_root(self.state_cov)

    @cached_property
    def _reward_root(self) -> Array:
        return covariance_root(self.reward_cov)


def covariance_root(covariance: Array) -> Array:
    """Symmetric square root of a covariance matrix, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-10 * max(values[-1], 0.0) or not np.allclose(covariance, covariance.T):
        raise ValueError(
            f"a covariance must be symmetric without negative eigenvalues, got {covariance.tolist()}"
        )
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


PAPER_SYSTEM = LinearGaussianSystem(
    state_weights=np.array(
        [
            [0.4, -0.2, 0.1, 0.5, 0.3, -0.1],
            [0.03, 0.3, -0.2, 0.15, 0.5, 0.1],
            [0.15, -0.05, 0.2, 0.6, 0.5, -0.2],
            [0.2, 0.05, -0.1, 0.3, -0.15, 0.2],
            [0.1, -0.3, 0.25, -0.2, 0.4, 0.15],
        ]
    ),
    state_bias=np.zeros(5),
    reward_weights=np.array(
        [
            [0.02, 0.1, -0.5, 0.3, -0.1, 0.2],
            [0.1, -0.3, 0.2, 0.25, -0.2, 0.4],
            [0.15, 0.1, -0.1, 0.35, 0.1, -0.05],
        ]
    ),
    reward_bias=np.zeros(3),
    state_cov=np.array(
        [
            [0.1, 0.05, 0.02, 0.01, 0.03],
            [0.05, 0.2, 0.03, 0.02, 0.04],
            [0.02, 0.03, 0.3, 0.05, 0.01],
            [0.01, 0.02, 0.05, 0.25, 0.02],
            [0.03, 0.04, 0.01, 0.02, 0.35],
        ]
    ),
    reward_cov=np.array([[0.2, 0.01, 0.03], [0.01, 0.25, 0.02], [0.03, 0.02, 0.3]]),
)
"""The system of the study (``app:sim_setting``): p = 5, q = 1, d = 3."""
