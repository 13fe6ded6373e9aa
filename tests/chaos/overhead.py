"""What checkpoints and checksums cost, against a fit that has neither."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from unittest import mock

from zarr.codecs import ZstdCodec

from kedrl_dask.datasets import simulation
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL
from tests.chaos.common import PAIR


def bare():
    """Stores without checksums in chunks, and without manifests."""
    stack = ExitStack()
    codecs = {True: (ZstdCodec(),), False: None}
    stack.enter_context(mock.patch("kedrl_dask.engine.storage.array_store._codecs", side_effect=codecs.get))
    for name in (
        "kedrl_dask.engine.storage.array_store.ArrayStore.commit",
        "kedrl_dask.engine.storage.cache.commit",
    ):
        stack.enter_context(mock.patch(name, return_value=None))
    return stack


def run_overhead(work, n_transitions, repeats):
    """Fits with a run and bare ones in turn; returns how much longer the fastest of the former took.

    The fastest is the one that the machine's other work disturbed least.
    """
    context = {"bare": bare, "run": ExitStack}
    stores = {}
    for name, how in context.items():
        with how():
            stores[name] = simulation.write(Path(work) / f"overhead-{name}", PAIR, n_transitions, seed=0)
    model = KEDRL(0.7, centring="none", return_kernel=PAIR.settings.kernel)
    wall, processor = ({name: [] for name in context} for _ in range(2))
    for i in range(repeats + 1):
        for name, how in context.items():
            run = Path(work) / f"overhead-{i}" if name == "run" else None
            with how():
                starts = time.perf_counter(), time.process_time()
                model.fit(stores[name], PAIR.target, run=run, executor=ThreadExecutor(2), progress="none")
            if i > 0:  # the first compiles, and fills the memory of the disk
                wall[name].append(time.perf_counter() - starts[0])
                processor[name].append(time.process_time() - starts[1])
            if run is not None:
                shutil.rmtree(run)
    for name in context:
        print(f"  {name}: {_list(wall[name])} s, {_list(processor[name])} s of processor time")
    print(f"  processor time of the medians: {median(processor['run']) / median(processor['bare']) - 1:+.1%}")
    return min(wall["run"]) / min(wall["bare"]) - 1


def _list(values):
    return ", ".join(f"{value:.2f}" for value in values)
