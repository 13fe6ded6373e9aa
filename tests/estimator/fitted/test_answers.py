"""Answers of a fitted model; those that would mislead are refused, unless that is accepted."""

from __future__ import annotations

import copy
import json
import re
import warnings
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import xarray
from rich.console import Console

from kedrl_dask import KEDRL, Matern, Refused, TransitionStore, functionals, policies, report, results
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.datasets.true_marginals import CentredMarginal
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fitted.answers import N_DRAWS
from kedrl_dask.estimator.fitted.findings import (
    Finding,
    enforce,
    fit_evidence,
    judge,
    law_evidence,
    objections,
    warn_of_fit,
)
from kedrl_dask.estimator.fitted.rules import CODES, RULES, Rule, Verdict
from kedrl_dask.numerics.criterion.separation_test import SeparationWarning
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.report import terminal
from kedrl_dask.utils.exceptions import NumericalWarning
from tests import dense
from tests.conftest import make_episodes

POLICY = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
OTHER = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.6, scale=0.3)
SETTINGS = {
    "input_kernel": Matern(2.5, 2.0, 1.1), "return_kernel": Matern(5.5, (2.2, 2.1), 0.85), "n_atoms": 40,
    "n_basis": 40, "n_landmarks": 60, "n_features": 48, "n_conditioning": 200, "n_blocks": 6,
    "ridge_gamma": 1e-3, "construction": "separated", "reward_trend": "none",
}  # fmt: skip
STATE = 0.5 * np.random.default_rng(0).standard_normal((3, 2))
ACTION = np.random.default_rng(1).uniform(-0.5, 0.5, (3, 1))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("data") / "store", **make_episodes(40, 12))


def fit(store, policy=POLICY, **settings):
    model = KEDRL(0.6, **({"centring": "none"} | SETTINGS | settings))
    return model.fit(store, policy, executor=ThreadExecutor(1), progress="none")


@pytest.fixture(scope="module")
def fitted(store):
    return fit(store)


@pytest.fixture
def model(fitted):
    """A fit whose diagnostics a test may change."""
    own = copy.copy(fitted)
    own.fitted_ = replace(fitted.fitted_, diagnostics=copy.deepcopy(fitted.diagnostics_))
    return own


def ratio(ess):
    return {"effective_sample_size": ess, "mean": 1.0, "min": 0.0, "max": 9.0, "ridge": 1e-3, "centers": 7}


BAD = {
    "ess": ({"ratio": ratio(0.052)}, "5.2%", "continuation='sampled'"),
    "coverage": (
        {"grid": {"median": 0.1, "p90": 0.2, "p99": 0.3, "inside": 0.62}}, "38.0%", "grid_expansion",
    ),
    "separation": (
        {"separation": {"recommends": "paired", "difference": 0.31, "residual": 0.07, "p_value": 0.001}},
        "0.31", "construction='paired'",
    ),
    "accuracy": (
        {"held_out": {
            "inputs": 9, "bellman_risk": (0.32 * 0.4 * 0.85) ** 2,
            "coefficient_mass": dict.fromkeys(("min", "mean", "max"), 1.0),
        }},
        "2.5 steps, is 0.32", "centring='auto'",
    ),
}  # fmt: skip


def test_sound_fit__is_not_refused(model):
    assert [
        finding for finding in objections(fit_evidence(model.fitted_)) if finding.severity == "refuse"
    ] == []
    embedding = model.embedding(STATE, ACTION)
    assert embedding.accepted == ()
    np.testing.assert_array_equal(embedding.coefficients, model.weights(STATE, ACTION))
    at = np.array([[0.1, 0.3]])
    np.testing.assert_allclose(embedding(at), model.embed(STATE, ACTION, at=at), rtol=1e-12)


@pytest.mark.parametrize("code", BAD)
def test_finding__is_refused_with_figure_and_remedy_unless_accepted(model, code):
    changes, figure, remedy = BAD[code]
    model.diagnostics_.update(changes)
    with pytest.raises(Refused, match=code) as refusal:
        model.embedding(STATE, ACTION)
    assert [finding.code for finding in refusal.value.findings] == [code]
    assert figure in str(refusal.value)
    assert remedy in str(refusal.value)
    assert f"accept=('{code}',)" in str(refusal.value)
    embedding = model.embedding(STATE, ACTION, accept=(code,))
    assert embedding.accepted == (code,)
    assert code in [finding.code for finding in embedding.findings]
    assert embedding.average().accepted == (code,)
    dataset = embedding.dataset("mine")
    assert json.loads(dataset.attrs["accepted"]) == [code]
    assert code in [finding["code"] for finding in json.loads(dataset.attrs["findings"])]


