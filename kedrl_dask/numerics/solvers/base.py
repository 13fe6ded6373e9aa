"""What every solver takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np

from kedrl_dask.numerics.criterion.preconditioner import Coordinates
from kedrl_dask.utils.arrays import Array

__all__ = [
    "Keeper",
    "Kept",
    "Problem",
    "Record",
    "Report",
    "Result",
    "Solution",
    "Solver",
    "certify",
    "iterate",
    "relative_norm",
]


class Result(Enum):
    """How a solver ended, in words."""

    CONVERGED = "the gradient is below the tolerance: this is the minimiser of the criterion"
    BUDGET = "the iteration budget was used up; raise the solver's number of iterations"
    SMALL_BATCH_GRADIENT = "the gradient of the current mini-batch fell below its threshold"
    STAGNATED = "rounding errors stopped progress above the tolerance; raise ridge_b or the tolerance"
    BREAKDOWN = "the criterion was not finite or not convex; check the data's scales and raise ridge_b"

    @property
    def ok(self) -> bool:
        """Whether the solver did what it was asked for."""
        return self in (Result.CONVERGED, Result.SMALL_BATCH_GRADIENT)


class Problem(Protocol):
    """The criterion, as a solver sees it: a function of C, the coefficients for the whitened basis."""

    coordinates: Coordinates
    products_are_exact: bool  # or in single precision, while gradients are in double

    @property
    def whitening(self) -> Array | None:
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

    def value_and_gradient(self, coefficients: Array) -> tuple[float, Array]:
        """Value of eq:global_B_objective and its gradient, in double precision."""

    def product(self, direction: Array) -> Array:
        """Hessian of the quadratic part, times a direction."""

    def precondition(self, residual: Array) -> Array:
        """Approximate solution of Hessian·Y = residual in the coordinates."""

    def batch_gradient(self, rows: Array, coefficients: Array) -> Array:
        """Gradient with the conditioning points replaced by some of them, their weights rescaled to one."""


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
        As the problem has them: C while it is solved, B in a fitted model.
    result : Result
        How it ended; ``result.value`` is a sentence.
    value : float
        The criterion at B.
    certificate : float
        Norm of the preconditioned gradient at B over that at B = 0, recomputed at the end.
    n_iterations, n_products : int
        Iterations, and passes over all conditioning points (products, gradients or values).
    history : tuple of Record
    """

    coefficients: Array = field(repr=False)
    result: Result
    value: float
    certificate: float
    n_iterations: int
    n_products: int
    history: tuple[Record, ...] = field(default=(), repr=False)


Report = Callable[[Record], None]


class Kept(NamedTuple):
    """What is kept of an iteration, so that another process can go on with it.

    Attributes
    ----------
    state : object
        The whole state, of the method's own type; None where it means nothing in these coordinates.
    coefficients : array
        C of the iterate.
    history : tuple of Record
    """

    state: Any
    coefficients: Array
    history: tuple[Record, ...]


class Keeper(Protocol):
    """Keeps what an iteration has reached."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to keep a state."""

    def keep(self, kept: Kept, coordinates: Coordinates) -> None:
        """Keep it."""

    def restore(self, kind: type, coordinates: Coordinates) -> Kept | None:
        """What was kept last, if anything; with a state of this type if it was in these coordinates."""


class Solver(Protocol):
    """Minimises a :class:`Problem`."""

    def solve(
        self,
        problem: Problem,
        start: Array | None = None,
        report: Report | None = None,
        keeper: Keeper | None = None,
    ) -> Solution:
        """Minimise from ``start`` (zero, or the solver's own choice), calling ``report`` as it goes.

        With a keeper it goes on from what that has kept, and gives it what it reaches.
        """


class State(Protocol):
    """The part of an iterative solver's state that the loop needs."""

    @property
    def record(self) -> Record:
        """Where the iteration stands."""


class Stepper(Protocol):
    """An iterative method on immutable states: dataclasses of arrays, numbers, records and generators."""

    @property
    def state_type(self) -> type:
        """Type of the states."""

    def coefficients(self, problem: Problem, state: Any) -> Array:
        """C of a state."""

    def init(self, problem: Problem, start: Array | None) -> Any:
        """Return the first state."""

    def step(self, problem: Problem, state: Any) -> Any:
        """Return the next state."""

    def terminate(self, state: Any) -> Result | None:
        """Return how the iteration ended, or None to go on."""


def iterate(
    stepper: Stepper, problem: Problem, start: Array | None, report: Report | None, keeper: Keeper | None
) -> Any:
    """Run a method to its end; returns the last state, its result and the history.

    What it has reached is kept when it is due, at the end, and when anything stops it on the way.
    """
    kept = None if keeper is None else keeper.restore(stepper.state_type, problem.coordinates)
    if kept is None or kept.state is None:
        state = stepper.init(problem, start if kept is None else kept.coefficients)
        history = [state.record]
    else:
        state, history = kept.state, list(kept.history)

    def keep() -> None:
        if keeper is not None:
            reached = Kept(state, stepper.coefficients(problem, state), tuple(history))
            keeper.keep(reached, problem.coordinates)

    try:
        while (result := stepper.terminate(state)) is None:
            state = stepper.step(problem, state)
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


def certify(problem: Problem, coefficients: Array) -> tuple[float, float]:
    """Value at C, and the norm of its preconditioned gradient over that at C = 0."""
    value, gradient = problem.value_and_gradient(coefficients)
    _, reference = problem.value_and_gradient(np.zeros(problem.shape))
    pull_back = problem.coordinates.pull_back
    return value, relative_norm(pull_back(gradient), float(np.linalg.norm(pull_back(reference))))


def relative_norm(gradient: Array, reference: float) -> float:
    """‖gradient‖/reference, zero where both vanish (without a mass term B = 0 is the minimiser)."""
    norm = float(np.linalg.norm(gradient))
    return norm / reference if reference > 0 else norm
