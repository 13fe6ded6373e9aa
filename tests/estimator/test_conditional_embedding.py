"""The paper's reference estimator against its formula, however the work is divided."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kedrl_dask import KEDRL, ConditionalEmbedding, Matern, TransitionStore
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.returns import write_returns
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.estimator.conditional_embedding import pair_rows
from tests import dense
from tests.conftest import LOOPBACK

PAIR = simulation.PAIRS["uniform-gaussian"]
RIDGE = 1e-3


def make_pairs(n=30, seed=0):
    rng = np.random.default_rng(seed)
    state, action = rng.standard_normal((n, 2)), rng.uniform(-1, 1, (n, 1))
    response = state @ [[1.0, 0.3], [-0.5, 0.8]] + action + 0.4 * rng.standard_normal((n, 2))
    return state, action, response


def make_store(path, n=30, chunk_rows=16_384):
    return TransitionStore.from_arrays(path, **pair_rows(*make_pairs(n)), chunk_rows=chunk_rows)


def make_model(kernels, **options):
    given = {"input_kernel": kernels[0], "return_kernel": kernels[1], "ridge": RIDGE}
    return ConditionalEmbedding(**(given | options))


NEW = np.array([[0.1, -0.4], [1.0, 0.6], [-0.8, 0.2]]), np.array([[0.3], [-0.2], [0.9]])
AT = np.array([[0.0, 0.0], [0.5, -1.0], [1.5, 0.7], [-1.0, 0.4]])


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-8), ("mixed", 2e-5)])
def test_embed__all_points_as_landmarks_give_the_formula(tmp_path, kernels, precision, tolerance):
    model = make_model(kernels, landmark_threshold=0.0, precision=precision)
    model.fit(make_store(tmp_path / "pairs"), progress="none")
    state, action, response = make_pairs()
    inputs = np.hstack([state, action])
    values, mass = model.embed(*NEW, at=AT), model.mass(*NEW)
    for i, x in enumerate(np.hstack(NEW)):
        for j, z in enumerate(AT):
            value, total = dense.conditional_embedding(*kernels, inputs, response, x, z, RIDGE)
            assert values[i, j] == pytest.approx(value, abs=tolerance)
        assert mass[i] == pytest.approx(total, abs=tolerance)


@pytest.mark.slow
def test_embed__few_response_landmarks_err_within_the_bound(tmp_path, kernels):
    """|error| ≤ √(σ² − ‖ψ_Z(z)‖²)·Σ|Γ_j|√(σ² − ‖ψ_Z(z_j)‖²), and none at a landmark."""
    store = make_store(tmp_path / "pairs")
    exact = make_model(kernels, landmark_threshold=0.0, precision="double").fit(store, progress="none")
    few = make_model(kernels, landmark_threshold=0.0, precision="double", n_features=12)
    few.fit(store, progress="none")
    state, action, response = make_pairs()
    variance = kernels[1].sigma ** 2

    def unseen(z):
        return np.sqrt(np.maximum(variance - np.sum(few.response_features_(z) ** 2, axis=1), 0))

    inputs = np.hstack([state, action])
    gamma = np.array([dense.conditional_weights(kernels[0], inputs, x, RIDGE) for x in np.hstack(NEW)])
    bound = np.abs(gamma) @ unseen(response)[:, None] * unseen(AT)
    error = np.abs(few.embed(*NEW, at=AT) - exact.embed(*NEW, at=AT))
    assert (error <= bound + 1e-10).all()
    assert error.max() > 1e-6  # otherwise the bound was not put to the test
    landmarks = few.response_features_.landmarks
    at_landmarks = few.embed(*NEW, at=landmarks) - exact.embed(*NEW, at=landmarks)
    assert np.abs(at_landmarks).max() < 1e-8


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit that no test changes."""
    kernels = Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)
    store = make_store(tmp_path_factory.mktemp("fitted") / "pairs")
    return make_model(kernels, n_blocks=4).fit(store, progress="none")


