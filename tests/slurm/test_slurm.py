"""Fits on jobs of a real Slurm, and what happens when jobs are cancelled or their time is up.

Two tests are always run; the others are extended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kedrl_dask import KEDRL, TransitionStore
from kedrl_dask.cli import main
from kedrl_dask.engine.clusters.descriptions import describe_cluster
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.service.config import load_config
from tests.cli.test_fit import CONFIG
from tests.conftest import make_episodes, need
from tests.slurm import control
from tests.slurm.control import wait_for
from tests.test_architecture import PACKAGE
from tests.test_deploy import shell_blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the data ask for"),
    pytest.mark.timeout(1_200),
]

ROOT = PACKAGE.parent
#: Long enough to be interrupted: every step is a round trip to the workers.
SLOW = CONFIG.replace(
    '{ name = "pcg", tolerance = 1e-9 }', '{ name = "adamw", n_iterations = 500, evaluate_every = 1 }'
)
JOBS = {
    "kind": "slurm", "jobs": 2, "cores": 1, "memory": "1 GiB", "walltime": "00:10:00", "queue": "short",
    "interface": "lo", "log_directory": "logs", "watch_seconds": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Slurm's commands."""
    remedy = "as root, with Debian's slurmctld, slurmd, slurm-client and munge, they run"
    need("slurm", not control.missing() and os.geteuid() == 0, remedy)
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        try:
            environment = control.start(folder)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
            patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
            yield control.run
        finally:
            control.stop(folder)


@pytest.fixture(autouse=True)
def _all_nodes(slurm):
    """Every test begins with idle nodes and no jobs."""
    yield
    for job in queue(slurm):
        slurm("scancel", job)
    for node in control.NODES:
        resume(slurm, node)
    wait_for(lambda: not slurm("squeue", "--noheader"), "jobs to end")


@pytest.fixture
def data(tmp_path):
    TransitionStore.from_arrays(tmp_path / "store", **make_episodes(30, 9))
    return tmp_path


def write(folder, fit=SLOW, **changes):
    """A file that describes a fit on jobs."""
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in {**JOBS, **changes}.items() if value is not None
    ]
    (folder / "fit.toml").write_text("\n".join([fit, "[cluster]", *lines]))
    return folder / "fit.toml"


def queue(slurm, state="all"):
    """Ids of jobs that are waiting or running, or one of these; not of those that are being ended."""
    lines = [line.split() for line in slurm("squeue", "--noheader", "--format=%i %T").splitlines()]
    return [job for job, found in lines if state in ("all", found) and found != "COMPLETING"]


def drain(slurm, node):
    """No job starts there."""
    slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")


def resume(slurm, node):
    if "drain" in slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%T"):
        slurm("scontrol", "update", f"nodename={node}", "state=resume")


def start(*command, **options):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def kedrl(*arguments):
    return start(sys.executable, "-m", "kedrl_dask", *map(str, arguments))


def events(run):
    """What the log of a run has so far."""
    log = run / "log.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines if line]


def in_solver(run):
    return any(event.get("stage") == "solver" for event in events(run))


def assert_as_local(config, run):
    """The same embeddings as a fit in threads of this process."""
    described = load_config(config)
    local = described.model().fit(described.data, described.policy, progress="none")
    inputs = np.array([[0.0, 0.0], [0.5, -0.5], [-1.0, 0.3]]), np.array([[0.0], [0.4], [-0.2]])
    at = np.array([[0.0, 0.0], [1.0, -1.0], [-0.5, 2.0], [2.0, 1.0]])
    found, expected = KEDRL.load(run / "model").embed(*inputs, at), local.embed(*inputs, at)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def squares(number):
    time.sleep(0.1)
    return number**2


@pytest.mark.slow
def test_fit__a_worker_job_is_cancelled_in_the_middle(slurm, data, certificates):
    """It ends all the same, as a local fit does; the job is replaced, and none is left."""
    names = dict(zip(("authority", "certificate", "private_key"), map(str, certificates), strict=True))
    config = write(data, **names)
    process = kedrl("fit", config, "--json")
    try:
        wait_for(lambda: in_solver(data / "run") or process.poll() is not None, "the solver", 300)
        wait_for(lambda: len(queue(slurm, "RUNNING")) == 2 or process.poll() is not None, "jobs")
        slurm("scancel", queue(slurm, "RUNNING")[0])
        output, error = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode in (0, 3), error  # AdamW may not converge, which is no matter here
    assert json.loads(output)["run"] == str(data / "run")
    assert "Slurm jobs submitted: " in error
    assert "Slurm jobs ended prematurely: " in error
    assert queue(slurm) == []
    assert_as_local(config, data / "run")
    logs = [file.read_text() for file in (data / "logs").glob("kedrl-worker-*.err")]
    assert len(logs) >= 2
    assert sum(bool(re.search(r"Start worker at: +tls://127\.0\.0\.1:", log)) for log in logs) >= 2


