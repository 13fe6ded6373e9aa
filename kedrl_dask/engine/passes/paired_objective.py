"""The paired criterion as a problem for a solver, with either form of its target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.chunk_sums import ChunkSums, Numbered
from kedrl_dask.engine.passes.paired_target import Compressed, Operator, PairedPoints, Sections, sweep
from kedrl_dask.engine.passes.separated_objective import EXACT, Objective, ValueAndGradient
from kedrl_dask.numerics.criterion import paired
from kedrl_dask.numerics.criterion.paired import Batch, FrequencyBlock, Points
from kedrl_dask.numerics.criterion.preconditioner import Coordinates, return_gram
from kedrl_dask.numerics.criterion.separated import Penalties, ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.utils.arrays import Coefficients, Indices, Matrix, Precision


class Target(Protocol):
    """A form of the paired target at the conditioning points."""

    points: Points

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """Σϱ(σ²/Q)‖f‖² over the conditioning points, and its gradient with respect to C.

        Products are in the precision of the coefficients.
        """

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """The same over other points, in this process if possible."""

    def __call__(self, coefficients: Coefficients) -> Matrix:
        """D + τ, the coefficients of the target in the features ψ; (r, 2Q)."""

    def adjoint(self, by_target: Matrix) -> Coefficients:
        """The transpose of C to D, (r, 2Q) to (L, m)."""


@dataclass(eq=False)
class ContractedTarget:
    """The target computed from its operator, with one task for each group of frequencies."""

    executor: Executor
    operator: Operator
    blocks: ChunkSums[FrequencyBlock]
    points: Points  # the conditioning points
    dtype: Precision  # of the products

    @cached_property
    def _shared_points(self) -> dict[Precision, Points]:
        return {kind: self.executor.share(self.points.astype(kind)) for kind in {self.dtype, EXACT}}

    @cached_property
    def _in_memory(self) -> FrequencyBlock:
        return self.operator.load((0, self.operator.n_frequencies))

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """See :class:`Target`."""
        shared, points = self.executor.share(coefficients), self._shared_points[coefficients.dtype]
        return self.blocks.sum(paired.value_and_gradient, points, shared, with_terminal)

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """See :class:`Target`; the operator is read once, because mini-batches are many and small."""
        points, coefficients = points.astype(self.dtype), coefficients.astype(self.dtype)
        return paired.value_and_gradient(self._in_memory, points, coefficients)

    def __call__(self, coefficients: Coefficients) -> Matrix:
        """See :class:`Target`."""
        groups = self.blocks.each(_forward_group, self.executor.share(coefficients))
        return np.hstack([part for group in groups for part in group])

    def adjoint(self, by_target: Matrix) -> Coefficients:
        """See :class:`Target`; in this process, with the operator that was read once."""
        return paired.adjoint(self._in_memory.operator, self._in_memory.space.shifted_waves, by_target)


def _forward_group(blocks: Numbered[FrequencyBlock], coefficients: Coefficients) -> list[Matrix]:
    return [paired.target(block, coefficients) for _, block in blocks]


@dataclass(eq=False)
class SweptTarget:
    """The target computed from the transitions, in two sweeps over them for each product."""

    executor: Executor
    rows: ChunkSums[Iterable[Batch]]
    points: Points  # the conditioning points
    features: NystromFeatures  # ψ
    gram: Matrix  # A + NλI, (r, r)
    space: ReturnSpace
    terminal: Matrix | None  # regression coefficients of τ, (r, 2Q)
    dtype: Precision  # of the products

    def __post_init__(self) -> None:
        """Factorise the regression, and share the return space."""
        self._factor = cho_factor(self.gram, lower=True)
        self._spaces = {kind: self.executor.share(self.space.astype(kind)) for kind in {self.dtype, EXACT}}

    def adjoint(self, by_target: Matrix, dtype: Precision = EXACT) -> Coefficients:
        """See :class:`Target`; products are in a precision."""
        by_sums = self.features.complete_sums_adjoint(cho_solve(self._factor, by_target))
        # Scaled to a maximum of one, entries neither underflow nor overflow in single precision.
        size = float(np.abs(by_sums).max()) or 1.0
        shared = self.executor.share((by_sums / size).astype(dtype))
        (gradient,) = self.rows.sum(sweep, paired.sweep_adjoint, self._spaces[dtype], shared)
        return np.asarray(size * gradient)

    def _over(self, points: Points, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        target, exact = self(coefficients, with_terminal), coefficients.astype(EXACT)
        square, by_basis, by_target = paired.residual(points, self.space.grid_waves, exact, target)
        gradient = by_basis + self.adjoint(by_target, coefficients.dtype)
        return self.space.scale * square, 2 * self.space.scale * gradient

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """See :class:`Target`."""
        return self._over(self.points, coefficients, with_terminal)

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """See :class:`Target`; this sweeps over all transitions."""
        return self._over(points, coefficients, True)

    def __call__(self, coefficients: Coefficients, with_terminal: bool = True) -> Matrix:
        """See :class:`Target`; products are in the precision of the coefficients, sums in double."""
        space, shared = self._spaces[coefficients.dtype], self.executor.share(coefficients)
        (sums,) = self.rows.sum(sweep, paired.sweep_forward, space, shared)
        target = np.asarray(cho_solve(self._factor, self.features.complete_sums(sums)))
        return target + self.terminal if with_terminal and self.terminal is not None else target


class PairedObjective(Objective):
    """Value, gradient and products of the paired criterion, as functions of C with B = T_L C.

    The quadratic part is computed from the summary of the conditioning points, the penalty on negative
    coefficients from their chunks, and mini-batches from their source. The ridge is λ_B, and ``dtype`` is the
    precision of the products.
    """

    def __init__(
        self,
        target: Target,
        compressed: Compressed,
        chunks: ChunkSums[Sections],
        source: PairedPoints,
        space: ReturnSpace,
        penalties: Penalties,
        ridge: float,
        dtype: Precision,
    ) -> None:
        super().__init__(penalties, ridge)
        self.target, self.whitening, self.n_points = target, source.basis.whitening, len(compressed.mass)
        self.products_are_exact = dtype == EXACT
        self._chunks, self._source = chunks, source
        self._dtype = dtype
        points = compressed.points
        self._moment, self._mean = points.basis.T @ points.basis, compressed.mean
        # Σϱ|ρ|², as ρ is linear in ψ.
        power = np.square(points.features @ source.operators.reward).sum(axis=0)
        right = return_gram(space, power[0::2] + power[1::2], penalties.mass)
        self.coordinates = Coordinates.build(self._moment, right, ridge)

    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Value of the paired criterion and its gradient (rank, m), in double precision."""
        value, gradient = self.target.value_and_gradient(coefficients.astype(EXACT), True)
        penalty, by_penalty = paired.mass_penalty(
            self._moment, self._mean, self._penalties.target_mass, coefficients
        )
        value, gradient = value + self._penalties.mass * penalty, gradient + self._penalties.mass * by_penalty
        if not self.is_quadratic:
            penalty, by_penalty = self._chunks.sum(_negative_penalty, coefficients)
            value += self._penalties.negative * penalty
            gradient = gradient + self._penalties.negative * by_penalty
        return self._with_ridge(value, gradient, coefficients)

    def product(self, direction: Coefficients) -> Coefficients:
        """Product of the Hessian of the quadratic part with a direction."""
        size = float(np.abs(direction).max()) or 1.0
        _, image = self.target.value_and_gradient((direction / size).astype(self._dtype), False)
        _, by_mass = paired.mass_penalty(self._moment, self._mean, 0.0, direction)
        return size * image + self._penalties.mass * by_mass + 2 * self._ridge * direction

    @cached_property
    def _in_memory(self) -> Sections:
        return self._source.compute((0, self.n_points))

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Gradient over some of the points, scaled so that its mean over all batches is the full gradient."""
        basis, features, weights = (part[rows] for part in self._in_memory)
        weights = weights * (self.n_points / len(rows))
        value, gradient = self.target.batch(Points.of(basis, features, weights), coefficients)
        moment, mean = basis.T @ (weights[:, None] * basis), weights @ basis
        _, by_mass = paired.mass_penalty(moment, mean, self._penalties.target_mass, coefficients)
        _, by_negative = paired.negative_penalty(basis, weights, coefficients)
        gradient = gradient + self._penalties.mass * by_mass + self._penalties.negative * by_negative
        return self._with_ridge(value, gradient, coefficients)[1]


def _negative_penalty(chunk: Sections, coefficients: Coefficients) -> ValueAndGradient:
    basis, _, weights = chunk
    return paired.negative_penalty(basis, weights, coefficients)
