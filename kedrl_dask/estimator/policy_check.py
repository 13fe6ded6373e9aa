"""A policy tried on logged states before a fit: its actions compared with those that were logged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.base import checked_draws
from kedrl_dask.numerics.policies.overlap import Overlap, action_overlap
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.utils.arrays import Actions, Weights
from kedrl_dask.utils.exceptions import FitWarning

#: Number of evenly spaced places of the store at which a policy is tried, rows of each, and draws per state.
PLACES, PLACE_ROWS, N_DRAWS = 8, 64, 8
#: Share of target actions outside the logged range above which a fit warns.
LARGE_OUTSIDE = 0.5


class PolicyWarning(FitWarning):
    """A policy acts where little was logged."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A policy's draws, k actions with their weights, at the successors of a sample of n transitions."""

    sample: Transitions
    actions: Actions
    weights: Weights
    names: tuple[str, ...]

    @cached_property
    def overlap(self) -> Overlap:
        """Overlap of target and logged actions, with distances in standard deviations of the columns."""
        kernel = Matern(length_scale=tuple(standard_deviations(self.sample.inputs).tolist()))
        part = self.sample
        given = part.inputs, part.episode, part.next_state, part.next_action
        with np.errstate(over="ignore"):  # of actions so far away that their squares are infinite
            return action_overlap(*given, self.actions, self.weights, kernel)

    @property
    def findings(self) -> list[str]:
        """Warnings about actions outside the logged range; empty if there are few."""
        found = self.overlap
        return [
            f"{found.outside[i]:.0%} of the policy's actions lie outside the range of the logged {name}, "
            f"whose mean is {found.logged_mean[i]:.3g} and the policy's {found.target_mean[i]:.3g}: answers "
            "extrapolate; check the units of its states and actions, or evaluate a policy nearer to the data"
            for i, name in enumerate(self.names)
            if found.outside[i] > LARGE_OUTSIDE and found.logged_deviation[i] > 0
        ]


def rehearse(policy: Policy, store: TransitionStore) -> Rehearsal:
    """Try a policy at states from all over a store; raises PolicyError unless it gives finite actions."""
    starts = np.unique(np.linspace(0, max(store.n_rows - PLACE_ROWS, 0), PLACES).astype(int))
    pieces = [store.transitions(start, min(start + PLACE_ROWS, store.n_rows)) for start in starts.tolist()]
    joined = Transitions(
        **{name: np.concatenate([vars(piece)[name] for piece in pieces]) for name in vars(pieces[0])}
    )
    joined = joined.select(np.unique(joined.rows, return_index=True)[1])
    sample = joined.select(~joined.terminal) if not joined.terminal.all() else joined
    where = f"successors of rows {sample.rows[0]} to {sample.rows[-1]}"
    rng = np.random.default_rng(0)
    drawn = checked_draws(policy, sample.next_state, N_DRAWS, rng, store.action_dim, where)
    encoding = store.encoding
    names = encoding.action if encoding else tuple(f"action {i}" for i in range(store.action_dim))
    return Rehearsal(sample, *drawn, names)
