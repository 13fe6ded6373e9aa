"""Fitted likelihood estimation of the joint law of the return.

Wu, Uehara and Sun, "Distributional offline policy evaluation with predictive error guarantees" (ICML 2023):
targets r + γ·z with z drawn from the last estimate of the law at (s', a'), a' ~ π, and r alone after an end;
the next estimate is the conditional density of largest likelihood. Here it is a mixture of ten Gaussians with
full covariances whose parameters are outputs of a network, which starts from the last one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.benchmarks.peers.networks import Transitions, iterate, perceptron

N_COMPONENTS, N_SAMPLES = 10, 4_000
#: Smallest and largest standard deviation of a component, in the unit of the returns: targets are drawn from
#: the components, and one that is rare and wide would feed itself.
LEAST_DEVIATION, MOST_DEVIATION = 0.01, 3.0


class MixtureNetwork(nn.Module):
    """Conditional Gaussian mixtures: log weights, means, and Cholesky factors of the precisions."""

    def __init__(self, n_inputs, dim):
        super().__init__()
        self.dim, self.below = dim, torch.tril_indices(dim, dim, -1)
        n_below = self.below.shape[1]
        self.sizes = (1, dim, dim, n_below)
        self.body = perceptron(n_inputs, N_COMPONENTS * sum(self.sizes))
        with torch.no_grad():
            spread = 0.5 * torch.randn(N_COMPONENTS, dim)
            self.body[-1].bias.view(N_COMPONENTS, -1)[:, 1 : 1 + dim] = spread

    def forward(self, x):
        out = self.body(x).view(len(x), N_COMPONENTS, -1)
        weight, mean, log_root, rest = out.split(self.sizes, dim=2)
        log_root = log_root.clamp(-np.log(MOST_DEVIATION), -np.log(LEAST_DEVIATION))
        root = torch.diag_embed(log_root.exp())
        if self.dim > 1:
            root[:, :, self.below[0], self.below[1]] = rest
        return torch.log_softmax(weight[..., 0], dim=1), mean, root, log_root

    def loss(self, x, y):
        """Negative log likelihood."""
        weight, mean, root, log_root = self(x)
        white = torch.einsum("nkij,nkj->nki", root, y[:, None] - mean)
        logs = weight + log_root.sum(2) - 0.5 * white.square().sum(2) - 0.919 * self.dim
        return -torch.logsumexp(logs, dim=1).mean()

    @torch.no_grad()
    def sample(self, x):
        weight, mean, root, _ = self(x)
        chosen = torch.multinomial(weight.exp(), 1)[:, 0]
        rows = torch.arange(len(x))
        noise = torch.randn(len(x), self.dim, 1)
        spread = torch.linalg.solve_triangular(root[rows, chosen], noise, upper=False)
        return mean[rows, chosen] + spread[..., 0]


def returns(problem, state, action):
    """Sampled returns (n, size, d) at inputs (n, p) and (n, q)."""
    torch.manual_seed(problem.seed)
    data = Transitions(problem)
    network = MixtureNetwork(data.inputs.shape[1], data.reward.shape[1])

    def targets(slow, rows):
        return data.reward[rows] + data.factor[rows, None] * slow.sample(data.next_inputs(rows))

    fitted = iterate(network, data, targets, MixtureNetwork.loss)
    at = data.at(state, action).repeat_interleave(N_SAMPLES, dim=0)
    return data.back(fitted.sample(at)).reshape(len(state), N_SAMPLES, -1)
