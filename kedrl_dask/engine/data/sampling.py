"""The transitions from which choices are made: a sample, kept so that every choice is made from the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.schema import SAMPLE
from kedrl_dask.numerics.design.sizes import DESIGN_SAMPLE

#: Kind of the files of choices and of what they are made from.
KIND = "kedrl choices"


def draw_sample(store: TransitionStore, cache: Cache, seed: int, size: int = DESIGN_SAMPLE) -> Transitions:
    """Read the transitions from which choices are made."""
    facts = {"data": store.fingerprint, "seed": seed, "size": size}

    def make(path: Path) -> None:
        sample = store.sample(size, np.random.default_rng([seed, 1]))
        write_arrays(path, KIND, SAMPLE, vars(sample)).finish()

    filed = ArrayStore.open(cache.get("sample", facts, make), KIND)
    return Transitions(**{spec.name: filed.read(spec.name) for spec in SAMPLE})
