"""Short measurements of the machine, on the threads that will do the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.plan.stage_costs import Machine
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Precision
from kedrl_dask.utils.process import own_memory

#: Seconds spent on each measurement.
PROBE_SECONDS = 0.15


def measure(executor: Executor, store: TransitionStore, kernel: Matern, dtype: Precision) -> Machine:
    """Measure on all threads at once and take the slowest, because a pass ends with its last task."""
    probes = executor.map(_probe, range(executor.n_threads), store.path.resolve(), kernel, dtype)
    gemm, exact_gemm, evaluations, rows = (
        min(values) for values in zip(*(probe[:4] for probe in probes), strict=True)
    )
    return Machine(gemm, exact_gemm, evaluations, rows, int(max(probe[4] for probe in probes)))


def _probe(_: int, path: Path, kernel: Matern, dtype: Precision) -> tuple[float, ...]:
    """Rates and memory, in the order of the attributes of Machine."""
    rng = np.random.default_rng(0)
    left, right = rng.random((2, 512, 512))
    points, centers = rng.random((512, 6)), rng.random((256, 6))
    unit, out = Matern(kernel.nu), np.empty((512, 256), dtype)
    store = TransitionStore.open(path)
    n_rows = min(store.n_rows, store.chunk_rows)
    single = left.astype(dtype), right.astype(dtype)
    return (
        2 * 512**3 * _rate(lambda: single[0] @ single[1]),
        2 * 512**3 * _rate(lambda: left @ right),
        out.size * _rate(lambda: unit(points, centers, out=out)),
        n_rows * _rate(lambda: store.transitions(0, n_rows)),
        own_memory(),
    )


def _rate(call: Callable[[], object]) -> float:
    """Calls per second, without the first one, which is a warm-up."""
    call()
    start, n = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < PROBE_SECONDS:
        call()
        n += 1
    return max(n, 1) / seconds
