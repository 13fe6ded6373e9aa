"""``distributed.chaos.KillWorker``: workers that die in each of its ways, after so many tasks."""

from __future__ import annotations

import logging
import random
import warnings
from itertools import cycle, islice
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from distributed.chaos import KillWorker

from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from tests.chaos.common import KINDS, PAIR, Tally, estimator, problem_of

MODES = ("sys.exit", "graceful", "segfault")
#: Least and most tasks that a worker finishes in its life; even of the shortest, a fit makes many.
LIFE = (20, 120)


class KillAfterTasks(KillWorker):
    """Kills a worker when it begins a task and has finished a random number of them.

    Not after some time, as its parent does: where other work takes the cores no task might ever finish, and
    the executor would blame the tasks, as it should.
    """

    def __init__(self, mode):
        super().__init__(mode=mode)

    async def setup(self, worker):
        self.worker, self.left = worker, random.randint(*LIFE)

    def transition(self, key, start, finish, **_):
        if finish == "memory" and start == "executing":
            self.left -= 1
        elif finish == "executing" and self.left <= 0:
            die = {"sys.exit": self.sys_exit, "graceful": self.graceful, "segfault": self.segfault}[self.mode]
            self.worker.loop.asyncio_loop.call_soon(die)


def run_plugin(work, undisturbed, n, kinds=tuple(KINDS), least_deaths=5):
    """Fits on workers that die, until so many have; each mode in turn."""
    tally = Tally(f"KillWorker, after {LIFE[0]} to {LIFE[1]} tasks")
    n_deaths = 0
    for i, mode in enumerate(islice(cycle(MODES), n)):
        kind = kinds[i % len(kinds)]
        expected, _ = undisturbed(kind)
        with (
            warnings.catch_warnings(),
            dask.config.set({"distributed.deploy.lost-worker-timeout": "2 s"}),
            LocalCluster(
                2,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            warnings.simplefilter("ignore")  # dying workers make their neighbours complain
            cluster.adapt(minimum=2, maximum=2)  # a worker that closed in order is not replaced by itself
            client.register_plugin(KillAfterTasks(mode))
            problem, n_fits, deaths = None, 0, 0
            while problem is None and deaths < least_deaths:
                run = Path(work) / f"plugin-{i}-{n_fits}"
                model = estimator(kind).fit(
                    undisturbed.store, PAIR.target, run=run, progress="none",
                    executor=DistributedExecutor(client, patience=60),
                )  # fmt: skip
                n_fits += 1
                problem = problem_of(model, expected)
                deaths = sum(1 for _, event in client.get_events("all") if event["action"] == "remove-worker")
            n_deaths += deaths
        tally.add(f"{kind}, {mode}, {n_fits} fits, {deaths} workers gone", problem)
    print(f"  {n_deaths} workers died and were replaced")
    return tally
