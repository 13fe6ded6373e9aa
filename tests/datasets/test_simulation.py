import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from kedrl_dask.datasets import simulation, systems, truth
from kedrl_dask.datasets.simulation import DISCOUNT, PAIRS, PAPER_SYSTEM, LinearGaussianSystem
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import Function, Gaussian, Logistic, Uniform

FAMILIES = [Gaussian, Uniform, Logistic]
# Two states, two actions, two rewards, and no bias or correlation left at zero.
TWO_ACTIONS = LinearGaussianSystem(
    state_weights=[[0.5, 0.2, 0.3, -0.4], [-0.1, 0.6, 0.2, 0.5]],
    state_bias=[0.3, -0.2],
    reward_weights=[[1.0, 0.2, 0.5, -0.3], [-0.4, 0.7, 0.1, 0.9]],
    reward_bias=[-0.5, 0.25],
    state_cov=[[0.05, 0.02], [0.02, 0.04]],
    reward_cov=[[0.03, -0.01], [-0.01, 0.02]],
)
BIASED = LinearGaussianSystem(
    PAPER_SYSTEM.state_weights,
    [0.2, -0.1, 0.3, 0.0, 0.1],
    PAPER_SYSTEM.reward_weights,
    [0.5, -0.4, 0.1],
    PAPER_SYSTEM.state_cov,
    PAPER_SYSTEM.reward_cov,
)


def one_action_case(family):
    """The paper's system with biases; a noise so large that the family shows in the return."""
    rng = np.random.default_rng(0)
    policy = family([0.1, -0.1, 0.15, -0.45, 0.0], 0.4, 1.5)
    return rng.standard_normal((2, 5)), rng.standard_normal((2, 1)), policy, DISCOUNT, BIASED


def two_action_case(family):
    rng = np.random.default_rng(1)
    policy = family([[0.3, -0.2], [0.1, -0.5]], [0.6, -0.3], [0.4, 1.1])
    return rng.standard_normal((2, 2)), rng.standard_normal((2, 2)), policy, 0.8, TWO_ACTIONS


@pytest.fixture(
    scope="module",
    params=[make(family) for make in (one_action_case, two_action_case) for family in FAMILIES],
    ids=lambda case: f"{type(case[2]).__name__}-{case[2].action_dim}",
)
def case(request):
    return request.param


N_TRAJECTORIES = 10_000
# Four and a half standard errors of the mean of a quantity of standard deviation one.
NOISE = 4.5 / np.sqrt(N_TRAJECTORIES)


@pytest.fixture(scope="module")
def monte_carlo(case):
    state, action, policy, discount, system = case
    return truth.monte_carlo_returns(state, action, policy, discount, N_TRAJECTORIES, seed=7, system=system)


def test_return_law__mean_and_covariance_agree_with_monte_carlo(case, monte_carlo):
    law, returns = truth.return_law(*case), monte_carlo
    spread = np.sqrt(np.diag(law.covariance))
    assert (np.abs(returns.mean(axis=1) - law.mean) / spread).max() < NOISE
    for sample in returns:
        assert (np.abs(np.cov(sample.T) - law.covariance) / np.outer(spread, spread)).max() < 2 * NOISE


def test_return_law__characteristic_function_agrees_with_monte_carlo(case, monte_carlo):
    law, returns = truth.return_law(*case), monte_carlo
    # Frequencies along the policy's noise, where the three families differ most.
    frequencies = np.vstack(
        [np.random.default_rng(2).standard_normal((5, law.mean.shape[1])), 1.5 * law.noise_loading.T]
    ) / np.sqrt(np.diag(law.covariance))
    sampled = np.exp(1j * returns @ frequencies.T).mean(axis=1)
    np.testing.assert_allclose(law.characteristic_function(frequencies), sampled, atol=NOISE)


def test_return_law__samples_agree_with_monte_carlo(case, monte_carlo):
    law, returns = truth.return_law(*case), monte_carlo
    draws = law.sample(N_TRAJECTORIES, np.random.default_rng(3))
    assert draws.shape == returns.shape
    levels = [0.02, 0.1, 0.5, 0.9, 0.98]
    spread = np.sqrt(np.diag(law.covariance))
    gap = np.quantile(draws, levels, axis=1) - np.quantile(returns, levels, axis=1)
    assert (np.abs(gap) / spread).max() < 4 * NOISE


