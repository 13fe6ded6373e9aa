"""What methods with neural networks share: data as tensors, and fitted iteration with a target network."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from kedrl_dask.numerics.simulation.transition_model import rewards_until
from tests.benchmarks.peers.problem import Standard

#: Units of each of two hidden layers, and transitions of a step.
WIDTH, BATCH = 128, 256
#: Learning rate at first, where it ends, and decay of the weights.
RATE, LEAST_RATE, DECAY = 1e-3, 4e-5, 1e-3
#: Steps in which the target network follows, at most; of the first part, at most; of a block, at least.
LAG, MOST_FIRST, BLOCK = 10, 6_000, 250
#: Blocks and their steps, at most.
N_BLOCKS, MOST_LATER = 20, 12_000
#: Weight of the initial values that the first part leaves.
LEFT = 0.01


def perceptron(n_inputs, n_outputs, width=WIDTH):
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(n_inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, n_outputs)
    )


def tensor(values):
    return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.float32)


class Transitions:
    """Standardised transitions as tensors; the unit of rewards is that of the returns."""

    def __init__(self, problem):
        self.problem, self.unit, self.rng = problem, Standard.of(problem.inputs), problem.rng(4)
        self.centre, self.scale = problem.reward_unit()
        self.inputs = tensor(self.unit(problem.inputs))
        self.reward = tensor((problem.reward - self.centre) / self.scale)
        self.factor = tensor(problem.discount * ~problem.terminal)
        held_out = problem.held_out()
        self.train, self.test = np.flatnonzero(~held_out), np.flatnonzero(held_out)

    def batch(self):
        return self.rng.choice(self.train, BATCH)

    def next_inputs(self, rows):
        """With new actions of the target policy."""
        return tensor(self.unit(self.problem.next_inputs(self.rng, rows)))

    def at(self, state, action):
        return tensor(self.unit(np.hstack([state, action])))

    def back(self, returns):
        """Returns (..., d) in the units of the rewards."""
        whole = returns.double().numpy() * self.scale
        return whole + (self.centre / (1 - self.problem.discount) if self.centre.any() else 0.0)


def iterate(network, data, targets, loss):
    """Fitted iteration: ``network`` is fitted to targets from a slow copy of itself, which is returned.

    First for as many rounds as let the initial values vanish. Then block by block: a block that does not
    lower the loss on held-out episodes is undone, and the learning rate halved. The loss is for targets from
    before and after the block together: for either alone, the network that made them is the better one.
    A block has 1/(1 − γ) rounds, so that values which are still moving move visibly.

    Parameters
    ----------
    network : nn.Module
    data : Transitions
    targets : callable
        Targets for rows, given the slow copy.
    loss : callable
        Mean loss of a network for inputs and targets.
    """
    slow = deepcopy(network).requires_grad_(False)
    n_rounds = rewards_until(data.problem.discount, LEFT)
    lag = max(1, min(LAG, MOST_FIRST // n_rounds))
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)

    def run(n_steps):
        for _ in range(n_steps):
            rows = data.batch()
            value = loss(network, data.inputs[rows], targets(slow, rows))
            optimiser.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimiser.step()
            for old, new in zip(slow.parameters(), network.parameters(), strict=True):
                old.lerp_(new.detach(), 1 / lag)

    run(lag * n_rounds)
    rate, x = RATE, data.inputs[data.test]
    n_steps = max(BLOCK, round(lag / (1 - data.problem.discount)))
    for _ in range(min(N_BLOCKS, MOST_LATER // n_steps)):
        saved = [deepcopy(part.state_dict()) for part in (network, slow, optimiser)]
        old, y_old = deepcopy(slow), targets(slow, data.test)
        run(n_steps)
        y_new = targets(slow, data.test)
        if sum(loss(slow, x, y) - loss(old, x, y) for y in (y_old, y_new)) < 0:
            continue
        for part, content in zip((network, slow, optimiser), saved, strict=True):
            part.load_state_dict(content)
        rate /= 2
        if rate < LEAST_RATE:
            break
        for group in optimiser.param_groups:
            group["lr"] = rate
    return slow
