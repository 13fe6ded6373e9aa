"""Actions of a policy that a user wrote: finite and of the right shape, or an error that says where."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from kedrl_dask.numerics.policies.families import Policy
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import cut, shown

__all__ = ["PolicyError", "checked_draws"]


class PolicyError(ValueError):
    """A policy cannot be used, or failed at a state; the message names it, the rows and what was found."""


def checked_draws(
    policy: Policy, state: Array, n_draws: int, rng: Generator | None, action_dim: int, where: str
) -> tuple[Array, Array]:
    """``policy.draws``, refused in words where it fails or returns anything but finite actions.

    Parameters
    ----------
    policy, state, n_draws, rng
        As :meth:`Policy.draws` takes them.
    action_dim : int
        Number q of action coordinates of the data.
    where : str
        Words for where the states come from.
    """
    name = shown(policy)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what they leave is found below
            actions, weights = policy.draws(state, n_draws, rng)
            actions, weights = np.asarray(actions), np.asarray(weights)
    except Exception as error:
        found = f"{type(error).__name__}: {cut(str(error))}"
        raise PolicyError(f"policy {name} failed at {where} with {found}") from error
    expected = (len(actions), len(state), action_dim) if actions.ndim else ()
    if actions.shape != expected or weights.shape != expected[:1] or not expected:
        raise PolicyError(
            f"policy {name} returned actions of shape {actions.shape} with weights of shape "
            f"{weights.shape} at {where}, expected (draws, {len(state)}, {action_dim}) and (draws,)"
        )
    kinds = actions.dtype.kind + weights.dtype.kind
    if not set(kinds) <= set("biuf"):
        raise PolicyError(f"policy {name} returned dtype {actions.dtype} at {where}, expected real numbers")
    # The extremes are NaN or infinite if any entry is, and finding them needs no array of flags.
    if actions.size and not (np.isfinite(actions.max()) and np.isfinite(actions.min())):
        bad = np.flatnonzero(~np.isfinite(actions).all(axis=(0, 2)))
        raise PolicyError(
            f"policy {name} returned actions that are not finite for {len(bad):,} of {len(state):,} states "
            f"at {where}, the first for {shown(state[bad[0]].tolist())}; check the policy there"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and abs(weights.sum() - 1) < 1e-6):
        raise PolicyError(f"policy {name} returned weights that are no probabilities at {where}")
    return actions, weights
