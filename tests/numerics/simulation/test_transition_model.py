"""Returns simulated through a model of single transitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kedrl_dask import policies
from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.numerics.simulation.donors import Donors
from kedrl_dask.numerics.simulation.smooth_regression import Resampling
from kedrl_dask.numerics.simulation.transition_model import Division, TransitionModel, rewards_until

POLICY = policies.Gaussian(weights=[[0.5]], scale=0.3)
#: For donors without replicates.
NO_REPLICATES = Resampling(np.zeros(4_000, dtype=int), np.zeros((0, 1), dtype=int))


def _transitions(case, n, seed):
    """Arrays of a case's transitions: inputs, rewards, successors, terminal flags and episodes."""
    rows = {name: np.asarray(values) for name, values in CASES[case].log(n, seed).items()}
    continues = np.append(rows["episode"][1:] == rows["episode"][:-1], False)
    chosen = np.flatnonzero(continues | rows["terminated"])
    inputs = np.hstack([rows["state"], rows["action"]])[chosen]
    successor = rows["state"][np.minimum(chosen + 1, len(continues) - 1)]
    return inputs, rows["reward"][chosen], successor, rows["terminated"][chosen], rows["episode"][chosen]


def _linear(n=4_000, seed=0):
    """s' = 0.6 s + 0.4 a + 0.3 e, r = s + a + 0.5 e with the same e: what the residuals have to keep."""
    rng = np.random.default_rng(seed)
    inputs, noise = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    reward = inputs.sum(axis=1, keepdims=True) + 0.5 * noise
    after = inputs @ [[0.6], [0.4]] + 0.3 * noise
    return inputs, reward, after, np.zeros(n, dtype=bool), np.arange(n) // 20


@pytest.mark.slow
def test_returns__have_the_law_of_a_linear_system():
    model = TransitionModel.fit(*_linear())
    state, action = np.array([[0.5], [-1.0]]), np.array([[0.2], [0.7]])
    found = model.returns(state, action, POLICY, 0.8, 20_000, np.random.default_rng(1))
    # The closed form: the mean follows s ← 0.8 s, and the noise of a step comes back in the states.
    rng, total, now, act = np.random.default_rng(2), 0.0, state.repeat(20_000, 0), action.repeat(20_000, 0)
    for t in range(60):
        act = act if t == 0 else POLICY.sample(now, rng)
        noise = rng.normal(size=now.shape)
        total, now = total + 0.8**t * (now + act + 0.5 * noise), 0.6 * now + 0.4 * act + 0.3 * noise
    truth = total.reshape(2, -1)
    assert np.abs(found[:, :, 0].mean(axis=1) - truth.mean(axis=1)).max() < 0.15 * truth.std()
    np.testing.assert_allclose(found[:, :, 0].std(axis=1), truth.std(axis=1), rtol=0.05)
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    difference = np.quantile(found[:, :, 0], levels, axis=1) - np.quantile(truth, levels, axis=1)
    assert np.abs(difference).max() < 0.2 * truth.std()


@pytest.mark.slow
def test_returns__of_episodes_that_end_have_two_modes():
    case = CASES["success-or-failure"]
    model = TransitionModel.fit(*_transitions("success-or-failure", 6_000, seed=0))
    truth = case.truth(seed=0, n_inputs=4, n_returns=2_000)
    found = model.returns(
        truth.state, truth.action, case.target, case.discount, 2_000, np.random.default_rng(0)
    )
    won = [(z[:, :, 0] > 0).mean(axis=1) for z in (found, truth.returns)]
    assert np.abs(won[0] - won[1]).max() < 0.12
    between = [(np.abs(z[:, :, 0]) < 0.1).mean() for z in (found, truth.returns)]
    assert between[0] < between[1] + 0.05


