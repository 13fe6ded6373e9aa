"""From search lists to transition stores: cleaning, a split by destination, encoding, standardisation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from kedrl_dask.datasets.expedia.columns import (
    ACTION,
    CATEGORICAL,
    CONTINUOUS,
    REWARD,
    STATE,
    VARIABLES,
    Statistics,
)
from kedrl_dask.engine.data.transition_store import DataWarning, TransitionStore
from kedrl_dask.utils.arrays import Actions, Points, Record, Vector

#: Transitions of the paper's subset (tab:expedia_appendix_setup).
PAPER_TRAINING, PAPER_TEST = 10_000, 4_000


@dataclass(frozen=True)
class Cleaning:
    """Limits within which lists are kept: nights, rooms, mean and standard deviation of prices in dollars.

    The paper uses a cleaned subset without describing the cleaning. The limits are the ranges of
    tab:expedia_data_desc, in which prices end so abruptly that they must have been cut there; the published
    file has prices of millions. No limit depends on a reward.
    """

    longest_stay: int = 14
    most_rooms: int = 8
    prices: tuple[float, float] = (64.7, 210.0)
    largest_dispersion: float = 80.0


def clean(lists: pd.DataFrame, cleaning: Cleaning | None = None) -> tuple[pd.DataFrame, dict[str, int]]:
    """The lists that are kept, renumbered within destinations, and the numbers dropped for each reason."""
    rules = cleaning or Cleaning()
    low, high = rules.prices
    reasons = {
        "a variable is missing": lists[list(VARIABLES)].isna().any(axis=1),
        f"more than {rules.longest_stay} nights": lists["srch_length_of_stay"] > rules.longest_stay,
        f"more than {rules.most_rooms} rooms": lists["srch_room_count"] > rules.most_rooms,
        f"mean price outside {low:g} to {high:g}": ~lists["avg_price_per_night"].between(low, high),
        f"standard deviation of prices above {rules.largest_dispersion:g}": lists["std_price_usd"]
        > rules.largest_dispersion,
    }
    kept, left_out = np.ones(len(lists), dtype=bool), {}
    for reason, applies in reasons.items():
        left_out[reason] = int((kept & applies).sum())
        kept &= ~applies.to_numpy()
    by_destination = lists[kept].groupby("srch_destination_id")
    has_successor = by_destination["srch_id"].transform("size") > 1
    left_out["the only list of its destination"] = int((~has_successor).sum())
    found = lists[kept][has_successor].reset_index(drop=True)
    if found.empty:
        counts = "; ".join(f"{reason}: {n:,}" for reason, n in left_out.items())
        raise ValueError(f"no list of {len(lists):,} is left after cleaning ({counts}); widen the limits")
    return found.assign(time_idx=found.groupby("srch_destination_id").cumcount() + 1), left_out


@dataclass(frozen=True)
class Split:
    """Lists of the training and of the test destinations."""

    training: pd.DataFrame
    test: pd.DataFrame


def split(
    lists: pd.DataFrame, training: int | None = PAPER_TRAINING, test: int | None = PAPER_TEST, seed: int = 0
) -> Split:
    """Divide whole destinations of cleaned lists at random between training and test.

    The last destination of each is cut short where that gives the numbers of transitions asked for. None
    takes all, in the proportion of the paper's numbers.
    """
    sizes = lists.groupby("srch_destination_id").size() - 1
    sizes = sizes.iloc[np.random.default_rng([seed, 2]).permutation(len(sizes))]
    total = int(sizes.sum())
    if training is None or test is None:
        test = round(total * PAPER_TEST / (PAPER_TRAINING + PAPER_TEST))
        training = None
    elif training + test > total:
        raise ValueError(
            f"there are {total:,} transitions in {len(sizes):,} destinations, fewer than the {training:,} "
            f"and {test:,} asked for; give fewer, more data, or take all searches"
        )
    n_test = int(np.searchsorted(np.cumsum(sizes.to_numpy()), max(test, 1))) + 1
    for_test, rest = sizes.iloc[:n_test], sizes.iloc[n_test:]
    if training is None:
        training, test = int(rest.sum()), int(for_test.sum())
    if int(rest.sum()) < max(training, 1):
        raise ValueError(
            f"{test:,} test transitions take {n_test} of {len(sizes)} destinations, which leaves "
            f"{int(rest.sum()):,} of {training:,} transitions for training; give more data or fewer of them"
        )
    n_training = int(np.searchsorted(np.cumsum(rest.to_numpy()), training)) + 1
    return Split(_taken(lists, rest.iloc[:n_training], training), _taken(lists, for_test, test))


def _taken(lists: pd.DataFrame, destinations: pd.Series, n_transitions: int) -> pd.DataFrame:
    """The lists of some destinations, the last of them cut short."""
    excess = int(destinations.sum()) - n_transitions
    found = lists[lists["srch_destination_id"].isin(destinations.index)]
    last = found["srch_destination_id"] == destinations.index[-1]
    return found[~last | (found["time_idx"] <= int(destinations.iloc[-1]) + 1 - excess)].reset_index(
        drop=True
    )


@dataclass(frozen=True)
class Encoder:
    """Encoding of variables as columns of a store, learned from the training lists, and its inverse.

    States are one-hot for room count, length of stay and competitors' inventory, standardised otherwise;
    unknown levels are zeros. Actions are standardised. Rewards are divided by their standard deviation and
    not centred, so that a return in raw units is the stored one times the scale. The return kernel depends
    on differences alone, so that the fit is that of centred rewards.

    Attributes
    ----------
    levels : dict
        Levels of each categorical variable, rising.
    mean, scale : dict
        Of the continuous states, actions and rewards, by name.
    low, high : dict
        Range of each action in the training lists.
    clicks : tuple of float
        Numbers of clicks that training lists have.
    """

    levels: Mapping[str, tuple[float, ...]]
    mean: Mapping[str, float]
    scale: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    clicks: tuple[float, ...]

    @classmethod
    def learn(cls, lists: pd.DataFrame) -> Encoder:
        """Learn the encoding from training lists."""
        scaled = (*CONTINUOUS, *ACTION, *REWARD)
        scale = {name: float(lists[name].std(ddof=0)) for name in scaled}
        constant = [name for name, value in scale.items() if not value > 0]
        if constant:
            raise ValueError(
                f"{constant[0]} is the same in all {len(lists):,} training lists, so that it has no scale; "
                "give more searches"
            )
        return cls(
            {name: tuple(np.unique(lists[name]).tolist()) for name in CATEGORICAL},
            {name: float(lists[name].mean()) for name in scaled},
            scale,
            {name: float(lists[name].min()) for name in ACTION},
            {name: float(lists[name].max()) for name in ACTION},
            tuple(np.unique(lists["total_clicks"]).tolist()),
        )

    @property
    def state_names(self) -> list[str]:
        """Columns of the encoded state."""
        names = []
        for name in STATE:
            names += [f"{name}={v:g}" for v in self.levels[name]] if name in self.levels else [name]
        return names

    def state(self, lists: pd.DataFrame) -> Points:
        """Encoded states (n, 28 on the paper's sample)."""
        columns = []
        for name in STATE:
            values = lists[name].to_numpy(np.float64)
            if name in self.levels:
                columns += [(values == level).astype(np.float64) for level in self.levels[name]]
            else:
                columns.append((values - self.mean[name]) / self.scale[name])
        return np.stack(columns, axis=1)

    def action(self, lists: pd.DataFrame) -> Actions:
        """Standardised actions (n, 3)."""
        return self.standardised(lists[list(ACTION)].to_numpy(np.float64))

    def reward(self, lists: pd.DataFrame) -> Points:
        """Scaled rewards (n, 2)."""
        return lists[list(REWARD)].to_numpy(np.float64) / self.reward_scale

    def standardised(self, action: Actions) -> Actions:
        """Raw actions on the standardised scale."""
        return (action - _vector(self.mean, ACTION)) / _vector(self.scale, ACTION)

    def raw_action(self, action: Actions) -> Actions:
        """Standardised actions on the raw scale."""
        return _vector(self.mean, ACTION) + _vector(self.scale, ACTION) * action

    @property
    def action_range(self) -> tuple[Vector, Vector]:
        """Smallest and largest logged actions of the training lists, on the raw scale."""
        return _vector(self.low, ACTION), _vector(self.high, ACTION)

    @property
    def reward_mean(self) -> Vector:
        """Mean rewards, on the raw scale."""
        return _vector(self.mean, REWARD)

    @property
    def reward_scale(self) -> Vector:
        """Standard deviations of the rewards."""
        return _vector(self.scale, REWARD)

    def to_dict(self) -> Record:
        """Plain numbers, for JSON."""
        return {name: list(value) if name == "clicks" else value for name, value in asdict(self).items()}


def _vector(values: Mapping[str, float], names: tuple[str, ...]) -> Vector:
    return np.array([values[name] for name in names])


def write(path: Path, lists: pd.DataFrame, encoder: Encoder, chunk_rows: int = 16_384) -> TransitionStore:
    """Write encoded lists into a new store: a destination is an episode, a list is a step."""
    dims = {"state_dim": len(encoder.state_names), "action_dim": len(ACTION), "reward_dim": len(REWARD)}
    with warnings.catch_warnings():
        # A level that occurs in no test list is a column of zeros there, and must be kept.
        warnings.filterwarnings("ignore", message=".* leave out a constant column", category=DataWarning)
        with TransitionStore.writer(path, **dims, chunk_rows=chunk_rows) as writer:
            for start in range(0, len(lists), chunk_rows):
                part = lists.iloc[start : start + chunk_rows]
                writer.append(
                    state=encoder.state(part),
                    action=encoder.action(part),
                    reward=encoder.reward(part),
                    episode=part["srch_destination_id"].to_numpy(),
                    step=part["time_idx"].to_numpy(),
                )
    return TransitionStore.open(path)


def describe(lists: pd.DataFrame) -> dict[str, Statistics]:
    """Summary statistics as in tab:expedia_data_desc, of the lists with a successor."""
    last = lists["srch_destination_id"] != lists["srch_destination_id"].shift(-1)
    numbers = lists.loc[~last, list(VARIABLES)].describe()
    keys = ("mean", "std", "min", "25%", "50%", "75%", "max")
    return {name: Statistics(*(float(numbers.loc[key, name]) for key in keys)) for name in VARIABLES}
