"""``kedrl fit`` and the file that describes a fit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore
from kedrl_dask.cli import main
from kedrl_dask.engine.execute.dask_client import PoisonError
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.service.config import load_config, load_policy
from kedrl_dask.utils.process import Stopped
from tests.conftest import make_episodes

pytestmark = pytest.mark.filterwarnings("ignore:the data ask for")

CONFIG = """
data = "store"
discount = 0.9
run = "run"

[policy]
family = "gaussian"
weights = [[0.2], [-0.1]]
bias = 0.1
scale = 0.3

[settings]
n_atoms = 8
n_basis = 12
n_landmarks = 20
n_features = 12
n_blocks = 4
input_kernel = { nu = 2.5, length_scale = 1.5 }
return_kernel = { nu = 5.5, length_scale = [1.0, 1.2], sigma = 0.9 }
solver = { name = "pcg", tolerance = 1e-9 }
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("data") / "store", **make_episodes(20, 6)).path


@pytest.fixture
def config(tmp_path, data):
    shutil.copytree(data, tmp_path / "store")
    (tmp_path / "fit.toml").write_text(CONFIG)
    return tmp_path / "fit.toml"


def test_load_config__what_the_file_says(config, policy):
    found = load_config(config)
    assert found.data == config.parent / "store"
    assert found.run == config.parent / "run"
    assert found.cache is None
    assert found.policy == policy
    assert found.parameters["discount"] == 0.9
    assert found.parameters["return_kernel"] == Matern(5.5, (1.0, 1.2), 0.9)
    assert found.parameters["solver"] == PCG(tolerance=1e-9)
    assert found.model().get_params()["n_atoms"] == 8


