"""Records of a study as tables: tidy CSV files for people, one labelled Zarr dataset for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from kedrl_dask.engine.storage.atomic import atomic_directory
from kedrl_dask.studies.cell import FIT_METRICS, POINT_METRICS
from kedrl_dask.studies.runner import Records


def points_table(records: Records) -> pd.DataFrame:
    """One row for each cell and point, numbered from 1, with the columns of ``POINT_METRICS``."""
    tables = [
        pd.DataFrame({name: result[name] for name in POINT_METRICS}).assign(
            **cell.labels, point=lambda table: np.arange(1, len(table) + 1)
        )
        for cell, result in records.done
    ]
    return _ordered(pd.concat(tables, ignore_index=True), records, ["point"], POINT_METRICS)


def fits_table(records: Records) -> pd.DataFrame:
    """One row for each cell, with the columns of ``FIT_METRICS``."""
    rows = [{**cell.labels, **result["fit"]} for cell, result in records.done]
    return _ordered(pd.DataFrame(rows), records, [], FIT_METRICS)


def _ordered(
    table: pd.DataFrame, records: Records, further: list[str], metrics: Iterable[str]
) -> pd.DataFrame:
    table = table[[*records.done[0][0].labels, *further, *metrics]]
    return table.astype(dict.fromkeys(metrics, np.float64))


def dataset(points: pd.DataFrame, fits: pd.DataFrame, labels: Sequence[str], title: str) -> xr.Dataset:
    """Both tables with named dimensions; NaN where a cell is missing."""
    merged = xr.merge(
        [points.set_index([*labels, "point"]).to_xarray(), fits.set_index(list(labels)).to_xarray()]
    )
    for name, meaning in (POINT_METRICS | FIT_METRICS).items():
        merged[name].attrs["meaning"] = meaning
    merged.attrs["title"] = title
    # As objects, text becomes Zarr's string type; Zarr v3 does not specify text of fixed length.
    return merged.assign_coords(
        {name: merged[name].astype(object) for name in labels if merged[name].dtype.kind not in "biuf"}
    )


def write_dataset(
    path: Path, points: pd.DataFrame, fits: pd.DataFrame, labels: Sequence[str], title: str
) -> None:
    """Write the dataset as Zarr, which appears when it is complete."""
    with atomic_directory(path, overwrite=True) as partial:
        dataset(points, fits, labels, title).to_zarr(partial, mode="w", zarr_format=3, consolidated=False)


def across_points(points: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """Mean over replicates at each point, then mean and standard deviation across points.

    As in app:mc-repeat-target: the columns are metrics, each with ``mean`` and ``std``; the rows are the
    ``labels`` without the replicate.
    """
    kept = [name for name in labels if name != "replicate"]
    at_points = points.groupby([*kept, "point"], sort=False)[list(POINT_METRICS)].mean()
    return at_points.groupby(kept, sort=False).agg(["mean", "std"])
