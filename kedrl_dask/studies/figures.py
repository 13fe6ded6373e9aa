"""Figures of the studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from kedrl_dask.plots.style import BLUE, COLOURS, GREY, ORANGE, Figure, panelled
from kedrl_dask.studies.profiles import PAPER
from kedrl_dask.studies.runner import Records
from kedrl_dask.utils.arrays import Record, Vector

TITLES = {"bias": "Bias", "rmse": "RMSE", "mae": "MAE"}


def simulation(records: Records, points: pd.DataFrame) -> dict[str, Figure]:
    """Every figure of the simulation study, by file name."""
    drawn = {"errors": errors(points)}
    drawn |= {f"points_{pair}": by_point(own, pair) for pair, own in points.groupby("pair", sort=False)}
    for cell, result in records.done:
        if "monte_carlo" in result:
            pair, profile = str(cell.labels["pair"]), str(cell.labels["profile"])
            drawn[f"monte_carlo_{pair}_{profile}"] = monte_carlo(result["monte_carlo"], pair, profile)
    return drawn


def _panels(n: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with n panels, at most three in a row."""
    columns = min(3, n)
    rows = -(-n // columns)
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axes in panels[n:]:
        axes.set_axis_off()
    return figure, list(panels[:n])


def errors(points: pd.DataFrame) -> Figure:
    """RMSE of each pair and profile beside the paper's: boxes over the points of means over replicates."""
    pairs, profiles = list(points["pair"].unique()), list(points["profile"].unique())
    figure, panels = _panels(len(pairs), 3.4, 2.8)
    mean = points.groupby(["pair", "profile", "point"], sort=False)["rmse"].mean()
    for pair, axes in zip(pairs, panels, strict=True):
        known = [profile for profile in profiles if (pair, profile) in mean.index]
        _boxes(axes, [mean[pair, profile].to_numpy() for profile in known], known)
        paper = PAPER[pair].rmse
        axes.axhline(paper.mean, color="black", linestyle="--", linewidth=1, label="the paper's mean")
        axes.axhspan(
            paper.mean - paper.deviation, paper.mean + paper.deviation, color=GREY, alpha=0.2, linewidth=0,
            label="± its deviation across points",
        )  # fmt: skip
        axes.set_title(_arrow(pair), fontsize=10)
        axes.set_ylim(bottom=0)
    figure.supylabel("RMSE of the embedding, by point", fontsize=10)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center", ncols=min(2, len(pairs)), frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def by_point(points: pd.DataFrame, pair: str) -> Figure:
    """Bias, RMSE and MAE at each point: a box over the replicates for each profile."""
    profiles, numbers = list(points["profile"].unique()), sorted(points["point"].unique())
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    width = 0.8 / len(profiles)
    for axes, metric in zip(figure.subplots(1, 3), TITLES, strict=True):
        for place, profile in enumerate(profiles):
            own = points[points["profile"] == profile]
            values = [own.loc[own["point"] == number, metric].to_numpy() for number in numbers]
            positions = np.asarray(numbers) + (place - (len(profiles) - 1) / 2) * width
            colour = COLOURS[place % len(COLOURS)]
            _coloured_boxes(axes, values, positions, 0.9 * width, colour)
            axes.plot([], [], "s", color=colour, label=profile)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set(title=TITLES[metric], xlabel="point")
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.grid(axis="y", alpha=0.25)
    figure.axes[0].set_ylabel("error of the embedding")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside upper right", ncols=len(profiles), frameon=False, fontsize=9,
    )  # fmt: skip
    replicates = points["replicate"].nunique()
    figure.suptitle(
        f"{_arrow(pair)}, {replicates} replicate{'s' * (replicates > 1)}", fontsize=11, x=0.01, ha="left"
    )
    return figure


