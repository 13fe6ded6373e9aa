"""How far the actions of a target policy are from the logged ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Actions, Indices, Inputs, Points, Vector, Weights


@dataclass(frozen=True, eq=False)
class Overlap:
    """Target actions compared with logged ones at the same successor states.

    None of these numbers shows overlap of actions jointly with the state; ``distance`` comes closest.

    Attributes
    ----------
    logged_mean, logged_deviation : (q,) arrays
        Mean and standard deviation of the logged actions.
    target_mean : (q,) array
        Mean of the target's actions at the same states.
    shift : (q,) array
        Root mean square of the target action minus the logged one, in standard deviations of the latter. An
        independent second draw from the logging policy would have at most √2.
    outside : (q,) array
        Share of target actions outside the range of the logged ones.
    distance, logged_distance : float
        Median distance, in length scales of the input kernel, from successor states with target actions, and
        with logged ones, to the nearest logged input of other episodes. NaN if there is only one episode.
    """

    logged_mean: Vector
    logged_deviation: Vector
    target_mean: Vector
    shift: Vector
    outside: Vector
    distance: float
    logged_distance: float


def action_overlap(
    inputs: Inputs, episode: Indices, next_state: Points, next_action: Actions, actions: Actions,
    weights: Weights, kernel: Matern,
) -> Overlap:  # fmt: skip
    """Compare ``actions``, the target policy's draws at logged successors, with the logged ``next_action``.

    No transition is terminal. Distances are in length scales of the input kernel.
    """
    deviation = next_action.std(axis=0)
    low, high = next_action.min(axis=0), next_action.max(axis=0)
    outside = ((actions < low) | (actions > high)).mean(axis=1)
    square = ((actions - next_action) ** 2).mean(axis=1)
    # A logged action that never varies has no unit to measure in.
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.sqrt(weights @ square) / deviation
    # A logged successor is an input itself: distances are to the inputs of the other half of the episodes.
    number = np.unique(episode, return_inverse=True)[1]
    asked, known = number % 2 == 1, number % 2 == 0
    distances = [float("nan")] * 2
    if asked.any():
        tree = cKDTree(kernel.scale(inputs[known]))
        draws = np.concatenate([actions[:, asked], next_action[None, asked]])
        shape = *draws.shape[:2], next_state.shape[1]
        points = np.concatenate([np.broadcast_to(next_state[asked], shape), draws], axis=2)
        nearest = np.asarray(tree.query(kernel.scale(points))[0])
        spread = np.repeat(weights, nearest.shape[1])
        target = np.quantile(nearest[:-1].ravel(), 0.5, weights=spread, method="inverted_cdf")
        distances = [float(target), float(np.median(nearest[-1]))]
    means = next_action.mean(axis=0), deviation, weights @ actions.mean(axis=1)
    return Overlap(*means, shift, weights @ outside, *distances)
