"""Choice of the conditioning points: the inputs at which the Bellman equation is enforced."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.passes.conditioning_points import CONDITIONING_KIND
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.schema import CONDITIONING_INPUTS
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.design.points import clusters
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Inputs, Weights


def choose_conditioning(settings: Settings, store: TransitionStore, kernel: Matern) -> tuple[Inputs, Weights]:
    """Choose the points x*_q and weights ϱ_q of the criterion, as ``settings.conditioning`` says.

    The choice depends on the data, the input kernel and the seed only. Distances of k-means are in units of
    the kernel's length scales. There are always ``settings.n_points`` points, whose weights sum to one;
    k-means of fewer distinct inputs gives some points the weight zero.
    """
    if settings.given_points is not None:
        return settings.given_points
    n_points = settings.n_points(store.n_transitions)
    rng = np.random.default_rng([settings.random_state, 6])
    if settings.conditioning == "random":
        return _draw_inputs(store, n_points, rng), np.full(n_points, 1.0 / n_points)
    sample = _draw_inputs(store, settings.n_clustered(store.n_transitions), rng)
    centers, counts = clusters(kernel.scale(sample), n_points, settings.random_state)
    return kernel.unscale(centers), counts / len(sample)


def file_conditioning(settings: Settings, store: TransitionStore, kernel: Matern, cache: Cache) -> Path:
    """Path of the points and weights, chosen now or earlier for the same data, settings and kernel."""
    store = store.base
    facts = {
        "data": store.fingerprint,
        "seed": settings.random_state,
        "kernel": kernel,
        "how": [settings.n_conditioning, settings.conditioning],
    }

    def make(path: Path) -> None:
        arrays = dict(zip(("input", "weight"), choose_conditioning(settings, store, kernel), strict=True))
        write_arrays(path, CONDITIONING_KIND, CONDITIONING_INPUTS, arrays, compressed=False).finish()

    return cache.get("conditioning-inputs", facts, make)


def find_conditioning(
    settings: Settings, store: TransitionStore, kernel: Matern, cache: Cache
) -> tuple[Inputs, Weights]:
    """The points and weights themselves."""
    filed = ArrayStore.open(file_conditioning(settings, store, kernel, cache), CONDITIONING_KIND)
    return filed.read("input"), filed.read("weight")


def _draw_inputs(store: TransitionStore, n: int, rng: np.random.Generator) -> Inputs:
    """Inputs of ``n`` random transitions or of all, of which nothing but the inputs is held in memory."""
    if n < store.n_transitions:
        return store.sample(n, rng).inputs
    inputs, filled = np.empty((store.n_transitions, store.state_dim + store.action_dim)), 0
    for start in range(0, store.n_rows, store.chunk_rows):
        part = store.transitions(start, min(start + store.chunk_rows, store.n_rows)).inputs
        inputs[filled : filled + len(part)] = part
        filled += len(part)
    if filled < len(inputs):
        raise StoreError(
            f"{store.path}: holds {filled:,} transitions, but its attributes say {len(inputs):,}; the "
            "store is damaged: restore it from a copy, or write it again"
        )
    return inputs
