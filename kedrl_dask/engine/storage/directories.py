"""Errors of stores, and the parts of stores that do not depend on their arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from kedrl_dask.engine.storage.atomic import PathLike
from kedrl_dask.engine.storage.untrusted import (
    MOST_FILE_BYTES,
    MOST_METADATA_BYTES,
    MOST_UNPACKED_BYTES,
    UnsafeFile,
    check_file,
    unpacked_bytes,
)
from kedrl_dask.utils.arrays import Array, Record


class StoreError(ValueError):
    """A store is missing, incomplete, damaged, or not what was asked for."""


class DamageError(StoreError):
    """A file of a store is missing or has changed since it was written; ``path`` is the store's directory."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])


def part_name(block: int, name: str | None = None) -> str:
    """Return the name in the manifest of chunk ``block`` of all arrays, or of one."""
    return str(block) if name is None else f"{block}-{name}"


def digest(array: Array) -> bytes:
    """Return the sha256 of an array's dtype, shape and elements in C order."""
    array = np.asarray(array)
    hasher = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def attributes_at(path: PathLike) -> Record | None:
    """Return the attributes of any Zarr v3 group at a path; None if there is none."""
    try:
        return dict(zarr.open_group(path, mode="r", zarr_format=3).attrs)
    except (OSError, ValueError, TypeError, KeyError):
        return None


class PlainFiles(LocalStore):
    """Files below a directory, which are read only if they are regular and of a plausible size."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        """Take the directory; ``packed`` collects the names of arrays that are compressed."""
        super().__init__(root, read_only=read_only)
        self.packed: set[str] = set()

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """Return the content of a file, or None if there is none."""
        is_metadata = key.rsplit("/", 1)[-1] == "zarr.json"
        check_file(self.root / key, MOST_METADATA_BYTES if is_metadata else MOST_FILE_BYTES)
        content = await super().get(key, *arguments, **options)
        if content is not None and not is_metadata and key.split("/", 1)[0] in self.packed:
            size = unpacked_bytes(content[:18].to_bytes())
            if size is None or size > MOST_UNPACKED_BYTES:
                raise UnsafeFile(f"{self.root / key} would unpack to {size or 'unknown'} bytes")
        return content
