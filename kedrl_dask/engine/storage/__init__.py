"""Declared arrays on disk, and all that makes them trustworthy. Nothing else knows Zarr.

Gives :class:`~kedrl_dask.engine.storage.array_store.ArrayStore`, whose arrays are declared in ``schema``;
manifests with checksums; locks; the cache of finished results; a solver's checkpoints; and the checks of what
somebody else may have written. Imports ``numerics`` (for the states of solvers) and ``utils``.
"""
