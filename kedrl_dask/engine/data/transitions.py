"""Transitions, and rows of episodes, as arrays in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

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
        x'. A terminal transition has no successor; its own state and action stand in, and must not be used.
    terminal : (n,) bool
        Whether the episode ended with this transition, so that its continuation is zero.
    """

    rows: Indices
    episode: Indices
    inputs: Inputs
    reward: Points
    next_state: Points
    next_action: Actions
    terminal: Mask

    def __len__(self) -> int:
        """Return the number of transitions."""
        return int(self.rows.size)

    def select(self, which: slice | Indices | Mask) -> Transitions:
        """Return some of the transitions."""
        return Transitions(**{name: values[which] for name, values in vars(self).items()})


class EpisodeRows(NamedTuple):
    """Adjacent rows of some episodes, from which discounted returns are computed."""

    reward: Points
    episode: Indices
    step: Indices
    terminated: Mask


def pair_rows(state: npt.ArrayLike, action: npt.ArrayLike, response: npt.ArrayLike, first: int = 0) -> Rows:
    """Return pairs (x, z) as rows of a transition store, in which a known return is the only reward.

    Parameters
    ----------
    state, action, response : (n, p), (n, q) and (n, d) arrays
        Inputs, and the response observed at each.
    first : int
        Number of the first pair, which is the number of pairs already written.

    Returns
    -------
    dict
        Arguments of ``TransitionStore.from_arrays``, or of ``append`` of a ``TransitionStore.writer``: one
        terminated episode per pair.
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
