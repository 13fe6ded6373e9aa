"""The whole separated construction against the literal formulas of tests/dense.py."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import KEDRL, ULSIF, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes.separated_objective import BellmanObjective
from kedrl_dask.estimator.fit.conditioning import choose_conditioning
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.criterion.separated import (
    Penalties,
    bellman_residual,
    operators,
    product,
    value_and_gradient,
)
from kedrl_dask.numerics.kernels.spectral import as_complex
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW
from tests import dense
from tests.conftest import make_episodes

DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS = 0.6, 1e-3, 1e-4, 0.7


def exact_settings(store, kernels):
    """Every input is a landmark, so that nothing is approximate but the features."""
    rng = np.random.default_rng(3)
    return {
        "input_kernel": kernels[0], "return_kernel": kernels[1], "n_landmarks": 10_000,
        "landmark_threshold": 0.0, "n_basis": 6, "points": "random", "n_features": 12, "n_draws": 3,
        "ridge_gamma": RIDGE_GAMMA, "ridge_b": RIDGE_B, "mass_penalty": MASS,
        "grid": rng.standard_normal((5, store.reward_dim)), "n_blocks": 3, "chunk_points": 7,
        "solver": PCG(tolerance=1e-13), "precision": "double",
    }  # fmt: skip


def fit(store, policy, kernels, **settings):
    model = KEDRL(DISCOUNT, **({"centring": "none"} | exact_settings(store, kernels) | settings))
    return model.fit(store, policy, executor=ThreadExecutor(2), progress="none")


def literal(model, store, policy, continuation="sampled", eta=None, negative=0.0, points=None, weights=None):
    """The criterion of the same fit, written out; the conditioning points are all inputs unless given."""
    t = store.transitions()
    kernel, features = (
        model.input_kernel_,
        dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma),
    )
    if continuation == "sampled":
        kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    else:
        successor = np.hstack([t.next_state, t.next_action])
        kappa = dense.continuation_ratio(kernel, model.basis_, successor, t.terminal, eta)
    points = t.inputs if points is None else points
    weights = np.full(len(points), 1 / len(points)) if weights is None else weights
    return dense.Criterion(
        kernel, features, t.inputs, t.reward, t.terminal, kappa, model.basis_, model.grid_, points, weights,
        DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS, negative=negative,
    )  # fmt: skip


def close(actual, expected, tolerance=1e-8):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(expected)


@pytest.fixture(scope="module")
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture(scope="module")
def kernels():
    return Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)


def make_store(path, n_terminated):
    return TransitionStore.from_arrays(
        path / "store", **make_episodes(n_episodes=4, length=4, n_terminated=n_terminated)
    )


@pytest.fixture(scope="module", params=["truncated", "terminated"])
def store(request, tmp_path_factory):
    """Few transitions, some of which are terminal, or none."""
    return make_store(tmp_path_factory.mktemp("data"), 0 if request.param == "truncated" else 2)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The one with terminal transitions, where the others would tell nothing new."""
    return make_store(tmp_path_factory.mktemp("ended"), 2)


@pytest.fixture(scope="module")
def model(store, policy, kernels):
    """A fit for all who only ask it."""
    return fit(store, policy, kernels)


@pytest.fixture(scope="module")
def oracle(model, store, policy):
    return literal(model, store, policy)


def test_operators__all_inputs_are_landmarks(store, model, oracle):
    chunk, mass = model.operators_(store.transitions().inputs)
    close(chunk.basis, oracle.k)
    close(chunk.continuation, oracle.phi)
    close(mass, [g.sum() for g in oracle.gamma])
    close(model.return_space_.gram, oracle.grid_gram)
    h, g = operators(model.return_space_, chunk.reward_waves)
    close(h, oracle.h)
    close(g, oracle.g)


def test_conditional_weights__any_response(store, model):
    """Γ itself: the regression reproduces Γ(x)ᵀy for the reward's characteristic function at new inputs."""
    t = store.transitions()
    new = t.inputs[:4] + 0.3
    phase = t.reward @ model.frequencies_.T
    gamma = np.array([dense.conditional_weights(model.input_kernel_, t.inputs, x, RIDGE_GAMMA) for x in new])
    chunk, _ = model.operators_(new)
    close(as_complex(chunk.reward_waves), gamma @ np.exp(1j * phase))