@pytest.mark.extended
@pytest.mark.parametrize("number", [{"jobs": 2}, {"jobs": None, "minimum": 2, "maximum": 2}], ids=str)
def test_watchdog__pending_and_running_jobs_are_cancelled(slurm, tmp_path, number):
    """A fixed and an adaptive cluster come back to two jobs, from one and from none."""
    table = {**JOBS, **number, "directives": ["--exclusive"]}
    described = describe_cluster({key: value for key, value in table.items() if value is not None}, tmp_path)
    drain(slurm, "n2")
    with open_cluster(described, patience=120) as executor:
        assert executor.n_workers == 1
        (waiting,) = wait_for(lambda: queue(slurm, "PENDING"), "a job that waits for a node")
        slurm("scancel", waiting)
        (other,) = wait_for(
            lambda: set(queue(slurm, "PENDING")) - {waiting}, "one in place of the job that waited"
        )
        resume(slurm, "n2")
        wait_for(lambda: executor.n_workers == 2, "both workers")
        before = queue(slurm)
        assert other in before
        slurm("scancel", *before)
        assert executor.map(squares, range(8)) == [number**2 for number in range(8)]
        assert not set(queue(slurm)) & set(before)
    assert queue(slurm) == []


@pytest.mark.slow
def test_fit__interrupted_while_it_waits(slurm, data):
    """Ctrl-C cancels the jobs, those that wait too."""
    for node in control.NODES:
        drain(slurm, node)
    process = kedrl("fit", write(data))
    try:
        wait_for(lambda: len(queue(slurm, "PENDING")) == 2 or process.poll() is not None, "jobs", 240)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert "kedrl: interrupted; finished work is kept in" in error
    assert "Traceback" not in error
    assert queue(slurm) == []


@pytest.mark.extended
def test_fit__refused_by_slurm(slurm, data, capsys):
    assert main(["fit", str(write(data, queue="nowhere"))]) == 2
    assert (
        "kedrl: error: Slurm rejected the job: sbatch: error: invalid partition specified: nowhere"
        in capsys.readouterr().err
    )
    assert queue(slurm) == []


@pytest.mark.extended
def test_jobs_that_end_at_once__are_given_up(slurm, data, capsys, monkeypatch):
    """Nothing is submitted for ever; five times would take half a minute, as each waits longer."""
    monkeypatch.setattr("kedrl_dask.engine.clusters.watchdog.MOST_FAILURES", 3)
    assert main(["fit", str(write(data, prologue=["exit 3"]))]) == 4
    said = capsys.readouterr().err
    assert "kedrl: stopped: jobs end before any worker has started; see their logs in" in said
    assert queue(slurm) == []


def submit(slurm, folder, *options):
    """The driver as a job; returns its id."""
    script = ROOT / "deploy" / "slurm" / "evaluate.sbatch"
    printed = slurm(
        "sbatch", "--parsable", f"--chdir={folder}", "--partition=drivers", *options, str(script), "fit.toml",
        "--checkpoint-seconds", "0.2",
    )  # fmt: skip
    return printed.strip()


@pytest.mark.extended
def test_driver__its_time_is_up(slurm, data):
    """It leaves a checkpoint, takes its workers along, is requeued, goes on and finishes.

    Whatever the machine's speed: its workers are cancelled, and their node takes no others, so that it is
    still at work when its time, which is cut to whole minutes after its first checkpoint, is up.
    """
    config, run, begin = write(data, queue="workers"), data / "run", time.monotonic()
    driver = submit(slurm, data, "--time=60", "--signal=B:TERM@5")
    log = data / f"kedrl-{driver}.log"
    wait_for(lambda: any(event["event"] == "checkpoint" for event in events(run)), "a checkpoint", 300)
    drain(slurm, "n2")
    slurm("scancel", *(job for job in queue(slurm) if job != driver))
    minutes = 1 + int(time.monotonic() - begin + 30) // 60
    slurm("scontrol", "update", f"jobid={driver}", f"timelimit={minutes}")
    wait_for(lambda: "back into the queue" in log.read_text(), "the end of its time", 180)
    assert [event["error"] for event in events(run) if event["event"] == "stopped"] == ["Terminated"]
    assert set(queue(slurm)) <= {driver}  # its workers are cancelled, and it waits
    slurm("scontrol", "update", f"jobid={driver}", "timelimit=60")
    wait_for(lambda: "start 2 on" in log.read_text(), "its second start")
    resume(slurm, "n2")
    wait_for(lambda: (run / "model").exists() and not queue(slurm), "the run to finish", 400)
    assert "restored" in {event["event"] for event in events(run)}
    assert_as_local(config, run)


@pytest.mark.extended
def test_driver__is_cancelled(slurm, data):
    """It gets the same signal, and stays away; so do its workers."""
    drain(slurm, "n2")
    write(data, queue="workers")
    driver = submit(slurm, data)
    wait_for(lambda: len(queue(slurm)) == 3, "the driver and its jobs", 240)
    slurm("scancel", driver)
    wait_for(lambda: not slurm("squeue", "--noheader"), "all to end")
    assert "JobState=CANCELLED" in slurm("scontrol", "show", "job", driver)
    assert "back into the queue" not in (data / f"kedrl-{driver}.log").read_text()


@pytest.mark.extended
def test_readme__is_followed_from_nothing(slurm, tmp_path, monkeypatch):
    """Everything after the installation, which these tests have behind them."""
    monkeypatch.setenv("KEDRL", str(ROOT))
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")  # as a site's jobqueue.yaml would
    install, *blocks = shell_blocks(ROOT / "deploy" / "slurm" / "README.md")
    assert "pip install" in install
    printed = ""
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        printed += done.stdout
    assert "#SBATCH -p short" in printed
    (log,) = tmp_path.glob("kedrl-*.log")
    assert "The model is in run/model" in log.read_text()
    assert len(list((tmp_path / "cluster-logs").glob("kedrl-worker-*.err"))) == 2
    assert (tmp_path / "run" / "log.jsonl").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
    assert queue(slurm) == []
