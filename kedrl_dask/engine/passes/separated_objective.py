"""The separated criterion over all conditioning points as a problem for a solver, in sums over chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.chunk_sums import ChunkSums
from kedrl_dask.engine.passes.conditioning_points import PointSource
from kedrl_dask.engine.plan.partition import Range
from kedrl_dask.engine.plan.stage_costs import Residency
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.numerics.criterion.preconditioner import Coordinates, return_gram
from kedrl_dask.numerics.criterion.separated import Chunk, FeatureChunk, Penalties, ReturnSpace, Space
from kedrl_dask.numerics.criterion.surrogate import (
    EXPANSION_SAMPLE,
    SEEN_SHARE,
    Expansion,
    Surrogate,
    SurrogateCost,
)
from kedrl_dask.utils.arrays import Coefficients, Indices, Matrix

#: A value, and its gradient.
ValueAndGradient = tuple[float, Coefficients]
#: Precision of values and gradients.
EXACT = np.dtype(np.float64)


class Objective(ABC):
    """Common part of the criteria of both constructions, as functions of C with B = T_L C."""

    coordinates: Coordinates
    products_are_exact: bool
    whitening: Matrix | None
    n_points: int

    def __init__(self, penalties: Penalties, ridge: float) -> None:
        self._penalties, self._ridge = penalties, ridge

    @property
    def ridge(self) -> float:
        """λ_B."""
        return self._ridge

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (rank, m) of the coefficients."""
        return self.coordinates.shape

    @property
    def is_quadratic(self) -> bool:
        """Whether there is no penalty on negative coefficients."""
        return self._penalties.negative == 0

    @abstractmethod
    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Value of the criterion and its gradient (rank, m), in double precision."""

    @abstractmethod
    def product(self, direction: Coefficients) -> Coefficients:
        """Product of the Hessian of the quadratic part with a direction."""

    @abstractmethod
    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Gradient over some of the points."""

    def precondition(self, residual: Coefficients) -> Coefficients:
        """Approximate solution of Hessian·Y = residual, in coordinates where the Hessian is near identity."""
        return residual

    def _with_ridge(
        self, value: float, gradient: Coefficients, coefficients: Coefficients
    ) -> ValueAndGradient:
        image = self._ridge * coefficients
        return value + float(np.vdot(coefficients, image)), gradient + 2 * image


class BellmanObjective(Objective):
    """Value, gradient and products of eq:global_B_objective, as functions of C with B = T_L C.

    There is one task for each group of chunks. Tasks receive the coefficients and return a few matrices:
    sums over chunks, in a tree that depends only on their number, so that results do not depend on the
    groups. Gradients are in double precision, products in the precision of the stored points. The ridge is
    λ_B.
    """

    def __init__(
        self,
        executor: Executor,
        points: PointSource,
        groups: Sequence[Sequence[Range]],
        residency: Residency,
        space: Space,
        penalties: Penalties,
        ridge: float,
    ) -> None:
        super().__init__(penalties, ridge)
        self.whitening = points.basis.whitening
        self.products_are_exact = points.dtype == np.float64
        self._executor, self._points = executor, points
        self._space = space
        self.n_points = groups[-1][-1][1]
        self._spaces = {dtype: executor.share(space.astype(dtype)) for dtype in {points.dtype, EXACT}}
        self.chunks = ChunkSums(executor, points, groups, residency)
        moment, target_moment = self.chunks.sum(separated.moments)
        right = return_gram(space, target_moment, penalties.mass)
        self.coordinates = Coordinates.build(moment, right, ridge)

    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Value of eq:global_B_objective and its gradient (rank, m), in double precision."""
        shared = self._executor.share(coefficients)
        value, gradient = self.chunks.sum(
            separated.value_and_gradient, self._spaces[EXACT], self._penalties, shared
        )
        return self._with_ridge(value, gradient, coefficients)

    def product(self, direction: Coefficients) -> Coefficients:
        """Product of the Hessian of the quadratic part with a direction, in the precision of the points."""
        # Scaled to a maximum of one, a tiny direction does not underflow in single precision.
        size = float(np.abs(direction).max()) or 1.0
        shared = self._executor.share((direction / size).astype(self._points.dtype))
        (image,) = self.chunks.sum(_product, self._spaces[self._points.dtype], self._penalties, shared)
        return size * image + 2 * self._ridge * direction

    def precondition(self, residual: Coefficients) -> Coefficients:
        """Solve Hessian·Y = residual approximately in the coordinates, with the surrogate if there is one."""
        return residual if self._surrogate is None else self._surrogate(residual)

    @cached_property
    def _surrogate(self) -> Surrogate | None:
        """The Hessian with an expansion of ρ, if it costs less than the products that it saves."""
        if not isinstance(self._space, ReturnSpace) or self.coordinates.seen_share < SEEN_SHARE:
            return None
        expansion = Expansion.of_sample(self._points.sample_rewards(self.n_points, EXPANSION_SAMPLE))
        n_terms, n_waves = (len(expansion.waves), len(expansion.powers)), self._space.grid_waves.shape[1]
        if not SurrogateCost.of(*self.shape, n_waves, self.n_points, n_terms).pays:
            return None
        directions = self.coordinates.directions()
        dtype = self._points.dtype
        shared = self._executor.share(expansion.astype(dtype)), self._executor.share(directions.astype(dtype))
        chunks = cast(ChunkSums[FeatureChunk], self.chunks)  # as the space is one of features
        moments = chunks.sum(separated.expanded_moments, *shared)
        return Surrogate(self.coordinates, expansion, moments, self._space, self._penalties.mass)

    @cached_property
    def _in_memory(self) -> tuple[Chunk, Space]:
        return self._points.load((0, self.n_points)), self._space.astype(self._points.dtype)

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Gradient over some of the points, scaled so that its mean over all batches is the full gradient.

        Mini-batches are random, so all points are read into this process once.
        """
        points, space = self._in_memory
        batch = points.rows(rows)
        batch = replace(batch, weights=batch.weights * (self.n_points / len(batch)))
        value, gradient = separated.value_and_gradient(
            batch, space, self._penalties, coefficients.astype(self._points.dtype)
        )
        return self._with_ridge(value, gradient, coefficients)[1]


def _product(
    chunk: Chunk, space: Space, penalties: Penalties, direction: Coefficients
) -> tuple[Coefficients]:
    return (separated.product(chunk, space, penalties, direction),)
