"""Transitions, and rows of episodes, as arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.utils.arrays import Actions, Indices, Inputs, Mask, Points


class Rows(TypedDict):
    """Recorded rows as ``TransitionStore.from_arrays`` and ``Writer.append`` take them."""

    state: npt.ArrayLike
    action: npt.ArrayLike
    reward: npt.ArrayLike
    episode: npt.ArrayLike
    step: npt.ArrayLike
    terminated: npt.ArrayLike


@dataclass(frozen=True)
class Transitions:
    """Transitions (x, r, x') as arrays with one row each.

    A terminal transition has no successor and its continuation is zero; its own state and action stand in
    for x' = (next_state, next_action), and must not be used.
    """

    rows: Indices  # in the store, increasing
    episode: Indices
    inputs: Inputs  # x = (state, action)
    reward: Points  # r, received at x
    next_state: Points
    next_action: Actions
    terminal: Mask  # whether the episode ended with this transition

    def __len__(self) -> int:
        """Return the number of transitions."""
        return int(self.rows.size)

    def select(self, which: slice | Indices | Mask) -> Transitions:
        """Return some of the transitions."""
        return Transitions(**{name: values[which] for name, values in vars(self).items()})


class Shaping(NamedTuple):
    """Rewards less what a potential Ψ explains: r + γ·Ψ(s') − Ψ(s)."""

    potential: Potential
    discount: float

    def __call__(self, given: Transitions) -> Transitions:
        """The transitions with these rewards."""
        state = given.inputs[:, : given.next_state.shape[1]]
        fixed = given.reward, state, given.next_state, given.terminal, self.discount
        return replace(given, reward=self.potential.shape(*fixed))


class Source(NamedTuple):
    """Where transitions are read, and how their rewards are shaped: what a task needs to open a store."""

    path: Path
    shaping: Shaping | None = None


class EpisodeRows(NamedTuple):
    """Adjacent rows of some episodes, from which discounted returns are computed."""

    reward: Points
    episode: Indices
    step: Indices
    terminated: Mask


def pair_rows(state: npt.ArrayLike, action: npt.ArrayLike, response: npt.ArrayLike, first: int = 0) -> Rows:
    """Return pairs (x, z) as rows of a transition store, in which a known return is the only reward.

    Each pair is a terminated episode, numbered from ``first``, the number of pairs already written. They are
    arguments of ``TransitionStore.from_arrays``, or of ``append`` of a ``TransitionStore.writer``.
    """
    n = len(np.asarray(response))
    return {
        "state": state,
        "action": action,
        "reward": response,
        "episode": np.arange(first, first + n),
        "step": np.zeros(n, dtype=np.int64),
        "terminated": np.ones(n, dtype=bool),
    }
