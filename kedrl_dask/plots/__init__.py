"""Figures of fits, laws and comparisons. Each function returns a Matplotlib figure, without global state.

Imports ``estimator`` and ``comparison``. The examples continue those of :class:`kedrl_dask.KEDRL` (``store``,
``policy``, ``model``, ``law`` and the columns) and :func:`kedrl_dask.compare` (``comparison``).
"""

from kedrl_dask.plots.comparison import distribution_functions, marginals, policy_differences
from kedrl_dask.plots.density_ratio import density_ratio
from kedrl_dask.plots.embeddings import embedding_contours, embedding_surface
from kedrl_dask.plots.fit import coefficient_mass, convergence, embedding_curves, grid_coverage
from kedrl_dask.plots.kernels import matern_kernels
from kedrl_dask.plots.laws import recovered_marginals
from kedrl_dask.plots.relevance import relevance
from kedrl_dask.plots.tuning import tuning

__all__ = [
    "coefficient_mass", "convergence", "density_ratio", "distribution_functions", "embedding_contours",
    "embedding_curves", "embedding_surface", "grid_coverage", "marginals", "matern_kernels",
    "policy_differences", "recovered_marginals", "relevance", "tuning",
]  # fmt: skip
