"""Reward-weighted linear-Gaussian policies (subsec:expedia_policy_construction)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from kedrl_dask.datasets.expedia.columns import ACTION
from kedrl_dask.datasets.expedia.panel import Encoder
from kedrl_dask.numerics.policies import Gaussian
from kedrl_dask.utils.arrays import Actions, Matrix, Points, Record, Vector, Weights
from kedrl_dask.utils.checks import check_number
from kedrl_dask.utils.exceptions import NumericalError

#: Penalty on the squared slopes. One-hot columns add up to one, and some levels have no reward at all.
RIDGE = 1e-2
#: Assumed error of logged actions, in standard deviations. Without it the scale could become zero for a few
#: weighted lists that the mean interpolates.
JITTER = 0.05
#: Gradient at which the likelihood, of order one, is at its maximum.
TOLERANCE = 1e-6


class ClippedGaussian(Gaussian):
    """Gaussian policy whose actions are clipped to the box from low to high (q,), coordinate by coordinate.

    It has mass on the sides of the box, and so no density there. With ``random``, ``draws`` are random
    actions, different at every state, as in the paper's uLSIF, rather than quadrature nodes.
    """

    family = "clipped-gaussian"
    has_log_density = False

    low: Vector
    high: Vector
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
        self, state: Points, n_draws: int, rng: np.random.Generator | None = None
    ) -> tuple[Actions, Weights]:
        """Quadrature nodes or random actions, clipped, and their weights."""
        if not self.random:
            actions, weights = super().draws(state, n_draws)
            return self._clipped(actions), weights
        if rng is None:
            raise ValueError(
                f"{self._name}.draws: actions are random, pass rng=numpy.random.default_rng(seed)"
            )
        return np.stack([self.sample(state, rng) for _ in range(n_draws)]), np.full(n_draws, 1.0 / n_draws)

    def sample(self, state: Points, rng: np.random.Generator) -> Actions:
        """One random action (n, q) for each state."""
        return self._clipped(super().sample(state, rng))

    def log_density(self, state: Points, action: Actions) -> Vector:
        """Refuse, because there is no density."""
        raise ValueError(f"{self._name}: a clipped action has mass on the sides of the box, and no density")

    def _clipped(self, actions: Actions) -> Actions:
        return np.clip(actions, self.low, self.high).astype(actions.dtype, copy=False)

    def _parameters(self) -> Record:
        box = {"low": self.low, "high": self.high}
        return {**super()._parameters(), **box, "random": np.asarray(self.random)}

    def __reduce__(self) -> tuple[type[ClippedGaussian], tuple[object, ...]]:
        """Rebuild through the constructor."""
        return type(self), (*list(self._parameters().values())[:-1], self.random)

    def drawn(self) -> ClippedGaussian:
        """The same policy with random draws."""
        box = self.low, self.high
        return ClippedGaussian(self.weights, self.bias, self.scale, self.scale_weights, *box, random=True)


def reward_weighted_policy(
    state: Points, action: Actions, reward: Vector, encoder: Encoder, ridge: float = RIDGE
) -> ClippedGaussian:
    """Fit A | s ~ N(sᵀΘ_μ + ε_μ, diag exp(sᵀΘ_σ + ε_σ)²) by the reward-weighted likelihood.

    Minimises, for each coordinate of the standardised action by itself,

        Σ_j w_j {½((a_j − μ_j)² + τ²)/σ_j² + log σ_j} + ½·ridge·(‖Θ_μ‖² + ‖Θ_σ‖²),   w_j = r_j / Σ_i r_i.

    The paper says that larger rewards weigh more, but not how: here the weights are the rewards themselves.
    It names neither a ridge, without which levels without any reward would have no coefficient, nor τ
    (``JITTER``). The policy acts within the encoder's range of training actions.
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


def _fit(
    state: Points, action: Vector, weight: Vector, ridge: float
) -> tuple[Vector, Vector, Vector, Vector]:
    """Slope and offset of the mean, slope and offset of the logarithm of the scale, of one coordinate."""
    p = state.shape[1]
    likelihood = _Likelihood(np.hstack([state, np.ones((len(state), 1))]), action, weight, ridge)
    center = float(weight @ action)
    spread = max(float(np.sqrt(weight @ (action - center) ** 2)), 1e-3)
    start = np.zeros(2 * (p + 1))
    start[p], start[-1] = center, np.log(spread)
    # Short steps, as the scale is an exponential.
    options: Any = {"gtol": TOLERANCE, "initial_trust_radius": 0.5, "max_trust_radius": 2.0, "maxiter": 2_000}
    found = minimize(
        likelihood.value, start, jac=likelihood.gradient, hess=likelihood.hessian, method="trust-exact",
        options=options,
    )  # fmt: skip
    if not found.success:
        raise NumericalError(
            f"reward_weighted_policy: the likelihood has a gradient of {np.linalg.norm(found.jac):.1e} after "
            f"{found.nit} steps ({found.message}); raise ridge, which is {ridge:g}"
        )
    by_mean, by_scale = np.split(found.x, 2)
    return by_mean[:p], by_mean[p], by_scale[:p], by_scale[p]


@dataclass(frozen=True)
class _Likelihood:
    """Minus the weighted log-likelihood of one coordinate, with the ridge, and its derivatives."""

    design: Matrix
    action: Vector
    weight: Vector
    ridge: float

    @property
    def _penalty(self) -> Vector:
        """The ridge of each parameter: none on the offsets."""
        return self.ridge * np.tile(np.append(np.ones(self.design.shape[1] - 1), 0.0), 2)

    def _parts(self, parameters: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        """Standardised residual, its square with that of the jitter, logarithm of the scale, one over it."""
        by_mean, by_scale = np.split(parameters, 2)
        log_scale = self.design @ by_scale
        precision = np.exp(-log_scale)
        residual = (self.action - self.design @ by_mean) * precision
        return residual, residual**2 + (JITTER * precision) ** 2, log_scale, precision

    def value(self, parameters: Vector) -> float:
        _, square, log_scale, _ = self._parts(parameters)
        fit = self.weight @ (0.5 * square + log_scale)
        return float(fit + 0.5 * self._penalty @ parameters**2)

    def gradient(self, parameters: Vector) -> Vector:
        residual, square, _, precision = self._parts(parameters)
        by_row = -residual * precision, 1 - square
        fit = np.concatenate([self.design.T @ (self.weight * part) for part in by_row])
        return fit + self._penalty * parameters

    def hessian(self, parameters: Vector) -> Matrix:
        residual, square, _, precision = self._parts(parameters)
        by_row = precision**2, 2 * residual * precision, 2 * square
        weighted = ((self.weight * part)[:, None] * self.design for part in by_row)
        means, mixed, scales = (self.design.T @ part for part in weighted)
        return np.block([[means, mixed], [mixed.T, scales]]) + np.diag(self._penalty)


def greedy_action(policy: Gaussian, state: Points, encoder: Encoder) -> Actions:
    """Π_A{μ(s)} on the raw scale (n, 3): clipped to the training range, promotions rounded."""
    action = np.clip(encoder.raw_action(policy.location(state)), *encoder.action_range)
    promotions = ACTION.index("total_promotions")
    action[:, promotions] = np.rint(action[:, promotions])
    return action
