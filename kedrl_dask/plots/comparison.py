"""Policies side by side, from a results dataset: ``compare(...).dataset``, or one read back from Zarr."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kedrl_dask.comparison.curves import Curve, Curves, curves, differences
from kedrl_dask.numerics.laws.summaries import SUMMARIES
from kedrl_dask.plots.style import COLOURS, GREY, Figure, line_style, panelled

#: Markers of the summaries in a figure of differences, in order.
MARKERS = ("o", "s", "^", "D")
#: Most rows in a figure of differences, to keep it readable.
MOST_ROWS = 40


def marginals(results: xr.Dataset, at: int = 0) -> Figure:
    """Plot each coordinate's density for every policy, or its masses if it was projected on a support.

    Bands and error bars are pointwise bootstrap intervals; they are absent without replicates.

    Parameters
    ----------
    results : xarray.Dataset
        From ``compare(...).dataset`` or ``model.embedding(...).dataset()``.
    at : int
        Index of the input.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.marginals(comparison.dataset)
    >>> figure.get_suptitle()
    'Recovered laws of the return at input 0'
    >>> [label.get_text() for label in figure.legends[0].get_texts()]
    ['low', 'high']
    """
    figure, panels = _panels(results, at, "marginals")
    for c, axes in enumerate(panels):
        found = curves(results, at, c)
        if found.is_smooth:
            _draw_lines(axes, found, found.density)
        else:
            _draw_masses(axes, found)
        axes.set(ylabel="density" if found.is_smooth else "probability", ylim=(0, None))
    _finish(figure, results, at)
    return figure


def distribution_functions(results: xr.Dataset, at: int = 0) -> Figure:
    """Plot each coordinate's distribution function for every policy; see :func:`marginals`.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.distribution_functions(comparison.dataset)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('return 1', 'cumulative probability')
    """
    figure, panels = _panels(results, at, "distribution_functions")
    for c, axes in enumerate(panels):
        found = curves(results, at, c)
        _draw_lines(axes, found, found.cdf)
        axes.set(ylabel="cumulative probability", ylim=(-0.02, 1.02))
    _finish(figure, results, at)
    return figure


def policy_differences(
    results: xr.Dataset,
    summaries: Sequence[str] = ("mean", "cvar"),
    pair: int = 0,
    inputs: Sequence[int] | None = None,
) -> Figure:
    """Plot the differences of summaries between two policies, with intervals, by input and coordinate.

    Parameters
    ----------
    results : xarray.Dataset
        From ``compare(...).dataset``, with at least two policies.
    summaries : sequence of str
        Any of ``mean``, ``sd``, ``quantile`` (the middle level) and ``cvar``.
    pair : int
        Index of the pair of policies.
    inputs : sequence of int, optional
        Indices of the inputs; by default the first forty.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.policy_differences(comparison.dataset, ["mean", "cvar"])
    >>> figure.get_suptitle()
    'high − low'
    >>> [label.get_text() for label in figure.legends[0].get_texts()]
    ['mean', 'CVaR, lowest 10%']
    """
    if "pair" not in results.dims:
        raise ValueError("policy_differences: the results have only one policy; compare at least two")
    unknown = sorted(set(summaries) - set(SUMMARIES))
    if unknown or not summaries:
        raise ValueError(
            f"policy_differences: summaries must be in {tuple(SUMMARIES)}, got {tuple(summaries)}"
        )
    if not 0 <= pair < results.sizes["pair"]:
        raise ValueError(f"policy_differences: pair {pair} is not one of 0 to {results.sizes['pair'] - 1}")
    chosen = np.arange(results.sizes["input"])[:MOST_ROWS] if inputs is None else np.asarray(inputs)
    part = results.isel(input=chosen)
    dim, n = part.sizes["coordinate"], len(chosen)
    figure = Figure(figsize=(3.3 * dim + 0.8, 0.34 * n + 2.0), layout="constrained")
    panels = figure.subplots(1, dim, sharey=True, squeeze=False)[0]
    offsets = 0.22 * (np.arange(len(summaries)) - (len(summaries) - 1) / 2)
    for c, axes in enumerate(panels):
        for i, name in enumerate(summaries):
            value, low, high = differences(part, name, pair, c)
            y, colour = np.arange(n) + offsets[i], COLOURS[i % len(COLOURS)]
            if "mean_difference_low" in part:
                axes.hlines(y, low, high, colors=colour, linewidth=1.4)
            axes.plot(value, y, MARKERS[i % len(MARKERS)], color=colour, markersize=4.5)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(xlabel=f"difference of return {c + 1}")
        axes.grid(axis="x", alpha=0.25)
        axes.locator_params(axis="x", nbins=5)
    panels[0].set(ylabel="input", ylim=(n - 0.4, -0.6))
    panels[0].set_yticks(np.arange(n), [str(number) for number in part["input"].values])
    handles = [
        Line2D([], [], marker=MARKERS[i % len(MARKERS)], color=COLOURS[i % len(COLOURS)], label=label)
        for i, label in enumerate(_label(results, name) for name in summaries)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    later, sooner = (results[name].values[pair] for name in ("minuend", "subtrahend"))
    figure.suptitle(f"{later} − {sooner}{_interval(results)}", fontsize=11)
    return figure


def _label(results: xr.Dataset, name: str) -> str:
    if name == "quantile":
        return f"{float(results['level'][results.sizes['level'] // 2]):.0%} quantile"
    return {"sd": "standard deviation", "cvar": f"CVaR, lowest {results.attrs['tail']:.0%}"}.get(name, name)


def _interval(results: xr.Dataset) -> str:
    return f", with {results.attrs['interval']:.0%} intervals" if "mean_low" in results else ""


def _panels(results: xr.Dataset, at: int, caller: str) -> tuple[Figure, list[Axes]]:
    """Create one panel for each coordinate, at most four in a row."""
    if not 0 <= at < results.sizes["input"]:
        raise ValueError(f"{caller}: input {at} is not one of 0 to {results.sizes['input'] - 1}")
    figure, panels = panelled(results.sizes["coordinate"], 4, (3.3, 2.9), (0.4, 0.9))
    for c, axes in enumerate(panels):
        axes.set_xlabel(f"return {c + 1}")
        axes.grid(alpha=0.25)
        axes.locator_params(axis="x", nbins=6)
    return figure, panels


def _draw_lines(axes: Axes, found: Curves, lines: list[Curve]) -> None:
    """Draw the policies' lines and bands, within the range that holds their mass."""
    for i, line in enumerate(lines):
        style = line_style(i)
        if found.has_intervals:
            axes.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.18, linewidth=0)
        axes.plot(line.x, line.value, **style, linewidth=1.6)
    if found.limits[0] < found.limits[1]:
        axes.set_xlim(*found.limits)


