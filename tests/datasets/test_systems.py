"""The systems with dependent noises: what they draw, and their truth."""

from dataclasses import replace

import numpy as np
import pytest

from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.simulation import DISCOUNT, PAIRS, PAPER_SYSTEM
from kedrl_dask.datasets.systems import SYSTEMS, LinearGaussianSystem, TerminatingSystem
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import Logistic

KERNEL = Matern(nu=5.5, length_scale=1.25, sigma=0.85)
# Two states, two actions, two rewards, and neither a bias nor a correlation at zero.
GENERAL = LinearGaussianSystem(
    state_weights=[[0.5, 0.2, 0.3, -0.4], [-0.1, 0.6, 0.2, 0.5]],
    state_bias=[0.3, -0.2],
    reward_weights=[[1.0, 0.2, 0.5, -0.3], [-0.4, 0.7, 0.1, 0.9]],
    reward_bias=[-0.5, 0.25],
    state_cov=[[0.5, 0.2], [0.2, 0.4]],
    reward_cov=[[0.3, -0.1], [-0.1, 0.2]],
    cross_cov=[[0.25, 0.05], [-0.1, 0.15]],
)
LOADING = np.array([[0.3, -0.2], [0.1, 0.4]])
DEPENDENT = ["correlated", "reward-in-state"]
N_TRAJECTORIES = 10_000
# Four and a half standard errors of the mean of a quantity of standard deviation one.
NOISE = 4.5 / np.sqrt(N_TRAJECTORIES)


def dynamics(system):
    return system.dynamics if isinstance(system, TerminatingSystem) else system


def paper_case(name):
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    return state[4:6], action[4:6], PAIRS["uniform-logistic"].target, DISCOUNT, SYSTEMS[name]


def general_case(system):
    rng = np.random.default_rng(1)
    policy = Logistic([[0.3, -0.2], [0.1, -0.5]], [0.6, -0.3], [0.2, 0.4])
    return rng.standard_normal((2, 2)), rng.standard_normal((2, 2)), policy, 0.8, system


