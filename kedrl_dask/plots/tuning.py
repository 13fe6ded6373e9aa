"""Candidates tried for the automatic settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.regression.input_kernel import WORTHWHILE
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure, panelled
from kedrl_dask.utils.arrays import Record

#: Sizes that can be chosen automatically, with the titles of their panels.
GROWN = {
    "n_landmarks": "Landmarks: sections at other inputs",
    "n_basis": "Basis: sections at other inputs",
    "n_atoms": "Atoms: shifted sections",
    "n_features": "Frequencies: their kernel on the grid",
}


def tuning(model: KEDRL) -> Figure:
    """Plot the candidates tried for every automatically chosen setting, with their scores.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.tuning(model)
    >>> [axes.get_title() for axes in figure.axes]  # the example gives every other setting
    ['λ_Γ, all transitions']
    """
    tried = model.diagnostics_["tuning"]
    draw = _tuning_panels(model, tried)
    if not draw:
        raise ValueError("tuning: every setting was given explicitly, so nothing was tuned")
    figure, panels = panelled(len(draw), 3, (5, 4.2), (0, 0))
    for axes, panel in zip(panels, draw, strict=True):
        panel(axes)
    return figure


def _tuning_panels(model: KEDRL, tried: Record) -> list[Callable[[Axes], None]]:
    """Return the functions that draw the panels."""
    draw: list[Callable[[Axes], None]] = []
    if "input_kernel" in tried:
        kernel = tried["input_kernel"]
        draw.append(lambda axes: _length_scales(axes, kernel))
        if kernel["trials"]:
            draw.append(lambda axes: _trials(axes, kernel["trials"]))
    if "relevance" in tried:
        draw.append(partial(_relevance, tried=tried["relevance"]))
    if "ridge_gamma" in tried:
        draw.append(partial(_ridge, name="λ_Γ", chosen=model.ridge_gamma_, **tried["ridge_gamma"]))
    if "ridge_reward" in tried:
        name = "λ of the reward's residual"
        draw.append(partial(_ridge, name=name, chosen=model.ridge_reward_, **tried["ridge_reward"]))
    draw += [partial(_growth, name=name, tried=tried[name]) for name in GROWN if name in tried]
    return draw


def _length_scales(axes: Axes, tried: Record) -> None:
    """Draw a map of the error, with the best pair marked."""
    length_scales, ridges, values = tried["length_scales"], tried["ridges"], np.array(tried["errors"])
    best = np.unravel_index(np.argmin(values), values.shape)
    # The worst corner is far off; the colours resolve the differences among good candidates.
    rows, most = np.arange(len(length_scales)), np.quantile(values, 0.7)
    mesh = axes.pcolormesh(ridges, rows, values, cmap="cividis", vmax=most)
    axes.figure.colorbar(mesh, ax=axes, label="cross-validated error", extend="max")
    axes.plot(
        ridges[best[1]], best[0], "*", color=ORANGE, markeredgecolor="white", markersize=16, label="smallest"
    )
    axes.legend(loc="upper right")
    axes.set_xscale("log")
    axes.set_yticks(range(len(length_scales)), [f"{length:g}" for length in length_scales])
    axes.set(title="Input kernel, common length scale", xlabel="ridge")
    axes.set(ylabel="length scale (standard deviations)")


def _trials(axes: Axes, trials: list[Record]) -> None:
    """Draw the gains from single coordinates' length scales, as shares of the error, with their noise."""
    position = np.arange(len(trials))
    keys = "gain", "noise", "error"
    gains, noise, errors = (np.array([trial[key] for trial in trials]) for key in keys)
    before = errors + gains
    colours = [ORANGE if trial["accepted"] else GREY for trial in trials]
    axes.barh(position, gains / before, xerr=noise / before, color=colours, ecolor="black")
    axes.axvline(WORTHWHILE, color=BLUE, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    names = [f"x{trial['coordinate'] + 1} to {trial['length_scale']:g}" for trial in trials]
    axes.set_yticks(position, names, fontsize=9 if len(trials) <= 20 else 6)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.locator_params(axis="x", nbins=4)
    axes.set(title="Length scales of single coordinates", xlabel="reduction of the cross-validated error")
    axes.set(ylabel="coordinate and length scale, in order of trial")
    handles = [Line2D([], [], color=colour, linewidth=6) for colour in (ORANGE, GREY)]
    handles.append(Line2D([], [], color=BLUE, linestyle="--"))
    axes.legend(handles, ["accepted", "rejected", "worthwhile"], loc="lower right", fontsize=8)


def _relevance(axes: Axes, tried: Record) -> None:
    """Draw how well simulated returns are predicted along the directions that matter for them."""
    axes.semilogx(tried["multiples"], tried["errors"], "o-", color=BLUE, markersize=4, label="directions")
    axes.axhline(tried["error"], color=GREY, linestyle=":", label="coordinates")
    if tried["accepted"]:
        axes.axvline(tried["multiple"], color=ORANGE, linestyle="--", label=f"chosen: {tried['multiple']:g}")
    axes.set_xticks(tried["multiples"], [f"{multiple:g}" for multiple in tried["multiples"]])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    chosen = "accepted" if tried["accepted"] else "rejected"
    axes.set(title=f"Directions of the input kernel: {chosen}", xlabel="multiple of their lengths")
    axes.set(ylabel="share of variance not predicted")
    axes.grid(alpha=0.25)


def _ridge(axes: Axes, *, name: str, chosen: float, ridges: list[float], errors: list[float]) -> None:
    axes.semilogx(ridges, errors, "o-", color=BLUE, markersize=4)
    axes.axvline(chosen, color=ORANGE, linestyle="--", label=f"chosen: {chosen:.1e}")
    axes.legend(frameon=False)
    axes.set(title=f"{name}, all transitions", xlabel=f"ridge {name}", ylabel="cross-validated error")
    axes.grid(alpha=0.25)


def _growth(axes: Axes, name: str, tried: Record) -> None:
    """Draw the error of an approximation against its size."""
    size, sizes, tolerance, reason = (tried[key] for key in ("size", "sizes", "tolerance", "reason"))
    axes.loglog(sizes, np.maximum(tried["estimates"], 1e-12), "o-", color=BLUE, markersize=4)
    axes.axhline(tolerance, color=GREY, linestyle=":", label=f"tolerance {tolerance:.1e}")
    axes.axvline(size, color=ORANGE, linestyle="--", label=f"chosen: {size:,} ({reason})")
    axes.set_xticks(sizes[::2], [f"{tick:,}" for tick in sizes[::2]])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.set(title=GROWN[name], xlabel=name, ylabel="mean square of the error")
    axes.grid(alpha=0.25)
