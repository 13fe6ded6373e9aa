"""A model of single transitions, and returns simulated through it.

(r, s') = f̂(x) + the residual of a logged transition near x; then the target policy acts at s'. The regression
f̂ says what happens on average, and the residuals keep what is not Gaussian, what depends on x, and how reward
and successor go together. Transitions of different kinds have a model each, and a regression of the kind's
chance: those that end an episode, those that lead to a wall, those whose reward is exactly zero, and the
others. A mean over all would be a transition that never happens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil, log, prod
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.chance import fit_chance
from kedrl_dask.numerics.simulation.donors import Donors
from kedrl_dask.numerics.simulation.metric_search import Each
from kedrl_dask.numerics.simulation.one_step import OneStep
from kedrl_dask.numerics.simulation.smooth_regression import Metric, Resampling, SmoothFunction
from kedrl_dask.utils.arrays import Array, Indices, Inputs, Mask, Points, Record, Vector

#: Folds of whole episodes by which regressions are cross-validated.
N_FOLDS = 5
#: Simulated states stay within the logged ones, this share of their range further out.
MARGIN = 0.1
#: Bound of what has none, in the range of floats.
UNBOUNDED = float(np.finfo(np.float64).max)
#: Discounted weight at which a simulated return ends.
NEGLIGIBLE = 1e-3
#: Fewest transitions that end an episode, for these to be a kind, and that lead to a wall: with 97 a model of
#: their own made a mountain car right, with 13 one made two wells wrong, with 77 it did nothing to them.
END_SIZE, WALL_SIZE = 10, 50
#: Most divisions one after the other.
MOST_DIVISIONS = 4
#: Fewest transitions that have one value of a reward, and that have not, and the least share that have it.
REWARD_KIND_SIZE, LEAST_SHARE = 300, 0.1
#: Least share of distinct values among the others, for the value that a state's component has most often to
#: be a wall: where values are rounded, or few, many are frequent.
CONTINUOUS = 0.5


@dataclass(frozen=True)
class Division:
    """Transitions of two kinds, by an event that happens with a chance that depends on the input.

    Attributes
    ----------
    logit : SmoothFunction
        Of the chance.
    yes, no : OneStep or Division
        What follows if it happens, and if not.
    """

    logit: SmoothFunction
    yes: OneStep | Division
    no: OneStep | Division

    def draw(self, inputs: Inputs, rng: np.random.Generator) -> tuple[Points, Mask]:
        """Reward and change of state after each input (n, d + p), and whether the episode ends."""
        happens = rng.random(len(inputs)) < expit(self.logit(inputs)[:, 0])
        outcome, ends = None, np.empty(len(inputs), dtype=bool)
        for side, rows in ((self.yes, happens), (self.no, ~happens)):
            if rows.any():
                found, ends[rows] = side.draw(inputs[rows], rng)
                outcome = np.empty((len(inputs), found.shape[1])) if outcome is None else outcome
                outcome[rows] = found
        assert outcome is not None
        return outcome, ends


@dataclass(frozen=True)
class TransitionModel:
    """What follows an input.

    Attributes
    ----------
    follows : OneStep or Division
        Reward and change of state.
    low, high : (p,) arrays
        Bounds of the simulated states.
    reward_low, reward_high : (d,) arrays
        Bounds of the simulated rewards: one that is never negative, or never positive, stays so.
    """

    follows: OneStep | Division
    low: Vector
    high: Vector
    reward_low: Vector
    reward_high: Vector

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
        """Fit to logged transitions; see :meth:`fit_replicates`."""
        resampling = Resampling.drawn(episode, 0, seed)
        return cls.fit_replicates(inputs, reward, next_state, terminal, episode, resampling, seed, each)[0]

    @classmethod
    def fit_replicates(
        cls,
        inputs: Inputs,
        reward: Points,
        next_state: Points,
        terminal: Mask,
        episode: Indices,
        resampling: Resampling,
        seed: int = 0,
        each: Each = map,
    ) -> list[TransitionModel]:
        """Fit to logged transitions, and to replicates: groups of episodes drawn with replacement.

        Replicates have the metrics, landmarks and ridges of the fit. The successors of terminal transitions
        are not looked at. ``each`` applies a function to independent responses, as ``map`` does: that of a
        pool of threads does it at once.
        """
        p = next_state.shape[1]
        fold = np.unique(episode, return_inverse=True)[1] % N_FOLDS
        logged = _Logged(inputs, reward, next_state, terminal, fold, resampling)
        states = np.vstack([inputs[:, :p], next_state[~terminal]])
        low, high = states.min(axis=0), states.max(axis=0)
        margin = MARGIN * (high - low)
        least = np.where(reward.min(axis=0) >= 0, 0.0, -UNBOUNDED)
        most = np.where(reward.max(axis=0) <= 0, 0.0, UNBOUNDED)
        bounds = low - margin, high + margin, least, most
        return [cls(follows, *bounds) for follows in _fit(logged, seed, each, MOST_DIVISIONS)]

    @property
    def reward_dim(self) -> int:
        """Dimension d of the rewards."""
        return len(self.reward_low)

    def step(self, state: Points, action: Points, rng: np.random.Generator) -> tuple[Points, Points, Mask]:
        """Rewards (n, d), next states (n, p), and whether the episode ends."""
        outcome, ends = self.follows.draw(np.hstack([state, action]), rng)
        reward = np.clip(outcome[:, : self.reward_dim], self.reward_low, self.reward_high)
        following = np.clip(state + outcome[:, self.reward_dim :], self.low, self.high)
        return reward, following, ends

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
        repeated = np.repeat(state, n_returns, axis=0), np.repeat(action, n_returns, axis=0)
        total, _ = self.rollouts(*repeated, policy, discount, rng, negligible)
        return total.reshape(len(state), n_returns, -1)

    def rollouts(
        self,
        state: Points,
        action: Points,
        policy: Policy,
        discount: float,
        rng: np.random.Generator,
        negligible: float = NEGLIGIBLE,
    ) -> tuple[Points, int]:
        """One simulated return after each input (n, d), and the number of steps of all of them."""
        now, act, rows, n_steps = state, action, np.arange(len(state)), 0
        total = np.zeros((len(state), self.reward_dim))
        for step in range(rewards_until(discount, negligible)):
            if step > 0:
                act = policy.sample(now, rng)
            reward, now, ends = self.step(now, act, rng)
            total[rows] += discount**step * reward
            n_steps += len(rows)
            rows, now = rows[~ends], now[~ends]
            if len(rows) == 0:
                break
        return total, n_steps

    def pack(self) -> tuple[Vector, Record]:
        """All numbers in one array, and the layout by which :meth:`unpack` finds them again."""
        parts: dict[str, Array] = {name: getattr(self, name) for name in BOUNDS}
        tree = _write(self.follows, "", parts)
        layout = {"shapes": {name: list(x.shape) for name, x in parts.items()}}
        numbers = np.concatenate([np.asarray(x, dtype=np.float64).reshape(-1) for x in parts.values()])
        return numbers, layout | {"follows": tree}

    @classmethod
    def unpack(cls, numbers: Vector, layout: Record) -> TransitionModel:
        """The model that :meth:`pack` wrote; ValueError if it is not one."""
        shapes = {str(name): tuple(map(int, shape)) for name, shape in layout["shapes"].items()}
        sizes = [prod(shape) for shape in shapes.values()]
        if min(min(shape, default=0) for shape in shapes.values()) < 0 or sum(sizes) != len(numbers):
            raise ValueError(f"the layout is of {sum(sizes)} numbers, there are {len(numbers)}")
        pieces = np.split(numbers, np.cumsum(sizes)[:-1])
        parts = {name: x.reshape(shape) for (name, shape), x in zip(shapes.items(), pieces, strict=True)}
        follows = _read(layout["follows"], "", parts, MOST_DIVISIONS)
        return cls(follows, *(parts[name] for name in BOUNDS))


def rewards_until(discount: float, negligible: float = NEGLIGIBLE) -> int:
    """Number of rewards after which the discounted weight is negligible."""
    return 1 if discount <= negligible else ceil(log(negligible) / log(discount))


class _Logged(NamedTuple):
    inputs: Inputs
    reward: Points
    next_state: Points
    terminal: Mask
    fold: Indices
    resampling: Resampling

    def rows(self, chosen: Mask) -> _Logged:
        points = self.inputs[chosen], self.reward[chosen], self.next_state[chosen]
        return _Logged(*points, self.terminal[chosen], self.fold[chosen], self.resampling.of(chosen))


def _fit(logged: _Logged, seed: int, each: Each, most_divisions: int) -> list[OneStep] | list[Division]:
    """One model, or those of two kinds of transitions; of the fit and of each replicate."""
    happened = _event(logged) if most_divisions else None
    if happened is None:
        change = logged.next_state - logged.inputs[:, : logged.next_state.shape[1]]
        rest = logged.terminal, logged.fold, logged.resampling
        return OneStep.fit(logged.inputs, logged.reward, change, *rest, seed, each)
    logits = fit_chance(logged.inputs, happened, logged.fold, logged.resampling, seed, each)
    sides = (_fit(logged.rows(rows), seed, each, most_divisions - 1) for rows in (happened, ~happened))
    return [Division(*parts) for parts in zip(logits, *sides, strict=True)]


def _event(logged: _Logged) -> Mask | None:
    """Which transitions are of another kind than the rest, if there are enough of both.

    They end an episode, or lead to a wall, or have a reward that is often exactly the same.
    """
    walls = [(_wall(column, ~logged.terminal), WALL_SIZE) for column in logged.next_state.T]
    for happened, fewest in [(logged.terminal, END_SIZE), *walls]:
        if min(happened.sum(), (~happened).sum()) >= fewest:
            return happened
    for column in logged.reward.T:
        values, counts = np.unique(column, return_counts=True)
        most = counts.max()
        if most >= LEAST_SHARE * len(column) and min(most, len(column) - most) >= REWARD_KIND_SIZE:
            return column == values[counts.argmax()]
    return None


def _wall(column: Vector, goes_on: Mask) -> Mask:
    """Which rows of a continuous component of the state have the value that it has most often."""
    values, counts = np.unique(column[goes_on], return_counts=True)
    if len(values) < 2 or len(values) - 1 < CONTINUOUS * (counts.sum() - counts.max()):
        return np.zeros(len(column), dtype=bool)
    return goes_on & (column == values[counts.argmax()])


#: Arrays of the bounds, of a metric and of donors, in the order in which they are packed.
BOUNDS = ("low", "high", "reward_low", "reward_high")
METRIC, DONORS = ("center", "scale", "directions"), ("centers", "first", "residuals", "terminal")


def _write(follows: OneStep | Division, name: str, parts: dict[str, Array]) -> Record:
    """Enter the arrays of a part of the model under its name, and describe it."""
    if isinstance(follows, Division):
        parts |= {f"{name}logit.{key}": x for key, x in vars(follows.logit).items()}
        return {side: _write(getattr(follows, side), f"{name}{side}.", parts) for side in ("yes", "no")}
    donors = follows.donors
    parts |= {f"{name}{i}.{key}": x for i, mean in enumerate(follows.means) for key, x in vars(mean).items()}
    parts |= {f"{name}metric.{key}": getattr(donors.metric, key) for key in METRIC}
    parts |= {f"{name}{key}": getattr(donors, key) for key in DONORS}
    parts[f"{name}mixing"] = follows.mixing
    if donors.log_size is not None:
        parts |= {f"{name}size.{key}": x for key, x in vars(donors.log_size).items()}
    return {"means": len(follows.means), "sized": donors.log_size is not None}


def _read(tree: Record, name: str, parts: Record, most_divisions: int) -> OneStep | Division:
    """Inverse of :func:`_write`."""

    def function(prefix: str) -> SmoothFunction:
        return SmoothFunction(*(parts[f"{prefix}.{field.name}"] for field in fields(SmoothFunction)))

    if "means" not in tree:
        if most_divisions < 1:
            raise ValueError("kinds of transitions are divided too often")
        sides = (_read(tree[side], f"{name}{side}.", parts, most_divisions - 1) for side in ("yes", "no"))
        return Division(function(f"{name}logit"), *sides)
    means = tuple(function(f"{name}{i}") for i in range(int(tree["means"])))
    center, scale, directions = (parts[f"{name}metric.{key}"] for key in METRIC)
    centers, first, residuals, terminal = (parts[f"{name}{key}"] for key in DONORS)
    metric = Metric(center, scale, directions, "residuals")
    log_size = function(f"{name}size") if tree["sized"] else None
    donors = Donors(metric, centers, first.astype(np.intp), residuals, terminal.astype(bool), log_size)
    if not (np.diff(donors.first) > 0).all() or donors.first[-1] != len(residuals):
        raise ValueError("the cells of the residuals are not those of their rows")
    return OneStep(means, parts[f"{name}mixing"], donors)
