"""Conditioning points of the separated construction: evaluated once and stored, or evaluated on demand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kedrl_dask.engine.passes.chunk_sums import Source
from kedrl_dask.engine.plan.partition import Range
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.numerics.criterion.separated import Chunk
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.utils.arrays import Features, Inputs, Precision, Weights

CONDITIONING_KIND = "kedrl conditioning points"


def read_inputs(path: Path, rows: Range) -> tuple[Inputs, Weights]:
    """Inputs and weights of some of the stored points."""
    points = ArrayStore.open(path, CONDITIONING_KIND)
    return points.read("input", *rows), points.read("weight", *rows)


class PointSource(Source[Chunk], Protocol):
    """Conditioning points, and how the terms of the criterion are computed there."""

    @property
    def basis(self) -> NystromFeatures:
        """Gives k̃."""

    @property
    def dtype(self) -> Precision:
        """Precision of the chunks and of products with them."""

    def sample_rewards(self, n_points: int, at_most: int) -> Features:
        """ρ at evenly spaced points, the same however the points are divided into chunks."""


@dataclass(frozen=True)
class Conditioning:
    """The conditioning points: where they are stored, and how the terms of the criterion are computed there.

    Sections with the basis are whitened, k̃ = T_Lᵀk_L and Φ̃ = T_LᵀΦ_L, so that the products of the solver
    stay accurate in single precision.
    """

    points: Path  # inputs, weights, and everything that does not depend on the policy
    continuation: Path  # Φ̃
    operators: ConditionalOperators  # with continuation coefficients that give Φ̃
    basis: NystromFeatures  # k̃
    dtype: Precision  # of the stored arrays and of the products

    def compute(self, rows: Range) -> Chunk:
        """Evaluate some of the points; only their inputs and weights are read."""
        inputs, weights = read_inputs(self.points, rows)
        chunk, _ = self.operators(inputs, weights)
        return replace(chunk, basis=self.basis(inputs)).astype(self.dtype)

    def sample_rewards(self, n_points: int, at_most: int) -> Features:
        """See :class:`PointSource`."""
        points = ArrayStore.open(self.points, CONDITIONING_KIND)
        inputs = points.read("input", 0, n_points)[:: -(-n_points // at_most)]
        return self.operators.target(inputs, self.operators.features(inputs))["reward_waves"]

    def load(self, rows: Range) -> Chunk:
        """Read some of the points as they were stored."""
        points = ArrayStore.open(self.points, CONDITIONING_KIND)
        continuation = ArrayStore.open(self.continuation, CONDITIONING_KIND)
        kind = self.operators.chunk_type
        return kind(
            points.read("weight", *rows),
            points.read("basis", *rows),
            continuation.read("continuation", *rows),
            **{name: points.read(name, *rows) for name in kind.target_names() if name in points.names},
        )


def evaluate_points(block: tuple[int, Range], task: Conditioning, with_shared: bool, with_own: bool) -> None:
    """Evaluate the operators at a chunk of conditioning points, given by its number and rows, and store them.

    ``with_shared`` stores what all policies have in common, ``with_own`` what depends on the policy.
    """
    number, rows = block
    points = ArrayStore.open(task.points, CONDITIONING_KIND, writable=True)
    inputs = points.read("input", *rows)
    psi, start, operators = task.operators.features(inputs), rows[0], task.operators
    if with_own:
        own = ArrayStore.open(task.continuation, CONDITIONING_KIND, writable=True)
        own.write("continuation", start, psi @ operators.continuation)
        own.commit(number)
    if not with_shared:
        return
    points.write("basis", start, task.basis(inputs))
    points.write("mass", start, psi @ operators.mass)
    for name, array in operators.target(inputs, psi).items():
        points.write(name, start, array)
    points.commit(number)
