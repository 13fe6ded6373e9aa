"""The answers of a report in words and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr

from kedrl_dask.numerics.laws.summaries import SUMMARIES
from kedrl_dask.report.charts import MOST_INPUTS
from kedrl_dask.report.content import Content
from kedrl_dask.utils.arrays import Mask, Real, Vector

#: Sentences before the tables.
MOST_SENTENCES = 12


class Cell(NamedTuple):
    """A number, with its interval and its value under the second specification where they are known."""

    value: str
    interval: str = ""
    second: str = ""


Row = tuple[str, int, list[Cell], str]


def question(content: Content) -> str:
    """The question that the report answers."""
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
    found = []
    for p in range(dataset.sizes["pair"]):
        part = dataset.isel(pair=p, coordinate=coordinate)
        later, sooner = part["minuend"].item(), part["subtrahend"].item()
        value = part["mean_difference"].to_numpy()
        text = f"Return {coordinate + 1}, {later} − {sooner}: the mean differs by {_range(value)}"
        if "mean_difference_low" in part:
            low, high = part["mean_difference_low"].to_numpy(), part["mean_difference_high"].to_numpy()
            higher, lower = _of(low > 0), _of(high < 0)
            text += f"; it is clearly higher at {higher}, clearly lower at {lower}"
        dominant = part["dominant"].to_numpy()
        won = [f"{name} at {_of(dominant == name)}" for name in (later, sooner) if (dominant == name).any()]
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


def _range(values: Vector) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return _number(low) if len(values) == 1 else f"{_number(low)} to {_number(high)}"


def _of(where: Mask) -> str:
    n = len(where)
    return f"{where.sum():,} of {n:,} input{'s' * (n > 1)}"


def _number(value: float) -> str:
    return f"{value:z.3g}".replace("-", "−")


def headings(dataset: xr.Dataset) -> list[str]:
    """The headings of the columns of numbers."""
    quantiles = [f"{float(level):.0%}" for level in dataset["level"].values]
    return ["mean", "sd", *quantiles, f"CVaR {dataset.attrs['tail']:.0%}"]


def pairs(dataset: xr.Dataset) -> list[str]:
    """The pairs of policies by name."""
    if "pair" not in dataset.dims:
        return []
    names = zip(dataset["minuend"].values, dataset["subtrahend"].values, strict=True)
    return [f"{later} − {sooner}" for later, sooner in names]


def summaries_at(dataset: xr.Dataset) -> list[list[Row]]:
    """Policy, coordinate, numbers and flags, for each input that is shown."""
    names = [str(name) for name in dataset["policy"].values]
    return _tables(dataset, names, "", lambda p, i, _: _flags(dataset, p, i))


def differences_at(dataset: xr.Dataset) -> list[list[Row]]:
    """Pair, coordinate, differences and the dominant policy, for each input that is shown."""
    if "pair" not in dataset.dims:
        return []
    dominant = dataset["dominant"].values
    return _tables(dataset, pairs(dataset), "_difference", lambda *at: str(dominant[at]))


def _tables(
    dataset: xr.Dataset, names: list[str], suffix: str, remark: Callable[[int, int, int], str]
) -> list[list[Row]]:
    columns = list(_columns(dataset, suffix))
    return [
        [
            (name, c + 1, [_cell(column, (p, i, c)) for column in columns], remark(p, i, c))
            for p, name in enumerate(names)
            for c in range(dataset.sizes["coordinate"])
        ]
        for i in range(min(MOST_INPUTS, dataset.sizes["input"]))
    ]


def _columns(dataset: xr.Dataset, suffix: str) -> Iterator[dict[str, Real]]:
    """Values and whatever else there is of each column, by policy or pair, input and coordinate."""
    for name in SUMMARIES:
        variables = {part: name + suffix + part for part in ("", "_low", "_high", "_second")}
        found = {part: dataset[key].values for part, key in variables.items() if key in dataset}
        if name != "quantile":
            yield found
            continue
        for level in range(dataset.sizes["level"]):
            yield {part: values[..., level] for part, values in found.items()}


def _cell(column: dict[str, Real], at: tuple[int, int, int]) -> Cell:
    numbers = {part: _number(values[at]) for part, values in column.items()}
    interval = f"{numbers['_low']} to {numbers['_high']}" if "_low" in numbers else ""
    return Cell(numbers[""], interval, numbers.get("_second", ""))


def _flags(dataset: xr.Dataset, policy: int, at: int) -> str:
    names = ("not_converged", "residual", "sensitive")
    return ", ".join(n.replace("_", " ") for n in names if dataset[f"flag_{n}"].values[policy, at])
