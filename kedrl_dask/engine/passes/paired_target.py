"""The target of the paired construction, in two forms: contracted once, or swept for every product.

Contracted, the sums Σ_j φ_j exp(i w·r_j) κ̃_jᵀ of all frequencies are made in one pass over the transitions,
and a product costs Q·r·L, whatever N. Matrix-free, a product sweeps over the transitions twice, forward and
back, because the target must be complete before it can be compared; nothing of the size of the sums exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.passes.streaming_pass import CONDITIONING_KIND, Continuation, in_block, read_groups
from kedrl_dask.engine.plan.partition import GROUP_ROWS, RowBlock
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.numerics.criterion import paired
from kedrl_dask.numerics.criterion.paired import Batch, FrequencyBlock, Points
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.scratch import scratch

__all__ = [
    "CONTRACTION_KIND",
    "OPERATOR_KIND",
    "Compressed",
    "Contraction",
    "Operator",
    "PairedPoints",
    "PairedRows",
    "SolveTask",
    "compress_points",
    "contract_link",
    "merge_points",
    "solve_waves",
    "sweep_back",
    "sweep_out",
]


CONTRACTION_KIND = "kedrl paired sums"
OPERATOR_KIND = "kedrl paired operator"


@dataclass(frozen=True)
class PairedRows:
    """The transitions as the paired target sees them.

    Attributes
    ----------
    store_path : Path
    features : NystromFeatures
        φ, in the precision of the products.
    basis : NystromFeatures
        Whitens κ, in the same precision.
    frequencies : array
        W.
    continuation : Continuation
        κ.
    """

    store_path: Path
    features: NystromFeatures
    basis: NystromFeatures
    frequencies: Array
    continuation: Continuation

    def compute(self, rows: tuple[int, int]) -> Iterator[Batch]:
        """Batches of the recorded rows from start to stop; each lives until the next."""
        dtype, block = self.features.whitening.dtype, RowBlock(0, *rows)
        phi = scratch("paired features", (GROUP_ROWS, self.features.rank), dtype)
        whitened = scratch("paired continuation", (GROUP_ROWS, self.basis.rank), dtype)
        reward = scratch("paired waves", (GROUP_ROWS, 2 * len(self.frequencies)), dtype)
        for number, group in read_groups(TransitionStore.open(self.store_path), block):
            inside = in_block(group, block)
            part = group.select(inside)
            n = len(part)
            if n == 0:
                continue
            kappa, _ = self.continuation(number, group, inside, dtype)
            self.basis.complete(self.basis.deflate(kappa), out=whitened[:n])
            self.features.partial(part.inputs, out=phi[:n])
            yield Batch(phi[:n], whitened[:n], waves(part.reward, self.frequencies, out=reward[:n]))

    def load(self, rows: tuple[int, int]) -> list[Batch]:
        """All batches, to stay in memory."""
        return [Batch(*(part.copy() for part in batch)) for batch in self.compute(rows)]


def sweep_out(batches: Iterable[Batch], space: ReturnSpace, coefficients: Array) -> tuple[Array]:
    """Σ_j φ_j times exp(iWr_j) ⊙ (CE)ᵀκ̃_j: double precision sums of products in that of ``space``."""
    return _swept(paired.sweep_forward, batches, space, coefficients)


def sweep_back(batches: Iterable[Batch], space: ReturnSpace, by_sums: Array) -> tuple[Array]:
    """The transpose of :func:`sweep_out`."""
    return _swept(paired.sweep_adjoint, batches, space, by_sums)


def _swept(
    function: Callable[..., Array], batches: Iterable[Batch], space: ReturnSpace, given: Array
) -> tuple[Array]:
    total: Any = 0.0
    for batch in batches:
        total = total + function(batch.astype(space.dtype), space, given).astype(np.float64)
    return (total,)


@dataclass(frozen=True)
class Contraction:
    """What the pass that contracts the target needs: the transitions, and where the sums go."""

    rows: PairedRows
    sums: Path


def contract_link(which: tuple[int, int], task: Contraction, link: int, rows: tuple[int, int]) -> None:
    """Add the transitions of some rows to the sums of some waves.

    Sums of an even link are read from one array and written to the other, those of an odd one the other way
    round, so that a task that is run again finds what it found the first time. The manifest says of every
    chunk which link it has.
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
                f"{task.sums}: array {source}, rows {start}:{stop} are not of link {link - 1}: another "
                "process has written there; fit again"
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
    """How the sums become the operator P: with the Gram matrix A of the features and the ridge."""

    sums: Path
    name: str  # of the array that the last link wrote
    operator: Path
    features: NystromFeatures
    gram: Array
    n_transitions: float
    ridge: float


def solve_waves(block: tuple[int, tuple[int, int]], task: SolveTask) -> None:
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
    """The contracted target, stored by frequency.

    Attributes
    ----------
    path : Path
        The store of P.
    terminal : (r, 2Q) array or None
        Regression coefficients of τ.
    space : ReturnSpace
    """

    path: Path
    terminal: Array | None
    space: ReturnSpace

    @property
    def n_frequencies(self) -> int:
        """Number Q of frequencies."""
        return self.space.grid_waves.shape[1] // 2

    def load(self, which: tuple[int, int]) -> FrequencyBlock:
        """Read some frequencies."""
        operator = ArrayStore.open(self.path, OPERATOR_KIND).read("operator", *which)
        columns = slice(2 * which[0], 2 * which[1])
        terminal = None if self.terminal is None else self.terminal[:, columns]
        space = ReturnSpace(
            self.space.grid_waves[:, columns], self.space.shifted_waves[:, columns], self.space.scale
        )
        return FrequencyBlock(operator, terminal, space)

    def compute(self, which: tuple[int, int]) -> FrequencyBlock:
        """Read them too: there is no cheaper way."""
        return self.load(which)


@dataclass(frozen=True)
class PairedPoints:
    """The conditioning points as the paired criterion sees them: (k̃, ψ, ϱ), computed from their inputs.

    Attributes
    ----------
    inputs : Path
        Store of inputs and weights.
    operators : ConditionalOperators
        ψ, and the mass ΣΓ.
    basis : NystromFeatures
        k̃.
    """

    inputs: Path
    operators: ConditionalOperators
    basis: NystromFeatures

    def compute(self, rows: tuple[int, int]) -> tuple[Array, Array, Array]:
        """k̃, ψ and ϱ of some points, in double precision."""
        points = ArrayStore.open(self.inputs, CONDITIONING_KIND)
        inputs, weights = points.read("input", *rows), points.read("weight", *rows)
        return self.basis(inputs), self.operators.features(inputs), weights

    def load(self, rows: tuple[int, int]) -> tuple[Array, Array, Array]:
        """The same."""
        return self.compute(rows)


class Compressed(NamedTuple):
    """Conditioning points for the quadratic part of the criterion.

    Attributes
    ----------
    points : Points
    mean : (L,) array
        Σϱk̃.
    mass : (M,) array
        ΣΓ at each.
    """

    points: Points
    mean: Array
    mass: Array


def compress_points(rows: tuple[int, int], source: PairedPoints) -> Compressed:
    """Second moments of some points, their mean and their mass."""
    basis, features, weights = source.compute(rows)
    points = Points.of(basis, features, weights).compressed()
    return Compressed(points, weights @ basis, features @ source.operators.mass)


def merge_points(first: Compressed, second: Compressed) -> Compressed:
    """Both sets of points."""
    return Compressed(
        first.points.merged(second.points),
        first.mean + second.mean,
        np.concatenate([first.mass, second.mass]),
    )
