"""Transitions, and rows of episodes, as arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kedrl_dask.utils.arrays import Array

__all__ = ["EpisodeRows", "Transitions", "pair"]


@dataclass(frozen=True)
class Transitions:
    """Transitions (x, r, x') as arrays with one row each.

    Parameters
    ----------
    rows : (n,) int64
        Row numbers in the store, increasing.
    episode : (n,) int64
        Number of the episode.
    inputs : (n, state_dim + action_dim)
        x = (state, action).
    reward : (n, reward_dim)
        r, received at x.
    next_state, next_action : (n, state_dim), (n, action_dim)
        x'. A terminal transition has none: its own state and action stand there, and must not be used.
    terminal : (n,) bool
        The episode ended with this transition; its continuation is zero.
    """

    rows: Array
    episode: Array
    inputs: Array
    reward: Array
    next_state: Array
    next_action: Array
    terminal: Array

    def __len__(self) -> int:
        """Return the number of transitions."""
        return int(self.rows.size)

    def select(self, which: slice | Array) -> Transitions:
        """Some of the transitions."""
        return Transitions(**{name: values[which] for name, values in vars(self).items()})


class EpisodeRows(NamedTuple):
    """Adjacent rows of some episodes: what discounted returns are made of."""

    reward: Array
    episode: Array
    step: Array
    terminated: Array


def pair(
    numbers: Array,
    episode: Array,
    local: Array,
    successor: Array,
    state: Array,
    action: Array,
    reward: Array,
) -> Transitions:
    """Pair the rows at ``local`` with those at ``successor``: the same where a transition is terminal."""
    return Transitions(
        rows=numbers[local],
        episode=episode[local],
        inputs=np.hstack((state[local], action[local])),
        reward=reward[local],
        next_state=state[successor],
        next_action=action[successor],
        terminal=local == successor,
    )
