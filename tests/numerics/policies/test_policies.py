import json
import pickle
import re
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.linear_model import LinearRegression

from kedrl_dask import KEDRL, policies
from kedrl_dask.estimator.policy_check import PolicyWarning, rehearse
from kedrl_dask.numerics.policies import Function, Gaussian, Logistic, Policy, Uniform
from kedrl_dask.numerics.policies.base import PolicyError
from kedrl_dask.numerics.policies.noise import GaussianNoise, LogisticNoise, UniformNoise

NOISES = [GaussianNoise(), UniformNoise(), LogisticNoise()]
FAMILIES = [Gaussian, Uniform, Logistic]
STATE = np.array([[0.3, -1.0, 0.5], [1.2, 0.1, -0.4], [0.0, 0.0, 0.0]])


def two_dimensional(family, scale_weights=None):
    return family([[0.5, 0.1], [0.0, -0.3], [1.0, 0.2]], [0.2, -0.1], [0.7, 1.5], scale_weights)


def even_moment(noise, order):
    """E n^order in closed form, written independently of the recurrence coefficients."""
    if isinstance(noise, GaussianNoise):
        return factorial(order) / (2 ** (order // 2) * factorial(order // 2))
    if isinstance(noise, UniformNoise):
        return 1 / (order + 1)
    # Logistic: E n^{2j} = π^{2j}(2^{2j} − 2)|B_{2j}|
    bernoulli = [1.0]
    for m in range(1, order + 1):
        bernoulli.append(-sum(comb(m + 1, k) * bernoulli[k] for k in range(m)) / (m + 1))
    return 1.0 if order == 0 else np.pi**order * (2**order - 2) * abs(bernoulli[order])


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("n_nodes", [1, 2, 3, 5, 8])
def test_gauss_rule__is_exact_up_to_degree_2k_minus_1(noise, n_nodes):
    nodes, weights = noise.nodes(n_nodes, 1)
    assert nodes.shape == (n_nodes, 1)
    for degree in range(0, 2 * n_nodes, 2):
        np.testing.assert_allclose(weights @ nodes[:, 0] ** degree, even_moment(noise, degree), rtol=1e-10)
    # Odd moments cancel term by term, up to the order of summation.
    assert abs(weights @ nodes[:, 0]) < 1e-14
    assert weights @ nodes[:, 0] ** (2 * n_nodes) < even_moment(noise, 2 * n_nodes) * (1 - 1e-6)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_gauss_rule__many_nodes_keep_the_variance(noise):
    nodes, weights = noise.nodes(200, 1)
    np.testing.assert_allclose([weights.sum(), weights @ nodes[:, 0] ** 2], [1, noise.variance], rtol=1e-12)
    assert (weights >= 0).all()
    assert (np.diff(nodes[:, 0]) > 0).all()


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_log_density__integrates_to_one_and_is_the_derivative_of_the_inverse_quantile(noise):
    edge = 1.0 if isinstance(noise, UniformNoise) else 40.0
    total, _ = quad(lambda n: np.exp(noise.log_density(np.array(n))), -edge, edge, points=[0.0], limit=200)
    assert total == pytest.approx(1.0, abs=1e-8)
    u = np.linspace(0.05, 0.95, 19)
    slope = (noise.quantile(u + 1e-5) - noise.quantile(u - 1e-5)) / 2e-5
    np.testing.assert_allclose(np.exp(noise.log_density(noise.quantile(u))) * slope, 1.0, rtol=1e-6)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("t", [0.0, 1e-9, 0.3, 1.7, 4.0])
def test_characteristic_function__agrees_with_numerical_integration(noise, t):
    edge = 1.0 if isinstance(noise, UniformNoise) else 40.0
    expected, _ = quad(
        lambda n: np.cos(t * n) * np.exp(noise.log_density(np.array(n))), -edge, edge, points=[0.0], limit=400
    )
    assert noise.characteristic_function(np.array([t]))[0] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_characteristic_function__neither_overflows_nor_loses_zero(noise):
    values = noise.characteristic_function(np.array([[0.0, -1e-300, 1e3], [1e6, -1e6, 1e150]]))
    assert np.isfinite(values).all()
    assert values[0, 0] == values[0, 1] == 1.0
    assert (np.abs(values) <= 1.0).all()


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_sample__is_finite_when_the_uniform_draw_is_zero(noise):
    class Zero:
        def random(self, shape):
            return np.zeros(shape)

    assert np.isfinite(noise.sample((3,), Zero())).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("n_draws", "q", "expected"), [(7, 1, 7), (1, 2, 1), (3, 2, 3), (4, 2, 4), (30, 2, 25)]
)
def test_draws__weights_sum_to_one_and_counts_follow_the_rule(family, n_draws, q, expected):
    policy = family(np.ones((3, q)))
    actions, weights = policy.draws(STATE, n_draws)
    assert actions.shape == (expected, 3, q)
    assert weights.shape == (expected,)
    assert weights.sum() == pytest.approx(1.0)
    assert np.isfinite(actions).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_draws__reproduce_mean_and_covariance_of_a_two_dimensional_policy(family):
    policy = two_dimensional(family, scale_weights=[[0.1, -0.2], [0.3, 0.0], [0.0, 0.5]])
    actions, weights = policy.draws(STATE, 9)
    mean = np.einsum("k,knq->nq", weights, actions)
    np.testing.assert_allclose(mean, policy.location(STATE), atol=1e-12)
    centred = actions - mean
    covariance = np.einsum("k,kna,knb->nab", weights, centred, centred)
    expected = np.einsum("na,ab->nab", policy.noise.variance * policy.scale_at(STATE) ** 2, np.eye(2))
    np.testing.assert_allclose(covariance, expected, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws__are_close_to_the_smooth_expectation(family):
    policy = family([0.5, 0.0, 1.0], 0.3, 0.6)
    actions, weights = policy.draws(STATE, 32)
    u = (np.arange(200_000) + 0.5) / 200_000
    exact = np.cos(policy.location(STATE) + 0.6 * policy.noise.quantile(u)).mean(axis=1)
    np.testing.assert_allclose(weights @ np.cos(actions[:, :, 0]), exact, atol=1e-4)


@given(split=st.integers(0, 3), n_draws=st.integers(1, 12))
def test_draws__do_not_depend_on_chunking(split, n_draws):
    policy = two_dimensional(Logistic)
    whole, _ = policy.draws(STATE, n_draws)
    parts = [policy.draws(part, n_draws)[0] for part in (STATE[:split], STATE[split:])]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-14)


def test_draws__sobol_points_are_the_same_for_every_caller():
    first, weights = Gaussian(np.zeros((1, 3))).draws(np.zeros((1, 1)), 6, np.random.default_rng(1))
    second, _ = Gaussian(np.zeros((1, 3))).draws(np.zeros((1, 1)), 6, None)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(weights, 1 / 6)
    assert len(np.unique(first[:, 0, 0])) == 6


def test_draws__keep_single_precision():
    assert Gaussian(np.ones(3)).draws(STATE.astype(np.float32), 4)[0].dtype == np.float32
    assert Gaussian(np.ones(3)).draws(STATE.astype(int), 4)[0].dtype == np.float64


@pytest.mark.parametrize("family", FAMILIES)
def test_sample__has_the_moments_of_the_policy_and_follows_the_seed(family):
    policy = two_dimensional(family, scale_weights=[[0.1, -0.2], [0.3, 0.0], [0.0, 0.5]])
    state = np.repeat(STATE[:1], 100_000, axis=0)
    actions = policy.sample(state, np.random.default_rng(3))
    scale = policy.scale_at(STATE[:1])[0] * np.sqrt(policy.noise.variance)
    np.testing.assert_allclose(actions.mean(axis=0), policy.location(STATE[:1])[0], atol=0.02)
    np.testing.assert_allclose(np.cov(actions.T), np.diag(scale**2), atol=0.05)
    np.testing.assert_array_equal(actions, policy.sample(state, np.random.default_rng(3)))


def test_log_density__is_that_of_the_state_dependent_gaussian():
    policy = Gaussian([0.1, 0.2, -0.3], bias=0.05, scale=np.exp(-1.0), scale_weights=[0.3, 0.0, 0.1])
    action = np.array([[0.1], [-0.4], [0.9]])
    mean = STATE @ [0.1, 0.2, -0.3] + 0.05
    sigma = np.exp(STATE @ [0.3, 0.0, 0.1] - 1.0)  # exp(θ_σᵀs + ε_σ)
    expected = -0.5 * ((action[:, 0] - mean) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(policy.log_density(STATE, action), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_density__of_two_actions_integrates_to_one(family):
    policy = two_dimensional(family)
    edge = 60.0 if family is Logistic else 12.0
    axis = np.linspace(-edge, edge, 601)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    density = np.exp(policy.log_density(np.repeat(STATE[:1], len(grid), axis=0), grid))
    assert density.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=0.03)


def test_log_density__of_uniform_is_minus_infinity_outside():
    policy = Uniform([0.0], half_width=2.0)
    values = policy.log_density(np.zeros((3, 1)), np.array([[1.9], [2.1], [-3.0]]))
    np.testing.assert_array_equal(values, [-np.log(4.0), -np.inf, -np.inf])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("slope", [None, np.full((3, 2), 0.1)])
def test_round_trips__keep_the_policy(family, slope):
    policy = two_dimensional(family, slope)
    assert isinstance(policy, Policy)
    for copy in (
        policies.from_dict(json.loads(json.dumps(policy.to_dict()))),
        pickle.loads(pickle.dumps(policy)),
    ):
        assert copy == policy
        assert type(copy) is family
        with pytest.raises(ValueError, match="read-only"):
            copy.weights[0, 0] = 1.0
    assert eval(repr(policy)) == policy


def test_equality__separates_families_and_numbers():
    assert Gaussian([1.0]) == Gaussian([[1.0]], 0.0, [1.0])
    assert Gaussian([1.0]) != Logistic([1.0])
    assert Gaussian([1.0]) != Gaussian([1.0], scale=2.0)
    assert Gaussian([1.0]) != Gaussian([1.0], scale_weights=[0.0])


def test_policies__cannot_be_changed():
    weights = np.ones(2)
    policy = Gaussian(weights)
    weights[0] = 5.0
    assert policy.weights[0, 0] == 1.0
    with pytest.raises(AttributeError, match="another scale"):
        policy.scale = 2.0
    with pytest.raises(AttributeError, match="another action_dim"):
        Function(normal).action_dim = 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"weights": np.ones((2, 2, 2))},
            r"weights has shape \(2, 2, 2\), expected \(state_dim, action_dim\)",
        ),
        ({"weights": [np.nan]}, "weights must be finite"),
        ({"weights": [1.0], "bias": [1.0, 2.0]}, r"bias has shape \(2,\), expected a number or \(1,\)"),
        ({"weights": [1.0], "scale": 0.0}, "scale must be positive, got"),
        ({"weights": [1.0], "scale": np.inf}, "scale must be finite"),
        ({"weights": [1.0], "scale_weights": [1.0, 2.0]}, r"has shape \(2, 1\), expected \(1, 1\)"),
    ],
)
def test_parameters__that_define_no_policy_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(**arguments)


