"""How ``kedrl`` starts: nothing heavy for its help, no traceback for Ctrl-C, and completion for shells."""

from __future__ import annotations

import argparse
import ast
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import kedrl_dask
from kedrl_dask.cli import main, make_parser
from kedrl_dask.cli.common import VERBS

HEAVY = (
    "numba",
    "scipy",
    "sklearn",
    "dask",
    "distributed",
    "zarr",
    "matplotlib",
    "bokeh",
    "pandas",
    "xarray",
)
ROOT = Path(__file__).parents[2]


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "import kedrl_dask",
        "from kedrl_dask.__main__ import main; sys.argv = ['kedrl', '--help']; main()",
        "from kedrl_dask.cli import main; main([])",
        "from kedrl_dask.cli import main; main(['--version'])",
    ],
)
def test_start__imports_nothing_heavy(statement):
    code = (
        "import sys, atexit, json\n"
        "names = " + repr(HEAVY) + "\n"
        "atexit.register(lambda: print('\\n' + json.dumps([n for n in names if n in sys.modules])))\n"
    )
    done = python("-c", code + statement)
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr


def test_help__takes_no_time():
    """Half a second of the processor where it is slow; what else the machine does is no matter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert python("-m", "kedrl_dask", "--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_package__names_are_there_for_readers_and_type_checkers():
    for name in kedrl_dask.__all__:
        assert getattr(kedrl_dask, name) is not None
    assert set(kedrl_dask.__all__) <= set(dir(kedrl_dask))
    with pytest.raises(AttributeError, match="has no attribute 'KEDLR'"):
        _ = kedrl_dask.KEDLR
    tree = ast.parse(Path(kedrl_dask.__file__).read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {alias.name for node in typed.body for alias in node.names}
    assert names == set(kedrl_dask.__all__) - {"__version__"}


def test_verbs__each_has_a_module_examples_and_exit_codes(capsys):
    parser = make_parser(*VERBS)
    (verbs,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(verbs.choices) == set(VERBS)
    for name, own in verbs.choices.items():
        help_text = own.format_help()
        assert "exit codes:" in help_text, name
        assert f"examples:\n  kedrl {name}" in help_text, name
        assert own.get_default("run") is not None
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in VERBS)
    assert "examples:" in said


@pytest.mark.slow
def test_interrupt__during_imports_is_one_line():
    """A module that the command needs is slow to import, and Ctrl-C comes then."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Slow:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == {name!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from kedrl_dask.__main__ import main\n"
        "sys.argv = ['kedrl', 'plan', 'nowhere']\n"
        "sys.exit(main())\n"
    )
    for name in ("kedrl_dask.cli.common", "kedrl_dask.estimator.kedrl"):
        done = python("-c", code.replace("{name!r}", repr(name)))
        assert (done.returncode, done.stderr) == (130, "kedrl: interrupted\n"), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__script_knows_verbs_and_options(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("evaluate", "doctor", "dry-run", "landmarks", "coverage"):
        assert word in script
    if shutil.which(shell) is None:
        return
    (tmp_path / "script").write_text(script)
    checked = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    if shell == "bash":
        ask = (
            f"source {tmp_path / 'script'}; COMP_WORDS=(kedrl ev); COMP_CWORD=1; COMP_LINE='kedrl ev'; "
            "COMP_POINT=8; _shtab_kedrl; echo ${COMPREPLY[@]}"
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["evaluate"], done.stderr


def test_doctor__says_what_it_found(tmp_path, capsys):
    code = main(["doctor", str(tmp_path), "--seconds", "0", "--json"])
    found = json.loads(capsys.readouterr().out)
    status = {check["name"]: check["status"] for check in found["checks"]}
    assert set(status) == {"versions", "BLAS", "memory", "Zarr", "network", "TLS", "Slurm"}
    assert found["well"] == (code == 0)
    assert status["Zarr"] in ("good", "caution")
    assert list(tmp_path.iterdir()) == []
    main(["doctor", str(tmp_path), "--seconds", "0"])
    assert "MiB/s" in capsys.readouterr().out


def test_doctor__what_is_wrong_has_a_remedy_and_a_code(tmp_path, capsys, monkeypatch):
    from kedrl_dask.engine.clusters import opening

    reach_scheduler = opening.reach_scheduler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.service.doctor.requires", lambda _: ["numpy>=99.0", "nonesuch>=1.0"])
        patch.setattr(opening, "reach_scheduler", lambda address, _: reach_scheduler(address, 0.5))
        assert main(["doctor", str(tmp_path), "--seconds", "0", "--scheduler", "tcp://127.0.0.1:9"]) == 8
    said = capsys.readouterr()
    assert "numpy>=99.0, found" in said.out
    assert "nonesuch>=1.0, found none" in said.out
    assert "tcp://127.0.0.1:9" in said.out
    assert said.out.count("remedy: ") >= 2
    assert said.err == "kedrl: something is wrong: versions, scheduler\n"
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2


def test_doctor__scheduler_that_answers(tmp_path):
    from distributed import LocalCluster

    from kedrl_dask.service.doctor import examine
    from tests.conftest import LOOPBACK

    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "protocol": "tcp"}
    with LocalCluster(**options, **LOOPBACK) as cluster:
        (check,) = (c for c in examine(tmp_path, cluster.scheduler_address, 0) if c.name == "scheduler")
    assert check.status == "good"
    assert "1 workers of 2 threads" in check.found


def test_doctor__limits_of_the_process(monkeypatch):
    from kedrl_dask.engine.clusters import opening
    from kedrl_dask.service import doctor

    cores, memory = opening.granted()
    assert 1 <= cores <= os.cpu_count()
    assert 0 < memory <= psutil.virtual_memory().total
    two_threads = [{"user_api": "blas", "internal_api": "openblas", "version": None, "num_threads": 2}]
    monkeypatch.setattr(doctor, "threadpool_info", lambda: two_threads)
    monkeypatch.setattr(opening, "granted", lambda: (2, 2**40))
    assert doctor._blas().status == "good"
    assert "limits" not in doctor._memory().found
    monkeypatch.setattr(opening, "granted", lambda: (1, 2**30))
    assert doctor._memory().status == "caution"
    assert "allow 1.0" in doctor._memory().found
    assert doctor._blas().status == "caution"
    assert "OMP_NUM_THREADS=1" in doctor._blas().remedy


def test_doctor__versions_that_are_left_out(monkeypatch):
    from kedrl_dask.service import doctor

    monkeypatch.setattr(doctor, "requires", lambda _: ["numpy!=2.5.4,>=2.0", "pandas>=2; extra == 'none'"])
    monkeypatch.setattr(doctor, "_installed", {"numpy": "2.5.3", "kedrl-dask": "1"}.get)
    (check,) = doctor._versions()
    assert check.status == "good"
    assert "pandas" not in check.found
    monkeypatch.setattr(doctor, "_installed", {"numpy": "2.5.4", "kedrl-dask": "1"}.get)
    (check,) = doctor._versions()
    assert check.status == "wrong"
    assert "found 2.5.4" in check.found


def test_doctor__a_blas_that_crashes(monkeypatch):
    from kedrl_dask.engine.clusters import opening
    from kedrl_dask.service import doctor

    blas = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.34.106.0", "num_threads": 2}
    monkeypatch.setattr(opening, "granted", lambda: (2, 2**40))
    for kernels, status in {"SkylakeX": "good", "Zen": "wrong", "Haswell": "wrong"}.items():
        monkeypatch.setattr(doctor, "threadpool_info", lambda own=kernels: [blas | {"architecture": own}])
        assert doctor._blas().status == status
    assert "OPENBLAS_NUM_THREADS=1" in doctor._blas().remedy


def test_doctor__what_killed_a_small_fit(monkeypatch):
    from kedrl_dask.service import doctor

    died = subprocess.CompletedProcess([], -11, "", "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: died)
    assert "killed by SIGSEGV" in doctor._fit(1).found


def test_doctor__what_small_fits_may_be_off_by(monkeypatch):
    """The fits themselves are run by test_determinism."""
    from kedrl_dask.service import doctor

    answer = {"rmse": 0.01, "differences": {"one worker": 0.0, "two workers": 1e-9}}
    monkeypatch.setattr(
        doctor.subprocess, "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, json.dumps(answer), ""),
    )  # fmt: skip
    assert doctor._fit(1).status == "good"
    answer["differences"]["two workers"] = 1e-7
    assert doctor._fit(1).status == "wrong"
    answer |= {"rmse": 0.05, "differences": {"one worker": 0.0}}
    assert doctor._fit(1).status == "wrong"
