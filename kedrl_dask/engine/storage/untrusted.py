"""Checks of untrusted paths and files before they are opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from math import prod
from pathlib import Path
from shutil import disk_usage

import numpy as np

from kedrl_dask.utils.checks import cut, has_control_characters, shown

#: Bounds on the metadata of a store, whose attributes may hold a user's points, and on the file of a chunk.
MOST_METADATA_BYTES, MOST_FILE_BYTES = 2**28, 2**36
#: Bounds on what Zstandard unpacks at once, and on a dimension: beyond it floats skip integers.
MOST_UNPACKED_BYTES, MOST_SIZE = 2**31, 2**53
#: Codecs of the package's own stores, none of which runs code.
CODECS = {"BytesCodec", "ZstdCodec", "Crc32cCodec"}
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class UnsafeFile(OSError):
    """A file that must not be read: a device, a pipe, or far too large."""


def checked_path(path: object, what: str = "path") -> Path:
    """Return the path, if it is one and is printable.

    Line breaks and escape sequences in a name could forge lines of logs and messages.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ValueError(f"{what} must be a string or a pathlib.Path, got {shown(path)}")
    text = os.fspath(path)
    if not text:
        raise ValueError(f"{what} is empty; name a file or directory ('.' is the current one)")
    if has_control_characters(text):
        raise ValueError(f"{what} {shown(text)} has control characters; choose another name")
    return Path(text)


def check_parent(path: Path) -> None:
    """Refuse a path below something that is not a directory."""
    nearest = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise NotADirectoryError(f"{path}: {nearest} is not a directory; choose another path")


def check_file(path: Path, most_bytes: int) -> None:
    """Refuse a file that would block or exhaust memory when it is read; a missing file passes."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(found.st_mode):
        return
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(f"{path} is a pipe, socket or device, expected a file; the store was tampered with")
    if found.st_size > most_bytes:
        raise UnsafeFile(f"{path} has {found.st_size:,} bytes, more than the {most_bytes:,} that it can need")


def require_space(path: Path, n_bytes: int) -> None:
    """Refuse to write more than fits on the disk of ``path``."""
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    free = disk_usage(place).free
    if n_bytes > free:
        raise OSError(
            f"{path}: needs about {n_bytes / 2**30:,.1f} GiB, but {free / 2**30:,.1f} are free on the disk; "
            "ask for less, or choose another path"
        )


def reason(error: Exception) -> str:
    """Describe briefly why something cannot be read."""
    text = cut(str(error))
    if isinstance(error, UnsafeFile):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def what_is_foreign(
    shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[np.generic], codecs: Sequence[str]
) -> str | None:
    """Describe what an array's metadata has that the package never writes; None if nothing."""
    if not codecs or not set(codecs) <= CODECS:
        return f"the codecs {', '.join(codecs) or 'of another format'}, which this package does not use"
    if dtype.kind not in "biufc":
        return f"dtype {dtype}, expected numbers"
    if not all(0 <= size <= MOST_SIZE for size in shape) or not all(n >= 1 for n in chunks):
        return f"shape {shown(shape)} in chunks of {shown(chunks)}, which is impossible"
    if "ZstdCodec" in codecs and prod(chunks) * dtype.itemsize > MOST_UNPACKED_BYTES:
        return f"chunks of shape {shown(chunks)}, too large to be unpacked"
    return None


def unpacked_bytes(packed: bytes) -> int | None:
    """Return the unpacked size that a Zstandard frame declares (RFC 8878, 3.1.1.1); None if it does not."""
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
