"""Returns of the target policy after any input, simulated through the model of single transitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.transition_model import TransitionModel, rewards_until
from kedrl_dask.utils.arrays import Array, Inputs, Points, Weights

#: Simulated steps of an input, and the fewest and most returns.
STEPS, N_RETURNS, MOST_RETURNS = 400_000, 1_000, 4_000


@dataclass(frozen=True, eq=False)
class Simulator:
    """A transition model, and the policy that acts in it.

    All inputs have the same random numbers: the returns of one do not depend on which others are asked for,
    and those of two inputs differ by the inputs alone as far as possible. Another ``stream`` has others.
    """

    model: TransitionModel
    policy: Policy
    discount: float
    seed: int
    stream: int = 0

    @property
    def most_returns(self) -> int:
        """Number of returns of an input that takes no longer than ``STEPS`` steps."""
        return int(np.clip(STEPS // rewards_until(self.discount), N_RETURNS, MOST_RETURNS))

    def __call__(self, state: Points, action: Points | Policy, n_returns: int = N_RETURNS) -> Array:
        """Returns (n, n_returns, d) after each state and action, or after actions of a policy there."""
        return np.stack([self._at(state, action, row, n_returns) for row in range(len(state))])

    def averaged(
        self, state: Points, action: Points | Policy, weights: Weights, n_returns: int = N_RETURNS
    ) -> Points:
        """Returns (n_returns, d) after inputs drawn with these weights (n,), as evenly as they allow."""
        levels = (np.arange(n_returns) + 0.5) / n_returns
        rows = np.searchsorted(np.cumsum(weights) / np.sum(weights), levels)
        rng = np.random.default_rng([self.seed, 34, self.stream])
        first = action.sample(state[rows], rng) if isinstance(action, Policy) else action[rows]
        return self.model.returns(state[rows], first, self.policy, self.discount, 1, rng)[:, 0]

    def block(self, number: int, inputs: Inputs) -> Points:
        """One return of each of many inputs (n, p + q), with random numbers of the block's own; (n, d)."""
        rng = np.random.default_rng([self.seed, 36, number])
        state, action = np.hsplit(inputs, [len(self.model.low)])
        return self.model.returns(state, action, self.policy, self.discount, 1, rng)[:, 0]

    def _at(self, state: Points, action: Points | Policy, row: int, n_returns: int) -> Points:
        rng = np.random.default_rng([self.seed, 34, self.stream])
        here = np.repeat(state[row : row + 1], n_returns, axis=0)
        if isinstance(action, Policy):
            first = action.sample(here, rng)
        else:
            first = np.repeat(action[row : row + 1], n_returns, axis=0)
        return self.model.returns(here, first, self.policy, self.discount, 1, rng)[:, 0]
