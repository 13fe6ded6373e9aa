"""Offline evaluation of the joint law of multivariate discounted returns (KE-DRL) on Dask and Zarr.

Names are imported when they are first used: ``import kedrl_dask`` itself takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kedrl_dask._version import __version__

if TYPE_CHECKING:
    from kedrl_dask import functionals, plots, policies, results, solvers
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
    "plots",
    "policies",
    "results",
    "solvers",
]

#: Modules of the names that are not modules themselves.
_MODULES = {
    "KEDRL": "model",
    "ULSIF": "ratio",
    "ConditionalEmbedding": "reference",
    "Matern": "kernels",
    "Refused": "gate",
    "TransitionStore": "transitions",
    "compare": "comparison",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    value = getattr(module, name) if name in _MODULES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
