"""A real Slurm on this machine, for tests: munged, slurmctld and two slurmd, on loopback and free ports.

::

    python -m tests.slurm start DIR    # prints the variable that Slurm's commands need
    python -m tests.slurm stop DIR

Everything it writes is in DIR. It needs root, and Debian's packages slurmctld, slurmd, slurm-client, munge.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2")
#: Nothing starts or ends at once on a machine that does other things too.
PATIENCE = 60
#: Seconds from a job's end of time to SIGKILL, and until one that was requeued may start again: as long as
#: its credential is valid, two minutes unless set.
KILL_WAIT, CREDENTIAL_SECONDS = 5, 5

CONFIGURATION = """\
ClusterName=kedrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmctldParameters=enable_configless
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={credential}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
OverTimeLimit=0
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port} CPUs=4 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port} CPUs=4 RealMemory=8000
PartitionName=short Nodes=n1,n2 Default=YES MaxTime=1-00:00:00 DefaultTime=10 State=UP
PartitionName=drivers Nodes=n1 MaxTime=1-00:00:00 DefaultTime=10 State=UP
PartitionName=workers Nodes=n2 MaxTime=1-00:00:00 DefaultTime=10 State=UP
"""


def search_path():
    """Where programs are, those for root too."""
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def missing():
    """Programs that are not on this machine."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def start(folder):
    """Start the daemons; returns the environment in which Slurm's commands find them."""
    folder = Path(folder).resolve()
    (folder / "state").mkdir(parents=True)
    ports = free_ports(3)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder, host=socket.gethostname(), controller_port=ports[0], first_port=ports[1],
            second_port=ports[2], kill_wait=KILL_WAIT, credential=CREDENTIAL_SECONDS,
        )
    )  # fmt: skip
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    run(
        "munged", f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed", "--force",
    )  # fmt: skip
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    run("slurmctld", "-c", environment=environment)
    for node in NODES:
        run("slurmd", "-N", node, environment=environment)
    wait_for(lambda: nodes(environment) == ["idle"] * len(NODES), f"the nodes; logs are in {folder}")
    return environment


def stop(folder):
    """End the daemons by their own pid files, after their jobs."""
    folder = Path(folder).resolve()
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    if process_of(folder / "slurmctld.pid"):
        for job in run("squeue", "--noheader", "--format=%i", environment=environment).split():
            run("scancel", job, environment=environment)
        wait_for(lambda: not run("squeue", "--noheader", environment=environment), "jobs to end")
    names = (*(f"slurmd-{node}" for node in NODES), "slurmctld", "munged")
    found = {name: process_of(folder / f"{name}.pid") for name in names}
    running = {name: process for name, process in found.items() if process}
    for process in running.values():
        os.kill(process, signal.SIGTERM)
    for name, process in running.items():
        wait_for(lambda process=process: not Path(f"/proc/{process}").exists(), f"{name} to end")


def process_of(file):
    """Process of a pid file, if it runs."""
    if not file.exists():
        return None
    process = int(file.read_text())
    return process if Path(f"/proc/{process}").exists() else None


def nodes(environment):
    text = run("sinfo", "--noheader", "--Node", "--partition=short", "--format=%T", environment=environment)
    return text.split()


def run(*command, environment=None):
    """Run a program and return what it printed."""
    variables = os.environ | {"PATH": search_path()} | (environment or {})
    done = subprocess.run(list(command), env=variables, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def wait_for(condition, what, seconds=PATIENCE):
    """Until it holds; returns what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"waited {seconds} s for {what}")


def free_ports(number):
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