def test_parameters__of_uniform_are_named_half_width():
    with pytest.raises(ValueError, match="half_width must be positive"):
        Uniform([1.0], half_width=-1.0)
    np.testing.assert_array_equal(Uniform(np.ones((1, 2)), half_width=0.5).half_width, [0.5, 0.5])


def test_state__of_another_dimension_is_refused():
    policy = Gaussian(np.ones(3))
    for call in (lambda s: policy.draws(s, 3), lambda s: policy.sample(s, np.random.default_rng())):
        with pytest.raises(ValueError, match=r"state has shape \(4, 2\), expected \(n, 3\)"):
            call(np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"action has shape \(3,\), expected \(3, 1\)"):
        policy.log_density(STATE, np.zeros(3))


@pytest.mark.parametrize("policy", [Gaussian(np.ones(3)), Function(lambda s, rng: s)])
def test_draws__need_at_least_one(policy):
    with pytest.raises(ValueError, match="integer ≥ 1, got 0"):
        policy.draws(STATE, 0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"family": "cauchy", "weights": [1.0]}, "family 'cauchy' is not known; expected one of gaussian"),
        ({"family": "uniform", "weights": [1.0], "scale": 1.0}, "found parameters .*'scale'"),
        ({"family": "gaussian"}, "expected weights"),
    ],
)
def test_from_dict__names_what_is_wrong(values, message):
    with pytest.raises(ValueError, match=message):
        policies.from_dict(values)


