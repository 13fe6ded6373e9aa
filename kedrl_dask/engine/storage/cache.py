"""A cache of results under fingerprints of all their dependencies; they are checked before use."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np

from kedrl_dask.engine.storage.array_store import FORMAT_VERSION
from kedrl_dask.engine.storage.atomic import atomic_directory, remove
from kedrl_dask.engine.storage.directories import digest
from kedrl_dask.engine.storage.manifest import MANIFEST, commit, committed, damaged, revoke

logger = logging.getLogger("kedrl_dask")

#: Dependencies of a result by name: numbers, strings, arrays, and nestings of them.
Facts = Mapping[str, object]
#: Called with the name of an event, and facts about it.
Note = Callable[..., None]

#: The directory of a result inside its entry, beside the manifest; and the part of the manifest that every
#: entry has from the beginning.
RESULT, WHOLE = "result", "whole"
#: Number of files that are compared with the manifest at the same time.
READERS = 8


def _unnoted(event: str, **facts: object) -> None:
    """Ignore an event."""


class Cache:
    """A directory of results, each in an entry of its own with a manifest of its files.

    A result is computed as a whole, and appears atomically; or block by block, and then the blocks in the
    manifest count. Existing files are compared with the manifest's checksums once, before they are used;
    whatever is missing or damaged is computed again. Several processes may share the directory: the first
    to finish is kept, and the results are the same. ``note`` hears of results found and files found damaged.
    ``code`` identifies a policy that is code, whose results are otherwise never found again.
    """

    def __init__(self, path: Path, note: Note = _unnoted, code: str | None = None) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotADirectoryError(
                f"{path}: not a directory, so it cannot be the cache; choose another path"
            ) from error
        self.directory = path.resolve()
        self._note, self._code = note, code
        self._checked: set[tuple[Path, str]] = set()

    @property
    def code(self) -> str:
        """Identifier of a policy that is code."""
        return self._code or uuid4().hex

    @property
    def size(self) -> int:
        """Total size of all files in bytes."""
        return sum(file.stat().st_size for file in self.directory.rglob("*") if file.is_file())

    def path(self, kind: str, facts: Facts) -> Path:
        """Return where the result is or will be."""
        return self.directory / f"{kind}-{fingerprint(facts)}" / RESULT

    def has(self, kind: str, facts: Facts) -> bool:
        """Return whether there is an undamaged result."""
        return self._is_there(self.path(kind, facts))

    def get(self, kind: str, facts: Facts, make: Callable[[Path], None]) -> Path:
        """Return the path of a result; if it is missing or damaged, ``make`` is called to create it."""
        return self._get(kind, facts, make, "*")

    def open(self, kind: str, facts: Facts, create: Callable[[Path], None]) -> Path:
        """Return the path of a result computed block by block; ``create`` makes the empty stores."""
        return self._get(kind, facts, create, "zarr.json")

    def complete(
        self,
        facts: Mapping[str, Facts],
        n_blocks: int,
        create: Callable[[str, Path], None],
        compute: Callable[[dict[str, Path], list[int]], None],
    ) -> dict[str, Path]:
        """Return the paths of several results after computing their missing blocks; ``facts`` are by kind.

        ``create(kind, path)`` creates an empty store; ``compute(paths, blocks)`` computes blocks of the
        results that lack them, and commits each.
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
        """Return the parts of a result that its manifest lacks, or whose files are damaged."""
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
        """Compare all results with their manifests, so that damage is known before anything is computed."""
        for path in sorted(self.directory.glob(f"*/{RESULT}")):
            if self._is_there(path):
                self.lacking(path, committed(path))

    def prune(self, since: Path) -> int:
        """Remove results not used since a file was written, and return their number.

        No other process may be using the directory.
        """
        before = since.stat().st_mtime_ns
        stale = [entry for entry in self.directory.iterdir() if entry.stat().st_mtime_ns < before]
        for entry in stale:
            remove(entry)
        return len(stale)

    def recheck(self) -> None:
        """Check everything again, because something turned out to be damaged."""
        self._checked.clear()
        self.check()

    def _report(self, files: list[Path]) -> None:
        for file in files:
            logger.warning("%s is damaged; its content is computed again", file)
            self._note("damaged", file=str(file))

    def _is_there(self, path: Path) -> bool:
        """Return whether there is such an entry; one whose first files are damaged is removed."""
        if path.parent.exists() and self.lacking(path, [WHOLE]):
            if WHOLE not in committed(path):
                self._report([path.parent / MANIFEST])
            remove(path.parent)
        return path.parent.exists()

    def _get(self, kind: str, facts: Facts, make: Callable[[Path], None], pattern: str) -> Path:
        """Make an entry unless there is one; its manifest begins with the files that match the pattern."""
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
            if not entry.exists():  # otherwise another process was faster
                raise
        self._checked.add((path, WHOLE))
        return path


def fingerprint(facts: Facts) -> str:
    """Return the name of a result, from everything that it depends on."""
    text = json.dumps({"format": FORMAT_VERSION, **facts}, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    """Convert what JSON cannot represent: arrays to their digests, other objects to their fields."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__"):
        return digest(np.asarray(value)).hex()
    return {"class": type(value).__name__, **vars(value)}