def test_return_law__embedding_agrees_with_monte_carlo(case, monte_carlo):
    law, returns = truth.return_law(*case), monte_carlo
    kernel = Matern(nu=5.5, length_scale=1.25, sigma=0.85)
    at = truth.evaluation_grid(returns, n=20)
    sampled = np.stack([kernel(sample, grid).mean(axis=0) for sample, grid in zip(returns, at, strict=True)])
    np.testing.assert_allclose(law.embed(at, kernel), sampled, atol=0.5 * 0.85**2 * NOISE)


def test_return_law__differs_between_families_of_the_same_variance():
    """Else the comparisons with Monte Carlo above could not tell the noise laws apart."""
    values = []
    for family in FAMILIES:
        scale = 1.0 / np.sqrt(family.noise.variance)
        law = truth.return_law(np.zeros((1, 5)), np.zeros((1, 1)), family(np.zeros(5), 0.0, 8 * scale))
        values.append(law.characteristic_function(law.noise_loading.T / (law.noise_loading**2).sum())[0, 0])
    assert np.ptp(np.abs(values)) > 0.02


def test_characteristic_function__is_one_at_zero_and_bounded(case):
    law = truth.return_law(*case)
    frequencies = np.vstack([np.zeros(law.mean.shape[1]), 50 * np.eye(law.mean.shape[1])])
    values = law.characteristic_function(frequencies)
    np.testing.assert_allclose(values[:, 0], 1.0, rtol=1e-15)
    assert (np.abs(values) <= 1.0).all()


def test_characteristic_function__truncated_product_agrees_with_a_long_one(case):
    law = truth.return_law(*case)
    frequencies = np.random.default_rng(4).standard_normal((6, law.mean.shape[1]))
    gaussian = np.exp(-0.5 * np.einsum("qi,ij,qj->q", frequencies, law.gaussian_cov, frequencies))
    factors = [
        law.noise.characteristic_function(law.discount**t * frequencies @ law.noise_loading).prod(axis=1)
        for t in range(1, 200)
    ]
    np.testing.assert_allclose(
        law.centred_characteristic_function(frequencies), gaussian * np.prod(factors, axis=0), rtol=1e-10
    )


def test_return_law__of_a_gaussian_policy_has_the_closed_gaussian_characteristic_function():
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    law = truth.return_law(state, action, PAIRS["uniform-gaussian"].target)
    frequencies = np.random.default_rng(5).standard_normal((7, 3))
    exponent = -0.5 * np.einsum("qi,ij,qj->q", frequencies, law.covariance, frequencies)
    expected = np.exp(1j * law.mean @ frequencies.T + exponent)
    np.testing.assert_allclose(law.characteristic_function(frequencies), expected, rtol=1e-10)


def test_return_law__satisfies_the_bellman_equation_in_mean(case):
    state, action, policy, discount, system = case
    law = truth.return_law(*case)
    pair = np.concatenate([state, action], axis=1)
    following = pair @ system.state_weights.T + system.state_bias
    after = truth.return_law(following, policy.location(following), policy, discount, system)
    reward = pair @ system.reward_weights.T + system.reward_bias
    np.testing.assert_allclose(law.mean, reward + discount * after.mean, rtol=1e-12)


def test_return_law__without_discount_is_the_law_of_one_reward():
    state, action, policy, _, system = one_action_case(Logistic)
    law = truth.return_law(state, action, policy, 0.0, system)
    expected = np.concatenate([state, action], axis=1) @ system.reward_weights.T + system.reward_bias
    np.testing.assert_allclose(law.mean, expected)
    np.testing.assert_allclose(law.covariance, system.reward_cov)
    assert law.sample(3, np.random.default_rng(0)).shape == (2, 3, 3)
    assert truth.monte_carlo_returns(state, action, policy, 0.0, 4, system=system).shape == (2, 4, 3)


