"""Rollouts of the target policy through an ensemble of probabilistic networks.

Chua, Calandra, McAllister and Levine, "Deep reinforcement learning in a handful of trials using
probabilistic dynamics models" (NeurIPS 2018): each of five networks gives means and variances of the reward
and of the change of state as independent Gaussians, is fitted by maximum likelihood to a bootstrap sample of
the episodes, and is stopped at its best likelihood of held-out episodes. At each step of a rollout one of
them, drawn at random, tells what happens. Where episodes end, networks with a logistic output tell that
first, and the Gaussian ones have it as an input.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from tests.benchmarks.peers.networks import BATCH, DECAY, RATE, WIDTH, tensor
from tests.benchmarks.peers.problem import Standard, rollouts

N_NETWORKS, MOST_EPOCHS, PATIENCE = 5, 60, 6
#: Bounds of the logarithm of a variance, in units of the variance of the response. The upper one is wide: a
#: variance that comes near it while the mean is still wrong does not come back.
LOG_VARIANCE = (-10.0, 8.0)


class Ensemble(nn.Module):
    """Networks (k) with two hidden layers; their outputs at inputs (k, n, p) are (k, n, o)."""

    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        sizes = [(n_inputs, WIDTH), (WIDTH, WIDTH), (WIDTH, n_outputs)]
        weights = [torch.empty(N_NETWORKS, *size).uniform_(-1, 1) / np.sqrt(size[0]) for size in sizes]
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([torch.zeros(N_NETWORKS, 1, size[1]) for size in sizes])

    def forward(self, x):
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x if i == 0 else nn.functional.silu(x), weight)
        return x


def fit(ensemble, x, y, loss, problem):
    """Fit each network to its bootstrap sample, and keep it as it was at its best.

    ``loss`` gives losses (k, n) of outputs (k, n, o) for responses (k, n, c).
    """
    held_out, rng = problem.held_out(), problem.rng(6)
    train, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    samples = np.stack([bootstrap(problem.episode, train, rng) for _ in range(N_NETWORKS)])
    optimiser = torch.optim.AdamW(ensemble.parameters(), lr=RATE, weight_decay=DECAY)
    best, kept, best_epoch = torch.full((N_NETWORKS,), torch.inf), deepcopy(ensemble), 0
    for epoch in range(MOST_EPOCHS):
        order = rng.permuted(samples, axis=1)
        for start in range(0, len(train), BATCH):
            rows = order[:, start : start + BATCH]
            value = loss(ensemble(x[rows]), y[rows]).mean(dim=1).sum()
            optimiser.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(ensemble.parameters(), 10.0)
            optimiser.step()
        with torch.no_grad():
            found = loss(ensemble(x[test].expand(N_NETWORKS, -1, -1)), y[test]).mean(dim=1)
            better = found < best
            for old, new in zip(kept.parameters(), ensemble.parameters(), strict=True):
                old[better] = new[better]
            best = torch.where(better, found, best)
        best_epoch = epoch if better.any() else best_epoch
        if epoch - best_epoch >= PATIENCE:
            break
    return kept.requires_grad_(False)


def bootstrap(episode, rows, rng):
    """As many of the rows, of episodes drawn with replacement."""
    _, first, counts = np.unique(episode[rows], return_index=True, return_counts=True)
    drawn = rng.integers(len(first), size=len(rows))
    whole = np.concatenate([np.arange(first[i], first[i] + counts[i]) for i in drawn[: 2 * len(first)]])
    return rows[np.resize(whole, len(rows))]


def split(out):
    """Means and logarithms of variances, softly bounded."""
    mean, raw = out.chunk(2, dim=-1)
    low, high = LOG_VARIANCE
    upper = high - nn.functional.softplus(high - raw)
    return mean, low + nn.functional.softplus(upper - low)


def gaussian_loss(dim):
    """Negative log likelihood; the change of state, from coordinate ``dim`` on, only where there is one."""

    def loss(out, y):
        mean, log_variance = split(out)
        response, goes_on = y[..., :-1], y[..., -1]
        terms = 0.5 * ((response - mean).square() * torch.exp(-log_variance) + log_variance)
        return terms[..., :dim].sum(dim=-1) + goes_on * terms[..., dim:].sum(dim=-1)

    return loss


def logistic_loss(out, y):
    """Negative log likelihood of the end."""
    expected = y.expand_as(out)
    return nn.functional.binary_cross_entropy_with_logits(out, expected, reduction="none")[..., 0]


def at_one(ensemble, x, rng):
    """Outputs (n, o) of inputs (n, p), each by a network drawn at random."""
    order = rng.permutation(len(x))
    size = -(-len(x) // N_NETWORKS)
    padded = np.resize(order, N_NETWORKS * size).reshape(N_NETWORKS, size)
    out = ensemble(x[padded]).flatten(0, 1)
    return out[np.argsort(order)]


def returns(problem, state, action):
    """Simulated returns (n, size, d) at inputs (n, p) and (n, q)."""
    torch.manual_seed(problem.seed)
    dim, goes_on = problem.reward.shape[1], ~problem.terminal
    unit = Standard.of(problem.inputs)
    of_reward, of_change = (
        Standard.of(problem.reward),
        Standard.of((problem.next_state - problem.state)[goes_on]),
    )
    x = tensor(unit(problem.inputs))
    ended = tensor(problem.terminal)[:, None]
    change = of_change(problem.next_state - problem.state)
    y = tensor(np.hstack([of_reward(problem.reward), change, goes_on[:, None]]))
    gaussian = Ensemble(x.shape[1] + 1, 2 * (y.shape[1] - 1))
    gaussian = fit(gaussian, torch.hstack([x, ended]), y, gaussian_loss(dim), problem)
    logistic = None
    if problem.terminal.any():
        logistic = fit(Ensemble(x.shape[1], 1), x, ended, logistic_loss, problem)

    def step(now, act, rng):
        inputs = tensor(unit(np.hstack([now, act])))
        chance = torch.sigmoid(at_one(logistic, inputs, rng)).numpy() if logistic else np.zeros((len(now), 1))
        ends = rng.random(len(now)) < chance[:, 0]
        mean, log_variance = split(at_one(gaussian, torch.hstack([inputs, tensor(ends)[:, None]]), rng))
        drawn = mean.numpy() + np.exp(0.5 * log_variance.numpy()) * rng.standard_normal(mean.shape)
        return of_reward.back(drawn[:, :dim]), now + of_change.back(drawn[:, dim:]), ends

    return rollouts(step, problem, state, action)
