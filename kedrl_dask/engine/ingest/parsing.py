"""Conversion of the columns of a piece to numbers, with errors that name file, row and column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kedrl_dask.engine.data.encoding import level_text
from kedrl_dask.engine.data.validation import LARGEST, DataError
from kedrl_dask.engine.ingest.columns import Columns
from kedrl_dask.engine.ingest.readers import Piece
from kedrl_dask.utils.arrays import Array, Indices, Mask, Vector
from kedrl_dask.utils.checks import has_control_characters, shown

#: Canonical texts of integers: if several texts meant one integer, two episodes would become one.
INTEGER = r"^-?(0|[1-9][0-9]{0,17})(\.0+)?$"
_FLAGS = {"true": True, "True": True, "TRUE": True, "1": True, "1.0": True}
_FLAGS |= {"false": False, "False": False, "FALSE": False, "0": False, "0.0": False}
_EXACT = 2.0**53


@dataclass(frozen=True)
class Kinds:
    """The types of episodes and of their order in a table."""

    episode: Literal["integer", "text"] = "integer"
    order: Literal["number", "timestamp"] = "number"


@dataclass(frozen=True)
class Levels:
    """A categorical column: its texts, and each row's position among them, −1 where it is missing."""

    texts: list[str]
    position: Indices


@dataclass(frozen=True)
class Parsed:
    """The rows of a piece as numbers."""

    episode: Array  # int64, or text
    order: Array  # steps or times; arbitrary where missing
    numbers: dict[str, Vector]  # NaN where missing
    levels: dict[str, Levels]
    terminated: Mask
    truncated: Mask
    dropped: Mask  # whether the row's episode is to be dropped


def kinds_of(piece: Piece, columns: Columns) -> Kinds:
    """Return the types of episodes and order in one piece on its own."""
    episode, order = _plain(piece.columns[columns.episode]), _plain(piece.columns[columns.order])
    # Text counts as integers where it can, so that CSV and other formats agree.
    is_integer = not pa.types.is_string(episode.type) or bool(
        pc.all(pc.match_substring_regex(episode.drop_null(), INTEGER), min_count=0).as_py()
    )
    is_time = pa.types.is_temporal(order.type)
    if pa.types.is_string(order.type) and not columns.has_steps:
        first = order.drop_null()[:1]
        is_time = len(first) > 0 and _try(lambda: first.cast(pa.float64())) is None
    return Kinds("integer" if is_integer else "text", "timestamp" if is_time else "number")


def parse(piece: Piece, columns: Columns, kinds: Kinds, files: Sequence[str]) -> Parsed:
    """Return all columns of a piece, or raise an error that names the row of a value that cannot be used."""
    reader = _Reader(piece, columns, files)
    terminated, truncated = (
        reader.flags(name) if name else np.zeros(len(piece), dtype=bool)
        for name in (columns.terminated, columns.truncated)
    )
    return Parsed(
        episode=reader.episode(kinds.episode),
        order=reader.order(kinds.order),
        numbers={name: reader.numbers(name) for name in columns.numeric},
        levels={name: reader.levels(name) for name in columns.categorical},
        terminated=terminated,
        truncated=truncated,
        dropped=reader.dropped,
    )


