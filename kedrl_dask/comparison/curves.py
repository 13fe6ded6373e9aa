"""The numbers behind figures of a comparison: curves of laws, and differences, with their intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from kedrl_dask.numerics.laws.summaries import seen
from kedrl_dask.utils.arrays import Real, Vector

#: Suffixes of an estimate and of the ends of its interval.
ENDS = ("", "_low", "_high")


class Estimate(NamedTuple):
    """Values and the ends of their intervals; the values themselves where there are no intervals."""

    value: Vector
    low: Vector
    high: Vector


class Curve(NamedTuple):
    """A curve with its band."""

    x: Vector
    value: Vector
    low: Vector
    high: Vector


class Curves(NamedTuple):
    """The laws of all policies at one input, in one coordinate, with limits where there is something to see.

    Unless ``is_smooth``, ``density`` is masses, to be drawn as bars of some width side by side, and
    distribution functions have the corners of their steps.
    """

    is_smooth: bool
    has_intervals: bool
    limits: tuple[float, float]
    width: float
    density: list[Curve]
    cdf: list[Curve]


def curves(results: xr.Dataset, at: int, coordinate: int) -> Curves:
    """Density, or masses, and distribution function of every policy at one input, in one coordinate."""
    x, first = np.unique(results["thresholds"].isel(coordinate=coordinate), return_index=True)
    has_intervals = "cdf_low" in results
    part = {"input": at, "coordinate": coordinate}
    density, cdf = (_estimates(results, name, part)[..., first] for name in ("density", "cdf"))
    if float(results["bandwidth"][coordinate]) > 0:
        kept = seen(cdf[:, 0])
        x = x[kept]
        lines = ([Curve(x, *own[:, kept]) for own in values] for values in (density, cdf))
        return Curves(True, has_intervals, (float(x[0]), float(x[-1])), 1.0, *lines)
    gap, n = float(np.diff(x).min()) if len(x) > 1 else 1.0, len(density)
    width = 0.8 * gap / n
    bars = [Curve(x + (i - (n - 1) / 2) * width, *own) for i, own in enumerate(density)]
    corners = np.repeat([x[0] - gap, *x, x[-1] + gap], 2)[1:]
    steps = [Curve(corners, *(_steps(column) for column in own)) for own in cdf]
    limits = float(x[0] - 0.7 * gap), float(x[-1] + 0.7 * gap)
    return Curves(False, has_intervals, limits, width, bars, steps)


def _steps(values: Vector) -> Vector:
    return np.repeat([0.0, *values, values[-1]], 2)[:-1]


def differences(results: xr.Dataset, summary: str, pair: int, coordinate: int) -> Estimate:
    """Differences of a summary between two policies at all inputs; of quantiles, that of the middle level."""
    part = {"pair": pair, "coordinate": coordinate}
    if summary == "quantile":
        part["level"] = results.sizes["level"] // 2
    return Estimate(*_estimates(results, f"{summary}_difference", part))


def _estimates(results: xr.Dataset, name: str, part: dict[str, int]) -> Real:
    """A part of a variable with the ends of its interval, which come before the last dimension."""
    names = [name + end if name + end in results else name for end in ENDS]
    return np.stack([results[name].isel(part).to_numpy() for name in names], axis=-2)