def monte_carlo(repeats: Record, pair: str, profile: str) -> Figure:
    """Errors of one estimate against repeated Monte Carlo references (fig:MC_box_plots)."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 3), ("rmse", "mae", "bias"), strict=True):
        values = np.asarray(repeats[metric])
        names = [str(number) for number in range(1, values.shape[1] + 1)]
        _boxes(axes, list(values.T), names)
        if metric == "bias":
            axes.axhline(0, color="black", linewidth=0.6)
        axes.set(title=TITLES[metric], xlabel="point")
    figure.axes[0].set_ylabel("error of the embedding")
    figure.suptitle(
        f"{_arrow(pair)}, {profile}: one estimate, {len(values)} Monte Carlo references", fontsize=11
    )
    return figure


def sensitivity(table: pd.DataFrame, meanings: Mapping[str, str]) -> Figure:
    """RMSE and bias by size, a panel for each factor; points are datasets, lines their means."""
    factors = list(table["factor"].unique())
    figure, panels = _panels(len(factors), 3.6, 2.9)
    for name, axes in zip(factors, panels, strict=True):
        part = table[table["factor"] == name]
        means = part.groupby("value")[["rmse", "absolute_bias"]].mean()
        for metric, colour, label in (("rmse", BLUE, "RMSE"), ("absolute_bias", ORANGE, "mean |bias|")):
            axes.loglog(part["value"], part[metric], "o", color=colour, alpha=0.35, markersize=4)
            axes.loglog(means.index, means[metric], "-", color=colour, label=label)
        sizes = means.index.to_numpy(np.float64)
        if name == "transitions":
            rate = means["rmse"].iloc[0] * np.sqrt(sizes[0] / sizes)
            axes.loglog(sizes, rate, ":", color=GREY, label="N^(-1/2)")
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:.4g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set(xlabel=meanings[name])
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    figure.supylabel("error of the embedding", fontsize=10)
    return figure


def systems(table: pd.DataFrame, right: float) -> Figure:
    """Errors of mean and tail mean by size, a panel for each system; refused cells are hollow."""
    names = list(table["system"].unique())
    figure, panels = panelled(len(names), 4, (2.6, 2.2), (0.4, 0.7), share=True)
    sizes = np.sort(table["transitions"].unique())
    for name, axes in zip(names, panels, strict=True):
        part = table[table["system"] == name]
        for metric, colour, label in (("mean", BLUE, "mean"), ("cvar", ORANGE, "CVaR 10 %")):
            axes.plot(part.groupby("transitions")[metric].mean(), "-", color=colour, label=label)
            answered = part[~part["refused"]]
            refused = part[part["refused"]]
            axes.plot(answered["transitions"], answered[metric], "o", color=colour, markersize=4)
            axes.plot(refused["transitions"], refused[metric], "o", color=colour, markersize=5, mfc="none")
        axes.axhline(right, color=GREY, linestyle=":", linewidth=1)
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.25)
    panels[0].set(xscale="log", yscale="log")
    panels[0].set_xticks(sizes, [_thousands(size) for size in sizes])
    panels[0].xaxis.set_minor_locator(NullLocator())
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    panels[0].yaxis.set_major_formatter("{x:.3g}")
    panels[0].yaxis.set_minor_locator(NullLocator())
    _explain(figure, panels[0], right, n_columns=5 if len(names) > 2 else 2)
    figure.supxlabel("transitions", fontsize=10)
    figure.supylabel("error / deviation of the return", fontsize=10)
    return figure


def _thousands(size: int) -> str:
    return f"{size / 1_000:g}k" if size >= 1_000 else f"{size}"


def _explain(figure: Figure, axes: Axes, right: float, n_columns: int) -> None:
    """One legend for all panels of :func:`systems`."""
    handles = axes.get_legend_handles_labels()[0]
    handles += [
        Line2D([], [], color="black", marker="o", linestyle="", markersize=4, label="answered"),
        Line2D([], [], color="black", marker="o", linestyle="", mfc="none", markersize=5, label="refused"),
        Line2D([], [], color=GREY, linestyle=":", label=f"{right}: right below"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=n_columns, frameon=False, fontsize=9)


def _boxes(axes: Axes, values: Sequence[Vector], names: Sequence[str]) -> None:
    positions = np.arange(1.0, len(values) + 1)
    _coloured_boxes(axes, values, positions, 0.6, BLUE)
    axes.set_xticks(positions, list(names))
    axes.grid(axis="y", alpha=0.25)


def _coloured_boxes(
    axes: Axes, values: Sequence[Vector], positions: Vector, width: float, colour: str
) -> None:
    axes.boxplot(
        values, positions=positions, widths=width, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": colour, "alpha": 0.45, "linewidth": 0.8},
        medianprops={"color": colour, "linewidth": 1.8},
        whiskerprops={"linewidth": 0.8}, capprops={"linewidth": 0.8},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
    )  # fmt: skip


def _arrow(pair: str) -> str:
    """Name of a pair of policies for people."""
    return "→".join(part.capitalize() for part in pair.split("-"))
