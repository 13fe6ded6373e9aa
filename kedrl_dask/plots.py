"""Figures of a fit and of kernels. Each function returns a Matplotlib figure and leaves no global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.lines import Line2D

from kedrl_dask.datasets.truth import ReturnLaw
from kedrl_dask.kernels import Matern
from kedrl_dask.model import KEDRL
from kedrl_dask.recovery import Recovered
from kedrl_dask.solvers import PCG, AdamW, by_name
from kedrl_dask.theory import feature_quotient, lipschitz_constant

__all__ = [
    "coefficient_mass",
    "convergence",
    "embedding_curves",
    "embedding_surface",
    "grid_coverage",
    "matern_kernels",
    "recovered_marginals",
    "tuning",
]

Array = npt.NDArray[Any]

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"
#: More of them, for several lines in one panel; each has a dash pattern too.
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
#: Sizes that may be chosen, and whose error is looked at.
GROWN = {
    "n_landmarks": "Landmarks: sections at other inputs",
    "n_basis": "Basis: sections at other inputs",
    "n_atoms": "Atoms: shifted sections",
    "n_features": "Frequencies: their kernel on the grid",
}
#: Points along each axis of a surface.
SURFACE_POINTS = 80
#: Gaps of the criterion below this share of its start are rounding errors of the solver's recurrence.
ROUNDING = 1e-10


class Figure(MatplotlibFigure):
    """A figure that notebooks show, whatever backend they use or if they use none."""

    def _repr_png_(self) -> bytes:
        """Return the picture."""
        picture = BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()


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
    left.set(title="Criterion", xlabel="iteration", ylabel="criterion − smallest value found")
    right.semilogy(iteration[known], certificate[known], color=BLUE)
    is_batch = isinstance(solver, AdamW)
    right.set(
        title="Gradient of the mini-batch" if is_batch else "Certificate",
        xlabel="iteration",
        ylabel="norm" if is_batch else "relative preconditioned gradient",
    )
    if isinstance(solver, PCG):
        right.axhline(solver.tolerance, color=ORANGE, linestyle="--", label="tolerance")
        right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.suptitle(
        f"Solver {type(solver).__name__}: {model.solution_.result.name.lower().replace('_', ' ')}"
    )
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
    columns = min(columns, n_points)
    rows = -(-n_points // columns)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.0 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    position = np.arange(1, n_values + 1)
    for point, axes in enumerate(panels[:n_points]):
        # Sorted by the truth: in the order of one return coordinate the others make both lines jump.
        order = np.argsort(truth[point], kind="stable")
        axes.plot(
            position, estimate[point, order], ".", color=ORANGE, markersize=3, zorder=3, label="estimate"
        )
        axes.plot(position, truth[point, order], color=BLUE, linewidth=1.4, label="truth")
        rmse = np.sqrt(np.mean((estimate[point] - truth[point]) ** 2))
        axes.set_title(f"point {point + 1}: RMSE {rmse:.4f}", fontsize=9)
        axes.grid(alpha=0.25)
    for axes in panels[n_points:]:
        axes.set_axis_off()
    figure.supxlabel("evaluation point, by increasing true value", fontsize=10)
    figure.supylabel("embedding", fontsize=10)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=2,
        frameon=False,
        markerscale=2,
    )
    return figure


def embedding_surface(
    model: KEDRL,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    coordinates: tuple[int, int] = (0, 1),
    law: ReturnLaw | None = None,
) -> Figure:
    """Contours of the fitted embedding at one input, over two coordinates of the return.

    The other coordinates are held at the mean of the fitted law, Σω_i z_i/Σω_i, or at the true mean.

    Parameters
    ----------
    model : KEDRL
    state, action : (p,) and (q,) arrays
        The input.
    coordinates : (int, int)
        The two coordinates.
    law : ReturnLaw, optional
        The true law at this input, whose contours are drawn too.
    """
    state, action = np.atleast_2d(state), np.atleast_2d(action)
    dim, (first, second) = model.grid_.shape[1], coordinates
    if first == second or not all(0 <= coordinate < dim for coordinate in coordinates):
        raise ValueError(
            f"embedding_surface: coordinates {coordinates} are not two different ones below {dim}"
        )
    weights = model.weights(state, action)[0]
    center = weights @ model.grid_ / weights.sum() if law is None else law.mean[0]
    low, high = model.grid_.min(axis=0), model.grid_.max(axis=0)
    x, y = (np.linspace(low[c], high[c], SURFACE_POINTS) for c in coordinates)
    at = np.tile(center, (SURFACE_POINTS**2, 1))
    at[:, first], at[:, second] = (mesh.ravel() for mesh in np.meshgrid(x, y))
    fitted = model.embed(state, action, at=at).reshape(SURFACE_POINTS, SURFACE_POINTS)
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    filled = axes.contourf(x, y, fitted, levels=12, cmap="cividis")
    figure.colorbar(filled, ax=axes, label="fitted embedding")
    atoms = model.grid_[:, coordinates]
    axes.plot(*atoms.T, "o", color="white", markeredgecolor="black", markersize=3.5, markeredgewidth=0.5)
    handles = [
        Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor="black", label="atoms")
    ]
    if law is not None:
        true = law.embed(at, model.return_kernel_, 2**12).reshape(fitted.shape)
        axes.contour(
            x, y, true, levels=np.asarray(filled.levels)[1:-1], colors=ORANGE, linewidths=1.0, linestyles="--"
        )
        handles.append(Line2D([], [], color=ORANGE, linestyle="--", label="truth, same levels"))
    held = ", ".join(f"return {c + 1} = {center[c]:.2f}" for c in range(dim) if c not in coordinates)
    axes.set(
        xlabel=f"return {first + 1}", ylabel=f"return {second + 1}", title=held and f"Embedding at {held}"
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def grid_coverage(model: KEDRL, returns: npt.ArrayLike) -> Figure:
    """The atoms of the return grid over observed returns (n, d), for each pair of coordinates."""
    returns, dim = np.asarray(returns), model.grid_.shape[1]
    if returns.ndim != 2 or returns.shape[1] != dim:
        raise ValueError(f"grid_coverage: returns have shape {returns.shape}, expected (n, {dim})")
    pairs = list(combinations(range(dim), 2))
    columns = max(1, min(3, len(pairs)))
    rows = max(1, -(-len(pairs) // columns))
    figure = Figure(figsize=(3.6 * columns + 0.4, 3.4 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (first, second) in zip(panels, pairs, strict=False):
        axes.hexbin(
            returns[:, first], returns[:, second], gridsize=30, cmap="Greys", norm=LogNorm(), linewidths=0.1,
        )  # fmt: skip
        axes.plot(*model.grid_[:, [first, second]].T, "o", color=ORANGE, markersize=3.5)
        axes.set(xlabel=f"return {first + 1}", ylabel=f"return {second + 1}")
    if not pairs:
        panels[0].hist(returns[:, 0], bins=60, color=GREY)
        panels[0].plot(model.grid_[:, 0], np.zeros(len(model.grid_)), "o", color=ORANGE, markersize=3.5)
        panels[0].set(xlabel="return", ylabel="observed returns")
    for axes in panels[max(1, len(pairs)) :]:
        axes.set_axis_off()
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


def recovered_marginals(recovered: Recovered, point: int = 0, returns: npt.ArrayLike | None = None) -> Figure:
    """Density, or masses, and distribution function of each coordinate of a recovered law.

    The second specification is drawn beside it, and the truth if its returns are given.

    Parameters
    ----------
    recovered : Recovered
    point : int
        Which of its inputs.
    returns : (k, d) array, optional
        Returns drawn from the true law at this input.
    """
    dim, other = recovered.atoms.shape[1], recovered.sensitivity
    true = None if returns is None else np.asarray(returns, dtype=np.float64)
    if true is not None and (true.ndim != 2 or true.shape[1] != dim):
        raise ValueError(f"recovered_marginals: returns have shape {true.shape}, expected (k, {dim})")
    if not 0 <= point < len(recovered.weights):
        raise ValueError(
            f"recovered_marginals: point {point} is not one of 0 to {len(recovered.weights) - 1}"
        )
    figure = Figure(figsize=(3.2 * dim + 0.6, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, dim, squeeze=False, sharex="col")
    for c in range(dim):
        low, high = recovered.quantile([1e-3, 1 - 1e-3], c)[point]
        margin = 0.1 * (high - low) + 1e-9
        x = np.linspace(low - margin, high + margin, 400)
        if true is not None:
            upper[c].hist(true[:, c], bins=np.linspace(x[0], x[-1], 50), density=True, color=GREY, alpha=0.5)
            lower[c].plot(x, np.mean(true[:, c, None] <= x, axis=0), color=GREY, linewidth=3, alpha=0.6)
        for law, colour, style in ((other, ORANGE, "--"), (recovered, BLUE, "-")):
            if law.bandwidth[c] > 0:
                upper[c].plot(x, law.density(x, c)[point], style, color=colour)
            else:
                # Atoms may share a value, and their weights then add up.
                value, member = np.unique(law.atoms[:, c], return_inverse=True)
                mass = np.bincount(member, law.weights[point])
                if c in law.supports:
                    value, mass = law.pmf(c).support, law.pmf(c).probability[point]
                upper[c].vlines(value, 0, mass, colors=colour, linestyles=style)
            lower[c].plot(x, law.cdf(x, c)[point], style, color=colour)
        lower[c].set(xlabel=f"return {c + 1}", ylim=(-0.02, 1.02))
        for axes in (upper[c], lower[c]):
            axes.grid(alpha=0.25)
    upper[0].set_ylabel("density" if (recovered.bandwidth > 0).all() else "density or mass")
    lower[0].set_ylabel("distribution function")
    handles = [
        Line2D([], [], color=BLUE, label="recovered"),
        Line2D([], [], color=ORANGE, linestyle="--", label="10 × ridge, ½ bandwidth"),
    ]
    if true is not None:
        handles.append(Line2D([], [], color=GREY, linewidth=4, alpha=0.6, label="truth"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    raised = [name.replace("_", " ") for name, flag in recovered.flags.items() if flag[point]]
    figure.suptitle(
        f"relative residual {recovered.relative_residual[point]:.3f}; flags: {', '.join(raised) or 'none'}",
        fontsize=10,
    )
    return figure


def tuning(model: KEDRL) -> Figure:
    """What was tried for every setting that was chosen automatically, with its score."""
    tried = model.diagnostics_["tuning"]
    draw = _tuning_panels(model, tried)
    if not draw:
        raise ValueError("tuning: every setting was given, so that nothing was tuned")
    columns = min(len(draw), 3)
    rows = -(-len(draw) // columns)
    figure = Figure(figsize=(5 * columns, 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(panels, draw, strict=False):
        panel(axes)
    for axes in panels[len(draw) :]:
        axes.set_axis_off()
    return figure


def matern_kernels(
    nus: Sequence[float] = (0.5, 1.5, 2.5, 5.5),
    length_scales: Sequence[float] = (0.5, 1.0, 2.0),
    nu: float = 1.5,
    sigma: float = 1.0,
) -> Figure:
    """The Matérn kernel by distance, and what its feature map's Lipschitz constant is (fig:matern).

    Parameters
    ----------
    nus : sequence of float
        Smoothness of the kernels with unit length, in the first and the last panel. The last shows
        √(2{σ² − k(t)})/t, whose supremum is L_k; for ν ≤ 1 it has none, and no mark on the axis.
    length_scales, nu : sequence of float, float
        Lengths of the kernels of one smoothness, in the second panel.
    sigma : float
        σ of all of them.
    """
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    distance, near = np.linspace(0, 4, 401), np.geomspace(2e-3, 4, 401)
    by_nu = [(f"ν = {value:g}", Matern(value, 1.0, sigma)) for value in nus]
    by_length = [(f"ℓ = {value:g}", Matern(nu, value, sigma)) for value in length_scales]
    for axes, kernels in zip(panels, (by_nu, by_length, by_nu), strict=True):
        for i, (label, kernel) in enumerate(kernels):
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)], "label": label}
            if axes is not panels[2]:
                axes.plot(distance, kernel(distance[:, None], np.zeros((1, 1)))[:, 0], **style)
                continue
            axes.semilogx(near, feature_quotient(kernel, near), **style)
            if kernel.nu > 1:
                axes.plot(near[0], lipschitz_constant(kernel), "o", color=style["color"], clip_on=False)
        axes.grid(alpha=0.25)
        axes.set(xlabel="distance t")
    panels[0].set(title="(a) Smoothness, ℓ = 1", ylabel="k(t)")
    panels[1].set(title=f"(b) Length scale, ν = {nu:g}", ylabel="k(t)")
    panels[2].set(title="(c) Quotient of the feature map, ℓ = 1", ylabel="√(2{σ² − k(t)})/t")
    smooth = [lipschitz_constant(kernel) for _, kernel in by_nu if kernel.nu > 1]
    panels[2].set_ylim(0, 1.6 * max(smooth, default=2 * sigma))
    handles = [Line2D([], [], marker="o", linestyle="", color=GREY, label="L_k")] if smooth else []
    for axes in panels:
        shown = axes.get_legend_handles_labels()[0]
        if axes is panels[2]:
            axes.legend(handles=shown + handles, frameon=False, loc="lower left")
        else:
            axes.legend(frameon=False)
    return figure


def _tuning_panels(model: KEDRL, tried: dict[str, Any]) -> list[Callable[[Axes], None]]:
    """What draws each panel."""
    draw: list[Callable[[Axes], None]] = []
    if "input_kernel" in tried:
        kernel = tried["input_kernel"]
        draw.append(lambda axes: _length_scales(axes, kernel))
        if kernel["trials"]:
            draw.append(lambda axes: _trials(axes, kernel["trials"]))
    if "ridge_gamma" in tried:
        draw.append(lambda axes: _ridge(axes, model.ridge_gamma_, **tried["ridge_gamma"]))
    draw += [partial(_growth, name=name, **tried[name]) for name in GROWN if name in tried]
    return draw


def _ridge(axes: Axes, chosen: float, ridges: list[float], errors: list[float]) -> None:
    axes.semilogx(ridges, errors, "o-", color=BLUE, markersize=4)
    axes.axvline(chosen, color=ORANGE, linestyle="--", label=f"chosen: {chosen:.1e}")
    axes.legend(frameon=False)
    axes.set(title="λ_Γ, all transitions", xlabel="ridge λ_Γ", ylabel="cross-validated error")
    axes.grid(alpha=0.25)


def _growth(
    axes: Axes,
    *,
    name: str,
    size: int,
    sizes: list[int],
    estimates: list[float],
    tolerance: float,
    reason: str,
) -> None:
    """The error of an approximation by its size."""
    axes.loglog(sizes, np.maximum(estimates, 1e-12), "o-", color=BLUE, markersize=4)
    axes.axhline(tolerance, color=GREY, linestyle=":", label=f"tolerance {tolerance:.1e}")
    axes.axvline(size, color=ORANGE, linestyle="--", label=f"chosen: {size:,} ({reason})")
    axes.legend(frameon=False, fontsize=8)
    axes.set(title=GROWN[name], xlabel=name, ylabel="mean square of the error")
    axes.grid(alpha=0.25)


def _trials(axes: Axes, trials: list[dict[str, Any]]) -> None:
    """Gains of single coordinates' lengths, in units of their noise: beyond one they are accepted."""
    position = np.arange(len(trials))
    # A difference without noise is accepted whatever its size; it has no place on a finite axis.
    gains = [trial["gain"] / max(trial["noise"], 1e-300) for trial in trials]
    colours = [ORANGE if trial["accepted"] else GREY for trial in trials]
    axes.barh(position, np.clip(gains, -20, 20), color=colours)
    axes.axvline(1.0, color=BLUE, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    names = [f"x{trial['coordinate'] + 1} to {trial['length_scale']:g}" for trial in trials]
    axes.set_yticks(position, names, fontsize=9 if len(trials) <= 20 else 6)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(
        title="Lengths of single coordinates",
        xlabel="fall of the error, in its standard errors",
        ylabel="coordinate and length tried, in order",
    )
    handles = [Line2D([], [], color=colour, linewidth=6) for colour in (ORANGE, GREY)]
    axes.legend(handles, ["accepted", "rejected"], loc="lower left", fontsize=8)


def _length_scales(axes: Axes, tried: dict[str, Any]) -> None:
    """A map of the error, with the chosen pair."""
    length_scales, ridges, values = tried["length_scales"], tried["ridges"], np.array(tried["errors"])
    best = np.unravel_index(np.argmin(values), values.shape)
    # The worst corner is far off; colours are for the differences among the good ones.
    mesh = axes.pcolormesh(
        ridges, np.arange(len(length_scales)), values, cmap="cividis", vmax=np.quantile(values, 0.7)
    )
    axes.figure.colorbar(mesh, ax=axes, label="cross-validated error", extend="max")
    axes.plot(
        ridges[best[1]], best[0], "*", color=ORANGE, markeredgecolor="white", markersize=16, label="smallest"
    )
    axes.legend(loc="upper right")
    axes.set_xscale("log")
    axes.set_yticks(range(len(length_scales)), [f"{length:g}" for length in length_scales])
    axes.set(
        title="Input kernel, common length", xlabel="ridge", ylabel="length scale, in standard deviations"
    )
