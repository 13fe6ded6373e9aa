"""The cases of the benchmark."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.datasets.benchmark import CASES


@pytest.mark.parametrize("name", CASES)
def test_cases__log_whole_episodes_and_know_their_truth(name, tmp_path):
    case = CASES[name]
    store = case.write(tmp_path / "log", 300, seed=0)
    assert store.n_transitions >= 300
    dims = store.state_dim, store.action_dim, store.reward_dim
    assert dims == (case.system.state_dim, case.system.action_dim, case.system.reward_dim)
    truth = case.truth(seed=0, n_inputs=2, n_returns=20)
    assert truth.returns.shape == (2, 20, store.reward_dim)
    assert np.isfinite(truth.returns).all()
    assert (truth.returns.std(axis=1) > 0).all()


def test_log__is_the_same_for_a_seed_and_another_for_another():
    first, again, other = (CASES["counts"].log(100, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["reward"], again["reward"])
    assert not np.array_equal(first["state"], other["state"])


def test_success_or_failure__terminates_for_good():
    rows = CASES["success-or-failure"].log(2_000, 0)
    episode, terminated = np.asarray(rows["episode"]), np.asarray(rows["terminated"])
    last = np.append(episode[1:] != episode[:-1], True)
    assert terminated.any()
    assert not terminated[~last].any()


def test_regulator__the_true_mean_is_that_of_the_riccati_recursion():
    """E Z(s, a) of a linear policy and quadratic costs is a quadratic form, found by iterating its matrix."""
    case = CASES["regulator"]
    truth = case.truth(seed=0, n_inputs=3, n_returns=4_000)
    drift, push = np.array([[1.0, 0.1], [-0.05, 0.95]]), np.array([[0.0], [0.1]])
    gain, noise = np.array([[-0.8, -1.0]]), 0.3**2
    closed, cost = drift + push @ gain, np.eye(2) + 0.1 * gain.T @ gain
    value, constant = np.zeros((2, 2)), 0.0
    spread = 0.1**2 * np.eye(2) + noise * push @ push.T
    # The target policy adds a bias to no action here: means are of pure quadratic forms.
    for _ in range(5_000):
        constant = 0.1 * noise + 0.99 * (constant + np.trace(value @ spread))
        value = cost + 0.99 * closed.T @ value @ closed
    after = truth.state @ drift.T + truth.action @ push.T
    expected = (truth.state**2).sum(axis=1) + 0.1 * truth.action[:, 0] ** 2
    expected = expected + 0.99 * (
        np.einsum("ni,ij,nj->n", after, value, after) + np.trace(value) * 0.1**2 + constant
    )
    error = truth.returns[:, :, 0].mean(axis=1) + expected
    assert np.abs(error).max() < 5 * truth.returns.std() / np.sqrt(4_000) + 0.01 * expected.max()
