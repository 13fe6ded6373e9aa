"""The Expedia application on a small simulated file, by its command."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest

from kedrl_dask import KEDRL
from kedrl_dask.cli import main
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.laws.recovery import recover_law
from kedrl_dask.numerics.solvers import AdamW
from kedrl_dask.studies.expedia import application, fits
from kedrl_dask.studies.expedia.adamw import BasisProblem, adamw_for
from kedrl_dask.studies.expedia.preparation import Request, prepare
from kedrl_dask.studies.expedia.specification import DISCOUNT, RETURN_KERNEL, recovery, shift
from kedrl_dask.utils.exceptions import NumericalWarning
from kedrl_dask.utils.progress import Reporter

ARGUMENTS = ["--simulated", "900", "--training", "300", "--test", "100", "--atoms", "25", "--basis", "40"]
ARGUMENTS += ["--landmarks", "40", "--centers", "20"]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Directory of a run of the command, and what it printed."""
    path = tmp_path_factory.mktemp("expedia") / "study"
    with warnings.catch_warnings(), redirect_stdout(StringIO()) as printed:
        warnings.simplefilter("ignore", NumericalWarning)  # fits as small as these lose mass
        code = main(["study", "expedia", *ARGUMENTS, "--output", str(path)])
    return path, code, printed.getvalue()


@pytest.mark.slow
def test_command__writes_tables_figures_and_a_page(output):
    path, code, text = output
    assert code == 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["data"]["transitions"] == {"training": 300, "test": 100}
    assert set(summary["fits"]) == {"paper", "sampled"}
    for by_policy in summary["fits"].values():
        for fit in by_policy.values():
            assert fit["solver"]["result"] == "converged"
            assert fit["risk"] > 0
    adamw = summary["fits"]["paper"]["rev"]["adamw"]
    assert adamw["minimum"] == pytest.approx(summary["fits"]["paper"]["rev"]["solver"]["criterion"], rel=1e-3)
    assert adamw["minimum"] < adamw["objective"] <= adamw["start"]
    for part in ("data_desc", "policy_action_summary", "policy_eval_risks", "recovered_marginals"):
        assert f"tab:expedia_{part}" in text
    titles = [
        line
        for line in text.splitlines()
        if re.search(r"tab:expedia|Density ratio|The criterion|Seconds", line)
    ]
    assert len(titles) >= 9
    assert "nothing here is about hotels" in text
    assert "…" not in text  # nothing is cut off
    names = {entry.name for entry in (path / "plots").iterdir()}
    assert names == {
        "actions.png",
        *(f"returns-{p}-{r}.png" for p in ("paper", "sampled") for r in ("paper", "automatic")),
    }
    page = (path / "report.html").read_text()
    assert "Simulated data." in page
    assert page.count("<img") == 5
    assert page.count("; simulated searches</caption>") == page.count("<caption>") >= 9
    assert not re.search(r'(src|href)="(?!data:)', page)


