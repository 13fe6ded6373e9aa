"""Atomic writes: a file or directory appears under its name when it is complete, or not at all.

Until then it lies beside its place under a hidden name that ends in ``.partial``. An error removes it; what a
killed process leaves under such a name can be deleted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import IO
from uuid import uuid4

from zarr.core.sync import sync

from kedrl_dask.engine.storage.untrusted import check_parent, checked_path

PathLike = str | os.PathLike[str]

#: Longest wait for writes that were under way at an interruption; a chunk takes far less.
MOST_SECONDS_OF_WRITES = 20.0


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")


@contextmanager
def atomic_file(path: Path, durable: bool = False) -> Iterator[IO[bytes]]:
    """Open a binary file for writing that replaces ``path`` once the body succeeds.

    ``durable`` waits until content and name are on the disk, so that they survive a crash of the machine.
    """
    partial = _beside(path)
    try:
        with partial.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomic(path: Path, content: str | bytes | memoryview, durable: bool = False) -> None:
    """Write a whole file through :func:`atomic_file`."""
    with atomic_file(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_directory(path: PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Give the body a path at which to create a directory, and rename it to ``path`` once the body succeeds.

    Missing parent directories are created. Unless ``overwrite`` is set, ``path`` must be absent or an empty
    directory; otherwise an existing directory is moved aside first, restored if the rename fails, and removed
    afterwards.
    """
    path = checked_path(path) if overwrite else check_vacant(path)
    with cleaned_up(_beside(path.absolute())) as partial:
        yield partial
        aside = _beside(path.absolute())
        try:
            if overwrite and path.exists():
                os.rename(path, aside)
            os.rename(partial, path)
        except BaseException:
            if aside.exists() and not path.exists():
                os.rename(aside, path)
            raise
        if aside.exists():
            remove(aside)


@contextmanager
def cleaned_up(path: Path) -> Iterator[Path]:
    """Create the missing parents of a path that the body will create; after an error remove them and it."""
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    except BaseException:
        remove(path)
        for folder in missing:
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
        raise


def check_vacant(path: PathLike) -> Path:
    """Return the path if a store can be created there; refuse a file or a non-empty directory."""
    path = checked_path(path)
    if path.is_symlink() and not path.exists():
        raise FileExistsError(
            f"{path}: a dangling symbolic link; remove it or choose another path for the new store"
        )
    check_parent(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path}: already exists; delete it or choose another path for the new store")
    return path


def discard(path: Path) -> None:
    """Remove a directory so that it disappears at once, even if its removal is interrupted."""
    aside = _beside(path)
    os.rename(path, aside)
    remove(aside)


def remove(path: PathLike) -> None:
    """Remove a file or a directory, even while interrupted writes may still recreate the latter."""
    if os.path.isfile(path) or os.path.islink(path):
        os.unlink(path)
        return
    is_alive = True
    for _ in range(20):
        is_alive = is_alive and _end_of_writes()
        if not os.path.lexists(path):
            return
        rmtree(path, ignore_errors=True)
        time.sleep(0.05)  # for threads of an executor, which go on until they notice


def _end_of_writes() -> bool:
    """Wait for all tasks of zarr's own thread, and return whether they ended.

    They may never end: where the interruption came while this thread held the lock of a future, as
    ``concurrent.futures.wait`` does for a moment, nobody releases that lock.
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