def test_embed__shared_grid_equals_the_same_grid_at_each_point():
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    law = truth.return_law(state, action, PAIRS["uniform-gaussian"].target)
    kernel, at = Matern(), np.random.default_rng(0).standard_normal((300, 3))
    shared = law.embed(at, kernel, n_frequencies=64)
    assert shared.shape == (10, 300)
    np.testing.assert_allclose(shared, law.embed(np.stack([at] * 10), kernel, n_frequencies=64))
    with pytest.raises(ValueError, match=r"at has shape \(300, 2\), expected \(g, 3\) or \(10, g, 3\)"):
        law.embed(at[:, :2], kernel)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("uniform-gaussian", 0.285), ("gaussian-uniform", 0.581), ("logistic-gaussian", 0.397)],
)
def test_embed__mean_on_the_evaluation_grid_is_that_of_the_authors_code(name, expected):
    """Measured on that code at each pair's own ten points, of which only those of one pair are published."""
    pair = PAIRS[name]
    law = truth.return_law(*simulation.TEST_POINTS_UNIFORM_GAUSSIAN, pair.target)
    values = law.embed(truth.evaluation_grid(law), pair.settings.kernel)
    assert values.mean() == pytest.approx(expected, abs=0.01)
    assert (values < pair.settings.sigma**2).all()


def test_embed__quadrature_has_converged():
    pair = PAIRS["uniform-gaussian"]
    law = truth.return_law(*simulation.TEST_POINTS_UNIFORM_GAUSSIAN, pair.target)
    at = truth.evaluation_grid(law, n=10)
    few, many = (law.embed(at, pair.settings.kernel, n) for n in (2**14, 2**16))
    assert np.abs(few - many).max() < 5e-4


