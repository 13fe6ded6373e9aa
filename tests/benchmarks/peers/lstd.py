"""Least-squares temporal differences for the mean of the return.

Bradtke and Barto, "Linear least-squares algorithms for temporal difference learning" (Machine Learning 1996),
as LSTDQ of Lagoudakis and Parr, "Least-squares policy iteration" (JMLR 2003), evaluates one policy. Features
are a constant, the standardised inputs, and Nyström features of a Gaussian kernel; the next features are
averaged over actions of the target policy. Bandwidth and ridge are those with the smallest TD errors on
held-out episodes. Their mean square would prefer values that vary little, because it contains the variance of
the next value; the kernel loss of Feng, Li and Liu, "A kernel loss for solving the Bellman equation"
(NeurIPS 2019), does not.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel

from tests.benchmarks.peers.problem import Standard

#: Features, actions of the target policy at each next state, and held-out transitions of the loss.
N_FEATURES, N_ACTIONS, N_LOSS = 300, 8, 2_000
#: Bandwidths in units of the typical distance of two inputs, and ridges relative to the mean square feature.
BANDWIDTHS, RIDGES = (0.35, 0.7, 1.5, 3.0), (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


class Design:
    """Features (n, k) of inputs, and of the next states, averaged over actions and zero after an end."""

    def __init__(self, problem, bandwidth):
        self.problem, self.unit = problem, Standard.of(problem.inputs)
        gamma = 0.5 / (bandwidth**2 * 2 * problem.inputs.shape[1])
        n_features = min(N_FEATURES, len(problem.inputs))
        self.kernel = Nystroem(gamma=gamma, n_components=n_features, random_state=problem.seed)
        self.kernel.fit(self.unit(problem.inputs))
        self.now = self(problem.inputs)
        rng = problem.rng(3)
        following = sum(self(problem.next_inputs(rng)) for _ in range(N_ACTIONS)) / N_ACTIONS
        self.following = following * ~problem.terminal[:, None]

    def __call__(self, inputs):
        standard = self.unit(inputs)
        return np.hstack([np.ones((len(inputs), 1)), standard, self.kernel.transform(standard)])

    def solve(self, ridge, rows):
        """Coefficients (k, d) from some of the transitions."""
        now, following = self.now[rows], self.following[rows]
        matrix = now.T @ (now - self.problem.discount * following)
        penalty = ridge * np.square(now).sum() / now.shape[1] * np.eye(now.shape[1])
        penalty[0, 0] = 0
        return np.linalg.solve(matrix + penalty, now.T @ self.problem.reward[rows])

    def td_errors(self, coefficients, rows):
        """TD errors in standard deviations of the rewards; (n, d)."""
        value, following = self.now[rows] @ coefficients, self.following[rows] @ coefficients
        error = self.problem.reward[rows] + self.problem.discount * following - value
        return error / Standard.of(self.problem.reward).scale


def kernel_loss(errors, inputs):
    """Σ_ij δ_i·δ_j k(x_i, x_j) / n²: small if the TD errors have mean zero everywhere.

    The terms i = j add the mean square of the TD errors, divided by n: of values that fit equally well, those
    that vary less win.
    """
    gram = rbf_kernel(inputs, gamma=0.5 / (2 * inputs.shape[1]))
    return float(np.sum(errors * (gram @ errors))) / len(errors) ** 2


def returns(problem, state, action):
    """Estimated means as laws of one atom (n, 1, d) at inputs (n, p) and (n, q)."""
    held_out = problem.held_out()
    rows = np.flatnonzero(held_out)[:N_LOSS]
    designs = {bandwidth: Design(problem, bandwidth) for bandwidth in BANDWIDTHS}

    def loss(choice):
        design = designs[choice[0]]
        errors = design.td_errors(design.solve(choice[1], ~held_out), rows)
        return kernel_loss(errors, design.unit(problem.inputs[rows]))

    bandwidth, ridge = min(product(BANDWIDTHS, RIDGES), key=loss)
    design = designs[bandwidth]
    coefficients = design.solve(ridge, slice(None))
    return (design(np.hstack([state, action])) @ coefficients)[:, None]
