"""The study of the benchmark's systems: errors of recovered laws, and what was refused."""

import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from kedrl_dask.cli import main
from kedrl_dask.datasets.benchmark import CASES, TASKS, catalogue
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.studies import systems

pytestmark = pytest.mark.usefixtures("cells_one_by_one")

SMALL = {"n_atoms": 30, "n_basis": 40, "n_landmarks": 60, "n_features": 32, "n_conditioning": 200}


@pytest.fixture(scope="module")
def returns():
    """Normal returns at three inputs, the coordinates of different scale."""
    return np.random.default_rng(0).standard_normal((3, 800, 2)) * [1.0, 5.0] + [2.0, -1.0]


def weighted(seed, n, dim):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, dim)), rng.dirichlet(np.ones(n))


def test_errors__vanish_for_the_true_sample(returns):
    found = systems.errors(systems.empirical(returns), returns)
    assert set(found) == set(systems.METRICS)
    assert all(values.shape == (3,) for values in found.values())
    # The energy distance is a root: rounding is larger.
    assert max(values.max() for values in found.values()) < 1e-6


def test_errors__of_a_shifted_law_are_the_shift(returns):
    deviation = returns.std(axis=1, keepdims=True)
    found = systems.errors(systems.empirical(returns + 0.5 * deviation), returns)
    for name in ("mean", "quantiles", "cvar"):
        np.testing.assert_allclose(found[name], 0.5)
    shift = 0.5 * systems._directions(2).sum(axis=1)
    np.testing.assert_allclose(found["sliced"], np.abs(shift).mean())


def test_errors__of_a_wider_normal_law_are_those_of_its_quantiles(returns):
    """Closed form: quantiles and tail means of N(0, 4) less those of N(0, 1)."""
    wide = Mixture(np.zeros((1, 1)), np.ones((1, 1)), np.full(1, 2.0))
    sample = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[None, :, None]
    found = systems.errors(wide, sample)
    levels = stats.norm.ppf(systems.LEVELS)
    tail = stats.norm.pdf(stats.norm.ppf(systems.TAIL)) / systems.TAIL
    assert found["mean"][0] == pytest.approx(0, abs=1e-12)
    assert found["quantiles"][0] == pytest.approx(np.abs(levels).mean(), rel=1e-3)
    assert found["cvar"][0] == pytest.approx(tail, rel=1e-3)
    # The nodes of a smoothed atom are few: W1 = E|Y| only roughly.
    assert found["sliced"][0] == pytest.approx(np.sqrt(2 / np.pi), rel=0.1)


def test_samples__keep_the_moments_of_smoothed_laws():
    atoms, weights = weighted(0, 300, 3)
    law = Mixture(atoms, weights[None], np.array([0.5, 0.0, 1.0]), shift=np.full((1, 3), 2.0))
    points, probability = systems.samples(law, 0)
    assert probability.sum() == pytest.approx(1)
    np.testing.assert_allclose(probability @ points, law.mean()[0], atol=0.01)
    covariance = np.cov(points.T, aweights=probability, ddof=0)
    np.testing.assert_allclose(covariance, law.covariance()[0], atol=0.03)
    np.testing.assert_array_equal(np.unique(points[:, 1]), np.unique(atoms[:, 1] + 2.0))


def test_distances__are_scipys_in_one_dimension():
    points, weights = weighted(1, 40, 1)
    sample = np.random.default_rng(2).standard_normal((60, 1)) + 1
    expected = stats.energy_distance(points[:, 0], sample[:, 0], weights)
    assert systems.energy_distance(points, weights, sample) == pytest.approx(expected)
    expected = stats.wasserstein_distance(points[:, 0], sample[:, 0], weights)
    assert systems.sliced_distance(points, weights, sample) == pytest.approx(expected)


