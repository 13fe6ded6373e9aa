"""Figures of a fit and of kernels. Each function returns a Matplotlib figure and leaves no global state."""

from kedrl_dask.plots.fit import (
    coefficient_mass,
    convergence,
    embedding_curves,
    embedding_surface,
    grid_coverage,
)
from kedrl_dask.plots.kernels import matern_kernels
from kedrl_dask.plots.laws import recovered_marginals
from kedrl_dask.plots.tuned import tuning

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
