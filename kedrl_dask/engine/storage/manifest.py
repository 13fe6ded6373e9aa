"""Files that are whole or not there, and their checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kedrl_dask.engine.storage.atomic import write_atomic

__all__ = [
    "MANIFEST",
    "checksum",
    "checksum_of",
    "commit",
    "committed",
    "damaged",
    "read_entry",
    "read_json",
    "read_record",
    "revoke",
    "write_json",
    "write_record",
]

#: Beside the directory that it speaks of: the manifest, one small file for each of its parts.
MANIFEST = "manifest"
#: Bytes read at a time.
PIECE = 2**22


def write_json(path: Path, content: object, indent: int | None = 1) -> None:
    """Write a JSON file atomically; NaN and infinity, which JSON does not have, are refused."""
    write_atomic(path, json.dumps(content, indent=indent, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_record(path: Path, content: dict[str, Any], durable: bool = False) -> None:
    """Write an object as JSON, with a checksum of it inside."""
    text = json.dumps({**content, "checksum": checksum_of(content)}, indent=1)
    write_atomic(path, text + "\n", durable)


def read_record(path: Path) -> dict[str, Any]:
    """The object that :func:`write_record` wrote; empty where there is none, or it is damaged."""
    content = read_json(path)
    return content if content.pop("checksum", None) == checksum_of(content) else {}


def checksum_of(content: dict[str, Any]) -> str:
    """CRC-32 of what JSON makes of an object."""
    plain = json.loads(json.dumps(content))  # as it will be read: tuples are lists, keys are text
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def checksum(path: Path) -> str:
    """Length and CRC-32 of a file: found by accident again once in four thousand million times."""
    length = value = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            length, value = length + len(piece), zlib.crc32(piece, value)
    return f"{length}:{value:08x}"


def _entry(directory: Path, part: str) -> Path:
    return directory.parent / MANIFEST / f"{part}.json"


def commit(directory: Path, part: str, files: Iterable[Path], durable: bool = False, **facts: Any) -> None:
    """Say in the manifest that a part of the directory is complete: call after all its files are written.

    The files need not have reached the disk: what a crash of the machine takes from them, their
    checksums show. ``durable`` brings the manifest there. ``facts`` are kept with them.
    """
    content = {**facts, "files": {path.relative_to(directory).as_posix(): checksum(path) for path in files}}
    entry = _entry(directory, part)
    entry.parent.mkdir(exist_ok=True)
    write_record(entry, content, durable)


def committed(directory: Path) -> list[str]:
    """Parts that the manifest has."""
    return sorted(entry.stem for entry in (directory.parent / MANIFEST).glob("*.json"))


def read_entry(directory: Path, part: str) -> dict[str, Any]:
    """What the manifest says of a part: its files, and the facts kept with them; empty if it is damaged."""
    return read_record(_entry(directory, part))


def revoke(directory: Path, part: str) -> None:
    """Take a part out of the manifest: it is no longer complete."""
    _entry(directory, part).unlink(missing_ok=True)


def damaged(directory: Path, part: str) -> list[Path]:
    """Files of a part that are missing or not as they were written; or the manifest's own."""
    content = read_entry(directory, part)
    if not content:
        return [_entry(directory, part)]
    return [directory / name for name, found in content["files"].items() if not _is(directory / name, found)]


def _is(path: Path, expected: Any) -> bool:
    try:
        return checksum(path) == expected
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
