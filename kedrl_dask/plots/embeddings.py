"""Contours and surface of the fitted embedding at one input, over two coordinates of the return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kedrl_dask.datasets.truth import ReturnLaw
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.plots.style import ORANGE, Figure
from kedrl_dask.utils.arrays import Matrix, Points, Vector

#: Points along each axis.
N_POINTS = 80
#: Lines along each axis of the wireframe that shows the truth.
N_LINES = 16
#: Quadrature nodes for the true embedding: more would make no visible difference.
N_FREQUENCIES = 2**12


class _Mesh(NamedTuple):
    """Values of the fitted embedding, and of the true one if known, on a mesh of two coordinates."""

    x: Vector
    y: Vector
    fitted: Matrix
    true: Matrix | None
    atoms: Points  # of the return at the input, in these coordinates
    held: str


def embedding_contours(
    model: KEDRL,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    coordinates: tuple[int, int] = (0, 1),
    law: ReturnLaw | None = None,
) -> Figure:
    """Plot contours of the fitted embedding at one input, over two coordinates of the return.

    The other coordinates are fixed at the mean of the fitted law, Σω_i z_i/Σω_i, or at a known true mean.

    Parameters
    ----------
    model : KEDRL
    state, action : (p,) and (q,) arrays
        The input.
    coordinates : (int, int)
        Indices of the two coordinates.
    law : ReturnLaw, optional
        The true law at this input; its contours are drawn as well.

    Examples
    --------
    >>> from kedrl_dask import TransitionStore, plots
    >>> from sklearn.base import clone
    >>> columns = {"state": state, "action": action, "episode": episode, "step": step}
    >>> two = TransitionStore.from_arrays("contours.zarr", reward=np.hstack([state, action]), **columns)
    >>> figure = plots.embedding_contours(clone(model).fit(two, policy, progress="none"), [0.0], [1.0])
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('return 1', 'return 2')
    """
    mesh = _mesh("embedding_contours", model, state, action, coordinates, law)
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    filled = axes.contourf(mesh.x, mesh.y, mesh.fitted, levels=12, cmap="cividis")
    figure.colorbar(filled, ax=axes, label="fitted embedding")
    axes.plot(*mesh.atoms.T, "o", color="white", markeredgecolor="black", markersize=3.5, markeredgewidth=0.5)
    handles = [
        Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor="black", label="atoms")
    ]
    if mesh.true is not None:
        levels = np.asarray(filled.levels)[1:-1]
        axes.contour(mesh.x, mesh.y, mesh.true, levels=levels, colors=ORANGE, linewidths=1.0, linestyles="--")
        handles.append(Line2D([], [], color=ORANGE, linestyle="--", label="truth, same levels"))
    axes.set(xlabel=f"return {coordinates[0] + 1}", ylabel=f"return {coordinates[1] + 1}")
    axes.set(title=mesh.held and f"Embedding at {mesh.held}")
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def embedding_surface(
    model: KEDRL,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    coordinates: tuple[int, int] = (0, 1),
    law: ReturnLaw | None = None,
) -> Figure:
    """Plot the fitted embedding at one input as a surface, with the true one as a wireframe.

    The parameters are those of :func:`embedding_contours`. An embedding is not a density.

    Examples
    --------
    >>> from kedrl_dask import TransitionStore, plots
    >>> from sklearn.base import clone
    >>> columns = {"state": state, "action": action, "episode": episode, "step": step}
    >>> two = TransitionStore.from_arrays("surface.zarr", reward=np.hstack([state, action]), **columns)
    >>> figure = plots.embedding_surface(clone(model).fit(two, policy, progress="none"), [0.0], [1.0])
    >>> figure.axes[0].get_zlabel()
    'embedding'
    """
    mesh = _mesh("embedding_surface", model, state, action, coordinates, law)
    figure = Figure(figsize=(6.4, 5.2))
    axes: Any = figure.add_axes((0.0, 0.03, 0.95, 0.92), projection="3d")  # mplot3d has no types
    x, y = np.meshgrid(mesh.x, mesh.y)
    axes.plot_surface(x, y, mesh.fitted, cmap="cividis", alpha=0.85, linewidth=0, antialiased=True)
    if mesh.true is not None:
        axes.plot_wireframe(
            x, y, mesh.true, rcount=N_LINES, ccount=N_LINES, color=ORANGE, linewidth=0.8, alpha=0.9
        )
        handles = [Patch(color="#7C7B78", label="fitted"), Line2D([], [], color=ORANGE, label="truth")]
        figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False)
    axes.set(xlabel=f"return {coordinates[0] + 1}", ylabel=f"return {coordinates[1] + 1}")
    axes.set_zlabel("embedding")
    axes.set_box_aspect(None, zoom=0.95)  # the vertical label would be cut off
    figure.suptitle(mesh.held and f"Embedding at {mesh.held}", fontsize=11)
    return figure


def _mesh(
    caller: str,
    model: KEDRL,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    coordinates: tuple[int, int],
    law: ReturnLaw | None,
) -> _Mesh:
    state, action = np.atleast_2d(state), np.atleast_2d(action)
    dim, (first, second) = model.grid_.shape[1], coordinates
    if first == second or not all(0 <= coordinate < dim for coordinate in coordinates):
        raise ValueError(f"{caller}: expected two different coordinates below {dim}, got {coordinates}")
    weights = model.weights(state, action)[0]
    shift = model.fitted_.shift(state)
    atoms = model.grid_ if shift is None else model.grid_ + shift[0]
    center = weights @ atoms / weights.sum() if law is None else law.mean[0]
    low, high = atoms.min(axis=0), atoms.max(axis=0)
    x, y = (np.linspace(low[c], high[c], N_POINTS) for c in coordinates)
    at = np.tile(center, (N_POINTS**2, 1))
    at[:, first], at[:, second] = (mesh.ravel() for mesh in np.meshgrid(x, y))
    fitted = model.embed(state, action, at=at).reshape(N_POINTS, N_POINTS)
    true = None if law is None else law.embed(at, model.return_kernel_, N_FREQUENCIES).reshape(fitted.shape)
    held = ", ".join(f"return {c + 1} = {center[c]:.2f}" for c in range(dim) if c not in coordinates)
    return _Mesh(x, y, fitted, true, atoms[:, coordinates], held)
