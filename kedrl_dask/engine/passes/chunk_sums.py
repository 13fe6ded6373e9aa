"""Sums of a function over chunks, which are kept on workers, read from a store, or recomputed each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Generic, Protocol, TypeVar, cast

from kedrl_dask.engine.execute.executor import Executor, Result, Shared
from kedrl_dask.engine.plan.partition import Node, Range, fold
from kedrl_dask.engine.plan.stage_costs import Residency

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: Numbers and arrays that are added entry by entry.
Total = TypeVar("Total", bound=tuple[Any, ...])

#: Values of a group of chunks, each with the number of its chunk.
Numbered = Iterable[tuple[int, T]]


class Source(Protocol[T_co]):
    """Where chunks come from."""

    def load(self, rows: Range) -> T_co:
        """Read the chunk, or make one that can stay in memory."""

    def compute(self, rows: Range) -> T_co:
        """Compute the chunk without reading it."""


class ChunkSums(Generic[T]):
    """Sums over all chunks, which are ranges of rows, with one task for each group of chunks.

    Chunks are added in a tree that depends only on their number, so results do not depend on the groups.
    """

    def __init__(
        self, executor: Executor, source: Source[T], groups: Sequence[Sequence[Range]], residency: Residency
    ) -> None:
        numbers = count()
        self._executor, self._residency = executor, residency
        self._source = executor.share(source)
        self._ranges = [[(next(numbers), rows) for rows in group] for group in groups]
        self._held: list[list[tuple[int, T]]] = []
        if residency == "resident":
            self._held = executor.hold(_load, self._ranges, self._source)

    def sum(self, function: Callable[[T, *Shared], Total], *shared: *Shared) -> Total:
        """Sum of ``function(chunk, *shared)``, entry by entry."""
        groups = self.each(over_group, function, *shared)
        total, *others = (node.value for node in fold((node for group in groups for node in group), add))
        for other in others:
            total = add(total, other)
        return total

    def each(self, task: Callable[[Numbered[T], *Shared], Result], *shared: *Shared) -> list[Result]:
        """Results of ``task(chunks, *shared)`` for each group."""
        if self._residency == "resident":
            return self._executor.map(task, self._held, *shared)
        return self._executor.map(_made, self._ranges, self._source, self._residency, task, *shared)


def _load(group: Numbered[Range], source: Source[T]) -> list[tuple[int, T]]:
    return [(number, source.load(rows)) for number, rows in group]


def _made(
    group: Numbered[Range],
    source: Source[T],
    residency: Residency,
    task: Callable[[Numbered[T], *Shared], Result],
    *shared: *Shared,
) -> Result:
    """Run a task on chunks that are read or computed one after the other."""
    make = source.load if residency == "stored" else source.compute
    return task(((number, make(rows)) for number, rows in group), *shared)


def over_group(
    chunks: Numbered[T], function: Callable[[T, *Shared], Total], *shared: *Shared
) -> list[Node[Total]]:
    """Sums of a chunk function over the chunks of a group."""
    return fold((Node(number, 1, function(chunk, *shared)) for number, chunk in chunks), add)


def add(first: Total, second: Total) -> Total:
    """Add entry by entry."""
    return cast(Total, tuple(a + b for a, b in zip(first, second, strict=True)))
