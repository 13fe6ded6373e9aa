"""Checkpoints of a solver: its whole state in one file of arrays, with nothing pickled."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from kedrl_dask.engine.storage.atomic import write_atomic
from kedrl_dask.engine.storage.directories import digest
from kedrl_dask.engine.storage.manifest import commit, committed, damaged, revoke
from kedrl_dask.numerics.criterion.preconditioner import Coordinates
from kedrl_dask.numerics.solvers.base import Kept, Record
from kedrl_dask.utils.arrays import Array

logger = logging.getLogger("kedrl_dask")


#: How many are kept, since the last may be damaged.
KEPT = 2
#: The next checkpoint is due after at least this multiple of the time that the last one took to write.
LEAST_SHARE = 50
#: Names of the arrays beside the state, and the prefix of the fields of the state.
COORDINATES, COEFFICIENTS, HISTORY, METHOD = "coordinates", "coefficients", "history", "method"
FIELD = "state."


class Checkpoints:
    """A directory with the last states of a solver; see :class:`~kedrl_dask.numerics.solvers.base.Keeper`.

    A checkpoint is written atomically and brought to the disk before it enters the manifest. ``seconds`` pass
    between checkpoints, or more if writing one takes more than a fiftieth of them. ``note(event, **facts)``
    is called when one was written, read, or found damaged.
    """

    def __init__(self, path: Path, seconds: float, note: Callable[..., None]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path, self._seconds, self._note = path / "states", seconds, note
        self._path.mkdir(exist_ok=True)
        self._next = time.monotonic() + seconds

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() >= self._next

    def keep(self, kept: Kept, coordinates: Coordinates) -> None:
        """Write a checkpoint and delete all but the last two."""
        start = time.monotonic()
        content = io.BytesIO()
        # Not compressed: the digits look random, and packing them would take longer than writing them.
        np.savez(content, **_arrays(kept, coordinates))  # type: ignore[arg-type]
        numbers = self._numbers()
        number = max(numbers, default=0) + 1
        file = self._file(number)
        write_atomic(file, content.getbuffer(), durable=True)
        commit(self._path, str(number), [file], durable=True)
        for old in sorted(numbers)[: 1 - KEPT]:
            self._delete(old)
        now = time.monotonic()
        self._next = now + max(self._seconds, LEAST_SHARE * (now - start))
        self._note("checkpoint", number=number, iteration=kept.history[-1].iteration, seconds=now - start)

    def restore(self, kind: type, coordinates: Coordinates) -> Kept | None:
        """Return the last intact checkpoint, with its state if method and coordinates are the same."""
        intact = [number for number in self._numbers() if self._is_intact(number)]
        if not intact:
            return None
        kept = _read(self._file(max(intact)), kind, coordinates)
        iteration, is_whole = kept.history[-1].iteration, kept.state is not None
        self._note("restored", number=max(intact), iteration=iteration, whole=is_whole)
        return kept

    def _is_intact(self, number: int) -> bool:
        """Return whether a checkpoint is undamaged; a damaged one is deleted."""
        files = damaged(self._path, str(number))
        for file in files:
            logger.warning("%s is damaged; an earlier checkpoint is used, if there is one", file)
            self._note("damaged", file=str(file))
        if files:
            self._delete(number)
        return not files

    def _delete(self, number: int) -> None:
        revoke(self._path, str(number))
        self._file(number).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        return [int(part) for part in committed(self._path)]

    def _file(self, number: int) -> Path:
        return self._path / f"{number}.npz"


def _arrays(kept: Kept, coordinates: Coordinates) -> dict[str, Array]:
    """Return all arrays of a checkpoint by name."""
    state: Any = kept.state  # a dataclass, whose type only its solver knows
    arrays = {FIELD + field.name: _to_array(getattr(state, field.name)) for field in fields(state)}
    arrays[METHOD], arrays[COORDINATES] = np.array(_method(type(state))), _identity(coordinates)
    arrays[COEFFICIENTS], arrays[HISTORY] = kept.coefficients, np.array(kept.history, dtype=np.float64)
    return arrays


def _to_array(value: object) -> Array:
    if isinstance(value, np.random.Generator):
        return np.array(json.dumps(value.bit_generator.state))
    return np.array(value, dtype=np.float64 if isinstance(value, Record) else None)


def _read(file: Path, kind: type, coordinates: Coordinates) -> Kept:
    with np.load(file, allow_pickle=False) as arrays:
        history = tuple(_record(row) for row in arrays[HISTORY])
        # Version one kept the whole name of the module, which has moved since.
        method = str(arrays[METHOD]).rpartition(".")[2]
        is_same = method == _method(kind) and arrays[COORDINATES] == _identity(coordinates)
        if not is_same:
            return Kept(None, arrays[COEFFICIENTS], history)
        hints = get_type_hints(kind)
        read = {
            field.name: _FROM_ARRAY.get(hints[field.name], np.asarray)(arrays[FIELD + field.name])
            for field in fields(kind)
        }
        # The solver's loop tells a new record from the last by identity.
        if "record" in read and read["record"] == history[-1]:
            read["record"] = history[-1]
        return Kept(kind(**read), arrays[COEFFICIENTS], history)


def _method(kind: type) -> str:
    """Return the name of a solver, which identifies its state in a checkpoint."""
    return kind.__module__.rpartition(".")[2]


def _record(row: Array) -> Record:
    return Record(int(row[0]), *row[1:].tolist())


def _generator(text: Array) -> np.random.Generator:
    state = json.loads(str(text))
    rng = np.random.Generator(getattr(np.random, state["bit_generator"])())
    rng.bit_generator.state = state
    return rng


_FROM_ARRAY: dict[type, Callable[[Array], object]] = {
    float: float,
    int: int,
    bool: bool,
    Record: _record,
    np.random.Generator: _generator,
}


def _identity(coordinates: Coordinates) -> Array:
    """Return what distinguishes coordinates; eigenvectors differ only by the rounding of another machine."""
    parts = (coordinates.left, coordinates.right, coordinates.spread)
    return np.array(" ".join(digest(part).hex() for part in parts))
