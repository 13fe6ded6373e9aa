"""Offline evaluation of the joint law of multivariate discounted returns (KE-DRL) on Dask and Zarr."""

from kedrl_dask import functionals, policies, results, solvers
from kedrl_dask._version import __version__
from kedrl_dask.comparison import compare
from kedrl_dask.gate import Refused
from kedrl_dask.kernels import Matern
from kedrl_dask.model import KEDRL
from kedrl_dask.ratio import ULSIF
from kedrl_dask.reference import ConditionalEmbedding
from kedrl_dask.transitions import TransitionStore

__all__ = [
    "KEDRL",
    "ULSIF",
    "ConditionalEmbedding",
    "Matern",
    "Refused",
    "TransitionStore",
    "__version__",
    "compare",
    "functionals",
    "policies",
    "results",
    "solvers",
]
