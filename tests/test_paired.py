"""The paired construction, in both forms, against the literal N²m² evaluation of tests/dense.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kedrl_dask import KEDRL, ULSIF, TransitionStore
from kedrl_dask.execute import ThreadExecutor, local_cluster
from kedrl_dask.paired_objective import PairedObjective
from kedrl_dask.planning import checked_plan
from kedrl_dask.solvers import LBFGS, PCG, AdamW
from tests import dense
from tests.conftest import make_episodes
from tests.test_against_dense import (
    DISCOUNT,
    MASS,
    RIDGE_B,
    RIDGE_GAMMA,
    close,
    exact_settings,
    some_points,
)

FORMS = ["contracted", "matrix-free"]


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture(params=["truncated", "terminated"])
def store(request, tmp_path):
    n_terminated = 0 if request.param == "truncated" else 3
    data = make_episodes(n_episodes=5, length=5, n_terminated=n_terminated)
    return TransitionStore.from_arrays(tmp_path / "store", **data)


def fit(store, policy, kernels, form, executor=None, cache=None, **settings):
    given = exact_settings(store, kernels) | {"construction": "paired", "paired_form": form} | settings
    model = KEDRL(DISCOUNT, **given)
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


@pytest.fixture
def capture(monkeypatch, tmp_path):
    """Problems as the solver was given them, and a cache in which what they read stays."""
    captured = []

    class Captured(PairedObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            captured.append(self)

    monkeypatch.setattr("kedrl_dask.pairing.PairedObjective", Captured)
    return captured


def test_value_gradient_product__random_coefficients(store, policy, kernels, form, capture, tmp_path):
    model = fit(store, policy, kernels, form, cache=tmp_path / "cache")
    oracle, problem = literal(model, store, policy), capture[0]
    c = np.random.default_rng(1).standard_normal(problem.shape)
    b = problem.whitening @ c
    value, gradient = problem.value_and_gradient(c)
    assert value == pytest.approx(oracle.value(b), rel=1e-8)
    close(gradient, problem.whitening.T @ oracle.gradient(b))
    image = oracle.gradient(b) - oracle.gradient(0 * b)
    close(problem.product(c), problem.whitening.T @ image)


def test_minimiser(store, policy, kernels, form):
    model = fit(store, policy, kernels, form)
    oracle = literal(model, store, policy)
    expected = oracle.minimiser(model.coefficients_.shape)
    close(model.coefficients_, expected)
    assert model.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    assert model.plan_.form == form


def test_minimiser__differs_from_the_separated_one(store, policy, kernels):
    separated = KEDRL(DISCOUNT, **exact_settings(store, kernels))
    separated.fit(store, policy, executor=ThreadExecutor(2), progress="none")
    paired = fit(store, policy, kernels, "contracted")
    difference = np.linalg.norm(paired.coefficients_ - separated.coefficients_)
    assert difference > 0.01 * np.linalg.norm(separated.coefficients_)


def test_minimiser__given_points_and_weights(store, policy, kernels, form):
    points, weights = some_points()
    model = fit(store, policy, kernels, form, conditioning=(points, weights), chunk_points=4)
    oracle = literal(model, store, policy, points=points, weights=weights / weights.sum())
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_minimiser__ratio(store, policy, kernels, form):
    options = ULSIF(n_centers=8, ridge=1e-2, clip=1.5)
    model = fit(store, policy, kernels, form, continuation="ratio", ratio=options)
    t = store.transitions()
    eta = model.ratio_(np.hstack([t.next_state, t.next_action]))
    oracle = literal(model, store, policy, eta=eta)
    close(model.coefficients_, oracle.minimiser(model.coefficients_.shape))


def test_bellman_risk__held_out_inputs(store, policy, kernels, form, tmp_path):
    model = fit(store, policy, kernels, form)
    new = store.transitions().inputs[:4] + 0.3
    oracle = literal(model, store, policy, points=new)
    state, action = new[:, : store.state_dim], new[:, store.state_dim :]
    expected = [oracle.residual(q, model.coefficients_) for q in range(len(new))]
    close(model.bellman_risk(state, action), expected)
    model.save(tmp_path / "model")
    close(KEDRL.load(tmp_path / "model").bellman_risk(state, action), expected)


def test_minimiser__negative_penalty(store, policy, kernels, form):
    solver = LBFGS(tolerance=1e-10)
    model = fit(store, policy, kernels, form, negative_penalty=0.5, solver=solver, chunk_points=3)
    oracle = literal(model, store, policy, negative=0.5)
    gradient = oracle.gradient(model.coefficients_)
    assert model.solution_.value == pytest.approx(oracle.value(model.coefficients_), rel=1e-8)
    assert np.linalg.norm(gradient) < 1e-6 * np.linalg.norm(oracle.gradient(0 * model.coefficients_))
    assert (model.coefficients_.T @ oracle.k.T).min() < 0


def test_batch_gradient__mean_over_batches_is_the_gradient(store, policy, kernels, form, capture, tmp_path):
    fit(store, policy, kernels, form, cache=tmp_path / "cache", negative_penalty=0.3, solver=LBFGS())
    problem = capture[0]
    c = np.random.default_rng(2).standard_normal(problem.shape)
    halves = np.array_split(np.arange(problem.n_points), 2)
    mean = sum(len(rows) / problem.n_points * problem.batch_gradient(rows, c) for rows in halves)
    close(mean, problem.value_and_gradient(c)[1])


def test_adamw__approaches_the_minimiser(store, policy, kernels):
    solver = AdamW(n_iterations=400, batch_size=8, learning_rate=0.05)
    model = fit(store, policy, kernels, "contracted", solver=solver)
    best = fit(store, policy, kernels, "contracted").solution_.value
    assert best <= model.solution_.value < 1.5 * best


def test_forms__agree_in_mixed_precision(tmp_path, policy, kernels):
    """On more transitions than a batch holds, with landmarks that are not all inputs."""
    data = make_episodes(n_episodes=150, length=31, n_terminated=40)
    store = TransitionStore.from_arrays(tmp_path / "store", **data)
    sizes = {"n_landmarks": 40, "n_basis": 20, "n_features": 24, "landmark_threshold": 1e-7}
    sizes |= {"precision": "mixed", "solver": PCG(), "chunk_points": 500}
    models = [fit(store, policy, kernels, form, **sizes) for form in FORMS]
    double = fit(store, policy, kernels, "contracted", **(sizes | {"precision": "double"}))
    for model in models:
        assert model.solution_.result.ok
        close(model.coefficients_, double.coefficients_, 1e-3)
    close(models[0].coefficients_, models[1].coefficients_, 1e-3)


def test_results__do_not_depend_on_workers_or_links(tmp_path, policy, kernels, monkeypatch, form):
    data = make_episodes(n_episodes=150, length=31, n_terminated=40)
    store = TransitionStore.from_arrays(tmp_path / "store", **data)
    sizes = {"n_landmarks": 30, "n_basis": 15, "n_features": 24, "landmark_threshold": 1e-7}
    sizes |= {"precision": "mixed", "solver": PCG(tolerance=1e-6), "chunk_points": 500}
    one = fit(store, policy, kernels, form, executor=ThreadExecutor(1), **sizes)
    three = fit(store, policy, kernels, form, executor=ThreadExecutor(3), **sizes)
    np.testing.assert_array_equal(three.coefficients_, one.coefficients_)
    with local_cluster(2) as executor:
        spread = fit(store, policy, kernels, form, executor=executor, **sizes)
    np.testing.assert_array_equal(spread.coefficients_, one.coefficients_)
    monkeypatch.setattr("kedrl_dask.pairing.LINK_GROUPS", 1)
    linked = fit(store, policy, kernels, form, executor=ThreadExecutor(2), **sizes)
    close(linked.coefficients_, one.coefficients_, 1e-6)


def test_cache__second_discount_needs_no_contraction(store, policy, kernels, tmp_path, monkeypatch):
    fit(store, policy, kernels, "contracted", cache=tmp_path / "cache")

    def refuse(*arguments):
        raise AssertionError("contracted again")

    monkeypatch.setattr("kedrl_dask.pairing.contract_link", refuse)
    again = fit(store, policy, kernels, "contracted", cache=tmp_path / "cache")
    other = KEDRL(0.5, **(exact_settings(store, kernels) | {"construction": "paired"}))
    other.set_params(paired_form="contracted")
    other.fit(store, policy, executor=ThreadExecutor(2), cache=tmp_path / "cache", progress="none")
    assert np.linalg.norm(other.coefficients_ - again.coefficients_) > 1e-3


def test_residency__stored_and_recomputed(store, policy, kernels, form, monkeypatch):
    resident = fit(store, policy, kernels, form)
    assert resident.plan_.residency == "resident"
    elsewhere = "stored" if form == "contracted" else "recomputed"

    def planned(*arguments):
        return replace(checked_plan(*arguments), residency=elsewhere)

    monkeypatch.setattr("kedrl_dask.fitting.checked_plan", planned)
    again = fit(store, policy, kernels, form)
    assert again.plan_.residency == elsewhere
    np.testing.assert_array_equal(again.coefficients_, resident.coefficients_)
