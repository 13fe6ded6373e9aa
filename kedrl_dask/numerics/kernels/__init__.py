"""Kernels, their spectral features and their Nyström approximation.

Gives :class:`~kedrl_dask.numerics.kernels.matern.Matern`, frequencies and waves of its spectral measure,
whitened Nyström features, and the constants of the paper's theory. Imports ``utils`` alone.
"""
