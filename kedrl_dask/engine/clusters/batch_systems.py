"""Batch systems: their commands, their format of a duration, and their listings of jobs."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from kedrl_dask.utils.checks import cut

#: Seconds that a batch system may take to list its jobs.
ANSWER_SECONDS = 60


class QueueError(RuntimeError):
    """A command of the batch system failed."""


#: Id and state of a job from the fields of a line of the listing; None for other lines.
Parser = Callable[[list[str]], tuple[str, str] | None]


@dataclass(frozen=True)
class Queue:
    """One batch system, with the commands that submit a job and list the user's jobs.

    ``no_requeue`` prevents the system from restarting a lost job, which the watchdog has replaced, and whose
    scheduler may no longer exist.
    """

    title: str  # for messages
    submit: str
    listing: tuple[str, ...]
    no_requeue: str
    duration: Callable[[int], str]  # formats seconds as a walltime
    parse: Parser
    is_over: frozenset[str] = frozenset()  # states of jobs that have ended but are still listed
    no_jobs: str | None = None  # error of the listing if the user has no jobs

    def check(self) -> None:
        """Check that jobs can be submitted from this machine."""
        for command in (self.submit, self.listing[0]):
            if shutil.which(command) is None:
                raise ValueError(
                    f"the command {command} is not found: submit {self.title} jobs from a machine that has "
                    "it, such as a login node, or after 'module load'"
                )

    def states(self) -> dict[str, str]:
        """State of each pending or running job of this user, by its id; a QueueError if these are unknown."""
        command = [word.replace("{user}", getpass.getuser()) for word in self.listing]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise QueueError(f"{command[0]}: {error}") from error
        if done.returncode != 0 and (self.no_jobs is None or self.no_jobs not in done.stderr):
            raise QueueError(f"{command[0]} ended with code {done.returncode}: {cut(done.stderr)}")
        found = (self.parse(line.split()) for line in done.stdout.splitlines() if line.strip())
        return {job: state for job, state in filter(None, found) if state.split()[0] not in self.is_over}


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _minutes(seconds: int) -> str:
    return _clock(seconds).rpartition(":")[0]


def _slurm(fields: list[str]) -> tuple[str, str] | None:
    return fields[0], " ".join(fields[1:])


def _columns(state: int, least: int) -> Parser:
    """Parser of a table with at least so many columns, of which the first is a job id, 123 or 123.server."""

    def parse(fields: list[str]) -> tuple[str, str] | None:
        job = fields[0].partition(".")[0]
        return (job, fields[state]) if job.isdecimal() and len(fields) >= least else None

    return parse


QUEUES = {
    "slurm": Queue(
        title="Slurm",
        submit="sbatch",
        listing=("squeue", "--noheader", "--user={user}", "--format=%i %T %r"),
        no_requeue="--no-requeue",
        duration=_clock,
        parse=_slurm,
        is_over=frozenset({"COMPLETING"}),
    ),
    # id name user time state queue
    "pbs": Queue("PBS", "qsub", ("qstat",), "-r n", _clock, _columns(-2, 6), frozenset({"C", "E", "F", "X"})),
    # id priority name user state date time …
    "sge": Queue("SGE", "qsub", ("qstat", "-u", "{user}"), "-r n", _clock, _columns(4, 5)),
    "lsf": Queue(
        title="LSF",
        submit="bsub",
        listing=("bjobs", "-noheader", "-o", "jobid stat"),
        no_requeue="-rn",
        duration=_minutes,
        parse=_columns(1, 2),
        is_over=frozenset({"DONE", "EXIT"}),
        no_jobs="No unfinished job found",
    ),
}
