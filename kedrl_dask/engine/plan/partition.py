"""Division of the work into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

#: Number of rows in a group: their random actions come from one generator, and their features are in memory
#: together. Groups are counted from the first row of the store, so that draws do not depend on the division.
GROUP_ROWS = 2_048
#: Groups that are read together while the previous ones are processed; and in the first read.
READ_GROUPS, FIRST_READ = 16, 4
#: Groups of one task, whose sums are lost if its worker dies.
PIECE_GROUPS = 128
#: Groups after which the contraction of the paired target stores its sums.
LINK_GROUPS = 128
#: Maximum number of groups in a chunk of a sweep, and the preferred minimum number of chunks.
SWEEP_GROUPS, FEWEST_SWEPT = 4, 8
#: Frequencies whose products are formed together, and those of a chunk of the solver, a multiple of it.
FREQUENCY_CHUNK, FREQUENCY_SHARD = 4, 16

T = TypeVar("T")

#: Start and stop.
Range = tuple[int, int]


class RowBlock(NamedTuple):
    """A block of whole episodes, or a piece of such a block."""

    number: int
    start: int
    stop: int


def pieces(block: RowBlock) -> list[RowBlock]:
    """Cut a block at the starts of groups, into pieces of at most PIECE_GROUPS groups."""
    length = PIECE_GROUPS * GROUP_ROWS
    cuts = range((block.start // length + 1) * length, block.stop, length)
    return [RowBlock(block.number, *edges) for edges in pairwise([block.start, *cuts, block.stop])]


def in_groups(items: Sequence[T], n_groups: int) -> list[list[T]]:
    """Divide items into at most ``n_groups`` consecutive runs, as evenly as possible.

    Examples
    --------
    >>> in_groups([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4, 5]]
    """
    n_groups = min(n_groups, len(items))
    edges = [i * len(items) // n_groups for i in range(n_groups + 1)]
    return [list(items[a:b]) for a, b in pairwise(edges)]


def even_ranges(n: int, at_most: int) -> list[Range]:
    """Cut range(n) into as few ranges as possible, all of the same length except the last.

    Examples
    --------
    >>> even_ranges(10, 4)
    [(0, 4), (4, 8), (8, 10)]
    >>> even_ranges(9, 4)
    [(0, 3), (3, 6), (6, 9)]
    """
    if n < 1 or at_most < 1:
        raise ValueError(f"even_ranges: n is {n} and at_most {at_most}, expected at least 1")
    length = -(-n // -(-n // at_most))
    return [(start, min(start + length, n)) for start in range(0, n, length)]


def row_ranges(n_rows: int, n_groups: int) -> list[Range]:
    """Cut all rows into ranges of ``n_groups`` whole groups; the last one may be shorter."""
    length = n_groups * GROUP_ROWS
    return [(start, min(start + length, n_rows)) for start in range(0, n_rows, length)]


def sweep_groups(n_rows: int) -> int:
    """Number of groups in a chunk of a sweep; it depends only on the number of rows."""
    return min(SWEEP_GROUPS, max(1, n_rows // (FEWEST_SWEPT * GROUP_ROWS)))


class Node(NamedTuple, Generic[T]):
    """A node of a binary tree: the combined value of items ``start`` to ``start + size``."""

    start: int
    size: int
    value: T


def fold(nodes: Iterable[Node[T]], combine: Callable[[T, T], T]) -> list[Node[T]]:
    """Combine neighbours that are the two halves of a node in the binary tree over all items.

    Floating-point sums depend on their order. Folding consecutive parts separately, and then their results
    in order, always gives the same sum.

    Examples
    --------
    >>> fold([Node(i, 1, 2**i) for i in range(2, 7)], int.__add__)
    [Node(start=2, size=2, value=12), Node(start=4, size=2, value=48), Node(start=6, size=1, value=64)]
    """
    done: list[Node[T]] = []
    for node in nodes:
        done.append(node)
        while len(done) > 1 and done[-2].size == done[-1].size and done[-2].start % (2 * done[-1].size) == 0:
            right, left = done.pop(), done.pop()
            done.append(Node(left.start, 2 * left.size, combine(left.value, right.value)))
    return done