def normal(state, rng):
    return state[:, :1] + rng.standard_normal((len(state), 1))


def test_function__draws_follow_the_generator_with_equal_weights():
    policy = Function(normal, action_dim=1)
    assert isinstance(policy, Policy)
    assert not policy.deterministic_draws
    actions, weights = policy.draws(STATE, 5, np.random.default_rng(2))
    assert actions.shape == (5, 3, 1)
    np.testing.assert_allclose(weights, 0.2)
    rng = np.random.default_rng(2)
    np.testing.assert_array_equal(actions, np.stack([normal(STATE, rng) for _ in range(5)]))


def test_function__needs_a_generator():
    with pytest.raises(ValueError, match="pass rng"):
        Function(normal).draws(STATE, 5)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda s, rng: s[:, 0], r"returned actions of shape \(3,\), expected \(3, 1\).*values\[:, None\]"),
        (lambda s, rng: s[:2, :1], r"returned actions of shape \(2, 1\), expected \(3, 1\)"),
        (lambda s, rng: s, r"returned actions of shape \(3, 3\), expected \(3, 1\)"),
        (
            lambda s, rng: np.where(s[:, :1] > 1, np.nan, 0.0),
            r"not finite for 1 of 3 states, the first for \[1.2, 0.1, -0.4\]",
        ),
    ],
)
def test_function__output_is_checked(sample, message):
    with pytest.raises(ValueError, match=message):
        Function(sample, action_dim=1).sample(STATE, np.random.default_rng(0))


