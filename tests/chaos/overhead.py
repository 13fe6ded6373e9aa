"""What checkpoints and checksums cost, against a fit that has neither."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy as np
from zarr.codecs import ZstdCodec

from kedrl_dask.datasets import simulation
from kedrl_dask.execute import ThreadExecutor
from kedrl_dask.model import KEDRL
from tests.chaos.common import PAIR


def bare():
    """Stores without checksums in chunks, and without manifests."""
    stack = ExitStack()
    codecs = {True: (ZstdCodec(),), False: None}
    stack.enter_context(mock.patch("kedrl_dask.store.arrays._codecs", side_effect=codecs.get))
    for name in ("kedrl_dask.store.ArrayStore.commit", "kedrl_dask.cache.commit"):
        stack.enter_context(mock.patch(name, return_value=None))
    return stack


def run_overhead(work, n_transitions, repeats):
    """Fits with a run and bare ones in turn; returns the median of the ratio of their times, less one."""
    context = {"bare": bare, "run": ExitStack}
    stores = {}
    for name, how in context.items():
        with how():
            stores[name] = simulation.write(Path(work) / f"overhead-{name}", PAIR, n_transitions, seed=0)
    model = KEDRL(0.7, return_kernel=PAIR.settings.kernel)
    seconds = {name: [] for name in context}
    for i in range(repeats + 1):  # the first compiles, and fills the memory of the disk
        for name, how in context.items():
            run = Path(work) / f"overhead-{i}" if name == "run" else None
            with how():
                start = time.perf_counter()
                model.fit(stores[name], PAIR.target, run=run, executor=ThreadExecutor(2), progress="none")
                seconds[name].append(time.perf_counter() - start)
            if run is not None:
                shutil.rmtree(run)
    for name, values in seconds.items():
        print(f"  {name}: {', '.join(f'{value:.2f}' for value in values[1:])} s")
    return float(np.median(np.array(seconds["run"][1:]) / np.array(seconds["bare"][1:]))) - 1
