"""A study: many independent cells, computed in parallel, each saved as soon as it is finished.

A cell calls a function of plain arguments that returns numbers. One cell is one task on one BLAS thread, in
which its fit runs too, so that as many cells run at once as there are workers. Its record is a small JSON
file named by the cell and by a fingerprint of all its settings: a study that was interrupted, or is repeated
with more cells, computes only those that are missing.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import pandas as pd

from kedrl_dask._version import __version__
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute.default import default_executor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.atomic import remove, write_atomic
from kedrl_dask.engine.storage.cache import fingerprint
from kedrl_dask.engine.storage.manifest import read_json, write_json
from kedrl_dask.engine.storage.untrusted import check_parent
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.progress import Reporter

KIND = "kedrl study"
#: File that marks the directory of a study.
MARK = "study.json"
CELLS, FAILURES, SCRATCH = "cells", "failures", ".scratch-"

#: Computes a cell: called with an empty directory to work in and the cell's settings.
Compute = Callable[..., Record]


@dataclass(frozen=True)
class Cell:
    """One independent part of a study.

    The labels are its place in the tables (pair, profile, replicate, …), the settings the arguments of the
    function that computes it; the result depends on nothing else.
    """

    labels: Mapping[str, str | int]
    settings: Record

    @classmethod
    def build(cls, labels: Mapping[str, str | int], **settings: object) -> Cell:
        """A cell whose labels are arguments of its function too."""
        return cls(labels, {**labels, **settings})

    @cached_property
    def name(self) -> str:
        """Name of the record: labels and fingerprint."""
        facts = {"version": __version__, "labels": self.labels, "settings": self.settings}
        return "_".join([*(f"{label}" for label in self.labels.values()), fingerprint(facts)[:16]])


@dataclass(frozen=True)
class Records:
    """The results of a study: finished cells in order, and errors by the names of the cells that failed.

    Errors are single lines; tracebacks are in the directory ``failures``. ``n_computed`` counts the cells
    that were computed now rather than by an earlier run.
    """

    done: list[tuple[Cell, Record]]
    failed: dict[str, str]
    n_computed: int

    def summary(self, study: str, **results: object) -> Record:
        """Counts of cells and the results of the study, for JSON."""
        counted = {"cells": len(self.done), "computed": self.n_computed, "failed": self.failed}
        return {"kind": f"kedrl study {study}", "version": __version__, **counted, **results}


class Outcome(NamedTuple):
    """What a study of cells returns: its records, its summary, and its tables by the names of their files."""

    records: Records
    summary: Record
    tables: Mapping[str, pd.DataFrame]


def run_cells(
    output: Path,
    study: str,
    compute: Compute,
    cells: Sequence[Cell],
    workers: int | None = 0,
    reporter: Reporter | None = None,
) -> Records:
    """Compute the cells that have no record yet, and return all records.

    Parameters
    ----------
    output : Path
        Directory of the study: new, empty, or that of an earlier run, whose finished cells are kept.
    study : str
        Name of the study.
    compute : callable
        Function of a module, ``compute(work, **cell.settings)``, whose result is JSON. The directory
        ``work`` is removed afterwards.
    cells : sequence of Cell
    workers : int
        Worker processes of a local cluster, one cell each at a time; 0 uses the active
        :class:`distributed.Client`, whose workers must reach ``output``, or threads of this process; None
        starts one for each core.
    reporter : Reporter, optional
    """
    reporter = reporter or Reporter()
    workers = ThreadExecutor().n_threads if workers is None else workers
    claim(output, study)
    (output / CELLS).mkdir(exist_ok=True)
    missing = [cell for cell in cells if not _record_path(output, cell).exists()]
    failed: dict[str, str] = {}
    if missing:
        # Removed last: only then has every worker stopped writing.
        with _scratch(output) as scratch, _executor(min(workers, len(missing))) as executor:
            title = f"{len(missing):,} of {len(cells):,} cells"
            with reporter.stage(title, len(missing)) as advance:
                outcomes = executor.attempt(
                    _compute_and_save, missing, compute, output.resolve(), scratch, advance=advance
                )
        failed = _note_failures(output, missing, outcomes)
    done = [(cell, _read(_record_path(output, cell))) for cell in cells if cell.name not in failed]
    if not done:
        raise ValueError(f"every cell of the study failed, the first with {next(iter(failed.values()))}")
    return Records(done, failed, len(missing) - len(failed))


def claim(output: Path, study: str) -> None:
    """Mark a new or empty directory as this study's; refuse one that holds anything else."""
    mark = output / MARK
    remedy = "choose another directory with --output"
    check_parent(output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; {remedy}")
    if mark.exists():
        found = read_json(mark)
        if found.get("kind") != KIND or found.get("study") != study:
            raise ValueError(
                f"{output} holds the study {found.get('study')!r}, not {study!r}; {remedy}"
                if found.get("kind") == KIND
                else f"{mark} was not written by a study; {remedy}"
            )
        return
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty and holds no study; {remedy}")
    output.mkdir(parents=True, exist_ok=True)
    write_json(mark, {"kind": KIND, "study": study, "version": __version__})


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Directory for the data of cells, which all workers reach; removed at the end."""
    path = Path(mkdtemp(prefix=SCRATCH, dir=output.resolve()))
    try:
        yield path
    finally:
        remove(path)


def _executor(workers: int) -> AbstractContextManager[Executor]:
    return local_cluster(workers, keeps_memory=True) if workers else nullcontext(default_executor())


def _record_path(output: Path, cell: Cell) -> Path:
    return output / CELLS / f"{cell.name}.json"


def _compute_and_save(cell: Cell, compute: Compute, output: Path, scratch: Path) -> None:
    """On a worker: compute one cell and save its record, unless a worker that died since had done so."""
    if _record_path(output, cell).exists():
        return
    start = time.perf_counter()
    work = Path(mkdtemp(dir=scratch))
    try:
        result = compute(work, **cell.settings)
    finally:
        remove(work)
    record = {"labels": dict(cell.labels), "seconds": time.perf_counter() - start, "result": result}
    write_json(_record_path(output, cell), record, indent=None)


def _note_failures(output: Path, cells: Sequence[Cell], outcomes: Sequence[object]) -> dict[str, str]:
    """Write the traceback of each cell that failed, and remove those of earlier runs."""
    failed = {}
    for cell, outcome in zip(cells, outcomes, strict=True):
        path = output / FAILURES / f"{cell.name}.txt"
        path.unlink(missing_ok=True)
        if isinstance(outcome, Exception):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, "".join(traceback.format_exception(outcome)))
            failed[cell.name] = traceback.format_exception_only(outcome)[-1].strip()
    return failed


def _read(path: Path) -> Record:
    try:
        return json.loads(path.read_text())["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of a cell; delete it and run the study again") from error
