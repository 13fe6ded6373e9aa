"""Replicates of a fit: first-order changes of the literal fit, and returns of resampled models."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import KEDRL, ULSIF, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.bootstrap import Draws
from kedrl_dask.numerics.solvers import LBFGS
from tests import dense
from tests.conftest import make_episodes
from tests.test_against_dense import DISCOUNT, MASS, RIDGE_B, RIDGE_GAMMA, close, exact_settings, some_points


@pytest.fixture(scope="module")
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture(scope="module")
def kernels():
    return Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)


def make_store(path, n_terminated):
    data = make_episodes(n_episodes=6, length=5, n_terminated=n_terminated)
    return TransitionStore.from_arrays(path, **data)


@pytest.fixture(scope="module", params=["truncated", "terminated"])
def any_store(request, tmp_path_factory):
    """Where rows count for what is tested."""
    return make_store(tmp_path_factory.mktemp("any") / "store", 0 if request.param == "truncated" else 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("data") / "store", 3)


@pytest.fixture(scope="module")
def model(store, policy, kernels):
    """A fit that no test changes."""
    return fitted(store, policy, kernels)


def fitted(store, policy, kernels, **settings):
    given = exact_settings(store, kernels) | {"n_blocks": 6, "conditioning": some_points()} | settings
    return KEDRL(DISCOUNT, centring="none", **given).fit(
        store, policy, executor=ThreadExecutor(2), progress="none"
    )


def bootstrap(model, store, policy, **options):
    return model.bootstrap(store, policy, executor=ThreadExecutor(2), progress="none", **options)


def literal(model, store, policy, counts):
    """The minimiser of the literal criterion on episodes repeated as often as they were drawn."""
    t, ratio = store.transitions(), model.ratio_
    episode = np.unique(t.episode, return_inverse=True)[1]
    if ratio is None:
        kappa = dense.continuation_sampled(
            model.input_kernel_, model.basis_, t.next_state, t.terminal, policy, 3
        )
    else:
        # The density ratio is that of the fit, scaled to the mean of the episodes that were drawn.
        successor = np.hstack([t.next_state, t.next_action])
        eta, drawn = ratio(successor), counts[episode] * ~t.terminal
        eta = eta * drawn.sum() / (drawn @ eta)
        kappa = dense.continuation_ratio(model.input_kernel_, model.basis_, successor, t.terminal, eta)
    kind = dense.PairedCriterion if model.construction_ == "paired" else dense.Criterion
    features = dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma)
    points, weights = some_points()
    criterion = kind(
        model.input_kernel_, features, t.inputs, t.reward, t.terminal, kappa, model.basis_, model.grid_,
        points, weights / weights.sum(), DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS, counts=counts[episode],
    )  # fmt: skip
    return criterion.minimiser(model.coefficients_.shape)


def literal_influence(minimiser, n_blocks, step=1e-3):
    """Derivatives of the minimiser by the weight of each block."""
    changes = step * np.eye(n_blocks)
    return np.stack([(minimiser(1 + change) - minimiser(1 - change)) / (2 * step) for change in changes])


def check_replicates(found, model, influence):
    """They are the fit and its first-order changes; differences of weights leave a thousandth."""
    assert found.counts.shape == (len(found), len(influence))
    assert (found.counts.sum(axis=1) == len(influence)).all()
    expected = np.tensordot(found.counts - 1, influence, 1)
    changed = found.coefficients - model.coefficients_
    assert np.abs(changed - expected).max() < 5e-3 * np.abs(expected).max()


@pytest.fixture
def exactly(monkeypatch):
    monkeypatch.setattr("kedrl_dask.estimator.influence.TOLERANCE", 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("construction", ["separated", "paired"])
@pytest.mark.parametrize("continuation", ["sampled", "ratio"])
def test_replicates__are_first_order_changes_of_the_literal_fit(
    any_store, policy, kernels, exactly, construction, continuation
):
    given = {"construction": construction, "continuation": continuation}
    if continuation == "ratio":
        given["ratio"] = ULSIF(n_centers=8, ridge=1e-2, clip=1.5)
    model = fitted(any_store, policy, kernels, **given)
    found = bootstrap(model, any_store, policy, n_replicates=4)
    influence = literal_influence(lambda counts: literal(model, any_store, policy, counts), 6)
    check_replicates(found, model, influence)


@pytest.mark.slow
def test_replicates__matrix_free(store, policy, kernels, exactly):
    given = {"construction": "paired", "paired_form": "contracted"}
    contracted = bootstrap(fitted(store, policy, kernels, **given), store, policy, n_replicates=3)
    given["paired_form"] = "matrix-free"
    found = bootstrap(fitted(store, policy, kernels, **given), store, policy, n_replicates=3)
    close(found.coefficients, contracted.coefficients, 1e-6)


@pytest.mark.slow
def test_bootstrap__needs_no_pass_where_the_fit_left_its_sums(store, policy, kernels, tmp_path, monkeypatch):
    model = KEDRL(DISCOUNT, **({"centring": "none"} | exact_settings(store, kernels) | {"n_blocks": 6}))
    model.fit(store, policy, executor=ThreadExecutor(2), cache=tmp_path / "cache", progress="none")
    expected = bootstrap(model, store, policy, n_replicates=3)
    monkeypatch.setattr(
        "kedrl_dask.engine.passes.streaming_pass.accumulate", lambda *_: pytest.fail("the pass was repeated")
    )
    again = bootstrap(model, store, policy, n_replicates=3, cache=tmp_path / "cache")
    np.testing.assert_array_equal(again.coefficients, expected.coefficients)


@pytest.mark.slow
def test_apply__standard_errors_intervals_and_differences(model, store, policy, kernels):
    other_policy = policies.Gaussian(policy.weights, bias=0.5, scale=0.3)
    other = fitted(store, other_policy, kernels)
    first = bootstrap(model, store, policy, n_replicates=5)
    second = bootstrap(other, store, other_policy, n_replicates=5)
    inputs = np.zeros((2, 2)), np.zeros((2, 1))

    def embedding(fit):
        return fit.embed(*inputs, at=np.zeros((1, 2)))

    draws = first.apply(embedding)
    np.testing.assert_array_equal(draws.estimate, embedding(model))
    assert draws.values.shape == (5, 2, 1)
    assert (draws.standard_error > 0).all()
    wide, narrow = draws.interval(0.99), draws.interval(0.5)
    assert (wide.low < narrow.low).all()
    assert (wide.high > narrow.high).all()
    difference = draws - second.apply(embedding)
    np.testing.assert_allclose(difference.values, draws.values - second.apply(embedding).values)
    unlike = bootstrap(other, store, other_policy, n_replicates=5, random_state=1)
    with pytest.raises(ValueError, match="different draws of episodes"):
        draws - unlike.apply(embedding)


@pytest.mark.slow
def test_negative_penalty__replicates_too(store, policy, kernels, exactly):
    """Where no coefficient changes its sign the Hessian is that of the penalised criterion."""
    penalised = fitted(store, policy, kernels, negative_penalty=0.5, solver=LBFGS(1e-10))
    plain = fitted(store, policy, kernels)
    found, others = (bootstrap(model, store, policy, n_replicates=3) for model in (penalised, plain))
    assert np.isfinite(found.coefficients).all()
    changed = found.coefficients - penalised.coefficients_
    assert np.abs(changed - (others.coefficients - plain.coefficients_)).max() > 1e-6


def test_interval__methods():
    values = np.arange(101.0)[:, None]
    draws = Draws(np.array([60.0]), values, np.ones((101, 5)))
    assert draws.interval(0.9, "percentile").low[0] == pytest.approx(5)
    assert draws.interval(0.9, "basic").low[0] == pytest.approx(120 - 95)
    # Student's quantile with 100 degrees of freedom. Draws from five blocks vary by 4/5 too little.
    reach = 1.6602343 * np.sqrt(5 / 4) * values.std(ddof=1)
    np.testing.assert_allclose(draws.interval(0.9, bias=0), [[60 - reach], [60 + reach]], rtol=1e-6)
    with pytest.raises(ValueError, match="level must lie"):
        draws.interval(1.0)
    with pytest.raises(ValueError, match="method must be"):
        draws.interval(method="exact")
    with pytest.raises(ValueError, match="bias must be"):
        draws.interval(bias=-1.0)


@pytest.mark.parametrize("bias", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_interval__allows_for_a_bias(bias, level):
    """Of estimates that are off by so many standard errors, with standard errors from 30 replicates."""
    rng = np.random.default_rng(0)
    estimates = bias + rng.standard_normal(40_000)
    values = np.sqrt(19 / 20) * rng.standard_normal((30, 40_000))
    low, high = Draws(estimates, values, np.ones((30, 20))).interval(level, bias=bias)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(level, abs=0.012)


def test_standard_error__of_a_mean():
    """Blocks drawn with replacement: on average the usual standard error of a mean of twenty blocks."""
    rng = np.random.default_rng(0)
    found, expected = [], []
    for _ in range(200):
        blocks = rng.standard_normal(20)
        counts = rng.multinomial(20, np.full(20, 0.05), size=400)
        draws = Draws(np.array(blocks.mean()), counts @ blocks / 20, counts)
        found.append(draws.standard_error**2)
        expected.append(blocks.var(ddof=1) / 20)
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.01)


@pytest.mark.parametrize("n_replicates", [1, 2.5])
def test_bootstrap__refuses(model, store, policy, n_replicates):
    with pytest.raises(ValueError, match="n_replicates must be"):
        bootstrap(model, store, policy, n_replicates=n_replicates)


@pytest.mark.slow
def test_bootstrap__refuses_other_data_exact_operators_few_blocks(model, store, policy, kernels, tmp_path):
    other = TransitionStore.from_arrays(tmp_path / "other", **make_episodes(6, 6))
    with pytest.raises(ValueError, match="does not hold the transitions"):
        bootstrap(model, other, policy)
    with pytest.raises(ValueError, match="operators='features'"):
        bootstrap(fitted(store, policy, kernels, operators="exact"), store, policy)
    with pytest.raises(ValueError, match="too few to draw from"):
        bootstrap(fitted(store, policy, kernels, n_blocks=3), store, policy)
