"""L-BFGS, for the convex, piecewise quadratic criterion with a penalty on negative coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, minimize

from kedrl_dask.checks import check_count, check_number
from kedrl_dask.solvers.solution import Problem, Record, Report, Result, Solution, relative_norm

__all__ = ["LBFGS"]

Array = npt.NDArray[Any]


@dataclass
class _Evaluation:
    """The criterion in preconditioned coordinates, remembering what it saw."""

    problem: Problem
    count: int = 0
    latest: tuple[bytes, float, Array] = field(default=(b"", 0.0, np.empty(0)), repr=False)

    def __call__(self, flat: Array) -> tuple[float, Array]:
        coordinates = self.problem.coordinates
        value, gradient = self.problem.value_and_gradient(
            coordinates.to_coefficients(flat.reshape(coordinates.shape))
        )
        self.count += 1
        pulled = coordinates.pull_back(gradient).ravel()
        self.latest = (flat.tobytes(), value, pulled)
        return value, pulled

    def at(self, flat: Array) -> tuple[float, Array]:
        """Value and gradient at a point, without work if it was the last one seen."""
        return self.latest[1:] if self.latest[0] == flat.tobytes() else self(flat)


@dataclass(frozen=True)
class LBFGS:
    """SciPy's L-BFGS in the coordinates of :class:`~kedrl_dask.precondition.Coordinates`.

    Parameters
    ----------
    tolerance : float
        Norm of the preconditioned gradient, over that at B = 0, at which the solver stops.
    max_iterations : int
    memory : int
        Pairs kept for the approximate Hessian.
    """

    tolerance: float = 1e-6
    max_iterations: int = 1_000
    memory: int = 20

    def __post_init__(self) -> None:
        """Refuse what never ends."""
        check_number("LBFGS: tolerance", self.tolerance, "a number from 0 to 1", high=1.0)
        check_count("LBFGS: max_iterations", self.max_iterations)
        check_count("LBFGS: memory", self.memory)

    def solve(self, problem: Problem, start: Array | None = None, report: Report | None = None) -> Solution:
        """Minimise the criterion."""
        evaluate = _Evaluation(problem)
        shape = problem.coordinates.shape
        value, gradient = evaluate(np.zeros(shape).ravel())
        reference = float(np.linalg.norm(gradient))
        history = [Record(0, value, relative_norm(gradient, reference))]
        first = np.zeros(shape)
        if start is not None and reference > 0:
            first = problem.coordinates.from_coefficients(start)

        def callback(intermediate_result: OptimizeResult) -> None:
            value, gradient = evaluate.at(intermediate_result.x)
            history.append(Record(len(history), value, relative_norm(gradient, reference)))
            if report is not None:
                report(history[-1])
            if history[-1].certificate <= self.tolerance:
                raise StopIteration

        final = first.ravel()
        if reference > 0:
            # Its own tests are switched off: the callback stops it by the certificate.
            options: Any = {"maxcor": self.memory, "maxiter": self.max_iterations, "ftol": 0.0, "gtol": 0.0}
            options["maxfun"] = 20 * self.max_iterations
            final = minimize(
                evaluate.__call__, final, jac=True, method="L-BFGS-B", callback=callback, options=options
            ).x
        value, gradient = evaluate.at(final)
        certificate = relative_norm(gradient, reference)
        coefficients = problem.coordinates.to_coefficients(final.reshape(shape))
        result = self._result(value, certificate, history)
        return Solution(
            coefficients, result, value, certificate, len(history) - 1, evaluate.count, tuple(history)
        )

    def _result(self, value: float, certificate: float, history: list[Record]) -> Result:
        if not (np.isfinite(value) and np.isfinite(certificate)):
            return Result.BREAKDOWN
        if certificate <= self.tolerance:
            return Result.CONVERGED
        return Result.BUDGET if len(history) > self.max_iterations else Result.STAGNATED
