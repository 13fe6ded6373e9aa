"""Changes between two results of a scheduled evaluation, and which of them are worth an alert."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import sqrt

import numpy as np
import xarray as xr

from kedrl_dask.utils.arrays import Array, Record

#: Summaries that are compared, each with a threshold of its name.
SUMMARIES = ("mean", "quantile", "cvar")
#: Coordinates that must agree for results to be compared.
LABELS = ("input", "coordinate", "level")


@dataclass(frozen=True)
class Thresholds:
    """Shifts since the last result that are worth an alert; see :mod:`kedrl_dask.service.schedule`."""

    mean: float = 0.25
    quantile: float = 0.5
    cvar: float = 0.5
    data: float = 0.25


@dataclass(frozen=True)
class Change:
    """The largest shift, in standard deviations, of something (``what``) of a policy or of the data."""

    subject: str
    what: str
    shift: float
    threshold: float

    @property
    def is_alert(self) -> bool:
        """Whether the shift is above its threshold."""
        return not abs(self.shift) <= self.threshold

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.subject}: {self.what} shifted by {self.shift:+.2f} standard deviations "
            f"(alert above {self.threshold:.2g})"
        )

    def to_dict(self) -> Record:
        """Plain values, for JSON."""
        return {**asdict(self), "alert": self.is_alert}


@dataclass(frozen=True)
class Drift:
    """The largest changes of each kind since the last result, and the findings that are new.

    ``since`` is empty if there is no such result. The remark says why results were not compared, or what else
    has changed.
    """

    since: str = ""
    changes: tuple[Change, ...] = ()
    findings: tuple[str, ...] = ()
    remark: str = ""

    @property
    def alerts(self) -> tuple[str, ...]:
        """Everything worth an alert, in words."""
        shifted = tuple(str(change) for change in self.changes if change.is_alert)
        return (*shifted, *(f"new finding: {finding}" for finding in self.findings))

    def to_dict(self) -> Record:
        """Plain values, for JSON."""
        return {
            "since": self.since,
            "alerts": list(self.alerts),
            "changes": [change.to_dict() for change in self.changes],
            "remark": self.remark,
        }


def compare_results(
    since: str, last: xr.Dataset, now: xr.Dataset, data: tuple[Record, Record] | None, thresholds: Thresholds
) -> Drift:
    """Compare a result with the last one, of the name ``since``; both as :func:`kedrl_dask.compare` has them.

    ``data`` has the numbers of ``rows`` and ``episodes``, and mean and standard deviation of ``columns``,
    before and after rows were appended; it is None if there are no new rows.
    """
    changes = [] if data is None else list(_data_changes(*data, thresholds.data))
    remark = _difference(last, now)
    if remark:
        return Drift(since, tuple(changes), (), f"answers were not compared: {remark}")
    names = [str(name) for name in now["policy"].values]
    known = {str(name) for name in last["policy"].values}
    for name in names:
        if name in known:
            changes += _law_changes(name, last.sel(policy=name), now.sel(policy=name), thresholds)
    new = [name for name in names if name not in known]
    remark = f"not in the last result: {', '.join(new)}" if new else ""
    return Drift(since, tuple(changes), tuple(_new_findings(last, now, known)), remark)


def _difference(last: xr.Dataset, now: xr.Dataset) -> str:
    """Why two results cannot be compared, in words."""
    for name in (*LABELS, "input_state", "input_action"):
        if (name in last) != (name in now):
            return f"only one of them has {name.replace('_', ' ')}s"
        if name not in now:
            continue
        before, after = (_of_one_policy(part[name]) for part in (last, now))
        if before.shape != after.shape or not np.array_equal(before, after):
            return f"the {name.replace('_', ' ')}s have changed"
    return ""


def _of_one_policy(values: xr.DataArray) -> Array:
    return np.asarray(values.isel(policy=0) if "policy" in values.dims else values)


def _law_changes(name: str, last: xr.Dataset, now: xr.Dataset, thresholds: Thresholds) -> Iterator[Change]:
    """The largest shift of each summary, in standard deviations of the last law."""
    for summary in SUMMARIES:
        shift = _in_deviations(now[summary] - last[summary], last["sd"])
        place = shift.isel(abs(shift).argmax(list(shift.dims)))
        where = f"{summary}"
        if summary == "quantile":
            where += f" {float(place['level']):g}"
        where += f" of return {int(place['coordinate']) + 1} at input {int(place['input']) + 1}"
        yield Change(name, where, float(place), getattr(thresholds, summary))


def _in_deviations(difference: xr.DataArray, deviation: xr.DataArray) -> xr.DataArray:
    """Shifts over deviations; any shift of a constant is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (difference / deviation).where(difference != 0, 0.0)


def _data_changes(last: Record, now: Record, threshold: float) -> Iterator[Change]:
    """The largest shift of a column's mean among the appended rows, for state, action and reward."""
    n, m = last["rows"], now["rows"]
    # The mean of k independent episodes varies by at most 1/√k of a row's deviation; twice that is allowed.
    threshold += 2 / sqrt(max(1, now["episodes"] - last["episodes"]))
    for name, before in last["columns"].items():
        mean, deviation = np.array(before["mean"]), np.array(before["std"])
        appended = (m * np.array(now["columns"][name]["mean"]) - n * mean) / (m - n)
        difference = appended - mean
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where(np.abs(difference) > 1e-9 * deviation, difference / deviation, 0.0)
        worst = int(np.abs(shift).argmax())
        what = f"mean of {name} {worst + 1} in {m - n:,} appended rows"
        yield Change("data", what, float(shift[worst]), threshold)


def _new_findings(last: xr.Dataset, now: xr.Dataset, known: set[str]) -> Iterator[str]:
    before, after = (json.loads(part.attrs["findings"]) for part in (last, now))
    codes = {(found["subject"], found["code"]) for found in before}
    for found in after:
        is_new = (found["subject"], found["code"]) not in codes and found["subject"] in known
        if is_new and found["severity"] != "note":
            yield f"{found['subject']}: {found['code']}: {found['sentence']}"