CASES = {name: paper_case(name) for name in ("paper", *DEPENDENT)} | {
    "general": general_case(GENERAL),
    "general with reward in state": general_case(GENERAL.with_reward_in_state(LOADING)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def returns(case):
    state, action, policy, discount, system = case
    return truth.monte_carlo_returns(state, action, policy, discount, N_TRAJECTORIES, seed=7, system=system)


def without_cross_cov(case):
    return (*case[:4], replace(case[4], cross_cov=np.zeros_like(case[4].cross_cov)))


def test_return_law__moments_agree_with_monte_carlo(case, returns):
    law = truth.return_law(*case)
    spread = np.sqrt(np.diag(law.covariance))
    assert (np.abs(returns.mean(axis=1) - law.mean) / spread).max() < NOISE
    for sample in returns:
        assert (np.abs(np.cov(sample.T) - law.covariance) / np.outer(spread, spread)).max() < 2 * NOISE


def test_return_law__characteristic_function_agrees_with_monte_carlo(case, returns):
    law = truth.return_law(*case)
    frequencies = np.random.default_rng(2).standard_normal((12, law.mean.shape[1]))
    frequencies /= np.sqrt(np.diag(law.covariance))
    sampled = np.exp(1j * returns @ frequencies.T).mean(axis=1)
    np.testing.assert_allclose(law.characteristic_function(frequencies), sampled, atol=NOISE)


def test_return_law__embedding_agrees_with_monte_carlo(case, returns):
    law = truth.return_law(*case)
    at = truth.evaluation_grid(law, n=20)
    sampled = truth.monte_carlo_embedding(returns, at, KERNEL)
    # The quadrature of the closed form has an error of its own, of about 1e-4.
    assert (np.abs(law.embed(at, KERNEL) - sampled.mean) < 4.5 * sampled.standard_error + 5e-4).all()


@pytest.mark.parametrize("name", DEPENDENT)
def test_systems__separating_reward_and_continuation_is_badly_biased(name):
    """Its fixed point is the law of the same system with independent noises."""
    arguments = (*simulation.TEST_POINTS_UNIFORM_GAUSSIAN, *paper_case(name)[2:])
    law, separated = truth.return_law(*arguments), truth.return_law(*without_cross_cov(arguments))
    np.testing.assert_array_equal(law.mean, separated.mean)
    at = truth.evaluation_grid(law, n=25)
    errors = truth.embedding_errors(separated.embed(at, KERNEL, 2**12), law.embed(at, KERNEL, 2**12))
    assert errors["rmse"].mean() > 0.05


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", SYSTEMS)
def test_systems__take_the_policies_of_the_study_and_are_stable(name, pair):
    system = dynamics(SYSTEMS[name])
    assert (system.state_dim, system.action_dim, system.reward_dim) == (5, 1, 3)
    slope, effect = np.hsplit(system.state_weights, [5])
    for policy in (PAIRS[pair].behavior, PAIRS[pair].target):
        assert np.abs(np.linalg.eigvals(slope + effect @ policy.weights.T)).max() < 0.8


@pytest.mark.parametrize("system", [SYSTEMS[name] for name in DEPENDENT] + [GENERAL])
def test_step__noises_have_the_joint_covariance(system):
    n, rng = 200_000, np.random.default_rng(3)
    state, action = rng.standard_normal(system.state_dim), rng.standard_normal(system.action_dim)
    reward, following = system.step(np.tile(state, (n, 1)), np.tile(action, (n, 1)), rng)
    drawn, pair = np.hstack([reward, following]), np.concatenate([state, action])
    expected = np.concatenate(
        [system.reward_weights @ pair + system.reward_bias, system.state_weights @ pair + system.state_bias]
    )
    spread = np.sqrt(np.diag(system.noise_cov))
    assert (np.abs(drawn.mean(axis=0) - expected) / spread).max() < 4.5 / np.sqrt(n)
    gap = np.cov(drawn.T) - system.noise_cov
    assert (np.abs(gap) / np.outer(spread, spread)).max() < 2 * 4.5 / np.sqrt(n)


def test_step__independent_noises_are_two_draws_as_ever():
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    reward, following = PAPER_SYSTEM.step(state, action, np.random.default_rng(4))
    rng, pair = np.random.default_rng(4), np.hstack([state, action])
    expected = pair @ PAPER_SYSTEM.reward_weights.T
    expected += rng.standard_normal((10, 3)) @ simulation_root(PAPER_SYSTEM.reward_cov)
    np.testing.assert_allclose(reward, expected, rtol=1e-12)
    expected = pair @ PAPER_SYSTEM.state_weights.T
    expected += rng.standard_normal((10, 5)) @ simulation_root(PAPER_SYSTEM.state_cov)
    np.testing.assert_allclose(following, expected, rtol=1e-12)
    explicit = replace(PAPER_SYSTEM, cross_cov=np.zeros((3, 5)))
    np.testing.assert_array_equal(explicit.step(state, action, np.random.default_rng(4))[1], following)


def simulation_root(covariance):
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(values)) @ vectors.T


def test_with_reward_in_state__the_next_state_contains_the_reward_that_was_drawn():
    """Without a noise of its own, the next state is known once the reward is."""
    rng = np.random.default_rng(5)
    quiet = replace(PAPER_SYSTEM, state_cov=np.zeros((5, 5)), reward_bias=[0.5, -0.4, 0.1])
    loading = rng.standard_normal((5, 3))
    state, action = rng.standard_normal((100, 5)), rng.standard_normal((100, 1))
    reward, following = quiet.with_reward_in_state(loading).step(state, action, rng)
    expected = np.hstack([state, action]) @ quiet.state_weights.T + reward @ loading.T
    # A singular covariance has a root to about half of the digits.
    np.testing.assert_allclose(following, expected, atol=1e-6)
    assert np.std(reward - np.hstack([state, action]) @ quiet.reward_weights.T) > 0.3


def test_with_reward_in_state__without_the_reward_the_original_system_remains():
    n, rng = 200_000, np.random.default_rng(6)
    state, action = np.tile([0.4, -0.7], (n, 1)), np.tile([0.2, 0.9], (n, 1))
    reward, following = GENERAL.with_reward_in_state(LOADING).step(state, action, rng)
    rest = following - reward @ LOADING.T
    mean = GENERAL.state_weights @ [0.4, -0.7, 0.2, 0.9] + GENERAL.state_bias
    np.testing.assert_allclose(rest.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(np.hstack([reward, rest]).T), GENERAL.noise_cov, atol=0.01)


def test_with_reward_in_state__by_nothing_is_the_system_itself():
    same = GENERAL.with_reward_in_state(np.zeros((2, 2)))
    for name, value in vars(same).items():
        np.testing.assert_array_equal(value, getattr(GENERAL, name))


def test_with_reward_in_state__checks_the_loading():
    with pytest.raises(ValueError, match=r"loading has shape \(3, 5\), expected .* = \(5, 3\)"):
        PAPER_SYSTEM.with_reward_in_state(np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cross_cov": np.zeros((5, 3))}, r"cross_cov has shape \(5, 3\), expected \(3, 5\)"),
        ({"cross_cov": np.eye(3, 5)}, r"joint covariance of \(ε_r, ε_s\): .* not have negative eigenvalues"),
        ({"state_cov": -np.eye(5)}, r"joint covariance .* not have negative eigenvalues, got \[-1.0, "),
        ({"reward_cov": np.triu(np.ones((3, 3)))}, "joint covariance .* finite and symmetric"),
        ({"cross_cov": np.full((3, 5), np.nan)}, "joint covariance .* finite and symmetric"),
    ],
)
def test_system__refuses_noises_that_no_system_has(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PAPER_SYSTEM, **change)


def test_monte_carlo_embedding__is_mean_and_standard_error_over_the_returns():
    """More returns than are held at once; the grid of all points, and one for each."""
    rng = np.random.default_rng(8)
    returns, at = rng.standard_normal((2, 20_000, 3)), rng.standard_normal((5, 3))
    found = truth.monte_carlo_embedding(returns, at, KERNEL)
    for point in range(2):
        values = KERNEL(returns[point], at)
        np.testing.assert_allclose(found.mean[point], values.mean(axis=0), rtol=1e-12)
        error = values.std(axis=0, ddof=1) / np.sqrt(20_000)
        np.testing.assert_allclose(found.standard_error[point], error, rtol=1e-9)
    each = truth.monte_carlo_embedding(returns, np.stack([at, at]), KERNEL)
    np.testing.assert_array_equal(each.mean, found.mean)


def test_monte_carlo_embedding__checks_its_shapes():
    with pytest.raises(ValueError, match=r"returns has shape \(10, 3\), expected \(n, size, d\)"):
        truth.monte_carlo_embedding(np.zeros((10, 3)), np.zeros((4, 3)), KERNEL)
    with pytest.raises(ValueError, match="at least two returns"):
        truth.monte_carlo_embedding(np.zeros((2, 1, 3)), np.zeros((4, 3)), KERNEL)
    with pytest.raises(ValueError, match=r"at has shape \(4, 2\), expected \(g, 3\) or \(2, g, 3\)"):
        truth.monte_carlo_embedding(np.zeros((2, 9, 3)), np.zeros((4, 2)), KERNEL)