class _Reader:
    """The columns of one piece."""

    def __init__(self, piece: Piece, columns: Columns, files: Sequence[str]) -> None:
        self._piece, self._columns, self._file = piece, columns, files[piece.file]
        self._arrays = {name: _plain(array, self._file, name) for name, array in piece.columns.items()}
        self.dropped = np.zeros(len(piece), dtype=bool)

    def _refuse(self, name: str, row: int, expected: str, remedy: str) -> DataError:
        value = self._arrays[name][row].as_py()
        found = "missing" if value is None or value != value else shown(value)
        return DataError(
            f"{self._file}: row {self._piece.first + row}, column {name!r} is {found}, expected "
            f"{expected}; {remedy}"
        )

    def _settle(self, name: str, missing: Mask, expected: str) -> None:
        """Treat the missing values of a column according to its policy."""
        if not missing.any():
            return
        policy = self._columns.missing[name]
        if policy == "drop":
            self.dropped |= missing
        elif policy == "refuse":
            impute = ", or 'impute'" if name in self._columns.state else ""
            remedy = f"fill it in, or give missing='drop' to leave out its episode{impute}"
            raise self._refuse(name, int(np.argmax(missing)), expected, remedy)

    def numbers(self, name: str) -> Vector:
        """Return the numbers of a column, NaN where missing."""
        values = self._floats(name, "a number", self._remedy(name))
        missing = np.isnan(values)
        wrong = ~missing & ~(np.abs(values) <= LARGEST)
        if wrong.any():
            raise self._refuse(
                name, int(np.argmax(wrong)), f"at most {LARGEST:g} in size", "give the column in other units"
            )
        self._settle(name, missing, "a number")
        return values

    def _remedy(self, name: str) -> str:
        if name in self._columns.state:
            return f"correct it, or name {name!r} in categorical if it has levels"
        return "correct it"

    def _floats(self, name: str, expected: str, remedy: str) -> Vector:
        array = self._arrays[name]
        if pa.types.is_temporal(array.type):
            raise self._refuse(name, 0, expected, "convert the column to numbers")
        values = _try(lambda: array.cast(pa.float64(), safe=False))
        return _to_numpy(self._cleaned(name, expected, remedy) if values is None else values, np.nan)

    def _cleaned(self, name: str, expected: str, remedy: str) -> pa.Array:
        """Convert text to numbers after removing spaces around it and replacing flags, or raise an error."""
        array = pc.utf8_trim_whitespace(self._arrays[name])
        array = pc.if_else(pc.equal(array, ""), None, array)
        for text, number in (("true", "1"), ("false", "0")):
            array = pc.replace_substring_regex(array, f"^(?i){text}$", number)
        values = _try(lambda: array.cast(pa.float64()))
        if values is not None:
            return values
        raise self._refuse(name, _first_wrong(array, lambda one: one.cast(pa.float64())), expected, remedy)

    def levels(self, name: str) -> Levels:
        """Return the texts of a categorical column."""
        encoded = self._arrays[name].dictionary_encode()
        texts = [level_text(value) for value in encoded.dictionary.to_pylist()]
        for i, text in enumerate(texts):
            if text is not None and has_control_characters(text):
                row = int(np.argmax(_to_numpy(encoded.indices, -1) == i))
                raise self._refuse(name, row, "text that can be printed", "replace the control characters")
        known = sorted({text for text in texts if text is not None})
        place = {text: i for i, text in enumerate(known)}
        # The last entry is that of a null.
        places = np.array([-1 if text is None else place[text] for text in [*texts, None]], dtype=np.int32)
        position = places[_to_numpy(encoded.indices, len(texts)).astype(np.int64)]
        self._settle(name, position < 0, "a level")
        return Levels(known, position)

    def flags(self, name: str) -> Array:
        """True and False, or 1 and 0."""
        array = self._arrays[name]
        encoded = array.dictionary_encode()
        values = [_FLAGS.get(str(level_text(value))) for value in encoded.dictionary.to_pylist()]
        if None in values:
            row = int(np.argmax(_to_numpy(encoded.indices, -1) == values.index(None)))
            raise self._refuse(name, row, "True or False (or 1 or 0)", "correct it")
        indices = _to_numpy(encoded.indices, -1).astype(np.int64)
        self._settle(name, indices < 0, "True or False")
        return np.array([*values, False], dtype=bool)[indices]

    def episode(self, kind: str) -> Array:
        """Return the episodes as integers, or as Python strings."""
        name, array = self._columns.episode, self._arrays[self._columns.episode]
        remedy = "give every row the number or name of its episode"
        if array.null_count:
            raise self._refuse(name, int(np.argmax(array.is_null())), "an episode", remedy)
        if kind == "text":
            if not pa.types.is_string(array.type):
                texts = [level_text(value) for value in array.to_pylist()]
                array = pa.array(texts, pa.string())
            return array.to_numpy(zero_copy_only=False)
        if pa.types.is_string(array.type):
            array = pc.replace_substring_regex(array, r"\.0+$", "")
        values = _try(lambda: array.cast(pa.int64()))
        if values is None:
            floats = self._floats(name, "an integer or text", remedy)
            wrong = ~(np.abs(floats) < _EXACT) | (floats != np.floor(floats))
            raise self._refuse(name, int(np.argmax(wrong)), "an integer or text", remedy)
        return _to_numpy(values, 0)

    def order(self, kind: str) -> Array:
        """Return steps as integers; times as integers in nanoseconds, or as numbers."""
        name, array = self._columns.order, self._arrays[self._columns.order]
        expected = "a step" if self._columns.has_steps else "a time"
        if kind == "timestamp":
            times = _try(lambda: _as_timestamp(array))
            if times is None:
                row = _first_wrong(array, _as_timestamp)
                raise self._refuse(name, row, "a time like the others", "correct it")
            self._settle(name, np.asarray(times.is_null()), expected)
            return _to_numpy(times.cast(pa.int64()), 0)
        values = self._floats(name, expected, "correct it")
        missing = np.isnan(values)
        self._settle(name, missing, expected)
        values = np.where(missing, 0.0, values)
        if self._columns.has_steps:
            wrong = ~(np.abs(values) < _EXACT) | (values != np.floor(values))
            if wrong.any():
                remedy = "number the steps, or give the column as 'time'"
                raise self._refuse(name, int(np.argmax(wrong)), "an integer", remedy)
            return values.astype(np.int64)
        if np.isinf(values).any():
            raise self._refuse(name, int(np.argmax(np.isinf(values))), "a finite time", "correct it")
        return values


def _plain(array: pa.Array, file: str = "", name: str = "") -> pa.Array:
    """Return the array as one of a few types: numbers, flags, times or text."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode(), file, name)
    if str(kind) in ("null", "string", "large_string", "string_view"):
        return array.cast(pa.string())
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return array
    raise DataError(
        f"{file}: column {name!r} has the type {kind}, expected numbers, flags, times or text; convert it"
    )


def _as_timestamp(array: pa.Array) -> pa.Array:
    """Return times in nanoseconds, in UTC if they have a time zone."""
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        array = array.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
    return array.cast(pa.timestamp("ns"))


def _to_numpy(array: pa.Array, missing: float) -> Array:
    return np.asarray(pc.fill_null(array, missing).to_numpy(zero_copy_only=False))


def _first_wrong(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> int:
    """Return the first row that cannot be converted on its own; there must be one."""
    return next(row for row in range(len(array)) if _try(partial(convert, array[row : row + 1])) is None)


def _try(function: Callable[[], pa.Array]) -> pa.Array | None:
    """Return the result of a conversion, or None if Arrow refuses it."""
    try:
        return function()
    except pa.ArrowException:
        return None
