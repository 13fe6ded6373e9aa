"""Running chunk functions: in threads of this process, or on a Dask cluster.

A chunk function takes an item (a row range, a path) and shared values and returns arrays. An executor
moves it. Results always come back in the order of the items, so that sums do not depend on which worker
finished first. Imports ``utils`` alone.
"""
