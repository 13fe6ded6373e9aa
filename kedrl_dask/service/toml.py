"""TOML files with the lines of their keys for error messages, which the standard library does not give."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kedrl_dask.utils.arrays import Record

Key = tuple[str, ...]

#: A part of a dotted key: bare, or in quotes.
_PART = re.compile(r"""\s*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')\s*""")
#: Strings and comments, whose brackets, quotes and number signs a scan must skip.
_HIDDEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)


@dataclass(frozen=True)
class Toml:
    """The content of a file, and the line, from 1, where each key was first given, by its dotted parts."""

    path: Path
    content: Record
    lines: dict[Key, int] = field(default_factory=dict)

    def line(self, key: str | Key) -> int | None:
        """Line of a dotted key, or of the nearest table that holds it; None for a key at the top."""
        parts = tuple(key.split(".")) if isinstance(key, str) else key
        found = (self.lines.get(parts[:n]) for n in range(len(parts), 0, -1))
        return next((line for line in found if line is not None), None)


def read_toml(path: Path) -> Toml:
    """Read a file; errors name it, and the line if it is not TOML."""
    text = read_text(path)
    try:
        return Toml(path, tomllib.loads(text), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from error


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with universal newlines."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error


def key_lines(text: str) -> dict[Key, int]:
    """Line of each key of a valid TOML text, in inline tables too."""
    lines: dict[Key, int] = {}
    for key, position in _keys(text):
        lines.setdefault(key, text.count("\n", 0, position) + 1)
    return lines


def _keys(text: str) -> Iterator[tuple[Key, int]]:
    """Keys of the tables of a text, and where they begin."""
    table: Key = ()
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text[position] == "#":
            position = _line_end(text, position)
        elif text[position] == "[":
            table, _ = _dotted(text, position + (2 if text.startswith("[[", position) else 1))
            yield table, position
            position = _line_end(text, position)
        else:
            key, after = _dotted(text, position)
            yield (*table, *key), position
            stop = _value_end(text, after + 1)
            yield from _inline_keys(text, after + 1, stop, (*table, *key))
            position = stop


def _inline_keys(text: str, start: int, stop: int, table: Key) -> Iterator[tuple[Key, int]]:
    """Keys of an inline table and of those nested in it, but not of tables in arrays."""
    position = start + len(text[start:stop]) - len(text[start:stop].lstrip())
    if position >= stop or text[position] != "{":
        return
    position += 1
    while position < stop:
        if text[position] in ", \t\n\r":
            position += 1
        elif text[position] == "}":
            return
        elif text[position] == "#":
            position = _line_end(text, position)
        else:
            key, after = _dotted(text, position)
            yield (*table, *key), position
            end = _value_end(text, after + 1, inside=True)
            yield from _inline_keys(text, after + 1, end, (*table, *key))
            position = end


def _dotted(text: str, position: int) -> tuple[Key, int]:
    """A dotted key, and where it ends."""
    parts: list[str] = []
    while match := _PART.match(text, position):
        parts.append(next(part for part in match.groups() if part is not None))
        position = match.end()
        if not text.startswith(".", position):
            break
        position += 1
    return tuple(parts), position


def _value_end(text: str, position: int, inside: bool = False) -> int:
    """Where a value ends: at the end of a line, or in an inline table at a comma or its end."""
    depth = 0
    while position < len(text):
        if match := _HIDDEN.match(text, position):
            position = match.end()
            continue
        character = text[position]
        if depth == 0 and (character in ",}" if inside else character == "\n"):
            return position
        depth += (character in "[{") - (character in "]}")
        position += 1
    return position


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end
