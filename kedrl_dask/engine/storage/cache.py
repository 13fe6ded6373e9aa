"""Results filed under a fingerprint of everything that they depend on, and checked when they are found."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from kedrl_dask.engine.storage.array_store import FORMAT_VERSION
from kedrl_dask.engine.storage.atomic import atomic_directory, remove
from kedrl_dask.engine.storage.directories import digest
from kedrl_dask.engine.storage.manifest import MANIFEST, commit, committed, damaged, revoke

__all__ = ["Cache", "Facts", "fingerprint"]

logger = logging.getLogger("kedrl_dask")

#: What a result depends on, by name: numbers, strings, arrays, and nestings of them.
Facts = Mapping[str, Any]
#: Told of what happens: the name of the event, and facts about it.
Note = Callable[..., None]

#: The directory of a result inside its entry, beside the manifest; and the part of the manifest that is
#: there from the beginning.
RESULT, WHOLE = "result", "whole"
#: Files that are compared with the manifest at once.
READERS = 8


def _unnoted(event: str, **facts: Any) -> None:
    """Nobody listens."""


class Cache:
    """A directory of results, each in an entry of its own with a manifest of its files.

    A result is made as a whole, and appears when it is complete; or block by block, and then those blocks
    count that the manifest has. What is found is compared with the manifest's checksums once, before it is
    used; what is missing or damaged is made again. Several processes may share the directory: whoever
    finishes first is kept, and the results are the same.

    Parameters
    ----------
    path : Path
        The directory; workers must reach it.
    note : callable, optional
        Called as ``note(event, **facts)`` with what was found, and what was damaged.
    code : str, optional
        What stands for a policy that is code, under which its results are found again. Without, they never
        are.
    """

    def __init__(self, path: Path, note: Note = _unnoted, code: str | None = None) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotADirectoryError(
                f"{path}: not a directory, expected one for the cache; choose another path"
            ) from error
        self._path = path.resolve()
        self._note, self._code = note, code
        self._checked: set[tuple[Path, str]] = set()

    @property
    def directory(self) -> Path:
        """The directory."""
        return self._path

    @property
    def code(self) -> str:
        """What stands for a policy that is code."""
        return self._code or uuid4().hex

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self._path.rglob("*") if file.is_file())

    def path(self, kind: str, facts: Facts) -> Path:
        """Where the result is or will be."""
        return self._path / f"{kind}-{fingerprint(facts)}" / RESULT

    def get(self, kind: str, facts: Facts, make: Callable[[Path], None]) -> Path:
        """Path of a result; ``make`` is called with a path to fill if there is none yet, or a damaged one."""
        return self._get(kind, facts, make, "*")

    def open(self, kind: str, facts: Facts, create: Callable[[Path], None]) -> Path:
        """Path of a result that is made block by block; ``create`` makes the empty stores if need be."""
        return self._get(kind, facts, create, "zarr.json")

    def complete(
        self,
        facts: Mapping[str, Facts],
        n_blocks: int,
        create: Callable[[str, Path], None],
        compute: Callable[[dict[str, Path], list[int]], None],
    ) -> dict[str, Path]:
        """Paths of several results that are made block by block.

        Parameters
        ----------
        facts : mapping
            What each depends on, by its kind.
        n_blocks : int
            Number of blocks, the same for all.
        create : callable
            ``create(kind, path)`` makes an empty store.
        compute : callable
            ``compute(paths, blocks)`` makes some blocks of the results that lack them, and commits each.
        """
        paths = {kind: self.open(kind, own, partial(create, kind)) for kind, own in facts.items()}
        parts = [str(block) for block in range(n_blocks)]
        lacking = {kind: set(self.lacking(path, parts)) for kind, path in paths.items()}
        kinds_of: dict[tuple[str, ...], list[int]] = {}
        for block, part in enumerate(parts):
            kinds = tuple(kind for kind in paths if part in lacking[kind])
            kinds_of.setdefault(kinds, []).append(block)
        found = len(kinds_of.pop((), []))
        self._note("blocks", kinds=list(facts), found=found, missing=n_blocks - found)
        for kinds, blocks in kinds_of.items():
            compute({kind: paths[kind] for kind in kinds}, blocks)
        return paths

    def lacking(self, path: Path, parts: Sequence[str]) -> list[str]:
        """The parts of a result that its manifest has not, or whose files are not as it says."""
        known = set(committed(path))
        there = [part for part in parts if part in known]
        unchecked = [part for part in there if (path, part) not in self._checked]
        with ThreadPoolExecutor(READERS) as pool:
            for part, files in zip(unchecked, pool.map(partial(damaged, path), unchecked), strict=True):
                if files:
                    there.remove(part)
                    self._report(files)
                    if part != WHOLE:
                        revoke(path, part)
                else:
                    self._checked.add((path, part))
        sound = set(there)
        return [part for part in parts if part not in sound]

    def check(self) -> None:
        """Compare all results with their manifests, so that what is damaged is known before anything else."""
        for path in sorted(self._path.glob(f"*/{RESULT}")):
            if self._is_there(path):
                self.lacking(path, committed(path))

    def prune(self, since: Path) -> int:
        """Remove what nothing has asked for since a file was written; returns the number of results.

        No other process may be using the directory.
        """
        before = since.stat().st_mtime_ns
        stale = [entry for entry in self._path.iterdir() if entry.stat().st_mtime_ns < before]
        for entry in stale:
            remove(entry) if entry.is_dir() else entry.unlink()
        return len(stale)

    def recheck(self) -> None:
        """Forget what was found sound: something was not."""
        self._checked.clear()
        self.check()

    def _report(self, files: list[Path]) -> None:
        for file in files:
            logger.warning("%s is damaged; what it held is made again", file)
            self._note("damaged", file=str(file))

    def _is_there(self, path: Path) -> bool:
        """Whether there is such an entry; one that did not begin as its manifest says is removed."""
        if path.parent.exists() and self.lacking(path, [WHOLE]):
            if WHOLE not in committed(path):
                self._report([path.parent / MANIFEST])
            remove(path.parent)
        return path.parent.exists()

    def _get(self, kind: str, facts: Facts, make: Callable[[Path], None], pattern: str) -> Path:
        """Make an entry unless there is one; its manifest begins with the files of that pattern."""
        path = self.path(kind, facts)
        if self._is_there(path):
            os.utime(path.parent)  # for prune
            return path
        entry = path.parent
        try:
            with atomic_directory(entry) as partial:
                partial.mkdir()
                make(partial / RESULT)
                files = (file for file in sorted((partial / RESULT).rglob(pattern)) if file.is_file())
                commit(partial / RESULT, WHOLE, files)
        except OSError:
            if not entry.exists():  # or else another process was faster
                raise
        self._checked.add((path, WHOLE))
        return path


def fingerprint(facts: Facts) -> str:
    """Name of a result by everything that it depends on."""
    text = json.dumps({"format": FORMAT_VERSION, **facts}, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """What JSON does not know: arrays by their digest, other objects by their fields."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__"):
        return digest(np.asarray(value)).hex()
    return {"class": type(value).__name__, **vars(value)}
