"""Systems unlike the paper's, with policies, horizon and Monte Carlo truth.

Imports ``datasets`` and what it may import. :func:`case` gives a case by its name, one of :data:`NAMES`:
those of :data:`CASES`, which are given by functions, and those of :data:`TASKS`, environments of
MO-Gymnasium, which need the extra ``rl``. :class:`Case` is for one more of your own.
"""

from kedrl_dask.datasets.benchmark.case import Case
from kedrl_dask.datasets.benchmark.cases import CASES
from kedrl_dask.datasets.benchmark.catalogue import NAMES, case, check, installed
from kedrl_dask.datasets.benchmark.tasks import TASKS

__all__ = ["CASES", "NAMES", "TASKS", "Case", "case", "check", "installed"]