def test_load_config__density_ratio(config):
    text = CONFIG + '\ncontinuation = "ratio"\nratio = { n_centers = 50, kernel = { nu = 1.5 } }\n'
    config.write_text(text)
    assert load_config(config).parameters["ratio"] == ULSIF(n_centers=50, kernel=Matern(1.5))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data =", "date =", "unknown key 'date'; did you mean 'data'"),
        ('data = "store"', "", "the key 'data' is missing"),
        ('data = "store"', "data = 3", "the key 'data' must be a path, as text, got 3"),
        ("discount = 0.9", "", "the key 'discount' is missing"),
        ("discount = 0.9", "discount = 1.5", r"\[settings\] KEDRL: discount must lie strictly between"),
        ("discount = 0.9", "discount = true", r"\[settings\] KEDRL: discount must lie strictly between"),
        ("[policy]", "[polices]", "unknown key 'polices'; did you mean 'policies'"),
        ('"gaussian"', '"gauss"', r"\[policy\] policy family 'gauss' is not known"),
        ("scale = 0.3", "scale = -1.0", r"\[policy\] Gaussian: scale must be positive"),
        ("scale = 0.3", 'scale = "wide"', r"\[policy\] Gaussian: scale must be real numbers"),
        ("scale = 0.3", "width = 0.3", r"\[policy\] gaussian policy: found parameters .*width"),
        ("bias = 0.1", 'file = "p.json"', "the key 'policy.family' cannot be combined with 'policy.file'"),
        ("n_atoms = 8", "n_atom = 8", "unknown key 'settings.n_atom'; did you mean 'n_atoms'"),
        ("n_atoms = 8", "n_atoms = 8.5", r"\[settings\] KEDRL: n_atoms must be .*got 8.5"),
        ("n_atoms = 8", "n_atoms = { a = 1 }", "the key 'settings.n_atoms' takes a value, not a table"),
        ("n_atoms = 8", "discount = 0.8", "unknown key 'settings.discount'"),
        ("nu = 2.5", "mu = 2.5", "unknown key 'settings.input_kernel.mu'"),
        ("nu = 2.5", 'nu = "smooth"', "the key 'settings.input_kernel.nu' must be a number"),
        ("nu = 2.5", "nu = -1.0", r"\[settings.input_kernel\] Matern: nu must be positive"),
        ('"pcg"', '"newton"', r"\[settings.solver\] unknown solver 'newton'"),
        ('name = "pcg", ', "", "the key 'settings.solver.name' must be a name, got None"),
        ("tolerance = 1e-9", "tolerance = true", "the key 'settings.solver.tolerance' must be a number"),
        ("tolerance = 1e-9", "max_iterations = 2.5", "max_iterations' must be a whole number"),
        ("[settings]", "[settings", "not a TOML file"),
    ],
)
def test_load_config__errors_name_file_and_key(config, old, new, message, capsys):
    assert old in CONFIG
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        load_config(config)
    assert str(caught.value).startswith(f"{config}: ")
    assert main(["fit", str(config)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (config.parent / "run").exists()


def test_load_policy__files(tmp_path, policy):
    numbers = policy.to_dict()
    (tmp_path / "p.json").write_text(json.dumps(numbers))
    (tmp_path / "p.toml").write_text(
        'family = "gaussian"\nweights = [[0.2], [-0.1]]\nbias = 0.1\nscale = 0.3\n'
    )
    np.savez(tmp_path / "p.npz", **{name: value for name, value in numbers.items() if value is not None})
    for suffix in ("json", "toml", "npz"):
        assert load_policy(tmp_path / f"p.{suffix}") == policy


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.pkl", b"", "a policy is read from .json, .toml, .npz"),
        ("p.json", b"[1, 2]", "must be an object"),
        ("p.json", b"{", "not a JSON file"),
        ("p.json", b"\xff", "not UTF-8 text"),
        ("p.npz", b"PK\x03\x04rubbish", "not an .npz file of plain arrays"),
        ("p.toml", b"family = 3", "policy family 3 is not known"),
    ],
)
def test_load_policy__errors_name_the_file(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_policy(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_load_policy__nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "p.npz", family=np.array({"a": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="file of plain arrays"):
        load_policy(tmp_path / "p.npz")


@pytest.mark.slow
def test_fit__by_file_by_options_and_again(config, policy, capsys):
    folder = config.parent
    assert main(["fit", str(config), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["run"] == str(folder / "run")
    assert summary["fit"]["converged"]
    model = KEDRL.load(folder / "run" / "model")
    expected = load_config(config).model().fit(folder / "store", policy, progress="none")
    asked = {"state": np.zeros((1, 2)), "action": np.zeros((1, 1)), "at": expected.grid_}
    values = expected.embed(**asked)
    np.testing.assert_allclose(model.embed(**asked), values, rtol=0, atol=1e-8 * np.abs(values).max())
    for source in (config, folder / "run"):  # it is finished: nothing is done
        assert main(["fit", str(source)]) == 0
        assert "The model is in" in capsys.readouterr().out
    (folder / "p.json").write_text(json.dumps(policy.to_dict()))
    options = ["--policy", str(folder / "p.json"), "--discount", "0.9", "--run", str(folder / "other")]
    sizes = ["--atoms", "8", "--basis", "12", "--landmarks", "20", "--features", "12"]
    assert main(["fit", str(folder / "store"), *options, *sizes]) == 0
    assert KEDRL.load(folder / "other" / "model").n_atoms == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such file or directory"),
        (["{folder}/store"], "a store of transitions needs --policy too"),
        (["{folder}/store", "--policy", "p.json"], "needs --discount too"),
        (["{folder}/fit.toml", "--atoms", "9"], "has its own atoms; leave the option out"),
        (["{folder}/fit.toml", "--discount", "0.5"], "has its own discount; leave the option out"),
        (["{folder}/store", "--policy", "p.json", "--discount", "0.9"], "p.json"),
    ],
)
def test_fit__bad_usage(config, arguments, message, capsys):
    folder = str(config.parent)
    assert main(["fit", *(argument.format(folder=folder) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (config.parent / "run").exists()


def test_fit__dry_run_writes_nothing(config, capsys):
    before = sorted(config.parent.rglob("*"))
    assert main(["fit", str(config), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == str(config.parent / "run")
    assert found["plan"]["totals"]
    assert main(["fit", str(config), "--dry-run"]) == 0
    assert "to be begun" in capsys.readouterr().out
    assert sorted(config.parent.rglob("*")) == before


def test_load_config__errors_name_the_line(config):
    for old, new, line in (("n_atoms = 8", "n_atoms = 8.5", 13), ("discount = 0.9", "discount = 2.0", 3)):
        config.write_text(CONFIG.replace(old, new))
        with pytest.raises(ValueError, match=rf"fit.toml: line {line}: \[settings\] KEDRL"):
            load_config(config)


def test_fit__several_policies_are_for_evaluate(config, capsys):
    config.write_text(CONFIG.replace("[policy]", "[policies.a]") + '\n[policies.b]\nfile = "p.json"\n')
    numbers = {"family": "gaussian", "weights": [[0.2], [-0.1]], "scale": 0.3}
    (config.parent / "p.json").write_text(json.dumps(numbers))
    assert main(["fit", str(config)]) == 2
    assert "has the policies a, b, but a fit takes one" in capsys.readouterr().err


def test_fit__other_settings_in_a_run_are_refused(config, capsys):
    assert main(["fit", str(config)]) == 0
    config.write_text(CONFIG.replace("n_atoms = 8", "n_atoms = 9"))
    assert main(["fit", str(config)]) == 2
    assert "settings n_atoms was 8, now 9" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(Stopped("no workers"), 4), (PoisonError("chunk 3 kills"), 4)])
def test_fit__stopped_has_its_own_code(config, error, code, capsys, monkeypatch):
    def stop(*_):
        raise error

    monkeypatch.setattr("kedrl_dask.estimator.fit_model.run_fit", stop)
    assert main(["fit", str(config)]) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"kedrl: stopped: {error}; finished work is kept in {config.parent / 'run'}")


#: ``python -m kedrl_dask`` that keeps its first step at once: its log tells when the solver is at work.
EAGER = """
import runpy
from kedrl_dask.engine.storage.checkpoints import Checkpoints

Checkpoints.is_due = property(lambda self: not self._numbers())
runpy.run_module("kedrl_dask", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_sigterm__stops_workers_and_keeps_the_run(config):
    """As at the end of a job's time."""
    endless = '{ name = "adamw", n_iterations = 100_000_000, patience = 100_000_000 }'
    config.write_text(CONFIG.replace('{ name = "pcg", tolerance = 1e-9 }', endless))
    run = config.parent / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", EAGER, "fit", str(config), "--cluster", "local=1"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        while not (run / "log.jsonl").exists() or '"checkpoint"' not in (run / "log.jsonl").read_text():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert workers
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143
    assert f"kedrl: terminated; finished work is kept in {run}" in error
    assert not psutil.wait_procs(workers, timeout=300)[1]
    assert (run / "log.jsonl").read_text().count('"checkpoint"') == 2, "the last step is kept too"
