"""Summaries of laws in bootstrap replicates, their differences between policies, and dominance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from kedrl_dask import results
from kedrl_dask.bootstrap import Draws
from kedrl_dask.mixtures import Mixture

__all__ = ["INTERVAL_PARTS", "Summaries", "contrasts", "dominance", "intervals", "thresholds"]

Array = npt.NDArray[Any]

#: Difference of distribution functions below which they count as equal.
DOMINANCE_TOLERANCE = 0.01
#: Steps at which smoothed distribution functions are compared, and how far beyond the outermost atoms, in
#: bandwidths; and the most steps.
STEP, BEYOND, MOST_THRESHOLDS = 0.25, 3, 400
#: A summary, and with a bootstrap its standard error and the ends of its interval.
INTERVAL_PARTS = ("", "_standard_error", "_low", "_high")


@dataclass(frozen=True, eq=False)
class Summaries:
    """Summaries of laws and their distribution functions in one array, so that replicates recover once.

    Attributes
    ----------
    levels, tail
        Levels of the quantiles, and share of the tail mean.
    thresholds : (d, T) array
        Where the distribution function of each coordinate is taken.
    """

    levels: Sequence[float]
    tail: float
    thresholds: Array

    def __call__(self, law: Mixture) -> Array:
        """Everything about n laws; (n, d, k)."""
        found = results.summarise(law, self.levels, self.tail)
        below = np.stack([law.cdf(t, c) for c, t in enumerate(self.thresholds)], axis=1)
        parts = [value[..., None] if value.ndim == 2 else value for value in (*found.values(), below)]
        return np.concatenate(parts, axis=2)

    def unpack(self, values: Array) -> dict[str, Array]:
        """The summaries by name, of an array (…, n, d, k)."""
        sizes = {name: len(self.levels) if name == "quantile" else 1 for name in results.SUMMARIES}
        edges = np.cumsum(list(sizes.values()))
        *parts, below = np.split(values, edges, axis=-1)
        found = {
            name: part if name == "quantile" else part[..., 0]
            for name, part in zip(sizes, parts, strict=True)
        }
        return found | {"cdf": below}

    def dims(self, name: str) -> tuple[str, ...]:
        """Dimensions of a summary, after that of the policy or pair."""
        return ("input", "coordinate", "level") if name == "quantile" else ("input", "coordinate")


def thresholds(law: Mixture) -> Array:
    """Where distribution functions are compared, as many for each coordinate; (d, T).

    Without smoothing they change at atoms only. With it, they are compared at steps of a quarter of the
    bandwidth, which miss the largest difference by less than 0.004: |F″| ≤ 0.25/h² for each of the two.
    """
    columns = []
    for y, h in zip(law.atoms.T, law.bandwidth, strict=True):
        low, high = y.min() - BEYOND * h, y.max() + BEYOND * h
        n_steps = 0 if h == 0 else min(int(np.ceil((high - low) / (STEP * h))), MOST_THRESHOLDS)
        columns.append(np.unique(y) if h == 0 else np.linspace(low, high, n_steps + 1))
    longest = max(len(column) for column in columns)
    return np.stack([np.pad(column, (0, longest - len(column)), mode="edge") for column in columns])


def intervals(summaries: Summaries, draws: Sequence[Draws], interval: float) -> xr.Dataset:
    """Standard errors and intervals of the policies' summaries; empty without replicates."""
    return _labelled(summaries, draws, interval, "policy", "") if draws else xr.Dataset()


def _labelled(
    summaries: Summaries, draws: Sequence[Draws], interval: float, lead: str, suffix: str
) -> xr.Dataset:
    """Standard errors and intervals of summaries, one draw for each label of ``lead``."""
    parts = [np.stack([d.standard_error for d in draws])]
    parts += [np.stack(ends) for ends in zip(*(d.interval(interval) for d in draws), strict=True)]
    found = xr.Dataset()
    for part, values in zip(INTERVAL_PARTS[1:], parts, strict=True):
        for name, value in summaries.unpack(values).items():
            if name in results.SUMMARIES:
                found[name + suffix + part] = ((lead, *summaries.dims(name)), value)
    return found


def contrasts(
    summaries: Summaries, estimates: Mapping[str, Array], draws: Mapping[str, Draws], interval: float
) -> xr.Dataset:
    """Differences and dominance, for every pair: the later policy less the earlier one."""
    pairs = list(combinations(estimates, 2))
    if not pairs:
        return xr.Dataset()
    values = summaries.unpack(np.stack([estimates[later] - estimates[sooner] for sooner, later in pairs]))
    below = values.pop("cdf")
    found = xr.Dataset(
        {f"{name}_difference": (("pair", *summaries.dims(name)), value) for name, value in values.items()}
    )
    sign = dominance(below)
    found["gain"] = (("pair", "input", "coordinate"), np.maximum(-below.min(axis=-1), 0.0))
    found["loss"] = (("pair", "input", "coordinate"), np.maximum(below.max(axis=-1), 0.0))
    names = [
        np.array(["neither", later, sooner], dtype=object)[s]
        for (sooner, later), s in zip(pairs, sign, strict=True)
    ]
    found["dominant"] = (("pair", "input", "coordinate"), np.stack(names))
    if draws:
        of_pairs = [draws[later] - draws[sooner] for sooner, later in pairs]
        found.update(_labelled(summaries, of_pairs, interval, "pair", "_difference"))
        again = np.stack([dominance(summaries.unpack(d.values)["cdf"]) for d in of_pairs])
        found["share"] = (("pair", "input", "coordinate"), (again == sign[:, None]).mean(axis=1))
    return found.assign_coords(
        pair=results.text(f"{later} − {sooner}" for sooner, later in pairs),
        minuend=("pair", results.text(later for _, later in pairs)),
        subtrahend=("pair", results.text(sooner for sooner, _ in pairs)),
    )


def dominance(below: Array) -> Array:
    """Which law dominates, from differences F₁ − F₀ of distribution functions: 1, −1 for 0, or 0 for none."""
    largest, smallest = below.max(axis=-1), below.min(axis=-1)
    later = (largest <= DOMINANCE_TOLERANCE) & (smallest < -DOMINANCE_TOLERANCE)
    sooner = (smallest >= -DOMINANCE_TOLERANCE) & (largest > DOMINANCE_TOLERANCE)
    return later.astype(int) - sooner.astype(int)