def test_thresholds__themselves_pass_and_not_a_number_does_not(model):
    model.diagnostics_["ratio"] = ratio(0.1)
    model.diagnostics_["grid"] |= {"inside": 0.75, "p90": 0.3}
    model.diagnostics_["held_out"]["bellman_risk"] = (0.079 * 0.4 * 0.85) ** 2
    assert {f.severity for f in objections(fit_evidence(model.fitted_))} == {"warn"}
    model.diagnostics_["ratio"] = ratio(float("nan"))
    model.diagnostics_["grid"] |= {"p90": 0.31}
    model.diagnostics_["held_out"]["bellman_risk"] = None  # as JSON has it
    assert {f.code for f in objections(fit_evidence(model.fitted_)) if f.severity == "refuse"} == {
        "ess",
        "coverage",
        "accuracy",
    }


@pytest.mark.slow
def test_accuracy__wrong_answers_at_a_long_horizon_are_refused(tmp_path):
    """Two wells, γ = 0.98: the risk is small, and means are off by standard deviations."""
    case = CASES["bistable"]
    sizes = {"n_atoms": 40, "n_basis": 60, "n_landmarks": 100, "n_features": 64}
    kernel = Matern(length_scale=(1.5, 3.0))
    model = KEDRL(case.discount, construction="separated", centring="none", input_kernel=kernel, **sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeparationWarning)
        model.fit(case.write(tmp_path / "log", 3_000, seed=0), case.target, progress="none")
    assert model.diagnostics_["held_out"]["bellman_risk"] < 1e-3
    known = case.truth(seed=0, n_inputs=3, n_returns=500)
    with pytest.raises(Refused, match=r"accuracy: .* horizon of 50 steps"):
        model.recover(known.state, known.action)
    law = model.recover(known.state, known.action, accept=tuple(CODES))
    error = np.abs(law.mean() - known.returns.mean(axis=1)) / known.returns.std(axis=1)
    assert error.mean() > 0.3


def test_accuracy__laws_of_simulated_returns_are_warned_of(model):
    model.diagnostics_.update(BAD["accuracy"][0])
    evidence = fit_evidence(model.fitted_)
    assert evidence["is_simulated"] is False
    found = {f.code: f for f in judge(evidence | {"is_simulated": True})}["accuracy"]
    assert found.severity == "warn"
    assert found.sentence.startswith("laws are those of simulated returns alone")


@pytest.mark.parametrize(("distance", "severity"), [(0.6, "good"), (0.61, "refuse"), (np.nan, "refuse")])
def test_disagreement__is_refused(model, distance, severity):
    simulation = {"inputs": 20, "distance": {"mean": distance}}
    evidence = fit_evidence(model.fitted_) | {"simulation": simulation}
    found = {f.code: f for f in judge(evidence)}["disagreement"]
    assert found.severity == severity
    assert "at 20 held-out inputs" in found.sentence
    assert {f.code: f for f in judge(fit_evidence(model.fitted_))}["disagreement"].severity == "good"


def test_paired_construction__is_what_separation_asks_for(model):
    model.diagnostics_.update(BAD["separation"][0])
    paired = replace(model.fitted_, settings=replace(model.fitted_.settings, construction="paired"))
    assert "separation" not in [finding.code for finding in objections(fit_evidence(paired))]


def test_solver__out_of_budget(store):
    with pytest.warns(NumericalWarning, match="the fit is not the minimiser"):
        model = fit(store, n_blocks=2, solver=PCG(max_iterations=2))
    with pytest.raises(Refused, match=r"solver: the fit is not the minimiser.*iteration budget"):
        model.embedding(STATE, ACTION)


