"""The criterion over all conditioning points, as a solver sees it: sums over chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask import criterion
from kedrl_dask.criterion import Chunk, Penalties, ReturnSpace
from kedrl_dask.execute import Executor
from kedrl_dask.passes import load_points
from kedrl_dask.precondition import Coordinates, basis_whitening, return_gram

__all__ = ["BellmanObjective"]

Array = npt.NDArray[Any]


class BellmanObjective:
    """Value, gradient and products of eq:global_B_objective.

    Chunks of conditioning points stay with the workers that loaded them. Only the coefficients go out
    and one matrix per chunk comes back; these are added in the order of the chunks.

    Parameters
    ----------
    executor : Executor
    path : Path
        Store of the evaluated conditioning points.
    ranges : sequence of (start, stop)
        The chunks.
    space : ReturnSpace
    penalties : Penalties
    basis_gram : (L, L) array
        K_L.
    ridge : float
        λ_B.
    """

    def __init__(
        self,
        executor: Executor,
        path: Path,
        ranges: Sequence[tuple[int, int]],
        space: ReturnSpace,
        penalties: Penalties,
        basis_gram: Array,
        ridge: float,
    ) -> None:
        self.basis_gram = basis_gram
        self._executor, self._path, self._ranges = executor, path, ranges
        self._penalties, self._ridge, self._space = penalties, ridge, space
        self._shared_space = executor.share(space)
        self._chunks = executor.hold(load_points, ranges, path)
        self._in_memory: Chunk | None = None
        whitening = basis_whitening(basis_gram)
        moment, power = _add_up(executor.map(criterion.moments, self._chunks, executor.share(whitening)))
        right = return_gram(space, power, penalties.mass)
        self.coordinates = Coordinates.build(whitening, moment, right, ridge)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (L, m) of the coefficients."""
        return len(self.basis_gram), len(self._space.grid_waves)

    @property
    def n_points(self) -> int:
        """Number M of conditioning points."""
        return self._ranges[-1][1]

    @property
    def is_quadratic(self) -> bool:
        """Whether there is no penalty on negative coefficients."""
        return self._penalties.negative == 0

    def _sum(self, function: Callable[..., Any], coefficients: Array) -> Any:
        shared = self._executor.share(coefficients)
        return _add_up(
            self._executor.map(function, self._chunks, self._shared_space, self._penalties, shared)
        )

    def value_and_gradient(self, coefficients: Array) -> tuple[float, Array]:
        """Value of eq:global_B_objective and its gradient (L, m)."""
        value, gradient = self._sum(criterion.value_and_gradient, coefficients)
        return self._with_ridge(value, gradient, coefficients)

    def _with_ridge(self, value: float, gradient: Array, coefficients: Array) -> tuple[float, Array]:
        image = self._ridge * (self.basis_gram @ coefficients)
        return value + float(np.vdot(coefficients, image)), gradient + 2 * image

    def product(self, direction: Array) -> Array:
        """Hessian of the quadratic part, times a direction."""
        (gradient,) = self._sum(_product, direction)
        return gradient + 2 * self._ridge * (self.basis_gram @ direction)

    def batch_gradient(self, rows: Array, coefficients: Array) -> Array:
        """Gradient over some of the points, their weights rescaled to one.

        Mini-batches touch points all over the set, so these are read into this process once.
        """
        if self._in_memory is None:
            self._in_memory = load_points((0, self.n_points), self._path)
        batch = self._in_memory.rows(rows)
        batch = replace(batch, weights=batch.weights / batch.weights.sum())
        value, gradient = criterion.value_and_gradient(batch, self._space, self._penalties, coefficients)
        return self._with_ridge(value, gradient, coefficients)[1]


def _product(chunk: Chunk, space: ReturnSpace, penalties: Penalties, direction: Array) -> tuple[Array]:
    return (criterion.product(chunk, space, penalties, direction),)


def _add_up(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Componentwise sum in the order of the parts: floating-point sums depend on it."""
    total = parts[0]
    for part in parts[1:]:
        total = tuple(a + b for a, b in zip(total, part, strict=True))
    return total
