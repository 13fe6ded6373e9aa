"""Executors, which run chunk functions in threads of this process or on a Dask cluster.

A chunk function takes an item, such as a range of rows or a path, and shared values, and returns arrays.
Results are always in the order of the items, so that sums do not depend on which worker finishes first.
Imports ``storage`` and ``utils``.
"""