def test_mass__inputs_far_from_the_data(model):
    far = STATE + np.array([[0.0], [60.0], [0.0]])
    with pytest.raises(Refused, match=r"mass: at 1 of 3 inputs .* at input 1 it is 0\.000"):
        model.embedding(far, ACTION)
    model.embedding(STATE, ACTION)
    coefficients = np.array([[0.5, 0.6 - 1e-9], [0.5, 0.4], [0.5, 0.61]])
    assert "at 1 of 3 inputs" in objections({"mass": coefficients.sum(axis=1)})[0].sentence
    coefficients[0] = 0.2
    assert "at input 0 it is 0.400" in objections({"mass": coefficients.sum(axis=1)})[0].sentence
    assert objections({"mass": coefficients[1:2].sum(axis=1)}) == []


def test_held_out_mass__is_a_warning(model):
    model.diagnostics_["held_out"]["coefficient_mass"]["min"] = 0.85
    found = {finding.code: finding for finding in model.embedding(STATE, ACTION).findings}
    assert found["held_out_mass"].severity == "warn"
    assert "0.85" in found["held_out_mass"].sentence


def test_recovery__not_converged(model, monkeypatch):
    monkeypatch.setattr("kedrl_dask.numerics.laws.simplex.MAX_ITERATIONS", 1)
    with pytest.raises(Refused, match="recovery: at 3 of 3 inputs"):
        model.embedding(STATE, ACTION).recover()
    law = model.embedding(STATE, ACTION, accept=("recovery",)).recover()
    assert not law.converged.any()


def test_recover__of_the_model_is_refused_like_its_embedding(model):
    changes, _, _ = BAD["coverage"]
    assert model.recover(STATE, ACTION).accepted == ()
    model.diagnostics_.update(changes)
    with pytest.raises(Refused, match="coverage"):
        model.recover(STATE, ACTION)
    law = model.recover(STATE, ACTION, accept=("coverage",), ridge=1.0, bandwidth=1.5)
    assert law.accepted == ("coverage",)
    assert {"coverage", "residual"} <= {finding.code for finding in law.findings}
    text = repr(law)
    assert "3 laws of 2 coordinates on 40 atoms" in text
    assert "coverage: the return grid covers" in text
    assert "accepted: coverage" in text
    np.testing.assert_array_equal(
        model.recover(STATE, POLICY, accept=("coverage",)).coefficients,
        model.embedding(STATE, POLICY, accept=("coverage",)).coefficients,
    )


def test_bootstrap__refuses_the_fit_and_no_replicate(model, store):
    replicates = model.bootstrap(
        store, POLICY, n_replicates=3, executor=ThreadExecutor(1), progress="none"
    )  # fmt: skip
    replicates.coefficients[1] *= 2
    drawn = replicates.apply(lambda fit: fit.recover(STATE, ACTION).mean())
    assert drawn.values.shape == (3, 3, 2)
    model.diagnostics_.update(BAD["coverage"][0])
    calls = []
    with pytest.raises(Refused, match="coverage"):
        replicates.apply(lambda fit: calls.append(fit) or fit.recover(STATE, ACTION).mean())
    (judged,) = calls
    assert judged.coefficients_ is model.coefficients_
    assert not judged.fitted_.is_replicate


def test_recovered_law__flags_are_warnings(model):
    law = model.embedding(STATE, ACTION).recover(bandwidth=1.5, ridge=10.0)
    assert law.flags["residual"].all()
    found = {finding.code: finding.severity for finding in objections(law_evidence(law))}
    assert found["residual"] == "warn"


@pytest.mark.parametrize("accept", [("mas",), "ess", ("ess", "all")])
def test_accept__takes_known_codes(model, accept):
    with pytest.raises(ValueError, match="accept must be a sequence of codes out of"):
        model.embedding(STATE, ACTION, accept=accept)


def test_enforce__names_all_findings_and_the_policy():
    found = [Finding(code, "refuse", "it is bad", "mend it", "rev") for code in ("ess", "mass")]
    with pytest.raises(Refused, match=r"rev: ess: it is bad; mend it\n- rev: mass") as refusal:
        enforce([*found, Finding("residual", "warn", "so so", "look")])
    assert refusal.value.findings == tuple(found)
    with pytest.raises(Refused, match=re.escape("accept=('mass',)")):
        enforce(found, ("ess",))
    assert enforce(found, ("ess", "mass")) == tuple(found)


