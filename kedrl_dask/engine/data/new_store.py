"""Atomic creation of a transition store by a command, which replaces nothing but such a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.atomic import atomic_directory
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.engine.storage.untrusted import check_parent

#: Entries of the directory of a transition store.
ENTRIES = {"zarr.json", *(spec.name for spec in (*TRANSITIONS, TRANSITION_DIGESTS))}


@contextmanager
def new_store(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a path for a store that moves to ``output`` if the body succeeds, and is removed otherwise.

    With ``overwrite`` it replaces an existing store.
    """
    _check_output(output, overwrite)
    with atomic_directory(output, overwrite) as partial:
        yield partial
        _check_output(output, overwrite)


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse an existing path, except for a transition store that may be overwritten."""
    check_parent(output)
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise FileExistsError(
            f"{output} already exists; choose another path, or add --overwrite if it is a transition "
            "store that may be replaced"
        )
    if output.is_symlink() or not output.is_dir():
        raise ValueError(
            f"{output} is not a directory, so --overwrite does not replace it; choose another path"
        )
    try:
        TransitionStore.open(output)
    except StoreError as error:
        raise ValueError(
            f"{output} is not a complete transition store, so --overwrite does not replace it; "
            f"choose another path ({error})"
        ) from error
    foreign = sorted({entry.name for entry in output.iterdir()} - ENTRIES)
    if foreign:
        raise ValueError(
            f"{output} holds {foreign[0]!r}, which is not part of a transition store, so --overwrite does "
            "not replace it; choose another path"
        )
