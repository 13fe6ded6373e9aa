"""One case of the benchmark: a system, two policies, a discount, and the episodes that were logged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from os import PathLike
from typing import NamedTuple, cast

import numpy as np
from numpy.random import Generator

from kedrl_dask.datasets.systems import System
from kedrl_dask.datasets.truth import monte_carlo_returns
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.transitions import Rows
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.transition_model import rewards_until
from kedrl_dask.utils.arrays import Array, Mask, Points

#: Inputs at which a case is judged, true returns simulated at each, and the discounted weight left out there.
#: A case that is slow to simulate has fewer returns.
N_INPUTS, N_RETURNS, NEGLIGIBLE = 8, 4_000, 1e-4

Step = Callable[[Points, Points, Generator], tuple[Points, Points]]
Start = Callable[[Generator, int], Points]
Ends = Callable[[Points, Generator], Mask]
Judged = Callable[[Points], Mask]


def never(reached: Points, rng: Generator) -> Mask:
    """No step ends an episode."""
    return np.zeros(len(reached), dtype=bool)


def everywhere(state: Points) -> Mask:
    """Any state will do."""
    return np.ones(len(state), dtype=bool)


@dataclass(frozen=True)
class FunctionSystem:
    """A system given by functions.

    Attributes
    ----------
    state_dim, action_dim, reward_dim : int
        p, q and d.
    move : callable
        Rewards (n, d) and next states (n, p) of states (n, p), actions (n, q) and a generator.
    ends : callable
        Whether the step that led to each of the states (n, p) was the last.
    """

    state_dim: int
    action_dim: int
    reward_dim: int
    move: Step
    ends: Ends = never

    def step(self, state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
        """Rewards and next states of one step."""
        return self.move(state, action, rng)

    def terminates(self, reached: Points, rng: Generator) -> Mask:
        """Whether the step that led to each state was the last."""
        return self.ends(reached, rng)


class Truth(NamedTuple):
    """Inputs (n, p) and (n, q) of a case, and simulated returns (n, size, d) of the target policy there."""

    state: Points
    action: Points
    returns: Array


@dataclass(frozen=True)
class Case:
    """A system with the policies, the discount and the length of its logged episodes.

    Attributes
    ----------
    name, about : str
        Its name, and in what way it is unlike the paper's system.
    system : System
    behaviour, target : Policy
        The policy that was logged, and the one to evaluate.
    discount : float
        γ.
    n_steps : int
        Transitions of an episode that does not terminate.
    start : callable
        First states (n, p) for a generator and n.
    n_returns : int
        True returns at each input, unless the caller says otherwise.
    judged : callable
        Which of the states (n, p) may be inputs of the truth.
    """

    name: str
    about: str
    system: System
    behaviour: Policy
    target: Policy
    discount: float
    n_steps: int
    start: Start
    n_returns: int = N_RETURNS
    judged: Judged = everywhere

    def log(self, n_transitions: int, seed: int) -> Rows:
        """Logged rows of whole episodes with about so many transitions, as ``from_arrays`` takes them."""
        rng = np.random.default_rng([seed, 1])
        blocks, found, n_episodes = [], 0, 0
        while found < n_transitions:
            wanted = ceil((n_transitions - found) / self.n_steps)
            blocks.append(self._episodes(n_episodes, wanted, rng))
            found += len(blocks[-1]["step"]) - wanted
            n_episodes += wanted
        whole = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        return cast(Rows, whole)

    def write(self, path: str | PathLike[str], n_transitions: int, seed: int) -> TransitionStore:
        """Write logged episodes into a new store."""
        return TransitionStore.from_arrays(path, **self.log(n_transitions, seed))

    def truth(self, seed: int, n_inputs: int = N_INPUTS, n_returns: int | None = None) -> Truth:
        """Inputs met by the behaviour policy with actions of the target policy, and true returns there."""
        rows = self.log(100 * self.n_steps, seed + 10_000)
        rng = np.random.default_rng([seed, 2])
        logged = np.asarray(rows["state"])
        logged = logged[self.judged(logged)]
        state = logged[rng.choice(len(logged), n_inputs, replace=False)]
        action = self.target.sample(state, rng)
        horizon = rewards_until(self.discount, NEGLIGIBLE)
        size = self.n_returns if n_returns is None else n_returns
        returns = monte_carlo_returns(
            state, action, self.target, self.discount, size, horizon, (seed, 3), self.system
        )
        return Truth(state, action, returns)

    def _episodes(self, first: int, n: int, rng: Generator) -> dict[str, Array]:
        """Rows of n episodes; the last row of one that does not terminate is not a transition."""
        state, goes_on = self.start(rng, n), np.ones(n, dtype=bool)
        parts = []
        for step in range(self.n_steps + 1):
            action = self.behaviour.sample(state, rng)
            reward, following = self.system.step(state, action, rng)
            ends = self.system.terminates(following, rng) & (step < self.n_steps)
            rows = np.flatnonzero(goes_on)
            step_there = np.full(len(rows), step)
            parts.append((first + rows, step_there, state[rows], action[rows], reward[rows], ends[rows]))
            goes_on, state = goes_on & ~ends, following
        names = ("episode", "step", "state", "action", "reward", "terminated")
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return {name: column[order] for name, column in zip(names, columns, strict=True)}
