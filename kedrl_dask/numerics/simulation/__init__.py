"""Simulated returns: a model of single transitions, and rollouts through it under the target policy.

Imports ``numerics.kernels``, ``numerics.policies`` and ``numerics.regression``. Gives
:class:`~kedrl_dask.numerics.simulation.transition_model.TransitionModel`.
"""
