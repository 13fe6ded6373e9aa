"""The estimator: :class:`~kedrl_dask.estimator.kedrl.KEDRL`, its runs and its bootstrap.

``constraints`` lets an estimator declare its parameters once; ``fit`` has the stages of a fit in the order in
which they run, ``fitted`` the fitted model and its answers. Imports ``engine``, ``numerics`` and ``utils``.
"""
