"""Figures of recovered laws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.lines import Line2D

from kedrl_dask.numerics.laws.recovery import Recovered
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure


def recovered_marginals(recovered: Recovered, point: int = 0, returns: npt.ArrayLike | None = None) -> Figure:
    """Plot the density or masses, and the distribution function, of each coordinate of a recovered law.

    The law under the second specification is drawn as well, and the truth if returns are given.

    Parameters
    ----------
    recovered : Recovered
    point : int
        Index of the input.
    returns : (k, d) array, optional
        Returns drawn from the true law at this input.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.recovered_marginals(law)
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['density', 'distribution function']
    """
    dim, other = recovered.dim, recovered.sensitivity
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
            if law.density_bandwidth[c] > 0:
                upper[c].plot(x, law.density(x, c)[point], style, color=colour)
            else:
                # Atoms may share a value in this coordinate: their weights are added.
                value, member = np.unique(law.atoms_of(point)[:, c], return_inverse=True)
                mass = np.bincount(member, law.weights[point])
                if c in law.supports:
                    value, mass = law.pmf(c).support, law.pmf(c).probability[point]
                upper[c].vlines(value, 0, mass, colors=colour, linestyles=style)
            lower[c].plot(x, law.cdf(x, c)[point], style, color=colour)
        lower[c].set(xlabel=f"return {c + 1}", ylim=(-0.02, 1.02))
        for axes in (upper[c], lower[c]):
            axes.grid(alpha=0.25)
    upper[0].set_ylabel("density" if (recovered.density_bandwidth > 0).all() else "density or mass")
    lower[0].set_ylabel("distribution function")
    handles = [
        Line2D([], [], color=BLUE, label="recovered"),
        Line2D([], [], color=ORANGE, linestyle="--", label=recovered.second_specification),
    ]
    if true is not None:
        handles.append(Line2D([], [], color=GREY, linewidth=4, alpha=0.6, label="truth"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    raised = [name.replace("_", " ") for name, flag in recovered.flags.items() if flag[point]]
    residual, flags = recovered.relative_residual[point], ", ".join(raised) or "none"
    figure.suptitle(f"relative residual {residual:.3f}; flags: {flags}", fontsize=10)
    return figure
