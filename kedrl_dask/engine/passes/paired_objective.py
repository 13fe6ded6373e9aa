"""The paired criterion as a problem for a solver, with either form of its target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.chunk_sums import ChunkSums, Numbered
from kedrl_dask.engine.passes.paired_target import (
    Compressed,
    Operator,
    PairedPoints,
    Sections,
    sweep_back,
    sweep_out,
)
from kedrl_dask.engine.passes.separated_objective import EXACT, Objective, ValueAndGradient
from kedrl_dask.numerics.criterion import paired
from kedrl_dask.numerics.criterion.paired import Batch, FrequencyBlock, Points
from kedrl_dask.numerics.criterion.preconditioner import Coordinates, return_gram
from kedrl_dask.numerics.criterion.separated import Penalties, ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.utils.arrays import Coefficients, Indices, Matrix, Precision

__all__ = ["ContractedTarget", "PairedObjective", "SweptTarget", "Target"]


class Target(Protocol):
    """A form of the paired target."""

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """Σϱ(σ²/Q)‖f‖² over the conditioning points, and its gradient with respect to C.

        Products are in the precision of the coefficients.
        """

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """The same over other points, in this process if possible."""

    def __call__(self, coefficients: Coefficients) -> Matrix:
        """D + τ, the coefficients of the target in the features ψ; (r, 2Q)."""


class ContractedTarget:
    """The target computed from its operator, with one task for each group of frequencies.

    Parameters
    ----------
    executor : Executor
    operator : Operator
    blocks : ChunkSums
        The operator, by blocks of frequencies.
    points : Points
        The conditioning points.
    dtype : dtype
        Precision of the products.
    """

    def __init__(
        self,
        executor: Executor,
        operator: Operator,
        blocks: ChunkSums[FrequencyBlock],
        points: Points,
        dtype: Precision,
    ) -> None:
        self._executor, self._operator, self._blocks, self._dtype = executor, operator, blocks, dtype
        self._points = {kind: executor.share(points.astype(kind)) for kind in {dtype, EXACT}}
        self._in_memory: FrequencyBlock | None = None

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """See :class:`Target`."""
        shared = self._executor.share(coefficients)
        points = self._points[coefficients.dtype]
        value, gradient = self._blocks.sum(paired.value_and_gradient, points, shared, with_terminal)
        return value, gradient

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """See :class:`Target`; the operator is read once, because mini-batches are many and small."""
        if self._in_memory is None:
            self._in_memory = self._operator.load((0, self._operator.n_frequencies))
        dtype = self._dtype
        return paired.value_and_gradient(self._in_memory, points.astype(dtype), coefficients.astype(dtype))

    def __call__(self, coefficients: Coefficients) -> Matrix:
        """See :class:`Target`."""
        groups = self._blocks.each(_forward_group, self._executor.share(coefficients))
        return np.hstack([part for group in groups for part in group])


def _forward_group(blocks: Numbered[FrequencyBlock], coefficients: Coefficients) -> list[Matrix]:
    return [paired.target(block, coefficients) for _, block in blocks]


class SweptTarget:
    """The target computed from the transitions, in two sweeps over them for each product.

    Parameters
    ----------
    executor : Executor
    rows : ChunkSums
        The transitions.
    points : Points
        The conditioning points.
    features : NystromFeatures
        ψ.
    gram : (r, r) array
        A + NλI.
    space : ReturnSpace
    terminal : (r, 2Q) array or None
        Regression coefficients of τ.
    dtype : dtype
        Precision of the products.
    """

    def __init__(
        self,
        executor: Executor,
        rows: ChunkSums[Iterable[Batch]],
        points: Points,
        features: NystromFeatures,
        gram: Matrix,
        space: ReturnSpace,
        terminal: Matrix | None,
        dtype: Precision,
    ) -> None:
        self._executor, self._rows, self._features = executor, rows, features
        self._points, self._factor = points, cho_factor(gram, lower=True)
        self._space, self._terminal = space, terminal
        self._spaces = {kind: executor.share(space.astype(kind)) for kind in {dtype, EXACT}}

    def _forward(self, coefficients: Coefficients) -> Matrix:
        """D in double precision, from sums of products in the precision of the coefficients."""
        space, shared = self._spaces[coefficients.dtype], self._executor.share(coefficients)
        (sums,) = self._rows.sum(sweep_out, space, shared)
        return np.asarray(cho_solve(self._factor, self._features.complete_sums(sums)))

    def _adjoint(self, by_target: Matrix, dtype: Precision) -> Coefficients:
        by_sums = self._features.complete_sums_adjoint(cho_solve(self._factor, by_target))
        # Scaled to a maximum of one, entries neither underflow nor overflow in single precision.
        size = float(np.abs(by_sums).max()) or 1.0
        shared = self._executor.share((by_sums / size).astype(dtype))
        (gradient,) = self._rows.sum(sweep_back, self._spaces[dtype], shared)
        return np.asarray(size * gradient)

    def _over(self, points: Points, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        target, space = self._forward(coefficients), self._space
        if with_terminal and self._terminal is not None:
            target = target + self._terminal
        exact = coefficients.astype(EXACT)
        square, by_basis, by_target = paired.residual(points, space.grid_waves, exact, target)
        gradient = by_basis + self._adjoint(by_target, coefficients.dtype)
        return space.scale * square, 2 * space.scale * gradient

    def value_and_gradient(self, coefficients: Coefficients, with_terminal: bool) -> ValueAndGradient:
        """See :class:`Target`."""
        return self._over(self._points, coefficients, with_terminal)

    def batch(self, points: Points, coefficients: Coefficients) -> ValueAndGradient:
        """See :class:`Target`; this sweeps over all transitions."""
        return self._over(points, coefficients, True)

    def __call__(self, coefficients: Coefficients) -> Matrix:
        """See :class:`Target`."""
        target = self._forward(coefficients)
        return target if self._terminal is None else target + self._terminal


class PairedObjective(Objective):
    """Value, gradient and products of the paired criterion, as functions of C with B = T_L C.

    Parameters
    ----------
    target : Target
    compressed : Compressed
        Summary of the conditioning points, for the quadratic part.
    chunks : ChunkSums
        The conditioning points, for the penalty on negative coefficients.
    source : PairedPoints
        The conditioning points, for mini-batches.
    space : ReturnSpace
    penalties : Penalties
    ridge : float
        λ_B.
    dtype : dtype
        Precision of the products.
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
        self._in_memory: Sections | None = None
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

    def batch_gradient(self, rows: Indices, coefficients: Coefficients) -> Coefficients:
        """Gradient over some of the points, scaled so that its mean over all batches is the full gradient."""
        if self._in_memory is None:
            self._in_memory = self._source.compute((0, self.n_points))
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
