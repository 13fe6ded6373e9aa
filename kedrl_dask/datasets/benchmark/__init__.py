"""Systems unlike the paper's, with policies, horizon and Monte Carlo truth.

Imports ``datasets`` and what it may import. Gives :data:`CASES`, and :class:`Case` for one more of your own.
"""

from kedrl_dask.datasets.benchmark.cases import CASES, Case

__all__ = ["CASES", "Case"]
