"""What the minimisation problems of both constructions are made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.separated_objective import Objective, ValueAndGradient
from kedrl_dask.engine.plan.plan import Plan
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.estimator.fit.regression import Ridges
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.criterion.separated import Penalties
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.utils.arrays import Coefficients, Indices

#: N·λ_B in units of σ_X²σ_Z² of a fit that is shrunk towards zero: below it the error no longer changes,
#: above it shrinkage shows. And of one that is shrunk towards simulated returns, which are nearly right: a
#: hundred times as much makes most embeddings more accurate, but then no disagreement tells that the
#: simulation is wrong.
RELATIVE_RIDGE_B, RELATIVE_RIDGE_PRIOR = 1e-3, 1.0
#: The smallest λ_B in the same units, where the solver still converges with products in single precision.
SMALLEST_RIDGE_B = 1e-10


@dataclass(frozen=True)
class Prepared:
    """The results of all stages before the problem of either construction, and where it is solved."""

    settings: Settings
    store: TransitionStore
    choices: Choices
    operators: ConditionalOperators
    ridges: Ridges
    ridge_b: float
    mass_penalty: float
    plan: Plan
    executor: Executor
    cache: Cache

    @property
    def penalties(self) -> Penalties:
        """λ_mass and λ_neg."""
        return Penalties(self.mass_penalty, 1.0, self.settings.negative_penalty)


class Around:
    """A problem as a function of C − C₀, with the ridge on it: the minimiser is shrunk towards C₀."""

    def __init__(self, problem: Objective, center: Coefficients) -> None:
        self._problem, self._center, self._ridge = problem, center, problem.ridge
        self.coordinates, self.products_are_exact = problem.coordinates, problem.products_are_exact
        self.whitening, self.shape, self.n_points = problem.whitening, problem.shape, problem.n_points
        self.is_quadratic = problem.is_quadratic
        self.product, self.precondition = problem.product, problem.precondition

    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Value of the criterion and its gradient at C₀ plus these coefficients."""
        moved = self._center + coefficients
        value, gradient = self._problem.value_and_gradient(moved)
        squares = float(np.vdot(coefficients, coefficients)) - float(np.vdot(moved, moved))
        return value + self._ridge * squares, gradient - 2 * self._ridge * self._center

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """The gradient over some of the conditioning points."""
        gradient = self._problem.batch_gradient(rows, self._center + coefficients)
        return gradient - 2 * self._ridge * self._center


def choose_ridge_b(
    given: float | str,
    input_kernel: Matern,
    return_kernel: Matern,
    n_transitions: float,
    has_prior: bool = False,
) -> float:
    """λ_B as given, or in proportion to σ_X²σ_Z²/N: its bias falls faster than the regression's error."""
    if not isinstance(given, str):
        return float(given)
    share = RELATIVE_RIDGE_PRIOR if has_prior else RELATIVE_RIDGE_B
    relative = max(share / n_transitions, SMALLEST_RIDGE_B)
    return relative * (input_kernel.sigma * return_kernel.sigma) ** 2


def choose_mass_penalty(given: float | str, return_kernel: Matern) -> float:
    """λ_mass as given, or σ_Z²: the weight that a missing mass has in the residual, at a single atom.

    All terms of the criterion are then proportional to σ_Z², so that the coefficients do not depend on it.
    """
    return return_kernel.sigma**2 if isinstance(given, str) else float(given)
