"""How far simulated returns depend on which episodes happened to be logged.

A model of transitions is estimated, and its errors add up over the horizon. Models of replicates, groups of
episodes drawn with replacement, show by how much: with the same random numbers, and less the noise that their
own returns have, the differences of their summaries from those of the fit are standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.transition_model import TransitionModel, rewards_until
from kedrl_dask.utils.arrays import Array, Points, Vector

#: Simulated steps of all models for each transition of the fit, and their bounds: standard errors of fewer
#: transitions are larger, and may be noisier.
STEPS_EACH, LEAST_STEPS, MOST_STEPS = 100, 200_000, 2_000_000
#: Fewest and most returns of an input.
FEWEST, MOST = 40, 2_000
#: Share of the lower tail.
TAIL = 0.1


@dataclass(frozen=True)
class Precision:
    """Standard errors in standard deviations of the return: root mean squares over inputs; (d,).

    Attributes
    ----------
    mean, mean_noise : tuple of float
        Of the mean, and the noise of the simulated returns, which is taken out.
    tail, tail_noise : tuple of float
        The same of the mean of the lowest tenth.
    n_replicates, n_inputs, n_returns : int
    """

    mean: tuple[float, ...]
    mean_noise: tuple[float, ...]
    tail: tuple[float, ...]
    tail_noise: tuple[float, ...]
    n_replicates: int
    n_inputs: int
    n_returns: int


def precision(
    models: Sequence[TransitionModel],
    policy: Policy,
    discount: float,
    state: Points,
    action: Points,
    n_transitions: int,
    seed: int,
) -> Precision:
    """Compare the first model, which is the fit, with the others, its replicates, at some inputs."""
    most_steps = int(np.clip(STEPS_EACH * n_transitions, LEAST_STEPS, MOST_STEPS))
    n_returns = most_steps // (rewards_until(discount) * len(models) * len(state))
    n_returns = int(np.clip(n_returns, FEWEST, MOST))
    returns, n_steps = _returns(models, policy, discount, state, action, n_returns, seed)
    possible = min(MOST, n_returns * most_steps // max(1, n_steps))
    if possible > 1.5 * n_returns:  # episodes end long before the horizon
        n_returns = possible
        returns, _ = _returns(models, policy, discount, state, action, n_returns, seed)
    spread = returns[0].std(axis=1)
    spread = np.where(spread > 0, spread, 1.0)
    of_mean, of_tail = (_standard_error(summary, returns, spread) for summary in (_mean, _tail))
    mean, mean_noise, tail, tail_noise = (tuple(x.tolist()) for x in (*of_mean, *of_tail))
    return Precision(mean, mean_noise, tail, tail_noise, len(models) - 1, len(state), n_returns)


def _returns(
    models: Sequence[TransitionModel],
    policy: Policy,
    discount: float,
    state: Points,
    action: Points,
    n_returns: int,
    seed: int,
) -> tuple[Array, int]:
    """Returns (models, inputs, n_returns, d), and the number of steps."""
    inputs = np.repeat(state, n_returns, axis=0), np.repeat(action, n_returns, axis=0)
    found, steps = [], 0
    for model in models:
        returns, n_steps = model.rollouts(*inputs, policy, discount, np.random.default_rng([seed, 41]))
        found.append(returns.reshape(len(state), n_returns, -1))
        steps += n_steps
    return np.stack(found), steps


def _mean(returns: Array) -> Array:
    return np.asarray(returns.mean(axis=2))


def _tail(returns: Array) -> Array:
    n_lowest = max(1, round(TAIL * returns.shape[2]))
    return np.asarray(np.partition(returns, n_lowest - 1, axis=2)[:, :, :n_lowest].mean(axis=2))


def _standard_error(summary: Callable[[Array], Array], returns: Array, unit: Points) -> tuple[Vector, Vector]:
    """Standard error and noise of a summary; (d,) each.

    The noise of a difference between models is that of its halves, of which one is every second return.
    """
    value = summary(returns)
    halves = summary(returns[:, :, ::2]) - summary(returns[:, :, 1::2])
    apart = ((value[1:] - value[0]) ** 2).mean(axis=0)
    noise = ((halves[1:] - halves[0]) ** 2).mean(axis=0) / 4
    square = np.maximum(((apart - noise) / unit**2).mean(axis=0), 0.0)
    return np.sqrt(square), np.sqrt((noise / unit**2).mean(axis=0))
