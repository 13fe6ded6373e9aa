"""``kedrl plan``."""

from __future__ import annotations

import json

import pytest

from kedrl_dask import TransitionStore
from kedrl_dask.cli import main
from tests.conftest import make_episodes


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "store"
    return str(TransitionStore.from_arrays(path, **make_episodes(30, 9)).path)


@pytest.mark.slow
def test_plan__table(store, capsys):
    assert main(["plan", store, "--discount", "0.7", "--memory", "2GiB"]) == 0
    out = capsys.readouterr().out
    assert "Plan for 240 transitions" in out
    assert "2.0 GiB each" in out
    assert "streaming pass" in out


@pytest.mark.parametrize("form", ["contracted", "matrix-free"])
def test_plan__paired(store, capsys, form):
    assert main(["plan", store, "--construction", "paired", "--paired-form", form]) == 0
    out = capsys.readouterr().out
    assert f"paired, {form}" in out
    assert ("contraction" in out) == (form == "contracted")


def test_plan__json_and_sizes(store, capsys):
    options = [
        "--atoms",
        "30",
        "--basis",
        "40",
        "--features",
        "64",
        "--conditioning",
        "100",
        "--workers",
        "3",
    ]
    assert main(["plan", store, *options, "--precision", "double", "--continuation", "ratio", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    sizes = plan["sizes"]
    assert [sizes[name] for name in ("n_atoms", "n_basis", "n_features", "n_conditioning")] == [
        30,
        40,
        64,
        100,
    ]
    assert (sizes["itemsize"], plan["n_workers"], plan["n_threads"]) == (8, 3, 1)
    assert sizes["n_centers"] > 0
    assert plan["totals"]["memory"] == max(stage["memory"] for stage in plan["stages"])


def test_plan__exact_operators(store, capsys):
    assert main(["plan", store, "--operators", "exact", "--atoms", "20", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["sizes"]["exact"]
    assert plan["stages"][-1]["name"] == "diagnostics"
    (points,) = (stage for stage in plan["stages"] if stage["name"] == "conditioning points")
    assert points["disk"] > 240 * 16 * 20**2


def test_plan__over_budget_is_shown_and_refused(store, capsys):
    assert main(["plan", store, "--memory", "1MiB"]) == 2
    captured = capsys.readouterr()
    assert "streaming pass" in captured.out
    assert "the budget is 1 MiB" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "lots"], "memory must be a number of bytes"),
        (["--discount", "1.5"], "discount must lie strictly between 0 and 1"),
    ],
)
def test_plan__bad_option(store, options, message, capsys):
    assert main(["plan", store, *options]) == 2
    assert message in capsys.readouterr().err


def test_plan__no_store(tmp_path, capsys):
    assert main(["plan", str(tmp_path / "nothing")]) == 2
    assert "no such store" in capsys.readouterr().err
