"""The command line: exit codes, one-line errors, files, and what it never deletes."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kedrl_dask import KEDRL, ULSIF, TransitionStore, __version__, cli
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.estimator.fitted.findings import did_its_work
from kedrl_dask.numerics.solvers import PCG, AdamW
from kedrl_dask.studies import cell, demo, profiles
from kedrl_dask.utils.exceptions import NumericalWarning

SIZES = {"transitions": 490, "n_atoms": 20, "n_basis": 25, "n_landmarks": 30, "n_features": 32}
SIZES |= {"n_blocks": 4, "n_conditioning": 100}
UNIFORM_GAUSSIAN = simulation.PAIRS["uniform-gaussian"]


@pytest.fixture(scope="module", autouse=True)
def _rough_truth():
    """The truth to three digits: its values are tested elsewhere."""
    embed = truth.ReturnLaw.embed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth.ReturnLaw, "embed", lambda self, at, kernel, _=0: embed(self, at, kernel, 2**8))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One small demonstration, with its directory."""
    output = tmp_path_factory.mktemp("demo") / "new" / "output"
    return demo.run(output, **SIZES), output


@pytest.fixture
def small(monkeypatch):
    """Make the command's demonstrations small; gives the arguments of each run."""
    calls, run = [], demo.run

    def run_small(output, **options):
        calls.append(options)
        given = {"input_kernel": UNIFORM_GAUSSIAN.settings.kernel, "draw": False}
        return run(output, **(options | SIZES | given))

    monkeypatch.setattr(demo, "run", run_small)
    return calls


def numbers(summary):
    """The summary without what depends on the clock."""
    content = json.loads(json.dumps(summary))
    del content["seconds"], content["fit"]["seconds"]
    return content


def raiser(error):
    def fail(*_, **__):
        raise error

    return fail


def only_line(text):
    (line,) = text.strip().splitlines()
    return line


def test_main__without_verb_prints_help(capsys):
    assert cli.main([]) == 2
    assert "usage: kedrl" in capsys.readouterr().err


def test_main__version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"kedrl {__version__}\n"


def test_main__help_documents_exit_codes_and_draws(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for part in ("exit codes:", "130", "three quadrature nodes", "--no-plots", "uniform-logistic"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "cauchy-gaussian"], "invalid choice: 'cauchy-gaussian'"),
        (["--profile", "fast"], "invalid choice: 'fast'"),
        (["--transitions", "0"], "0 is not a whole number ≥ 1"),
        (["--transitions", "many"], "'many' is not a whole number ≥ 0"),
        (["--seed", "-1"], "'-1' is not a whole number ≥ 0"),
        (["--workers", "1.5"], "'1.5' is not a whole number ≥ 0"),
    ],
)
def test_main__bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_run__files(finished):
    outcome, output = finished
    assert {entry.name for entry in output.iterdir()} == {
        "summary.json", "data", "model", "plots", "report.html",
    }  # fmt: skip
    figures = {"convergence", "embedding_contours", "embedding_curves", "embedding_surface", "grid_coverage"}
    figures |= {"coefficient_mass", "tuning"}
    assert {entry.stem for entry in (output / "plots").iterdir()} == figures
    assert all(entry.read_bytes().startswith(b"\x89PNG") for entry in (output / "plots").iterdir())
    store = TransitionStore.open(output / "data")
    store.verify()
    assert store.n_transitions == 490
    loaded, points = KEDRL.load(output / "model"), simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    np.testing.assert_array_equal(loaded.weights(*points), outcome.model.weights(*points))


def test_run__summary(finished):
    outcome, output = finished
    assert json.loads((output / "summary.json").read_text()) == json.loads(json.dumps(outcome.summary))
    summary = outcome.summary
    assert summary["kind"] == "kedrl demo"
    assert summary["paper_mean_rmse"] == 0.0255
    assert len(summary["errors"]["by_point"]["rmse"]) == 10
    assert summary["errors"]["mean"]["rmse"] == pytest.approx(np.mean(outcome.errors["rmse"]))
    assert summary["fit"]["sizes"]["transitions"] == 490
    assert summary["fit"]["settings"]["continuation"] == "sampled"
    assert did_its_work(outcome.model.fitted_)


@pytest.mark.slow
def test_run__same_seed_same_numbers(finished, tmp_path):
    again = demo.run(tmp_path / "again", draw=False, **SIZES)
    assert numbers(again.summary) == numbers(finished[0].summary)
    assert not (tmp_path / "again" / "plots").exists()


