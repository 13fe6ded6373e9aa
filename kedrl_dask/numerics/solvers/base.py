"""The problem, the outcome, and the loop that all solvers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from kedrl_dask.numerics.criterion.preconditioner import Coordinates
from kedrl_dask.utils.arrays import Coefficients, Indices, Matrix
from kedrl_dask.utils.checks import check_count, check_number


class Result(Enum):
    """How a solver ended, in words."""

    CONVERGED = "the gradient is below the tolerance: this is the minimiser of the criterion"
    BUDGET = "the iteration budget was used up; raise the solver's number of iterations"
    SMALL_BATCH_GRADIENT = "the gradient of the current mini-batch fell below its threshold"
    STAGNATED = "rounding errors stopped progress above the tolerance; raise ridge_b or the tolerance"
    BREAKDOWN = "the criterion was not finite or not convex; check the data's scales and raise ridge_b"

    @property
    def ok(self) -> bool:
        """Whether the solver did its task.

        Examples
        --------
        >>> Result.CONVERGED.ok, Result.BUDGET.ok
        (True, False)
        """
        return self in (Result.CONVERGED, Result.SMALL_BATCH_GRADIENT)


class Problem(Protocol):
    """The criterion, as a solver sees it: a function of C, the coefficients for the whitened basis."""

    coordinates: Coordinates
    products_are_exact: bool  # otherwise in single precision, while gradients are in double

    @property
    def whitening(self) -> Matrix | None:
        """T, with B = TC; None where the coefficients are B itself."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (rank, m) of the coefficients."""

    @property
    def n_points(self) -> int:
        """Number M of conditioning points."""

    @property
    def is_quadratic(self) -> bool:
        """Whether there is no penalty on negative coefficients."""

    def value_and_gradient(self, coefficients: Coefficients) -> tuple[float, Coefficients]:
        """Value of eq:global_B_objective and its gradient, in double precision."""

    def product(self, direction: Coefficients) -> Coefficients:
        """Hessian of the quadratic part, times a direction."""

    def precondition(self, residual: Coefficients) -> Coefficients:
        """Approximate solution of Hessian·Y = residual in the coordinates."""

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Gradient over some of the conditioning points, their weights rescaled to sum to one."""


class Record(NamedTuple):
    """A line of the solver's history."""

    iteration: int
    value: float
    certificate: float


@dataclass(frozen=True)
class Solution:
    """The outcome of a solver.

    Attributes
    ----------
    coefficients : (L, m) array
        C, for the whitened basis, from a solver; B in a fitted model.
    result : Result
        How the solver ended; ``result.value`` is a sentence.
    value : float
        The criterion at B.
    certificate : float
        Norm of the preconditioned gradient at B over that at B = 0, recomputed at the end.
    n_iterations, n_products : int
        Iterations, and passes over all conditioning points (products, gradients or values).
    history : tuple of Record
    """

    coefficients: Coefficients = field(repr=False)
    result: Result
    value: float
    certificate: float
    n_iterations: int
    n_products: int
    history: tuple[Record, ...] = field(default=(), repr=False)


Report = Callable[[Record], None]


S = TypeVar("S", bound="State")


class State(Protocol):
    """The part of an iterative solver's state that the loop needs."""

    @property
    def record(self) -> Record:
        """Where the iteration stands."""


class Kept(NamedTuple, Generic[S]):
    """What is kept of an iteration, so that another process can resume it.

    The state, of the method's own type, is None if it means nothing in these coordinates.
    """

    state: S | None
    coefficients: Coefficients
    history: tuple[Record, ...]


class Keeper(Protocol):
    """Keeps the progress of an iteration."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to keep a state."""

    def keep(self, kept: Kept[Any], coordinates: Coordinates) -> None:
        """Keep it."""

    def restore(self, kind: type[S], coordinates: Coordinates) -> Kept[S] | None:
        """The last progress kept, if any; with its state if that has this type and these coordinates."""


class Solver(Protocol):
    """Minimises a :class:`Problem`."""

    def solve(
        self, problem: Problem, start: Coefficients | None = None, report: Report | None = None,
        keeper: Keeper | None = None,
    ) -> Solution:  # fmt: skip
        """Minimise the criterion from C = ``start``, by default zero or the solver's own choice.

        ``report`` is called with each new :class:`Record`. The ``keeper`` restores the progress kept before,
        and keeps it from then on.
        """