@pytest.mark.slow
def test_command__again__computes_nothing(output, monkeypatch, capsys):
    path, _, _ = output
    monkeypatch.setattr(KEDRL, "fit", lambda *_, **__: pytest.fail("fitted again"))
    monkeypatch.setattr("kedrl_dask.datasets.expedia.read_lists", lambda *_: pytest.fail("read again"))
    before = json.loads((path / "summary.json").read_text())
    assert main(["study", "expedia", *ARGUMENTS, "--no-plots", "--json", "--output", str(path)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "seconds": 0} == {**before, "seconds": 0}


@pytest.mark.slow
def test_command__directory_of_something_else__is_refused(output, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("")
    assert main(["study", "expedia", "--output", str(tmp_path)]) == 2
    assert "is not empty and holds no study" in capsys.readouterr().err
    missing = ["study", "expedia", "--data", str(tmp_path / "none.csv"), "--output", str(tmp_path / "out")]
    assert main(missing) == 2
    assert "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_marginals__by_the_paper_map_atoms(output):
    """y = m + s·z of returns of centred rewards, clicks on the nearest observed count, literally."""
    path, _, _ = output
    prepared = prepare(path, Request(None, 900, 300, 100, 0), Reporter("none"))
    summary = json.loads((path / "summary.json").read_text())
    encoder = prepared.encoder
    record = json.loads(next((path / "fits").glob("sampled-clk-*.json")).read_text())
    law = recover_law([record["coefficients"]], record["grid"], RETURN_KERNEL, recovery("paper", encoder))
    # Atoms of centred rewards: a constant c in every reward is c/(1 − γ) in a return.
    m, s = encoder.reward_mean, encoder.reward_scale
    centred = np.array(record["grid"]) - m / s / (1 - DISCOUNT)
    raw = m + s * centred
    counts = np.array(encoder.clicks)
    projected = counts[np.abs(raw[:, 1, None] - counts).argmin(axis=1)]
    found = summary["marginals"]["sampled"]["paper"]["clk"]
    weights = law.weights[0]
    assert found["revenue_mean"] == pytest.approx(weights @ raw[:, 0], rel=1e-9, abs=1e-9)
    assert found["click_mean"] == pytest.approx(weights @ projected, rel=1e-9)
    for k in (1, 2, 3):
        assert found[f"click_{k}"] == pytest.approx(weights[projected >= k].sum(), abs=1e-12)
    assert (shift("automatic", encoder) == 0).all()


@pytest.mark.slow
def test_selected_state__has_the_median_score(output):
    path, _, _ = output
    prepared = prepare(path, Request(None, 900, 300, 100, 0), Reporter("none"))
    states = prepared.training.transitions().inputs[:, : prepared.training.state_dim]
    centred = states - states.mean(axis=0)
    score = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    chosen = (prepared.state - states.mean(axis=0)) @ np.linalg.svd(centred, full_matrices=False)[2][0]
    assert abs(chosen - np.median(score)) == pytest.approx(np.abs(score - np.median(score)).min(), abs=1e-9)
    for name, (state, action) in prepared.targets.items():
        np.testing.assert_array_equal(state[0], prepared.state)
        np.testing.assert_allclose(prepared.encoder.raw_action(action[0]), prepared.actions[name])
    points = prepared.conditioning(50, 0)
    assert points.shape == (52, prepared.training.state_dim + 3)
    np.testing.assert_array_equal(points[-1], np.hstack(prepared.targets["clk"])[0])


@pytest.fixture
def small_model(small_store, policy):
    """A fit of a function of settings, and its conditioning points."""
    points = small_store.transitions().inputs

    def fit(**settings):
        model = KEDRL(
            0.7, n_atoms=6, n_basis=10, n_landmarks=20, n_features=16, conditioning=points, ridge_gamma=1e-2,
            ridge_b=1e-10, input_kernel=Matern(2.5, 1.5), precision="double", **settings,
        )  # fmt: skip
        return model.fit(small_store, policy, progress="none")

    return fit, points


def test_adamw__in_the_basis_itself__takes_the_steps_of_whitened_coefficients(small_model):
    """The criterion in B is that of the fit, and a step of AdamW does not depend on how B is written."""
    fit, points = small_model
    steps = AdamW(n_iterations=30, batch_size=8, evaluate_every=30, learning_rate=1e-2, weight_decay=0.0)
    model = fit(solver=steps)
    problem = BasisProblem(model, points)
    value, _ = problem.value_and_gradient(model.coefficients_)
    assert value == pytest.approx(model.solution_.value, rel=1e-4)
    state = steps.init(problem, None)
    while steps.terminate(state) is None:
        state = steps.step(problem, state)
    np.testing.assert_allclose(state.best, model.coefficients_, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_adamw__ends_with_its_time(small_model):
    fit, points = small_model
    found = adamw_for(fit(), points, seconds=0.3, seed=0)
    assert 0.3 <= found["seconds"] < 30
    assert found["steps"] > 0
    assert found["minimum"] < found["objective"] <= found["start"]


@pytest.mark.slow
def test_fits__other_settings__are_other_records(output):
    path, _, _ = output
    assert len(list((path / fits.FITS).iterdir())) == 4
    assert not (path / fits.CACHE).exists()
    assert application.SEARCHES == 20_000
