"""Division of work, in plain integers."""

from __future__ import annotations

__all__ = ["even_ranges"]


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
