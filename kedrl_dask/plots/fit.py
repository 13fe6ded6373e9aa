"""A fit: its convergence, the grid, the coefficients, and errors where the truth is known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.solvers import PCG, AdamW, by_name
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure, panelled
from kedrl_dask.utils.arrays import Record

#: Gaps of the criterion below this share of its start are rounding errors: between restarts the solver
#: updates the value by products in single precision, which are off by up to 3e-8.
ROUNDING = 1e-7


def convergence(model: KEDRL) -> Figure:
    """The criterion above its smallest value, and the gradient, at each iteration of the solver."""
    solver, history = by_name(model.solver), model.solution_.history
    # A restart repeats its iteration: the later record, from the exact gradient, is the one that counts.
    records = {record.iteration: record for record in history}
    iteration, value, certificate = np.array(list(records.values()), dtype=np.float64).T
    gap = value - np.nanmin(value)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    # AdamW's start has no gradient yet.
    shown, known = gap > ROUNDING * np.abs(value[0]), np.isfinite(certificate) & (certificate > 0)
    left.semilogy(iteration[shown], gap[shown], color=BLUE)
    left.set(title="Criterion, down to rounding", xlabel="iteration")
    left.set(ylabel="criterion − smallest value found")
    right.semilogy(iteration[known], certificate[known], color=BLUE)
    title, label = "Certificate", "relative preconditioned gradient"
    if isinstance(solver, AdamW):
        title, label = "Gradient of the mini-batch", "norm"
    right.set(title=title, xlabel="iteration", ylabel=label)
    if isinstance(solver, PCG):
        right.axhline(solver.tolerance, color=ORANGE, linestyle="--", label="tolerance")
        right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    ended = model.solution_.result.name.lower().replace("_", " ")
    figure.suptitle(f"Solver {type(solver).__name__}: {ended}")
    return figure


def embedding_curves(estimate: npt.ArrayLike, truth: npt.ArrayLike, columns: int = 5) -> Figure:
    """Estimate against truth over the evaluation grid of each point (the paper's fig:mu_res_2).

    Parameters
    ----------
    estimate, truth : (n, g) arrays
        Values of the embedding at the g evaluation points of each of n inputs.
    columns : int
        Panels in a row.
    """
    estimate, truth = np.asarray(estimate), np.asarray(truth)
    if estimate.shape != truth.shape or truth.ndim != 2:
        raise ValueError(
            f"embedding_curves: shapes {estimate.shape} and {truth.shape}, expected the same (n, g)"
        )
    n_points, n_values = truth.shape
    figure, panels = panelled(n_points, columns, (2.3, 2.0), (0.6, 0.9), share=True)
    position = np.arange(1, n_values + 1)
    for point, axes in enumerate(panels):
        # Sorted by the truth: in the order of one return coordinate the others make both lines jump.
        order = np.argsort(truth[point], kind="stable")
        dots: Record = {"color": ORANGE, "markersize": 3, "zorder": 3}
        axes.plot(position, estimate[point, order], ".", label="estimate", **dots)
        axes.plot(position, truth[point, order], color=BLUE, linewidth=1.4, label="truth")
        rmse = np.sqrt(np.mean((estimate[point] - truth[point]) ** 2))
        axes.set_title(f"point {point + 1}: RMSE {rmse:.4f}", fontsize=9)
        axes.grid(alpha=0.25)
    figure.supxlabel("evaluation point, by increasing true value", fontsize=10)
    figure.supylabel("embedding", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, markerscale=2)
    return figure


def grid_coverage(model: KEDRL, returns: npt.ArrayLike) -> Figure:
    """The atoms of the return grid over observed returns (n, d), for each pair of coordinates."""
    returns, dim = np.asarray(returns), model.grid_.shape[1]
    if returns.ndim != 2 or returns.shape[1] != dim:
        raise ValueError(f"grid_coverage: returns have shape {returns.shape}, expected (n, {dim})")
    pairs = list(combinations(range(dim), 2))
    figure, panels = panelled(max(1, len(pairs)), 3, (3.6, 3.4), (0.4, 0.6))
    for axes, (first, second) in zip(panels, pairs, strict=False):
        x, y = returns[:, first], returns[:, second]
        axes.hexbin(x, y, gridsize=30, cmap="Greys", norm=LogNorm(), linewidths=0.1)
        axes.plot(*model.grid_[:, [first, second]].T, "o", color=ORANGE, markersize=3.5)
        axes.set(xlabel=f"return {first + 1}", ylabel=f"return {second + 1}")
    if not pairs:
        panels[0].hist(returns[:, 0], bins=60, color=GREY)
        panels[0].plot(model.grid_[:, 0], np.zeros(len(model.grid_)), "o", color=ORANGE, markersize=3.5)
        panels[0].set(xlabel="return", ylabel="observed returns")
    handles = [
        Line2D([], [], marker="h", linestyle="", color=GREY, markersize=9, label="returns (log density)"),
        Line2D([], [], marker="o", linestyle="", color=ORANGE, label=f"{len(model.grid_)} atoms"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return figure


def coefficient_mass(model: KEDRL, state: npt.ArrayLike, action: npt.ArrayLike) -> Figure:
    """Histograms over inputs of the coefficients' sum, which should be one, and of their negative part."""
    weights = model.weights(state, action)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(weights.sum(axis=1), bins=40, color=BLUE)
    left.axvline(1.0, color=ORANGE, linestyle="--", label="a probability's mass")
    left.legend(frameon=False)
    left.set(title="Mass", xlabel="Σ ω", ylabel="inputs")
    left.ticklabel_format(axis="x", useOffset=False)
    left.locator_params(axis="x", nbins=5)
    right.hist(-np.minimum(weights, 0).sum(axis=1), bins=40, color=BLUE)
    right.set(title="Negative mass", xlabel="Σ max(−ω, 0)", ylabel="inputs")
    figure.suptitle(f"Coefficients ω(x) at {len(weights):,} inputs")
    return figure