class IterativeSolver(ABC, Generic[S]):
    """A method on immutable states: dataclasses of arrays, numbers, records and generators."""

    state_type: ClassVar[type]

    @abstractmethod
    def init(self, problem: Problem, start: Coefficients | None) -> S:
        """Return the first state."""

    @abstractmethod
    def step(self, problem: Problem, state: S) -> S:
        """Return the next state."""

    @abstractmethod
    def terminate(self, state: S) -> Result | None:
        """Return how the iteration ended, or None to continue."""

    @abstractmethod
    def coefficients(self, problem: Problem, state: S) -> Coefficients:
        """C of a state."""

    @abstractmethod
    def finish(self, problem: Problem, state: S, result: Result) -> tuple[float, float, int, int]:
        """Value, certificate, iterations and products of the solution that the last state stands for."""

    def iterate(
        self, problem: Problem, start: Coefficients | None = None, report: Report | None = None,
        keeper: Keeper | None = None,
    ) -> tuple[S, Result, tuple[Record, ...]]:  # fmt: skip
        """Run to the end; return the last state, its result and the history.

        The progress is kept when that is due, at the end, and when anything interrupts the iteration.
        """
        kept: Kept[S] | None
        kept = None if keeper is None else keeper.restore(self.state_type, problem.coordinates)
        if kept is None or kept.state is None:
            state = self.init(problem, start if kept is None else kept.coefficients)
            history = [state.record]
        else:
            state, history = kept.state, list(kept.history)

        def keep() -> None:
            if keeper is not None:
                reached = Kept(state, self.coefficients(problem, state), tuple(history))
                keeper.keep(reached, problem.coordinates)

        try:
            while (result := self.terminate(state)) is None:
                state = self.step(problem, state)
                if state.record is not history[-1]:
                    history.append(state.record)
                    if report is not None:
                        report(state.record)
                if keeper is not None and keeper.is_due:
                    keep()
        except BaseException:
            keep()
            raise
        keep()
        return state, result, tuple(history)

    def solve(
        self, problem: Problem, start: Coefficients | None = None, report: Report | None = None,
        keeper: Keeper | None = None,
    ) -> Solution:  # fmt: skip
        """Minimise the criterion; see :meth:`Solver.solve`."""
        state, result, history = self.iterate(problem, start, report, keeper)
        found = self.coefficients(problem, state)
        return Solution(found, result, *self.finish(problem, state, result), history)


class Iterate(State, Protocol):
    """A state whose iterate Y is in preconditioned coordinates."""

    @property
    def y(self) -> Coefficients:
        """Y."""


Y = TypeVar("Y", bound=Iterate)


@dataclass(frozen=True)
class GradientSolver(IterativeSolver[Y]):
    """A method in preconditioned coordinates that stops by its certificate.

    Parameters
    ----------
    tolerance : float
        Norm of the preconditioned gradient, over that at B = 0, at which the solver stops.
    max_iterations : int
        Bound on the iterations.
    """

    tolerance: float = 1e-6
    max_iterations: int = 1_000

    def __post_init__(self) -> None:
        """Check that the iteration ends."""
        name = type(self).__name__
        check_number(f"{name}: tolerance", self.tolerance, "a number from 0 to 1", high=1.0)
        check_count(f"{name}: max_iterations", self.max_iterations)

    def coefficients(self, problem: Problem, state: Y) -> Coefficients:
        """C of a state."""
        return problem.coordinates.to_coefficients(state.y)


def certify(problem: Problem, coefficients: Coefficients) -> tuple[float, float]:
    """Value at C, and the norm of its preconditioned gradient over that at C = 0."""
    value, gradient = problem.value_and_gradient(coefficients)
    _, reference = problem.value_and_gradient(np.zeros(problem.shape))
    pull_back = problem.coordinates.pull_back
    return value, relative_norm(pull_back(gradient), float(np.linalg.norm(pull_back(reference))))


def relative_norm(gradient: Coefficients, reference: float) -> float:
    """‖gradient‖/reference, zero where both vanish (without a mass term B = 0 is the minimiser)."""
    norm = float(np.linalg.norm(gradient))
    return norm / reference if reference > 0 else norm
