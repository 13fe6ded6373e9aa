"""``distributed.chaos.KillWorker``: workers that die at random, in each of its ways."""

from __future__ import annotations

import logging
import time
import warnings
from itertools import cycle, islice
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from distributed.chaos import KillWorker

from kedrl_dask.execute import DistributedExecutor
from tests.chaos.common import KINDS, PAIR, TOLERANCE, Tally, difference, estimator

MODES = ("sys.exit", "graceful", "segfault")
MEAN = "10 s"


def run_plugin(work, undisturbed, n, kinds=tuple(KINDS), mean=MEAN, seconds=15.0):
    """Fits on workers that live some seconds on average, until time is up and one died; each mode in turn."""
    tally = Tally(f"KillWorker, mean {mean}")
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
            client.register_plugin(KillWorker(mean, mode))
            seen = set()
            problem, start = None, time.perf_counter()
            n_fits = 0
            # Fits are repeated until some workers have died for sure.
            while problem is None and (
                n_fits == 0 or time.perf_counter() - start < seconds or seen == set(client.nthreads())
            ):
                run = Path(work) / f"plugin-{i}-{n_fits}"
                seen |= set(client.nthreads())
                model = estimator(kind).fit(
                    undisturbed.store, PAIR.target, run=run, progress="none",
                    executor=DistributedExecutor(client, patience=60),
                )  # fmt: skip
                seen |= set(client.nthreads())
                n_fits += 1
                found = difference(model.coefficients_, expected)
                if not found <= TOLERANCE:
                    problem = f"coefficients are off by {found:.1e}"
            deaths = len(seen) - len(client.nthreads())
            n_deaths += deaths
        tally.add(f"{kind}, {mode}, {n_fits} fits, {deaths} workers gone", problem)
    print(f"  {n_deaths} workers died and were replaced")
    return tally