def test_returns__are_the_same_for_the_same_seed_and_whatever_else_is_asked():
    model = TransitionModel.fit(*_linear(1_000), seed=3)
    state, action = np.zeros((2, 1)), np.ones((2, 1))
    fixed = POLICY, 0.7, 50
    first = model.returns(state, action, *fixed, np.random.default_rng(5))
    again = TransitionModel.fit(*_linear(1_000), seed=3).returns(
        state, action, *fixed, np.random.default_rng(5)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape == (2, 50, 1)


def test_returns__stay_in_reach_where_the_policy_leaves_the_data():
    model = TransitionModel.fit(*_linear(1_000))
    away = policies.Gaussian(weights=[[0.0]], bias=50.0, scale=0.1)
    found = model.returns(np.zeros((1, 1)), np.zeros((1, 1)), away, 0.9, 100, np.random.default_rng(0))
    assert np.isfinite(found).all()


def test_step__keeps_the_dependence_of_reward_and_successor():
    model = TransitionModel.fit(*_linear())
    rng = np.random.default_rng(0)
    reward, after, ends = model.step(np.zeros((5_000, 1)), np.zeros((5_000, 1)), rng)
    assert np.corrcoef(reward[:, 0], after[:, 0])[0, 1] > 0.98
    assert not ends.any()


def test_donors__give_the_noise_of_the_neighbourhood():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4_000, 3))
    size = np.where(inputs[:, 1] > 0, 2.0, 0.1)
    residuals = size[:, None] * rng.normal(size=(4_000, 2))
    terminal, fold = np.zeros(4_000, bool), np.arange(4_000) % 5
    donors = Donors.gather(inputs, residuals, terminal, fold, NO_REPLICATES, reward_dim=1, seed=0)[0]
    quiet, loud = np.array([[0.0, -1.0, 0.0]]), np.array([[0.0, 1.0, 0.0]])
    spread = [donors.draw(at.repeat(500, 0), rng)[0].std() for at in (quiet, loud)]
    assert spread[0] < 0.15
    assert spread[1] > 1.5
    assert len(donors.residuals) == 4_000
    for begin, end in pairwise(donors.first):
        np.testing.assert_allclose(donors.residuals[begin:end].mean(axis=0), 0.0, atol=1e-12)


def test_donors__noise_that_no_input_tells_is_one_cell():
    rng = np.random.default_rng(0)
    inputs, residuals = rng.normal(size=(2_000, 2)), rng.normal(size=(2_000, 2))
    terminal, fold = np.zeros(2_000, bool), np.arange(2_000) % 5
    donors = Donors.gather(inputs, residuals, terminal, fold, NO_REPLICATES, reward_dim=1, seed=0)[0]
    assert len(donors.centers) == 1


