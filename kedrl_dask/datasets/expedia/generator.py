"""Synthetic files of any size with the columns, types and missing entries of the published one.

Every number is simulated; none is taken from the data. Marginals of the search lists are close to those of
tab:expedia_data_desc, with heavy-tailed prices. Destinations differ in price level, and their demand drifts
over time. Cheaper lists with more promotions attract more clicks; more expensive ones earn more revenue. The
resemblance ends there: results on such a file illustrate the method and say nothing about hotels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from kedrl_dask.datasets.expedia.columns import COLUMNS, COMPETITORS, NULL, Column
from kedrl_dask.engine.storage.atomic import atomic_file
from kedrl_dask.engine.storage.untrusted import require_space
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import MOST_SEED, check_count

#: Searches per block. Each block has its own random generator, so a search does not depend on their number.
BLOCK_SEARCHES = 1_000
#: Mean number of searches per destination in the published file, and its largest destination identifier.
SEARCHES_PER_DESTINATION, LARGEST_DESTINATION = 22, 28_416
#: Approximate bytes per row and properties per list.
ROW_BYTES, LIST_ROWS = 200, 24
#: Period covered by the published file, in seconds since 1970.
FIRST_SECOND, LAST_SECOND = 1_351_728_000, 1_372_636_799
_ROOMS = np.array([0.9, 0.078, 0.0125, 0.0055, 0.0018, 0.001, 0.0006, 0.0006])
_REVIEWS = np.array([0.035, 0.006, 0.006, 0.012, 0.03, 0.09, 0.19, 0.31, 0.2605, 0.0605])
_REVIEW_SCORES = np.array([0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0])


def write_like_published(
    path: str | PathLike[str],
    n_searches: int,
    n_destinations: int | None = None,
    seed: int = 0,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write a file of synthetic searches with the published schema, block by block.

    The file must not exist; it is written atomically. A search has 24 properties on average, and the
    published file has 399,344 searches. By default there is one destination per 22 searches; some are far
    more popular than others. ``advance`` is called with the number of searches of each block written.
    """
    path = Path(path)
    n_destinations = -(-n_searches // SEARCHES_PER_DESTINATION) if n_destinations is None else n_destinations
    check_count("n_searches", n_searches)
    check_count("n_destinations", n_destinations)
    check_count("seed", seed, least=0, most=MOST_SEED)
    if path.exists():
        raise FileExistsError(f"{path} exists; choose another path, or remove it")
    require_space(path, ROW_BYTES * LIST_ROWS * n_searches)
    destinations = _Destinations.draw(n_destinations, np.random.default_rng([seed, 0]))
    with atomic_file(path) as file:
        file.write((",".join(column.name for column in COLUMNS) + "\n").encode())
        for n, rows in _pieces(destinations, n_searches, seed):
            table = pa.table({column.name: _texts(rows[column.name], column) for column in COLUMNS})
            csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style="none"))
            if advance is not None:
                advance(n)
    return path


@dataclass(frozen=True)
class _Destinations:
    """Properties shared by the searches of a destination, with one entry per destination."""

    number: Array
    popularity: Array  # cumulative
    country: Array
    level: Array  # of the logarithm of historical prices
    location: Array
    phase: Array  # of the demand over the year

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> _Destinations:
        weight = 1.0 / (np.arange(n) + 3.0)
        return cls(
            np.sort(rng.permutation(max(LARGEST_DESTINATION, n))[:n]) + 1,
            np.cumsum(rng.permutation(weight)) / weight.sum(),
            np.where(rng.random(n) < 0.6, 219, rng.integers(1, 231, n)),
            5.0 + 0.26 * rng.standard_normal(n),
            2.8 + 1.2 * rng.standard_normal(n),
            rng.uniform(0, 2 * np.pi, n),
        )


