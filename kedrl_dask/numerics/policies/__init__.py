"""Policies: how actions are drawn given a state, and with what density.

The parametric families are location-scale; ``Regressor`` has any regressor's prediction for a location, and
``Function`` takes any sampler. Imports ``kernels`` and ``utils``.
"""

from kedrl_dask.numerics.policies.families import (
    Function,
    Gaussian,
    LocationScale,
    Logistic,
    Policy,
    Regressor,
    Uniform,
    from_dict,
)

__all__ = ["Function", "Gaussian", "LocationScale", "Logistic", "Policy", "Regressor", "Uniform", "from_dict"]