def test_report__carries_the_findings(model):
    model.diagnostics_.update(BAD["ess"][0])
    assert [finding["code"] for finding in terminal.summary(model)["findings"]] == ["ess"]
    console = Console(file=StringIO(), width=300)
    terminal.render(model, console=console)
    assert re.search(
        r"ess +│ the effective sample size of the density ratio is 5.2%", console.file.getvalue()
    )
    assert "use continuation='sampled'" in console.file.getvalue()


def test_new_rule__is_one_entry_that_every_view_shows(model, monkeypatch):
    """Warnings, refusals, the terminal, notebooks and the page, from a diagnostic that is new as well."""

    def amplification(stability):
        return Verdict("refuse", f"errors grow {stability} times", NumericalWarning)

    assert "amplification" not in [finding.code for finding in judge(fit_evidence(model.fitted_))]
    monkeypatch.setitem(RULES, "amplification", Rule("growth of errors", "shorten it", amplification))
    monkeypatch.setitem(CODES, "amplification", "growth of errors")
    assert "amplification" not in [
        finding.code for finding in judge(fit_evidence(model.fitted_))
    ]  # not computed
    model.diagnostics_["stability"] = 7
    with pytest.warns(NumericalWarning, match="errors grow 7 times; shorten it"):
        warn_of_fit(model.fitted_)
    with pytest.raises(Refused, match="amplification: errors grow 7 times"):
        model.embedding(STATE, ACTION)
    console = Console(file=StringIO(), width=300)
    terminal.render(model, console=console)
    page = report.render(report.from_model(model, "mine"))
    for view in (console.file.getvalue(), model._repr_html_(), page):
        assert "rrors grow 7 times" in view
        assert "horten it" in view


def test_separation__too_few_episodes_is_a_note(model):
    model.diagnostics_["separation"] |= {"p_value": None, "recommends": "separated"}
    (note,) = [finding for finding in model.embedding(STATE, ACTION).findings if finding.severity == "note"]
    assert (note.code, note.sentence[:27]) == ("separation", "there are too few episodes ")


def literal_state_law(model, state, policy):
    """Σ_k w_k Bᵀk_L(s, a_k), with loops."""
    actions, weights = policy.draws(state, N_DRAWS)
    total = np.zeros((len(state), len(model.grid_)))
    for i, s in enumerate(state):
        for a, w in zip(actions[:, i], weights, strict=True):
            k = dense.gram(model.input_kernel_, [np.concatenate([s, a])], model.basis_)[0]
            total[i] += w * (model.coefficients_.T @ k)
    return total


def test_state_law__is_the_average_over_the_policy(model):
    expected = literal_state_law(model, STATE, POLICY)
    found = model.embedding(STATE, POLICY)
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-8, atol=1e-10)
    assert np.abs(found.coefficients - model.weights(STATE, POLICY.location(STATE))).max() > 1e-3
    with pytest.raises(ValueError, match=r"state has shape \(3, 1\), expected \(n, 2\)"):
        model.embedding(STATE[:, :1], POLICY)


