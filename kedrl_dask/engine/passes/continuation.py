"""Actions of the target policy at successor states, and the continuation κ that they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.transition_store import Transitions
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.base import checked_draws
from kedrl_dask.numerics.regression.density_ratio import DensityRatio, section_means
from kedrl_dask.utils.arrays import Features, Indices, Inputs, Points, Vector
from kedrl_dask.utils.scratch import scratch


@dataclass(frozen=True)
class TargetActions:
    """Actions of the target policy at successor states; a row has the same ones wherever it is computed."""

    policy: Policy
    n_draws: int
    seed: int

    def __call__(self, number: int, group: Transitions, which: slice) -> tuple[Inputs, Vector]:
        """Successor inputs (draws, n, p + q) for some rows of a group, and the weights of the draws."""
        states, rows = group.next_state[which], group.rows[which]
        if self.policy.deterministic_draws:
            actions, weights = self._draw(states, None, group, rows)
        else:
            # The whole group draws from one generator, so that the actions of a row are always the same.
            rng = np.random.default_rng([self.seed, number])
            actions, weights = self._draw(group.next_state, rng, group, group.rows)
            actions = actions[:, which]
        states = np.broadcast_to(states, (len(actions), *states.shape))
        return np.concatenate([states, actions], axis=2), weights

    def _draw(
        self, states: Points, rng: np.random.Generator | None, group: Transitions, rows: Indices
    ) -> tuple[Points, Vector]:
        where = f"the successors of rows {rows[0]} to {rows[-1]}" if len(rows) else "no rows"
        n_actions = group.next_action.shape[1]
        return checked_draws(self.policy, states, self.n_draws, rng, n_actions, where)


@dataclass(frozen=True)
class Continuation:
    """κ_j ∈ R^L, whose conditional expectation is Φ_L (eq:Phi).

    With a density ratio, κ_j = η̂_j k_L(x'_j); without, the mean of k_L(s'_j, a') over target actions.
    """

    kernel: Matern
    basis: Inputs
    target: TargetActions
    ratio: DensityRatio | None

    def __call__(
        self, number: int, group: Transitions, which: slice, dtype: npt.DTypeLike
    ) -> tuple[Features, Vector]:
        """κ (n, L) and η̂ (n,) of some rows of a group; both are zero after a terminal transition."""
        part = group.select(which)
        kappa = scratch("kappa", (len(part), len(self.basis)), dtype)
        if self.ratio is None:
            successors, weights = self.target(number, group, which)
            section_means(self.kernel, self.basis, successors, weights, out=kappa)
            eta: Vector = np.ones(len(part))
        else:
            successor = np.hstack([part.next_state, part.next_action])
            eta = self.ratio(successor, dtype)
            self.kernel(successor, self.basis, out=kappa)
            kappa *= eta[:, None].astype(dtype)
        kappa[part.terminal] = 0.0
        eta[part.terminal] = 0.0
        return kappa, eta