def test_embed__own_points_for_each_input(fitted):
    model = fitted
    own = np.stack([AT, AT + 1, AT - 1])
    values = model.embed(*NEW, at=own)
    for i in range(3):
        np.testing.assert_allclose(values[i], model.embed(*NEW, at=own[i])[i], rtol=1e-12)
    assert model.embed(NEW[0][:0], NEW[1][:0], at=AT).shape == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_fit__does_not_depend_on_chunks_or_threads(tmp_path, kernels, precision):
    n = 5_000  # more than two groups of rows
    options = {"n_landmarks": 40, "n_features": 30, "n_blocks": 6, "precision": precision, "ridge": "auto"}
    values = []
    for i, (chunk_rows, n_threads) in enumerate([(16_384, 1), (700, 3)]):
        store = make_store(tmp_path / f"pairs{i}", n, chunk_rows)
        model = make_model(kernels, **options).fit(store, executor=ThreadExecutor(n_threads), progress="none")
        values.append(model.embed(*NEW, at=AT))
    np.testing.assert_array_equal(*values)
    fewer_blocks = make_model(kernels, **options | {"n_blocks": 2, "ridge": model.ridge_})
    other = fewer_blocks.fit(store, progress="none").embed(*NEW, at=AT)
    np.testing.assert_allclose(other, values[0], atol=1e-10 if precision == "double" else 1e-4)


@pytest.mark.slow
def test_fit__on_a_cluster(tmp_path, kernels):
    from distributed import Client, LocalCluster

    store, options = make_store(tmp_path / "pairs", 300), {"n_landmarks": 30, "n_blocks": 4}
    alone = make_model(kernels, **options).fit(store, executor=ThreadExecutor(1), progress="none")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **LOOPBACK) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        there = make_model(kernels, **options)
        there.fit(store, executor=DistributedExecutor(client), progress="none")
    found, expected = there.embed(*NEW, at=AT), alone.embed(*NEW, at=AT)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    assert not list(tmp_path.glob(".kedrl-*"))


def test_fit__response_of_logged_episodes_is_the_reward(small_store, kernels):
    model = make_model(kernels, landmark_threshold=0.0, precision="double").fit(small_store, progress="none")
    logged = small_store.transitions()
    assert model.diagnostics_["sizes"]["pairs"] == len(logged) == 40
    expected, _ = dense.conditional_embedding(
        *kernels, logged.inputs, logged.reward, np.hstack(NEW)[0], AT[1], RIDGE
    )
    assert model.embed(*NEW, at=AT)[0, 1] == pytest.approx(expected, abs=1e-8)


def test_save__comes_back_the_same(tmp_path, kernels):
    model = make_model(kernels, n_features=20, ridge="auto", n_blocks=5)
    model.fit(make_store(tmp_path / "pairs"), progress="none")
    model.save(tmp_path / "model")
    again = ConditionalEmbedding.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.ridge_ == model.ridge_
    assert again.diagnostics_ == model.diagnostics_
    np.testing.assert_array_equal(again.embed(*NEW, at=AT), model.embed(*NEW, at=AT))
    np.testing.assert_array_equal(again.mass(*NEW), model.mass(*NEW))
    with pytest.raises(StoreError, match="kind 'kedrl conditional embedding', expected 'kedrl model'"):
        KEDRL.load(tmp_path / "model")


@pytest.mark.slow
def test_fit__automatic_settings_find_the_law(tmp_path):
    """Few pairs of a strong signal: nearer to the truth than the law of all responses together."""
    store = simulation.write(tmp_path / "data", PAIR, 1_960, seed=3)
    pairs = write_returns(tmp_path / "pairs", store, PAIR.target, seed=4)
    kernel = PAIR.settings.kernel
    model = ConditionalEmbedding(return_kernel=kernel, n_landmarks=100, n_features=80)
    model.fit(pairs, progress="none")
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    law = truth.return_law(state, action, PAIR.target)
    at = truth.evaluation_grid(law, n=30, n_samples=1_000)
    true = law.embed(at, kernel, 2**12)
    responses = pairs.transitions().reward
    marginal = np.stack([kernel(z, responses).mean(axis=1) for z in at])
    rmse, without_inputs = (
        truth.embedding_errors(estimate, true)["rmse"].mean()
        for estimate in (model.embed(state, action, at=at), marginal)
    )
    assert rmse < 0.02
    assert rmse < without_inputs / 3
    seen = np.mean(np.sum(model.response_features_(responses) ** 2, axis=1)) / kernel.sigma**2
    assert model.diagnostics_["response_residual"] == pytest.approx(1 - seen, rel=1e-8)
    assert set(model.diagnostics_["tuning"]) == {"input_kernel", "ridge"}
    np.testing.assert_allclose(model.mass(state, action), 1, atol=0.1)