def test_function__density_is_optional_and_checked():
    plain = Function(normal)
    assert not plain.has_log_density
    with pytest.raises(ValueError, match="no log_density was given"):
        plain.log_density(STATE, STATE[:, :1])
    reference = Gaussian([1.0, 0.0, 0.0])
    full = Function(normal, log_density=reference.log_density)
    np.testing.assert_allclose(
        full.log_density(STATE, STATE[:, :1]), reference.log_density(STATE, STATE[:, :1])
    )
    with pytest.raises(
        ValueError, match=r"log_density returned shape \(3, 1\) with 0 NaN, expected shape \(3,\)"
    ):
        Function(normal, lambda s, a: a).log_density(STATE, STATE[:, :1])


def test_function__refuses_what_it_cannot_be():
    with pytest.raises(ValueError, match="must be callable"):
        Function(3.0)
    with pytest.raises(ValueError, match="cannot be written as numbers"):
        Function(normal).to_dict()


def test_function__compares_prints_and_pickles_by_its_callables():
    policy = Function(normal, action_dim=1)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy != Function(normal)
    assert repr(policy) == "Function(normal)"


class Tensor:
    """What a tensor of PyTorch must do, and nothing else: ``numpy.asarray`` of one with a gradient fails."""

    def __init__(self, values):
        self.values = values

    def __array__(self, *_, **__):
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values


def test_function__takes_tensors():
    state = np.arange(6.0).reshape(-1, 2)
    policy = policies.Function(lambda s, rng: Tensor(s[:, :1].astype(np.float32)))
    np.testing.assert_array_equal(policy.sample(state, np.random.default_rng(0)), state[:, :1])


class Algo:
    """What a policy of d3rlpy must do."""

    def predict(self, state):
        return np.tanh(state[:, :1]).astype(np.float32)


def test_regressor__is_the_gaussian_of_a_linear_one():
    rng = np.random.default_rng(0)
    state, weights = rng.normal(size=(40, 3)), np.array([[1.0, 0.2], [-2.0, 0.0], [0.5, 1.0]])
    estimator = LinearRegression().fit(state, state @ weights + [0.3, -1.0])
    found = policies.Regressor(estimator, scale=[0.5, 2.0])
    wanted = policies.Gaussian(weights, bias=[0.3, -1.0], scale=[0.5, 2.0])
    for left, right in zip(found.draws(state, 9), wanted.draws(state, 9), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-12)
    action = wanted.sample(state, np.random.default_rng(1))
    np.testing.assert_allclose(found.sample(state, np.random.default_rng(1)), action)
    np.testing.assert_allclose(found.log_density(state, action), wanted.log_density(state, action))
    copy = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(copy.draws(state, 9)[0], found.draws(state, 9)[0])
    with pytest.raises(AttributeError, match="build a new one"):
        copy.scale = 3
    assert isinstance(found, policies.Policy)


