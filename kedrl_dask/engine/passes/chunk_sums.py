"""Sums of a function over chunks that stay with their workers, are read, or are made anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.plan.partition import Node, fold
from kedrl_dask.engine.plan.stage_costs import Residency

__all__ = ["ChunkSums", "Ranges", "Source"]

Ranges = Sequence[tuple[int, int]]


class Source(Protocol):
    """Where chunks come from."""

    def load(self, rows: tuple[int, int]) -> Any:
        """Read the chunk, or make one that can stay in memory."""

    def compute(self, rows: tuple[int, int]) -> Any:
        """Make the chunk without reading it."""


class ChunkSums:
    """Sums over all chunks, always in the same order.

    One task for each group of chunks. Sums over chunks are taken in a tree that depends on their number
    alone, so that results do not depend on the groups.

    Parameters
    ----------
    executor : Executor
    source : Source
    groups : sequence of sequences of (start, stop)
        Chunks, in the groups that one task takes.
    residency : Residency
    """

    def __init__(
        self, executor: Executor, source: Source, groups: Sequence[Ranges], residency: Residency
    ) -> None:
        self._executor, self._residency = executor, residency
        self._source = executor.share(source)
        self._groups: list[Any] = _numbered(groups)
        if residency == "resident":
            self._groups = executor.hold(_load, self._groups, self._source)

    def sum(self, function: Callable[..., tuple[Any, ...]], *shared: Any) -> tuple[Any, ...]:
        """Sum of ``function(chunk, *shared)``, entry by entry."""
        nodes = fold([node for group in self.each(over_group, function, *shared) for node in group], add)
        total: tuple[Any, ...] = nodes[0].value
        for node in nodes[1:]:
            total = add(total, node.value)
        return total

    def each(self, task: Callable[..., Any], *shared: Any) -> list[Any]:
        """Results of ``task(group, source, residency, *shared)`` for each group."""
        return self._executor.map(task, self._groups, self._source, self._residency, *shared)


def _numbered(groups: Sequence[Ranges]) -> list[list[tuple[int, tuple[int, int]]]]:
    """Groups of chunks, each with its number among all."""
    numbers = count()
    return [[(next(numbers), rows) for rows in group] for group in groups]


def _load(group: list[tuple[int, tuple[int, int]]], source: Source) -> list[tuple[int, Any]]:
    return [(number, source.load(rows)) for number, rows in group]


def over_group(
    group: list[tuple[int, Any]],
    source: Source,
    residency: Residency,
    function: Callable[..., Any],
    *shared: Any,
) -> list[Node]:
    """Sums of a chunk function over a group: of chunks in memory, or of ranges to make them from."""
    make = {"resident": lambda chunk: chunk, "stored": source.load, "recomputed": source.compute}[residency]
    return fold((Node(number, 1, function(make(chunk), *shared)) for number, chunk in group), add)


def add(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    """Entry by entry."""
    return tuple(a + b for a, b in zip(first, second, strict=True))
