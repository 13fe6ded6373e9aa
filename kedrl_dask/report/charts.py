"""The interactive part of a report: Bokeh figures, and the numbers that its controls choose from."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from kedrl_dask.numerics.laws.summaries import SUMMARIES, seen
from kedrl_dask.plots.style import COLOURS
from kedrl_dask.utils.arrays import Array

__all__ = ["DARK_COLOURS", "MOST_INPUTS", "chart_data", "chart_items"]


#: Inputs whose curves a page carries.
MOST_INPUTS = 30
#: The colours of the policies on a dark page: as far apart, and lighter.
DARK_COLOURS = ("#56B4E9", "#E69F00", "#2FC79A", "#E7A1C8", "#F0E442", "#BBBBBB")
DASHES = ("solid", "dashed", "dotdash", "dotted")
CURVES = ("density", "cdf")
ENDS = ("", "_low", "_high")


def chart_data(dataset: xr.Dataset) -> dict[str, Any]:
    """Everything that the controls choose from, as JSON can hold it: numbers to five digits."""
    shown, dim = dataset.isel(input=slice(MOST_INPUTS)), dataset.sizes["coordinate"]
    # Selecting takes time for every variable.
    curves = shown[
        [name for name in shown if str(name).startswith(CURVES) or name in ("thresholds", "bandwidth")]
    ]
    differences = shown[[name for name in shown if "_difference" in str(name)]]
    data: dict[str, Any] = {
        "inputs": [str(number) for number in shown["input"].values],
        "colours": {"light": list(COLOURS), "dark": list(DARK_COLOURS)},
        "curves": [
            [_curves(curves.isel(input=i, coordinate=c)) for c in range(dim)]
            for i in range(shown.sizes["input"])
        ],
        "differences": [],
    }
    if "pair" in shown.dims:
        data["differences"] = [
            [
                {name: _difference(pair.isel(coordinate=c), name) for name in SUMMARIES}
                for pair in [differences.isel(pair=p)]
                for c in range(dim)
            ]
            for p in range(shown.sizes["pair"])
        ]
    return data


def _curves(part: xr.Dataset) -> dict[str, Any]:
    """The curves of all policies at one input and coordinate: columns of a source for each of them."""
    x, first = np.unique(part["thresholds"].to_numpy(), return_index=True)
    policies = [part.isel(policy=i) for i in range(part.sizes["policy"])]
    values = {
        curve: [[own[_known(own, curve, end)].to_numpy()[first] for end in ENDS] for own in policies]
        for curve in CURVES
    }
    if not bool(part["bandwidth"] > 0):
        return _discrete(x, values)
    kept = seen(np.array([own[0] for own in values["cdf"]]))
    columns = {
        curve: [_columns(x[kept], *(column[kept] for column in own)) for own in values[curve]]
        for curve in CURVES
    }
    return {"smooth": True, "range": _rounded(x[kept][[0, -1]]), "width": 1.0, **columns}


def _discrete(x: Array, values: dict[str, list[list[Array]]]) -> dict[str, Any]:
    """Masses side by side, and distribution functions as steps."""
    gap, n = float(np.diff(x).min()) if len(x) > 1 else 1.0, len(values["cdf"])
    width = 0.8 * gap / n
    steps = np.repeat([x[0] - gap, *x, x[-1] + gap], 2)[1:]

    def stepped(column: Array) -> Array:
        return np.repeat([0.0, *column, column[-1]], 2)[:-1]

    return {
        "smooth": False,
        "range": _rounded(np.array([x[0] - 0.7 * gap, x[-1] + 0.7 * gap])),
        "width": width,
        "density": [_columns(x + (i - (n - 1) / 2) * width, *own) for i, own in enumerate(values["density"])],
        "cdf": [_columns(steps, *map(stepped, own)) for own in values["cdf"]],
    }


def _columns(x: Array, value: Array, low: Array, high: Array) -> dict[str, list[float]]:
    return {"x": _rounded(x), "value": _rounded(value), "low": _rounded(low), "high": _rounded(high)}


def _known(own: xr.Dataset, name: str, end: str) -> str:
    """An end of an interval, or the value itself where there are no intervals."""
    return name + end if name + end in own else name


def _difference(part: xr.Dataset, name: str) -> dict[str, list[float]]:
    """A difference at all inputs with its ends; of quantiles, that of the middle level."""
    found = {}
    for key, end in zip(("value", "low", "high"), ENDS, strict=True):
        variable = _known(part, f"{name}_difference", end)
        values = part[variable].isel(level=part.sizes["level"] // 2) if name == "quantile" else part[variable]
        found[key] = _rounded(values.to_numpy())
    return found


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def chart_items(dataset: xr.Dataset, data: dict[str, Any]) -> dict[str, Any]:
    """The figures as Bokeh embeds them, by the id of the element that each is put in."""
    charts = {name: _curve_chart(name, dataset.sizes["policy"], data) for name in CURVES}
    if data["differences"]:
        charts["difference"] = _difference_chart(data)
    return {name: json_item(chart, name) for name, chart in charts.items()}  # type: ignore[arg-type]


def _chart(name: str, **settings: Any) -> Any:
    chart = figure(
        name=f"{name}-chart", height=330, sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save", toolbar_location="above", **settings,
    )  # fmt: skip
    chart.toolbar.logo, chart.toolbar.autohide = None, True
    chart.toolbar.active_scroll = None
    return chart


def _curve_chart(name: str, n_policies: int, data: dict[str, Any]) -> Any:
    """Density or distribution function of all policies, with bands; bars where the law is discrete."""
    first = data["curves"][0][0]
    chart = _chart(
        name,
        x_range=Range1d(start=first["range"][0], end=first["range"][1]),
        x_axis_label="return 1",
        y_axis_label="density" if name == "density" else "probability of at most this",
    )
    if name == "cdf":
        chart.y_range = Range1d(start=-0.02, end=1.02)
    for i in range(n_policies):
        source = ColumnDataSource(first[name][i], name=f"{name}-{i}")
        colour: dict[str, Any] = {"source": source, "color": COLOURS[i % len(COLOURS)]}
        drawn = {
            "band": chart.varea("x", "low", "high", fill_alpha=0.2, **colour),
            "line": chart.line("x", "value", line_width=2, line_dash=DASHES[i % len(DASHES)], **colour),
        }
        if name == "density":
            drawn["bar"] = chart.vbar("x", first["width"], "value", fill_alpha=0.5, **colour)
            drawn["ends"] = chart.segment("x", "low", "x", "high", line_width=2, **colour)
            for part, renderer in drawn.items():
                renderer.visible = first["smooth"] == (part in ("band", "line"))
        for part, renderer in drawn.items():
            renderer.name = f"{name}-{part}-{i}"
    return chart


def _difference_chart(data: dict[str, Any]) -> Any:
    """Differences at every input, with intervals."""
    chart = _chart(
        "difference",
        y_range=data["inputs"][::-1],
        x_axis_label="difference of return 1",
        y_axis_label="input",
    )
    chart.height = max(200, 26 * len(data["inputs"]) + 90)
    columns = {"y": data["inputs"], **data["differences"][0][0]["mean"]}
    source = ColumnDataSource(columns, name="difference-0")
    colour: dict[str, Any] = {"source": source, "color": COLOURS[0]}
    chart.vspan(x=[0], line_color="#888888", line_width=1, name="zero")
    chart.segment("low", "y", "high", "y", line_width=3, name="difference-line-0", **colour)
    chart.scatter("value", "y", size=8, name="difference-mark-0", **colour)
    return chart