def test_verdict__knows_wrong_refused_and_stagnant_systems():
    rows = [("a", 10, 0.5, True), ("a", 20, 0.1, False), ("b", 10, 0.2, False), ("b", 20, 0.4, False)]
    rows += [("c", 10, 0.01, False), ("c", 20, 0.02, False)]
    table = pd.DataFrame(rows, columns=["system", "transitions", "mean", "refused"])
    found = systems.verdict(table.assign(cvar=table["mean"]))
    assert found["right_or_refused"] == ["a", "c"]
    assert found["wrong"] == found["not_falling"] == ["b"]
    assert found["share_refused"] == pytest.approx(1 / 6)
    assert "2 of 3 systems are right" in systems.sentence(found)
    assert "does not fall with more transitions: b." in systems.sentence(found)
    one_size = systems.verdict(table.assign(cvar=0.0, transitions=10))
    assert one_size["not_falling"] == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of two cells, and one more cell with so few atoms that its answer is refused."""
    output = tmp_path_factory.mktemp("systems") / "out"
    answered = systems.run(output, systems=["ring"], sizes=[600, 300], replicates=1, **SMALL)
    few = SMALL | {"n_atoms": 5}
    refused = systems.run(output, systems=["ring"], sizes=[300], replicates=1, draw=False, **few)
    return output, answered, refused


@pytest.mark.slow
def test_run__records_errors_and_writes_what_it_found(finished, capsys):
    output, outcome, _ = finished
    table = outcome.tables["errors"]
    assert table["transitions"].tolist() == [300, 600]
    assert not table["refused"].any()
    assert (table[list(systems.METRICS)] < 1).all(axis=None)
    assert (table[list(systems.METRICS)] > 0).all(axis=None)
    for row, (_, result) in zip(outcome.summary["results"], outcome.records.done, strict=True):
        assert row["cvar"] == pytest.approx(np.mean(result["cvar"]))
        assert len(result["mean"]) == 8
    assert {path.name for path in output.iterdir()} >= {"errors.csv", "summary.json", "cells", "plots"}
    assert (output / "plots" / "systems.png").stat().st_size > 10_000
    systems.render(json.loads(json.dumps(outcome.summary)), Console(width=80))
    shown = capsys.readouterr().out
    assert "1 of 1 systems are right" in shown
    assert "quantiles" in shown


@pytest.mark.slow
def test_run__refused_answers_have_codes_and_errors(finished):
    _, _, outcome = finished
    ((_, result),) = outcome.records.done
    assert "coverage" in result["refused"]
    assert set(result["refused"]) <= set(result["findings"])
    assert np.isfinite(result["cvar"]).all()
    assert outcome.summary["verdict"]["share_refused"] == 1
    assert outcome.summary["verdict"]["right_or_refused"] == ["ring"]
    assert outcome.tables["errors"]["refused_codes"].tolist() == [" ".join(result["refused"])]


@pytest.mark.slow
def test_run__again_computes_nothing(finished):
    output, first, _ = finished
    again = systems.run(output, systems=["ring"], sizes=[300, 600], replicates=1, draw=False, **SMALL)
    assert again.records.n_computed == 0
    assert again.summary["results"] == first.summary["results"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"systems": ["rings"]}, "'rings' is not one of nonlinear"),
        ({"systems": []}, "at least one system"),
        ({"sizes": [0]}, "sizes must be"),
        ({"n_atoms": -3}, "n_atoms must be"),
    ],
)
def test_run__bad_input_is_refused_before_any_work(given, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        systems.run(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--systems", "rings"], "argument --systems: invalid choice: 'rings'"),
        (["--sizes", "0"], "argument --sizes"),
        (["--sizes", "many"], "argument --sizes"),
        (["--set", "n_atom=3"], "'n_atom' is not one of"),
        (["--transitions", "300"], "unrecognized arguments: --transitions"),
    ],
)
def test_cli__bad_options_are_a_usage_error(given, message, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["study", "systems", "--output", str(tmp_path / "out"), *given])
    assert message in capsys.readouterr().err


def test_cli__options_are_those_of_the_study(tmp_path, monkeypatch):
    calls = []

    def run(output, **options):
        calls.append(options)
        raise ValueError("enough")

    monkeypatch.setattr(systems, "run", run)
    command = ["study", "systems", "--output", str(tmp_path / "out")]
    assert main(command) == 2
    assert main([*command, "--systems", "ring", "--sizes", "9", "8", "--set", "n_atoms=5", "--no-plots"]) == 2
    default, given = calls
    assert (default["systems"], default["sizes"], default["replicates"]) == (None, (3_000, 15_000, 60_000), 3)
    assert (given["systems"], given["sizes"], given["n_atoms"], given["draw"]) == (["ring"], [9, 8], 5, False)


@pytest.fixture
def no_libraries(monkeypatch):
    """As without the extra."""
    monkeypatch.setattr(catalogue, "find_spec", lambda library: None)


@pytest.mark.usefixtures("no_libraries")
def test_cli__a_task_without_the_extra_is_refused_before_any_work(tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["study", "systems", "--output", str(output), "--systems", "ring", "swimmer"]) == 2
    assert "'swimmer' needs mo_gymnasium" in (error := capsys.readouterr().err)
    assert "pip install 'kedrl-dask[rl]'" in error
    assert not output.exists()


@pytest.mark.usefixtures("no_libraries")
def test_run__by_default_leaves_out_what_is_not_installed(tmp_path, monkeypatch, capsys):
    result = {name: [0.1] for name in systems.METRICS} | {"refused": [], "findings": []}
    monkeypatch.setattr(systems, "evaluate", lambda *_, **__: result | {"bellman_risk": 0.0, "seconds": 1.0})
    outcome = systems.run(tmp_path / "out", sizes=[9], replicates=1, draw=False)
    assert [row["system"] for row in outcome.summary["results"]] == list(CASES)
    assert outcome.summary["left_out"] == list(TASKS)
    systems.render(outcome.summary, Console(width=200))
    assert f"pip install 'kedrl-dask[rl]': {', '.join(TASKS)}." in capsys.readouterr().out
    named = systems.run(tmp_path / "out", systems=["ring"], sizes=[9], replicates=1, draw=False)
    assert named.summary["left_out"] == []
