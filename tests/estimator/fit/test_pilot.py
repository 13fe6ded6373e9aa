"""Centred fits: the return less a potential, which simulated returns give."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, compare, policies
from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.estimator.fitted.findings import fit_evidence, judge

SIZES = {"n_atoms": 40, "n_basis": 60, "n_landmarks": 100, "n_features": 64, "n_blocks": 16}
CASE = CASES["counts"]
# One of the counts moves the state: the separated construction objects, which is not the point here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:reward and continuation are correlated"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return CASE.write(tmp_path_factory.mktemp("pilot") / "log", 3_000, seed=0)


@pytest.fixture(scope="module")
def model(store):
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, centring="auto", input_kernel=kernel, return_kernel="auto", **SIZES)
    return estimator.fit(store, CASE.target, progress="none")


def test_centred_criterion__is_the_plain_one_of_shaped_rewards(model, store, tmp_path):
    """Rewards r + γ·Ψ(s') − Ψ(s), written as if they had been logged, give the same coefficients."""
    rows = {name: np.asarray(values) for name, values in CASE.log(3_000, 0).items()}
    value = model.potential_(rows["state"])
    ahead = np.vstack([value[1:], value[:1]])  # rows are in the order of (episode, step)
    rows["reward"] = rows["reward"] + CASE.discount * ahead - value
    rows.pop("terminated")
    shaped = TransitionStore.from_arrays(tmp_path / "shaped", **rows)
    kernels = {"input_kernel": model.input_kernel_, "return_kernel": model.return_kernel_}
    plain = KEDRL(CASE.discount, grid=model.grid_, **kernels, **SIZES).fit(
        shaped, CASE.target, progress="none"
    )
    state, action = rows["state"][:50], rows["action"][:50]
    at = model.grid_ + model.potential_(state)[:, None]
    found, expected = model.embed(state, action, at=at), plain.embed(state, action, at=model.grid_)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_answers__are_of_the_return_itself(model):
    truth = CASE.truth(seed=0, n_returns=2_000)
    law = model.embedding(truth.state, truth.action, accept=["separation", "coverage"]).recover()
    spread = truth.returns.std(axis=1)
    assert (np.abs(law.mean() - truth.returns.mean(axis=1)) / spread).mean() < 0.2
    median = np.stack([law.quantile(0.5, c) for c in range(2)], axis=1)
    assert (np.abs(median - np.median(truth.returns, axis=1)) / spread).mean() < 0.25
    at = truth.returns[:, :30]
    kernel = model.return_kernel_
    expected = np.stack([kernel(z, y).mean(axis=0) for z, y in zip(truth.returns, at, strict=True)])
    error = model.embed(truth.state, truth.action, at=at) - expected
    assert np.sqrt(np.mean(error**2)) < 0.05 * kernel.sigma**2


def test_save_and_load__keep_the_potential(model, tmp_path):
    model.save(tmp_path / "model")
    again = KEDRL.load(tmp_path / "model")
    state, action = np.zeros((2, 2)), np.ones((2, 1))
    at = np.array([[1.0, 1.0], [5.0, 2.0]])
    np.testing.assert_array_equal(again.embed(state, action, at=at), model.embed(state, action, at=at))
    np.testing.assert_array_equal(again.potential_(state), model.potential_(state))
    assert again.centring == "auto"


def test_diagnostics__describe_the_logged_rewards(model, store):
    assert model.diagnostics_["centred"] is True
    reward = store.transitions().reward
    np.testing.assert_allclose(
        model.diagnostics_["columns"]["reward"]["mean"], reward.mean(axis=0), rtol=1e-9
    )
    assert model.diagnostics_["data"] == store.fingerprint


def test_truncation__is_no_finding_where_returns_are_simulated(model):
    evidence = fit_evidence(model.fitted_) | {"sizes": {"episodes": 10, "terminal": 0, "transitions": 10}}
    settings = evidence["settings"] | {"discount": 0.99}
    found = {f.code: f for f in judge(evidence | {"settings": settings})}
    assert found["truncation"].severity == "good"
    assert "simulated" in found["truncation"].sentence
    plain = {f.code: f for f in judge(evidence | {"settings": settings, "centred": False})}
    assert plain["truncation"].severity == "warn"


def test_none__is_the_papers_estimator(store):
    plain = KEDRL(CASE.discount, **SIZES).fit(store, CASE.target, progress="none")
    assert plain.potential_ is None
    assert plain.diagnostics_["centred"] is False


@pytest.mark.parametrize("given", [{"grid": np.linspace(0, 9, 40).repeat(2).reshape(-1, 2)}, "few"])
def test_auto__leaves_it_where_it_cannot_help(given, store, tmp_path):
    """Given atoms are atoms of the return; and a few episodes are not enough to simulate from."""
    options, data = SIZES, store
    if given == "few":
        options, data = (
            {**SIZES, "n_atoms": 15, "n_basis": 20, "n_landmarks": 30},
            CASE.write(tmp_path / "few", 100, seed=0),
        )
    else:
        options = {**SIZES, **given}
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, centring="auto", input_kernel=kernel, **options)
    assert estimator.fit(data, CASE.target, progress="none").potential_ is None


