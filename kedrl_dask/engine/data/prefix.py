"""The first rows of a transition store: what it was before episodes were appended."""

from __future__ import annotations

from typing import Any

import numpy as np

from kedrl_dask.engine.data.column_moments import Moments
from kedrl_dask.engine.data.writer import chunk_digests, fingerprint
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS

__all__ = ["prefix_attributes", "prefix_fingerprint", "prefix_moments"]


def prefix_fingerprint(arrays: ArrayStore, n_rows: int) -> str:
    """Fingerprint of a store with these first rows only; at most one chunk of data is read."""
    length = arrays.chunk("row")
    n_full = n_rows // length
    digests = arrays.read(TRANSITION_DIGESTS.name, 0, n_full)
    if n_rows > n_full * length:
        tail = {spec.name: arrays.read(spec.name, n_full * length, n_rows) for spec in TRANSITIONS}
        digests = np.concatenate((digests, chunk_digests(tail)[None]))
    return fingerprint(digests)


def prefix_attributes(arrays: ArrayStore, n_rows: int) -> dict[str, Any]:
    """Numbers of rows, episodes and terminal ones among the first rows, and their fingerprint.

    Episode numbers and terminal flags are read; the data are not.
    """
    n_episodes = n_terminal = 0
    last = None
    for start, stop in _chunks(arrays, n_rows):
        episode = arrays.read("episode", start, stop)
        n_episodes += int(np.count_nonzero(np.diff(episode))) + (episode[0] != last)
        n_terminal += int(arrays.read("terminated", start, stop).sum())
        last = episode[-1]
    counts = {"n_rows": n_rows, "n_episodes": int(n_episodes), "n_terminal": n_terminal}
    return {**counts, "fingerprint": prefix_fingerprint(arrays, n_rows)}


def prefix_moments(arrays: ArrayStore, n_rows: int) -> dict[str, Any]:
    """Moments of the first rows, as a commit of them would have written; all of them are read."""
    found = {}
    for name in ("state", "action", "reward"):
        parts = [Moments.of(arrays.read(name, *chunk)) for chunk in _chunks(arrays, n_rows)]
        total = parts[0]
        for part in parts[1:]:
            total = total.merge(part)
        found[name] = total.to_json()
    return found


def _chunks(arrays: ArrayStore, n_rows: int) -> list[tuple[int, int]]:
    length = arrays.chunk("row")
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]
