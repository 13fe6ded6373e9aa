"""Untrusted tables, read piece by piece.

Files are read one after another, rather than with ``pyarrow.dataset``, whose scanner reads ahead and decodes
whole row groups: here memory depends on the piece alone. CSV files are read as text, because a type inferred
from their first rows may not fit the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.untrusted import MOST_FILE_BYTES, check_file, checked_path
from kedrl_dask.utils.checks import check_word, cut, has_control_characters, shown

TableLike = object  # a pandas DataFrame, a pyarrow Table or a path; pyarrow is untyped

#: Most rows read at a time, and bytes of CSV.
PIECE_ROWS, CSV_BLOCK = 65_536, 2**23
#: File name extensions of each format.
FORMATS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
    "arrow": (".arrow", ".feather", ".ipc"),
}
#: Texts that count as missing in a CSV file.
MISSING_TEXTS = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]


@dataclass(frozen=True)
class Piece:
    """Some rows of a file: the file's number, the number of the first row, and the columns by name."""

    file: int
    first: int
    columns: dict[str, pa.Array]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values())))


class Source(Protocol):
    """A table in one or several parts."""

    @property
    def files(self) -> Sequence[str]:
        """Names of the parts."""

    def pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        """Yield the named columns, some rows at a time, in the same order each time."""


def open_source(source: TableLike, format: str | None = None) -> Source:
    """Open a pandas DataFrame, a pyarrow Table, a file, or a directory of files of one format."""
    if isinstance(source, pd.DataFrame):
        return _Frame(source)
    if isinstance(source, pa.Table):
        return _Arrow(source)
    if format is not None:
        check_word("format", format, tuple(FORMATS))
    return _files(checked_path(source, "source"), format)


def _select(names: Sequence[str], found: Sequence[str], where: str) -> None:
    for name in names:
        if list(found).count(name) != 1:
            problem = "does not exist" if name not in found else "exists twice"
            raise DataError(
                f"{where}: column {name!r} {problem}; the columns are {cut(', '.join(map(repr, found)))}"
            )


class _Frame:
    """A DataFrame in memory."""

    files = ("the DataFrame",)

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        _select(names, list(self._frame.columns), self.files[0])
        for first in range(0, len(self._frame), PIECE_ROWS):
            rows = self._frame.iloc[first : first + PIECE_ROWS]
            yield Piece(0, first, {name: self._array(rows[name], name, first) for name in names})

    def _array(self, values: pd.Series, name: str, first: int) -> pa.Array:
        try:
            array = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"{self.files[0]}: column {name!r} has values of different types after row {first} "
                f"({cut(str(error))}); give it one type, e.g. with astype(float) or astype(str)"
            ) from error
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


class _Arrow:
    """A pyarrow Table in memory."""

    files = ("the Table",)

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        _select(names, self._table.column_names, self.files[0])
        first = 0
        for batch in self._table.select(list(names)).to_batches(max_chunksize=PIECE_ROWS):
            yield Piece(0, first, dict(zip(names, batch.columns, strict=True)))
            first += len(batch)


class _Files:
    """Files of one format; a directory named key=value gives a column to every row below it."""

    def __init__(self, root: Path, paths: list[Path], format: str) -> None:
        self.files = [str(path) for path in paths]
        self._paths, self._format = paths, format
        self._keys = [_partition(path.relative_to(root).parts[:-1] if path != root else ()) for path in paths]

    def pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        for number, (path, keys) in enumerate(zip(self._paths, self._keys, strict=True)):
            stored = [name for name in names if name not in keys]
            same = {key: text for key, text in keys.items() if key in names}
            with _reported(path) as reading:
                for batch in _READERS[self._format](path, stored):
                    columns = dict(zip(stored, batch.columns, strict=True))
                    columns |= {k: pa.array([text] * len(batch), pa.string()) for k, text in same.items()}
                    if len(batch):
                        yield Piece(number, reading.row, columns)
                    reading.row += len(batch)


def _files(path: Path, format: str | None) -> _Files:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory; check the path")
    if not path.is_dir():
        check_file(path, MOST_FILE_BYTES)
        return _Files(path, [path], format or _format_of(path))
    below = [entry for entry in path.rglob("*") if not _is_hidden(entry.relative_to(path))]
    formats = {found for entry in below if (found := _named_format(entry)) and not entry.is_dir()}
    if format is None and len(formats) > 1:
        raise ValueError(f"{path}: has files of the formats {', '.join(sorted(formats))}; give format")
    chosen = format or next(iter(formats), None)
    paths = sorted(entry for entry in below if not entry.is_dir() and _named_format(entry) == chosen)
    if chosen is None or not paths:
        raise ValueError(f"{path}: contains no table, {_known()}; give a file, or the directory of several")
    for entry in paths:
        if has_control_characters(str(entry)):
            raise ValueError(f"{path}: the file name {shown(entry.name)} has control characters; rename it")
        check_file(entry, MOST_FILE_BYTES)
    return _Files(path, paths, chosen)


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _named_format(path: Path) -> str | None:
    return next((name for name, ends in FORMATS.items() if path.name.lower().endswith(ends)), None)


def _format_of(path: Path) -> str:
    found = _named_format(path)
    if found is None:
        raise ValueError(f"{path}: has no known file name extension, {_known()}; give format")
    return found


def _known() -> str:
    return "; ".join(f"{name}: {', '.join(ends)}" for name, ends in FORMATS.items())


def _partition(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the keys and values in the names of directories, as Hive writes them."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {
        unquote(key): None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
        for key, value in pairs
    }


class _Reading:
    """Number of rows of a file read so far."""

    row = 0


@contextmanager
def _reported(path: Path) -> Iterator[_Reading]:
    """Turn any error of a reader of an untrusted file into one that names the file."""
    reading = _Reading()
    try:
        yield reading
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(
            f"{path}: cannot be read after row {reading.row} ({type(error).__name__}: {cut(str(error))}); "
            "check the file, or write it again"
        ) from error


def _parquet(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
        _select(names, file.schema_arrow.names, str(path))
        for batch in file.iter_batches(PIECE_ROWS, columns=names, use_threads=True):
            yield batch.select(names)


def _arrow(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with ipc.open_file(path) as file:
        _select(names, file.schema.names, str(path))
        for i in range(file.num_record_batches):
            batch = file.get_batch(i).select(names)
            batch.validate(full=True)  # lengths and offsets are untrusted until then
            for first in range(0, len(batch), PIECE_ROWS):
                yield batch.slice(first, PIECE_ROWS)


def _csv(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False)
    with csv.open_csv(path, read_options=csv.ReadOptions(use_threads=False), parse_options=parse) as file:
        _select(names, file.schema.names, str(path))
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=names,
        null_values=MISSING_TEXTS,
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    with csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert) as file:
        for batch in file:
            for first in range(0, len(batch), PIECE_ROWS):
                yield batch.slice(first, PIECE_ROWS)


_READERS = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}
