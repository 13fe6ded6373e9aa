"""Simulated returns as observed responses: what the paper's reference estimator learns from."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from kedrl_dask.datasets.simulation import DISCOUNT, PAPER_SYSTEM, System
from kedrl_dask.datasets.truth import monte_carlo_returns
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.transitions import pair_rows
from kedrl_dask.engine.plan.partition import row_ranges
from kedrl_dask.numerics.policies import Policy

__all__ = ["write_returns"]


def write_returns(
    path: str | PathLike[str],
    store: TransitionStore,
    policy: Policy,
    discount: float = DISCOUNT,
    n_returns: int = 1,
    seed: int = 0,
    system: System = PAPER_SYSTEM,
    advance: Callable[[int], None] | None = None,
) -> TransitionStore:
    """Write pairs (x, z): z is a discounted return under ``policy`` simulated from each logged input x.

    The inputs are those of the transitions in ``store``, in their order, so that a
    :class:`~kedrl_dask.ConditionalEmbedding` of the pairs and a :class:`~kedrl_dask.KEDRL` of the store see
    the same inputs; ``system`` is what the store was simulated from. Each has ``n_returns`` independent
    returns. Rows are simulated in groups, each from a generator of its own: memory does not grow with their
    number, and a return does not depend on the stored chunks. ``advance`` is called with the number of pairs
    after each group.
    """
    if n_returns < 1:
        raise ValueError(f"write_returns: n_returns must be at least 1, got {n_returns}")
    dims = {"state_dim": store.state_dim, "action_dim": store.action_dim, "reward_dim": system.reward_dim}
    with TransitionStore.writer(path, **dims) as writer:
        for number, (start, stop) in enumerate(row_ranges(store.n_rows, 1)):
            inputs = store.transitions(start, stop).inputs.repeat(n_returns, axis=0)
            if len(inputs) == 0:
                continue
            state, action = inputs[:, : store.state_dim], inputs[:, store.state_dim :]
            returns = monte_carlo_returns(
                state, action, policy, discount, n_trajectories=1, seed=(seed, number), system=system
            )
            writer.append(**pair_rows(state, action, returns[:, 0], first=writer.n_rows))
            if advance is not None:
                advance(len(inputs))
    return TransitionStore.open(path)
