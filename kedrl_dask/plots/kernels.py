"""Figures of the Matérn kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.theory import feature_quotient, lipschitz_constant
from kedrl_dask.plots.style import GREY, Figure, line_style


def matern_kernels(
    nus: Sequence[float] = (0.5, 1.5, 2.5, 5.5),
    length_scales: Sequence[float] = (0.5, 1.0, 2.0),
    nu: float = 1.5,
    sigma: float = 1.0,
) -> Figure:
    """Plot the Matérn kernel by distance, and the Lipschitz constant of its feature map (fig:matern).

    Parameters
    ----------
    nus : sequence of float
        Smoothness of the kernels with unit length scale, in the first and last panels. The last shows
        √(2{σ² − k(t)})/t, whose supremum L_k is marked on the axis; it is infinite for ν ≤ 1.
    length_scales, nu : sequence of float, float
        Length scales and common smoothness of the kernels in the second panel.
    sigma : float
        σ of all kernels.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.matern_kernels(nus=(1.5, 2.5))
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['(a) Smoothness, ℓ = 1', '(b) Length scale, ν = 1.5']
    """
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    distance, near = np.linspace(0, 4, 401), np.geomspace(2e-3, 4, 401)
    by_nu = [(f"ν = {value:g}", Matern(value, 1.0, sigma)) for value in nus]
    by_length = [(f"ℓ = {value:g}", Matern(nu, value, sigma)) for value in length_scales]
    for axes, kernels in zip(panels, (by_nu, by_length, by_nu), strict=True):
        for i, (label, kernel) in enumerate(kernels):
            style = {**line_style(i), "label": label}
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
