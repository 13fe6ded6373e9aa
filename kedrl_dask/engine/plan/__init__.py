"""The projected cost of a fit before it starts: tasks, flop, time, memory and disk.

Provides :class:`~kedrl_dask.engine.plan.plan.Plan` and the partition of the work. Only ``calibration``
measures anything, through an executor. Imports ``data``, ``execute`` and ``numerics``.
"""
