"""Rollouts of the target policy through logged transitions near by.

At (s, a) one of the five nearest logged transitions happens again: its reward, its next state, its end.
Inputs are standardised. This is the artificial trajectory of Fonteneau, Murphy, Wehenkel and Ernst, "Batch
mode reinforcement learning based on the synthesis of artificial trajectories" (Annals of Operations Research
2013), with a random neighbour in place of the nearest unused one: any number of returns can be drawn.
"""

from __future__ import annotations

import numpy as np
from sklearn.neighbors import NearestNeighbors

from tests.benchmarks.peers.problem import LEAST_RETURNS, MOST_RETURNS, Standard, rollouts

N_NEIGHBOURS = 5
#: Inputs with more coordinates are searched one by one, which is slow: fewer returns.
MANY_COORDINATES = 15


def returns(problem, state, action):
    """Simulated returns (n, size, d) at inputs (n, p) and (n, q)."""
    unit = Standard.of(problem.inputs)
    near = NearestNeighbors(n_neighbors=N_NEIGHBOURS).fit(unit(problem.inputs).astype(np.float32))

    def step(now, act, rng):
        found = near.kneighbors(unit(np.hstack([now, act])).astype(np.float32), return_distance=False)
        picked = found[range(len(found)), rng.integers(N_NEIGHBOURS, size=len(found))]
        return problem.reward[picked], problem.next_state[picked], problem.terminal[picked]

    is_slow = problem.inputs.shape[1] > MANY_COORDINATES
    return rollouts(step, problem, state, action, LEAST_RETURNS if is_slow else MOST_RETURNS)