def test_residual_objective_gradient_product__random_coefficients(store, model, oracle):
    inputs = store.transitions().inputs
    chunk, _ = model.operators_(inputs)
    b = np.random.default_rng(1).standard_normal(model.coefficients_.shape)
    space, penalties = model.return_space_, Penalties(MASS)
    close(bellman_residual(chunk, space, b), [oracle.residual(q, b) for q in range(len(inputs))])
    value, gradient = value_and_gradient(chunk, space, penalties, b)
    ridge = RIDGE_B * oracle.basis_gram @ b
    close(value + np.vdot(b, ridge), oracle.value(b))
    close(gradient + 2 * ridge, oracle.gradient(b))
    image = product(chunk, space, penalties, b) + 2 * ridge
    close(image, oracle.gradient(b) - oracle.gradient(0 * b))


def test_minimiser__pcg(model, oracle):
    expected = oracle.minimiser(model.coefficients_.shape)
    close(model.coefficients_, expected)
    assert model.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    assert model.solution_.certificate <= 1e-13


def some_points(n_points=9):
    """Conditioning points that no transition has, and weights that are far from equal."""
    rng = np.random.default_rng(11)
    return rng.standard_normal((n_points, 3)), np.geomspace(0.02, 2.0, n_points)


@pytest.fixture(scope="module")
def weighted(ended, policy, kernels):
    """A fit to such points; of the nine, chunks hold four."""
    return fit(ended, policy, kernels, conditioning=some_points(), chunk_points=4)


def test_minimiser__given_points_and_weights(weighted, ended, policy):
    points, weights = some_points()
    oracle = literal(weighted, ended, policy, points=points, weights=weights / weights.sum())
    expected = oracle.minimiser(weighted.coefficients_.shape)
    close(weighted.coefficients_, expected)
    assert weighted.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    assert weighted.diagnostics_["sizes"]["conditioning"] == len(points)


def test_minimiser__given_points_without_weights(weighted, ended, policy, kernels):
    points, _ = some_points()
    model = fit(ended, policy, kernels, conditioning=points)
    close(
        model.coefficients_, literal(model, ended, policy, points=points).minimiser(model.coefficients_.shape)
    )
    assert np.abs(weighted.coefficients_ - model.coefficients_).max() > 1e-3


@pytest.mark.filterwarnings("ignore:coefficients sum to:kedrl_dask.utils.exceptions.NumericalWarning")
def test_minimiser__one_point(ended, policy, kernels):
    points, _ = some_points()
    model = fit(ended, policy, kernels, conditioning=(points[:1], [3.0]))
    oracle = literal(model, ended, policy, points=points[:1])
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_minimiser__kmeans_conditioning(ended, policy, kernels):
    """The centres that were stored, with their shares, minimise the literal criterion."""
    model = fit(ended, policy, kernels, conditioning="kmeans", n_conditioning=5)
    points, weights = choose_conditioning(Settings(**model.get_params()), ended, kernels[0])
    assert np.ptp(weights) > 0.05
    oracle = literal(model, ended, policy, points=points, weights=weights)
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_minimiser__a_point_counts_as_two_of_half_its_weight(weighted, ended, policy, kernels):
    points, weights = some_points()
    twice = (np.repeat(points, 2, axis=0), np.repeat(weights / 2, 2))
    close(fit(ended, policy, kernels, conditioning=twice).coefficients_, weighted.coefficients_)