def _kinds(n=2_000, seed=0):
    """A reward that is often exactly zero, and otherwise a size; it is paid where the state is large."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 2))
    pays = rng.random(n) < 1 / (1 + np.exp(-2 * inputs[:, 0]))
    reward = np.where(pays, 3 + inputs[:, 1] + 0.1 * rng.normal(size=n), 0.0)[:, None]
    after = np.where(pays, -1.0, 0.5 * inputs[:, 0])[:, None] + 0.1 * rng.normal(size=(n, 1))
    return inputs, reward, after, np.zeros(n, dtype=bool), np.arange(n) // 20


def test_kinds__what_never_happens_is_not_simulated():
    model = TransitionModel.fit(*_kinds())
    assert isinstance(model.follows, Division)
    rng, at = np.random.default_rng(0), np.full((4_000, 1), 0.5)
    reward, after, _ = model.step(at, np.zeros((4_000, 1)), rng)
    paid = reward[:, 0] != 0
    assert paid.mean() == pytest.approx(1 / (1 + np.exp(-1.0)), abs=0.05)
    assert reward[paid].min() > 2.3
    # The successor goes with the reward.
    np.testing.assert_allclose([after[paid].mean(), after[~paid].mean()], [-1.0, 0.25], atol=0.05)
    assert after[paid].std() == pytest.approx(0.1, rel=0.2)


def _walled(n=2_000, seed=0):
    """A particle that stops at a wall and starts again from there, and rarely reaches its goal."""
    rng = np.random.default_rng(seed)
    inputs = np.column_stack([rng.uniform(0, 2, n), rng.uniform(-1, 1, n)])
    after = np.maximum(inputs.sum(axis=1, keepdims=True) - 0.1, 0.0)
    reward = -np.ones((n, 1)) + 0.1 * rng.normal(size=(n, 1))
    return inputs, reward, after, after[:, 0] > 2.5, np.arange(n) // 20


def test_kinds__a_wall_and_a_rare_end_are_sharp():
    data = _walled()
    assert 10 <= data[3].sum() <= 60
    model, rng = TransitionModel.fit(*data), np.random.default_rng(3)
    at = np.column_stack([rng.uniform(0, 2, 4_000), rng.uniform(-1, 1, 4_000)])
    _, after, ends = model.step(at[:, :1], at[:, 1:], rng)
    exact = np.maximum(at.sum(axis=1) - 0.1, 0.0)
    clear = (np.abs(at.sum(axis=1) - 0.1) > 0.05) & (exact < 2.4)
    np.testing.assert_allclose(after[clear, 0], exact[clear], atol=1e-3)
    assert not ends[exact < 2.3].any()
    assert ends[exact > 2.75].all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_step__a_reward_that_has_one_sign_keeps_it(sign):
    inputs, reward, after, ends, episode = _linear(1_500)
    reward = np.hstack([sign * np.exp(0.5 * reward), reward])
    model, rng = TransitionModel.fit(inputs, reward, after, ends, episode), np.random.default_rng(4)
    # Far below zero the mean itself is of the wrong sign.
    simulated, _, _ = model.step(np.full((500, 1), -4.0), np.full((500, 1), -4.0), rng)
    assert (sign * simulated[:, 0]).min() == 0.0
    assert simulated[:, 1].min() < -5
    simulated, _, _ = model.step(np.full((500, 1), 1.0), np.full((500, 1), 1.0), rng)
    assert (sign * simulated[:, 0]).min() > 0.5


@pytest.mark.parametrize("decimals", [0, 1])
def test_kinds__rounded_states_have_no_walls(decimals):
    inputs, reward, after, _, episode = _linear(1_500)
    after = after.round(decimals)
    follows = TransitionModel.fit(inputs, reward, after, np.zeros(1_500, bool), episode).follows
    assert not isinstance(follows, Division)


def test_kinds__few_of_one_are_not_divided():
    inputs, reward, after, ends, episode = _linear(1_500)
    ends[:9] = True
    assert not isinstance(TransitionModel.fit(inputs, reward, after, ends, episode).follows, Division)


def test_kinds__one_that_is_known_exactly():
    inputs, _, after, ends, episode = _walled()
    follows = TransitionModel.fit(inputs, -np.ones((2_000, 1)), after, ends, episode).follows
    np.testing.assert_allclose(follows.yes.donors.residuals, 0.0, atol=1e-9)


@pytest.mark.slow
def test_replicates__vary_as_other_datasets_do():
    data = _kinds(4_000)
    fit, *replicates = TransitionModel.fit_replicates(*data, Resampling.drawn(data[-1], 6, 0))
    np.testing.assert_array_equal(fit.low, replicates[0].low)
    grid = np.random.default_rng(2).normal(size=(200, 2))
    # Other datasets differ from each other as replicates do from the fit.
    others = [TransitionModel.fit(*_kinds(4_000, seed)) for seed in range(1, 7)]
    for function in (lambda m: m.follows.logit(grid), lambda m: m.follows.no.mean(grid)[:, 0]):
        among = np.std([function(model) for model in replicates], axis=0).mean()
        truly = np.std([function(model) for model in others], axis=0).mean()
        assert 0.4 < among / truly < 2.5


def test_replicates__draw_other_residuals_of_the_same_cells():
    data = _linear()
    fit, replicate = TransitionModel.fit_replicates(*data, Resampling.drawn(data[-1], 1, 0))
    donors, redrawn = fit.follows.donors, replicate.follows.donors.redrawn
    rows = np.arange(len(donors.residuals))
    assert 0.3 < (redrawn.rows == rows).mean() < 0.95
    cell = np.searchsorted(donors.first, rows, side="right")
    np.testing.assert_array_equal(cell, np.searchsorted(donors.first, redrawn.rows, side="right"))
    drawn = donors.residuals[redrawn.rows] - redrawn.mean[cell - 1]
    for begin, end in pairwise(donors.first):
        np.testing.assert_allclose(drawn[begin:end].mean(axis=0), 0, atol=1e-12)
    assert drawn.std() == pytest.approx(donors.residuals.std(), rel=0.1)


def test_every_transition_may_be_terminal():
    inputs, reward, after, _, episode = _linear(600)
    model = TransitionModel.fit(inputs, reward, after, np.ones(600, bool), episode)
    found = model.returns(inputs[:3, :1], inputs[:3, 1:], POLICY, 0.9, 2_000, np.random.default_rng(0))
    np.testing.assert_allclose(found[:, :, 0].mean(axis=1), inputs[:3].sum(axis=1), atol=0.15)


@pytest.mark.parametrize(("discount", "steps"), [(0.5, 10), (0.99, 688), (1e-4, 1)])
def test_rewards_until(discount, steps):
    assert rewards_until(discount) == steps
