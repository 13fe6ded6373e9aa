"""The paper's optimiser (app:optimizer_details), kept to reproduce its results."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from kedrl_dask.numerics.solvers.base import IterativeSolver, Problem, Record, Result, certify
from kedrl_dask.utils.arrays import Coefficients, Indices
from kedrl_dask.utils.checks import MOST_SEED, check_count, check_number


@dataclass(frozen=True)
class _State:
    coefficients: Coefficients
    mean: Coefficients
    square: Coefficients
    rng: np.random.Generator  # as it was left; a step that needs it advances a copy
    order: Indices  # the rest of this epoch's permutation of the points
    learning_rate: float
    iteration: int
    batch_gradient_norm: float
    best: Coefficients
    best_value: float
    plateau_value: float
    n_plateau: int
    n_evaluations: int
    record: Record


@dataclass(frozen=True)
class AdamW(IterativeSolver[_State]):
    """Mini-batch AdamW that returns the iterate with the smallest full objective.

    Parameters
    ----------
    n_iterations, batch_size, learning_rate, weight_decay
        As tabulated in the paper (tab:sim_pair_params). The weight decay is decoupled, and separate
        from λ_B.
    evaluate_every : int
        Steps between evaluations of the full objective. There the best iterate is kept, the
        learning rate is halved after ``patience`` evaluations without a relative gain of
        ``plateau_gain``, and the method stops if the gradient of the current batch is below
        ``gradient_threshold``.
    gradient_clip : float
        Largest norm of a batch gradient.
    initial_scale : float
        Standard deviation of the random start.
    random_state : int

    Examples
    --------
    >>> AdamW(n_iterations=1_000).learning_rate
    0.0003
    """

    n_iterations: int = 5_500
    batch_size: int = 150
    learning_rate: float = 3e-4
    weight_decay: float = 5e-5
    evaluate_every: int = 50
    patience: int = 20
    plateau_gain: float = 1e-4
    gradient_threshold: float = 1e-8
    gradient_clip: float = 100.0
    initial_scale: float = 1e-3
    random_state: int = 0

    state_type = _State

    def __post_init__(self) -> None:
        """Check that steps can be made with these numbers."""
        for name in ("n_iterations", "batch_size", "evaluate_every", "patience"):
            check_count(f"AdamW: {name}", getattr(self, name))
        for name in ("learning_rate", "gradient_clip"):
            check_number(f"AdamW: {name}", getattr(self, name), "a positive number", open_low=True)
        for name in ("weight_decay", "plateau_gain", "gradient_threshold", "initial_scale"):
            check_number(f"AdamW: {name}", getattr(self, name), "a number ≥ 0")
        check_count("AdamW: random_state", self.random_state, least=0, most=MOST_SEED)

    def init(self, problem: Problem, start: Coefficients | None) -> _State:
        """Random coefficients, unless a start is given."""
        rng = np.random.default_rng(self.random_state)
        first: Coefficients
        if start is None:
            first = self.initial_scale * rng.standard_normal(problem.shape)
        else:
            first = start if problem.whitening is None else problem.whitening @ start
        value, _ = problem.value_and_gradient(_whitened(problem, first))
        zeros = np.zeros(problem.shape)
        return _State(
            first, zeros, zeros, rng, np.empty(0, dtype=np.intp), self.learning_rate, 0, np.inf,
            best=first, best_value=value, plateau_value=value, n_plateau=0, n_evaluations=1,
            record=Record(0, value, np.inf),
        )  # fmt: skip

    def step(self, problem: Problem, state: _State) -> _State:
        """One update; and an evaluation of the full objective when one is due."""
        order, rng = state.order, state.rng
        if len(order) == 0:
            rng = deepcopy(rng)
            order = rng.permutation(problem.n_points)
        gradient = problem.batch_gradient(order[: self.batch_size], _whitened(problem, state.coefficients))
        if problem.whitening is not None:
            gradient = solve_triangular(problem.whitening, gradient, trans="T")
        norm = float(np.linalg.norm(gradient))
        if norm > self.gradient_clip:
            gradient = gradient * (self.gradient_clip / norm)
        iteration = state.iteration + 1
        mean = 0.9 * state.mean + 0.1 * gradient
        square = 0.999 * state.square + 0.001 * gradient**2
        denominator = np.sqrt(square / (1 - 0.999**iteration)) + 1e-8
        coefficients = state.coefficients * (1 - state.learning_rate * self.weight_decay)
        coefficients -= state.learning_rate * mean / (1 - 0.9**iteration) / denominator
        state = replace(
            state, coefficients=coefficients, mean=mean, square=square, rng=rng,
            order=order[self.batch_size :], iteration=iteration, batch_gradient_norm=norm,
        )  # fmt: skip
        is_due = iteration % self.evaluate_every == 0 or iteration == self.n_iterations
        return self._evaluate(problem, state) if is_due else state

    def _evaluate(self, problem: Problem, state: _State) -> _State:
        value, _ = problem.value_and_gradient(_whitened(problem, state.coefficients))
        if value < state.best_value:
            state = replace(state, best=state.coefficients, best_value=value)
        if value < state.plateau_value * (1 - self.plateau_gain):
            state = replace(state, plateau_value=value, n_plateau=0)
        elif state.n_plateau >= self.patience:
            state = replace(state, learning_rate=state.learning_rate / 2, n_plateau=0)
        else:
            state = replace(state, n_plateau=state.n_plateau + 1)
        return replace(
            state, n_evaluations=state.n_evaluations + 1,
            record=Record(state.iteration, value, state.batch_gradient_norm),
        )  # fmt: skip

    def terminate(self, state: _State) -> Result | None:
        """At an evaluation: a vanishing batch gradient, or the end of the budget."""
        if not np.isfinite(state.record.value):
            return Result.BREAKDOWN
        if state.iteration >= self.n_iterations:
            return Result.BUDGET
        is_evaluation = state.record.iteration == state.iteration
        if is_evaluation and state.batch_gradient_norm < self.gradient_threshold:
            return Result.SMALL_BATCH_GRADIENT
        return None

    def coefficients(self, problem: Problem, state: _State) -> Coefficients:
        """C of a state: of its best iterate."""
        return _whitened(problem, state.best)

    def finish(self, problem: Problem, state: _State, result: Result) -> tuple[float, float, int, int]:
        """Certify the best iterate, at the cost of two products."""
        return *certify(problem, self.coefficients(problem, state)), state.iteration, state.n_evaluations + 2


def _whitened(problem: Problem, coefficients: Coefficients) -> Coefficients:
    """C of B: the method takes its steps in B, as the paper does; AdamW depends on the coordinates."""
    if problem.whitening is None:
        return coefficients
    return solve_triangular(problem.whitening, coefficients)
