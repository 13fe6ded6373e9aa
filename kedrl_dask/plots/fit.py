"""Convergence, return grid and coefficients of a fit, and its errors where the truth is known."""

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

#: Gaps of the criterion below this share of its initial value are rounding errors: between restarts, the
#: solver updates the value with single-precision products, whose errors reach 3e-8.
ROUNDING = 1e-7


def convergence(model: KEDRL) -> Figure:
    """Plot the criterion's gap to its smallest value, and the gradient, at each solver iteration.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.convergence(model)
    >>> figure.get_suptitle()
    'Solver PCG: converged'
    >>> figure.axes[1].get_ylabel()
    'relative preconditioned gradient'
    """
    solver, history = by_name(model.solver), model.solution_.history
    # A restart repeats its iteration: the later record, from the exact gradient, replaces the earlier one.
    records = {record.iteration: record for record in history}
    iteration, value, certificate = np.array(list(records.values()), dtype=np.float64).T
    gap = value - np.nanmin(value)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    # AdamW has no gradient yet at its start.
    shown, known = gap > ROUNDING * np.abs(value[0]), np.isfinite(certificate) & (certificate > 0)
    left.semilogy(iteration[shown], gap[shown], color=BLUE)
    left.set(title="Criterion, above rounding error", xlabel="iteration")
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
    """Plot estimate and truth over the evaluation grid of each input (fig:mu_res_2 of the paper).

    Parameters
    ----------
    estimate, truth : (n, g) arrays
        Values of the embedding at the g evaluation points of each of n inputs.
    columns : int
        Panels per row.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.embedding_curves([[0.2, 0.4, 0.3]], [[0.2, 0.5, 0.3]])
    >>> figure.axes[0].get_title()
    'point 1: RMSE 0.0577'
    """
    estimate, truth = np.asarray(estimate), np.asarray(truth)
    if estimate.shape != truth.shape or truth.ndim != 2:
        raise ValueError(
            f"embedding_curves: estimate {estimate.shape} and truth {truth.shape} must share a shape (n, g)"
        )
    n_points, n_values = truth.shape
    figure, panels = panelled(n_points, columns, (2.3, 2.0), (0.6, 0.9), share=True)
    position = np.arange(1, n_values + 1)
    for point, axes in enumerate(panels):
        # Sorted by the truth: sorted by one return coordinate, both lines would jump with the others.
        order = np.argsort(truth[point], kind="stable")
        dots: Record = {"color": ORANGE, "markersize": 3, "zorder": 3}
        axes.plot(position, estimate[point, order], ".", label="estimate", **dots)
        axes.plot(position, truth[point, order], color=BLUE, linewidth=1.4, label="truth")
        rmse = np.sqrt(np.mean((estimate[point] - truth[point]) ** 2))
        axes.set_title(f"point {point + 1}: RMSE {rmse:.4f}", fontsize=9)
        axes.grid(alpha=0.25)
    figure.supxlabel("evaluation points in order of the true value", fontsize=10)
    figure.supylabel("embedding", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, markerscale=2)
    return figure


def grid_coverage(model: KEDRL, returns: npt.ArrayLike) -> Figure:
    """Plot the atoms of the return grid over observed returns (n, d), for each pair of coordinates.

    The atoms of a centred model are of the return less Ψ(s), ``model.potential_``: give returns less that.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.grid_coverage(model, state + action)
    >>> [label.get_text() for label in figure.legends[0].get_texts()]
    ['returns (log density)', '50 atoms']
    """
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
    """Plot histograms over inputs of the coefficients' sum, which should be one, and of their negative part.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.coefficient_mass(model, state, action)
    >>> figure.get_suptitle(), [axes.get_title() for axes in figure.axes]
    ('Coefficients ω(x) at 1,000 inputs', ['Mass', 'Negative mass'])
    """
    weights = model.weights(state, action)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(weights.sum(axis=1), bins=40, color=BLUE)
    left.axvline(1.0, color=ORANGE, linestyle="--", label="mass of a probability law")
    left.legend(frameon=False)
    left.set(title="Mass", xlabel="Σ ω", ylabel="inputs")
    left.ticklabel_format(axis="x", useOffset=False)
    left.locator_params(axis="x", nbins=5)
    right.hist(-np.minimum(weights, 0).sum(axis=1), bins=40, color=BLUE)
    right.set(title="Negative mass", xlabel="Σ max(−ω, 0)", ylabel="inputs")
    figure.suptitle(f"Coefficients ω(x) at {len(weights):,} inputs")
    return figure
