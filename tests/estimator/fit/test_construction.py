"""The choice of a construction before the streaming pass."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, compare, policies
from kedrl_dask.cli import main
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.plan.plan import PlanError
from kedrl_dask.estimator.fit import construction
from kedrl_dask.estimator.fit.construction import Decision
from kedrl_dask.estimator.fitted.findings import fit_evidence, objections

POLICY = policies.Gaussian([[0.3]], 0.0, 0.5)
SIZES = {"n_atoms": 25, "n_basis": 25, "n_landmarks": 40, "n_features": 32, "n_conditioning": 300}
SETTINGS = SIZES | {"input_kernel": Matern(5.5, 2.0), "ridge_gamma": 1e-4, "centring": "none"}
AT = np.linspace(-1, 1, 5)[:, None], np.zeros((5, 1))


def rows(correlation, n_episodes=40, length=20, seed=0):
    """A linear system whose reward and next state have noises with this correlation."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky([[1.0, correlation], [correlation, 1.0]])
    state = np.empty((n_episodes, length))
    action, noise = rng.normal(size=(n_episodes, length)), rng.normal(size=(n_episodes, length, 2)) @ root.T
    state[:, 0] = rng.normal(size=n_episodes)
    for t in range(length - 1):
        state[:, t + 1] = 0.6 * state[:, t] + 0.3 * action[:, t] + 0.7 * noise[:, t, 1]
    reward = state + 0.5 * action + 0.7 * noise[:, :, 0]
    episode, step = np.divmod(np.arange(n_episodes * length), length)
    columns = {"state": state, "action": action, "reward": reward}
    return {name: x.reshape(-1, 1) for name, x in columns.items()} | {"episode": episode, "step": step}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("construction")
    return {
        name: TransitionStore.from_arrays(folder / name, **rows(correlation))
        for name, correlation in (("separated", 0.0), ("paired", 0.95))
    }


def fit(store, **given):
    settings = SETTINGS | {name: value for name, value in given.items() if name not in ("cache", "run")}
    where = {name: value for name, value in given.items() if name in ("cache", "run")}
    return KEDRL(0.7, **settings).fit(store, POLICY, executor=ThreadExecutor(1), progress="none", **where)


@pytest.fixture(scope="module")
def chosen(stores):
    return {name: fit(store) for name, store in stores.items()}


@pytest.mark.parametrize("name", ["separated", "paired"])
def test_auto__chooses_what_the_data_call_for(chosen, stores, name, tmp_path):
    model = chosen[name]
    found = model.diagnostics_["construction"]
    assert model.construction_ == found["chosen"] == model.diagnostics_["separation"]["recommends"] == name
    assert (found["how"], found["level"], found["share"]) == ("tested", 0.01, 0.5)
    is_different = found["p_value"] <= found["level"] and found["difference"] > 0.5 * found["residual"]
    assert is_different == (name == "paired")
    assert model.construction == "auto"
    assert (model.target_ is None) == (model.plan_.form == "separated") == (name == "separated")
    assert "separation" not in {finding.code for finding in objections(fit_evidence(model.fitted_))}
    given = fit(stores[name], construction=name)
    np.testing.assert_array_equal(model.coefficients_, given.coefficients_)
    assert given.diagnostics_["construction"] == {"chosen": name, "how": "given"}
    model.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    assert (loaded.construction, loaded.construction_) == ("auto", name)
    assert loaded.diagnostics_["construction"] == found
    np.testing.assert_array_equal(loaded.bellman_risk(*AT), model.bellman_risk(*AT))


@pytest.mark.slow
def test_auto__ratio_is_tested_with_sampled_actions(stores):
    assert fit(stores["paired"], continuation="ratio").construction_ == "paired"


