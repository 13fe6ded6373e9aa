"""The first pass over a table, which checks every value and gathers what the second pass needs.

Nothing depends on the order of the rows: levels are sorted, and sums are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from kedrl_dask.engine.data.encoding import Encoding, Part, StateColumn, level_text
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.ingest.columns import Columns
from kedrl_dask.engine.ingest.parsing import Kinds, Parsed, kinds_of, parse
from kedrl_dask.engine.ingest.readers import Piece, Source
from kedrl_dask.utils.arrays import Array, Vector

#: Most levels of a categorical column, each of which becomes a column of the state.
MOST_LEVELS = 1_000
#: Most rows, at equal distances, whose episodes determine the edges of the buckets.
SAMPLED = 2**16
#: Bits of a float's mantissa, and of one of the halves whose sums over a piece are exact.
MANTISSA, HALF = 53, 27


class ExactSum:
    """Exact sum of floats, which does not depend on their order."""

    def __init__(self) -> None:
        self.count = 0
        self._by_exponent: Counter[int] = Counter()

    def add(self, values: Vector) -> None:
        """Add finite numbers."""
        mantissa, exponent = np.frexp(values)
        whole = (mantissa * 2.0**MANTISSA).astype(np.int64)
        self.count += values.size
        for e in np.unique(exponent).tolist():
            chosen = whole[exponent == e]
            high, low = chosen >> HALF, chosen & (2**HALF - 1)
            self._by_exponent[e] += (int(high.sum()) << HALF) + int(low.sum())

    @property
    def mean(self) -> float:
        """The mean, rounded once."""
        total = sum(
            (Fraction(n) * Fraction(2) ** (e - MANTISSA) for e, n in self._by_exponent.items()), Fraction()
        )
        return float(total / self.count)


@dataclass(frozen=True)
class Survey:
    """Findings of the first pass."""

    n_rows: int
    kinds: Kinds
    episodes: Array  # those of some rows, sorted
    encoding: Encoding


def survey(
    source: Source, columns: Columns, standardised: Sequence[Part], advance: Callable[..., None]
) -> Survey:
    """Read all rows once, and refuse values that cannot be stored."""
    found = _Found(columns)
    for piece in source.pieces(columns.names):
        kinds = found.settle(kinds_of(piece, columns), piece)
        found.add(parse(piece, columns, kinds, source.files), source.files[piece.file])
        advance(len(piece))
    if found.n_rows == 0:
        raise DataError(
            f"{source.files[0]}: has 0 rows, expected at least one recorded time point; give another table"
        )
    state = tuple(found.column(name, source.files[0]) for name in columns.state)
    encoding = Encoding(state, columns.action, columns.reward, tuple(standardised))
    return Survey(found.n_rows, found.kinds, found.episodes, encoding)


class _Found:
    """Findings so far."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.n_rows, self._stride = columns, 0, 1
        self.sums = {name: ExactSum() for name in columns.numeric if columns.missing[name] == "impute"}
        self.levels: dict[str, set[str]] = {name: set() for name in columns.categorical}
        self.with_missing: set[str] = set()
        self._is_text = False
        self._order: Literal["number", "timestamp"] | None = None
        self._sampled: list[int | str] = []

    def settle(self, own: Kinds, piece: Piece) -> Kinds:
        """Return how to read a piece: its episodes on their own, times as in the first piece with any."""
        self._is_text |= own.episode == "text"
        order = piece.columns[self.columns.order]
        if self._order is None and order.null_count < len(order):
            self._order = own.order
        return replace(own, order=self._order or "number")

    @property
    def kinds(self) -> Kinds:
        """How to read all pieces: episodes are text if any of them is not an integer."""
        return Kinds("text" if self._is_text else "integer", self._order or "number")

    def add(self, rows: Parsed, file: str) -> None:
        """Add the rows of a piece."""
        for name, total in self.sums.items():
            present = rows.numbers[name][~np.isnan(rows.numbers[name])]
            total.add(present)
            if len(present) < len(rows.numbers[name]):
                self.with_missing.add(name)
        for name, found in rows.levels.items():
            self.levels[name].update(found.texts)
            if (found.position < 0).any() and self.columns.missing[name] == "impute":
                self.with_missing.add(name)
            if len(self.levels[name]) > MOST_LEVELS:
                raise DataError(
                    f"{file}: column {name!r} has more than {MOST_LEVELS:,} levels, each of which would be a "
                    "column of the state; group them, or leave it out of categorical if it is a number"
                )
        self._sampled += rows.episode[-self.n_rows % self._stride :: self._stride].tolist()
        self.n_rows += len(rows.episode)
        while len(self._sampled) > SAMPLED:
            self._sampled, self._stride = self._sampled[::2], 2 * self._stride

    @property
    def episodes(self) -> Array:
        """Sorted episodes of some rows."""
        if self._is_text:
            return np.array(sorted(str(level_text(value)) for value in self._sampled), dtype=object)
        return np.sort(np.array(self._sampled, dtype=np.int64))

    def column(self, name: str, file: str) -> StateColumn:
        """Return the encoding of a state column."""
        is_missing = name in self.with_missing
        if name in self.levels:
            if not self.levels[name]:
                raise DataError(f"{file}: column {name!r} is missing in every row; leave it out")
            return StateColumn(name, tuple(sorted(self.levels[name])), None, is_missing)
        if not is_missing:
            return StateColumn(name)
        if self.sums[name].count == 0:
            raise DataError(f"{file}: column {name!r} is missing in every row; leave it out")
        return StateColumn(name, None, self.sums[name].mean, True)
