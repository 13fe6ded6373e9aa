"""What a method is given: logged transitions, the target policy and the discount."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kedrl_dask.datasets.benchmark.case import NEGLIGIBLE
from kedrl_dask.numerics.simulation.transition_model import rewards_until

#: Share of the episodes that is held out.
HELD_OUT = 0.15
#: Simulated returns at each input, at least and at most, and steps of all of them.
LEAST_RETURNS, MOST_RETURNS, MOST_STEPS = 1_000, 4_000, 400_000
#: Simulated states stay within the logged ones, this share of their range further out.
MARGIN = 0.1


@dataclass(frozen=True, eq=False)
class Problem:
    """Logged transitions, and the policy to evaluate.

    The rows of ``next_state`` after a terminal transition mean nothing: no method may look at them.
    """

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray
    terminal: np.ndarray
    episode: np.ndarray
    policy: object
    discount: float
    seed: int = 0

    @classmethod
    def from_rows(cls, rows, policy, discount, seed=0):
        """Rows as ``Case.log`` gives them; the last of one that does not terminate is no transition."""
        episode, terminated = np.asarray(rows["episode"]), np.asarray(rows["terminated"])
        follows = np.append(episode[1:] == episode[:-1], False)
        now = np.flatnonzero(terminated | follows)
        state, ends = np.asarray(rows["state"]), terminated[now]
        following = np.where(ends[:, None], state[now], state[np.minimum(now + 1, len(state) - 1)])
        action, reward = np.asarray(rows["action"])[now], np.asarray(rows["reward"])[now]
        return cls(state[now], action, reward, following, ends, episode[now], policy, discount, seed)

    @classmethod
    def of_case(cls, case, n_transitions, seed):
        """The transitions on which ``kedrl study systems`` fits with this seed."""
        return cls.from_rows(case.log(n_transitions, seed), case.target, case.discount, seed)

    @property
    def inputs(self):
        """States and actions; (N, p + q)."""
        return np.hstack([self.state, self.action])

    def rng(self, purpose=0):
        """A generator of its own for each purpose, and not that of the data."""
        return np.random.default_rng([self.seed, 77, purpose])

    def held_out(self):
        """Whether each transition belongs to an episode that is held out; (N,)."""
        names, index = np.unique(self.episode, return_inverse=True)
        return (self.rng(1).permutation(len(names)) < max(1, round(HELD_OUT * len(names))))[index]

    def next_inputs(self, rng, rows=slice(None)):
        """Next states with actions of the target policy; (n, p + q)."""
        following = self.next_state[rows]
        return np.hstack([following, self.policy.sample(following, rng)])

    def reward_unit(self):
        """Centre and scale of the rewards and of the returns, each (d,).

        Returns are measured from that of the mean reward for ever, unless episodes terminate, and in standard
        deviations of the discounted sums of the logged episodes.
        """
        centre = 0 * self.reward[0] if self.terminal.any() else self.reward.mean(axis=0)
        first = np.flatnonzero(np.append(True, self.episode[1:] != self.episode[:-1]))
        step = np.arange(len(self.episode)) - np.repeat(first, np.diff(np.append(first, len(self.episode))))
        sums = np.add.reduceat(self.discount ** step[:, None] * (self.reward - centre), first)
        return centre, np.maximum(sums.std(axis=0), 1e-12)


@dataclass(frozen=True, eq=False)
class Standard:
    """Subtracts means and divides by standard deviations."""

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values):
        scale = values.std(axis=0)
        return cls(values.mean(axis=0), np.where(scale > 0, scale, 1.0))

    def __call__(self, values):
        return (values - self.centre) / self.scale

    def back(self, values):
        return values * self.scale + self.centre


def rollouts(step, problem, state, action, most_returns=MOST_RETURNS):
    """Discounted returns (n, size, d) of the target policy through a model, fewer where they are long.

    Parameters
    ----------
    step : callable
        Rewards, next states and whether the episode ends, of states, actions and a generator.
    problem : Problem
    state, action : (n, p) and (n, q) arrays
        Where the returns begin.
    most_returns : int
        At each input.
    """
    rng, horizon = problem.rng(2), rewards_until(problem.discount, NEGLIGIBLE)
    n_returns = int(np.clip(MOST_STEPS // horizon, LEAST_RETURNS, most_returns))
    low, high = problem.state.min(axis=0), problem.state.max(axis=0)
    margin = MARGIN * (high - low)
    now, act = np.repeat(state, n_returns, axis=0), np.repeat(action, n_returns, axis=0)
    total, alive = np.zeros((len(now), problem.reward.shape[1])), np.arange(len(now))
    for t in range(horizon):
        act = problem.policy.sample(now, rng) if t else act
        reward, now, ends = step(now, act, rng)
        total[alive] += problem.discount**t * reward
        alive, now = alive[~ends], np.clip(now[~ends], low - margin, high + margin)
        if not len(alive):
            break
    return total.reshape(len(state), n_returns, -1)
