"""Minari datasets as stores."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.datasets.episodes import write_episodes
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.atomic import PathLike
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import shown
from kedrl_dask.utils.progress import ProgressMode

__all__ = ["from_minari"]


def from_minari(
    path: PathLike,
    dataset: Any,  # of Minari, which need not be installed
    *,
    reward_info: str | None = None,
    reward_dim: int | None = None,
    chunk_rows: int = 16_384,
    progress: ProgressMode = "auto",
) -> TransitionStore:
    """Store a Minari dataset; terminated and truncated episodes are distinguished.

    An episode of T steps becomes T rows; if it was truncated, the last one is not a transition.

    Parameters
    ----------
    path : path-like
        Directory of the new store, which appears when it is complete.
    dataset : minari.MinariDataset or str
        The dataset, or the name under which ``minari.load_dataset`` finds it.
    reward_info : str, optional
        Name of the info that holds the reward vectors. Among its rewards Minari stores vectors only in its
        HDF5 format; its Arrow format flattens and truncates them, and such rewards are refused.
    reward_dim : int, optional
        Expected dimension of the reward, which is then checked.
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
    rows = (
        _rows(episode, n, reward_info, reward_dim) for n, episode in enumerate(dataset.iterate_episodes())
    )
    return write_episodes(path, rows, len(dataset), chunk_rows, progress)


def _rows(episode: Any, number: int, reward_info: str | None, reward_dim: int | None) -> dict[str, Array]:
    """Rows of one episode, one for each action."""
    action = _matrix(episode.actions, number, "actions")
    n_steps = len(action)
    state = _matrix(episode.observations, number, "observations")
    if len(state) not in (n_steps, n_steps + 1):
        raise DataError(
            f"episode {number} has {len(state)} observations for {n_steps} actions, expected one more; "
            "write the dataset again"
        )
    reward = _rewards(episode, number, n_steps, reward_info)
    if reward_dim not in (None, reward.shape[1]):
        raise _wrong_reward(number, reward.shape, f"{reward_dim} coordinates")
    return {
        "state": state[:n_steps],
        "action": action,
        "reward": reward,
        "terminated": np.asarray(episode.terminations, dtype=bool)[:n_steps],
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
        # The first info is that of the reset, which has no reward.
        given = given[1:] if len(given) == n_steps + 1 else given
    if given.ndim not in (1, 2) or len(given) != n_steps:
        raise _wrong_reward(number, given.shape, f"({n_steps},) or ({n_steps}, d)")
    return given.reshape(n_steps, -1)


def _wrong_reward(number: int, shape: tuple[int, ...], expected: str) -> DataError:
    return DataError(
        f"episode {number} has rewards of shape {shape}, expected {expected}; Minari's Arrow format flattens "
        "vectors: create the dataset with data_format='hdf5', or give reward_info"
    )


def _matrix(values: npt.ArrayLike, number: int, what: str) -> Array:
    """Rows of real numbers."""
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"the {what} of episode {number} are {array.dtype} of shape {array.shape}, expected vectors of "
            "real numbers, a row for each step; flatten their space before recording"
        )
    return array
