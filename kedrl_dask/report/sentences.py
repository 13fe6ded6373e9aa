"""Answers in words and tables, before any picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from kedrl_dask.numerics.laws.summaries import SUMMARIES
from kedrl_dask.report.charts import MOST_INPUTS
from kedrl_dask.report.content import Content

#: Sentences before the tables.
MOST_SENTENCES = 12


class Cell(NamedTuple):
    """A number, and its interval and its value under the second specification, if there are any."""

    value: str
    interval: str = ""
    second: str = ""


def question(content: Content) -> str:
    """What was asked."""
    sizes, names = content.sizes, list(content.policies)
    rewards = f"{sizes['reward_dim']} reward{'s' * (sizes['reward_dim'] > 1)}"
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"What is the law of the discounted return of {rewards} (γ = {content.settings['discount']:g}) under "
        f"{who}, {content.where}?"
    )


def answers(dataset: xr.Dataset) -> list[str]:
    """The answer for each coordinate in a sentence or two."""
    compared = _compared if "pair" in dataset.dims else _alone
    found = [sentence for c in range(dataset.sizes["coordinate"]) for sentence in compared(dataset, c)]
    left = len(found) - MOST_SENTENCES
    return found if left <= 0 else [*found[:MOST_SENTENCES], f"{left} more pairs are in the tables below."]


def _compared(dataset: xr.Dataset, coordinate: int) -> list[str]:
    """How often each pair's difference of means is clear, and who dominates."""
    found, n = [], dataset.sizes["input"]
    for p in range(dataset.sizes["pair"]):
        part = dataset.isel(pair=p, coordinate=coordinate)
        later, sooner = part["minuend"].item(), part["subtrahend"].item()
        value = part["mean_difference"].to_numpy()
        text = f"Return {coordinate + 1}, {later} less {sooner}: the mean differs by {_range(value)}"
        if "mean_difference_low" in part:
            low, high = part["mean_difference_low"].to_numpy(), part["mean_difference_high"].to_numpy()
            higher, lower = _of((low > 0).sum(), n), _of((high < 0).sum(), n)
            text += f"; it is clearly higher at {higher}, clearly lower at {lower}"
        dominant = part["dominant"].to_numpy()
        won = [
            f"{name} at {_of((dominant == name).sum(), n)}"
            for name in (later, sooner)
            if (dominant == name).any()
        ]
        text += f". Dominant in the first order: {', '.join(won) or 'neither'}."
        found.append(text)
    return found


def _alone(dataset: xr.Dataset, coordinate: int) -> list[str]:
    part = dataset.isel(policy=0, coordinate=coordinate)
    mean, tail = part["mean"].to_numpy(), part["cvar"].to_numpy()
    return [
        f"Return {coordinate + 1}: the mean is {_range(mean)}, and the lowest "
        f"{dataset.attrs['tail']:.0%} average {_range(tail)}."
    ]


def _range(values: Any) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return _number(low) if len(values) == 1 else f"{_number(low)} to {_number(high)}"


def _of(count: Any, n: int) -> str:
    return f"{int(count):,} of {n:,} input{'s' * (n > 1)}"


def _number(value: float) -> str:
    return f"{value:z.3g}".replace("-", "−")


def headings(dataset: xr.Dataset) -> list[str]:
    """Of the columns of numbers."""
    quantiles = [f"{float(level):.0%}" for level in dataset["level"].values]
    return ["mean", "sd", *quantiles, f"CVaR {dataset.attrs['tail']:.0%}"]


def summaries_at(dataset: xr.Dataset) -> list[list[tuple[str, int, list[Cell], str]]]:
    """For each input that is shown: policy, coordinate, numbers and flags."""
    names, numbers = [str(name) for name in dataset["policy"].values], _numbers(dataset, "")
    return [
        [
            (name, c + 1, [column[p, i, c] for column in numbers], _flags(dataset, p, i))
            for p, name in enumerate(names)
            for c in range(dataset.sizes["coordinate"])
        ]
        for i in range(min(MOST_INPUTS, dataset.sizes["input"]))
    ]


def differences_at(dataset: xr.Dataset) -> list[list[tuple[str, int, list[Cell], str]]]:
    """For each input that is shown: pair, coordinate, differences and the dominant policy."""
    if "pair" not in dataset.dims:
        return []
    numbers, dominant = _numbers(dataset, "_difference"), dataset["dominant"].values
    pairs = zip(dataset["minuend"].values, dataset["subtrahend"].values, strict=True)
    names = [f"{later} less {sooner}" for later, sooner in pairs]
    return [
        [
            (name, c + 1, [column[p, i, c] for column in numbers], str(dominant[p, i, c]))
            for p, name in enumerate(names)
            for c in range(dataset.sizes["coordinate"])
        ]
        for i in range(min(MOST_INPUTS, dataset.sizes["input"]))
    ]


def _numbers(dataset: xr.Dataset, suffix: str) -> list[dict[tuple[int, int, int], Cell]]:
    """Cells by policy or pair, input and coordinate, for each column of the table."""
    columns: list[dict[tuple[int, int, int], Cell]] = []
    for name in SUMMARIES:
        parts = [
            dataset[name + suffix + part].values if name + suffix + part in dataset else None
            for part in ("", "_low", "_high", "_second")
        ]
        # One array of labels, inputs and coordinates for each part; of quantiles, one for each level.
        levels = range(dataset.sizes["level"]) if name == "quantile" else (None,)
        columns += [
            _cells([part if part is None or level is None else part[..., level] for part in parts])
            for level in levels
        ]
    return columns


def _cells(parts: list[Any]) -> dict[tuple[int, int, int], Cell]:
    value, low, high, second = parts
    return {
        at: Cell(
            _number(number),
            "" if low is None else f"{_number(low[at])} to {_number(high[at])}",
            "" if second is None else _number(second[at]),
        )
        for at, number in np.ndenumerate(value[:, :MOST_INPUTS])
    }


def _flags(dataset: xr.Dataset, policy: int, at: int) -> str:
    names = ("not_converged", "residual", "sensitive")
    return ", ".join(n.replace("_", " ") for n in names if dataset[f"flag_{n}"].values[policy, at])
