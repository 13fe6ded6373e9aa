"""Bootstrap intervals of summaries, differences between policies, and stochastic dominance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import xarray as xr

from kedrl_dask.estimator.bootstrap import Draws
from kedrl_dask.estimator.fitted.results import text
from kedrl_dask.numerics.laws.summaries import SUMMARIES, Summaries
from kedrl_dask.utils.arrays import Indices, Real

#: Distribution functions that differ by no more than this count as equal.
DOMINANCE_TOLERANCE = 0.01
#: Suffixes of a summary and, with a bootstrap, of its standard error and the ends of its interval.
INTERVAL_PARTS = ("", "_standard_error", "_low", "_high")
#: Ranges of probabilities and densities, to which intervals based on a standard error are clipped.
BOUNDS = {"cdf": (0.0, 1.0), "density": (0.0, np.inf)}


def intervals(summaries: Summaries, draws: Sequence[Draws], interval: float) -> xr.Dataset:
    """Standard errors and intervals of the policies' summaries and curves; empty without replicates."""
    if not draws:
        return xr.Dataset()
    found = _labelled(summaries, draws, interval, "policy", "")
    for name, bounds in BOUNDS.items():
        for end in INTERVAL_PARTS[2:]:
            found[name + end] = found[name + end].clip(*bounds)
    return found


def _labelled(
    summaries: Summaries, draws: Sequence[Draws], interval: float, lead: str, suffix: str
) -> xr.Dataset:
    """Standard errors and intervals, with one set of draws for each label of ``lead``."""
    parts = [np.stack([d.standard_error for d in draws])]
    parts += [np.stack(ends) for ends in zip(*(d.interval(interval) for d in draws), strict=True)]
    found = xr.Dataset()
    for part, values in zip(INTERVAL_PARTS[1:], parts, strict=True):
        for name, value in summaries.unpack(values).items():
            found[name + suffix + part] = ((lead, *summaries.dims(name)), value)
    return found


def contrasts(
    summaries: Summaries, estimates: Mapping[str, Real], draws: Mapping[str, Draws], interval: float
) -> xr.Dataset:
    """Differences and dominance for every pair of policies: the later one minus the earlier one."""
    pairs = list(combinations(estimates, 2))
    if not pairs:
        return xr.Dataset()
    values = summaries.unpack(np.stack([estimates[later] - estimates[sooner] for sooner, later in pairs]))
    kept = (*SUMMARIES, "cdf")
    found = xr.Dataset(
        {f"{name}_difference": (("pair", *summaries.dims(name)), values[name]) for name in kept}
    )
    below = values["cdf"]
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
        labelled = _labelled(summaries, of_pairs, interval, "pair", "_difference")
        found.update(labelled[[f"{name}_difference{part}" for name in kept for part in INTERVAL_PARTS[1:]]])
        again = np.stack([dominance(summaries.unpack(d.values)["cdf"]) for d in of_pairs])
        found["share"] = (("pair", "input", "coordinate"), (again == sign[:, None]).mean(axis=1))
    return found.assign_coords(
        pair=text(f"{later} − {sooner}" for sooner, later in pairs),
        minuend=("pair", text(later for _, later in pairs)),
        subtrahend=("pair", text(sooner for sooner, _ in pairs)),
    )


def dominance(below: Real) -> Indices:
    """Sign of dominance from F₁ − F₀: 1 if the first law dominates, −1 if the zeroth does, 0 if neither."""
    largest, smallest = below.max(axis=-1), below.min(axis=-1)
    later = (largest <= DOMINANCE_TOLERANCE) & (smallest < -DOMINANCE_TOLERANCE)
    sooner = (smallest >= -DOMINANCE_TOLERANCE) & (largest > DOMINANCE_TOLERANCE)
    return later.astype(int) - sooner.astype(int)
