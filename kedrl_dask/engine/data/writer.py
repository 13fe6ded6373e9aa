"""Writing of transition stores: pieces of any size are gathered into chunks and committed at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from numbers import Integral
from types import TracebackType

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.column_moments import MOMENT_ARRAYS, Moments
from kedrl_dask.engine.data.encoding import PARTS, Encoding
from kedrl_dask.engine.data.validation import (
    DataError,
    DataWarning,
    LastRow,
    check_arrays,
    check_end,
    check_scale,
    check_sequence,
)
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.atomic import PathLike
from kedrl_dask.engine.storage.directories import StoreError, digest
from kedrl_dask.engine.storage.lock import locked
from kedrl_dask.engine.storage.manifest import checksum_of
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.engine.storage.untrusted import MOST_SIZE, MOST_UNPACKED_BYTES
from kedrl_dask.utils.arrays import Array, Record
from kedrl_dask.utils.checks import as_numbers, check_count, cut
from kedrl_dask.utils.exceptions import warn

_KIND = "transitions"
#: Lock file that an appender holds: inside an array, where zarr does not look for other arrays.
_LOCK = "episode/.lock"
#: Attributes that a commit sets.
_COUNTS = ("n_rows", "n_episodes", "n_terminal")
_COMMITTED = ("complete", *_COUNTS, "fingerprint", "tail_digests", "full_moments", "moments", "encoding")
_DIGESTS_PER_CHUNK = 1024
#: sha256 of chunks, the last axis being its bytes.
Digests = npt.NDArray[np.uint8]
#: Standard deviations below this share of the entries are rounding errors.
ROUNDING = 1e-12


def fingerprint(digests: Digests) -> str:
    """Return the hexadecimal fingerprint of a store from the digests (chunk, array, byte) of its chunks."""
    return hashlib.sha256(np.ascontiguousarray(digests, dtype=np.uint8).data).hexdigest()


def open_committed(path: PathLike, writable: bool = False) -> ArrayStore:
    """Open the arrays of a transition store; refuse one whose writer never finished."""
    arrays = ArrayStore.open(path, _KIND, writable=writable, specs=(*TRANSITIONS, TRANSITION_DIGESTS))
    attributes = arrays.attributes
    if not attributes.get("complete"):
        raise StoreError(
            f"{arrays.path}: incomplete, its writer failed or is still at work; "
            "wait for it, or delete the directory and write the store again"
        )
    expected = attributes.get("checksum")  # older stores have none
    found = {name: attributes[name] for name in _COMMITTED if name in attributes}
    if expected is not None and checksum_of(found) != expected:
        raise StoreError(
            f"{arrays.path / 'zarr.json'} is damaged: its attributes have changed; restore the store from a "
            "copy, or write it again"
        )
    try:
        _check_attributes(arrays, attributes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{arrays.path}: its attributes are damaged ({cut(str(error))}); restore the store from "
            "a copy, or write it again"
        ) from error
    return arrays


def _check_attributes(arrays: ArrayStore, attributes: Record) -> None:
    """Compare the attributes of the last commit with the arrays, trusting neither."""
    counts = {name: attributes[name] for name in _COUNTS}
    for name, value in counts.items():
        check_count(name, value, least=0 if name == "n_terminal" else 1, most=MOST_SIZE)
    n_rows, n_episodes, n_terminal = counts.values()
    if not n_terminal <= n_episodes <= n_rows or n_rows - n_episodes + n_terminal < 1:
        raise ValueError(f"{n_rows} rows cannot be {n_episodes} episodes, {n_terminal} of them terminal")
    length = arrays.chunk("row")
    for spec in TRANSITIONS:
        if arrays.shape(spec.name)[0] < n_rows or arrays.shape(spec.name)[1:] == (0,):
            raise ValueError(f"{n_rows} rows, but array {spec.name} has shape {arrays.shape(spec.name)}")
    n_digests, *digest_shape = arrays.shape(TRANSITION_DIGESTS.name)
    if n_digests < n_rows // length or digest_shape != [len(TRANSITIONS), 32]:
        raise ValueError(f"{n_digests} digests for {n_rows // length} full chunks")
    tail = attributes["tail_digests"]
    if [len(bytes.fromhex(text)) for text in tail] != [32] * len(TRANSITIONS) * (n_rows % length > 0):
        raise ValueError("the digests of the last chunk are not those of every array")
    if len(bytes.fromhex(attributes["fingerprint"])) != 32:
        raise ValueError("the fingerprint is not a sha256")
    for name in PARTS:
        kinds = ["moments", *(["full_moments"] if n_rows >= length else [])]
        for moments in (Moments.from_json(attributes[kind][name]) for kind in kinds):
            shapes = {as_numbers(key, getattr(moments, key)).shape for key in MOMENT_ARRAYS}
            if shapes != {arrays.shape(name)[1:]} or not (as_numbers(name, moments.squares) >= 0).all():
                raise ValueError(f"the moments of {name} are not those of its columns")
            check_count("count", moments.count, most=MOST_SIZE)
    if "encoding" in attributes:
        encoding = Encoding.from_json(attributes["encoding"])
        for part in PARTS:
            if (len(encoding.names(part)),) != arrays.shape(part)[1:]:
                raise ValueError(f"the encoding of {part} is not that of its columns")


def chunk_digests(rows: Mapping[str, Array]) -> Digests:
    """Return the digests (array, byte) of one chunk of rows."""
    return np.stack([np.frombuffer(digest(rows[spec.name]), dtype=np.uint8) for spec in TRANSITIONS])


class Writer:
    """Appends rows to a transition store; a context manager that commits them at its end.

    Created by ``TransitionStore.writer`` or ``TransitionStore.appender``. Rows are gathered in a buffer of
    one chunk, which is written when it is full. Nothing counts as stored until :meth:`close` replaces the
    attributes of the group in one step; after an error, readers see the store as it was before.
    """

    def __init__(self, arrays: ArrayStore, state: Record, held: ExitStack | None = None) -> None:
        """Continue from committed attributes, or those of an empty store; ``held`` is closed at the end."""
        self._arrays, self._held = arrays, held or ExitStack()
        self._chunk_rows = arrays.chunk("row")
        self._dims: dict[str, int] = {name: arrays.size(f"{name}_dim") for name in PARTS}
        shapes = {s.name: (self._chunk_rows, *(arrays.size(dim) for dim in s.dims[1:])) for s in TRANSITIONS}
        self._buffer = {s.name: np.zeros(shapes[s.name], dtype=s.dtype) for s in TRANSITIONS}
        self._status = "open"
        self._encoding = Encoding.from_json(state["encoding"]) if "encoding" in state else None
        self._n_rows: int = state["n_rows"]
        self._n_episodes: int = state["n_episodes"]
        self._n_terminal: int = state["n_terminal"]
        self._full_moments = {name: Moments.from_json(m) for name, m in state["full_moments"].items()}
        # The buffer follows the full chunks; a last, partial one is loaded back into it.
        self._start = self._n_rows // self._chunk_rows * self._chunk_rows
        self._digests = list(arrays.read(TRANSITION_DIGESTS.name, 0, self._start // self._chunk_rows))
        self._last = self._reload(state["tail_digests"]) if self._n_rows else None

    @classmethod
    def create(
        cls, path: PathLike, dims: Mapping[str, int], chunk_rows: int, encoding: Encoding | None = None
    ) -> Writer:
        """Create a new store with these numbers of columns for state, action and reward."""
        for name, value in (*((f"{name}_dim", n) for name, n in dims.items()), ("chunk_rows", chunk_rows)):
            if isinstance(value, Integral) and value < 1:
                raise ValueError(f"{name}: is {value}, expected at least 1")
            check_count(name, value)
        row_bytes = 8 * max(dims.values())
        if chunk_rows * row_bytes > MOST_UNPACKED_BYTES:
            raise ValueError(
                f"chunk_rows: is {chunk_rows:,}, but chunks of that many rows cannot be compressed; give at "
                f"most {MOST_UNPACKED_BYTES // row_bytes:,}"
            )
        sizes = {f"{name}_dim": n for name, n in dims.items()}
        arrays = ArrayStore.create(
            path,
            _KIND,
            (*TRANSITIONS, TRANSITION_DIGESTS),
            sizes={**sizes, "row": 0, "chunk": 0, "stored_array": len(TRANSITIONS), "digest_byte": 32},
            chunks={"row": chunk_rows, "chunk": _DIGESTS_PER_CHUNK},
            attributes={"complete": False},
        )
        empty: Record = {"n_rows": 0, "n_episodes": 0, "n_terminal": 0, "full_moments": {}}
        if encoding is not None:
            empty["encoding"] = encoding.to_json()
        return cls(arrays, empty)

    @classmethod
    def resume(cls, path: PathLike) -> Writer:
        """Continue after the committed rows of an existing store, while no other process appends to it."""
        arrays = open_committed(path, writable=True)
        with ExitStack() as held:
            held.enter_context(locked(arrays.path, _LOCK))
            arrays = open_committed(path, writable=True)  # another appender may have ended meanwhile
            return cls(arrays, arrays.attributes, held.pop_all())

    def _reload(self, tail_digests: list[str]) -> LastRow:
        """Bring the last, partial chunk back into the buffer and return the last row."""
        stored = self._n_rows - self._start
        for name, values in self._buffer.items():
            values[:stored] = self._arrays.read(name, self._start, self._n_rows)
        if stored:
            found = chunk_digests(self._filled(stored))
            for spec, line, expected in zip(TRANSITIONS, found, tail_digests, strict=True):
                if line.tobytes().hex() != expected:
                    # The file of another chunk has a valid checksum, and would count as sound once rewritten.
                    raise StoreError(
                        f"{self._arrays.path}: array {spec.name}, rows {self._start}:{self._n_rows} are "
                        "damaged; restore the store from a copy, or write it again"
                    )
        episode, step, terminated = (
            self._arrays.read(name, max(0, self._n_rows - 2), self._n_rows)
            for name in ("episode", "step", "terminated")
        )
        alone = episode.size == 1 or episode[0] != episode[1]
        return LastRow(int(episode[-1]), int(step[-1]), bool(terminated[-1]), bool(alone))

    @property
    def n_rows(self) -> int:
        """Rows stored and appended so far."""
        return self._n_rows

    def append(
        self,
        *,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        episode: npt.ArrayLike,
        step: npt.ArrayLike,
        terminated: npt.ArrayLike | None = None,
    ) -> None:
        """Append a piece of rows, in (episode, step) order, after those already given.

        An episode may continue in the next piece. A piece that fails a check is refused as a whole, and a
        corrected one may follow.

        Raises
        ------
        DataError
            If the rows cannot be stored; the message names array, row and remedy.
        """
        given = {"state": state, "action": action, "reward": reward, "episode": episode, "step": step}
        self._require_open()
        self.append_checked(check_arrays({**given, "terminated": terminated}, self._dims, self._where))

    def _require_open(self) -> None:
        if self._status != "open":
            raise StoreError(f"{self._arrays.path}: this writer is {self._status}; open a new one")

    def append_checked(self, rows: Mapping[str, Array]) -> None:
        """Append rows that :func:`~kedrl_dask.engine.data.validation.check_arrays` has returned."""
        self._require_open()
        last = check_sequence(rows, self._where, self._last)
        self._status = "failed"  # a piece stored in part must not be committed
        try:
            self._store(rows)
        except BaseException:
            self._held.close()
            raise
        self._status = "open"
        continues = self._last is not None and self._last.episode == rows["episode"][0]
        self._n_episodes += int(np.sum(rows["episode"][1:] != rows["episode"][:-1])) + (not continues)
        self._n_terminal += int(rows["terminated"].sum())
        self._n_rows += rows["episode"].size
        self._last = last

    def _where(self, row: int) -> str:
        """Describe a row of the current piece."""
        if row < 0:
            return f"the last row before the piece (row {self._n_rows - 1} of the store)"
        return f"row {row} of the piece (row {self._n_rows + row} of the store)"

    def _filled(self, n_rows: int) -> dict[str, Array]:
        """Return the first rows of the buffer."""
        return {name: values[:n_rows] for name, values in self._buffer.items()}

    def _store(self, rows: Mapping[str, Array]) -> None:
        """Move rows into the buffer, writing it out whenever it is full."""
        filled, done, n_rows = self._n_rows - self._start, 0, rows["episode"].size
        while done < n_rows:
            count = min(self._chunk_rows - filled, n_rows - done)
            for name, values in self._buffer.items():
                values[filled : filled + count] = rows[name][done : done + count]
            filled, done = filled + count, done + count
            if filled == self._chunk_rows:
                self._write_chunk()
                filled = 0

    def _write_chunk(self) -> None:
        """Write the full buffer as one chunk of every array."""
        stop = self._start + self._chunk_rows
        if stop > self._arrays.size("row"):  # rows of an append that failed may already be there
            self._arrays.resize("row", stop)
        for name, values in self._buffer.items():
            self._arrays.write(name, self._start, values)
        self._digests.append(chunk_digests(self._buffer))
        self._full_moments = self._merged(self._chunk_rows)
        self._start = stop

    def _merged(self, filled: int) -> dict[str, Moments]:
        """Return the moments of the written chunks and of the first rows of the buffer.

        They are merged chunk by chunk, and so do not depend on the pieces.
        """
        moments = dict(self._full_moments)
        for name in self._dims if filled else ():
            of_buffer = Moments.of(self._buffer[name][:filled])
            moments[name] = moments[name].merge(of_buffer) if name in moments else of_buffer
        return moments

    def close(self) -> None:
        """Write the last rows and commit everything appended.

        Raises a DataError if there are no rows, or the last episode has only one row and is not terminated.
        """
        if self._status == "closed":
            return
        if self._status != "open":
            raise StoreError(
                f"{self._arrays.path}: this writer failed, nothing was committed; open a new one"
            )
        self._status = "failed"
        with self._held:
            moments = self._checked_moments()
            self._commit(moments)
        self._status = "closed"
        for name, of_array in moments.items():
            constant = of_array.minimum == of_array.maximum
            for column in np.flatnonzero(constant):
                value = of_array.minimum[column]
                message = f"{name}: column {column} is {value} in every row; leave out a constant column"
                warn(message, DataWarning)
            for column in np.flatnonzero(~constant & (of_array.deviation <= ROUNDING * of_array.largest)):
                message = (
                    f"{name}: column {column} differs from {of_array.mean[column]} by rounding errors only, "
                    "and counts as constant; subtract that value from it"
                )
                warn(message, DataWarning)

    def _checked_moments(self) -> dict[str, Moments]:
        """Return the moments of all rows, if these can be committed."""
        if self._last is None:
            raise DataError("state: has 0 rows, expected at least one recorded time point; append data first")
        check_end(self._last, f"row {self._n_rows - 1} of the store, the last one,")
        moments = self._merged(self._n_rows - self._start)
        for name, of_array in moments.items():
            check_scale(name, of_array.largest)
        return moments

    def _commit(self, moments: Mapping[str, Moments]) -> None:
        """Write the last, partial chunk and the digests; then, in one step, the attributes."""
        arrays = self._arrays
        tail = self._filled(self._n_rows - self._start)
        tail_digests = chunk_digests(tail) if self._n_rows > self._start else None
        arrays.resize("row", self._n_rows)
        if tail_digests is not None:
            for name, values in tail.items():
                arrays.write(name, self._start, values)
        if self._digests:
            arrays.resize("chunk", len(self._digests))
            arrays.write(TRANSITION_DIGESTS.name, 0, np.stack(self._digests))
        all_digests = [*self._digests, *([] if tail_digests is None else [tail_digests])]
        attributes: Record = {
            "complete": True,
            "n_rows": self._n_rows,
            "n_episodes": self._n_episodes,
            "n_terminal": self._n_terminal,
            "fingerprint": fingerprint(np.stack(all_digests)),
            "tail_digests": [] if tail_digests is None else [line.tobytes().hex() for line in tail_digests],
            "full_moments": {name: m.to_json() for name, m in self._full_moments.items()},
            "moments": {name: m.to_json() for name, m in moments.items()},
        }
        if self._encoding is not None:
            # Units are those of the first commit, so that appended rows do not change earlier fits.
            units = {name: m.deviation for name, m in moments.items()}
            encoding = self._encoding if self._encoding.scales else self._encoding.with_scales(units)
            attributes["encoding"] = encoding.to_json()
        arrays.update_attributes(**attributes, checksum=checksum_of(attributes))
        arrays.finish()

    def __enter__(self) -> Writer:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless the body raised an error; then nothing that it appended counts."""
        if kind is None:
            self.close()
        else:
            self._status = "failed"
            self._held.close()
