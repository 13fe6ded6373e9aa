"""A model of single transitions, and returns simulated through it.

(r, s') = f̂(x) + the residual of a logged transition near x, which also tells whether the episode ends; then
the target policy acts at s'. The regression f̂ says what happens on average, and the residuals keep what is
not Gaussian, what depends on x, and how reward and successor go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.numerics.simulation.donors import Donors
from kedrl_dask.numerics.simulation.smooth_regression import (
    LINEAR_WEIGHT,
    Fitted,
    SmoothRegression,
    fit_smooth,
)
from kedrl_dask.utils.arrays import Indices, Inputs, Mask, Matrix, Points, Vector

#: Folds of whole episodes by which regressions are cross-validated.
N_FOLDS = 5
#: Responses that have a regression of their own, at most; and the least share of nonlinear variance for one.
MOST_OWN, LEAST_NONLINEAR = 8, 1e-3
#: Simulated states stay within the logged ones, this share of their range further out.
MARGIN = 0.1
#: Discounted weight at which a simulated return ends.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class TransitionModel:
    """What follows an input: mean and noise of the reward and of the change of state.

    Attributes
    ----------
    regressions : tuple of SmoothRegression
        Means of combinations of responses, one block of columns after the other.
    mixing : (k, d + p) array
        From those combinations to the reward and the change of state.
    donors : Donors
        The noise.
    low, high : (p,) arrays
        Bounds of the simulated states.
    reward_dim : int
        d.
    """

    regressions: tuple[SmoothRegression, ...]
    mixing: Matrix
    donors: Donors
    low: Vector
    high: Vector
    reward_dim: int

    @classmethod
    def fit(
        cls,
        inputs: Inputs,
        reward: Points,
        next_state: Points,
        terminal: Mask,
        episode: Indices,
        seed: int = 0,
    ) -> TransitionModel:
        """Fit to logged transitions; the successors of terminal ones are not looked at."""
        p, d = next_state.shape[1], reward.shape[1]
        fold = np.unique(episode, return_inverse=True)[1] % N_FOLDS
        goes_on = ~terminal
        change = next_state - inputs[:, :p]
        residuals = np.zeros((len(inputs), d + p))
        parts, columns = [], []
        rewards = _fit_responses(inputs, reward, fold, seed)
        residuals[:, :d] = rewards.residuals
        parts += rewards.regressions
        columns.append(np.hstack([rewards.mixing, np.zeros((len(rewards.mixing), p))]))
        if goes_on.any():
            hints = [part.metric.directions for part in rewards.regressions]
            changes = _fit_responses(inputs[goes_on], change[goes_on], fold[goes_on], seed, hints)
            residuals[goes_on, d:] = changes.residuals
            parts += changes.regressions
            columns.append(np.hstack([np.zeros((len(changes.mixing), d)), changes.mixing]))
        donors = Donors.gather(inputs, residuals, terminal, fold, d, seed)
        states = np.vstack([inputs[:, :p], next_state[goes_on]])
        low, high = states.min(axis=0), states.max(axis=0)
        margin = MARGIN * (high - low)
        return cls(tuple(parts), np.vstack(columns), donors, low - margin, high + margin, d)

    def mean(self, inputs: Inputs) -> Points:
        """Mean reward and change of state; (n, d + p)."""
        return np.hstack([regression(inputs) for regression in self.regressions]) @ self.mixing

    def step(self, state: Points, action: Points, rng: np.random.Generator) -> tuple[Points, Points, Mask]:
        """Rewards (n, d), next states (n, p), and whether the episode ends."""
        inputs = np.hstack([state, action])
        donor = self.donors.pick(inputs, rng)
        outcome = self.mean(inputs) + self.donors.residuals[donor]
        following = np.clip(state + outcome[:, self.reward_dim :], self.low, self.high)
        return outcome[:, : self.reward_dim], following, self.donors.terminal[donor]

    def returns(
        self,
        state: Points,
        action: Points,
        policy: Policy,
        discount: float,
        n_returns: int,
        rng: np.random.Generator,
        negligible: float = NEGLIGIBLE,
    ) -> Points:
        """Simulated discounted returns (n, n_returns, d) of a policy after each input."""
        now, act = np.repeat(state, n_returns, axis=0), np.repeat(action, n_returns, axis=0)
        total, rows = np.zeros((len(now), self.reward_dim)), np.arange(len(now))
        for step in range(rewards_until(discount, negligible)):
            if step > 0:
                act = policy.sample(now, rng)
            reward, now, ends = self.step(now, act, rng)
            total[rows] += discount**step * reward
            rows, now = rows[~ends], now[~ends]
            if len(rows) == 0:
                break
        return total.reshape(len(state), n_returns, -1)


def rewards_until(discount: float, negligible: float = NEGLIGIBLE) -> int:
    """Number of rewards after which the discounted weight is negligible."""
    return 1 if discount <= negligible else ceil(log(negligible) / log(discount))


@dataclass(frozen=True)
class _Responses:
    regressions: list[SmoothRegression]
    mixing: Matrix
    residuals: Points


def _fit_responses(
    inputs: Inputs, responses: Points, fold: Indices, seed: int, hints: Sequence[Matrix] = ()
) -> _Responses:
    """One regression for all responses, and for those that are nonlinear one each where it is better."""
    scale = standard_deviations(responses)
    turned = np.diag(1 / scale)
    shared = fit_smooth(inputs, responses @ turned, fold, seed, hints)
    rotation = _rotation(shared.regression, inputs)
    if rotation is not None:
        turned = turned @ rotation
        shared = fit_smooth(inputs, responses @ turned, fold, seed, hints)
    nonlinear = np.diag(_nonlinear_covariance(shared.regression, inputs))
    candidates = [int(i) for i in np.argsort(-nonlinear)[:MOST_OWN] if nonlinear[i] > LEAST_NONLINEAR]
    own = (
        {}
        if responses.shape[1] == 1
        else _own(inputs, responses @ turned, fold, seed, shared, candidates, hints)
    )
    back = np.linalg.inv(turned)
    rest = [i for i in range(responses.shape[1]) if i not in own]
    kept = SmoothRegression(
        shared.regression.metric,
        shared.regression.features,
        shared.regression.coefficients[:, rest],
        shared.regression.error[rest],
    )
    regressions = ([kept] if rest else []) + [found.regression for found in own.values()]
    residuals = np.empty_like(responses)
    residuals[:, rest] = shared.residuals[:, rest]
    for i, found in own.items():
        residuals[:, i] = found.residuals[:, 0]
    return _Responses(regressions, back[[*rest, *own]], residuals @ back)


def _own(
    inputs: Inputs,
    responses: Points,
    fold: Indices,
    seed: int,
    shared: Fitted,
    candidates: list[int],
    hints: Sequence[Matrix],
) -> dict[int, Fitted]:
    """Regressions of single responses that predict better than the shared one."""
    found = {i: fit_smooth(inputs, responses[:, i : i + 1], fold, seed, hints) for i in candidates}
    return {i: one for i, one in found.items() if one.score < shared.regression.error[i]}


def _nonlinear_covariance(regression: SmoothRegression, inputs: Inputs) -> Matrix:
    """Covariance of the nonlinear part of the means, linear terms taken out; (k, k)."""
    rank = regression.features.rank
    design = regression.design(inputs[:2_000])
    part, linear = design[:, :rank] @ regression.coefficients[:rank], design[:, rank:] / LINEAR_WEIGHT
    left = part - linear @ np.linalg.lstsq(linear, part, rcond=None)[0]
    return np.atleast_2d(np.cov(left, rowvar=False))


def _rotation(regression: SmoothRegression, inputs: Inputs) -> Matrix | None:
    """Combinations of responses that concentrate what is nonlinear in few of them, if they do."""
    covariance = _nonlinear_covariance(regression, inputs)
    values, vectors = np.linalg.eigh(covariance)
    before, after = ((v > LEAST_NONLINEAR).sum() for v in (np.diag(covariance), values))
    return vectors if before > MOST_OWN and 2 * after < before else None
