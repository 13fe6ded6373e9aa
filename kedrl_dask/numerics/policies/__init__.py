"""Policies: how actions are drawn given a state, and with what density.

``base`` holds the interface and the base class of location-scale policies, ``families`` the parametric ones,
``function`` those given by code: :class:`Regressor` takes its location from any regressor, and
:class:`Function` takes any sampler. Imports ``kernels`` and ``utils``.
"""

from kedrl_dask.numerics.policies.base import Policy, PolicyError
from kedrl_dask.numerics.policies.families import Gaussian, LocationScale, Logistic, Uniform, from_dict
from kedrl_dask.numerics.policies.function import Function, Regressor

__all__ = [
    "Function",
    "Gaussian",
    "LocationScale",
    "Logistic",
    "Policy",
    "PolicyError",
    "Regressor",
    "Uniform",
    "from_dict",
]
