"""L-BFGS, for the convex, piecewise quadratic criterion with a penalty on negative coefficients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kedrl_dask.numerics.solvers.base import GradientSolver, Problem, Record, Result, relative_norm
from kedrl_dask.utils.arrays import Coefficients, Matrix, Vector
from kedrl_dask.utils.checks import check_count

#: A step ends where the slope is at most this share of the initial one; most evaluations for that.
FLAT_ENOUGH, MOST_TRIALS = 0.9, 25
#: Growth of the value, relative to it, that is rounding.
ROUNDING = 1e-14
#: Steps without a smaller value or gradient after which only rounding remains.
MOST_IDLE = 20


@dataclass(frozen=True)
class _State:
    y: Coefficients
    value: float
    gradient: Coefficients
    steps: Matrix  # the latest changes of y, one in each row, and of the gradient
    changes: Matrix
    reference: float  # norm of the gradient at zero
    iteration: int
    n_evaluations: int
    least_value: float
    least_gradient: float
    n_idle: int  # steps since either was reached
    record: Record


@dataclass(frozen=True)
class LBFGS(GradientSolver[_State]):
    """Limited-memory BFGS in the coordinates of :mod:`kedrl_dask.numerics.criterion.preconditioner`.

    Parameters
    ----------
    tolerance, max_iterations
        As for :class:`~kedrl_dask.numerics.solvers.base.GradientSolver`.
    memory : int
        Pairs kept for the approximate Hessian.

    Notes
    -----
    The criterion is convex, so that its slope along a direction rises: the line search looks for a flat
    place by the slope alone, which rounding spoils much later than the value.

    Examples
    --------
    >>> LBFGS(memory=5)
    LBFGS(tolerance=1e-06, max_iterations=1000, memory=5)
    """

    memory: int = 20

    state_type = _State

    def __post_init__(self) -> None:
        """Check that the iteration ends."""
        super().__post_init__()
        check_count("LBFGS: memory", self.memory)

    def init(self, problem: Problem, start: Coefficients | None) -> _State:
        """Gradient at zero, and at the start if there is one."""
        y: Coefficients = np.zeros(problem.coordinates.shape)
        value, gradient = _evaluate(problem, y)
        reference, n_evaluations = float(np.linalg.norm(gradient)), 1
        if start is not None and reference > 0:
            y = problem.coordinates.from_coefficients(start)
            value, gradient = _evaluate(problem, y)
            n_evaluations = 2
        none, norm = np.empty((0, y.size)), float(np.linalg.norm(gradient))
        record = Record(0, value, relative_norm(gradient, reference))
        return _State(y, value, gradient, none, none, reference, 0, n_evaluations, value, norm, 0, record)

    def step(self, problem: Problem, state: _State) -> _State:
        """One step along the quasi-Newton direction; none, if rounding hides the way down."""
        direction = -_inverse_hessian(state.gradient.ravel(), state.steps, state.changes)
        if not np.vdot(direction, state.gradient.ravel()) < 0:  # rounding in the pairs
            none = np.empty((0, state.y.size))
            state, direction = replace(state, steps=none, changes=none), -state.gradient.ravel()
        found, n_trials = _search(problem, state, direction.reshape(state.y.shape))
        state = replace(state, n_evaluations=state.n_evaluations + n_trials)
        if found is None:
            return replace(state, n_idle=MOST_IDLE)
        y, value, gradient = found
        norm, iteration = float(np.linalg.norm(gradient)), state.iteration + 1
        is_idle = value >= state.least_value and norm >= state.least_gradient
        return replace(
            state, y=y, value=value, gradient=gradient, iteration=iteration,
            steps=self._with(state.steps, y - state.y),
            changes=self._with(state.changes, gradient - state.gradient),
            least_value=min(value, state.least_value), least_gradient=min(norm, state.least_gradient),
            n_idle=state.n_idle + 1 if is_idle else 0,
            record=Record(iteration, value, relative_norm(gradient, state.reference)),
        )  # fmt: skip

    def _with(self, rows: Matrix, new: Coefficients) -> Matrix:
        return np.vstack([rows, new.ravel()])[-self.memory :]

    def terminate(self, state: _State) -> Result | None:
        """Converged by the certificate."""
        if not np.isfinite([state.record.value, state.record.certificate]).all():
            return Result.BREAKDOWN
        if state.record.certificate <= self.tolerance:
            return Result.CONVERGED
        if state.n_idle >= MOST_IDLE:
            return Result.STAGNATED
        return Result.BUDGET if state.iteration >= self.max_iterations else None

    def finish(self, problem: Problem, state: _State, result: Result) -> tuple[float, float, int, int]:
        """Read the numbers off the last state."""
        return state.value, state.record.certificate, state.iteration, state.n_evaluations


def _evaluate(problem: Problem, y: Coefficients) -> tuple[float, Coefficients]:
    """Value and gradient in the coordinates."""
    value, gradient = problem.value_and_gradient(problem.coordinates.to_coefficients(y))
    return value, problem.coordinates.pull_back(gradient)


def _inverse_hessian(gradient: Vector, steps: Matrix, changes: Matrix) -> Vector:
    """Approximate inverse Hessian of the pairs, times the gradient (Nocedal and Wright, algorithm 7.4)."""
    image, shares = gradient.copy(), []
    curvatures = np.einsum("ij,ij->i", steps, changes)
    for step, change, curvature in zip(steps[::-1], changes[::-1], curvatures[::-1], strict=True):
        shares.append(np.vdot(step, image) / curvature)
        image -= shares[-1] * change
    if len(steps):
        image *= curvatures[-1] / np.vdot(changes[-1], changes[-1])
    for step, change, curvature in zip(steps, changes, curvatures, strict=True):
        image += (shares.pop() - np.vdot(change, image) / curvature) * step
    return image


def _search(
    problem: Problem, state: _State, direction: Coefficients
) -> tuple[tuple[Coefficients, float, Coefficients] | None, int]:
    """Go along a direction until the slope is flat; returns y, value and gradient there, and the trials."""
    slope0 = float(np.vdot(direction, state.gradient))
    bound = state.value + ROUNDING * abs(state.value)
    low, low_slope, high, high_slope = 0.0, slope0, np.inf, np.inf
    length = 1.0
    for trial in range(1, MOST_TRIALS + 1):
        y = state.y + length * direction
        value, gradient = _evaluate(problem, y)
        slope = float(np.vdot(direction, gradient))
        if not np.isfinite([value, slope]).all():
            return (y, value, gradient), trial
        if abs(slope) <= -FLAT_ENOUGH * slope0 and value <= bound:
            is_new = slope > slope0 and not np.array_equal(y, state.y)  # else the pair has no curvature
            return ((y, value, gradient) if is_new else None), trial
        if slope < 0 and value <= bound:
            low, low_slope = length, slope
        else:
            high, high_slope = length, max(slope, 0.0)
        length = _next_length(low, low_slope, high, high_slope)
    return None, MOST_TRIALS


def _next_length(low: float, low_slope: float, high: float, high_slope: float) -> float:
    """Further out; or between, where a line through the slopes is zero, but not at the ends."""
    if np.isinf(high):
        return 2 * low if low else 1.0
    share = low_slope / (low_slope - high_slope) if high_slope > low_slope else 0.5
    return low + min(max(share, 0.1), 0.9) * (high - low)
