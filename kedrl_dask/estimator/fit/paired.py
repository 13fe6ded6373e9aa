"""The stages of the paired construction: contraction, conditioning points and the problem to solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from kedrl_dask.engine.passes import paired_target
from kedrl_dask.engine.passes.chunk_sums import ChunkSums
from kedrl_dask.engine.passes.continuation import Continuation
from kedrl_dask.engine.passes.paired_objective import ContractedTarget, PairedObjective, SweptTarget, Target
from kedrl_dask.engine.passes.paired_target import (
    Compressed,
    Contraction,
    PairedPoints,
    PairedRows,
    contract_link,
)
from kedrl_dask.engine.plan import partition
from kedrl_dask.engine.plan.partition import LINK_GROUPS, even_ranges, in_groups, row_ranges, sweep_groups
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.cache import Facts
from kedrl_dask.engine.storage.directories import part_name
from kedrl_dask.engine.storage.schema import PAIRED_OPERATOR, PAIRED_SUMS, ArraySpec
from kedrl_dask.estimator.fit.conditioning import file_conditioning
from kedrl_dask.estimator.fit.problem import Prepared
from kedrl_dask.estimator.fit.regression import RegressionSums
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.utils.arrays import Vector
from kedrl_dask.utils.progress import Advance, Reporter

#: Chunks of conditioning points that one thread compresses: a constant, so that results do not vary.
MERGED_CHUNKS = 8


@dataclass(frozen=True)
class Pairing:
    """What the stages start from; ``facts`` identify φ and κ of all transitions."""

    start: Prepared
    sums: RegressionSums
    continuation: Continuation
    facts: Facts

    def problem(self, reporter: Reporter) -> tuple[PairedObjective, Vector]:
        """The criterion, ready for a solver; and the mass ΣΓ at the conditioning points."""
        start, settings, choices = self.start, self.start.settings, self.start.choices
        path = self._contract(reporter) if start.plan.form == "contracted" else None
        ranges = settings.ranges(start.store.base.n_transitions)
        filed = file_conditioning(settings, start.store, start.operators.kernel, start.cache)
        source = PairedPoints(filed, start.operators, choices.basis)
        with reporter.stage("conditioning points", -(-len(ranges) // MERGED_CHUNKS)) as advance:
            compressed = self._compress(source, ranges, advance)
        space = ReturnSpace.build(choices.grid, choices.frequencies, settings.discount, choices.return_kernel)
        target, groups = self._target(path, compressed, space), in_groups(ranges, start.executor.n_threads)
        sums = ChunkSums(start.executor, source, groups, "recomputed")
        last = space, start.penalties, start.ridge_b, settings.dtype
        return PairedObjective(target, compressed, sums, source, *last), compressed.mass

    def _compress(self, source: PairedPoints, ranges: list[tuple[int, int]], advance: Advance) -> Compressed:
        groups = in_groups(ranges, -(-len(ranges) // MERGED_CHUNKS))
        shared = self.start.executor.share(source)
        compress, merge = paired_target.compress_points, paired_target.merge_points
        parts = self.start.executor.reduce(compress, groups, merge, _total, shared, advance=advance)
        return reduce(merge, parts)

    def _target(self, path: Path | None, compressed: Compressed, space: ReturnSpace) -> Target:
        start, executor, dtype = self.start, self.start.executor, self.start.settings.dtype
        terminal, residency = start.operators.terminal, start.plan.residency
        if path is not None:
            operator = paired_target.Operator(path, terminal, space)
            blocks = even_ranges(len(start.choices.frequencies), partition.FREQUENCY_SHARD)
            held = ChunkSums(executor, operator, in_groups(blocks, executor.n_threads), residency)
            return ContractedTarget(executor, operator, held, compressed.points, dtype)
        pieces = row_ranges(start.store.n_rows, sweep_groups(start.store.n_rows))
        swept = ChunkSums(executor, self.rows(), in_groups(pieces, executor.n_threads), residency)
        gram, features = self.sums.gram.sum(axis=0), start.choices.features
        gram = gram + self.sums.n_transitions * start.ridges.gamma * np.eye(len(gram))
        return SweptTarget(executor, swept, compressed.points, features, gram, space, terminal, dtype)

    def rows(self) -> PairedRows:
        """The transitions, in the form that the target needs."""
        choices, dtype, source = self.start.choices, self.start.settings.dtype, self.start.store.source
        features, basis = choices.features.astype(dtype), choices.basis.astype(dtype)
        return PairedRows(source, features, basis, choices.frequencies, self.continuation)

    def _contract(self, reporter: Reporter) -> Path:
        """Path of the operator P; it and its sums are reused if they depend on the same facts."""
        pieces = row_ranges(self.start.store.n_rows, LINK_GROUPS)
        frequencies = self.start.choices.frequencies
        blocks = even_ranges(len(frequencies), partition.FREQUENCY_CHUNK)
        sums_facts = {**self.facts, "frequencies": frequencies, "basis": self.start.choices.basis.whitening}
        facts = {**sums_facts, "ridge": self.start.ridges.gamma}

        def create(_: str, path: Path) -> None:
            sizes = {"frequency": len(frequencies), "rank": self.start.choices.features.rank}
            dtype = np.result_type(self.start.settings.dtype, np.complex64).name
            specs = [replace(spec, dtype=dtype) for spec in PAIRED_OPERATOR]
            self._create(path, paired_target.OPERATOR_KIND, specs, sizes, {"frequency": blocks[0][1]})

        with reporter.stage("contraction", len(pieces)) as advance:

            def compute(paths: dict[str, Path], numbers: list[int]) -> None:
                sums = self._sum(sums_facts, pieces, advance)
                chosen = [(i, blocks[i]) for i in numbers]
                self._solve(paths["paired-operator"], sums, len(pieces), chosen)

            paths = self.start.cache.complete({"paired-operator": facts}, len(blocks), create, compute)
        return paths["paired-operator"]

    def _create(
        self, path: Path, kind: str, specs: Sequence[ArraySpec], sizes: dict[str, int], chunks: dict[str, int]
    ) -> None:
        sizes = {**sizes, "basis": self.start.choices.basis.rank}
        ArrayStore.create(path, kind, specs, sizes, chunks, compressed=False).finish()

    def _sum(self, facts: Facts, pieces: list[tuple[int, int]], advance: Advance) -> Path:
        """Path of the sums; existing links are not repeated."""
        n_waves, chunk = 2 * len(self.start.choices.frequencies), 2 * partition.FREQUENCY_CHUNK
        specs = PAIRED_SUMS if len(pieces) > 1 else PAIRED_SUMS[:1]

        def create(path: Path) -> None:
            sizes = {"wave": n_waves, "rank": self.start.choices.features.rank}
            self._create(path, paired_target.CONTRACTION_KIND, specs, sizes, {"wave": chunk})

        path = self.start.cache.open("paired-sums", facts, create)
        chunks = [(start, min(start + chunk, n_waves)) for start in range(0, n_waves, chunk)]
        done = self._links(path, len(chunks), [spec.name for spec in specs])
        task = self.start.executor.share(Contraction(self.rows(), path))
        for link, rows in enumerate(pieces):
            shards = self._shards([i for i, n_links in enumerate(done) if n_links <= link])
            which = [(chunks[shard[0]][0], chunks[shard[-1]][1]) for shard in shards]
            self.start.executor.map(contract_link, which, task, link, rows)
            advance()
        return path

    def _links(self, path: Path, n_chunks: int, names: list[str]) -> list[int]:
        """Number of links in the sums of each chunk of waves, in the array that has more of them."""
        places = [(i, name) for i in range(n_chunks) for name in names]
        lacking = set(self.start.cache.lacking(path, [part_name(*place) for place in places]))
        sums, done = ArrayStore.open(path, paired_target.CONTRACTION_KIND), [0] * n_chunks
        for i, name in places:
            if part_name(i, name) not in lacking:
                done[i] = max(done[i], sums.entry(i, name)["link"] + 1)
        return done

    def _shards(self, chunks: list[int]) -> list[list[int]]:
        """Group neighbouring chunks into about as many tasks as planned."""
        runs: list[list[int]] = []
        for i in chunks:
            if not runs or i != runs[-1][-1] + 1:
                runs.append([])
            runs[-1].append(i)
        n_shards = self.start.plan.n_shards
        return [shard for run in runs for shard in in_groups(run, -(-len(run) * n_shards // len(chunks)))]

    def _solve(self, path: Path, sums: Path, n_links: int, blocks: list[tuple[int, tuple[int, int]]]) -> None:
        regression = self.sums.gram.sum(axis=0), self.sums.n_transitions, self.start.ridges.gamma
        side = "first" if n_links % 2 else "second"
        task = paired_target.SolveTask(sums, side, path, self.start.choices.features, *regression)
        self.start.executor.map(paired_target.solve_waves, blocks, self.start.executor.share(task))


def _total(total: Compressed, group: object, source: PairedPoints) -> Compressed:
    """The result of a group."""
    return total