@pytest.mark.parametrize(
    "policy", [Gaussian(np.zeros(5), scale_weights=np.zeros(5)), Function(lambda s, rng: s[:, :1])]
)
def test_return_law__without_closed_form_names_the_simulator(policy):
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    with pytest.raises(ValueError, match="use monte_carlo_returns"):
        truth.return_law(state, action, policy)
    assert truth.monte_carlo_returns(state, action, policy, n_trajectories=2).shape == (10, 2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discount": 1.0}, r"discount must be in \[0, 1\), got 1.0"),
        ({"action": np.zeros((1, 2))}, r"shapes \(1, 5\) and \(1, 2\), expected \(\(1, 5\), \(1, 1\)\)"),
        ({"policy": Gaussian(np.full(5, 30.0))}, "diverges"),
    ],
)
def test_return_law__refuses_what_has_no_return(change, message):
    arguments = {
        "state": np.zeros((1, 5)),
        "action": np.zeros((1, 1)),
        "policy": Gaussian(np.zeros(5)),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        truth.return_law(**arguments)


def test_evaluation_grid__takes_equally_spaced_ranks_of_the_first_coordinate():
    returns = np.random.default_rng(0).permuted(np.arange(101.0))[None, :, None] * [1.0, -2.0]
    np.testing.assert_array_equal(truth.evaluation_grid(returns, n=5)[0, :, 0], [0, 25, 50, 75, 100])
    np.testing.assert_array_equal(truth.evaluation_grid(returns, n=5)[0, :, 1], [0, -50, -100, -150, -200])
    with pytest.raises(ValueError, match="102 points asked of 101 returns"):
        truth.evaluation_grid(returns, n=102)


def test_evaluation_grid__of_a_law_follows_the_seed():
    law = truth.return_law(np.zeros((2, 5)), np.zeros((2, 1)), PAIRS["uniform-logistic"].target)
    grid = truth.evaluation_grid(law, n=10, n_samples=50)
    assert grid.shape == (2, 10, 3)
    np.testing.assert_array_equal(grid, truth.evaluation_grid(law, n=10, n_samples=50))
    assert not np.array_equal(grid, truth.evaluation_grid(law, n=10, n_samples=50, seed=1))


def test_embedding_errors__are_the_papers_summaries():
    errors = truth.embedding_errors([[1.0, 3.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(errors["bias"], [1.0, 0.0])
    np.testing.assert_allclose(errors["rmse"], [np.sqrt(5.0), 0.0])
    np.testing.assert_allclose(errors["mae"], [2.0, 0.0])
    with pytest.raises(ValueError, match="expected the same"):
        truth.embedding_errors(np.zeros((2, 3)), np.zeros((2, 1)))


def test_simulate__rows_are_ordered_and_named_as_the_store_takes_them():
    data = simulation.simulate(PAIRS["uniform-gaussian"], n_episodes=3, n_steps=4)
    shapes = {name: values.shape for name, values in data.items()}
    columns = {"state": (12, 5), "action": (12, 1), "reward": (12, 3)}
    assert shapes == columns | {"terminated": (12,), "episode": (12,), "step": (12,)}
    assert not data["terminated"].any()
    np.testing.assert_array_equal(data["episode"], np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(data["step"], np.tile([0, 1, 2, 3], 3))


def test_simulate__an_episode_does_not_depend_on_how_many_there_are():
    many = simulation.simulate(PAIRS["uniform-gaussian"], n_episodes=2_500, n_steps=2, burn_in=3)
    for n_episodes in (1, 1_000, 1_700):
        few = simulation.simulate(PAIRS["uniform-gaussian"], n_episodes=n_episodes, n_steps=2, burn_in=3)
        for name, values in few.items():
            np.testing.assert_array_equal(values, many[name][: 2 * n_episodes])
    other = simulation.simulate(PAIRS["uniform-gaussian"], n_episodes=2, n_steps=2, burn_in=3, seed=1)
    assert not np.array_equal(other["state"], many["state"][:4])
    assert not np.array_equal(many["state"][:2_000], many["state"][2_000:4_000])


def test_simulate__follows_the_equations_of_the_system():
    policy = Uniform(np.zeros((2, 2)), [0.1, -0.4], [0.5, 2.0])
    data = simulation.simulate(policy, n_episodes=1_000, n_steps=20, burn_in=0, system=TWO_ACTIONS)
    first = data["step"] < 19
    inputs = np.column_stack([data["state"], data["action"], np.ones(len(data["step"]))])
    following = np.roll(data["state"], -1, axis=0)[first]
    for target, rows, weights, bias, cov in (
        (following, inputs[first], TWO_ACTIONS.state_weights, TWO_ACTIONS.state_bias, TWO_ACTIONS.state_cov),
        (data["reward"], inputs, TWO_ACTIONS.reward_weights, TWO_ACTIONS.reward_bias, TWO_ACTIONS.reward_cov),
    ):
        fitted = np.linalg.lstsq(rows, target, rcond=None)[0]
        np.testing.assert_allclose(fitted.T, np.column_stack([weights, bias]), atol=0.015)
        np.testing.assert_allclose(np.cov((target - rows @ fitted).T), cov, atol=0.002)
    assert (np.abs(data["action"] - [0.1, -0.4]) <= [0.5, 2.0]).all()


def test_simulate__is_stationary_after_the_burn_in():
    pair = PAIRS["logistic-uniform"]
    data = simulation.simulate(pair, n_episodes=4_000, n_steps=1)
    slope, noise = PAPER_SYSTEM.state_weights[:, :5], PAPER_SYSTEM.state_weights[:, 5:]
    closed_loop = slope + noise @ pair.behavior.weights.T
    shock = PAPER_SYSTEM.state_cov + pair.behavior.noise.variance * pair.behavior.scale**2 * noise @ noise.T
    stationary = solve_discrete_lyapunov(closed_loop, shock)
    mean = np.linalg.solve(np.eye(5) - closed_loop, noise @ pair.behavior.bias)
    spread = np.sqrt(np.diag(stationary))
    assert (np.abs(data["state"].mean(axis=0) - mean) / spread).max() < 0.07
    assert (np.abs(np.cov(data["state"].T) - stationary) / np.outer(spread, spread)).max() < 0.1


def test_simulate__refuses_impossible_requests():
    with pytest.raises(ValueError, match="n_steps=0"):
        simulation.simulate(PAIRS["uniform-gaussian"], n_steps=0)
    with pytest.raises(ValueError, match="burn_in must be at least 0, got -1"):
        simulation.simulate(PAIRS["uniform-gaussian"], burn_in=-1)
    with pytest.raises(ValueError, match="policy has 2 action coordinates, the system 1"):
        simulation.simulate(Gaussian(np.zeros((5, 2))))


def test_write__refused_requests_leave_no_store(tmp_path):
    with pytest.raises(ValueError, match="policy has 2 action coordinates"):
        simulation.write(tmp_path / "data.zarr", Gaussian(np.zeros((5, 2))))
    assert not list(tmp_path.iterdir())


def test_system__shapes_and_covariances_are_checked():
    with pytest.raises(ValueError, match=r"reward_cov has shape \(2, 2\), expected \(1, 1\)"):
        LinearGaussianSystem(np.ones((1, 2)), [0.0], np.ones((1, 2)), [0.0], [[1.0]], np.eye(2))
    with pytest.raises(ValueError, match="more than 1 columns"):
        LinearGaussianSystem(np.ones((1, 1)), [0.0], np.ones((1, 1)), [0.0], [[1.0]], [[1.0]])
    with pytest.raises(ValueError, match="not have negative eigenvalues"):
        systems.covariance_root(np.diag([1.0, -1.0]))


def test_write__holds_the_simulated_data_with_the_asked_number_of_transitions(tmp_path):
    pair = PAIRS["gaussian-logistic"]
    store = simulation.write(tmp_path / "data.zarr", pair, n_transitions=3_100, n_steps=4, burn_in=2, seed=5)
    data = simulation.simulate(pair, n_episodes=1_034, n_steps=4, burn_in=2, seed=5)
    assert store.n_transitions == 3_100
    rows = 3_100 + 1_034  # the last episode has one transition of three
    whole = TransitionStore.from_arrays(tmp_path / "whole.zarr", **{k: v[:rows] for k, v in data.items()})
    assert store.fingerprint == whole.fingerprint
    with pytest.raises(ValueError, match="n_steps=1"):
        simulation.write(tmp_path / "none.zarr", pair, n_steps=1)


def test_pairs__are_those_of_the_paper():
    assert list(PAIRS) == [
        "gaussian-uniform",
        "gaussian-logistic",
        "logistic-uniform",
        "logistic-gaussian",
        "uniform-gaussian",
        "uniform-logistic",
    ]
    for name, pair in PAIRS.items():
        assert f"{pair.behavior.family}-{pair.target.family}" == name
        np.testing.assert_array_equal(pair.behavior.weights, pair.target.weights)
    pair = PAIRS["uniform-gaussian"]
    np.testing.assert_array_equal(pair.target.weights[:, 0], [0.10, -0.10, 0.15, -0.45, 0.00])
    np.testing.assert_allclose([pair.behavior.bias[0], pair.behavior.half_width[0]], [0.025, 0.75])
    assert pair.target.bias[0] == 0.025
    assert np.log(pair.target.scale[0]) == pytest.approx(-2.60)
    lower, upper = (
        PAIRS["logistic-uniform"].target.bias + s * PAIRS["logistic-uniform"].target.scale for s in (-1, 1)
    )
    assert (lower[0], upper[0]) == pytest.approx((-0.15, 0.21))


def test_pairs__settings_are_those_of_the_paper():
    settings = PAIRS["uniform-logistic"].settings
    assert settings == simulation.PaperSettings(
        n_basis=220,
        n_features=640,
        ridge_gamma=0.004,
        ridge_b=0.018,
        length_scale=1.20,
        sigma=0.80,
        n_iterations=5000,
        batch_size=150,
        mass_penalty=1.4,
        learning_rate=3e-4,
        weight_decay=8e-5,
    )
    assert settings.kernel == Matern(5.5, 1.20, 0.80)
    assert [p.settings.mass_penalty for p in PAIRS.values()] == [4.0, 3.5, 2.0, 2.5, 1.5, 1.4]
    assert [p.settings.length_scale for p in PAIRS.values()] == [1.80, 1.65, 1.35, 1.50, 1.25, 1.20]


def test_test_points__are_those_of_the_paper():
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    assert state.shape == (10, 5)
    assert action.shape == (10, 1)
    np.testing.assert_array_equal(state[9], [-0.364, -0.034, -0.313, -0.376, 1.669])
    assert action[5, 0] == -0.676
