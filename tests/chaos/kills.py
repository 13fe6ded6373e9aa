"""SIGKILL of a worker, of all workers, of the driver, of the scheduler, at random moments of every stage.

The driver stops itself at the moment of the kill, and goes on after it: whatever else the machine does, the
fit is under way then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np

from kedrl_dask import KEDRL
from kedrl_dask.cli.common import STOPPED
from kedrl_dask.engine.storage.checkpoints import Checkpoints
from kedrl_dask.estimator.run import Run
from tests.chaos.common import KINDS, Tally, events, problem_of, stage_seconds

VICTIMS = ("worker", "all workers", "driver", "scheduler")
CHECKPOINT_SECONDS = 0.1
N_WORKERS = 2
#: After which a fit is taken for stuck.
MOST_SECONDS = 300
TOO_LATE = "the fit had ended before the kill"
DRIVER = """
import sys
from pathlib import Path
from kedrl_dask.engine.clusters.local import cluster_at
from kedrl_dask.utils.process import Stopped
from tests.chaos.common import PAIR, estimator
from tests.chaos.kills import note_when_due, stop_at
kind, store, run, address, seconds, *moment = sys.argv[1:]
note_when_due()
if moment:
    stop_at(moment[0], float(moment[1]))
try:
    with cluster_at(address, patience=60) as executor:
        estimator(kind).fit(
            store, PAIR.target, run=run, executor=executor, progress="none", checkpoint_seconds=float(seconds)
        )
except Stopped as error:
    print(error, file=sys.stderr)
    sys.exit(4)
"""


def die_with_parent():
    """In a new process: SIGKILL when the one that started it ends, however it ends (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start(*command, log):
    with open(log, "a") as output:
        return subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=output, stderr=output, start_new_session=True,
            preexec_fn=die_with_parent,
            env={**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"},
        )  # fmt: skip


def note_when_due():
    """In a driver: the log says too when a checkpoint is due."""
    is_due = Checkpoints.is_due.fget

    def noted(self):
        found = is_due(self)
        if found:
            self._note("due")
        return found

    Checkpoints.is_due = property(noted)


def stop_at(stage, seconds):
    """In a driver: stop this process (SIGSTOP) so many seconds after a stage has begun; 0 is certain."""
    note = Run.note

    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)

    def noted(self, event, **facts):
        note(self, event, **facts)
        if (event, facts.get("stage")) == ("stage started", stage):
            if seconds == 0:
                stop()
            else:
                timer = threading.Timer(seconds, stop)
                timer.daemon = True
                timer.start()

    Run.note = noted


def end(process):
    """SIGKILL a process that this one started."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


class Cluster:
    """A scheduler and workers, each a process of its own without a nanny."""

    def __init__(self, work):
        self.work, self.scheduler, self.workers = work, None, []
        self.file = work / "scheduler.json"
        self.log = work / "cluster.log"

    def __enter__(self):
        self.restore()
        return self

    def __exit__(self, *_):
        for process in (*self.workers, self.scheduler):
            end(process)

    def restore(self):
        """Start what is not there."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            for worker in self.workers:
                end(worker)
            self.file.unlink(missing_ok=True)
            options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", self.file)
            self.scheduler = start("-m", "distributed.cli.dask_scheduler", *options, log=self.log)
            while not self.file.exists():
                assert self.scheduler.poll() is None, f"the scheduler did not start; see {self.log}"
                time.sleep(0.1)
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < N_WORKERS:
            options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
            options += ("--local-directory", self.work / "scratch", "--scheduler-file", self.file)
            self.workers.append(start("-m", "distributed.cli.dask_worker", *options, log=self.log))

    @property
    def address(self):
        return json.loads(self.file.read_text())["address"]


@dataclass
class Plot:
    """Whom to kill, and when: in a stage, after a share of the time that it takes undisturbed."""

    kind: str
    victim: str
    stage: str
    share: float

    def __str__(self):
        return f"{self.kind}, {self.victim} in {self.stage!r} at {self.share:.0%}"


def plots(undisturbed, kinds, n, rng, victims=VICTIMS):
    """Kills of all victims in all stages in turn, at random moments, in random order."""
    places = [(kind, stage) for kind in kinds for stage in stage_seconds(undisturbed(kind)[1])]
    rng.shuffle(places)
    victims = [victims[i % len(victims)] for i in range(n)]
    rng.shuffle(victims)
    return [
        Plot(kind, victim, stage, float(rng.uniform(0, 0.9)))
        for (kind, stage), victim in zip(islice(cycle(places), n), victims, strict=True)
    ]


def committed_blocks(run):
    """How many blocks each kind of result has by now."""
    entries = (run / "cache").glob("*/manifest/[0-9]*.json")
    names = [entry.parent.parent.name.rpartition("-")[0] for entry in entries]
    return {name: names.count(name) for name in set(names)}


