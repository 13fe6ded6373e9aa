"""Preconditioned conjugate gradients: the exact minimiser when negative coefficients are not penalised."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kedrl_dask.numerics.solvers.base import GradientSolver, Problem, Record, Result, relative_norm
from kedrl_dask.utils.arrays import Coefficients

#: How far the recurrence is followed when products are in single precision.
REPLACE_AT = 1e-3


@dataclass(frozen=True)
class _State:
    y: Coefficients
    residual: Coefficients  # minus the gradient in preconditioned coordinates
    descent: float  # residual times the preconditioned residual
    direction: Coefficients
    reference: float  # norm of the gradient at zero
    constant: float  # value at zero
    right_hand_side: Coefficients
    iteration: int
    n_products: int
    is_exact: bool  # whether the residual was computed from y, not by recurrence
    exact: float  # certificate when that was last so
    n_restarts: int
    is_convex: bool  # no direction of negative curvature was met
    record: Record


@dataclass(frozen=True)
class PCG(GradientSolver[_State]):
    """Flexible conjugate gradients in the coordinates of :mod:`kedrl_dask.numerics.criterion.preconditioner`.

    Each iteration costs one product with the Hessian. The parameters are those of
    :class:`~kedrl_dask.numerics.solvers.base.GradientSolver`, with a tolerance of 1e-8 by default.

    Notes
    -----
    Where products are in single precision, the gradient is computed anew, in double precision, whenever
    the recurrence has shortened it by ``REPLACE_AT``; the search goes on in its direction. When the
    recurrence says that the tolerance is met the gradient is computed anew too; if the two disagree,
    the method restarts from the exact one. A fourth restart is stagnation.

    Examples
    --------
    >>> PCG(tolerance=1e-10)
    PCG(tolerance=1e-10, max_iterations=1000)
    """

    tolerance: float = 1e-8

    state_type = _State

    def init(self, problem: Problem, start: Coefficients | None) -> _State:
        """Gradient at zero, and at the start if there is one; refuses a criterion that is not quadratic."""
        if not problem.is_quadratic:
            raise ValueError("solver 'pcg' needs negative_penalty=0; use solver='lbfgs'")
        constant, gradient = problem.value_and_gradient(np.zeros(problem.shape))
        right_hand_side = -problem.coordinates.pull_back(gradient)
        reference = float(np.linalg.norm(right_hand_side))
        y = np.zeros_like(right_hand_side)
        if start is not None:
            y = problem.coordinates.from_coefficients(start)
        direction = problem.precondition(right_hand_side)
        descent = float(np.vdot(right_hand_side, direction))
        state = _State(
            y, right_hand_side, descent, direction, reference, constant, right_hand_side,
            iteration=0, n_products=1, is_exact=True, exact=1.0, n_restarts=0, is_convex=True,
            record=Record(0, constant, 1.0 if reference > 0 else 0.0),
        )  # fmt: skip
        return state if start is None else replace(self._restart(problem, state), n_restarts=0)

    def _renew(self, problem: Problem, state: _State) -> _State:
        """Compute the gradient anew, in double precision."""
        _, gradient = problem.value_and_gradient(problem.coordinates.to_coefficients(state.y))
        residual = -problem.coordinates.pull_back(gradient)
        record = self._record(state, state.y, residual, state.iteration)
        return replace(
            state, residual=residual, n_products=state.n_products + 1, is_exact=True,
            exact=record.certificate, record=record,
        )  # fmt: skip

    def _restart(self, problem: Problem, state: _State) -> _State:
        state = self._renew(problem, state)
        direction = problem.precondition(state.residual)
        descent = float(np.vdot(state.residual, direction))
        return replace(state, descent=descent, direction=direction, n_restarts=state.n_restarts + 1)

    def _record(self, state: _State, y: Coefficients, residual: Coefficients, iteration: int) -> Record:
        # For J = J₀ − bᵀy + ½yᵀHy with r = b − Hy the value is J₀ − ½yᵀ(b + r).
        value = state.constant - 0.5 * float(np.vdot(y, state.right_hand_side + residual))
        return Record(iteration, value, relative_norm(residual, state.reference))

    def step(self, problem: Problem, state: _State) -> _State:
        """One product; or the exact gradient, when the recurrence has reached the tolerance."""
        if state.record.certificate <= self.tolerance:
            return self._restart(problem, state)
        to_coefficients, pull_back = problem.coordinates.to_coefficients, problem.coordinates.pull_back
        image = pull_back(problem.product(to_coefficients(state.direction)))
        curvature = float(np.vdot(state.direction, image))
        if not curvature > 0:
            return replace(state, n_products=state.n_products + 1, is_convex=False)
        length = float(np.vdot(state.residual, state.direction)) / curvature
        y = state.y + length * state.direction
        residual = state.residual - length * image
        following = replace(
            state, y=y, residual=residual, iteration=state.iteration + 1, n_products=state.n_products + 1,
            is_exact=False, record=self._record(state, y, residual, state.iteration + 1),
        )  # fmt: skip
        shortened = following.record.certificate <= REPLACE_AT * state.exact
        if shortened and not problem.products_are_exact:
            following = self._renew(problem, following)
        # The form for preconditioners that are not quite linear (Polak and Ribière).
        descent = problem.precondition(following.residual)
        ratio = float(np.vdot(descent, following.residual - state.residual)) / state.descent
        direction = descent + ratio * state.direction
        return replace(following, descent=float(np.vdot(descent, following.residual)), direction=direction)

    def terminate(self, state: _State) -> Result | None:
        """Converged only on an exact gradient."""
        if not (state.is_convex and np.isfinite([state.record.value, state.record.certificate]).all()):
            return Result.BREAKDOWN
        if state.is_exact and state.record.certificate <= self.tolerance:
            return Result.CONVERGED
        if state.n_restarts > 3:
            return Result.STAGNATED
        is_met = state.record.certificate <= self.tolerance  # though not yet by an exact gradient
        return Result.BUDGET if state.iteration >= self.max_iterations and not is_met else None

    def finish(self, problem: Problem, state: _State, result: Result) -> tuple[float, float, int, int]:
        """Compute the certificate anew if the budget ended on a recurrence."""
        if not state.is_exact and result is Result.BUDGET:
            state = self._restart(problem, state)
        return state.record.value, state.record.certificate, state.iteration, state.n_products
