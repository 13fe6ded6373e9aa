"""Descriptions of clusters, job scripts, and listings of batch systems, without a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from kedrl_dask.cli import main
from kedrl_dask.engine.clusters.batch_systems import QUEUES, QueueError
from kedrl_dask.engine.clusters.descriptions import (
    BATCH,
    KINDS,
    Address,
    Jobs,
    Local,
    Threads,
    chosen_cluster,
    describe_cluster,
    parse_cluster,
)
from kedrl_dask.engine.clusters.jobqueue import job_script, lifetime
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.service.config import load_config
from tests.cli.test_fit import CONFIG
from tests.conftest import LOOPBACK
from tests.test_architecture import PACKAGE

ROOT = PACKAGE.parent
JOB = {"cores": 4, "memory": "16 GiB", "walltime": "04:00:00"}
SLURM = {"kind": "slurm", **JOB}


def write_config(folder, cluster):
    (folder / "fit.toml").write_text(CONFIG + cluster)
    return folder / "fit.toml"


def test_describe__what_the_table_says(tmp_path):
    found = describe_cluster(SLURM | {"queue": "short", "minimum": 1, "maximum": 8}, tmp_path)
    assert isinstance(found, Jobs)
    assert (found.kind, found.cores, found.memory, found.queue) == ("slurm", 4, 16 * 2**30, "short")
    assert found.is_adaptive
    assert found.first_jobs == 1
    assert found.log_directory == tmp_path / "cluster-logs"
    assert describe_cluster({"kind": "threads"}) == Threads()
    assert describe_cluster({"kind": "local", "workers": 3}) == Local(workers=3)
    assert describe_cluster(SLURM | {"log_directory": "/logs"}, tmp_path).log_directory == Path("/logs")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "kind must be one of threads, local, slurm, pbs, sge, lsf, kubernetes, address, got None"),
        ({"kind": "slrum"}, "kind must be one of .* got 'slrum'"),
        ({"kind": "local", "jobs": 3}, "jobs is not a key of a local cluster; its keys are kind"),
        ({"kind": "local", "workers": 0}, "workers must be a whole number from 1"),
        ({"kind": "local", "workers": True}, "workers must be a whole number"),
        ({"kind": "local", "host": "a b"}, "host must be a host name or address"),
        ({"kind": "address", "address": "host:1"}, "address must be the address of a scheduler, tls://"),
        (SLURM | {"memory": "much"}, "memory must be .* text such as '2 GiB', at least 1 MiB, got 'much'"),
        (SLURM | {"memory": 16}, "memory must be .* at least 1 MiB, got 16"),
        (SLURM | {"walltime": "30"}, "walltime must be at least a minute, as .*got '30'"),
        (SLURM | {"walltime": "4:00"}, "walltime must be .*got '4:00'"),
        (SLURM | {"walltime": 240}, "walltime must be .*got 240"),
        (SLURM | {"queue": "a; rm -rf b"}, "queue must be the name of a queue"),
        (SLURM | {"queue": "a\n#SBATCH -w b"}, "queue must be a single line of text"),
        (SLURM | {"interface": "$(id)"}, "interface must be the name of a network interface"),
        (SLURM | {"local_directory": "/a b"}, "local_directory must be a path without spaces"),
        (SLURM | {"local_directory": "/a;b"}, "local_directory must be a path without spaces"),
        (SLURM | {"log_directory": "my logs"}, "log_directory must be a path without spaces"),
        (SLURM | {"directives": "--exclusive"}, "directives must be a list of lines"),
        (SLURM | {"directives": ["--a\nrm b"]}, "directives must be a single line of text"),
        (SLURM | {"processes": 5}, "processes must not exceed cores, got 5 and 4"),
        (SLURM | {"jobs": 2, "maximum": 4}, "jobs is a fixed number and cannot be combined with"),
        (SLURM | {"minimum": 2}, "minimum needs a maximum"),
        (SLURM | {"minimum": 5, "maximum": 4}, "minimum must not exceed maximum, got 5 and 4"),
        (SLURM | {"authority": "ca.pem"}, "authority, certificate and private_key go together"),
        ({"kind": "kubernetes", "namespace": "A_b"}, "namespace must be the name of a namespace"),
    ],
)
def test_describe__errors_name_the_key(table, message):
    with pytest.raises(ValueError, match=message):
        describe_cluster(table)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ('[cluster]\nkind = "slrum"', r"\[cluster\] kind must be one of"),
        ('[cluster]\nkind = "slurm"\npartition = "x"', "unknown key 'cluster.partition'"),
        ('[cluster]\nkind = "slurm"\nmemroy = "x"', "unknown key 'cluster.memroy'; did you mean 'memory'"),
        ('[cluster]\nkind = "slurm"\nwalltime = "soon"', r"\[cluster\] walltime must be"),
    ],
)
def test_config__errors_name_file_and_key(tmp_path, cluster, message, capsys):
    config = write_config(tmp_path, cluster)
    with pytest.raises(ValueError, match=message) as caught:
        load_config(config)
    assert str(caught.value).startswith(f"{config}: ")
    assert main(["fit", str(config)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_option__takes_the_rest_from_the_file(tmp_path):
    described = load_config(
        write_config(tmp_path, '[cluster]\nkind = "slurm"\ncores = 2\nmaximum = 4')
    ).cluster
    assert chosen_cluster(None, described) is described
    assert chosen_cluster(None, None) is None
    assert chosen_cluster(parse_cluster("slurm"), described) is described
    fixed = chosen_cluster(parse_cluster("slurm=3"), described)
    assert (fixed.jobs, fixed.cores, fixed.is_adaptive) == (3, 2, False)
    assert chosen_cluster(parse_cluster("local=3"), described) == Local(workers=3)
    address = chosen_cluster(parse_cluster("address=tls://host:8786"), described)
    assert address == Address(address="tls://host:8786")
    assert {chosen_cluster(parse_cluster(kind), None).kind for kind in KINDS} == set(KINDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slrum", "'slrum' is not a kind of cluster; choose one of threads, local"),
        ("local=0", "workers must be a whole number from 1"),
        ("local=many", "workers must be a whole number"),
        ("local=", "workers must be a whole number"),
        ("slurm=99999999999999", "jobs must be a whole number"),
        ("address=host", "address must be the address of a scheduler"),
        ("", "'' is not a kind of cluster"),
    ],
)
def test_option__bad_usage(text, message, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "run.toml", "--cluster", text])
    assert message in capsys.readouterr().err


def test_open__threads_none_and_address(monkeypatch):
    with open_cluster(None) as executor:
        assert executor is None
    with open_cluster(Threads(threads=2)) as executor:
        assert isinstance(executor, ThreadExecutor)
        assert executor.n_threads == 2
    with pytest.raises(ValueError, match="the address of the scheduler is missing"), open_cluster(Address()):
        pass


@pytest.mark.slow
def test_open__local_and_its_address_from_the_environment():
    with open_cluster(Local(workers=1)) as executor:
        assert executor.map(abs, [-1, 2]) == [1, 2]
        with (
            dask.config.set({"scheduler-address": executor._client.scheduler.address}),
            open_cluster(Address()) as other,
        ):
            assert other.map(abs, [-3]) == [3]


@pytest.mark.parametrize(
    ("walltime", "expected"),
    [(3600, (3000, 300)), (4 * 3600, (4 * 3600 - 600, 300)), (600, (480, 60)), (60, (48, 6))],
)
def test_lifetime__ends_short_of_the_walltime(walltime, expected):
    seconds, stagger = lifetime(walltime)
    assert (seconds, stagger) == expected
    assert seconds + stagger <= walltime - min(300, 0.1 * walltime)


WORKER = "-m distributed.cli.dask_worker <scheduler> --name <name> --nthreads 1 --memory-limit 4.00GiB"
SCRIPTS = {
    "slurm": [
        "#SBATCH -J kedrl-worker", "#SBATCH -p short", "#SBATCH -A team", "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=4", "#SBATCH --mem=16G", "#SBATCH -t 04:00:00", "#SBATCH --no-requeue",
        "#SBATCH -x one", "#SBATCH -o {logs}/kedrl-worker-%J.out", "#SBATCH -e {logs}/kedrl-worker-%J.err",
    ],
    "pbs": [
        "#PBS -N kedrl-worker", "#PBS -q short", "#PBS -A team", "#PBS -l select=1:ncpus=4:mem=16GB",
        "#PBS -l walltime=04:00:00", "#PBS -r n", "#PBS -x one", "#PBS -o {logs}/", "#PBS -e {logs}/",
    ],
    "sge": [
        "#$ -N kedrl-worker", "#$ -q short", "#$ -P team", "#$ -l h_rt=04:00:00", "#$ -r n", "#$ -x one",
        "#$ -o {logs}/", "#$ -e {logs}/",
    ],
    "lsf": [
        "#BSUB -J kedrl-worker", "#BSUB -q short", '#BSUB -P "team"', "#BSUB -n 4",
        '#BSUB -R "span[hosts=1]"', "#BSUB -M 17179870", "#BSUB -W 04:00", "#BSUB -rn", "#BSUB -x one",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", BATCH)
def test_job_script__of_each_batch_system(kind, tmp_path):
    table = {
        **JOB, "kind": kind, "queue": "short", "account": "team", "interface": "lo", "directives": ["-x one"],
        "prologue": ["module load python"], "local_directory": "$TMPDIR/dask", "log_directory": "logs",
    }  # fmt: skip
    lines = job_script(describe_cluster(table, tmp_path)).splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    directive = SCRIPTS[kind][0].split()[0]
    found = {line for line in lines if line.startswith(f"{directive} ")}
    assert found >= {line.format(logs=tmp_path / "logs") for line in SCRIPTS[kind]}
    command = lines[-1]
    assert lines[lines.index(command) - 1] == "module load python"
    assert command.startswith(f"{sys.executable} {WORKER} --nworkers 4 --nanny")
    for option in (
        "--lifetime 13800s --lifetime-stagger 300s",
        "--dashboard-address 127.0.0.1:0",
        "--interface lo",
        "--local-directory $TMPDIR/dask",
    ):
        assert option in command
    assert "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False" in lines


@pytest.mark.parametrize("kind", BATCH)
def test_job_script__what_is_left_out_is_the_sites(kind):
    with pytest.raises(ValueError, match=f"a {kind} cluster needs the cores of a job: set cores in the"):
        job_script(Jobs(kind=kind))
    given = {"cores": 2, "memory": "2GB", "queue": "site", "job-extra-directives": ["-y two"]}
    site = {f"jobqueue.{kind}.{key}": value for key, value in given.items()}
    with dask.config.set(site):
        script = job_script(Jobs(kind=kind))
    assert "--nworkers 2" in script
    assert "site" in script
    assert "-y two" in script
    assert QUEUES[kind].no_requeue in script
    assert "--lifetime 1440s" in script  # of half an hour, dask-jobqueue's own default


@pytest.mark.slow
def test_jobs__the_import_leaves_interrupts_alone():
    code = (
        "import signal; from kedrl_dask.engine.clusters.descriptions import describe_cluster; "
        "from kedrl_dask.engine.clusters.jobqueue import job_script; "
        "job_script(describe_cluster({'kind': 'slurm', 'cores': 1, 'memory': '1GiB'})); "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {code}"],
        capture_output=True, text=True, check=True, timeout=200, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_jobs__missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ValueError, match=r"pip install 'kedrl-dask\[jobqueue\]'"):
        job_script(describe_cluster(SLURM))


def test_kubernetes__missing_package_and_manifest(monkeypatch, tmp_path):
    table = {"kind": "kubernetes", "manifest": "cluster.yaml"}
    with pytest.raises(ValueError, match="needs the manifest of a DaskCluster"):
        open_cluster(describe_cluster({"kind": "kubernetes"})).__enter__()
    with pytest.raises(FileNotFoundError, match=r"cluster.yaml: no such file, expected the manifest"):
        open_cluster(describe_cluster(table, tmp_path)).__enter__()
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", None)
    with pytest.raises(ValueError, match=r"pip install 'kedrl-dask\[kubernetes\]'"):
        open_cluster(describe_cluster(table, tmp_path)).__enter__()


def program(folder, name, text, code=0):
    """A command first on the path that prints a text."""
    file = folder / name
    stream = "2" if code else "1"
    file.write_text(f"#!/bin/sh\ncat >&{stream} <<'END'\n{text}\nEND\nexit {code}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return lambda name, text, code=0: program(tmp_path, name, text, code)


def test_missing_commands__are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(ValueError, match="the command sbatch is not found: submit Slurm jobs from a"),
        open_cluster(describe_cluster(SLURM | {"interface": "lo"}, tmp_path)),
    ):
        pass


def test_unknown_interface__names_those_there(tmp_path, programs):
    for name in ("sbatch", "squeue"):
        programs(name, "")
    described = describe_cluster(SLURM | {"interface": "nope0"}, tmp_path)
    with (
        pytest.raises(ValueError, match=r"'nope0' is not a valid network interface.*'lo'"),
        open_cluster(described),
    ):
        pass


@pytest.fixture
def interrupted_clients(monkeypatch):
    """Press Ctrl-C while a Dask client is being created; return the list of all such clients."""
    connect, begun = Client._ensure_connected, []

    async def interrupted(self, timeout=None):
        begun.append(self)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.sleep(0.1)
        return await connect(self, timeout=timeout)

    monkeypatch.setattr(Client, "_ensure_connected", interrupted)
    return begun


def assert_interrupted(described, clients):
    """No client is left that would wait for a stopped event loop at the end of the process."""
    with pytest.raises(KeyboardInterrupt), open_cluster(described):
        pytest.fail("it began")
    assert [client.status for client in clients] == ["closed"]


def test_open__jobs_interrupted_as_they_are_submitted(tmp_path, programs, interrupted_clients):
    programs("sbatch", "Submitted batch job 12")
    programs("squeue", "12 PENDING Resources")
    (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/cancelled\n')
    (tmp_path / "scancel").chmod(0o700)
    assert_interrupted(describe_cluster(SLURM | {"interface": "lo"}, tmp_path), interrupted_clients)
    assert (tmp_path / "cancelled").read_text() == "12\n"


@pytest.mark.slow
def test_open__local_interrupted_as_it_opens(interrupted_clients):
    assert_interrupted(Local(workers=1), interrupted_clients)


def test_open__address_interrupted_as_it_answers(interrupted_clients):
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", **LOOPBACK) as cluster:
        assert_interrupted(Address(address=cluster.scheduler_address), interrupted_clients)


LISTINGS = {
    "slurm": (
        "squeue",
        "12 RUNNING None\n13 PENDING Resources\n14 COMPLETING None",
        {"12": "RUNNING None", "13": "PENDING Resources"},
    ),
    "pbs": (
        "qstat",
        "Job id            Name             User              Time Use S Queue\n"
        "----------------  ---------------- ----------------  -------- - -----\n"
        "12.server         kedrl-worker     me                00:00:01 R short\n"
        "13.server         kedrl-worker     me                       0 Q short\n"
        "14.server         kedrl-worker     me                00:00:01 C short\n",
        {"12": "R", "13": "Q"},
    ),
    "sge": (
        "qstat",
        "job-ID  prior   name       user  state submit/start at     queue     slots ja-task-ID\n"
        "--------------------------------------------------------------------------------------\n"
        "     12 0.55500 kedrl-work me    r     11/17/2026 12:00:00 all.q@n1      4\n"
        "     13 0.55500 kedrl-work me    qw    11/17/2026 12:00:00               4\n",
        {"12": "r", "13": "qw"},
    ),
    "lsf": ("bjobs", "12 RUN\n13 PEND\n14 EXIT", {"12": "RUN", "13": "PEND"}),
}


@pytest.mark.parametrize("kind", BATCH)
def test_queue__jobs_that_are_there(kind, programs):
    command, text, expected = LISTINGS[kind]
    programs(command, text)
    assert QUEUES[kind].states() == expected
    programs(command, "")
    assert QUEUES[kind].states() == {}
    programs(command, "slurm_load_jobs error: Unable to contact slurm controller", code=1)
    with pytest.raises(QueueError, match=f"{command} ended with code 1: slurm_load_jobs error"):
        QUEUES[kind].states()


def test_queue__no_jobs_is_no_failure(programs):
    programs("bjobs", "No unfinished job found", code=255)
    assert QUEUES["lsf"].states() == {}


def test_verb__shows_jobs_script_and_queue(tmp_path, programs, capsys):
    table = (
        '[cluster]\nkind = "slurm"\ncores = 4\nmemory = "16 GiB"\nminimum = 1\nmaximum = 8\ninterface = "lo"'
    )
    config = write_config(tmp_path, table)
    programs("sbatch", "")
    programs("squeue", "12 PENDING Resources")
    assert main(["cluster", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["minimum"], found["maximum"], found["workers_per_job"]) == (1, 8, 4)
    assert found["memory_per_worker"] == 4 * 2**30
    assert found["scheduler"] == "127.0.0.1"
    assert found["queue"] == {"12": "PENDING Resources"}
    assert found["commands"]["sbatch"] == str(tmp_path / "sbatch")
    assert "#SBATCH --cpus-per-task=4" in found["script"].splitlines()
    assert main(["cluster", str(config), "--cluster", "slurm=3"]) == 0
    text = capsys.readouterr().out
    assert "memory per worker  4.00 GiB\n" in text
    assert "jobs               3\n" in text
    assert "12: PENDING Resources\n" in text
    assert text.rstrip().endswith("--interface lo")


def test_verb__without_the_batch_system(tmp_path, monkeypatch, capsys):
    """Missing commands are reported, and the script is shown nevertheless."""
    config = write_config(tmp_path, '[cluster]\nkind = "pbs"\ncores = 1\nmemory = "1 GiB"\ninterface = "lo"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["cluster", str(config)]) == 0
    text = capsys.readouterr().out
    assert "commands           qsub: not found, qstat: not found\n" in text
    assert "#PBS -l select=1:ncpus=1:mem=1024MB" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"kind": "threads"}),
        (["--cluster", "threads=3"], {"kind": "threads", "threads": 3}),
        (["--cluster", "local=2"], {"kind": "local", "workers": 2, "tls": "none, because it is on loopback"}),
    ],
)
def test_verb__of_this_machine(arguments, expected, capsys):
    assert main(["cluster", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).items() >= expected.items()


def test_verb__what_is_missing_is_bad_input(capsys):
    assert main(["cluster", "--cluster", "kubernetes"]) == 2
    assert "needs the manifest of a DaskCluster" in capsys.readouterr().err
    assert main(["cluster", "--cluster", "slurm"]) == 2
    assert "a slurm cluster needs the cores of a job" in capsys.readouterr().err
