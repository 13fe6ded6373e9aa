"""The paired construction, in both forms, against the literal N²m² evaluation of tests/dense.py."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from kedrl_dask import KEDRL, ULSIF, Matern, TransitionStore, policies
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes.paired_objective import PairedObjective
from kedrl_dask.engine.plan.partition import GROUP_ROWS
from kedrl_dask.estimator.fit.planning import checked_plan
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW
from tests import dense
from tests.conftest import make_episodes
from tests.test_against_dense import DISCOUNT, MASS, RIDGE_B, RIDGE_GAMMA, close, exact_settings, some_points

FORMS = ["contracted", "matrix-free"]


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param


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


def fit(store, policy, kernels, form, executor=None, cache=None, **settings):
    given = exact_settings(store, kernels) | {"construction": "paired", "paired_form": form} | settings
    model = KEDRL(DISCOUNT, centring="none", **given)
    return model.fit(store, policy, executor=executor or ThreadExecutor(2), cache=cache, progress="none")


def literal(model, store, policy, eta=None, negative=0.0, points=None, weights=None):
    """The paired criterion of the same fit, written out."""
    t = store.transitions()
    kernel = model.input_kernel_
    features = dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma)
    if eta is None:
        kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    else:
        successor = np.hstack([t.next_state, t.next_action])
        kappa = dense.continuation_ratio(kernel, model.basis_, successor, t.terminal, eta)
    points = t.inputs if points is None else points
    weights = np.full(len(points), 1 / len(points)) if weights is None else weights
    return dense.PairedCriterion(
        kernel, features, t.inputs, t.reward, t.terminal, kappa, model.basis_, model.grid_, points, weights,
        DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS, negative=negative,
    )  # fmt: skip


@contextmanager
def captured():
    """Problems as the solver was given them."""
    found = []

    class Captured(PairedObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.estimator.fit.paired.PairedObjective", Captured)
        yield found


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What the problems read stays here."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def fitted(store, policy, kernels, form, cache):
    """A fit and its problem, for all who only ask them."""
    with captured() as problems:
        model = fit(store, policy, kernels, form, cache=cache)
    return model, problems[0]


@pytest.fixture(scope="module")
def oracle(fitted, store, policy):
    return literal(fitted[0], store, policy)


def test_value_gradient_product__random_coefficients(fitted, oracle):
    problem = fitted[1]
    c = np.random.default_rng(1).standard_normal(problem.shape)
    b = problem.whitening @ c
    value, gradient = problem.value_and_gradient(c)
    assert value == pytest.approx(oracle.value(b), rel=1e-8)
    close(gradient, problem.whitening.T @ oracle.gradient(b))
    image = oracle.gradient(b) - oracle.gradient(0 * b)
    close(problem.product(c), problem.whitening.T @ image)


def test_minimiser(fitted, oracle, form):
    model = fitted[0]
    expected = oracle.minimiser(model.coefficients_.shape)
    close(model.coefficients_, expected)
    assert model.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    assert model.plan_.form == form


def test_minimiser__differs_from_the_separated_one(ended, policy, kernels, cache):
    separated = KEDRL(DISCOUNT, centring="none", **exact_settings(ended, kernels))
    separated.fit(ended, policy, executor=ThreadExecutor(2), cache=cache, progress="none")
    paired = fit(ended, policy, kernels, "contracted", cache=cache)
    difference = np.linalg.norm(paired.coefficients_ - separated.coefficients_)
    assert difference > 0.01 * np.linalg.norm(separated.coefficients_)


def test_minimiser__given_points_and_weights(ended, policy, kernels, form):
    points, weights = some_points()
    model = fit(ended, policy, kernels, form, conditioning=(points, weights), chunk_points=4)
    oracle = literal(model, ended, policy, points=points, weights=weights / weights.sum())
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_minimiser__ratio(ended, policy, kernels, form):
    options = ULSIF(n_centers=8, ridge=1e-2, clip=1.5)
    model = fit(ended, policy, kernels, form, continuation="ratio", ratio=options)
    t = ended.transitions()
    eta = model.ratio_(np.hstack([t.next_state, t.next_action]))
    oracle = literal(model, ended, policy, eta=eta)
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_bellman_risk__held_out_inputs(store, policy, fitted, tmp_path):
    model = fitted[0]
    new = store.transitions().inputs[:4] + 0.3
    oracle = literal(model, store, policy, points=new)
    state, action = new[:, : store.state_dim], new[:, store.state_dim :]
    expected = [oracle.residual(q, model.coefficients_) for q in range(len(new))]
    close(model.bellman_risk(state, action), expected)
    model.save(tmp_path / "model")
    close(KEDRL.load(tmp_path / "model").bellman_risk(state, action), expected)


def test_minimiser_and_batches__negative_penalty(store, policy, kernels, form, tmp_path):
    """The minimiser's gradient is zero, and the mean over batches of anything's gradient is the gradient."""
    settings = {"negative_penalty": 0.5, "solver": LBFGS(tolerance=1e-10), "chunk_points": 3}
    with captured() as problems:
        model = fit(store, policy, kernels, form, cache=tmp_path / "cache", **settings)
    oracle = literal(model, store, policy, negative=0.5)
    gradient = oracle.gradient(model.coefficients_)
    assert model.solution_.value == pytest.approx(oracle.value(model.coefficients_), rel=1e-8)
    assert np.linalg.norm(gradient) < 1e-6 * np.linalg.norm(oracle.gradient(0 * model.coefficients_))
    assert (model.coefficients_.T @ oracle.k.T).min() < 0
    problem = problems[0]
    c = np.random.default_rng(2).standard_normal(problem.shape)
    halves = np.array_split(np.arange(problem.n_points), 2)
    mean = sum(len(rows) / problem.n_points * problem.batch_gradient(rows, c) for rows in halves)
    close(mean, problem.value_and_gradient(c)[1])


def test_adamw__approaches_the_minimiser(ended, policy, kernels, cache):
    solver = AdamW(n_iterations=400, batch_size=8, learning_rate=0.05)
    model = fit(ended, policy, kernels, "contracted", cache=cache, solver=solver)
    best = fit(ended, policy, kernels, "contracted", cache=cache).solution_.value
    assert best <= model.solution_.value < 1.5 * best


#: Landmarks that are not all inputs.
SIZES = {
    "n_landmarks": 24, "n_basis": 10, "n_features": 16, "landmark_threshold": 1e-7, "precision": "mixed",
    "solver": PCG(), "n_conditioning": 400, "chunk_points": 150,
}  # fmt: skip


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """More transitions than a group of rows holds."""
    data = make_episodes(n_episodes=75, length=31, n_terminated=20)
    store = TransitionStore.from_arrays(tmp_path_factory.mktemp("larger") / "store", **data)
    assert store.n_transitions > GROUP_ROWS
    return store


@pytest.fixture(scope="module")
def mixed(larger, policy, kernels):
    """A fit in each form, on one thread."""
    return {form: fit(larger, policy, kernels, form, executor=ThreadExecutor(1), **SIZES) for form in FORMS}


@pytest.mark.slow
def test_forms__agree_in_mixed_precision(larger, mixed, policy, kernels):
    double = fit(larger, policy, kernels, "contracted", **(SIZES | {"precision": "double"}))
    for model in mixed.values():
        assert model.solution_.result.ok
        close(model.coefficients_, double.coefficients_, 1e-3)
    close(mixed["contracted"].coefficients_, mixed["matrix-free"].coefficients_, 1e-3)


@pytest.mark.slow
def test_results__do_not_depend_on_workers_or_links(larger, mixed, policy, kernels, monkeypatch):
    inputs = np.random.default_rng(0).standard_normal((20, 3))
    with local_cluster(2) as workers:
        spread = {form: fit(larger, policy, kernels, form, executor=workers, **SIZES) for form in FORMS}
    for form, one in mixed.items():
        found, expected = (m.embed(inputs[:, :2], inputs[:, 2:], at=one.grid_) for m in (spread[form], one))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
        three = fit(larger, policy, kernels, form, executor=ThreadExecutor(3), **SIZES)
        np.testing.assert_array_equal(three.coefficients_, one.coefficients_)
    monkeypatch.setattr("kedrl_dask.estimator.fit.paired.LINK_GROUPS", 1)
    for form, one in mixed.items():
        linked = fit(larger, policy, kernels, form, executor=ThreadExecutor(2), **SIZES)
        close(linked.coefficients_, one.coefficients_, 1e-6)


def test_cache__second_discount_needs_no_contraction(ended, policy, kernels, cache, monkeypatch):
    first = fit(ended, policy, kernels, "contracted", cache=cache)

    def refuse(*arguments):
        raise AssertionError("contracted again")

    monkeypatch.setattr("kedrl_dask.estimator.fit.paired.contract_link", refuse)
    other = KEDRL(0.5, **({"centring": "none"} | exact_settings(ended, kernels) | {"construction": "paired"}))
    other.set_params(paired_form="contracted")
    other.fit(ended, policy, executor=ThreadExecutor(2), cache=cache, progress="none")
    assert np.linalg.norm(other.coefficients_ - first.coefficients_) > 1e-3


def test_residency__stored_and_recomputed(store, policy, kernels, form, fitted, monkeypatch):
    resident = fitted[0]
    assert resident.plan_.residency == "resident"
    elsewhere = "stored" if form == "contracted" else "recomputed"

    def planned(*arguments):
        return replace(checked_plan(*arguments), residency=elsewhere)

    monkeypatch.setattr("kedrl_dask.estimator.fit.pipeline.checked_plan", planned)
    again = fit(store, policy, kernels, form)
    assert again.plan_.residency == elsewhere
    np.testing.assert_array_equal(again.coefficients_, resident.coefficients_)
