"""The target of the paired construction, contracted once or recomputed by sweeps for every product.

The contracted form computes the sums Σ_j φ_j exp(i w·r_j) κ̃_jᵀ for all frequencies in one pass over the
transitions; a product then costs Q·r·L, independent of N. The matrix-free form never stores these sums: every
product sweeps over the transitions twice, because the residual needs the complete target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kedrl_dask.engine.data.transitions import Source
from kedrl_dask.engine.passes.conditioning_points import read_inputs
from kedrl_dask.engine.passes.continuation import Continuation
from kedrl_dask.engine.passes.streaming_pass import read_groups
from kedrl_dask.engine.plan.partition import GROUP_ROWS, Range, RowBlock
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.numerics.criterion import paired
from kedrl_dask.numerics.criterion.paired import Batch, FrequencyBlock, Points
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.utils.arrays import Features, Matrix, Vector
from kedrl_dask.utils.arrays import Points as Rows
from kedrl_dask.utils.scratch import scratch

CONTRACTION_KIND = "kedrl paired sums"
OPERATOR_KIND = "kedrl paired operator"


@dataclass(frozen=True)
class PairedRows:
    """The transitions, in the form that the paired target needs.

    Attributes
    ----------
    source : Source
    features : NystromFeatures
        φ, in the precision of the products.
    basis : NystromFeatures
        Whitens κ, in the same precision.
    frequencies : array
        W.
    continuation : Continuation
        κ.
    """

    source: Source
    features: NystromFeatures
    basis: NystromFeatures
    frequencies: Rows
    continuation: Continuation

    def compute(self, rows: Range) -> Iterator[Batch]:
        """Batches of a range of recorded rows; each is valid until the next one is requested."""
        dtype, block = self.features.whitening.dtype, RowBlock(0, *rows)
        phi = scratch("paired features", (GROUP_ROWS, self.features.rank), dtype)
        whitened = scratch("paired continuation", (GROUP_ROWS, self.basis.rank), dtype)
        reward = scratch("paired waves", (GROUP_ROWS, 2 * len(self.frequencies)), dtype)
        for number, group, inside in read_groups(self.source, block):
            part = group.select(inside)
            n = len(part)
            kappa, _ = self.continuation(number, group, inside, dtype)
            self.basis.complete(self.basis.deflate(kappa), out=whitened[:n])
            self.features.partial(part.inputs, out=phi[:n])
            yield Batch(phi[:n], whitened[:n], waves(part.reward, self.frequencies, out=reward[:n]))

    def load(self, rows: Range) -> list[Batch]:
        """Copies of all batches, which can stay in memory."""
        return [Batch(*(part.copy() for part in batch)) for batch in self.compute(rows)]


def sweep(
    batches: Iterable[Batch],
    function: Callable[[Batch, ReturnSpace, Matrix], Matrix],
    space: ReturnSpace,
    given: Matrix,
) -> tuple[Matrix]:
    """Sum of ``function`` over batches: products in the precision of ``space``, sums in double."""
    total: Matrix = np.zeros(())
    for batch in batches:
        total = total + function(batch.astype(space.dtype), space, given).astype(np.float64)
    return (total,)


@dataclass(frozen=True)
class Contraction:
    """What the pass that contracts the target needs: the transitions, and the store of the sums."""

    rows: PairedRows
    sums: Path


def contract_link(which: Range, task: Contraction, link: int, rows: Range) -> None:
    """Add the transitions of some rows to the sums of some waves.

    Even links read one array and write the other, odd links the reverse, so that a repeated task finds the
    same input again. The manifest records the latest link of every chunk.
    """
    sums = ArrayStore.open(task.sums, CONTRACTION_KIND, writable=True)
    source, destination = ("first", "second") if link % 2 else ("second", "first")
    start, stop = which
    chunks = range(start // sums.chunk("wave"), -(-stop // sums.chunk("wave")))
    if link == 0:
        total = np.zeros((stop - start, *sums.shape(destination)[1:]))
    else:
        if any(sums.entry(chunk, source).get("link") != link - 1 for chunk in chunks):
            raise StoreError(
                f"{task.sums}: rows {start}:{stop} of array {source} do not hold link {link - 1}: another "
                "process has written to them; fit again"
            )
        total = sums.read(source, start, stop)
    part = replace(task.rows, frequencies=task.rows.frequencies[start // 2 : stop // 2])
    for batch in part.compute(rows):
        paired.contract(batch, total)
    for chunk in chunks:
        sums.revoke(chunk, destination)
    sums.write(destination, start, total)
    for chunk in chunks:
        sums.commit(chunk, destination, link=link)


@dataclass(frozen=True)
class SolveTask:
    """What turns the sums into the operator P: the Gram matrix A of the features, and the ridge."""

    sums: Path
    name: str  # of the array written by the last link
    operator: Path
    features: NystromFeatures
    gram: Matrix
    n_transitions: float
    ridge: float


def solve_waves(block: tuple[int, Range], task: SolveTask) -> None:
    """P_w = (A + NλI)⁻¹ Σ ψ exp(i w·r) κ̃ᵀ for the frequencies of a chunk, given by its number and rows."""
    number, (start, stop) = block
    sums = ArrayStore.open(task.sums, CONTRACTION_KIND).read(task.name, 2 * start, 2 * stop)
    completed = task.features.complete_sums(sums)
    n_waves, rank, width = completed.shape
    columns = completed.transpose(1, 0, 2).reshape(rank, n_waves * width)
    solved = solve_ridge(task.gram, columns, task.n_transitions, task.ridge)
    solved = solved.reshape(rank, n_waves, width).transpose(1, 0, 2)
    operator = ArrayStore.open(task.operator, OPERATOR_KIND, writable=True)
    operator.write("operator", start, solved[0::2] + 1j * solved[1::2])
    operator.commit(number)


@dataclass(frozen=True)
class Operator:
    """The contracted target, stored by frequency."""

    path: Path  # of the store of P
    terminal: Matrix | None  # regression coefficients of τ, (r, 2Q)
    space: ReturnSpace

    @property
    def n_frequencies(self) -> int:
        """Number Q of frequencies."""
        return self.space.grid_waves.shape[1] // 2

    def load(self, which: Range) -> FrequencyBlock:
        """Read some frequencies."""
        operator = ArrayStore.open(self.path, OPERATOR_KIND).read("operator", *which)
        columns = slice(2 * which[0], 2 * which[1])
        terminal = None if self.terminal is None else self.terminal[:, columns]
        space = ReturnSpace(
            self.space.grid_waves[:, columns], self.space.shifted_waves[:, columns], self.space.scale
        )
        return FrequencyBlock(operator, terminal, space)

    compute = load  # they cannot be computed from anything else


#: k̃ (n, L), ψ (n, r) and ϱ (n,) of some conditioning points.
Sections = tuple[Features, Features, Vector]


@dataclass(frozen=True)
class PairedPoints:
    """The conditioning points in the form that the paired criterion needs: (k̃, ψ, ϱ) from their inputs."""

    inputs: Path  # the store of inputs and weights
    operators: ConditionalOperators  # ψ, and the mass ΣΓ
    basis: NystromFeatures  # k̃

    def compute(self, rows: Range) -> Sections:
        """k̃, ψ and ϱ of some points, in double precision."""
        inputs, weights = read_inputs(self.inputs, rows)
        return self.basis(inputs), self.operators.features(inputs), weights

    load = compute  # they are not stored


class Compressed(NamedTuple):
    """Summary of the conditioning points, from which the quadratic part of the criterion is computed."""

    points: Points
    mean: Vector  # Σϱk̃, (L,)
    mass: Vector  # ΣΓ at each point, (M,)


def compress_points(rows: Range, source: PairedPoints) -> Compressed:
    """Second moments, mean and mass of some points."""
    basis, features, weights = source.compute(rows)
    points = Points.of(basis, features, weights).compressed()
    return Compressed(points, weights @ basis, features @ source.operators.mass)


def merge_points(first: Compressed, second: Compressed) -> Compressed:
    """Summary of the union of two sets of points."""
    return Compressed(
        first.points.merged(second.points),
        first.mean + second.mean,
        np.concatenate([first.mass, second.mass]),
    )
