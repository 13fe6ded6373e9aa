"""Comparison of policies on the same data: laws, differences with intervals, and drift between evaluations.

Gives :func:`~kedrl_dask.comparison.compare.compare`. Imports ``estimator`` and what lies below.
"""