def test_state_law__random_actions_are_the_same_each_time(model):
    policy = policies.Function(lambda s, rng: 0.2 * s[:, :1] + 0.3 * rng.standard_normal((len(s), 1)))
    first, second = (model.embedding(STATE, policy).coefficients for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_mmd__two_policies_two_inputs_and_initial_states(model, store):
    other = fit(store, OTHER, n_blocks=3)
    mine, yours = model.embedding(STATE, ACTION), other.embedding(STATE, ACTION)
    literal = [
        dense.mmd(model.return_kernel_, a, model.grid_, b, other.grid_)
        for a, b in zip(mine.coefficients, yours.coefficients, strict=True)
    ]
    np.testing.assert_allclose(mine.mmd(yours), literal, rtol=1e-8)
    initial = [literal_state_law(m, STATE, p).mean(axis=0) for m, p in ((model, POLICY), (other, OTHER))]
    states = model.embedding(STATE, POLICY).average(), other.embedding(STATE, OTHER).average()
    expected = dense.mmd(model.return_kernel_, initial[0], model.grid_, initial[1], other.grid_)
    np.testing.assert_allclose(states[0].mmd(states[1]), [expected], rtol=1e-8)
    kernel = model.return_kernel_
    expected = dense.mmd(kernel, mine.coefficients[0], model.grid_, mine.coefficients[1], model.grid_)
    elsewhere = model.embedding(STATE[1:2], ACTION[1:2])
    np.testing.assert_allclose(model.embedding(STATE[:1], ACTION[:1]).mmd(elsewhere), expected, rtol=1e-8)
    unlike = fit(store, OTHER, n_blocks=3, return_kernel=Matern(5.5, 2.0)).embedding(STATE, ACTION)
    with pytest.raises(ValueError, match="fit both with one return_kernel"):
        mine.mmd(unlike)


def test_expect__in_bootstrap_replicates(model, store):
    replicates = model.bootstrap(
        store, POLICY, n_replicates=3, executor=ThreadExecutor(1), progress="none"
    )  # fmt: skip
    step = functionals.below(0.3, coordinate=1, width=0.2)
    draws = replicates.apply(lambda replica: replica.embedding(STATE, ACTION).expect(step).value)
    np.testing.assert_array_equal(draws.estimate, model.embedding(STATE, ACTION).expect(step).value)
    assert (draws.standard_error > 0).all()


def test_dataset__of_one_law_reads_back_from_zarr(model, tmp_path):
    embedding = model.embedding(STATE, ACTION)
    dataset, law = embedding.dataset("mine", levels=(0.2, 0.9), tail=0.3), embedding.recover()
    results.write_zarr(dataset, tmp_path / "law.zarr")
    stored = xarray.open_zarr(tmp_path / "law.zarr", consolidated=False).load()
    xarray.testing.assert_identical(stored, dataset)
    sizes = {"policy": 1, "input": 3, "coordinate": 2, "level": 2, "atom": 40, "coordinate_2": 2}
    assert dict(stored.sizes) == sizes | {"threshold": stored["thresholds"].shape[1]}
    mine = stored.sel(policy="mine")
    np.testing.assert_array_equal(mine["weight"], law.weights)
    np.testing.assert_array_equal(mine["quantile"].sel(coordinate=1, level=0.9), law.quantile(0.9, 1))
    np.testing.assert_array_equal(mine["cvar"].sel(coordinate=0), law.cvar(0.3, 0))
    np.testing.assert_allclose(mine["sd"] ** 2, [np.diag(c) for c in law.covariance()], rtol=1e-12)
    assert stored.attrs["fingerprint"] == model.diagnostics_["data"]
    assert stored.attrs["seed"] == 0
    assert json.loads(stored.attrs["settings"])["discount"] == 0.6
    assert "kedrl_dask" in json.loads(stored.attrs["versions"])
    with pytest.raises(FileExistsError, match="choose another path"):
        results.write_zarr(dataset, tmp_path / "law.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["law.zarr"]


def test_dataset__laws_on_other_atoms_are_refused(model, store):
    laws = {"a": model.recover(STATE, ACTION), "b": model.recover(STATE[:2], ACTION[:2])}
    with pytest.raises(ValueError, match="'b' has other atoms or inputs than that of 'a'"):
        results.law_dataset(laws)


@pytest.mark.slow
def test_bias__explains_what_smoothing_does_to_a_tail_probability(tmp_path):
    """On the simulation study, where the truth is known: a wide step is off by about the bias reported."""
    pair = simulation.PAIRS["uniform-gaussian"]
    store = simulation.write(tmp_path / "store", pair, 2_000, seed=2)
    sizes = {"n_atoms": 60, "n_basis": 80, "n_landmarks": 100, "n_features": 64, "n_conditioning": 200}
    sizes |= {"n_blocks": 4, "ridge_gamma": 1e-3}
    kernel = Matern(5.5, (4.5, 4.5, 4.5, 4.5, 4.5, 4.5))
    model = KEDRL(0.7, centring="none", input_kernel=kernel, **sizes)
    model.fit(store, pair.target, executor=ThreadExecutor(1), progress="none")
    state, action = evaluation_points("uniform-gaussian")
    law = truth.return_law(state, action, pair.target, 0.7)
    ends = law.mean[:, 0] + CentredMarginal.build(law, 0).quantile(0.1)
    mu = [model.embedding(state[i : i + 1], action[i : i + 1], CODES) for i in range(len(state))]
    found = [m.expect(functionals.below(t, width=1.0)) for m, t in zip(mu, ends, strict=True)]
    error = np.array([answer.value[0] - 0.1 for answer in found])
    bias = np.array([answer.bias[0] for answer in found])
    assert error.mean() > 0.05
    assert np.abs(error - bias).mean() < 0.5 * np.abs(error).mean()
