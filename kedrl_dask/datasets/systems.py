"""Systems that generate data with a known truth: how rewards and next states follow from an action.

The paper's own is linear with independent Gaussian noises. The others differ from it in the one way
that their names say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import expit

from kedrl_dask.utils.arrays import Actions, Mask, Matrix, Points, Vector

__all__ = [
    "PAPER_SYSTEM",
    "SYSTEMS",
    "LinearGaussianSystem",
    "System",
    "TerminatingSystem",
    "covariance_root",
]


class System(Protocol):
    """What the simulator asks of a system."""

    @property
    def state_dim(self) -> int:
        """Dimension p of the state."""

    @property
    def action_dim(self) -> int:
        """Dimension q of the action."""

    @property
    def reward_dim(self) -> int:
        """Dimension d of the reward."""

    def step(self, state: Points, action: Actions, rng: np.random.Generator) -> tuple[Points, Points]:
        """Rewards (n, d) and states (n, p) reached in one step from states (n, p) and actions (n, q)."""

    def terminates(self, reached: Points, rng: np.random.Generator) -> Mask:
        """Tell for each of the states (n, p) reached whether the step that led there was the last."""


@dataclass(frozen=True, eq=False)
class LinearGaussianSystem:
    """s' = W_s[s; a] + b_s + ε_s and r = W_r[s; a] + b_r + ε_r, with Gaussian noises.

    The paper's text transposes the weights; with its numbers only the form used here has the right
    dimensions.

    Parameters
    ----------
    state_weights, reward_weights : (p, p + q) and (d, p + q) arrays
        W_s and W_r.
    state_bias, reward_bias : (p,) and (d,) arrays
        b_s and b_r.
    state_cov, reward_cov : (p, p) and (d, d) arrays
        Covariances Σ_s of ε_s and Σ_r of ε_r.
    cross_cov : (d, p) array
        Covariance Σ_rs of ε_r with ε_s, 0 by default.

    Examples
    --------
    >>> reward, following = PAPER_SYSTEM.step(np.zeros((4, 5)), np.zeros((4, 1)), np.random.default_rng(0))
    >>> reward.shape, following.shape
    ((4, 3), (4, 5))
    """

    state_weights: Matrix
    state_bias: Vector
    reward_weights: Matrix
    reward_bias: Vector
    state_cov: Matrix
    reward_cov: Matrix
    cross_cov: Matrix = None  # type: ignore[assignment]  # zeros, once the dimensions are known

    def __post_init__(self) -> None:
        """Convert the arrays to float64, make them read-only, and check them."""
        if self.cross_cov is None:
            zeros = np.zeros((np.size(self.reward_bias), np.size(self.state_bias)))
            object.__setattr__(self, "cross_cov", zeros)
        for field in fields(self):
            value = np.array(getattr(self, field.name), dtype=np.float64)
            value.flags.writeable = False
            object.__setattr__(self, field.name, value)
        self._check_shapes()
        try:
            covariance_root(self.noise_cov)
        except ValueError as error:
            raise ValueError(f"LinearGaussianSystem: joint covariance of (ε_r, ε_s): {error}") from error

    def _check_shapes(self) -> None:
        p, d = self.state_bias.size, self.reward_bias.size
        columns = self.state_weights.shape[-1] if self.state_weights.ndim else 0
        expected = {
            "state_weights": (p, columns),
            "state_bias": (p,),
            "reward_weights": (d, columns),
            "reward_bias": (d,),
            "state_cov": (p, p),
            "reward_cov": (d, d),
            "cross_cov": (d, p),
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

    @property
    def noise_cov(self) -> Matrix:
        """Joint covariance (d + p, d + p) of (ε_r, ε_s)."""
        return np.block([[self.reward_cov, self.cross_cov], [self.cross_cov.T, self.state_cov]])

    def step(self, state: Points, action: Actions, rng: np.random.Generator) -> tuple[Points, Points]:
        """Rewards (n, d) and next states (n, p) of one step from states (n, p) and actions (n, q)."""
        inputs = np.concatenate([state, action], axis=1)
        reward_noise, state_noise = self._draw_noise(len(inputs), rng)
        reward = inputs @ self.reward_weights.T + self.reward_bias + reward_noise
        following = inputs @ self.state_weights.T + self.state_bias + state_noise
        return reward, following

    def terminates(self, reached: Points, rng: np.random.Generator) -> Mask:
        """False for each of the states (n, p) reached: episodes never terminate."""
        return np.zeros(len(reached), dtype=bool)

    def with_reward_in_state(self, loading: Matrix) -> LinearGaussianSystem:
        """System in which the realised reward r, its noise included, moves the next state by Λr.

        s' = W_s x + b_s + ε_s + Λr = (W_s + ΛW_r)x + (b_s + Λb_r) + (ε_s + Λε_r): linear-Gaussian again,
        with Cov(ε_s + Λε_r) = Σ_s + ΛΣ_rΛᵀ + ΛΣ_rs + (ΛΣ_rs)ᵀ and Cov(ε_r, ε_s + Λε_r) = Σ_rs + Σ_rΛᵀ.
        ``loading`` is Λ (p, d).
        """
        loading = np.asarray(loading, dtype=np.float64)
        if loading.shape != (self.state_dim, self.reward_dim):
            raise ValueError(
                f"with_reward_in_state: loading has shape {loading.shape}, expected (state_dim, reward_dim) "
                f"= {(self.state_dim, self.reward_dim)}"
            )
        mixed = loading @ self.cross_cov
        return replace(
            self,
            state_weights=self.state_weights + loading @ self.reward_weights,
            state_bias=self.state_bias + loading @ self.reward_bias,
            state_cov=self.state_cov + loading @ self.reward_cov @ loading.T + mixed + mixed.T,
            cross_cov=self.cross_cov + self.reward_cov @ loading.T,
        )

    def _draw_noise(self, n: int, rng: np.random.Generator) -> tuple[Points, Points]:
        """Draw ε_r (n, d) and ε_s (n, p)."""
        d, p = self.reward_dim, self.state_dim
        if not self.cross_cov.any():
            reward_noise = rng.standard_normal((n, d)) @ self._reward_root.T
            return reward_noise, rng.standard_normal((n, p)) @ self._state_root.T
        both = rng.standard_normal((n, d + p)) @ self._noise_root.T
        return both[:, :d], both[:, d:]

    @cached_property
    def _state_root(self) -> Matrix:
        return covariance_root(self.state_cov)

    @cached_property
    def _reward_root(self) -> Matrix:
        return covariance_root(self.reward_cov)

    @cached_property
    def _noise_root(self) -> Matrix:
        return covariance_root(self.noise_cov)


@dataclass(frozen=True, eq=False)
class TerminatingSystem:
    """A linear-Gaussian system whose episodes end for good, sooner in some states than in others.

    After each step the episode ends with probability 1/(1 + exp(−(w·s' + b))), s' the state reached, w the
    weights (p,) and b the bias. The reward of that step is the last one, and s' is never seen.

    Examples
    --------
    >>> SYSTEMS["terminating"].termination_probability(np.zeros((1, 5))).round(3)
    array([0.076])
    """

    dynamics: LinearGaussianSystem
    weights: Vector
    bias: float

    def __post_init__(self) -> None:
        """Convert the weights to float64, make them read-only, and check them."""
        weights = np.array(self.weights, dtype=np.float64)
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)
        if weights.shape != (self.state_dim,):
            raise ValueError(
                f"TerminatingSystem: weights has shape {weights.shape}, expected ({self.state_dim},), one "
                "for each coordinate of the state"
            )
        if not (np.isfinite(weights).all() and np.isfinite(self.bias)):
            raise ValueError(
                f"TerminatingSystem: weights and bias must be finite, got {weights.tolist()} and {self.bias}"
            )

    @property
    def state_dim(self) -> int:
        """Dimension p of the state."""
        return self.dynamics.state_dim

    @property
    def action_dim(self) -> int:
        """Dimension q of the action."""
        return self.dynamics.action_dim

    @property
    def reward_dim(self) -> int:
        """Dimension d of the reward."""
        return self.dynamics.reward_dim

    def step(self, state: Points, action: Actions, rng: np.random.Generator) -> tuple[Points, Points]:
        """Rewards (n, d) and states (n, p) reached in one step, whether or not it is the last."""
        return self.dynamics.step(state, action, rng)

    def termination_probability(self, reached: Points) -> Vector:
        """Probability (n,) that the step which led to each of the states (n, p) was the last."""
        return expit(reached @ self.weights + self.bias)

    def terminates(self, reached: Points, rng: np.random.Generator) -> Mask:
        """Draw for each of the states (n, p) reached whether the step that led there was the last."""
        return rng.random(len(reached)) < self.termination_probability(reached)


def covariance_root(covariance: Matrix) -> Matrix:
    """Symmetric square root of a covariance matrix, which may be singular."""
    if not (np.isfinite(covariance).all() and np.allclose(covariance, covariance.T)):
        raise ValueError(f"a covariance must be finite and symmetric, got {covariance.tolist()}")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-10 * max(values[-1], 0.0):
        raise ValueError(
            f"a covariance must not have negative eigenvalues, got {values.round(6).tolist()}; make "
            "the variances larger or the covariances smaller"
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

SYSTEMS: dict[str, System] = {
    "paper": PAPER_SYSTEM,
    # Each reward has a correlation of about ±0.8 with the state that counts most for its future.
    "correlated": replace(
        PAPER_SYSTEM,
        cross_cov=np.array(
            [[0.0, 0.0, 0.19, 0.0, 0.0], [0.0, 0.17, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -0.21, 0.0]]
        ),
    ),
    # A high reward is paid for later: it moves the state to where that reward is lower.
    "reward-in-state": PAPER_SYSTEM.with_reward_in_state(
        np.array([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    ),
    # Under the behaviour policies of the study an episode has about ten steps.
    "terminating": TerminatingSystem(PAPER_SYSTEM, weights=np.array([0.0, 0.0, 1.0, 0.0, -1.0]), bias=-2.5),
}
"""Systems by name, all with the dimensions of the paper's, so that its policies act on each of them.

``paper`` is the study's own. In ``correlated`` the noise of the reward comes with that of the next state,
and in ``reward-in-state`` the next state contains the reward itself: there reward and continuation are
dependent given (s, a), and an estimate that separates them is biased. Episodes of ``terminating`` end for
good.
"""
