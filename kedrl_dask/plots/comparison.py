"""Policies side by side, from a results dataset: ``compare(...).dataset``, or what was written as Zarr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kedrl_dask.numerics.laws.summaries import SUMMARIES, seen
from kedrl_dask.plots.style import COLOURS, DASHES, GREY, Figure
from kedrl_dask.utils.arrays import Array

__all__ = ["distribution_functions", "marginals", "policy_differences"]


#: Markers of the summaries of a figure of differences, in order.
MARKERS = ("o", "s", "^", "D")
#: Rows of a figure of differences, so that it stays readable.
MOST_ROWS = 40


def marginals(results: xr.Dataset, at: int = 0) -> Figure:
    """Density of each coordinate, or its masses where it was projected on a support, for every policy.

    Bands, or bars, are the bootstrap's intervals, each point by itself; there are none without replicates.

    Parameters
    ----------
    results : xarray.Dataset
        As ``compare(...).dataset`` or ``model.embedding(...).dataset()`` has it.
    at : int
        Which input.
    """
    figure, panels = _panels(results, at, "marginals")
    for c, axes in enumerate(panels):
        is_smooth = float(results["bandwidth"][c]) > 0
        draw = _draw_curve if is_smooth else _draw_masses
        draw(axes, results, at, c, "density")
        axes.set(ylabel="density" if is_smooth else "probability", ylim=(0, None))
    _finish(figure, results, at)
    return figure


def distribution_functions(results: xr.Dataset, at: int = 0) -> Figure:
    """Distribution function of each coordinate for every policy; see :func:`marginals`."""
    figure, panels = _panels(results, at, "distribution_functions")
    for c, axes in enumerate(panels):
        draw = _draw_curve if float(results["bandwidth"][c]) > 0 else _draw_steps
        draw(axes, results, at, c, "cdf")
        axes.set(ylabel="probability of at most this", ylim=(-0.02, 1.02))
    _finish(figure, results, at)
    return figure


def policy_differences(
    results: xr.Dataset,
    summaries: Sequence[str] = ("mean", "cvar"),
    pair: int = 0,
    inputs: Sequence[int] | None = None,
) -> Figure:
    """Differences of summaries between two policies, with intervals, by input and coordinate.

    Parameters
    ----------
    results : xarray.Dataset
        As ``compare(...).dataset`` has it, of at least two policies.
    summaries : sequence of str
        Out of ``mean``, ``sd``, ``quantile`` (the median) and ``cvar``.
    pair : int
        Which pair of policies.
    inputs : sequence of int, optional
        Which inputs: the first forty, unless given.
    """
    if "pair" not in results.dims:
        raise ValueError("policy_differences: there is one policy; compare at least two")
    unknown = sorted(set(summaries) - set(SUMMARIES))
    if unknown or not summaries:
        raise ValueError(f"policy_differences: summaries are {tuple(SUMMARIES)}, got {tuple(summaries)}")
    if not 0 <= pair < results.sizes["pair"]:
        raise ValueError(f"policy_differences: pair {pair} is not one of 0 to {results.sizes['pair'] - 1}")
    chosen = np.arange(results.sizes["input"])[:MOST_ROWS] if inputs is None else np.asarray(inputs)
    part = results.isel(pair=pair, input=chosen)
    dim, n = part.sizes["coordinate"], len(chosen)
    figure = Figure(figsize=(3.3 * dim + 0.8, 0.34 * n + 2.0), layout="constrained")
    panels = figure.subplots(1, dim, sharey=True, squeeze=False)[0]
    offsets = 0.22 * (np.arange(len(summaries)) - (len(summaries) - 1) / 2)
    for c, axes in enumerate(panels):
        for i, name in enumerate(summaries):
            value, low, high = (_difference(part, name, c, end) for end in ("", "_low", "_high"))
            y, colour = np.arange(n) + offsets[i], COLOURS[i % len(COLOURS)]
            if low is not None and high is not None:
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
    figure.suptitle(
        f"{part['minuend'].item()} less {part['subtrahend'].item()}{_interval(results)}", fontsize=11
    )
    return figure


def _difference(part: xr.Dataset, name: str, coordinate: int, end: str) -> Array | None:
    """A difference or an end of its interval by input; of quantiles, that of the middle level."""
    variable = f"{name}_difference{end}"
    if variable not in part:
        return None
    values = part[variable].isel(coordinate=coordinate)
    return (values.isel(level=part.sizes["level"] // 2) if name == "quantile" else values).to_numpy()


def _label(results: xr.Dataset, name: str) -> str:
    if name == "quantile":
        return f"{float(results['level'][results.sizes['level'] // 2]):.0%} quantile"
    return {"sd": "standard deviation", "cvar": f"CVaR, lowest {results.attrs['tail']:.0%}"}.get(name, name)


def _interval(results: xr.Dataset) -> str:
    return f", with {results.attrs['interval']:.0%} intervals" if "mean_low" in results else ""


def _panels(results: xr.Dataset, at: int, caller: str) -> tuple[Figure, list[Axes]]:
    """One panel for each coordinate, at most four in a row."""
    if not 0 <= at < results.sizes["input"]:
        raise ValueError(f"{caller}: input {at} is not one of 0 to {results.sizes['input'] - 1}")
    dim = results.sizes["coordinate"]
    columns = min(dim, 4)
    rows = -(-dim // columns)
    figure = Figure(figsize=(3.3 * columns + 0.4, 2.9 * rows + 0.9), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels[dim:]:
        axes.set_axis_off()
    for c, axes in enumerate(panels[:dim]):
        axes.set_xlabel(f"return {c + 1}")
        axes.grid(alpha=0.25)
        axes.locator_params(axis="x", nbins=6)
    return figure, panels[:dim]


def _draw_curve(axes: Axes, results: xr.Dataset, at: int, coordinate: int, name: str) -> None:
    """Lines of all policies with their bands, where there is anything to see."""
    part = results.isel(input=at, coordinate=coordinate)
    x = part["thresholds"].to_numpy()
    for i in range(results.sizes["policy"]):
        colour, own = COLOURS[i % len(COLOURS)], part.isel(policy=i)
        if f"{name}_low" in own:
            band = own[f"{name}_low"], own[f"{name}_high"]
            axes.fill_between(x, *band, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, own[name], color=colour, linestyle=DASHES[i % len(DASHES)], linewidth=1.6)
    shown = x[seen(part["cdf"].to_numpy())]
    if np.ptp(shown) > 0:
        axes.set_xlim(shown[0], shown[-1])


def _draw_steps(axes: Axes, results: xr.Dataset, at: int, coordinate: int, name: str) -> None:
    """The same of laws without smoothing, which are constant from one value to the next."""
    part = results.isel(input=at, coordinate=coordinate)
    x, first = np.unique(part["thresholds"].to_numpy(), return_index=True)
    x = np.array([x[0] - _gap(x), *x, x[-1] + _gap(x)])
    for i in range(results.sizes["policy"]):
        colour, own = COLOURS[i % len(COLOURS)], part.isel(policy=i)

        def with_ends(variable: str, own: xr.Dataset = own) -> Array:
            return np.array([0.0, *(values := own[variable].to_numpy()[first]), values[-1]])

        if f"{name}_low" in own:
            band = with_ends(f"{name}_low"), with_ends(f"{name}_high")
            axes.fill_between(x, *band, color=colour, alpha=0.18, linewidth=0, step="post")
        axes.step(
            x, with_ends(name), where="post", color=colour, linestyle=DASHES[i % len(DASHES)], linewidth=1.6
        )
    axes.set_xlim(x[0] + 0.4 * _gap(x), x[-1] - 0.4 * _gap(x))


def _gap(x: Array) -> float:
    """Smallest distance of neighbouring values; one where there is a single value."""
    return float(np.diff(x).min()) if len(x) > 1 else 1.0


def _draw_masses(axes: Axes, results: xr.Dataset, at: int, coordinate: int, name: str) -> None:
    """Masses of all policies side by side, with the ends of their intervals."""
    part = results.isel(input=at, coordinate=coordinate)
    x, first = np.unique(part["thresholds"].to_numpy(), return_index=True)
    n = results.sizes["policy"]
    width = 0.8 * _gap(x) / n
    for i in range(n):
        colour, own = COLOURS[i % len(COLOURS)], part.isel(policy=i)
        place, mass = x + (i - (n - 1) / 2) * width, own[name].to_numpy()[first]
        axes.bar(place, mass, 0.9 * width, color=colour, alpha=0.75)
        if f"{name}_low" in own:
            low, high = (own[f"{name}{end}"].to_numpy()[first] for end in ("_low", "_high"))
            axes.errorbar(
                place, mass, [np.maximum(mass - low, 0), np.maximum(high - mass, 0)], fmt="none",
                ecolor="black", elinewidth=1, capsize=2,
            )  # fmt: skip
    if len(x) <= 12:
        axes.set_xticks(x, [f"{value:g}" for value in x])


def _finish(figure: Figure, results: xr.Dataset, at: int) -> None:
    """Legend and title."""
    handles: list[Any] = [
        Line2D([], [], color=COLOURS[i % len(COLOURS)], ls=DASHES[i % len(DASHES)], label=str(name))
        for i, name in enumerate(results["policy"].values)
    ]
    if "cdf_low" in results:
        label = f"{results.attrs['interval']:.0%} intervals, each point by itself"
        handles.append(Patch(color=GREY, alpha=0.35, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    number = results["input"].values[at]
    where = "averaged over the inputs" if "averaged" in results.dims else f"at input {number}"
    figure.suptitle(f"Recovered laws of the return {where}", fontsize=11)