def test_auto__leaves_states_with_categories(tmp_path):
    """A simulated state would lie between categories, where no policy can be asked."""
    rng = np.random.default_rng(0)
    n = 1_000
    table = pd.DataFrame({"episode": np.arange(n) // 20, "step": np.arange(n) % 20, "x": rng.normal(size=n)})
    table["kind"], table["action"], table["reward"] = (
        rng.choice(["a", "b"], n),
        rng.normal(size=n),
        table["x"],
    )
    columns = {
        "episode": "episode",
        "step": "step",
        "state": ["x", "kind"],
        "action": "action",
        "reward": "reward",
    }
    data = TransitionStore.from_table(tmp_path / "table", table, columns, categorical=["kind"])
    policy = policies.Gaussian(weights=np.zeros((data.state_dim, 1)), scale=1.0)
    sizes = {**SIZES, "n_atoms": 15, "n_basis": 20, "n_landmarks": 30}
    estimator = KEDRL(0.5, centring="auto", input_kernel=Matern(length_scale=3.0), **sizes)
    assert estimator.fit(data, policy, progress="none").potential_ is None


def test_bootstrap__replicates_are_of_the_return(model, store):
    state, action = np.array([[0.0, 0.0], [1.0, -1.0]]), np.zeros((2, 1))

    def mean(fitted):
        return fitted.embedding(state, action, accept=["separation", "coverage"]).recover().mean()

    draws = model.bootstrap(store, CASE.target, 4, progress="none").apply(mean)
    assert draws.estimate.shape == (2, 2)
    spread = np.std(draws.values, axis=0)
    assert (spread > 0).all()
    assert (np.abs(draws.values - draws.estimate) < 1.0).all()


def test_compare__refuses_centred_estimators(store):
    with pytest.raises(ValueError, match="centring='none'"):
        compare(store, {"target": CASE.target}, ([[0.0, 0.0]], None), KEDRL(0.8, centring="auto"))


def test_grown_stores__keep_the_pilot_of_their_first_rows(store, tmp_path):
    grown = store.grown_from(2_080)
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, centring="auto", input_kernel=kernel, return_kernel="auto", **SIZES)
    first = TransitionStore.from_arrays(
        tmp_path / "first", **{name: np.asarray(part)[:2_080] for name, part in CASE.log(3_000, 0).items()}
    )
    alone = estimator.fit(first, CASE.target, progress="none").potential_
    whole = estimator.fit(grown, CASE.target, progress="none").potential_
    state = np.zeros((1, 2))
    np.testing.assert_allclose(whole(state), alone(state))
