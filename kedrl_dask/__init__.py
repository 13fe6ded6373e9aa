"""Offline evaluation of the joint law of multivariate discounted returns (KE-DRL) on Dask and Zarr.

Names are imported when they are first used: ``import kedrl_dask`` itself takes no time.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kedrl_dask._version import __version__

if TYPE_CHECKING:
    from kedrl_dask import plots
    from kedrl_dask.comparison.compare import compare
    from kedrl_dask.engine.data.transition_store import TransitionStore
    from kedrl_dask.estimator.conditional_embedding import ConditionalEmbedding
    from kedrl_dask.estimator.fitted import results
    from kedrl_dask.estimator.fitted.findings import Refused
    from kedrl_dask.estimator.kedrl import KEDRL
    from kedrl_dask.numerics import policies, solvers
    from kedrl_dask.numerics.kernels.matern import Matern
    from kedrl_dask.numerics.laws import functionals
    from kedrl_dask.numerics.regression.density_ratio import ULSIF

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

#: Where each public name lives: a module, or a name in one.
_PLACES = {
    "KEDRL": "estimator.kedrl:KEDRL",
    "ULSIF": "numerics.regression.density_ratio:ULSIF",
    "ConditionalEmbedding": "estimator.conditional_embedding:ConditionalEmbedding",
    "Matern": "numerics.kernels.matern:Matern",
    "Refused": "estimator.fitted.findings:Refused",
    "TransitionStore": "engine.data.transition_store:TransitionStore",
    "compare": "comparison.compare:compare",
    "functionals": "numerics.laws.functionals",
    "plots": "plots",
    "policies": "numerics.policies",
    "results": "estimator.fitted.results",
    "solvers": "numerics.solvers",
}
#: Modules of version one that its documentation named, and where they are now.
_MOVED = {
    "functionals": "numerics.laws.functionals",
    "gate": "estimator.fitted.findings",
    "policies": "numerics.policies",
    "reference": "estimator.conditional_embedding",
    "results": "estimator.fitted.results",
    "solvers": "numerics.solvers",
    "theory": "numerics.kernels.theory",
}


class _MovedModules(MetaPathFinder, Loader):
    """Import a module that has moved by its earlier name, as the same module: ``kedrl_dask.solvers``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != __name__ or name not in _MOVED:
            return None
        return ModuleSpec(fullname, self, loader_state=name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{__name__}.{_MOVED[spec.loader_state]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given the module the specification of its earlier name.
        earlier = module.__spec__
        if earlier is not None:
            module.__spec__ = earlier.loader_state


sys.meta_path.append(_MovedModules())


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = import_module(f"{__name__}.{module}")
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
