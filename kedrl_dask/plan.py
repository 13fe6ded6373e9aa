"""Division of work, in plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeVar

__all__ = ["Residency", "even_ranges", "in_groups"]

#: Where the conditioning points are while the solver runs.
Residency = Literal["resident", "stored", "recomputed"]
T = TypeVar("T")


def in_groups(items: Sequence[T], n_groups: int) -> list[list[T]]:
    """Deal items out to at most ``n_groups`` runs of neighbours, as even as can be.

    Examples
    --------
    >>> in_groups([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4, 5]]
    """
    n_groups = min(n_groups, len(items))
    edges = [i * len(items) // n_groups for i in range(n_groups + 1)]
    return [list(items[a:b]) for a, b in pairwise(edges)]


def even_ranges(n: int, at_most: int) -> list[tuple[int, int]]:
    """Cut range(n) into the fewest ranges of at most ``at_most``, all of one length but the last.

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
