"""Groups of declared arrays on disk: the only module that knows Zarr."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync

from kedrl_dask import files
from kedrl_dask._version import __version__
from kedrl_dask.schema import ArraySpec

__all__ = [
    "FORMAT_VERSION",
    "ArrayStore",
    "DamageError",
    "StoreError",
    "check_vacant",
    "digest",
    "part_name",
    "remove",
]

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]

FORMAT_VERSION = 2
#: From this version on every chunk ends in its checksum, and none is left out because it is all zeros.
CHECKED_FROM = 2

# Chunks in flight per read or write. Many worker threads read at once, so parallelism comes from them;
# zarr's own default would multiply with it. And a chunk of zeros is stored too: one that is missing is lost.
zarr.config.set({"async.concurrency": 4, "array.write_empty_chunks": True})


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


def _codecs(compressed: bool) -> tuple[Any, ...]:
    """What becomes of a chunk's bytes; their checksum comes last, so that it is of what is on the disk."""
    return (ZstdCodec(), Crc32cCodec()) if compressed else (Crc32cCodec(),)


def part_name(block: int, name: str | None = None) -> str:
    """How the manifest calls chunk ``block`` of all arrays, or of one."""
    return str(block) if name is None else f"{block}-{name}"


def digest(array: Array) -> bytes:
    """Return the sha256 of an array's dtype, shape and elements in C order."""
    array = np.asarray(array)
    hasher = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def _dims(array: zarr.Array[Any]) -> tuple[str | None, ...]:
    """Names of an array's dimensions; none at all if another program left them out."""
    return tuple(getattr(array.metadata, "dimension_names", None) or ())


def check_vacant(path: PathLike) -> Path:
    """Return the path if a store can be created there; refuse a file or a non-empty directory."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path}: already exists; delete it or choose another path for the new store")
    return path


def remove(path: PathLike) -> None:
    """Remove a directory, though an interruption may have left writes under way that make it again."""
    for _ in range(20):
        sync(_end_of_writes())
        if not os.path.lexists(path):
            return
        rmtree(path, ignore_errors=True)
        time.sleep(0.05)  # for threads of an executor, which go on until they notice


async def _end_of_writes() -> None:
    """Wait for everything that zarr's own thread was given."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


