"""Minari datasets as stores."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.atomic import PathLike, atomic_directory
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import shown
from kedrl_dask.utils.progress import Reporter

__all__ = ["from_minari"]


def from_minari(
    path: PathLike,
    dataset: Any,
    *,
    reward_info: str | None = None,
    reward_dim: int | None = None,
    chunk_rows: int = 16_384,
    progress: Any = "auto",
) -> TransitionStore:
    """Store a Minari dataset; terminated and truncated episodes are told apart.

    An episode of T steps becomes T rows; where it was truncated the last one is no transition.

    Parameters
    ----------
    path : path-like
        Directory of the new store, which appears when it is complete.
    dataset : minari.MinariDataset or str
        The dataset, or the name under which ``minari.load_dataset`` finds it.
    reward_info : str, optional
        Name of the info that has the reward vectors. Minari stores vectors among rewards in its HDF5 format
        only; its Arrow format flattens and cuts them, and such rewards are refused.
    reward_dim : int, optional
        Coordinates of the reward, if they are to be checked.
    chunk_rows : int
        Rows per stored chunk.
    progress : {"auto", "bars", "log", "none"}
    """
    if isinstance(dataset, str):
        try:
            dataset = import_module("minari").load_dataset(dataset)
        except ModuleNotFoundError as error:
            raise ValueError(
                "Minari is not installed; install the extra: pip install 'kedrl-dask[rl]'"
            ) from error
    with atomic_directory(path) as partial, Reporter(progress).stage("episodes", len(dataset)) as advance:
        writer = None
        for number, episode in enumerate(dataset.iterate_episodes()):
            rows = _rows(episode, number, reward_info)
            if reward_dim not in (None, rows["reward"].shape[1]):
                raise _wrong_reward(number, rows["reward"].shape, f"{reward_dim} coordinates")
            if writer is None:
                sizes = {f"{name}_dim": rows[name].shape[1] for name in ("state", "action", "reward")}
                writer = TransitionStore.writer(partial, **sizes, chunk_rows=chunk_rows)
            writer.append(**rows, episode=np.full(len(rows["state"]), number))
            advance(1)
        if writer is None:
            raise DataError(f"{shown(dataset)} has no episodes; give another dataset")
        writer.close()
    return TransitionStore.open(path)


def _rows(episode: Any, number: int, reward_info: str | None) -> dict[str, Array]:
    """Rows of one episode, of as many steps as there are actions."""
    action = _matrix(episode.actions, number, "actions")
    n_steps = len(action)
    state = _matrix(episode.observations, number, "observations")
    if len(state) not in (n_steps, n_steps + 1):
        raise DataError(
            f"episode {number} has {len(state)} observations for {n_steps} actions, expected one more; "
            "write the dataset again"
        )
    terminated = np.asarray(episode.terminations, dtype=bool)
    return {
        "state": state[:n_steps],
        "action": action,
        "reward": _rewards(episode, number, n_steps, reward_info),
        "step": np.arange(n_steps),
        "terminated": terminated[:n_steps],
    }


def _rewards(episode: Any, number: int, n_steps: int, info: str | None) -> Array:
    """Reward vectors (steps, d)."""
    if info is None:
        given = np.asarray(episode.rewards)
    else:
        infos = episode.infos or {}
        if info not in infos:
            raise DataError(
                f"episode {number} has no info {info!r}; it has {shown(sorted(infos))}: give one of these"
            )
        given = np.asarray(infos[info])
        # Infos begin with that of the reset, which has no reward.
        given = given[1:] if len(given) == n_steps + 1 else given
    if given.ndim not in (1, 2) or len(given) != n_steps:
        raise _wrong_reward(number, given.shape, f"({n_steps},) or ({n_steps}, d)")
    return given.reshape(n_steps, -1)


def _wrong_reward(number: int, shape: tuple[int, ...], expected: str) -> DataError:
    return DataError(
        f"episode {number} has rewards of shape {shape}, expected {expected}; Minari's Arrow format flattens "
        "vectors: create the dataset with data_format='hdf5', or give reward_info"
    )


def _matrix(values: Any, number: int, what: str) -> Array:
    """Rows of real numbers."""
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"the {what} of episode {number} are {array.dtype} of shape {array.shape}, expected vectors of "
            "real numbers, a row for each step; flatten their space before recording"
        )
    return array
