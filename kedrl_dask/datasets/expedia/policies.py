"""Reward-weighted linear-Gaussian policies (subsec:expedia_policy_construction)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from kedrl_dask.checks import check_number
from kedrl_dask.datasets.expedia.columns import ACTION
from kedrl_dask.datasets.expedia.panel import Encoder
from kedrl_dask.policies import Gaussian

__all__ = ["RIDGE", "ClippedGaussian", "greedy_action", "reward_weighted_policy"]

Array = npt.NDArray[Any]

#: Penalty on the squared slopes. One-hot columns add up to one, and some levels have no reward at all.
RIDGE = 1e-2
#: Bound on the logarithm of the scale: no action has a spread of more than e^3 of its own standard deviation.
LARGEST_LOG_SCALE = 3.0


class ClippedGaussian(Gaussian):
    """Gaussian policy whose actions are clipped to a box, coordinate by coordinate.

    It has mass on the sides of the box, and so no density there.

    Parameters
    ----------
    weights, bias, scale, scale_weights
        As in :class:`~kedrl_dask.policies.Gaussian`.
    low, high : (q,) arrays
        The box.
    random : bool
        Whether ``draws`` are random actions, others at every state, as the paper's uLSIF has them, and not
        quadrature nodes.
    """

    family = "clipped-gaussian"
    has_log_density = False

    low: Array
    high: Array
    random: bool

    def __init__(
        self,
        weights: npt.ArrayLike,
        bias: npt.ArrayLike = 0.0,
        scale: npt.ArrayLike = 1.0,
        scale_weights: npt.ArrayLike | None = None,
        low: npt.ArrayLike = -1.0,
        high: npt.ArrayLike = 1.0,
        random: bool = False,
    ) -> None:
        super().__init__(weights, bias, scale, scale_weights)
        q = self.action_dim
        vars(self).update(low=self._vector("low", low, q), high=self._vector("high", high, q), random=random)
        if not (self.low < self.high).all():
            raise ValueError(f"{self._name}: low {self.low.tolist()} must be below high {self.high.tolist()}")

    @property
    def deterministic_draws(self) -> bool:  # type: ignore[override]
        """Whether ``draws`` ignores its generator."""
        return not self.random

    def draws(
        self, state: Array, n_draws: int, rng: np.random.Generator | None = None
    ) -> tuple[Array, Array]:
        """Quadrature nodes or random actions, clipped, and their weights."""
        if not self.random:
            actions, weights = super().draws(state, n_draws)
            return self._clipped(actions), weights
        if rng is None:
            raise ValueError(
                f"{self._name}.draws: actions are random, pass rng=numpy.random.default_rng(seed)"
            )
        return np.stack([self.sample(state, rng) for _ in range(n_draws)]), np.full(n_draws, 1.0 / n_draws)

    def sample(self, state: Array, rng: np.random.Generator) -> Array:
        """One random action (n, q) for each state."""
        return self._clipped(super().sample(state, rng))

    def log_density(self, state: Array, action: Array) -> Array:
        """Refuse: there is none."""
        raise ValueError(f"{self._name}: a clipped action has mass on the sides of the box, and no density")

    def _clipped(self, actions: Array) -> Array:
        return np.clip(actions, self.low, self.high).astype(actions.dtype, copy=False)

    def _parameters(self) -> dict[str, Any]:
        return {
            **super()._parameters(),
            "low": self.low,
            "high": self.high,
            "random": np.asarray(self.random),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild through the constructor."""
        return type(self), (*list(self._parameters().values())[:-1], self.random)

    def drawn(self) -> ClippedGaussian:
        """The same policy with random draws."""
        box = self.low, self.high
        return ClippedGaussian(self.weights, self.bias, self.scale, self.scale_weights, *box, random=True)


def reward_weighted_policy(
    state: Array, action: Array, reward: Array, encoder: Encoder, ridge: float = RIDGE
) -> ClippedGaussian:
    """Fit A | s ~ N(sᵀΘ_μ + ε_μ, diag exp(sᵀΘ_σ + ε_σ)²) by the reward-weighted likelihood.

    Minimises, for each coordinate of the action by itself,

        Σ_j w_j {½((a_j − μ_j)/σ_j)² + log σ_j} + ½·ridge·(‖Θ_μ‖² + ‖Θ_σ‖²),   w_j = r_j / Σ_i r_i.

    The paper says that larger rewards weigh more and not how: weights here are the rewards themselves. It
    names no ridge, without which levels that have no reward would have no coefficient.

    Parameters
    ----------
    state, action : (n, p) and (n, q) arrays
        Encoded states and standardised actions of the training transitions.
    reward : (n,) array
        The reward coordinate that weighs them; not negative.
    encoder : Encoder
        Its action range bounds what the policy does.
    ridge : float
    """
    check_number("reward_weighted_policy: ridge", ridge, "a number ≥ 0")
    total = float(reward.sum())
    if not ((reward >= 0).all() and total > 0):
        raise ValueError(
            "reward_weighted_policy: rewards must be ≥ 0 and not all 0: no list would weigh anything"
        )
    used = reward > 0
    fitted = [_fit(state[used], a, reward[used] / total, ridge) for a in action[used].T]
    weights, bias, scale_weights, log_scale = (np.stack(part, axis=-1) for part in zip(*fitted, strict=True))
    low, high = (encoder.standardised(end) for end in encoder.action_range)
    return ClippedGaussian(weights, bias, np.exp(log_scale), scale_weights, low, high)


def _fit(state: Array, action: Array, weight: Array, ridge: float) -> tuple[Array, Array, Array, Array]:
    """Slope and offset of the mean, slope and offset of the logarithm of the scale, of one coordinate."""
    p = state.shape[1]
    design = np.hstack([state, np.ones((len(state), 1))])
    is_slope = np.append(np.ones(p), 0.0)

    def objective(parameters: Array) -> tuple[float, Array]:
        by_mean, by_scale = parameters[: p + 1], parameters[p + 1 :]
        log_scale = np.clip(design @ by_scale, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)
        is_free = np.abs(design @ by_scale) < LARGEST_LOG_SCALE
        residual = (action - design @ by_mean) * np.exp(-log_scale)
        value = weight @ (0.5 * residual**2 + log_scale)
        value += 0.5 * ridge * float(is_slope @ (by_mean**2 + by_scale**2))
        gradient = np.concatenate(
            [
                -design.T @ (weight * residual * np.exp(-log_scale)) + ridge * is_slope * by_mean,
                design.T @ (weight * (1 - residual**2) * is_free) + ridge * is_slope * by_scale,
            ]
        )
        return float(value), gradient

    center = float(weight @ action)
    spread = max(float(np.sqrt(weight @ (action - center) ** 2)), 1e-3)
    start = np.zeros(2 * (p + 1))
    start[p], start[-1] = center, np.log(spread)
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 5_000, "ftol": 1e-15, "gtol": 1e-9}
    )
    by_mean, by_scale = np.split(found.x, 2)
    return by_mean[:p], by_mean[p], by_scale[:p], by_scale[p]


def greedy_action(policy: Gaussian, state: Array, encoder: Encoder) -> Array:
    """Π_A{μ(s)} on the raw scale (n, 3): clipped to the training range, promotions rounded."""
    action = np.clip(encoder.raw_action(policy.location(state)), *encoder.action_range)
    promotions = ACTION.index("total_promotions")
    action[:, promotions] = np.rint(action[:, promotions])
    return action
