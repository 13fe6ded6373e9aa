"""Fitted Q evaluation by d3rlpy: the mean of each coordinate of the return.

Le, Voloshin and Yue, "Batch policy learning under constraints" (ICML 2019), as implemented in d3rlpy (Seno
and Imai, JMLR 2022). d3rlpy evaluates an algorithm of its own; of that, its FQE asks only for actions at the
next observations, which here are draws of the target policy. Observations, actions and rewards are
standardised, the learning rate falls to zero, and the target network is renewed so often that the initial
values vanish.
"""

from __future__ import annotations

import logging

import numpy as np

from kedrl_dask.numerics.simulation.transition_model import rewards_until
from tests.benchmarks.peers.networks import tensor
from tests.benchmarks.peers.problem import Standard

N_STEPS, BATCH, RATE, WIDTHS = 3_000, 100, 1e-3, [128, 128]
#: Weight of the initial values that are left, and steps between renewals of the target network at most.
LEFT, MOST_BETWEEN = 0.01, 50


class TargetPolicy:
    """Stands for an algorithm of d3rlpy, and for its implementation."""

    def __init__(self, problem, of_state, of_action):
        self.problem, self.of_state, self.of_action = problem, of_state, of_action
        self.rng, self.impl = problem.rng(7), self

    def predict_best_action(self, observations):
        state = self.of_state.back(observations.double().numpy())
        return tensor(self.of_action(self.problem.policy.sample(state, self.rng)))


def episodes(problem, state, action, reward, last):
    """Episodes of d3rlpy; one that goes on has a last observation, whose action and reward are not used."""
    from d3rlpy.dataset import Episode

    bounds = np.flatnonzero(np.diff(problem.episode)) + 1
    for rows in np.split(np.arange(len(state)), bounds):
        ends = bool(problem.terminal[rows[-1]])
        more = rows[:0] if ends else rows[-1:]
        columns = [(state, last), (action, action), (reward, reward)]
        parts = [np.vstack([own[rows], after[more]]).astype(np.float32) for own, after in columns]
        yield Episode(*parts, terminated=ends)


def returns(problem, state, action):
    """Estimated means as laws of one atom (n, 1, d) at inputs (n, p) and (n, q)."""
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    of_state, of_action = Standard.of(problem.state), Standard.of(problem.action)
    centre, scale = problem.reward_unit()
    n_rounds = rewards_until(problem.discount, LEFT)
    config = d3rlpy.ope.FQEConfig(
        learning_rate=RATE, batch_size=BATCH, gamma=problem.discount,
        target_update_interval=max(1, min(MOST_BETWEEN, N_STEPS // n_rounds)),
        encoder_factory=d3rlpy.models.VectorEncoderFactory(WIDTHS),
        optim_factory=d3rlpy.optimizers.AdamFactory(
            lr_scheduler_factory=d3rlpy.optimizers.CosineAnnealingLRFactory(T_max=N_STEPS)
        ),
    )  # fmt: skip
    policy, found = TargetPolicy(problem, of_state, of_action), []
    reward = (problem.reward - centre) / scale
    for coordinate in range(reward.shape[1]):
        d3rlpy.seed(problem.seed)
        columns = of_state(problem.state), of_action(problem.action), reward[:, coordinate : coordinate + 1]
        logged = list(episodes(problem, *columns, of_state(problem.next_state)))
        dataset = d3rlpy.dataset.create_infinite_replay_buffer(logged)
        fqe = d3rlpy.ope.FQE(algo=policy, config=config, device="cpu:0")
        quiet = d3rlpy.logging.NoopAdapterFactory()
        fqe.fit(dataset, N_STEPS, n_steps_per_epoch=N_STEPS, logger_adapter=quiet, show_progress=False)
        at = of_state(state).astype(np.float32), of_action(action).astype(np.float32)
        found.append(fqe.predict_value(*at))
    values = np.stack(found, axis=-1).astype(np.float64) * scale
    return (values + (centre / (1 - problem.discount) if centre.any() else 0.0))[:, None]
