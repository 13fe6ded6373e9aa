"""Writing episodes of any source, one after the other, into a new store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.atomic import PathLike, atomic_directory
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.progress import ProgressMode, Reporter

__all__ = ["write_episodes"]


def write_episodes(
    path: PathLike,
    episodes: Iterable[Mapping[str, Array]],
    n_episodes: int,
    chunk_rows: int,
    progress: ProgressMode,
    **sizes: int,
) -> TransitionStore:
    """Write the rows of each episode into a new store, which appears when it is complete.

    An episode has ``state``, ``action``, ``reward`` and ``terminated``; ``n_episodes`` is for progress, and
    ``sizes`` are ``state_dim``, ``action_dim`` and ``reward_dim`` where they are not those of the first
    episode.
    """
    with atomic_directory(path) as partial, Reporter(progress).stage("episodes", n_episodes) as advance:
        writer = None
        for number, rows in enumerate(episodes):
            if writer is None:
                found = {f"{name}_dim": rows[name].shape[1] for name in ("state", "action", "reward")}
                writer = TransitionStore.writer(partial, **found | sizes, chunk_rows=chunk_rows)
            n_rows = len(rows["state"])
            writer.append(**rows, episode=np.full(n_rows, number), step=np.arange(n_rows))
            advance(1)
        if writer is None:
            raise DataError("there are no episodes; give another dataset")
        writer.close()
    return TransitionStore.open(path)
