"""The study of sensitivity: the error against sizes and data."""

import json

import numpy as np
import pytest
from rich.console import Console

from kedrl_dask.cli import main
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.studies import sensitivity

pytestmark = pytest.mark.usefixtures("cells_one_by_one")

SMALL = {"n_atoms": 20, "n_basis": 15, "n_landmarks": 25, "n_features": 16, "n_conditioning": 100}
SMALL |= {"input_kernel": Matern(5.5, 4.5), "n_blocks": 4}
VALUES = {"n_atoms": [5, 20], "transitions": [300, 600]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    output = tmp_path_factory.mktemp("sensitivity") / "out"
    return sensitivity.run(output, values=VALUES, replicates=2, transitions=300, **SMALL), output


def test_cells__change_one_thing_at_a_time():
    planned = sensitivity.cells("uniform-gaussian", VALUES, 1, 300, **SMALL)
    assert [cell.settings["transitions"] for cell in planned] == [300, 300, 300, 600]
    assert [cell.settings["parameters"]["n_atoms"] for cell in planned] == [5, 20, 20, 20]
    assert {cell.settings["parameters"]["n_basis"] for cell in planned} == {15}


@pytest.mark.slow
def test_run__summary_is_the_mean_over_datasets(finished):
    outcome, output = finished
    assert len(outcome.tables["errors"]) == 8
    assert not outcome.records.failed
    for row in outcome.summary["results"]:
        part = outcome.tables["errors"].query(f"factor == {row['factor']!r} and value == {row['value']}")
        assert row["replicates"] == 2
        assert row["rmse"] == pytest.approx(part["rmse"].mean())
    of_cells = [np.mean(result["rmse"]) for _, result in outcome.records.done]
    np.testing.assert_allclose(outcome.tables["errors"]["rmse"], of_cells)
    # Five atoms cannot represent a law in three dimensions.
    coarse, fine = (row["rmse"] for row in outcome.summary["results"][:2])
    assert coarse > 1.2 * fine
    assert {path.name for path in output.iterdir()} >= {"errors.csv", "summary.json", "cells", "plots"}
    assert (output / "plots" / "sensitivity.png").stat().st_size > 10_000


@pytest.mark.slow
def test_render__shows_every_size(finished, capsys):
    sensitivity.render(json.loads(json.dumps(finished[0].summary)), Console(width=120))
    shown = capsys.readouterr().out
    assert "m, atoms of the return grid" in shown
    assert "N, transitions" in shown
    assert "600" in shown


def test_run__unknown_factor_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="'n_atom' is not one of n_atoms"):
        sensitivity.run(tmp_path / "out", values={"n_atom": [3]})
    with pytest.raises(ValueError, match="sizes of n_basis must be whole numbers"):
        sensitivity.run(tmp_path / "out", values={"n_basis": [0]})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["atoms=3", "n_atoms=", "n_atoms=3,x", "n_atoms"])
def test_cli__bad_values_are_a_usage_error(given, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["study", "sensitivity", "--output", str(tmp_path / "out"), "--values", given])
    assert stopped.value.code == 2
    assert "argument --values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("n_atom=3", "'n_atom' is not one of"),
        ("n_atoms", "'n_atoms' is not one of"),
        ("discount=0.5", "not one"),
    ],
)
def test_cli__unknown_parameters_are_a_usage_error(given, message, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["study", "sensitivity", "--output", str(tmp_path / "out"), "--set", given])
    assert message in capsys.readouterr().err


def test_cli__bad_parameters_are_refused_before_any_work(tmp_path, capsys):
    assert main(["study", "sensitivity", "--output", str(tmp_path / "out"), "--set", "n_atoms=-3"]) == 2
    assert "n_atoms must be 'auto' or an integer ≥ 1, got -3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_cli__parameters_are_those_of_all_fits(tmp_path, monkeypatch):
    given = {}

    def run(output, **options):
        given.update(options)
        raise ValueError("enough")

    monkeypatch.setattr(sensitivity, "run", run)
    options = ["--set", "n_atoms=20", "--set", "ridge_b=1e-8", "--set", "reward_trend=none"]
    assert main(["study", "sensitivity", "--output", str(tmp_path / "out"), *options]) == 2
    assert {name: given[name] for name in ("n_atoms", "ridge_b", "reward_trend")} == {
        "n_atoms": 20,
        "ridge_b": 1e-8,
        "reward_trend": "none",
    }
