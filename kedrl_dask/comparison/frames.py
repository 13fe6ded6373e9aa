"""Results datasets as pandas tables and Parquet files.

The datasets come from ``compare(...).dataset`` and ``model.embedding(...).dataset()``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from kedrl_dask.comparison.contrasts import INTERVAL_PARTS
from kedrl_dask.engine.storage.atomic import atomic_directory
from kedrl_dask.numerics.laws.summaries import SUMMARIES

#: Attributes of a dataset that are copied to each of its tables.
KEPT = (
    "caution", "tail", "interval", "n_replicates", "seed", "fingerprint", "versions", "findings", "accepted",
)  # fmt: skip


def summaries(dataset: xr.Dataset) -> pd.DataFrame:
    """Summaries of the laws, one row for each policy, input, coordinate, summary and level."""
    flags = _frame(dataset, "flag_sensitive", "flag_residual", "flag_not_converged")
    flags.columns = flags.columns.str.removeprefix("flag_")
    return _tidy(dataset, "", ["policy"]).merge(flags, on=["policy", "input"])


def differences(dataset: xr.Dataset) -> pd.DataFrame:
    """Differences between the summaries of each pair of policies."""
    return _tidy(dataset, "_difference", ["minuend", "subtrahend"])


def dominance(dataset: xr.Dataset) -> pd.DataFrame:
    """First-order dominance by pair of policies, input and coordinate."""
    frame = _frame(dataset, "gain", "loss", "dominant", "share")
    columns = ["minuend", "subtrahend", "input", "coordinate", "gain", "loss", "dominant", "share"]
    return frame[[name for name in columns if name in frame]]


def distance(dataset: xr.Dataset) -> pd.DataFrame:
    """RKHS distance between the embeddings by pair of policies and input."""
    return _frame(dataset, "mmd")[["minuend", "subtrahend", "input", "mmd"]]


def overlap(dataset: xr.Dataset) -> pd.DataFrame:
    """Target actions compared with logged ones, by policy and action."""
    actions = ("logged_mean", "logged_deviation", "target_mean", "shift", "outside")
    return _frame(dataset, *actions, "distance", "logged_distance", "ess")


def support(dataset: xr.Dataset) -> pd.DataFrame:
    """Recovered mass at the edges of the grid, by policy, input and coordinate."""
    return _frame(dataset, "edge_low", "edge_high")


def weights(dataset: xr.Dataset) -> pd.DataFrame:
    """Probability of each atom by policy and input, with its coordinates ``return_0``, ``return_1``, …"""
    frame = _frame(dataset, "weight")[["policy", "input", "atom", "weight"]]
    places = dataset["atoms"].broadcast_like(dataset["weight"])
    places = places.transpose("policy", "input", "atom", "coordinate")
    for c, column in enumerate(np.moveaxis(places.to_numpy(), -1, 0)):
        frame[f"return_{c}"] = column.ravel()
    return frame


#: The tables, each with a variable whose presence in a dataset shows that the table can be made.
TABLES: dict[str, tuple[str, Callable[[xr.Dataset], pd.DataFrame]]] = {
    "summaries": ("mean", summaries),
    "weights": ("weight", weights),
    "differences": ("mean_difference", differences),
    "dominance": ("gain", dominance),
    "distance": ("mmd", distance),
    "overlap": ("outside", overlap),
    "support": ("edge_low", support),
}


def write_parquet(dataset: xr.Dataset, path: str | Path) -> None:
    """Write all tables of a dataset atomically to a new directory.

    Each table is a file such as ``summaries.parquet``; ``pandas.read_parquet`` restores it, with the
    dataset's caution, findings, seed, versions and data fingerprint in ``attrs``.
    """
    with atomic_directory(path) as partial:
        partial.mkdir()
        for name, (variable, make) in TABLES.items():
            if variable in dataset:
                frame = make(dataset)
                frame.attrs = {key: _plain(dataset.attrs[key]) for key in KEPT if key in dataset.attrs}
                frame.to_parquet(partial / f"{name}.parquet", engine="pyarrow", index=False)


def _plain(value: object) -> object:
    """Convert a NumPy scalar to a value that JSON can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _frame(dataset: xr.Dataset, *names: str) -> pd.DataFrame:
    present = [name for name in names if name in dataset]
    return dataset[present].drop_attrs().to_dataframe().reset_index()


def _tidy(dataset: xr.Dataset, suffix: str, labels: list[str]) -> pd.DataFrame:
    parts = {f"{suffix}{part}": part.removeprefix("_") or "value" for part in (*INTERVAL_PARTS, "_second")}
    frames = []
    for name in SUMMARIES:
        columns = {name + part: column for part, column in parts.items() if name + part in dataset}
        frame = _frame(dataset, *columns).rename(columns=columns).assign(summary=name)
        if "level" not in frame:
            frame["level"] = dataset.attrs["tail"] if name == "cvar" else np.nan
        frames.append(frame[[*labels, "input", "coordinate", "summary", "level", *columns.values()]])
    return pd.concat(frames, ignore_index=True)
