"""A model of single transitions, and returns simulated through it.

(r, s') = f̂(x) + the residual of a logged transition near x, which also tells whether the episode ends; then
the target policy acts at s'. The regression f̂ says what happens on average, and the residuals keep what is
not Gaussian, what depends on x, and how reward and successor go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil, log, prod

import numpy as np

from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.numerics.simulation.donors import Donors
from kedrl_dask.numerics.simulation.smooth_regression import (
    LINEAR_WEIGHT,
    Each,
    Metric,
    SmoothFunction,
    SmoothRegression,
    fit_smooth,
)
from kedrl_dask.utils.arrays import Indices, Inputs, Mask, Matrix, Points, Record, Vector

#: Folds of whole episodes by which regressions are cross-validated.
N_FOLDS = 5
#: Responses that have a regression of their own, at most; and the least share of nonlinear variance for one.
MOST_OWN, LEAST_NONLINEAR = 8, 1e-3
#: Simulated states stay within the logged ones, this share of their range further out.
MARGIN = 0.1
#: Rounding errors of a mean, in standard deviations of the response, that single precision may leave.
ROUNDING = 1e-4
#: Discounted weight at which a simulated return ends.
NEGLIGIBLE = 1e-3


#: Arrays of a metric and of donors, in the order in which they are packed.
METRIC, DONORS = ("center", "scale", "directions"), ("centers", "first", "residuals", "terminal")


@dataclass(frozen=True)
class TransitionModel:
    """What follows an input: mean and noise of the reward and of the change of state.

    Attributes
    ----------
    means : tuple of SmoothFunction
        Of combinations of responses, one block of columns after the other.
    mixing : (k, d + p) array
        From those combinations to the reward and the change of state.
    donors : Donors
        The noise.
    low, high : (p,) arrays
        Bounds of the simulated states.
    reward_dim : int
        d.
    """

    means: tuple[SmoothFunction, ...]
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
        each: Each = map,
    ) -> TransitionModel:
        """Fit to logged transitions; the successors of terminal ones are not looked at.

        ``each`` applies a function to independent responses, as ``map`` does: that of a pool of threads does
        it at once.
        """
        p, d = next_state.shape[1], reward.shape[1]
        fold = np.unique(episode, return_inverse=True)[1] % N_FOLDS
        goes_on = ~terminal
        change = next_state - inputs[:, :p]
        residuals = np.zeros((len(inputs), d + p))
        parts, columns = [], []
        rewards = _fit_responses(inputs, reward, fold, seed, each)
        residuals[:, :d] = rewards.residuals
        parts += rewards.regressions
        columns.append(np.hstack([rewards.mixing, np.zeros((len(rewards.mixing), p))]))
        if goes_on.any():
            hints = [part.metric.directions for part in rewards.regressions]
            changes = _fit_responses(inputs[goes_on], change[goes_on], fold[goes_on], seed, each, hints)
            residuals[goes_on, d:] = changes.residuals
            parts += changes.regressions
            columns.append(np.hstack([np.zeros((len(changes.mixing), d)), changes.mixing]))
        donors = Donors.gather(inputs, residuals, terminal, fold, d, seed, each)
        states = np.vstack([inputs[:, :p], next_state[goes_on]])
        low, high = states.min(axis=0), states.max(axis=0)
        margin = MARGIN * (high - low)
        means = tuple(SmoothFunction.from_regression(part) for part in parts)
        return cls(means, np.vstack(columns), donors, low - margin, high + margin, d)

    def mean(self, inputs: Inputs) -> Points:
        """Mean reward and change of state; (n, d + p)."""
        by_precision = {dtype: inputs.astype(dtype, copy=False) for dtype in set(self._precisions)}
        parts = [mean(by_precision[dtype]) for mean, dtype in zip(self.means, self._precisions, strict=True)]
        return np.hstack(parts) @ self.mixing

    @cached_property
    def _precisions(self) -> list[type[np.floating]]:
        """Single where it is accurate enough for a mean, in standard deviations, to which noise is added."""
        return [np.float32 if mean.is_accurate(np.float32, ROUNDING) else np.float64 for mean in self.means]

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

    def pack(self) -> tuple[Vector, Record]:
        """All numbers in one array, and the layout by which :meth:`unpack` finds them again."""
        donors = self.donors
        parts = {f"{i}.{name}": x for i, mean in enumerate(self.means) for name, x in vars(mean).items()}
        parts |= {f"metric.{name}": x for name, x in zip(METRIC, donors.metric, strict=False)}
        parts |= {name: getattr(donors, name) for name in DONORS}
        parts |= {name: getattr(self, name) for name in ("mixing", "low", "high")}
        layout = {"shapes": {name: list(x.shape) for name, x in parts.items()}}
        numbers = np.concatenate([np.asarray(x, dtype=np.float64).reshape(-1) for x in parts.values()])
        return numbers, layout | {"means": len(self.means), "reward_dim": self.reward_dim}

    @classmethod
    def unpack(cls, numbers: Vector, layout: Record) -> TransitionModel:
        """The model that :meth:`pack` wrote; ValueError if it is not one."""
        shapes = {str(name): tuple(map(int, shape)) for name, shape in layout["shapes"].items()}
        sizes = [prod(shape) for shape in shapes.values()]
        if min(min(shape, default=0) for shape in shapes.values()) < 0 or sum(sizes) != len(numbers):
            raise ValueError(f"the layout is of {sum(sizes)} numbers, there are {len(numbers)}")
        pieces = np.split(numbers, np.cumsum(sizes)[:-1])
        parts = {name: x.reshape(shape) for (name, shape), x in zip(shapes.items(), pieces, strict=True)}
        names = [field.name for field in fields(SmoothFunction)]
        means = tuple(
            SmoothFunction(*(parts[f"{i}.{name}"] for name in names)) for i in range(int(layout["means"]))
        )
        center, scale, directions = (parts[f"metric.{name}"] for name in METRIC)
        metric = Metric(center, scale, directions, "residuals")
        centers, first, residuals, terminal = (parts[name] for name in DONORS)
        donors = Donors(metric, centers, first.astype(np.intp), residuals, terminal.astype(bool))
        if not (np.diff(donors.first) > 0).all() or donors.first[-1] != len(residuals):
            raise ValueError("the cells of the residuals are not those of their rows")
        rest = parts["mixing"], donors, parts["low"], parts["high"], int(layout["reward_dim"])
        return cls(means, *rest)


def rewards_until(discount: float, negligible: float = NEGLIGIBLE) -> int:
    """Number of rewards after which the discounted weight is negligible."""
    return 1 if discount <= negligible else ceil(log(negligible) / log(discount))


@dataclass(frozen=True)
class _Responses:
    regressions: list[SmoothRegression]
    mixing: Matrix
    residuals: Points


def _fit_responses(
    inputs: Inputs, responses: Points, fold: Indices, seed: int, each: Each, hints: Sequence[Matrix] = ()
) -> _Responses:
    """One regression for all responses, and for those that are nonlinear one each where it is better."""
    scale = standard_deviations(responses)
    turned = np.diag(1 / scale)
    shared = fit_smooth(inputs, responses @ turned, fold, seed, hints, each)
    rotation = _rotation(shared.regression, inputs)
    if rotation is not None:
        turned = turned @ rotation
        shared = fit_smooth(inputs, responses @ turned, fold, seed, hints, each)
    nonlinear = np.diag(_nonlinear_covariance(shared.regression, inputs))
    candidates = [int(i) for i in np.argsort(-nonlinear)[:MOST_OWN] if nonlinear[i] > LEAST_NONLINEAR]
    own = {}
    if responses.shape[1] > 1:
        single = responses @ turned
        fits = each(lambda i: fit_smooth(inputs, single[:, i : i + 1], fold, seed, hints), candidates)
        tried = zip(candidates, fits, strict=True)
        own = {i: found for i, found in tried if found.score < shared.regression.error[i]}
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