def _pieces(
    destinations: _Destinations, n_searches: int, seed: int
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield the number of searches and the columns of each block; the rows of a search are adjacent."""
    for block, first in enumerate(range(0, n_searches, BLOCK_SEARCHES)):
        rng = np.random.default_rng([seed, 1, block])
        searches = _searches(destinations, first, rng)
        n = min(BLOCK_SEARCHES, n_searches - first)
        rows = _properties(searches, rng)
        kept = int(searches["size"][:n].sum())
        yield n, {name: values[:kept] for name, values in rows.items()}


def _searches(destinations: _Destinations, first: int, rng: np.random.Generator) -> dict[str, Array]:
    """One entry for each search of a block."""
    n = BLOCK_SEARCHES
    at = np.minimum(np.searchsorted(destinations.popularity, rng.random(n)), len(destinations.number) - 1)
    second = rng.integers(FIRST_SECOND, LAST_SECOND + 1, n)
    season = 2 * np.pi * (second - FIRST_SECOND) / (LAST_SECOND - FIRST_SECOND)
    demand = np.sin(season + destinations.phase[at])
    level = destinations.level[at] + 0.06 * demand + 0.1 * rng.standard_normal(n)
    stay = np.where(rng.random(n) < 0.004, rng.integers(15, 58, n), rng.geometric(0.43, n).clip(1, 14))
    size = np.where(rng.random(n) < 0.65, rng.integers(26, 34, n), rng.integers(5, 30, n))
    return {
        "srch_id": first + np.arange(n) + 1,
        "date_time": second,
        "at": at,
        "srch_destination_id": destinations.number[at],
        "prop_country_id": destinations.country[at],
        "location": destinations.location[at],
        "level": level,
        "demand": demand,
        "size": np.where(rng.random(n) < 0.004, rng.integers(1, 5, n), size),
        # Logarithm of the mean price, and the coefficient of variation within the list.
        "price": 4.79 + 0.45 * (level - 5.0) + 0.05 * demand + 0.17 * rng.standard_normal(n),
        "spread": 0.235 * np.exp(0.3 * rng.standard_normal(n)),
        "promoted": rng.beta(0.85, 5.2, n),
        "unavailable": rng.random(n) < 0.455 + 0.1 * demand,
        "appeal": rng.gamma(2.0, 0.5, n),
        "srch_length_of_stay": stay,
        "srch_room_count": rng.choice(8, n, p=_ROOMS / _ROOMS.sum()) + 1,
        "srch_booking_window": np.floor(rng.lognormal(2.8, 1.3, n)).clip(0, 498).astype(int),
        "srch_adults_count": rng.choice(9, n, p=[0.22, 0.62, 0.07, 0.06, 0.01, 0.01, 0.005, 0.004, 0.001])
        + 1,
        "srch_children_count": rng.choice(5, n, p=[0.77, 0.11, 0.09, 0.02, 0.01]),
        "srch_saturday_night_bool": (rng.random(n) < 0.5).astype(int),
        "random_bool": (rng.random(n) < 0.3).astype(int),
        "site_id": rng.choice([5, 14, 15, 24, 32, 9, 1], n, p=[0.62, 0.09, 0.06, 0.05, 0.05, 0.07, 0.06]),
        "visitor_location_country_id": np.where(rng.random(n) < 0.58, 219, rng.integers(1, 232, n)),
        "visitor_hist_starrating": _missing(
            rng.uniform(1.41, 5.0, n).round(2), "visitor_hist_starrating", rng
        ),
        "visitor_hist_adr_usd": _missing(rng.lognormal(5.0, 0.5, n).round(2), "visitor_hist_adr_usd", rng),
        "orig_destination_distance": _missing(
            rng.lognormal(6.0, 1.5, n).clip(0.01, 11_692).round(2), "orig_destination_distance", rng
        ),
    }


def _properties(searches: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Draw the columns of a block, with one entry for each property shown in a search."""
    size = searches["size"]
    of = np.repeat(np.arange(len(size)), size)
    n = len(of)
    own = {name: values[of] for name, values in searches.items()}
    position = np.arange(n) - np.repeat(np.cumsum(size) - size, size)
    deviation = rng.standard_normal(n)
    # As in the published file, a few prices are implausibly high.
    price = np.exp(own["price"]) * np.exp(own["spread"] * deviation)
    price *= np.where(rng.random(n) < 1e-4, rng.pareto(1.0, n) * 50 + 10, 1.0)
    within = 0.23 * np.exp(0.25 * rng.standard_normal(len(size)))[of]
    history = own["level"] + within * (0.6 * deviation + 0.8 * rng.standard_normal(n))
    history = np.where(rng.random(n) < 0.003, history - rng.exponential(1.0, n), history).clip(0.1, 6.21)
    promoted = rng.random(n) < own["promoted"]
    clicked, booked = _outcomes(own, of, position, price, promoted, rng)
    gross = price * own["srch_length_of_stay"] * own["srch_room_count"] * rng.uniform(1.0, 1.1, n)
    columns = {name: own[name] for name in own if name in _NAMES}
    columns |= {
        "date_time": own["date_time"],
        "prop_id": (own["at"] * 97 + rng.integers(0, 400, n)) % 140_821 + 1,
        "prop_starrating": rng.choice(6, n, p=[0.03, 0.01, 0.2, 0.4, 0.28, 0.08]),
        "prop_review_score": _missing(
            rng.choice(_REVIEW_SCORES, n, p=_REVIEWS / _REVIEWS.sum()), "prop_review_score", rng
        ),
        "prop_brand_bool": (rng.random(n) < 0.63).astype(int),
        "prop_location_score1": (own["location"] + 0.8 * rng.standard_normal(n)).clip(0, 6.98).round(2),
        "prop_location_score2": _missing(rng.beta(0.6, 4.0, n).round(4), "prop_location_score2", rng),
        "prop_log_historical_price": np.where(rng.random(n) < 0.14, 0.0, history.round(2)),
        "position": position + 1,
        "price_usd": price.round(2),
        "promotion_flag": promoted.astype(int),
        "srch_query_affinity_score": _missing(
            -rng.gamma(3.0, 8.0, n).clip(2.5, 326).round(4), "srch_query_affinity_score", rng
        ),
        "click_bool": clicked.astype(int),
        "gross_bookings_usd": np.where(booked, gross.round(2), np.nan),
        "booking_bool": booked.astype(int),
    }
    for i in COMPETITORS:
        rate, inventory, difference = (f"comp{i}_{name}" for name in ("rate", "inv", "rate_percent_diff"))
        none_left = own["unavailable"] & (rng.random(n) < 0.12)
        columns[rate] = _missing(rng.choice([-1, 0, 1], n, p=[0.1, 0.75, 0.15]), rate, rng)
        columns[inventory] = _missing(none_left.astype(int), inventory, rng)
        columns[difference] = _missing(np.ceil(rng.lognormal(2.3, 0.8, n)), difference, rng)
    return columns


def _outcomes(
    own: dict[str, Array], of: Array, position: Array, price: Array, promoted: Array, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw clicks, mostly on the properties shown first, and bookings of clicked properties."""
    n_lists = int(of[-1]) + 1
    total = np.bincount(of, promoted, n_lists)[of]
    log_rate = -0.9 * (own["price"] - 4.8) + 0.06 * (total - 3.6) - 1.2 * (own["spread"] - 0.24)
    rate = 0.29 * own["appeal"] * np.exp(log_rate + 0.15 * own["demand"])
    seen = 1.0 / (position + 2.0)
    chance = rate * seen / np.bincount(of, seen, n_lists)[of]
    clicked = rng.random(len(of)) < chance.clip(0, 0.9)
    worth = 0.11 * np.exp(0.8 * (own["price"] - 4.8) + 0.8 * (own["spread"] - 0.24))
    booked = clicked & (rng.random(len(of)) < worth) & (price < 1_000)
    # A search has at most one booking.
    order = np.flatnonzero(booked)
    first = np.unique(of[order], return_index=True)[1]
    single = np.zeros(len(of), dtype=bool)
    single[order[first]] = True
    return clicked, single


_NAMES = {column.name for column in COLUMNS}
_SHARES = {column.name: column.missing for column in COLUMNS}


def _missing(values: Array, name: str, rng: np.random.Generator) -> Array:
    """Set as large a share of the values to NaN as is missing in the published file."""
    return np.where(rng.random(len(values)) < _SHARES[name], np.nan, values)


def _texts(values: Array, column: Column) -> pa.Array:
    """Format a column as text in the style of the published file."""
    if column.kind == "time":
        return pc.strftime(pa.array(values, pa.timestamp("s")), format="%Y-%m-%d %H:%M:%S")
    given = pa.array(values, from_pandas=True)
    if column.kind == "integer":
        given = given.cast(pa.int64())
    return given.cast(pa.string()).fill_null(NULL)
