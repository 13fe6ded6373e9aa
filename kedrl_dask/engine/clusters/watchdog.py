"""Maintains the number of jobs of a cluster: jobs that the batch system no longer lists are replaced.

Dask itself only learns about the end of a job when its worker disconnects. A pending job that is cancelled
has no worker, so that neither a fixed nor an adaptive cluster replaces it. A fixed cluster does not even
replace lost workers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

from distributed.core import Status

from kedrl_dask.engine.clusters.batch_systems import Queue, QueueError
from kedrl_dask.utils.checks import cut

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster

logger = logging.getLogger(__name__)

#: Number of consecutive times that jobs may end without ever having a worker, before submission stops.
MOST_FAILURES = 5


class Watchdog:
    """Submits the jobs of a cluster that has none yet, and their replacements.

    A context manager that submits the first jobs, and watches them from its own thread during the body. An
    adaptive cluster has ``bounds`` on its number of jobs, which begins with ``n_jobs``. Dask then decides on
    it, and the watchdog only removes lost jobs from its list. ``seconds`` pass between checks.
    """

    def __init__(
        self,
        cluster: JobQueueCluster,
        queue: Queue,
        n_jobs: int,
        bounds: tuple[int, int] | None,
        seconds: float,
    ) -> None:
        self._cluster, self._queue, self._n_jobs, self._bounds = cluster, queue, n_jobs, bounds
        self._seconds = seconds
        names = (f"{cluster.name}-{number}" for number in count())
        # Dask would reuse the name of a lost job, under which the scheduler may still know a worker.
        cluster._new_worker_name = lambda _: next(names)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kedrl-watchdog", daemon=True)
        self._failures = 0
        self._states: dict[str, str] = {}

    def __enter__(self) -> Watchdog:
        """Submit the first jobs and start the thread; a ValueError if the batch system refuses them."""
        message = self._cluster.sync(self._correct, set(), self._n_jobs)
        if message:
            raise ValueError(f"{self._queue.title} rejected the job: {message}")
        logger.info("%s jobs submitted: %s", self._queue.title, _words(self.jobs().values()))
        if self._bounds is not None:
            least, most = self._bounds
            self._cluster.adapt(minimum_jobs=least, maximum_jobs=most)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread, after any submission in progress, so that all jobs can be cancelled."""
        self._stop.set()
        self._thread.join()

    @property
    def has_given_up(self) -> bool:
        """Whether submission has stopped because jobs ended too often without a worker."""
        return self._failures >= MOST_FAILURES

    @property
    def waiting_for(self) -> str:
        """Latest known state of the jobs, for messages."""
        return ", ".join(f"job {job} is {self._states.get(job, 'new')}" for job in self.jobs().values())

    def jobs(self) -> dict[str, str]:
        """Ids of the submitted jobs that are not known to have ended, by the name of their workers."""
        return self._cluster.sync(self._submitted)

    async def _submitted(self) -> dict[str, str]:
        return {name: job.job_id for name, job in self._cluster.workers.items() if job.job_id}

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds * 2**self._failures) and not self.has_given_up:
            try:
                self._look()
            except QueueError as error:
                logger.warning("%s; trying again in %g s", error, self._seconds)

    def _look(self) -> None:
        """Compare the cluster's jobs with those of the batch system once."""
        jobs = self.jobs()  # first, because a job submitted in between would not be in the answer
        self._states = self._queue.states()
        lost = {name for name, job in jobs.items() if job not in self._states}
        if self._cluster.scheduler_info["workers"]:
            self._failures = 0
        elif lost:
            self._failures += 1
        if self.has_given_up:
            logger.error(
                "%s jobs ended %d times in a row before any worker had started; no more are submitted",
                self._queue.title,
                MOST_FAILURES,
            )
            return
        message = self._cluster.sync(self._correct, lost, None if self._bounds else self._n_jobs)
        if lost:
            new = set(self.jobs().values()) - set(jobs.values())
            logger.warning(
                "%s jobs ended prematurely: %s; replaced by: %s",
                self._queue.title,
                _words(jobs[name] for name in lost),
                _words(new) or "as many as the work requires",
            )
        if message:
            logger.warning("%s rejected a job: %s", self._queue.title, message)

    async def _correct(self, lost: set[str], n_jobs: int | None) -> str:
        """Remove lost jobs from the cluster's list, fill the list up, and let Dask submit the new ones.

        Runs in the event loop of the cluster, because its lists are not thread-safe. Returns the error
        message of the batch system, or an empty string.
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
        # Dask would regard a rejected job as pending.
        for name, job in list(cluster.workers.items()):
            if job.job_id is None:
                job.status = Status.failed
                del cluster.workers[name]
                cluster.worker_spec.pop(name, None)
        return message


def _words(jobs: Iterable[str]) -> str:
    return ", ".join(sorted(jobs, key=lambda job: (len(job), job)))


def _said(error: Exception) -> str:
    """The message of the batch system in dask-jobqueue's report of a failed command."""
    _, found, said = str(error).partition("stderr:\n")
    return cut(said if found else str(error))
