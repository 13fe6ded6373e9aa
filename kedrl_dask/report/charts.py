"""The interactive part of a report: Bokeh figures, and the numbers that its controls choose from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import xarray as xr
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from kedrl_dask.comparison.curves import Curve, Curves, Estimate, curves, differences
from kedrl_dask.numerics.laws.summaries import SUMMARIES
from kedrl_dask.plots.style import COLOURS
from kedrl_dask.utils.arrays import Record

#: Inputs whose curves a page carries.
MOST_INPUTS = 30
#: The colours of the policies on a dark page: as far apart, and lighter.
DARK_COLOURS = ("#56B4E9", "#E69F00", "#2FC79A", "#E7A1C8", "#F0E442", "#BBBBBB")
DASHES = ("solid", "dashed", "dotdash", "dotted")
Columns = dict[str, list[float]]


class Drawn(TypedDict):
    """The curves of all policies at one input and coordinate: the columns of a source for each of them."""

    smooth: bool
    range: list[float]
    width: float
    density: list[Columns]
    cdf: list[Columns]


class ChartData(TypedDict):
    """Everything that the controls of a page choose from."""

    inputs: list[str]
    colours: dict[str, list[str]]
    curves: list[list[Drawn]]  # by input and coordinate
    differences: list[list[dict[str, Columns]]]  # by pair and coordinate, of each summary


def chart_data(dataset: xr.Dataset) -> ChartData:
    """Everything that the controls choose from, with numbers to five digits."""
    shown, dim = dataset.isel(input=slice(MOST_INPUTS)), dataset.sizes["coordinate"]
    return {
        "inputs": [str(number) for number in shown["input"].values],
        "colours": {"light": list(COLOURS), "dark": list(DARK_COLOURS)},
        "curves": [[_drawn(curves(shown, i, c)) for c in range(dim)] for i in range(shown.sizes["input"])],
        "differences": [
            [{name: _columns(differences(shown, name, p, c)) for name in SUMMARIES} for c in range(dim)]
            for p in range(shown.sizes.get("pair", 0))
        ],
    }


def _drawn(found: Curves) -> Drawn:
    return {
        "smooth": found.is_smooth,
        "range": _rounded(found.limits),
        "width": found.width,
        "density": [_columns(curve) for curve in found.density],
        "cdf": [_columns(curve) for curve in found.cdf],
    }


def _columns(values: Curve | Estimate) -> Columns:
    return {name: _rounded(column) for name, column in values._asdict().items()}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def chart_items(data: ChartData) -> Record:
    """The figures as Bokeh embeds them, by the id of the element that each is put in."""
    charts = {name: _curve_chart(name, data) for name in ("density", "cdf")}
    if data["differences"]:
        charts["difference"] = _difference_chart(data)
    return {name: json_item(chart, name) for name, chart in charts.items()}  # type: ignore[arg-type]


def _chart(name: str, **settings: Any) -> figure:
    chart = figure(
        name=f"{name}-chart", height=330, sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset,save", toolbar_location="above", **settings,
    )  # fmt: skip
    chart.toolbar.logo, chart.toolbar.autohide = None, True
    chart.toolbar.active_scroll = None
    return chart


def _curve_chart(name: Literal["density", "cdf"], data: ChartData) -> figure:
    """Density or distribution function of all policies, with bands; bars where the law is discrete."""
    first = data["curves"][0][0]
    x_range = Range1d(start=first["range"][0], end=first["range"][1])
    label = "density" if name == "density" else "cumulative probability"
    chart = _chart(name, x_range=x_range, x_axis_label="return 1", y_axis_label=label)
    if name == "cdf":
        chart.y_range = Range1d(start=-0.02, end=1.02)
    for i, columns in enumerate(first[name]):
        source = ColumnDataSource(columns, name=f"{name}-{i}")
        colour: Record = {"source": source, "color": COLOURS[i % len(COLOURS)]}
        drawn: dict[str, Any] = {
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


def _difference_chart(data: ChartData) -> figure:
    """Differences at every input, with intervals."""
    labels = {"x_axis_label": "difference of return 1", "y_axis_label": "input"}
    chart = _chart("difference", y_range=data["inputs"][::-1], **labels)
    chart.height = max(200, 26 * len(data["inputs"]) + 90)
    columns = {"y": data["inputs"], **data["differences"][0][0]["mean"]}
    source = ColumnDataSource(columns, name="difference-0")
    colour: Record = {"source": source, "color": COLOURS[0]}
    chart.vspan(x=[0], line_color="#888888", line_width=1, name="zero")
    chart.segment("low", "y", "high", "y", line_width=3, name="difference-line-0", **colour)
    chart.scatter("value", "y", size=8, name="difference-mark-0", **colour)
    return chart
