"""Aggregation of the published file to search lists, in one pass and in memory proportional to the searches.

Each row of the file is a partial sum of its search, and partial sums of one search are combined. The rows of
a search must keep the order of the list but need not be adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from kedrl_dask.datasets.expedia.columns import COMPETITORS, NEEDED, NULL, VARIABLES
from kedrl_dask.datasets.expedia.faults import FileError, check_header, find_fault
from kedrl_dask.utils.arrays import Array

#: Partial sums: one entry of each array for each part of a search.
Parts = dict[str, Array]

#: Bytes of the file parsed at a time.
BLOCK_BYTES = 2**24
#: Parts gathered before those of the same search are combined.
GATHERED = 200_000
#: Columns that are constant within a search; that are summed; whose first entry that is not missing is used.
CONSTANT = ("srch_destination_id", "srch_room_count", "srch_length_of_stay")
ADDED = ("promotion_flag", "click_bool", "gross_bookings_usd")
FIRST = ("prop_location_score1", "prop_review_score")
#: Columns summarised by their mean and standard deviation.
SPREAD = ("price_usd", "prop_log_historical_price")

_TYPES = {"integer": pa.int64(), "number": pa.float64(), "time": pa.timestamp("s")}


def read_lists(path: str | PathLike[str], advance: Callable[[int], None] | None = None) -> pd.DataFrame:
    """Aggregate the rows of the published file, or a similar one, to search lists (tab:expedia_data_vars).

    The result has one row for each search, sorted by ``srch_destination_id`` and ``time_idx``, which counts
    from 1 in the order of the earliest ``date_time``. Its columns also include ``srch_id``, ``date_time``,
    ``n_properties`` and the variables, NaN if a list has too few entries for them. ``advance`` is called
    with the number of rows of each piece. A :class:`FileError` names the file, the line and the column.

    The paper's table leaves three choices open, two of which its summary statistics settle. A historical
    price of 0 means that the property was not sold, and counts as missing: with zeros, the mean would not be
    5.0, nor would three in four lists have a standard deviation below 0.3. A review score of 0 means that
    there are no reviews, and counts as missing too: the smallest score in the paper's lists is 1. Standard
    deviations are sample ones, with n − 1, and are undefined for a list of one property.
    """
    path = Path(path)
    check_header(path)
    gathered: list[Parts] = []
    waiting, limit = 0, GATHERED
    for rows in _pieces(path):
        gathered.append(_combine(path, rows))
        waiting += len(gathered[-1]["srch_id"])
        if waiting > limit:
            gathered = [_combine(path, _joined(gathered))]
            waiting = len(gathered[0]["srch_id"])
            limit = GATHERED + 2 * waiting  # keeps the cost of combining linear in the number of searches
        if advance is not None:
            advance(len(rows["srch_id"]))
    if not gathered:
        raise FileError(f"{path}: has a header but no rows; is the file complete?")
    return _variables(_combine(path, _joined(gathered)))


def _pieces(path: Path) -> Iterator[Parts]:
    """Yield the rows of the file, each as a part of its search."""
    convert = csv.ConvertOptions(
        column_types={column.name: _TYPES[column.kind] for column in NEEDED},
        include_columns=[column.name for column in NEEDED],
        null_values=[NULL, ""],
        strings_can_be_null=True,
    )
    line = 2
    try:
        with csv.open_csv(
            path, read_options=csv.ReadOptions(block_size=BLOCK_BYTES), convert_options=convert
        ) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield _parts(path, batch, line)
                    line += batch.num_rows
    except pa.ArrowInvalid as error:
        raise find_fault(path, str(error)) from error


def _parts(path: Path, batch: pa.RecordBatch, line: int) -> Parts:
    columns: Parts = {}
    for column in NEEDED:
        values = batch.column(column.name)
        if column.missing == 0 and values.null_count:
            row = int(np.argmax(np.asarray(values.is_null())))
            raise FileError(
                f"{path}: line {line + row}, column {column.name}: is missing, expected a {column.kind}; "
                "correct the entry or remove the search"
            )
        if column.kind == "time":
            values = values.cast(pa.int64())
        columns[column.name] = values.to_numpy(zero_copy_only=False)
    lines = line + np.arange(batch.num_rows)
    _check_values(path, columns, lines)
    inventory = np.stack([columns[f"comp{i}_inv"] for i in COMPETITORS])
    review, history = columns["prop_review_score"], columns["prop_log_historical_price"]
    parts = {name: columns[name] for name in ("srch_id", "date_time", *CONSTANT)}
    parts |= {"line": lines, "n_properties": np.ones(batch.num_rows)}
    parts |= {name: np.where(np.isnan(columns[name]), 0.0, columns[name]) for name in ADDED}
    parts["prop_location_score1"] = columns["prop_location_score1"]
    parts["prop_review_score"] = np.where(review > 0, review, np.nan)
    parts["comp_inv"] = np.asarray((inventory > 0).any(axis=0), dtype=np.float64)
    for name, values in (
        ("price_usd", columns["price_usd"]),
        ("prop_log_historical_price", np.where(history > 0, history, np.nan)),
    ):
        is_there = ~np.isnan(values)
        parts |= {f"{name} n": is_there.astype(np.float64), f"{name} mean": np.where(is_there, values, 0.0)}
        parts[f"{name} squares"] = np.zeros(batch.num_rows)
    return parts


#: Valid ranges of columns, with their descriptions for error messages.
_RANGES = {
    "srch_length_of_stay": (1, np.inf, "at least 1 night"),
    "srch_room_count": (1, np.inf, "at least 1 room"),
    "promotion_flag": (0, 1, "0 or 1"),
    "click_bool": (0, 1, "0 or 1"),
    "price_usd": (0, np.inf, "a price"),
    "gross_bookings_usd": (0, np.inf, "an amount"),
    "prop_review_score": (0, 5, "a score from 0 to 5"),
}


def _check_values(path: Path, columns: Parts, lines: Array) -> None:
    for name, (low, high, expected) in _RANGES.items():
        values = columns[name]
        bad = (values < low) | (values > high) | np.isinf(values)  # NaN is missing
        if bad.any():
            row = int(np.argmax(bad))
            raise FileError(
                f"{path}: line {lines[row]}, column {name}: is {values[row]}, expected {expected}; correct "
                "the entry or remove the search"
            )


def _joined(parts: list[Parts]) -> Parts:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _combine(path: Path, parts: Parts) -> Parts:
    """Combine parts in file order to one part for each search."""
    order = np.argsort(parts["srch_id"], kind="stable")
    parts = {name: values[order] for name, values in parts.items()}
    starts = np.flatnonzero(np.append(True, np.diff(parts["srch_id"]) != 0))
    sizes = np.diff(np.append(starts, len(order)))
    _check_constant(path, parts, starts, sizes)
    whole = {name: parts[name][starts] for name in ("srch_id", *CONSTANT)}
    whole["date_time"] = np.minimum.reduceat(parts["date_time"], starts)
    whole["line"] = np.minimum.reduceat(parts["line"], starts)
    whole["comp_inv"] = np.maximum.reduceat(parts["comp_inv"], starts)
    for name in (*ADDED, "n_properties"):
        whole[name] = np.add.reduceat(parts[name], starts)
    for name in FIRST:
        values = parts[name]
        place = np.where(np.isnan(values), len(values), np.arange(len(values)))
        first = np.minimum.reduceat(place, starts)
        whole[name] = np.append(values, np.nan)[first]
    for name in SPREAD:
        n, mean = parts[f"{name} n"], parts[f"{name} mean"]
        total = np.add.reduceat(n, starts)
        center = np.add.reduceat(n * mean, starts) / np.maximum(total, 1)
        deviations = n * (mean - np.repeat(center, sizes)) ** 2
        whole |= {f"{name} n": total, f"{name} mean": center}
        whole[f"{name} squares"] = np.add.reduceat(parts[f"{name} squares"] + deviations, starts)
    return whole


def _check_constant(path: Path, parts: Parts, starts: Array, sizes: Array) -> None:
    for name in CONSTANT:
        differs = parts[name] != np.repeat(parts[name][starts], sizes)
        if differs.any():
            row = int(np.argmax(differs))
            first = starts[np.searchsorted(starts, row, side="right") - 1]
            raise FileError(
                f"{path}: line {parts['line'][row]}, column {name}: is {parts[name][row]} in search "
                f"{parts['srch_id'][row]}, but {parts[name][first]} in line {parts['line'][first]}; it must "
                "be the same throughout a search: correct the entry or remove the search"
            )


def _variables(whole: Parts) -> pd.DataFrame:
    stay = whole["srch_length_of_stay"]
    means, deviations = {}, {}
    for name in SPREAD:
        n = whole[f"{name} n"]
        means[name] = np.where(n > 0, whole[f"{name} mean"], np.nan)
        deviations[name] = np.where(
            n > 1, np.sqrt(np.maximum(whole[f"{name} squares"], 0) / np.maximum(n - 1, 1)), np.nan
        )
    frame = pd.DataFrame(
        {
            "srch_destination_id": whole["srch_destination_id"],
            "srch_id": whole["srch_id"],
            "date_time": whole["date_time"].astype("datetime64[s]"),
            "n_properties": whole["n_properties"].astype(np.int64),
            "mean_hist_price": means["prop_log_historical_price"],
            "std_hist_price": deviations["prop_log_historical_price"],
            "prop_location_score1": whole["prop_location_score1"],
            "srch_room_count": whole["srch_room_count"],
            "srch_length_of_stay": stay,
            "prop_review_score": whole["prop_review_score"],
            "comp_inv": whole["comp_inv"],
            "avg_price_per_night": means["price_usd"],
            "total_promotions": whole["promotion_flag"],
            "std_price_usd": deviations["price_usd"],
            "gross_revenue_per_night": whole["gross_bookings_usd"] / stay,
            "total_clicks": whole["click_bool"],
        }
    )
    frame = frame.sort_values(["srch_destination_id", "date_time", "srch_id"], ignore_index=True)
    frame.insert(1, "time_idx", frame.groupby("srch_destination_id").cumcount() + 1)
    return frame.astype(dict.fromkeys(VARIABLES, np.float64))
