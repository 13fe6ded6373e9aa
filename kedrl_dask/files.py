"""Paths and files that somebody else may have made: looked at before they are opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from kedrl_dask.checks import has_control_characters, shown

__all__ = ["UnsafeFile", "check_file", "checked_path", "unpacked_bytes"]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class UnsafeFile(OSError):
    """A file is not one to be read: a device, a pipe, or far too large."""


def checked_path(path: Any, what: str = "path") -> Path:
    """The path, if it is one, and can be printed as it is.

    Line ends and escapes in a name would forge lines of logs and messages.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ValueError(f"{what} must be a string or a pathlib.Path, got {shown(path)}")
    text = os.fspath(path)
    if not text:
        raise ValueError(f"{what} is empty; name a file or directory ('.' is the current one)")
    if has_control_characters(text):
        raise ValueError(f"{what} {shown(text)} has control characters; choose another name")
    return Path(text)


def check_file(path: Path, most_bytes: int) -> None:
    """Refuse what would block or fill the memory when it is read; a file that is not there passes."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(found.st_mode):
        return
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(f"{path} is a pipe, socket or device, expected a file; the store was tampered with")
    if found.st_size > most_bytes:
        raise UnsafeFile(f"{path} has {found.st_size:,} bytes, more than the {most_bytes:,} it can need")


def unpacked_bytes(packed: bytes) -> int | None:
    """Bytes that a Zstandard frame says it unpacks to (RFC 8878, 3.1.1.1); None if it does not say."""
    if packed[:4] != _ZSTD_MAGIC or len(packed) < 5:
        return None
    descriptor = packed[4]
    is_single = bool(descriptor & 0x20)
    size = {0: int(is_single), 1: 2, 2: 4, 3: 8}[descriptor >> 6]
    start = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    field = packed[start : start + size]
    if size == 0 or len(field) < size:
        return None
    return int.from_bytes(field, "little") + (256 if size == 2 else 0)
