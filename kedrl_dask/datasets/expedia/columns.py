"""Columns of the published file, and the variables derived from them.

The file is ``train.csv`` of Kaggle's *Personalize Expedia Hotel Searches* (ICDM 2013): one row for each
property shown in a search, 9.9 million in all, with missing entries written as ``NULL``. The file may not be
redistributed; only its column names and the summary statistics printed in the paper appear here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

#: A missing entry in the file.
NULL = "NULL"
COMPETITORS = range(1, 9)


@dataclass(frozen=True)
class Column:
    """A column of the file: its kind, and the share of missing entries, to about a hundredth."""

    name: str
    kind: Literal["integer", "number", "time"]
    missing: float = 0.0


#: Shares of missing rates, inventories and rate differences for each competitor.
_MISSING = {
    1: (0.976, 0.974, 0.981), 2: (0.592, 0.570, 0.888), 3: (0.691, 0.668, 0.905), 4: (0.938, 0.931, 0.974),
    5: (0.552, 0.524, 0.830), 6: (0.952, 0.947, 0.981), 7: (0.936, 0.928, 0.972), 8: (0.613, 0.599, 0.876),
}  # fmt: skip

#: All 54 columns in the order of the file.
COLUMNS: tuple[Column, ...] = (
    Column("srch_id", "integer"),
    Column("date_time", "time"),
    Column("site_id", "integer"),
    Column("visitor_location_country_id", "integer"),
    Column("visitor_hist_starrating", "number", 0.949),
    Column("visitor_hist_adr_usd", "number", 0.949),
    Column("prop_country_id", "integer"),
    Column("prop_id", "integer"),
    Column("prop_starrating", "integer"),
    Column("prop_review_score", "number", 0.0015),
    Column("prop_brand_bool", "integer"),
    Column("prop_location_score1", "number"),
    Column("prop_location_score2", "number", 0.22),
    Column("prop_log_historical_price", "number"),
    Column("position", "integer"),
    Column("price_usd", "number"),
    Column("promotion_flag", "integer"),
    Column("srch_destination_id", "integer"),
    Column("srch_length_of_stay", "integer"),
    Column("srch_booking_window", "integer"),
    Column("srch_adults_count", "integer"),
    Column("srch_children_count", "integer"),
    Column("srch_room_count", "integer"),
    Column("srch_saturday_night_bool", "integer"),
    Column("srch_query_affinity_score", "number", 0.936),
    Column("orig_destination_distance", "number", 0.324),
    Column("random_bool", "integer"),
    *(
        Column(f"comp{i}_{name}", "integer", share)
        for i in COMPETITORS
        for name, share in zip(("rate", "inv", "rate_percent_diff"), _MISSING[i], strict=True)
    ),
    Column("click_bool", "integer"),
    Column("gross_bookings_usd", "number", 0.972),
    Column("booking_bool", "integer"),
)

#: Columns from which the variables are derived, in the order of the file.
NEEDED: tuple[Column, ...] = tuple(
    column
    for column in COLUMNS
    if column.name
    in {
        "srch_id", "date_time", "srch_destination_id", "srch_length_of_stay", "srch_room_count",
        "prop_review_score", "prop_location_score1", "prop_log_historical_price", "price_usd",
        "promotion_flag", "click_bool", "gross_bookings_usd", *(f"comp{i}_inv" for i in COMPETITORS),
    }
)  # fmt: skip

#: The variables of a search list (tab:expedia_data_vars).
STATE = (
    "mean_hist_price", "std_hist_price", "prop_location_score1", "srch_room_count", "srch_length_of_stay",
    "prop_review_score", "comp_inv",
)  # fmt: skip
ACTION = ("avg_price_per_night", "total_promotions", "std_price_usd")
REWARD = ("gross_revenue_per_night", "total_clicks")
VARIABLES = (*STATE, *ACTION, *REWARD)
#: State variables that are one-hot encoded, and those that are standardised.
CATEGORICAL = ("srch_room_count", "srch_length_of_stay", "comp_inv")
CONTINUOUS = tuple(name for name in STATE if name not in CATEGORICAL)


class Statistics(NamedTuple):
    """A row of tab:expedia_data_desc."""

    mean: float
    sd: float
    min: float
    q1: float
    median: float
    q3: float
    max: float


#: tab:expedia_data_desc: the 10,000 training transitions of the paper.
PAPER_STATISTICS: dict[str, Statistics] = {
    "mean_hist_price": Statistics(5.006, 0.299, 1.856, 4.794, 4.981, 5.203, 6.140),
    "std_hist_price": Statistics(0.256, 0.109, 0.000, 0.199, 0.250, 0.303, 2.542),
    "prop_location_score1": Statistics(2.791, 1.450, 0.000, 1.790, 2.710, 3.830, 6.950),
    "srch_room_count": Statistics(1.132, 0.459, 1.000, 1.000, 1.000, 1.000, 8.000),
    "srch_length_of_stay": Statistics(2.333, 1.818, 1.000, 1.000, 2.000, 3.000, 14.000),
    "prop_review_score": Statistics(3.937, 0.620, 1.000, 3.500, 4.000, 4.500, 5.000),
    "comp_inv": Statistics(0.453, 0.498, 0.000, 0.000, 0.000, 1.000, 1.000),
    "avg_price_per_night": Statistics(126.769, 27.919, 64.727, 105.247, 124.002, 146.644, 210.000),
    "total_promotions": Statistics(3.579, 4.316, 0.000, 1.000, 2.000, 5.000, 29.000),
    "std_price_usd": Statistics(29.531, 10.669, 0.566, 22.485, 30.393, 36.848, 79.977),
    "gross_revenue_per_night": Statistics(4.755, 24.307, 0.000, 0.000, 0.000, 0.000, 213.250),
    "total_clicks": Statistics(0.321, 0.610, 0.000, 0.000, 0.000, 1.000, 11.000),
}
