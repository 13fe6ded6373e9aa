"""Where a verb puts a new transition store: whole or not at all, and never over anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.directories import StoreError, remove
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.engine.storage.untrusted import check_parent

__all__ = ["new_store"]

#: What a transition store has in its directory.
ENTRIES = {"zarr.json", *(spec.name for spec in (*TRANSITIONS, TRANSITION_DIGESTS))}


@contextmanager
def new_store(output: Path, overwrite: bool) -> Iterator[Path]:
    """Path for a store that moves to ``output`` if the body succeeds, and is removed if it does not.

    It is beside ``output``, so that the move is one step. An earlier store there, which only
    ``overwrite`` allows, is removed after it.
    """
    _check_output(output, overwrite)
    parent = output.resolve().parent
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    work = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # The store is inside, because what mkdtemp makes can be read by nobody else.
        work = Path(mkdtemp(prefix=f".{output.name}-", dir=parent))
        yield work / "new"
        _check_output(output, overwrite)
        _replace(output, work)
    except BaseException:
        if work is not None:
            remove(work / "new")
            missing.insert(0, work)
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise
    remove(work)


def _replace(output: Path, work: Path) -> None:
    """Move the new store to ``output``; put an earlier one back if that fails."""
    old = work / "old"
    try:
        if output.exists():
            output.rename(old)
        (work / "new").rename(output)
    except BaseException:
        if old.exists() and not output.exists():
            old.rename(output)
        raise


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse whatever exists but, if that may be overwritten, a transition store."""
    check_parent(output)
    if not os.path.lexists(output):
        return
    if not overwrite:
        raise FileExistsError(
            f"{output} already exists; choose another path, or add --overwrite if it is a transition "
            "store that may be replaced"
        )
    if output.is_symlink() or not output.is_dir():
        raise ValueError(f"{output} is no directory, so --overwrite does not replace it; choose another path")
    try:
        TransitionStore.open(output)
    except StoreError as error:
        raise ValueError(
            f"{output} is no complete transition store, so --overwrite does not replace it; "
            f"choose another path ({error})"
        ) from error
    foreign = sorted({entry.name for entry in output.iterdir()} - ENTRIES)
    if foreign:
        raise ValueError(
            f"{output} holds {foreign[0]!r}, which is no part of a transition store, so --overwrite does "
            "not replace it; choose another path"
        )
