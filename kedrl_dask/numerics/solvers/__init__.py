"""Minimisers of the Bellman criterion, one module each, behind one interface.

Imports ``criterion`` and ``utils``.
"""

from kedrl_dask.numerics.solvers.adamw import AdamW
from kedrl_dask.numerics.solvers.base import Problem, Record, Result, Solution, Solver
from kedrl_dask.numerics.solvers.lbfgs import LBFGS
from kedrl_dask.numerics.solvers.pcg import PCG

__all__ = ["LBFGS", "PCG", "AdamW", "Problem", "Record", "Result", "Solution", "Solver", "by_name"]

_BY_NAME = {"pcg": PCG, "lbfgs": LBFGS, "adamw": AdamW}


def by_name(solver: "str | Solver") -> Solver:
    """Return the solver of a name with its default settings; a solver object passes through.

    Examples
    --------
    >>> by_name("pcg")
    PCG(tolerance=1e-08, max_iterations=1000)
    """
    if isinstance(solver, str):
        if solver not in _BY_NAME:
            raise ValueError(
                f"unknown solver {solver!r}; use one of {', '.join(_BY_NAME)} or a solver object"
            )
        return _BY_NAME[solver]()
    return solver