@pytest.fixture
def capture(monkeypatch):
    """Problems as the solver was given them; their stores are kept in caches."""
    captured = []

    class Captured(BellmanObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.arguments = arguments
            captured.append(self)

    monkeypatch.setattr("kedrl_dask.estimator.fit.separated.BellmanObjective", Captured)
    return captured


@pytest.mark.filterwarnings("ignore:coefficients sum to:kedrl_dask.utils.exceptions.NumericalWarning")
def test_batch_gradient__mean_over_batches_is_the_gradient(store, policy, kernels, capture):
    """With weights that are not equal, and batches of unequal total weight."""
    points, weights = some_points()
    settings = {"conditioning": (points, weights), "chunk_points": 4, "solver": AdamW(n_iterations=1)}
    model = fit(store, policy, kernels, **settings)
    problem = capture[0]
    c = np.random.default_rng(1).standard_normal(problem.shape)
    batches = np.random.default_rng(2).permutation(len(points)).reshape(3, 3)
    gradients = [problem.batch_gradient(batch, c) for batch in batches]
    close(np.mean(gradients, axis=0), problem.value_and_gradient(c)[1])
    oracle = literal(model, store, policy, points=points, weights=weights / weights.sum())
    # B = TC.
    expected = problem.whitening.T @ oracle.gradient(problem.whitening @ c)
    close(problem.value_and_gradient(c)[1], expected)


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_residency__does_not_matter(precision, store, policy, kernels, capture, tmp_path):
    """Chunks in memory, read for every product, or computed for every product."""
    settings = {"precision": precision, "solver": PCG()}
    model = KEDRL(DISCOUNT, **({"centring": "none"} | exact_settings(store, kernels) | settings))
    model.fit(store, policy, executor=ThreadExecutor(2), cache=tmp_path / "cache", progress="none")
    resident = capture[0]
    executor, points, groups, _, *rest = resident.arguments
    c = np.random.default_rng(1).standard_normal(resident.shape)
    for residency in ("stored", "recomputed"):
        other = BellmanObjective(executor, points, groups, residency, *rest)
        tolerance = 1e-12 if precision == "double" or residency == "stored" else 1e-5
        close(other.product(c), resident.product(c), tolerance)
        close(other.value_and_gradient(c)[1], resident.value_and_gradient(c)[1], tolerance)


def test_bellman_risk__new_inputs(store, policy, model):
    """eq:generalization_metric, with operators of the training sample and the reward shift."""
    new = store.transitions().inputs[::4] + 0.2
    oracle = literal(model, store, policy, points=new)
    expected = [oracle.residual(q, model.coefficients_) for q in range(len(new))]
    close(model.bellman_risk(new[:, :2], new[:, 2:]), expected, 1e-7)


def test_minimiser__negative_penalty(store, policy, kernels):
    model = fit(store, policy, kernels, negative_penalty=0.5, solver=LBFGS(tolerance=1e-7))
    oracle = literal(model, store, policy, negative=0.5)
    assert model.solution_.result.ok
    assert model.solution_.value == pytest.approx(oracle.value(model.coefficients_), rel=1e-9)
    assert np.abs(oracle.gradient(model.coefficients_)).max() < 1e-6
    assert (model.weights(*np.split(store.transitions().inputs, [2], axis=1)) < 0).any()


def test_minimiser__ratio_continuation(store, policy, kernels):
    options = ULSIF(n_centers=7, ridge=0.05)
    model = fit(store, policy, kernels, continuation="ratio", ratio=options)
    t = store.transitions()
    # The ratio as the fit made it: its own centres, the literal algorithm.
    eta = _literal_ratio(model, store, policy, options)
    oracle = literal(model, store, policy, "ratio", eta)
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))
    goes_on = eta[~t.terminal]
    ratio = model.diagnostics_["ratio"]
    assert ratio["effective_sample_size"] == pytest.approx(
        goes_on.sum() ** 2 / (goes_on**2).sum() / goes_on.size
    )
    assert (ratio["min"], ratio["max"]) == pytest.approx((goes_on.min(), goes_on.max()))


