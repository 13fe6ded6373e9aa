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
from kedrl_dask.numerics.regression.operators import ConditionalOperators


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