@pytest.mark.slow
def test_run__workers_give_the_same_numbers(finished, tmp_path):
    outcome = demo.run(tmp_path / "workers", workers=1, draw=False, **SIZES)
    rmse, expected = (found.summary["errors"]["by_point"]["rmse"] for found in (outcome, finished[0]))
    np.testing.assert_allclose(rmse, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@pytest.mark.slow
def test_run__paper_profile(tmp_path):
    adamw = AdamW(n_iterations=60, batch_size=50)
    few = {"ratio": ULSIF(20, ridge=1e-3, clip=5.0), "solver": adamw}
    outcome = demo.run(tmp_path / "paper", profile="paper", pair="uniform-logistic", **SIZES, **few)
    assert outcome.model.solution_.result.name == "BUDGET"
    assert did_its_work(outcome.model.fitted_)
    assert not outcome.summary["fit"]["converged"]
    plots = {entry.stem for entry in (tmp_path / "paper" / "plots").iterdir()}
    assert "tuning" not in plots
    assert "density_ratio" in plots
    assert 0 < outcome.summary["fit"]["ratio"]["effective_sample_size"] <= 1


@pytest.mark.parametrize("name", simulation.PAIRS)
def test_settings__paper_profiles_take_the_pair_s_table(name):
    pair = simulation.PAIRS[name]
    paper, exact = (profiles.settings(pair, profile, seed=3) for profile in ("paper", "paper-exact"))
    assert paper["solver"].n_iterations == pair.settings.n_iterations
    assert paper["solver"].batch_size == pair.settings.batch_size
    assert paper["solver"].learning_rate == pair.settings.learning_rate
    assert paper["solver"].weight_decay == pair.settings.weight_decay
    assert paper["ratio"].n_centers == paper["n_features"] == pair.settings.n_features
    assert paper["ratio"].ridge == paper["ridge_gamma"] == pair.settings.ridge_gamma
    assert paper["input_kernel"] == paper["return_kernel"] == pair.settings.kernel
    assert exact == paper | {"solver": "pcg"}


@pytest.mark.slow
def test_demo__tables(small, tmp_path, capsys):
    assert cli.main(["demo", "--output", str(tmp_path / "out"), "--pair", "gaussian-uniform"]) == 0
    out, err = capsys.readouterr()
    for part in ("certificate", "outside its hull", "negative mass", "not probabilities", "0.0302", "in all"):
        assert part in out
    assert "points for Uniform→Gaussian alone" in out
    assert "solver: done in" in err
    assert not logging.getLogger("kedrl_dask").handlers
    assert small[0]["workers"] == 0


@pytest.mark.slow
def test_demo__json_alone_on_stdout(small, finished, tmp_path, capsys):
    assert cli.main(["demo", "--json", "--output", str(tmp_path / "out"), "--seed", "2"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["seed"] == summary["fit"]["settings"]["random_state"] == 2
    assert summary["fit"]["data"] != finished[0].summary["fit"]["data"]
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text())


@pytest.mark.slow
def test_demo__not_converged(small, tmp_path, capsys, monkeypatch):
    settings = cell.settings
    monkeypatch.setattr(cell, "settings", lambda *given: settings(*given) | {"solver": PCG(max_iterations=2)})
    with pytest.warns(NumericalWarning, match="the fit is not the minimiser"):
        assert cli.main(["demo", "--output", str(tmp_path / "out")]) == 3
    assert "kedrl: the fit did not converge: the iteration budget" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["fit"]["converged"] is False


def test_demo__data_error_is_one_line(tmp_path, capsys):
    assert cli.main(["demo", "--transitions", "20", "--output", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "episodes" in only_line(err[err.index("kedrl: error:") :])
    assert not (tmp_path / "out").exists()


def test_demo__unexpected_error_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(KEDRL, "fit", raiser(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo", "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_demo__non_empty_directory(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["demo", "--output", str(tmp_path)]) == 2
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"kedrl: error: {tmp_path} is not empty; choose another directory with --output")


def test_demo__output_is_a_file(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert cli.main(["demo", "--overwrite", "--output", str(tmp_path / "file")]) == 2
    assert "is a file" in only_line(capsys.readouterr().err)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "content",
    [
        {"notes.txt": "mine"},
        {"summary.json": '{"kind": "another"}'},
        {"summary.json": "[1, 2]"},
        {"summary.json": "not JSON"},
        {"data": "mine"},
        {"summary.json": '{"kind": "kedrl demo"}', "notes.txt": "added later"},
    ],
)
def test_demo__overwrite_refuses_what_is_no_demo(content, tmp_path, capsys):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    assert cli.main(["demo", "--overwrite", "--output", str(tmp_path)]) == 2
    assert "--overwrite does not replace it" in only_line(capsys.readouterr().err)
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == content


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fit", "save"])
def test_demo__interrupted_leaves_nothing(stage, small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(KEDRL, stage, raiser(KeyboardInterrupt()))
    assert cli.main(["demo", "--output", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("kedrl: interrupted")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_demo__overwrite_replaces_a_demo(small, tmp_path, monkeypatch):
    """One that was killed, and a complete one unless the new one is interrupted."""
    output, whole = tmp_path / "out", {"data", "model", "report.html", "summary.json"}
    command = ["demo", "--output", str(output)]
    (output / demo.PARTIAL / "data").mkdir(parents=True)
    assert cli.main(command) == 2
    assert cli.main([*command, "--overwrite"]) == 0
    assert {entry.name for entry in output.iterdir()} == whole
    before = (output / "summary.json").read_text()
    assert cli.main(command) == 2

    with monkeypatch.context() as patch:
        patch.setattr(KEDRL, "save", raiser(KeyboardInterrupt()))
        assert cli.main([*command, "--overwrite"]) == 130
    assert (output / "summary.json").read_text() == before
    KEDRL.load(output / "model")
    assert {entry.name for entry in output.iterdir()} == whole

    assert cli.main([*command, "--overwrite", "--seed", "5"]) == 0
    assert json.loads((output / "summary.json").read_text())["seed"] == 5
    assert {entry.name for entry in output.iterdir()} == whole


#: ``python -m kedrl_dask`` with a fit that lasts until it is interrupted, however slow the machine.
ENDLESS = """
import pathlib, runpy, sys, time
from kedrl_dask import KEDRL

def fit(*_, **__):
    pathlib.Path("fitting").touch()
    time.sleep(600)

KEDRL.fit = fit
runpy.run_module("kedrl_dask", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_module__ctrl_c(tmp_path):
    """The real thing: a signal to the process, one line, no traceback, nothing left."""
    output = tmp_path / "out"
    command = [sys.executable, "-c", ENDLESS, "demo", "--transitions", "490", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": str(Path(demo.__file__).parents[2])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    try:
        while not (tmp_path / "fitting").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        assert (output / demo.PARTIAL / "data").exists()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == f"kedrl: interrupted; nothing was written to {output}"
    assert "Traceback" not in err
    assert not output.exists()