def test_regressor__takes_anything_that_predicts():
    policy = policies.Regressor(Algo(), scale=0.2, noise="uniform")
    state = np.random.default_rng(0).normal(size=(30, 2))
    assert np.abs(policy.sample(state, np.random.default_rng(0)) - np.tanh(state[:, :1])).max() <= 0.2
    assert policies.Regressor(Algo(), scale=0.2, action_dim=3).action_dim == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: policies.Regressor(3, scale=1.0), "estimator must have predict"),
        (lambda: policies.Regressor(Algo, scale=1.0), "estimator must have predict"),
        (lambda: policies.Regressor(Algo(), scale=0.0), "scale must be positive"),
        (lambda: policies.Regressor(Algo(), scale=1.0, noise="cauchy"), "noise must be 'gaussian' or"),
        (lambda: policies.Regressor(Algo(), [1.0, 1.0]).location(np.zeros((4, 2))), "predicts shape .4, 1."),
        (lambda: policies.Regressor(Algo(), 1.0).to_dict(), "cannot be written as numbers"),
    ],
)
def test_regressor__refuses_what_defines_no_policy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_fit__with_a_regressor_is_that_with_its_numbers(small_store, kernels):
    fixed = {"input_kernel": kernels[0], "return_kernel": kernels[1], "ridge_gamma": 1e-3}
    sizes = {"n_atoms": 8, "n_basis": 8, "n_landmarks": 10, "n_features": 16, "n_blocks": 2}
    state = small_store.transitions().inputs[:, :2]
    estimator = LinearRegression().fit(state, state @ [0.2, -0.1] + 0.1)
    found, wanted = (
        KEDRL(0.9, centring="none", **fixed, **sizes).fit(small_store, policy, progress="none")
        for policy in (
            policies.Regressor(estimator, scale=0.3),
            policies.Gaussian([0.2, -0.1], bias=0.1, scale=0.3),
        )
    )
    np.testing.assert_array_equal(found.grid_, wanted.grid_)
    asked = {"state": state[:5], "action": np.zeros((5, 1)), "at": wanted.grid_}
    values = wanted.embed(**asked)
    np.testing.assert_allclose(found.embed(**asked), values, rtol=0, atol=1e-8 * np.abs(values).max())


def test_rehearsal__reports_actions_beside_the_logged_ones(small_store):
    logged = small_store.transitions().next_action
    near = rehearse(policies.Gaussian([0.3, 0.0], scale=0.3), small_store)
    assert near.findings == []
    assert near.overlap.logged_mean == pytest.approx(logged.mean(axis=0))
    half = rehearse(policies.Gaussian([0.0, 0.0], bias=logged.max() + 0.5, scale=0.1), small_store)
    assert re.search(
        "100% of the policy's actions lie outside .* action 0, .*check the units", half.findings[0]
    )
    nowhere = policies.Function(lambda state, rng: np.where(state[:, :1] > 1, np.nan, 0.0))
    with pytest.raises(PolicyError, match=r"successors of rows 0 to .* that are not finite"):
        rehearse(nowhere, small_store)


@pytest.mark.slow
def test_fit__warns_of_a_policy_far_from_the_data(small_store, kernels):
    far = policies.Gaussian([0.0, 0.0], bias=small_store.statistics["action"]["max"][0] + 0.5, scale=0.1)
    model = KEDRL(
        0.9, input_kernel=kernels[0], return_kernel=kernels[1], n_atoms=8, n_basis=8, n_landmarks=10,
        n_features=16, n_blocks=2, ridge_gamma=1e-3,
    )  # fmt: skip
    with pytest.warns(PolicyWarning, match="lie outside the range of the logged action 0"):
        model.fit(small_store, far, progress="none")
