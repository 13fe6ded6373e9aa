"""The stages of a fit that only the paired construction has: contraction, points, the problem to solve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.cache import Cache, Facts
from kedrl_dask.choices import Choices
from kedrl_dask.chunks import ChunkSums
from kedrl_dask.conditioning import file_conditioning
from kedrl_dask.criterion import Penalties, ReturnSpace
from kedrl_dask.division import (
    FREQUENCY_CHUNK,
    FREQUENCY_SHARD,
    LINK_GROUPS,
    even_ranges,
    in_groups,
    row_ranges,
    sweep_groups,
)
from kedrl_dask.execute import Executor
from kedrl_dask.operators import ConditionalOperators
from kedrl_dask.paired_objective import ContractedTarget, PairedObjective, SweptTarget, Target
from kedrl_dask.passes import Continuation
from kedrl_dask.plan import Plan
from kedrl_dask.progress import Reporter
from kedrl_dask.schema import PAIRED_OPERATOR, PAIRED_SUMS
from kedrl_dask.settings import Settings
from kedrl_dask.store import ArrayStore
from kedrl_dask.sums import RegressionSums
from kedrl_dask.target import (
    CONTRACTION_KIND,
    OPERATOR_KIND,
    Compressed,
    Contraction,
    Operator,
    PairedPoints,
    PairedRows,
    SolveTask,
    compress_points,
    contract_link,
    merge_points,
    solve_waves,
)
from kedrl_dask.transitions import TransitionStore

__all__ = ["Pairing"]

Array = npt.NDArray[Any]

#: Chunks of conditioning points that one thread compresses, always the same, so that the result is too.
MERGED_CHUNKS = 8


@dataclass(frozen=True)
class Pairing:
    """What the stages need.

    Attributes
    ----------
    settings : Settings
    store : TransitionStore
    choices : Choices
    operators : ConditionalOperators
        The regression; its terminal part enters the target.
    sums : RegressionSums
    ridge_gamma : float
        λ_Γ.
    continuation : Continuation
        κ.
    facts : Facts
        What identifies φ and κ of all transitions.
    plan : Plan
    executor : Executor
    cache : Cache
    """

    settings: Settings
    store: TransitionStore
    choices: Choices
    operators: ConditionalOperators
    sums: RegressionSums
    ridge_gamma: float
    continuation: Continuation
    facts: Facts
    plan: Plan
    executor: Executor
    cache: Cache

    def problem(
        self, space: ReturnSpace, penalties: Penalties, ridge_b: float, reporter: Reporter
    ) -> tuple[PairedObjective, Array]:
        """The criterion, ready for a solver; and the mass ΣΓ at the conditioning points."""
        path = None
        if self.plan.form == "contracted":
            path = self._contract(reporter)
        ranges = self.settings.ranges(self.store.n_transitions)
        source = PairedPoints(
            file_conditioning(self.settings, self.store, self.operators.kernel, self.cache),
            self.operators,
            self.choices.basis,
        )
        with reporter.stage("conditioning points", -(-len(ranges) // MERGED_CHUNKS)) as advance:
            compressed = self._compress(source, ranges, advance)
        target = self._target(path, compressed, space)
        groups = in_groups(ranges, self.executor.n_threads)
        chunks = ChunkSums(self.executor, source, groups, "recomputed")
        dtype = self.settings.dtype
        problem = PairedObjective(target, compressed, chunks, source, space, penalties, ridge_b, dtype)
        return problem, compressed.mass

    def _compress(self, source: PairedPoints, ranges: list[tuple[int, int]], advance: Any) -> Compressed:
        groups = in_groups(ranges, -(-len(ranges) // MERGED_CHUNKS))
        shared = self.executor.share(source)
        parts = self.executor.reduce(compress_points, groups, merge_points, _total, shared, advance=advance)
        return reduce(merge_points, parts)

    def _target(self, path: Path | None, compressed: Compressed, space: ReturnSpace) -> Target:
        executor, dtype, terminal = self.executor, self.settings.dtype, self.operators.terminal
        if path is not None:
            operator = Operator(path, terminal, space)
            blocks = even_ranges(len(self.choices.frequencies), FREQUENCY_SHARD)
            held = ChunkSums(executor, operator, in_groups(blocks, executor.n_threads), self.plan.residency)
            return ContractedTarget(executor, operator, held, compressed.points, dtype)
        pieces = row_ranges(self.store.n_rows, sweep_groups(self.store.n_rows))
        swept = ChunkSums(executor, self._rows(), in_groups(pieces, executor.n_threads), self.plan.residency)
        gram, features = self.sums.gram.sum(axis=0), self.choices.features
        gram = gram + self.sums.n_transitions * self.ridge_gamma * np.eye(len(gram))
        return SweptTarget(executor, swept, compressed.points, features, gram, space, terminal, dtype)

    def _rows(self) -> PairedRows:
        features, basis = (
            part.astype(self.settings.dtype) for part in (self.choices.features, self.choices.basis)
        )
        path = self.store.path.resolve()
        return PairedRows(path, features, basis, self.choices.frequencies, self.continuation)

    def _contract(self, reporter: Reporter) -> Path:
        """Path of the operator P; its sums and it are found again where they depend on the same."""
        pieces = row_ranges(self.store.n_rows, LINK_GROUPS)
        frequencies = self.choices.frequencies
        sums_facts = {**self.facts, "frequencies": frequencies, "basis": self.choices.basis.whitening}
        with reporter.stage("contraction", len(pieces)) as advance:
            sums = self.cache.get("paired-sums", sums_facts, lambda path: self._sum(path, pieces, advance))
            facts = {**sums_facts, "ridge": self.ridge_gamma}
            return self.cache.get("paired-operator", facts, lambda path: self._solve(path, sums, len(pieces)))

    def _sum(self, path: Path, pieces: list[tuple[int, int]], advance: Any) -> None:
        n_waves = 2 * len(self.choices.frequencies)
        sizes = {"wave": n_waves, "rank": self.choices.features.rank, "basis": self.choices.basis.rank}
        chunk = 2 * FREQUENCY_CHUNK
        specs = PAIRED_SUMS if len(pieces) > 1 else PAIRED_SUMS[:1]
        stored = ArrayStore.create(path, CONTRACTION_KIND, specs, sizes, {"wave": chunk}, compressed=False)
        chunks = [(start, min(start + chunk, n_waves)) for start in range(0, n_waves, chunk)]
        shards = [(group[0][0], group[-1][1]) for group in in_groups(chunks, self.plan.n_shards)]
        task = self.executor.share(Contraction(self._rows(), path))
        for link, rows in enumerate(pieces):
            self.executor.map(contract_link, shards, task, link, rows)
            advance()
        stored.finish()

    def _solve(self, path: Path, sums: Path, n_links: int) -> None:
        frequencies, features = self.choices.frequencies, self.choices.features
        sizes = {"frequency": len(frequencies), "rank": features.rank, "basis": self.choices.basis.rank}
        dtype = np.result_type(self.settings.dtype, np.complex64).name
        specs = [replace(spec, dtype=dtype) for spec in PAIRED_OPERATOR]
        chunks = {"frequency": FREQUENCY_CHUNK}
        stored = ArrayStore.create(path, OPERATOR_KIND, specs, sizes, chunks, compressed=False)
        task = SolveTask(
            sums,
            "first" if n_links % 2 else "second",
            path,
            features,
            self.sums.gram.sum(axis=0),
            self.sums.n_transitions,
            self.ridge_gamma,
        )
        blocks = even_ranges(len(frequencies), FREQUENCY_CHUNK)
        self.executor.map(solve_waves, blocks, self.executor.share(task))
        stored.finish()


def _total(total: Compressed, number: int, source: PairedPoints) -> Compressed:
    """What a group gives."""
    return total
