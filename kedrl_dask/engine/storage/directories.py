"""Directories and files of stores, as far as nothing needs to be known of their arrays."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.storage import LocalStore

from kedrl_dask.engine.storage.untrusted import (
    MOST_FILE_BYTES,
    MOST_METADATA_BYTES,
    MOST_UNPACKED_BYTES,
    UnsafeFile,
    check_file,
    check_parent,
    checked_path,
    unpacked_bytes,
)
from kedrl_dask.utils.arrays import Array

__all__ = [
    "DamageError",
    "PathLike",
    "PlainFiles",
    "StoreError",
    "appearing",
    "attributes_at",
    "check_vacant",
    "digest",
    "part_name",
    "remove",
]

PathLike = str | os.PathLike[str]

#: Of writes that are under way at an interruption; a chunk takes far less.
MOST_SECONDS_OF_WRITES = 20.0


class StoreError(ValueError):
    """A store is missing, incomplete, damaged, or not what was asked for."""


class DamageError(StoreError):
    """A file of a store is missing or not as it was written; ``path`` is its directory."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


def part_name(block: int, name: str | None = None) -> str:
    """How the manifest calls chunk ``block`` of all arrays, or of one."""
    return str(block) if name is None else f"{block}-{name}"


def digest(array: Array) -> bytes:
    """Return the sha256 of an array's dtype, shape and elements in C order."""
    array = np.asarray(array)
    hasher = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def attributes_at(path: PathLike) -> dict[str, Any] | None:
    """Attributes of the Zarr v3 group at a path, whatever it holds; None if there is none."""
    try:
        return dict(zarr.open_group(path, mode="r", zarr_format=3).attrs)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def check_vacant(path: PathLike) -> Path:
    """Return the path if a store can be created there; refuse a file or a non-empty directory."""
    path = checked_path(path)
    if path.is_symlink() and not path.exists():
        raise FileExistsError(
            f"{path}: a symbolic link that leads nowhere; remove it or choose another path for the new store"
        )
    check_parent(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path}: already exists; delete it or choose another path for the new store")
    return path


@contextmanager
def appearing(path: PathLike) -> Iterator[Path]:
    """A folder to work in, beside ``path``; what the body leaves in its entry ``store`` moves to ``path``.

    Whatever else happens, nothing stays behind.
    """
    path = check_vacant(path)
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=f".{path.name}-", dir=path.absolute().parent))
    try:
        yield work
        (work / "store").rename(path)
    except BaseException:
        remove(work)
        for folder in missing:
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
        raise
    remove(work)


def remove(path: PathLike) -> None:
    """Remove a directory, though an interruption may have left writes under way that make it again."""
    is_alive = True
    for _ in range(20):
        is_alive = is_alive and _end_of_writes()
        if not os.path.lexists(path):
            return
        rmtree(path, ignore_errors=True)
        time.sleep(0.05)  # for threads of an executor, which go on until they notice


def _end_of_writes() -> bool:
    """Wait for everything that zarr's own thread was given; whether it got to the end of it.

    It may never: where the interruption came while this thread held the lock of a future, as
    ``concurrent.futures.wait`` does for a moment, nobody gives that lock back.
    """

    async def others_are_done() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    try:
        sync(others_are_done(), timeout=MOST_SECONDS_OF_WRITES)
    except TimeoutError:
        return False
    return True


class PlainFiles(LocalStore):
    """Files below a directory, of which only regular ones of sensible sizes are read."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        """Take the directory; arrays join ``packed`` when they are known to be compressed."""
        super().__init__(root, read_only=read_only)
        self.packed: set[str] = set()

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        """The content of a file, or None if there is none."""
        is_metadata = key.rsplit("/", 1)[-1] == "zarr.json"
        check_file(self.root / key, MOST_METADATA_BYTES if is_metadata else MOST_FILE_BYTES)
        content = await super().get(key, *arguments, **options)
        if content is not None and not is_metadata and key.split("/", 1)[0] in self.packed:
            size = unpacked_bytes(content[:18].to_bytes())
            if size is None or size > MOST_UNPACKED_BYTES:
                raise UnsafeFile(f"{self.root / key} would unpack to {size or 'unknown'} bytes")
        return content