def test_write_returns__takes_logged_inputs_and_target_returns(tmp_path):
    store = simulation.write(tmp_path / "data", PAIR, 2_940, seed=1)
    pairs = write_returns(tmp_path / "pairs", store, PAIR.target, n_returns=2, seed=5).transitions()
    logged = store.transitions().inputs
    np.testing.assert_array_equal(pairs.inputs, logged.repeat(2, axis=0))
    assert pairs.terminal.all()
    law = truth.return_law(logged[:, :5], logged[:, 5:], PAIR.target)
    residual = pairs.reward - law.mean.repeat(2, axis=0)
    n = len(residual)
    np.testing.assert_array_less(np.abs(residual.mean(axis=0)), 4 * np.sqrt(np.diag(law.covariance) / n))
    np.testing.assert_allclose(np.cov(residual.T), law.covariance, atol=6 * law.covariance.max() / np.sqrt(n))
    # The two returns of an input are independent given it.
    together = np.mean(residual[0::2, 0] * residual[1::2, 0]) / law.covariance[0, 0]
    assert abs(together) < 4 / np.sqrt(n / 2)


def test_write_returns__does_not_depend_on_chunks(tmp_path):
    rows = simulation.simulate(PAIR, 60, seed=2)
    stores = [
        TransitionStore.from_arrays(tmp_path / f"data{size}", **rows, chunk_rows=size)
        for size in (300, 16_384)
    ]
    written = [write_returns(tmp_path / f"pairs{i}", s, PAIR.target) for i, s in enumerate(stores)]
    first, second = (pairs.transitions().reward for pairs in written)
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first[:, 0])) == len(first)


@pytest.mark.parametrize(("options", "message"), [
    ({"n_landmarks": 0}, "n_landmarks must be an integer ≥ 1, got 0"),
    ({"n_features": 2.5}, "n_features must be an integer"),
    ({"ridge": -1.0}, "ridge must be 'auto' or a positive number"),
    ({"ridge": "best"}, "ridge must be 'auto' or a positive number"),
    ({"precision": "half"}, "precision must be 'mixed' or 'double'"),
    ({"input_kernel": "matern"}, "input_kernel must be 'auto' or a Matern"),
    ({"return_kernel": Matern(2.5, (1.0, 1.0, 1.0))}, "return_kernel has 3 length scales, the data have 2"),
    ({"landmark_threshold": np.nan}, "landmark_threshold must be a number"),
    ({"random_state": -1}, "random_state must be an integer"),
    ({"ridge": "auto", "n_blocks": 1}, "needs two blocks of pairs"),
])  # fmt: skip
def test_fit__bad_parameters_are_refused_before_work(tmp_path, kernels, options, message):
    store = make_store(tmp_path / "pairs", 10)
    with pytest.raises(ValueError, match=message):
        make_model(kernels, **options).fit(store, progress="none")


def test_embed__bad_inputs_are_refused(fitted, kernels):
    with pytest.raises(NotFittedError):
        make_model(kernels).embed(*NEW, at=AT)
    model = fitted
    with pytest.raises(ValueError, match=r"action has shape \(3, 2\), expected \(n, 1\)"):
        model.embed(NEW[0], NEW[0], at=AT)
    with pytest.raises(ValueError, match=r"at has shape \(4, 1\), expected \(g, 2\)"):
        model.embed(*NEW, at=AT[:, :1])
    with pytest.raises(NotFittedError):
        clone(model).mass(*NEW)


def test_write_returns__needs_a_return(small_store, tmp_path, policy):
    with pytest.raises(ValueError, match="n_returns must be at least 1, got 0"):
        write_returns(tmp_path / "pairs", small_store, policy, n_returns=0)