class ArrayStore:
    """A Zarr group on a local path whose arrays were declared by :class:`~kedrl_dask.schema.ArraySpec`.

    Made by :meth:`create` or :meth:`open`. Writers own whole chunks, so several processes may write
    different chunks of one array at once.
    """

    def __init__(self, path: Path, group: zarr.Group) -> None:
        """Wrap an open group."""
        self._path = path
        self._group = group
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._names: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        path: PathLike,
        kind: str,
        specs: Iterable[ArraySpec],
        sizes: Mapping[str, int],
        chunks: Mapping[str, int],
        attributes: Mapping[str, Any] | None = None,
        compressed: bool = True,
    ) -> ArrayStore:
        """Create the group and its arrays, with nothing in them.

        Parameters
        ----------
        path : path-like
            Directory of the store: new, or empty.
        kind : str
            What the store holds; :meth:`open` asks for it again.
        specs : iterable of ArraySpec
            The arrays.
        sizes : mapping
            Size of each dimension by its name.
        chunks : mapping
            Chunk length by dimension name. Dimensions not named are one chunk.
        attributes : mapping, optional
            Further attributes of the group, JSON values.
        compressed : bool
            Whether chunks are compressed; it takes time, and results of computations hardly shrink.
        """
        path = check_vacant(path)
        specs = tuple(specs)
        unknown = {dim for spec in specs for dim in spec.dims} - set(sizes)
        if unknown:
            raise ValueError(f"{path}: no size given for dimension {', '.join(sorted(unknown))}")
        own = {"kind": kind, "format_version": FORMAT_VERSION, "created_by": f"kedrl_dask {__version__}"}
        group = zarr.create_group(path, zarr_format=3, attributes={**(attributes or {}), **own})
        for spec in specs:
            group.create_array(
                spec.name,
                shape=tuple(sizes[dim] for dim in spec.dims),
                chunks=tuple(max(1, chunks.get(dim, sizes[dim])) for dim in spec.dims),
                dtype=spec.dtype,
                fill_value=0,
                compressors=_codecs(compressed),
                dimension_names=spec.dims,
                attributes={"meaning": spec.meaning},
            )
        return cls(path, group)

    @classmethod
    def open(
        cls, path: PathLike, kind: str, writable: bool = False, specs: Iterable[ArraySpec] = ()
    ) -> ArrayStore:
        """Open an existing store of this kind; one small file is read when it was finished.

        Raises
        ------
        StoreError
            If there is no such store, it is of another kind or from a newer version of the package, or
            an array of ``specs`` is missing or differs from its declaration.
        """
        path = Path(path)
        if not path.exists():
            raise StoreError(f"{path}: no such store; check the path, or create the store first")
        try:
            # A writer must see the arrays' own metadata: the consolidated copy is that of the last
            # finish(), and lags behind while sizes change.
            group = zarr.open_group(
                path,
                mode="r+" if writable else "r",
                zarr_format=3,
                use_consolidated=False if writable else None,
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{path}: not a Zarr v3 group ({type(error).__name__}); give the directory of a store"
            ) from error
        store = cls(path, group)
        store._check(kind, specs)
        return store

    def _check(self, kind: str, specs: Iterable[ArraySpec]) -> None:
        """Compare kind, version and arrays with what was asked for."""
        found, version = self._group.attrs.get("kind"), self._group.attrs.get("format_version")
        if found != kind or not isinstance(version, int):
            raise StoreError(
                f"{self._path}: a store of kind {found!r}, expected {kind!r}; give the right path"
            )
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self._path}: format version {version}, this package reads up to {FORMAT_VERSION}; "
                "install a newer kedrl-dask"
            )
        for spec in specs:
            array = self._array(spec.name)
            if _dims(array) != spec.dims:
                raise StoreError(
                    f"{self._path}: array {spec.name} has dimensions {_dims(array)}, "
                    f"expected {spec.dims}; write the store again"
                )
            if array.dtype != np.dtype(spec.dtype):
                raise StoreError(
                    f"{self._path}: array {spec.name} has dtype {array.dtype}, "
                    f"expected {spec.dtype}; write the store again"
                )

    def _array(self, name: str) -> zarr.Array[Any]:
        """Return the named array; its metadata is read once per store object."""
        if name not in self._arrays:
            try:
                array = self._group[name]
            except KeyError:
                array = None
            if not isinstance(array, zarr.Array):
                raise StoreError(
                    f"{self._path}: array {name} is missing; write the store again, or restore it from a copy"
                )
            self._arrays[name] = array
        return self._arrays[name]

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._path

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, sorted."""
        if not self._names:  # listing a directory takes milliseconds, and arrays are never added
            self._names = tuple(sorted(self._group.array_keys()))
        return self._names

    @property
    def attributes(self) -> dict[str, Any]:
        """A copy of the group's attributes."""
        return deepcopy(dict(self._group.attrs))

    def update_attributes(self, **attributes: Any) -> None:
        """Set attributes of the group, all in one replacement of its metadata file."""
        self._group.update_attributes(attributes)

    def _find(self, dim: str) -> tuple[zarr.Array[Any], int]:
        """Return an array with this dimension, and the axis that it is."""
        for name in self.names:
            dims = _dims(self._array(name))
            if dim in dims:
                return self._array(name), dims.index(dim)
        raise StoreError(f"{self._path}: no array has the dimension {dim}")

    def size(self, dim: str) -> int:
        """Size of a dimension."""
        array, axis = self._find(dim)
        return int(array.shape[axis])

    def chunk(self, dim: str) -> int:
        """Chunk length along a dimension."""
        array, axis = self._find(dim)
        return int(array.chunks[axis])

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array."""
        return tuple(self._array(name).shape)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows ``start`` to ``stop`` (excluded) of an array, along its leading dimension."""
        array = self._array(name)
        stop = array.shape[0] if stop is None else stop
        if not 0 <= start <= stop <= array.shape[0]:
            raise ValueError(
                f"{self._path}: array {name} has {array.shape[0]} rows, asked for {start}:{stop}"
            )
        try:
            if self._is_checked:
                self._check_present(name, start, stop)
            return np.asarray(array[start:stop])
        except (OSError, RuntimeError, ValueError) as error:
            raise DamageError(
                f"{self._path}: array {name}, rows {start}:{stop} cannot be read ({error}); the file "
                f"{self._damaged_file(name, start, stop)} is damaged: restore it from a copy, "
                "or write the store again",
                self._path,
            ) from error

    @property
    def _is_checked(self) -> bool:
        return bool(self._group.attrs["format_version"] >= CHECKED_FROM)  # type: ignore[operator]

    def _chunks(self, name: str, start: int, stop: int) -> Iterator[tuple[int, ...]]:
        """Places in the grid of chunks that hold some rows of an array."""
        array = self._array(name)
        stop = min(stop, array.shape[0])
        if array.size and start < stop:
            rows = range(start // array.chunks[0], -(-stop // array.chunks[0]))
            rest = [range(-(-n // chunk)) for n, chunk in zip(array.shape[1:], array.chunks[1:], strict=True)]
            yield from itertools.product(rows, *rest)

    def file(self, name: str, row: int) -> Path:
        """File that holds a row of an array, if its other dimensions are one chunk."""
        return self._file(name, next(self._chunks(name, row, row + 1)))

    def _file(self, name: str, place: tuple[int, ...]) -> Path:
        """File of a chunk."""
        return self._path / name / self._array(name).metadata.encode_chunk_key(place)

    def _check_present(self, name: str, start: int, stop: int) -> None:
        """Refuse a chunk that is gone: Zarr would take it for zeros."""
        for place in self._chunks(name, start, stop):
            if not self._file(name, place).exists():
                raise FileNotFoundError("no such file")

    def _damaged_file(self, name: str, start: int, stop: int) -> Path:
        """The first file among some rows of an array that cannot be read."""
        array = self._array(name)
        for place in self._chunks(name, start, stop):
            where = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, array.chunks, strict=True))
            file = self._file(name, place)
            if not file.exists():
                return file
            try:
                array[where]
            except (OSError, RuntimeError, ValueError):
                return file
        return self._path / name

    def commit(self, block: int, name: str | None = None, **facts: Any) -> None:
        """Say in the manifest beside the store that chunk ``block`` of every array, or of one, is written."""
        written = []
        # The directories of a group are its arrays; to ask Zarr for them would take longer than all the rest.
        names = [entry.name for entry in os.scandir(self._path) if entry.is_dir()]
        for array in sorted(names) if name is None else (name,):
            length = self._array(array).chunks[0]
            places = self._chunks(array, block * length, (block + 1) * length)
            written += [self._file(array, place) for place in places]
        files.commit(self._path, part_name(block, name), written, **facts)

    def entry(self, block: int, name: str | None = None) -> dict[str, Any]:
        """What the manifest says of them; empty if nothing."""
        return files.read_entry(self._path, part_name(block, name))

    def revoke(self, block: int, name: str | None = None) -> None:
        """Take them out of the manifest, before they are written anew."""
        files.revoke(self._path, part_name(block, name))

    def take(self, name: str, rows: npt.ArrayLike) -> Array:
        """Rows of an array in the given order; each chunk touched is read once, one at a time."""
        array = self._array(name)
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < array.shape[0]):
            raise ValueError(
                f"{self._path}: array {name} has {array.shape[0]} rows, "
                f"asked for rows {rows.min()} to {rows.max()}"
            )
        taken = np.empty((rows.size, *array.shape[1:]), dtype=array.dtype)
        order = np.argsort(rows, kind="stable")
        first_in_chunk = np.flatnonzero(np.diff(rows[order] // array.chunks[0])) + 1
        for part in np.split(order, first_in_chunk) if rows.size else ():
            start, stop = int(rows[part[0]]), int(rows[part[-1]]) + 1
            taken[part] = self.read(name, start, stop)[rows[part] - start]
        return taken

    def write(self, name: str, start: int, values: npt.ArrayLike) -> None:
        """Write rows from ``start`` on; they must be whole chunks, or end at the end of the array.

        Two writers that share no chunk cannot overwrite each other's rows; half a chunk would be read,
        changed and written back.
        """
        array = self._array(name)
        values = np.asarray(values)
        if values.shape[1:] != array.shape[1:] or values.ndim != array.ndim:
            raise ValueError(
                f"{self._path}: array {name} has rows of shape {array.shape[1:]}, got {values.shape[1:]}"
            )
        stop, length = start + values.shape[0], array.chunks[0]
        if start % length or (stop % length and stop != array.shape[0]) or stop > array.shape[0]:
            raise ValueError(
                f"{self._path}: array {name}, rows {start}:{stop} are not whole chunks; "
                f"start and end on multiples of {length}, or end at row {array.shape[0]}"
            )
        array[start:stop] = values.astype(array.dtype, casting="same_kind", copy=False)

    def resize(self, dim: str, size: int) -> None:
        """Lengthen or cut all arrays that have this leading dimension; new rows are zero."""
        for name in self.names:
            array = self._array(name)
            if _dims(array)[:1] == (dim,) and array.shape[0] != size:
                array.resize((size, *array.shape[1:]))

    def finish(self) -> None:
        """Gather the metadata of all arrays in the group's own file; call once, after everything else.

        From then on a store opens with one read. A later :meth:`update_attributes` undoes it.
        """
        with warnings.catch_warnings():
            # Readers that do not know this extension of Zarr v3 ignore it and read the arrays' own files.
            warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
            zarr.consolidate_metadata(self._group.store)

    def __repr__(self) -> str:
        """Path, kind and arrays."""
        return f"ArrayStore({str(self._path)!r}, kind={self._group.attrs['kind']!r}, arrays={self.names})"