def _literal_ratio(model, store, policy, options):
    t = store.transitions()
    goes_on = ~t.terminal
    logged = np.hstack([t.next_state, t.next_action])
    actions, weights = policy.draws(t.next_state[goes_on], 3)
    numerator = np.concatenate([np.hstack([t.next_state[goes_on], a]) for a in actions])
    kernel, centers = model.input_kernel_, model.ratio_.centers
    at_denominator = dense.gram(kernel, centers, logged[goes_on])
    second = at_denominator @ at_denominator.T / goes_on.sum()
    mean = dense.gram(kernel, centers, numerator) @ np.repeat(weights, goes_on.sum()) / goes_on.sum()
    alpha = np.maximum(np.linalg.solve(second + options.ridge * np.eye(len(centers)), mean), 0)
    alpha /= np.mean(at_denominator.T @ alpha)
    return np.where(goes_on, alpha @ dense.gram(kernel, centers, logged), 0.0)


@pytest.mark.slow
def test_ratio__clipped_and_scaled_to_mean_one(store, policy, kernels):
    free = fit(store, policy, kernels, continuation="ratio", ratio=ULSIF(n_centers=7, ridge=1e-4))
    bound = 1.05
    assert free.diagnostics_["ratio"]["max"] > bound
    clipped = fit(
        store, policy, kernels, continuation="ratio", ratio=ULSIF(n_centers=7, ridge=1e-4, clip=bound)
    )
    t = store.transitions()
    goes_on = ~t.terminal
    raw = free.ratio_(np.hstack([t.next_state, t.next_action]))[goes_on]
    expected = np.minimum(raw, bound)
    expected *= goes_on.sum() / expected.sum()
    found = clipped.ratio_(np.hstack([t.next_state, t.next_action]))[goes_on]
    close(found, expected)
    eta = np.zeros(len(t))
    eta[goes_on] = expected
    oracle = literal(clipped, store, policy, "ratio", eta)
    close(clipped.coefficients_, oracle.minimiser(clipped.coefficients_.shape))


def test_block_matrix__positive_semidefinite(store, model):
    """[[K_Z, −H], [−Hᵀ, G]] ⪰ 0 at every point: the criterion is convex (app:population_finite_criterion)."""
    chunk, _ = model.operators_(store.transitions().inputs)
    space = model.return_space_
    for h, g in zip(*operators(space, chunk.reward_waves), strict=True):
        block = np.block([[space.gram, -h], [-h.T, g]])
        assert np.linalg.eigvalsh(block).min() > -1e-12


def test_zero__minimises_without_mass_term(small_store, policy, kernels):
    model = fit(small_store, policy, kernels, mass_penalty=0.0)
    assert np.abs(model.coefficients_).max() == 0
    assert model.solution_.value == 0


def test_embed__exact_return_kernel(model):
    at = np.array([[0.1, -0.2], [1.0, 0.4], [30.0, 30.0]])
    state, action = np.array([[0.3, 0.2]]), np.array([[-0.4]])
    k = dense.gram(model.input_kernel_, np.hstack([state, action]), model.basis_)
    omega = model.coefficients_.T @ k[0]
    close(model.weights(state, action)[0], omega)
    close(model.embed(state, action, at=at)[0], omega @ dense.gram(model.return_kernel_, model.grid_, at))
    close(model.embed(state, action, at=at[None]), model.embed(state, action, at=at))


def test_features__approach_the_exact_criterion(small_store, policy):
    """With many frequencies the fitted residual is that of the exact Matérn return kernel."""
    kernels = Matern(2.5, 1.5), Matern(5.5, 1.2)
    model = fit(small_store, policy, kernels, n_features=4096)
    t = small_store.transitions()

    class Exact:
        def __call__(self, z, other):
            return dense.matern(5.5, 1.2, 1.0, z, other)

        def gram(self, zs, others):
            return np.asarray(kernels[1](np.asarray(zs), np.asarray(others)))

    x = t.inputs[3]
    gamma = dense.conditional_weights(model.input_kernel_, t.inputs, x, RIDGE_GAMMA)
    chunk, _ = model.operators_(x[None])
    h, g = operators(model.return_space_, chunk.reward_waves)
    close(h[0], dense.h_matrix(Exact(), model.grid_, DISCOUNT, t.reward, gamma), 0.01)
    close(g[0], dense.g_matrix(Exact(), model.grid_, DISCOUNT, t.reward, gamma), 0.01)
