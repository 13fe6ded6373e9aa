"""Error messages that locate the first fault in a file by line and column."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from kedrl_dask.datasets.expedia.columns import COLUMNS, NEEDED, NULL, Column
from kedrl_dask.utils.checks import cut, shown

#: Most characters read from the header line.
LONGEST_LINE = 100_000


class FileError(ValueError):
    """The file is invalid; the message names the file, the line and the column."""


def check_header(path: Path) -> None:
    """Raise an error if the file lacks a column that the variables need."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        first = file.readline(LONGEST_LINE)
    if not first.strip():
        raise FileError(f"{path}: is empty, expected a header of {len(COLUMNS)} columns, and rows")
    names = next(csv.reader([first]))
    missing = [column.name for column in NEEDED if column.name not in names]
    if missing:
        outcomes = {"click_bool", "gross_bookings_usd"}
        hint = "; test.csv has no outcomes: use train.csv instead" if set(missing) <= outcomes else ""
        raise FileError(
            f"{path}: line 1 has no column {', '.join(missing)}; expected the {len(COLUMNS)} columns of the "
            f"published train.csv, found {len(names)}: {cut(', '.join(names), 200)}{hint}"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{path}: line 1 has the column {shown(twice)} more than once; remove all but one")


def find_fault(path: Path, reason: str) -> FileError:
    """Describe the first unreadable line; ``reason`` is the message of the fast reader."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(file)
        names = next(reader)
        needed = [(names.index(column.name), column) for column in NEEDED]
        for fields in reader:
            if len(fields) not in (0, len(names)):
                return FileError(
                    f"{path}: line {reader.line_num} has {len(fields)} entries, expected {len(names)} as in "
                    "the header; is the file truncated?"
                )
            for place, column in needed if fields else ():
                if not _is_readable(fields[place], column):
                    return FileError(
                        f"{path}: line {reader.line_num}, column {column.name}: is {shown(fields[place])}, "
                        f"expected {_EXPECTED[column.kind]} or {NULL}; correct the entry"
                    )
    return FileError(f"{path}: cannot be read: {cut(reason)}")


_EXPECTED = {"integer": "a whole number", "number": "a number", "time": "a time such as 2013-04-04 08:32:15"}


_READERS: dict[str, Callable[[str], object]] = {
    "integer": int,
    "number": float,
    "time": datetime.fromisoformat,
}


def _is_readable(text: str, column: Column) -> bool:
    if text in (NULL, ""):
        return True
    try:
        _READERS[column.kind](text)
    except ValueError:
        return False
    return True
