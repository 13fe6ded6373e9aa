"""Keeps a cluster of jobs at its number: what the batch system no longer has is replaced.

Dask itself learns of a job's end from the worker that disconnects. A job that is cancelled while it waits for
its turn has no worker, and neither a fixed nor an adaptive cluster replaces it; a fixed one does not replace
a lost worker either.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from itertools import count
from typing import Any

from distributed.core import Status

from kedrl_dask.engine.clusters.batch_systems import Queue, QueueError
from kedrl_dask.utils.checks import cut

__all__ = ["Watchdog"]

logger = logging.getLogger(__name__)

#: Times in a row that jobs may end before any worker was there; then no more are submitted.
MOST_FAILURES = 5


class Watchdog:
    """Submits the jobs of a cluster, and those that replace them, from a thread of its own.

    As a context manager it watches while its body runs, after the first jobs have been submitted.

    Parameters
    ----------
    cluster : dask_jobqueue.JobQueueCluster
        With no jobs yet.
    queue : Queue
        The batch system that is to be asked.
    n_jobs : int
        How many there are to be, or to be at first if ``bounds`` are given.
    bounds : tuple of two int, optional
        Least and most jobs of a cluster whose number follows the work there is. Dask decides on it then, and
        the watchdog only takes lost jobs off its list.
    seconds : float
        Time from one look to the next.
    """

    def __init__(
        self, cluster: Any, queue: Queue, n_jobs: int, bounds: tuple[int, int] | None, seconds: float
    ) -> None:
        self._cluster, self._queue, self._n_jobs, self._bounds = cluster, queue, n_jobs, bounds
        self._seconds = seconds
        names = (f"{cluster.name}-{number}" for number in count())
        # Dask would use the name of a job that is gone again, which the scheduler may still have a worker by.
        cluster._new_worker_name = lambda _: next(names)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kedrl-watchdog", daemon=True)
        self._failures = 0
        self._states: dict[str, str] = {}

    def __enter__(self) -> Watchdog:
        """Submit the first jobs, and begin to watch.

        Raises
        ------
        ValueError
            If the batch system refuses them.
        """
        message = self._cluster.sync(self._correct, set(), self._n_jobs)
        if message:
            raise ValueError(f"{self._queue.title} did not take the job: {message}")
        logger.info("%s jobs submitted: %s", self._queue.title, _words(self.jobs().values()))
        if self._bounds is not None:
            least, most = self._bounds
            self._cluster.adapt(minimum_jobs=least, maximum_jobs=most)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread; what it is submitting is finished first, so that it can be cancelled."""
        self._stop.set()
        self._thread.join()

    @property
    def has_given_up(self) -> bool:
        """Whether jobs ended so often without a worker that no more are submitted."""
        return self._failures >= MOST_FAILURES

    @property
    def waiting_for(self) -> str:
        """The state of the jobs in words, as the batch system gave it last."""
        return ", ".join(f"job {job} is {self._states.get(job, 'new')}" for job in self.jobs().values())

    def jobs(self) -> dict[str, str]:
        """Ids of the jobs that were submitted and not seen to end, by the name of their workers."""
        return self._cluster.sync(self._submitted)

    async def _submitted(self) -> dict[str, str]:
        return {name: job.job_id for name, job in self._cluster.workers.items() if job.job_id}

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds * 2**self._failures) and not self.has_given_up:
            try:
                self._look()
            except QueueError as error:
                logger.warning("%s; its jobs are looked for again in %g s", error, self._seconds)

    def _look(self) -> None:
        """Compare the cluster's jobs with those of the batch system once."""
        jobs = self.jobs()  # first: a job that is submitted meanwhile is not in the answer
        self._states = self._queue.states()
        lost = {name for name, job in jobs.items() if job not in self._states}
        self._count_failures(lost)
        if self.has_given_up:
            logger.error(
                "%s jobs ended %d times in a row before a worker of theirs was there; no more are submitted",
                self._queue.title,
                MOST_FAILURES,
            )
            return
        message = self._cluster.sync(self._correct, lost, None if self._bounds else self._n_jobs)
        if lost:
            new = set(self.jobs().values()) - set(jobs.values())
            logger.warning(
                "%s jobs ended before the work did: %s; in their place: %s",
                self._queue.title,
                _words(jobs[name] for name in lost),
                _words(new) or "as many as there is work for",
            )
        if message:
            logger.warning("%s did not take a job: %s", self._queue.title, message)

    def _count_failures(self, lost: set[str]) -> None:
        if self._cluster.scheduler_info["workers"]:
            self._failures = 0
        elif lost:
            self._failures += 1

    async def _correct(self, lost: set[str], n_jobs: int | None) -> str:
        """Strike lost jobs off the cluster's list, fill it up, and have Dask submit what is new on it.

        Returns what the batch system said against it, if it did. In the cluster's event loop, as its lists
        are not safe elsewhere.
        """
        cluster = self._cluster
        for name in lost:
            cluster.worker_spec.pop(name, None)
        while n_jobs is not None and len(cluster.worker_spec) < n_jobs:
            cluster.worker_spec.update(cluster.new_worker_spec())
        try:
            await cluster
        except (RuntimeError, OSError) as error:
            message = _said(error)
        else:
            return ""
        # Dask would take what was refused for a job that is on its way.
        for name, job in list(cluster.workers.items()):
            if job.job_id is None:
                job.status = Status.failed
                del cluster.workers[name]
                cluster.worker_spec.pop(name, None)
        return message


def _words(jobs: Iterable[str]) -> str:
    return ", ".join(sorted(jobs, key=lambda job: (len(job), job)))


def _said(error: Exception) -> str:
    """The words of the batch system in dask-jobqueue's report of a command that failed."""
    _, found, said = str(error).partition("stderr:\n")
    return cut(said if found else str(error))
