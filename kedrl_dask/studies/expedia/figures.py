"""Figures of the Expedia evaluation (fig:expedia_res_full, fig:expedia_policies)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kedrl_dask.datasets.expedia import greedy_action
from kedrl_dask.datasets.expedia.columns import ACTION
from kedrl_dask.numerics.laws.recovery import Recovered
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure
from kedrl_dask.studies.expedia.preparation import Prepared
from kedrl_dask.studies.expedia.specification import BANDWIDTH, RETURN_KERNEL, Recovery, shift
from kedrl_dask.studies.expedia.summary import raw_atoms
from kedrl_dask.utils.arrays import Matrix, Record

COLOURS = {"rev": BLUE, "clk": ORANGE}
LABELS = {"rev": "π(rev)", "clk": "π(clk)"}
#: Points along each axis of a mesh, and of a density.
N_POINTS, N_CURVE = 60, 400
SYNTHETIC = "simulated searches"


def actions(prepared: Prepared) -> Figure:
    """Logged and greedy actions of the test split on the raw scale."""
    state, logged = prepared.test_inputs
    shown = {"logged": prepared.encoder.raw_action(logged)}
    shown |= {name: greedy_action(p, state, prepared.encoder) for name, p in prepared.policies.items()}
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    for i, (name, axes) in enumerate(zip(ACTION, figure.subplots(1, 3), strict=True)):
        bins = np.histogram_bin_edges(np.concatenate([values[:, i] for values in shown.values()]), 40)
        for key, values in shown.items():
            colour = COLOURS.get(key, GREY)
            axes.hist(values[:, i], bins=bins, density=True, histtype="step", color=colour, linewidth=1.6)
            axes.axvline(values[:, i].mean(), color=colour, linestyle=":", linewidth=1.2)
        axes.set(xlabel=name, yticks=[])
    handles = [Line2D([], [], color=COLOURS.get(key, GREY), label=LABELS.get(key, key)) for key in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    _mark(figure, prepared)
    return figure


def embeddings_and_marginals(
    records: Mapping[str, Record], laws: Mapping[str, Recovered], which: Recovery, prepared: Prepared
) -> Figure:
    """Embeddings as contours and surfaces, and the recovered marginals of revenue and clicks, by policy.

    Returns are drawn on the raw scale of the recovery ``which``.
    """
    figure = Figure(figsize=(10.5, 8.4))
    contours = figure.add_axes((0.07, 0.56, 0.40, 0.36))
    surface: Any = figure.add_axes((0.52, 0.51, 0.44, 0.45), projection="3d")
    density, masses = figure.add_axes((0.07, 0.11, 0.40, 0.34)), figure.add_axes((0.56, 0.11, 0.40, 0.34))
    meshes = {name: _mesh(record, which, prepared) for name, record in records.items()}
    both = np.stack([values for _, _, values in meshes.values()])
    levels = MaxNLocator(8).tick_values(both.min(), both.max())
    for name, (x, y, values) in meshes.items():
        lines = contours.contour(x, y, values, levels=levels, colors=COLOURS[name], linewidths=1.1)
        contours.clabel(lines, fontsize=7, fmt="%.2f")
        surface.plot_surface(x, y, values, color=COLOURS[name], alpha=0.45, linewidth=0)
    contours.set(xlabel="revenue return", ylabel="click return", title="Mean embedding: contours")
    surface.set(xlabel="revenue return", ylabel="click return", title="Mean embedding: surfaces")
    for position, (name, law) in enumerate(laws.items()):
        _density(density, law, which, prepared, name)
        _clicks(masses, law, which, prepared, name, position)
    density.set(xlabel="revenue return", ylabel="density", title="Recovered revenue marginal", ylim=(0, None))
    kind = "mass" if 1 in next(iter(laws.values())).supports else "density"
    masses.set(xlabel="click return", ylabel=kind, title=f"Recovered click {kind}", ylim=(0, None))
    for axes in (contours, density, masses):
        axes.grid(alpha=0.25)
    handles = [Line2D([], [], color=COLOURS[name], label=LABELS[name]) for name in records]
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False)
    _mark(figure, prepared)
    return figure


def _mark(figure: Figure, prepared: Prepared) -> None:
    if prepared.facts["is_simulated"]:
        figure.text(0.995, 0.005, SYNTHETIC, ha="right", va="bottom", fontsize=8, color=GREY)


def _mesh(record: Record, which: Recovery, prepared: Prepared) -> tuple[Matrix, Matrix, Matrix]:
    """Values of an embedding on a mesh of raw returns."""
    grid = np.array(record["grid"])
    scale, added = prepared.encoder.reward_scale, shift(which, prepared.encoder)
    axes = [np.linspace(low, high, N_POINTS) for low, high in zip(grid.min(0), grid.max(0), strict=True)]
    x, y = np.meshgrid(*axes)
    values = RETURN_KERNEL(np.column_stack([x.ravel(), y.ravel()]), grid) @ np.array(record["coefficients"])
    return x * scale[0] + added[0], y * scale[1] + added[1], values.reshape(x.shape)


def _density(axes: Axes, law: Recovered, which: Recovery, prepared: Prepared, name: str) -> None:
    scale, added = prepared.encoder.reward_scale[0], shift(which, prepared.encoder)[0]
    atoms = raw_atoms(law, which, prepared)[:, 0]
    reach = 3 * BANDWIDTH if which == "paper" else 3 * law.bandwidth[0] * scale
    at = np.linspace(atoms.min() - reach, min(atoms.max() + reach, atoms.min() + 1_000), N_CURVE)
    axes.plot(at, law.density((at - added) / scale, 0)[0] / scale, color=COLOURS[name])


def _clicks(
    axes: Axes, law: Recovered, which: Recovery, prepared: Prepared, name: str, position: int
) -> None:
    scale, added = prepared.encoder.reward_scale[1], shift(which, prepared.encoder)[1]
    if 1 not in law.supports:
        atoms = raw_atoms(law, which, prepared)[:, 1]
        reach = 3 * law.bandwidth[1] * scale
        at = np.linspace(atoms.min() - reach, atoms.max() + reach, N_CURVE)
        axes.plot(at, law.density((at - added) / scale, 1)[0] / scale, color=COLOURS[name])
        return
    masses = law.pmf(1)
    width = 0.38
    at = masses.support * scale + added + (position - 0.5) * width
    axes.bar(at, masses.probability[0], width=width, color=COLOURS[name])
