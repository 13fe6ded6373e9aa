"""Episodes that end for good: how often, what is recorded of them, and the truth of their returns."""

import numpy as np
import pytest
from scipy.special import expit, logit

from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.simulation import DISCOUNT, PAIRS, PAPER_SYSTEM
from kedrl_dask.datasets.systems import SYSTEMS, TerminatingSystem
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.numerics.policies import Gaussian

PAIR = PAIRS["uniform-gaussian"]
SYSTEM = SYSTEMS["terminating"]
CERTAIN = TerminatingSystem(PAPER_SYSTEM, np.zeros(5), 50.0)


def constant(probability):
    """Termination that does not depend on the state."""
    return TerminatingSystem(PAPER_SYSTEM, np.zeros(5), logit(probability))


def lengths(data):
    """Rows of each episode, and whether it is terminated."""
    first = np.flatnonzero(np.append(True, np.diff(data["episode"]) > 0))
    return np.diff(np.append(first, len(data["episode"]))), np.logical_or.reduceat(data["terminated"], first)


@pytest.fixture(scope="module")
def data():
    return simulation.simulate(PAIR, n_episodes=2_000, n_steps=30, system=SYSTEM)


def test_terminates__as_often_as_the_logistic_function_says():
    rng = np.random.default_rng(0)
    state = rng.standard_normal((4, 5))
    probability = SYSTEM.termination_probability(state)
    np.testing.assert_allclose(probability, expit(state[:, 2] - state[:, 4] - 2.5))
    found = SYSTEM.terminates(np.repeat(state, 40_000, axis=0), rng).reshape(4, -1).mean(axis=1)
    assert (np.abs(found - probability) < 4.5 * np.sqrt(probability * (1 - probability) / 40_000)).all()


def test_simulate__terminates_as_often_as_states_and_actions_tell(data):
    """P(terminated | s, a) is a Gaussian integral over the state reached, seen or not."""
    pair = np.hstack([data["state"], data["action"]])
    location = pair @ (SYSTEM.weights @ PAPER_SYSTEM.state_weights) + SYSTEM.bias
    scale = np.sqrt(SYSTEM.weights @ PAPER_SYSTEM.state_cov @ SYSTEM.weights)
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    expected = expit(location[:, None] + scale * nodes) @ weights / weights.sum()
    high = expected > np.median(expected)
    for rows in (high, ~high):
        spread = np.sqrt((expected * (1 - expected))[rows].sum())
        assert abs(data["terminated"][rows].sum() - expected[rows].sum()) < 4.5 * spread
    assert expected[high].mean() > 2 * expected[~high].mean()


def test_simulate__no_row_follows_a_terminated_one(data):
    rows, terminated = lengths(data)
    assert len(rows) == 2_000
    np.testing.assert_array_equal(data["episode"], np.repeat(np.arange(2_000), rows))
    np.testing.assert_array_equal(data["step"], np.concatenate([np.arange(n) for n in rows]))
    is_last = np.append(np.diff(data["episode"]) > 0, True)
    assert not data["terminated"][~is_last].any()
    assert (rows[~terminated] == 30).all()


def test_simulate__episodes_have_one_to_some_dozens_of_steps(data):
    rows, terminated = lengths(data)
    assert 5 < rows.mean() < 15
    assert 0.005 < np.mean(~terminated) < 0.2
    assert set(range(1, 30)) <= set(rows[terminated])


def test_simulate__an_episode_does_not_depend_on_how_many_or_how_long_they_are(data):
    few = simulation.simulate(PAIR, n_episodes=1_300, n_steps=30, system=SYSTEM)
    for name, values in few.items():
        np.testing.assert_array_equal(values, data[name][: len(values)])
    assert few["episode"][-1] == 1_299
    short = simulation.simulate(PAIR, n_episodes=2_000, n_steps=4, system=SYSTEM)
    for name, values in short.items():
        np.testing.assert_array_equal(values, data[name][data["step"] < 4])
    other = simulation.simulate(PAIR, n_episodes=10, n_steps=30, seed=1, system=SYSTEM)
    assert not np.array_equal(other["state"][:5], data["state"][:5])


def test_simulate__burn_in_is_that_of_the_dynamics(data):
    alone = simulation.simulate(PAIR, n_episodes=2_000, n_steps=1)
    first = data["step"] == 0
    for name in ("state", "action", "reward"):
        np.testing.assert_array_equal(data[name][first], alone[name])


@pytest.mark.slow
def test_simulate__certain_termination_leaves_one_row_of_each_episode():
    certain = simulation.simulate(PAIR, n_episodes=1_500, n_steps=4_000, burn_in=2, system=CERTAIN)
    np.testing.assert_array_equal(certain["episode"], np.arange(1_500))
    assert certain["terminated"].all()


def test_write__holds_the_simulated_data(tmp_path, data):
    rows, terminated = lengths(data)
    n_transitions = int(np.sum(rows - ~terminated))
    counts = []
    store = simulation.write(
        tmp_path / "store", PAIR, n_transitions, n_steps=30, system=SYSTEM, advance=counts.append
    )
    whole = TransitionStore.from_arrays(tmp_path / "whole", **data)
    assert store.fingerprint == whole.fingerprint
    assert (store.n_transitions, store.n_terminal) == (n_transitions, terminated.sum())
    assert sum(counts) == n_transitions
    assert len(counts) == 2


