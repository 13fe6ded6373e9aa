"""Batch systems: their commands, how they write a duration, and which jobs they say they have."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from kedrl_dask.utils.checks import cut

__all__ = ["QUEUES", "Queue", "QueueError"]

#: Seconds that a batch system may take to say which jobs it has.
ANSWER_SECONDS = 60


class QueueError(RuntimeError):
    """A command of the batch system failed."""


@dataclass(frozen=True)
class Queue:
    """One batch system.

    Attributes
    ----------
    title : str
        Its name in words.
    submit, listing : str, tuple of str
        The command that submits, and the one, with its arguments, that lists a user's jobs.
    no_requeue : str
        Directive by which a job that was lost is not started again by the system: it would come back to a
        scheduler that may be gone, and the watchdog has replaced it.
    duration : callable
        Seconds as the system writes a walltime.
    parse : callable
        Job id and state from the fields of a line of the listing, or None if it is about no job.
    is_over : frozenset of str
        States of jobs that are listed and have ended.
    no_jobs : str or None
        What the listing says, with an exit code of failure, if there are none.
    """

    title: str
    submit: str
    listing: tuple[str, ...]
    no_requeue: str
    duration: Callable[[int], str]
    parse: Callable[[list[str]], tuple[str, str] | None]
    is_over: frozenset[str] = frozenset()
    no_jobs: str | None = None

    def check(self) -> None:
        """Refuse a machine from which no jobs can be submitted."""
        for command in (self.submit, self.listing[0]):
            if shutil.which(command) is None:
                raise ValueError(
                    f"the command {command} is not found: {self.title} jobs are submitted from a machine "
                    "that has it, such as a login node, or after 'module load'"
                )

    def states(self) -> dict[str, str]:
        """State of each job of this user that is waiting or running, by its id.

        Raises
        ------
        QueueError
            If the system did not answer; this says nothing about its jobs.
        """
        command = [word.replace("{user}", getpass.getuser()) for word in self.listing]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise QueueError(f"{command[0]}: {error}") from error
        if done.returncode != 0 and (self.no_jobs is None or self.no_jobs not in done.stderr):
            raise QueueError(f"{command[0]} ended with code {done.returncode}: {cut(done.stderr)}")
        return self.read(done.stdout)

    def read(self, text: str) -> dict[str, str]:
        """The same from what the listing printed."""
        found = (self.parse(line.split()) for line in text.splitlines() if line.strip())
        return {job: state for job, state in filter(None, found) if state.split()[0] not in self.is_over}


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _minutes(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}"


def _slurm(fields: list[str]) -> tuple[str, str] | None:
    return fields[0], " ".join(fields[1:])


def _pbs(fields: list[str]) -> tuple[str, str] | None:
    """``123.server name user time state queue``, below a heading."""
    job = fields[0].partition(".")[0]
    return (job, fields[-2]) if job.isdecimal() and len(fields) >= 6 else None


def _sge(fields: list[str]) -> tuple[str, str] | None:
    """``123 priority name user state date time …``, below a heading."""
    return (fields[0], fields[4]) if fields[0].isdecimal() and len(fields) >= 5 else None


def _lsf(fields: list[str]) -> tuple[str, str] | None:
    return (fields[0], fields[1]) if fields[0].isdecimal() and len(fields) >= 2 else None


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
    "pbs": Queue(
        title="PBS",
        submit="qsub",
        listing=("qstat",),
        no_requeue="-r n",
        duration=_clock,
        parse=_pbs,
        is_over=frozenset({"C", "E", "F", "X"}),
    ),
    "sge": Queue(
        title="SGE",
        submit="qsub",
        listing=("qstat", "-u", "{user}"),
        no_requeue="-r n",
        duration=_clock,
        parse=_sge,
    ),
    "lsf": Queue(
        title="LSF",
        submit="bsub",
        listing=("bjobs", "-noheader", "-o", "jobid stat"),
        no_requeue="-rn",
        duration=_minutes,
        parse=_lsf,
        is_over=frozenset({"DONE", "EXIT"}),
        no_jobs="No unfinished job found",
    ),
}
