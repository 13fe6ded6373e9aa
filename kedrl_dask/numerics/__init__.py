"""The method on NumPy arrays: arrays in, arrays out.

One folder for each part of the paper: kernels, policies, the design of a fit, the regression on inputs,
the Bellman criterion, its minimisers, and laws recovered from embeddings. Imports ``utils`` and
nothing above: no Dask, no Zarr, no files.
"""