def _draw_masses(axes: Axes, found: Curves) -> None:
    """Draw the policies' masses side by side, with error bars for their intervals."""
    for i, (x, mass, low, high) in enumerate(found.density):
        axes.bar(x, mass, 0.9 * found.width, color=line_style(i)["color"], alpha=0.75)
        if found.has_intervals:
            ends = [np.maximum(mass - low, 0), np.maximum(high - mass, 0)]
            axes.errorbar(x, mass, ends, fmt="none", ecolor="black", elinewidth=1, capsize=2)
    support = np.mean([masses.x for masses in found.density], axis=0)
    if len(support) <= 12:
        axes.set_xticks(support, [f"{value:z.6g}" for value in support])


def _finish(figure: Figure, results: xr.Dataset, at: int) -> None:
    """Add the legend and the title."""
    handles: list[Artist] = [
        Line2D([], [], **line_style(i), label=str(name)) for i, name in enumerate(results["policy"].values)
    ]
    if "cdf_low" in results:
        label = f"{results.attrs['interval']:.0%} pointwise intervals"
        handles.append(Patch(color=GREY, alpha=0.35, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    number = results["input"].values[at]
    where = "averaged over the inputs" if "averaged" in results.dims else f"at input {number}"
    figure.suptitle(f"Recovered laws of the return {where}", fontsize=11)