@pytest.mark.parametrize(
    "given",
    [{"operators": "exact", "n_conditioning": 20, "n_atoms": 10}, {"reward_trend": "linear"}],
    ids=str,
)
def test_auto__settings_that_need_the_separated_construction_get_it(stores, given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(stores["paired"], **given)
    assert model.construction_ == "separated"
    assert model.diagnostics_["construction"] == {"chosen": "separated", "how": "required"}


@pytest.mark.slow
def test_auto__trend_only_where_separated(stores):
    assert fit(stores["paired"], reward_trend="auto").operators_.trend is None
    model = fit(stores["separated"], reward_trend="auto")
    assert model.construction_ == "separated"
    assert (model.operators_.trend is not None) == model.diagnostics_["tuning"]["reward_trend"]["accepted"]


def test_auto__few_episodes_are_separated(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "store", **rows(0.95, n_episodes=5, length=60))
    model = fit(store)
    assert model.diagnostics_["construction"] == {
        "chosen": "separated",
        "how": "too few episodes for a test",
    }
    assert model.diagnostics_["separation"]["p_value"] is None


def test_auto__the_test_after_the_fit_corrects_the_one_before(stores, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(construction, "_decide", lambda *_: Decision("separated", "tested", {}))
    model = fit(stores["paired"], cache=tmp_path / "cache")
    assert model.construction_ == "paired"
    assert model.diagnostics_["construction"]["how"] == "tested after the fit"
    np.testing.assert_allclose(model.coefficients_, chosen["paired"].coefficients_, rtol=1e-10)
    monkeypatch.setattr("kedrl_dask.estimator.fit.pipeline.separated_problem", None)
    assert fit(stores["paired"], cache=tmp_path / "cache").construction_ == "paired"


@pytest.mark.slow
def test_auto__corrected_in_a_run_as_without(stores, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(construction, "_decide", lambda *_: Decision("separated", "tested", {}))
    model = fit(stores["paired"], run=tmp_path / "run")
    assert model.construction_ == KEDRL.resume(tmp_path / "run").construction_ == "paired"
    expected = chosen["paired"].embed(*AT, at=model.grid_)
    np.testing.assert_allclose(model.embed(*AT, at=model.grid_), expected, atol=1e-5)


def test_run__resumed_keeps_the_choice(stores, chosen, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kedrl_dask.estimator.fit.pipeline.stream", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(stores["paired"], run=tmp_path / "run")
    monkeypatch.setattr(construction, "_decide", lambda *_: pytest.fail("decided again"))
    model = KEDRL.resume(tmp_path / "run", executor=ThreadExecutor(1), progress="none")
    assert model.diagnostics_["construction"] == chosen["paired"].diagnostics_["construction"]
    np.testing.assert_array_equal(model.coefficients_, chosen["paired"].coefficients_)


def test_growth__keeps_the_choice_of_the_first_fit(tmp_path, monkeypatch):
    data, path, cache = rows(0.95), tmp_path / "store", tmp_path / "cache"
    first = {name: array[:600] for name, array in data.items()}
    assert fit(TransitionStore.from_arrays(path, **first), cache=cache).construction_ == "paired"
    with TransitionStore.open(path).appender() as writer:
        writer.append(**{name: array[600:] for name, array in data.items()})
    monkeypatch.setattr(construction, "_decide", lambda *_: pytest.fail("decided again"))
    assert fit(TransitionStore.open(path).grown_from(600), cache=cache).construction_ == "paired"


@pytest.mark.slow
def test_bootstrap__replicates_are_of_the_construction_of_the_fit(stores, chosen):
    for kind in ("separated", "paired"):
        found = chosen[kind].bootstrap(stores[kind], POLICY, 2, progress="none")
        given = fit(stores[kind], construction=kind)
        expected = given.bootstrap(stores[kind], POLICY, 2, progress="none")
        np.testing.assert_array_equal(found.coefficients, expected.coefficients)


@pytest.mark.slow
def test_compare__intervals_are_of_the_construction_of_the_data(stores):
    estimator = KEDRL(0.7, **SETTINGS)
    for kind in ("separated", "paired"):
        found = compare(stores[kind], {"only": POLICY}, AT, estimator, n_replicates=2, progress="none")
        assert found.models["only"].construction_ == kind


def test_plan__is_of_the_longer_construction_until_it_is_known(stores):
    plans = {
        name: KEDRL(0.7, construction=name, **SETTINGS).plan(stores["paired"], calibrate=False)
        for name in ("auto", "separated", "paired")
    }
    seconds = {name: plan.seconds for name, plan in plans.items()}
    assert seconds["auto"] == pytest.approx(max(seconds["separated"], seconds["paired"]))
    assert plans["auto"].at_most
    assert not plans["paired"].at_most
    assert "less if the test of separation chooses" in repr(plans["auto"])


def test_plan__over_budget_is_refused_before_the_fit(stores):
    with pytest.raises(PlanError):
        KEDRL(0.7, **SETTINGS).fit(stores["paired"], POLICY, memory="1 MiB", progress="none")


def test_command_line__plans_at_most(stores, capsys):
    assert main(["plan", str(stores["paired"].path), "--construction", "auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["at_most"]
