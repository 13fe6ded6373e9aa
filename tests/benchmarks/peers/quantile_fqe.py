"""Fitted evaluation of quantiles: the critic of QR-DQN for a given policy.

Dabney, Rowland, Bellemare and Munos, "Distributional reinforcement learning with quantile regression" (AAAI
2018). A network has 100 quantiles of each coordinate, fitted by the Huber quantile loss to r + γ times the
quantiles of a slow copy at (s', a'), a' ~ π. It knows the marginal laws only. The coordinates of what it
returns are independent, so distances of joint laws mean nothing unless the return has one coordinate.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.benchmarks.peers.networks import Transitions, iterate, perceptron

N_QUANTILES, N_SAMPLES = 100, 1_000
#: Quantiles of the slow copy, drawn anew in each step, to which all are fitted.
N_TARGETS = 8
#: Where the loss turns from squares to absolute values, in the unit of the returns: small, or it is biased.
HUBER = 0.05


def quantile_loss(predicted, target):
    """Mean Huber quantile loss of predictions (n, d, k) for targets (n, d, m).

    Its slope is computed with it, which takes half the time of a backward pass through all pairs.
    """
    levels = ((torch.arange(predicted.shape[2]) + 0.5) / predicted.shape[2])[:, None]
    with torch.no_grad():
        off = target[:, :, None, :] - predicted[:, :, :, None]
        near = off.clamp(-HUBER, HUBER)
        slope = torch.where(off < 0, 1 - levels, levels) * near / HUBER
        value = (slope * (off - near / 2)).mean(dim=3)
    linear = value + slope.mean(dim=3) * (predicted.detach() - predicted)
    return linear.sum(dim=(1, 2)).mean()


def returns(problem, state, action):
    """Returns (n, size, d) at inputs (n, p) and (n, q), independent in their coordinates."""
    torch.manual_seed(problem.seed)
    data = Transitions(problem)
    dim = data.reward.shape[1]
    network = perceptron(data.inputs.shape[1], dim * N_QUANTILES)

    def quantiles(network, x):
        return network(x).view(len(x), dim, N_QUANTILES)

    def targets(slow, rows):
        drawn = torch.randint(N_QUANTILES, (len(rows), 1, N_TARGETS)).expand(-1, dim, -1)
        with torch.no_grad():
            following = quantiles(slow, data.next_inputs(rows)).gather(2, drawn)
        return data.reward[rows, :, None] + data.factor[rows, None, None] * following

    def loss(network, x, y):
        return quantile_loss(quantiles(network, x), y)

    fitted = iterate(network, data, targets, loss)
    with torch.no_grad():
        found = quantiles(fitted, data.at(state, action)).transpose(1, 2)
    return independent(data.back(found), problem.rng(5))


def independent(quantiles, rng):
    """Samples (n, size, d) with quantiles (n, k, d) at equidistant levels, shuffled in each coordinate."""
    n, k, dim = quantiles.shape
    levels, fine = (np.arange(k) + 0.5) / k, (np.arange(N_SAMPLES) + 0.5) / N_SAMPLES
    drawn = np.empty((n, N_SAMPLES, dim))
    for row in range(n):
        for coordinate in range(dim):
            ordered = np.sort(quantiles[row, :, coordinate])
            drawn[row, :, coordinate] = rng.permutation(np.interp(fine, levels, ordered))
    return drawn
