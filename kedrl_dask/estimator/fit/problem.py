"""What the minimisation problems of both constructions are made from."""

from __future__ import annotations

from dataclasses import dataclass

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.plan.plan import Plan
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.estimator.fit.regression import Ridges
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.criterion.separated import Penalties
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.operators import ConditionalOperators

#: N·λ_B in units of σ_X²σ_Z²: below it the error no longer changes, above it shrinkage shows. The smallest
#: λ_B in the same units is where the solver still converges with products in single precision.
RELATIVE_RIDGE_B, SMALLEST_RIDGE_B = 1e-3, 1e-10


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


def choose_ridge_b(
    given: float | str, input_kernel: Matern, return_kernel: Matern, n_transitions: float
) -> float:
    """λ_B as given, or 10⁻³·σ_X²σ_Z²/N: its bias falls faster than the error of the regression."""
    if not isinstance(given, str):
        return float(given)
    relative = max(RELATIVE_RIDGE_B / n_transitions, SMALLEST_RIDGE_B)
    return relative * (input_kernel.sigma * return_kernel.sigma) ** 2


def choose_mass_penalty(given: float | str, return_kernel: Matern) -> float:
    """λ_mass as given, or σ_Z²: the weight that a missing mass has in the residual, at a single atom.

    All terms of the criterion are then proportional to σ_Z², so that the coefficients do not depend on it.
    """
    return return_kernel.sigma**2 if isinstance(given, str) else float(given)