class Driver:
    """The process of a fit; it can be started again."""

    def __init__(self, plot, undisturbed, run, cluster, log):
        self.plot, self.store, self.run, self.cluster, self.log = plot, undisturbed.store, run, cluster, log
        self.start(plot.stage, plot.share * stage_seconds(undisturbed(plot.kind)[1])[plot.stage])

    def start(self, *moment):
        arguments = (self.plot.kind, self.store.path, self.run, self.cluster.address, CHECKPOINT_SECONDS)
        self.process = start("-c", DRIVER, *arguments, *moment, log=self.log)

    @property
    def is_alive(self):
        return self.process.poll() is None

    def wait(self):
        """Its exit code; a word if it has none."""
        try:
            return self.process.wait(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return f"nothing after {MOST_SECONDS} s"

    def wait_for_the_moment(self):
        """Whether the driver has stopped, with the fit under way, and not ended."""
        give_up = time.monotonic() + MOST_SECONDS
        flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while time.monotonic() < give_up:
            found = os.waitid(os.P_PID, self.process.pid, flags)
            if found is not None:
                return found.si_code == os.CLD_STOPPED
            time.sleep(0.01)
        return False

    def go_on(self):
        """After it stopped."""
        self.process.send_signal(signal.SIGCONT)


def carry_out(plot, undisturbed, cluster, work):
    """Kill, put back what was killed, let the fit come to its end; returns what is wrong, or nothing."""
    cluster.restore()
    driver = Driver(plot, undisturbed, work / "run", cluster, work / "driver.log")
    try:
        return disturb(driver, undisturbed)
    finally:
        end(driver.process)


def disturb(driver, undisturbed):
    plot, run, cluster, see = driver.plot, driver.run, driver.cluster, f"see {driver.log}"
    expected, _ = undisturbed(plot.kind)
    if not driver.wait_for_the_moment():
        return TOO_LATE if driver.wait() == 0 else f"failed by itself; {see}"
    before = None
    if plot.victim == "driver":
        end(driver.process)
        before = committed_blocks(run)
    elif plot.victim == "scheduler":
        end(cluster.scheduler)
        driver.go_on()
        code = driver.wait()
        before = committed_blocks(run)
        if code not in (0, STOPPED):
            return f"the driver ended with {code} and not in order; {see}"
    else:
        for worker in cluster.workers[: 1 if plot.victim == "worker" else None]:
            end(worker)
        driver.go_on()
    cluster.restore()
    if not driver.is_alive:
        driver.start()
    code = driver.wait()
    if code != 0:
        return f"the driver ended with {code}; {see}"
    problem = problem_of(KEDRL.load(run / "model"), expected)
    return problem or (None if before is None else lost(run, before))


def lost(run, before):
    """What was done twice and should not have been: blocks that were there, steps before a checkpoint."""
    found = events(run)
    restart = [i for i, event in enumerate(found) if event["event"] == "started"][-1]
    for event in found[restart:]:
        if event["event"] == "blocks":
            there = min(before.get(kind, 0) for kind in event["kinds"])
            if event["found"] < there:
                return f"{there} blocks of {event['kinds']} were there, {event['found']} were found"
    return lost_steps(found[:restart], found[restart:])


def lost_steps(before, after):
    """Whether more of the solver's work was lost than what followed its last checkpoint."""
    kept = [event for event in before if event["event"] in ("due", "checkpoint")]
    for event, following in pairwise(kept):
        if event["event"] == following["event"] == "due":
            return f"no checkpoint was written at {event['time']}, when it was due"
    kept = [event for event in kept if event["event"] == "checkpoint"]
    restored = [event for event in after if event["event"] == "restored"]
    is_solved = any(event["event"] == "stage finished" and event["stage"] == "solver" for event in before)
    if kept and not is_solved and (not restored or restored[0]["iteration"] < kept[-1]["iteration"]):
        return f"went on from {restored[:1]}, though there was {kept[-1]}"
    return None


def run_kills(work, undisturbed, n, seed, kinds=tuple(KINDS), victims=VICTIMS):
    """Some kills, one in each run."""
    rng, tally = np.random.default_rng(seed), Tally("kills")
    with Cluster(Path(work)) as cluster:
        for i, plot in enumerate(plots(undisturbed, kinds, n, rng, victims)):
            problem = carry_out(plot, undisturbed, cluster, made(Path(work) / f"kill-{i}"))
            if problem == TOO_LATE:  # the stage took less time than in the undisturbed run
                plot.share = 0.0
                problem = carry_out(plot, undisturbed, cluster, made(Path(work) / f"kill-{i}-at-once"))
            tally.add(str(plot), problem)
    return tally


def made(folder):
    folder.mkdir()
    return folder
