"""Results filed under a fingerprint of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from kedrl_dask.store import FORMAT_VERSION, digest, remove

__all__ = ["Cache", "Facts", "fingerprint"]

#: What a result depends on, by name: numbers, strings, arrays, and nestings of them.
Facts = Mapping[str, Any]


class Cache:
    """A directory of results, each in a directory of its own that appears when it is complete.

    Several processes may share it: whoever finishes first is kept, and the results are the same.

    Parameters
    ----------
    path : Path
        The directory; workers must reach it.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotADirectoryError(
                f"{path}: not a directory, expected one for the cache; choose another path"
            ) from error
        self._path = path.resolve()

    @property
    def directory(self) -> Path:
        """The directory."""
        return self._path

    def path(self, kind: str, facts: Facts) -> Path:
        """Where the result is or will be."""
        return self._path / f"{kind}-{fingerprint(facts)}"

    def get(self, kind: str, facts: Facts, make: Callable[[Path], None]) -> Path:
        """Path of the result; ``make`` is called with a path to fill if there is none yet."""
        return self.get_all({kind: facts}, lambda missing: make(missing[kind]))[kind]

    def get_all(self, facts: Mapping[str, Facts], make: Callable[[dict[str, Path]], None]) -> dict[str, Path]:
        """Paths of several results; ``make`` is called once, with the paths of those that are missing."""
        paths = {kind: self.path(kind, content) for kind, content in facts.items()}
        missing = {
            kind: path.with_name(f"{path.name}.{uuid4().hex}.partial")
            for kind, path in paths.items()
            if not path.exists()
        }
        if not missing:
            return paths
        try:
            make(missing)
            for kind, partial in missing.items():
                if not paths[kind].exists():  # another process may have been faster
                    os.rename(partial, paths[kind])
        finally:
            for partial in missing.values():
                remove(partial)
        return paths


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
