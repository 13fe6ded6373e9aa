"""Manifests: which parts of a directory are complete, with checksums of their files; and JSON files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from kedrl_dask.engine.storage.atomic import write_atomic
from kedrl_dask.utils.arrays import Record

#: Directory of the manifest, beside the directory that it describes: one small file for each part.
MANIFEST = "manifest"
#: Number of bytes read at a time.
PIECE = 2**22


def write_json(path: Path, content: object, indent: int | None = 1) -> None:
    """Write a JSON file atomically; NaN and infinity, which JSON does not have, are refused."""
    write_atomic(path, json.dumps(content, indent=indent, allow_nan=False) + "\n")


def read_json(path: Path) -> Record:
    """Return the object in a JSON file, or an empty one if it is missing or unreadable."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_record(path: Path, content: Record, durable: bool = False) -> None:
    """Write an object as JSON that contains its own checksum."""
    text = json.dumps({**content, "checksum": checksum_of(content)}, indent=1)
    write_atomic(path, text + "\n", durable)


def read_record(path: Path) -> Record:
    """Return what :func:`write_record` wrote, or an empty object if it is missing or damaged."""
    content = read_json(path)
    return content if content.pop("checksum", None) == checksum_of(content) else {}


def checksum_of(content: Record) -> str:
    """Return the CRC-32 of an object in JSON."""
    plain = json.loads(json.dumps(content))  # as it will be read: tuples become lists, keys text
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def checksum(path: Path) -> str:
    """Return the length and CRC-32 of a file, which agree by accident once in four billion times."""
    length = value = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            length, value = length + len(piece), zlib.crc32(piece, value)
    return f"{length}:{value:08x}"


def _entry(directory: Path, part: str) -> Path:
    return directory.parent / MANIFEST / f"{part}.json"


def commit(directory: Path, part: str, files: Iterable[Path], durable: bool = False, **facts: object) -> None:
    """Record in the manifest that a part of the directory is complete, once all its files are written.

    The files need not have reached the disk, because their checksums reveal what a crash of the machine
    destroys; ``durable`` waits for the manifest itself. ``facts`` are stored with the checksums.
    """
    content = {**facts, "files": {path.relative_to(directory).as_posix(): checksum(path) for path in files}}
    entry = _entry(directory, part)
    entry.parent.mkdir(exist_ok=True)
    write_record(entry, content, durable)


def committed(directory: Path) -> list[str]:
    """Return the names of the parts in the manifest."""
    return sorted(entry.stem for entry in (directory.parent / MANIFEST).glob("*.json"))


def read_entry(directory: Path, part: str) -> Record:
    """Return the manifest's entry of a part, its files and facts; empty if it is missing or damaged."""
    return read_record(_entry(directory, part))


def revoke(directory: Path, part: str) -> None:
    """Remove a part from the manifest, because it is no longer complete."""
    _entry(directory, part).unlink(missing_ok=True)


def damaged(directory: Path, part: str) -> list[Path]:
    """Return the files of a part that are missing or changed, or that of its entry if this is damaged."""
    content = read_entry(directory, part)
    if not content:
        return [_entry(directory, part)]
    return [directory / name for name, found in content["files"].items() if not _is(directory / name, found)]


def _is(path: Path, expected: object) -> bool:
    try:
        return checksum(path) == expected
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return False
