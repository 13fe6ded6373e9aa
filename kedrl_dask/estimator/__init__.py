"""The estimator: :class:`~kedrl_dask.estimator.kedrl.KEDRL`, its runs and its bootstrap.

``fit`` has the stages of a fit in the order in which they run, ``fitted`` what a fitted model answers.
Imports ``engine``, ``numerics`` and ``utils``.
"""