def transitions_before(data, row):
    """Transitions among the rows before this one, whole episodes or not."""
    has_successor = np.append(np.diff(data["episode"]) == 0, False)
    return int(np.count_nonzero((has_successor | data["terminated"])[:row]))


@pytest.mark.parametrize("end", ["in an episode", "at a terminated row", "before a terminated row", "alone"])
def test_write__ends_with_the_asked_number_of_transitions_wherever_that_is(end, tmp_path, data):
    rows, terminated = lengths(data)
    first = np.append(0, np.cumsum(rows))
    long = int(np.flatnonzero(terminated & (rows == 6))[3])
    # Rows to keep, and transitions in them: the last row is a transition only if it is terminated.
    n_rows = {
        "in an episode": first[long] + 3,
        "at a terminated row": first[long] + 6,
        "before a terminated row": first[long] + 6,
        "alone": first[int(np.flatnonzero(rows == 1)[2]) + 1],
    }[end]
    cut = {name: values[:n_rows].copy() for name, values in data.items()}
    if end == "before a terminated row":
        cut["terminated"][-1] = False
    n_transitions = transitions_before(data, n_rows - 1) + int(cut["terminated"][-1])
    store = simulation.write(tmp_path / "store", PAIR, n_transitions, n_steps=30, system=SYSTEM)
    assert store.n_transitions == n_transitions
    assert store.fingerprint == TransitionStore.from_arrays(tmp_path / "cut", **cut).fingerprint


@pytest.mark.parametrize("n_transitions", [2, 3, 17, 1_500])
def test_write__gives_the_asked_number_of_transitions(n_transitions, tmp_path):
    for steps, probability in ((2, 0.5), (3, 0.9), (40, 0.3)):
        path = tmp_path / str(steps)
        system = constant(probability)
        store = simulation.write(path, PAIR, n_transitions, n_steps=steps, burn_in=1, system=system)
        assert store.n_transitions == n_transitions
        store.verify()


def test_monte_carlo_returns__without_influence_of_the_state_have_the_mean_of_a_smaller_discount():
    """E Σ γ^t 1{t < T} r_t = Σ (γ(1 − h))^t E r_t, when each step is the last with probability h."""
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    returns = truth.monte_carlo_returns(
        state[:3], action[:3], PAIR.target, n_trajectories=10_000, system=constant(0.25)
    )
    expected = truth.return_law(state[:3], action[:3], PAIR.target, DISCOUNT * 0.75).mean
    error = returns.std(axis=1) / np.sqrt(10_000)
    assert (np.abs(returns.mean(axis=1) - expected) < 4.5 * error).all()
    lasting = truth.return_law(state[:3], action[:3], PAIR.target).mean
    assert (np.abs(lasting - expected) > 4.5 * error).any()


def test_monte_carlo_returns__of_certain_termination_are_one_reward():
    points = [part[:2] for part in simulation.TEST_POINTS_UNIFORM_GAUSSIAN]
    returns = truth.monte_carlo_returns(*points, PAIR.target, n_trajectories=5, system=CERTAIN)
    one = truth.monte_carlo_returns(*points, PAIR.target, n_trajectories=5, horizon=1)
    np.testing.assert_array_equal(returns, one)


def test_monte_carlo_returns__agree_with_those_in_the_data(data):
    """From where the episodes begin, under the policy that made them."""
    first = np.flatnonzero(data["step"] == 0)
    weighted = DISCOUNT ** data["step"][:, None] * data["reward"]
    observed = np.add.reduceat(weighted, first)
    simulated = truth.monte_carlo_returns(
        data["state"][first], data["action"][first], PAIR.behavior, n_trajectories=20, system=SYSTEM
    )
    gap = observed - simulated.mean(axis=1)
    assert (np.abs(gap.mean(axis=0)) < 4.5 * gap.std(axis=0) / np.sqrt(len(first))).all()
    squares = observed**2 - (simulated**2).mean(axis=1)
    assert (np.abs(squares.mean(axis=0)) < 4.5 * squares.std(axis=0) / np.sqrt(len(first))).all()


def test_return_law__of_a_terminating_system_names_the_simulator():
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    with pytest.raises(ValueError, match=r"no closed form for a TerminatingSystem.* monte_carlo_embedding"):
        truth.return_law(state, action, PAIR.target, system=SYSTEM)


@pytest.mark.parametrize(
    ("weights", "bias", "message"),
    [
        (np.zeros(4), 0.0, r"weights has shape \(4,\), expected \(5,\)"),
        (np.zeros((5, 1)), 0.0, r"weights has shape \(5, 1\), expected \(5,\)"),
        (np.full(5, np.nan), 0.0, "weights and bias must be finite"),
        (np.zeros(5), np.inf, "weights and bias must be finite"),
    ],
)
def test_system__refuses_what_is_no_probability(weights, bias, message):
    with pytest.raises(ValueError, match=message):
        TerminatingSystem(PAPER_SYSTEM, weights, bias)


def test_simulate__policy_must_fit_the_terminating_system():
    with pytest.raises(ValueError, match="policy has 2 action coordinates, the system 1"):
        simulation.simulate(Gaussian(np.zeros((5, 2))), system=SYSTEM)
