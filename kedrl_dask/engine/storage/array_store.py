"""Groups of declared arrays on disk."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import psutil
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from kedrl_dask._version import __version__
from kedrl_dask.engine.storage import manifest
from kedrl_dask.engine.storage.atomic import PathLike, check_vacant
from kedrl_dask.engine.storage.directories import DamageError, PlainFiles, StoreError, part_name
from kedrl_dask.engine.storage.schema import ArraySpec
from kedrl_dask.engine.storage.untrusted import checked_path, reason, what_is_foreign
from kedrl_dask.utils.arrays import Array, Record
from kedrl_dask.utils.checks import shown

ZarrArray: TypeAlias = "zarr.Array[Any]"  # of either version of the format, known only at run time

FORMAT_VERSION = 2
#: From this version on every chunk ends in its checksum, and chunks of zeros are stored like any other.
CHECKED_FROM = 2

#: Smaller reads are not compared with the free memory.
SMALL_BYTES = 2**28
#: Largest plausible compression ratio of a fitted model.
MOST_PACKED = 100

# Few chunks at a time per read or write, because many worker threads read in parallel, and zarr's own default
# would multiply with their number. Chunks of zeros are stored, so that a missing chunk is not taken for one.
zarr.config.set({"async.concurrency": 4, "array.write_empty_chunks": True})


def _codecs(compressed: bool) -> tuple[ZstdCodec | Crc32cCodec, ...]:
    """Return the codecs of a chunk; the checksum comes last, so that it covers the bytes on disk."""
    return (ZstdCodec(), Crc32cCodec()) if compressed else (Crc32cCodec(),)


def _dims(array: ZarrArray) -> tuple[str | None, ...]:
    """Return the names of an array's dimensions; empty if another program left them out."""
    return tuple(getattr(array.metadata, "dimension_names", None) or ())


def _codec_names(array: ZarrArray) -> list[str]:
    """Return the class names of an array's codecs; empty in other versions of Zarr's format."""
    return [type(codec).__name__ for codec in getattr(array.metadata, "codecs", ())]


class ArrayStore:
    """A Zarr group on a local path whose arrays are declared in :mod:`kedrl_dask.engine.storage.schema`.

    Obtained from :meth:`create` or :meth:`open`. Writers own whole chunks, so that several processes may
    write different chunks of one array at the same time.
    """

    def __init__(self, path: Path, group: zarr.Group) -> None:
        """Wrap an open group."""
        self.path, self._group = path, group
        self._arrays: dict[str, ZarrArray] = {}
        self._names: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        path: PathLike,
        kind: str,
        specs: Iterable[ArraySpec],
        sizes: Mapping[str, int],
        chunks: Mapping[str, int],
        attributes: Mapping[str, object] | None = None,
        compressed: bool = True,
    ) -> ArrayStore:
        """Create the group and its empty arrays in a directory that is new or empty.

        ``sizes`` and ``chunks`` give the size and the chunk length of each dimension by its name; a dimension
        not in ``chunks`` has one chunk. Compression takes time and hardly shrinks computed results.
        """
        path = check_vacant(path)
        specs = tuple(specs)
        unknown = {dim for spec in specs for dim in spec.dims} - set(sizes)
        if unknown:
            raise ValueError(f"{path}: no size given for dimension {', '.join(sorted(unknown))}")
        own = {"kind": kind, "format_version": FORMAT_VERSION, "created_by": f"kedrl_dask {__version__}"}
        group = zarr.create_group(PlainFiles(path), zarr_format=3, attributes={**(attributes or {}), **own})
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
        """Open an existing store of this kind; if it was finished, one small file is read.

        Raises a StoreError if there is no such store, it is of another kind or from a newer version of the
        package, or an array of ``specs`` is missing or differs from its declaration.
        """
        path = checked_path(path)
        if not path.exists():
            raise StoreError(f"{path}: no such store; check the path, or create the store first")
        if not path.is_dir():
            raise StoreError(
                f"{path}: not a Zarr v3 group (a file); give the directory of a store, and unpack an archive "
                "first"
            )
        try:
            # A writer must see the arrays' own metadata: the consolidated copy is that of the last finish(),
            # and is outdated while sizes change.
            group = zarr.open_group(
                PlainFiles(path),
                mode="r+" if writable else "r",
                zarr_format=3,
                use_consolidated=False if writable else None,
            )
        except PermissionError:
            raise
        except Exception as error:  # any error of a parser, since the file is untrusted
            raise StoreError(
                f"{path}: not a Zarr v3 group ({reason(error)}); give the directory of a store"
            ) from error
        store = cls(path, group)
        store._check(kind, specs)
        return store

    def _check(self, kind: str, specs: Iterable[ArraySpec]) -> None:
        """Compare kind, version and arrays with those expected."""
        found, version = self._group.attrs.get("kind"), self._group.attrs.get("format_version")
        if found != kind or not isinstance(version, int):
            raise StoreError(
                f"{self.path}: a store of kind {shown(found)}, expected {kind!r}; give the right path"
            )
        if version > FORMAT_VERSION:
            raise StoreError(
                f"{self.path}: format version {version}, but this package reads up to {FORMAT_VERSION}; "
                "install a newer kedrl-dask"
            )
        self.require(specs)

    def require(self, specs: Iterable[ArraySpec]) -> None:
        """Compare arrays with their declarations."""
        for spec in specs:
            array = self._array(spec.name)
            properties = ("dimensions", _dims(array), spec.dims), ("dtype", array.dtype, np.dtype(spec.dtype))
            for what, found, expected in properties:
                if found != expected:
                    raise StoreError(
                        f"{self.path}: array {spec.name} has {what} {found}, expected {expected}; write the "
                        "store again"
                    )

    def _array(self, name: str) -> ZarrArray:
        """Return the named array, whose metadata is read once per store object."""
        if name not in self._arrays:
            remedy = "write the store again, or restore it from a copy"
            try:
                array = self._group[name]
            except KeyError:
                array = None
            except Exception as error:  # as in open
                raise StoreError(
                    f"{self.path}: array {name} has no sound metadata ({reason(error)}); {remedy}"
                ) from error
            if not isinstance(array, zarr.Array):
                raise StoreError(f"{self.path}: array {name} is missing; {remedy}")
            codecs = _codec_names(array)
            if (wrong := what_is_foreign(array.shape, array.chunks, array.dtype, codecs)) is not None:
                raise StoreError(f"{self.path}: array {name} has {wrong}; {remedy}")
            plain = self._group.store
            if "ZstdCodec" in codecs and isinstance(plain, PlainFiles):
                plain.packed.add(name)
            self._arrays[name] = array
        return self._arrays[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, sorted."""
        if not self._names:  # kept, as listing a directory takes milliseconds and arrays are never added
            try:
                self._names = tuple(sorted(self._group.array_keys()))
            except Exception as error:  # as in open
                raise StoreError(
                    f"{self.path}: its arrays cannot be listed ({reason(error)}); restore it from a copy"
                ) from error
        return self._names

    @property
    def attributes(self) -> Record:
        """A copy of the group's attributes."""
        return deepcopy(dict(self._group.attrs))

    def update_attributes(self, **attributes: object) -> None:
        """Set attributes of the group by one atomic replacement of its metadata file."""
        self._group.update_attributes(attributes)

    def _find(self, dim: str) -> tuple[ZarrArray, int]:
        """Return an array with this dimension, and its axis."""
        for name in self.names:
            dims = _dims(self._array(name))
            if dim in dims:
                return self._array(name), dims.index(dim)
        raise StoreError(f"{self.path}: no array has the dimension {dim}")

    def size(self, dim: str) -> int:
        """Return the size of a dimension."""
        array, axis = self._find(dim)
        return int(array.shape[axis])

    def chunk(self, dim: str) -> int:
        """Return the chunk length along a dimension."""
        array, axis = self._find(dim)
        return int(array.chunks[axis])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return tuple(self._array(name).shape)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows ``start`` to ``stop`` (excluded) of an array, along its leading dimension."""
        array = self._array(name)
        stop = array.shape[0] if stop is None else stop
        if not 0 <= start <= stop <= array.shape[0]:
            raise ValueError(f"{self.path}: array {name} has {array.shape[0]} rows, asked for {start}:{stop}")
        n_bytes = (stop - start) * prod(array.shape[1:]) * array.dtype.itemsize
        if n_bytes > SMALL_BYTES and n_bytes > (free := psutil.virtual_memory().available):
            raise StoreError(
                f"{self.path}: array {name}, rows {start}:{stop} need {n_bytes / 2**30:,.1f} GiB, but "
                f"{free / 2**30:,.1f} are free; read fewer rows, or restore the store if it is not so large"
            )
        try:
            if self._is_checked:
                self._check_present(name, start, stop)
            return np.asarray(array[start:stop])
        except Exception as error:  # of a codec or the file system
            raise DamageError(
                f"{self.path}: array {name}, rows {start}:{stop} cannot be read ({reason(error)}); the file "
                f"{self._damaged_file(name, start, stop)} is damaged: restore it from a copy, "
                "or write the store again",
                self.path,
            ) from error

    @property
    def _is_checked(self) -> bool:
        return bool(self._group.attrs["format_version"] >= CHECKED_FROM)  # type: ignore[operator]

    def _chunks(self, name: str, start: int, stop: int) -> Iterator[tuple[int, ...]]:
        """Yield the indices of the chunks that hold some rows of an array."""
        array = self._array(name)
        stop = min(stop, array.shape[0])
        if array.size and start < stop:
            rows = range(start // array.chunks[0], -(-stop // array.chunks[0]))
            rest = [range(-(-n // chunk)) for n, chunk in zip(array.shape[1:], array.chunks[1:], strict=True)]
            yield from itertools.product(rows, *rest)

    def file(self, name: str, row: int) -> Path:
        """Return the file that holds a row of an array whose other dimensions have one chunk."""
        return self._file(name, next(self._chunks(name, row, row + 1)))

    def _file(self, name: str, place: tuple[int, ...]) -> Path:
        """Return the file of a chunk."""
        return self.path / name / self._array(name).metadata.encode_chunk_key(place)

    def _check_present(self, name: str, start: int, stop: int) -> None:
        """Refuse a missing chunk, which Zarr would read as zeros."""
        for place in self._chunks(name, start, stop):
            if not self._file(name, place).exists():
                raise FileNotFoundError("no such file")

    def _damaged_file(self, name: str, start: int, stop: int) -> Path:
        """Return the first unreadable file among those of some rows of an array."""
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
        return self.path / name

    def commit(self, block: int, name: str | None = None, **facts: object) -> None:
        """Record in the manifest that chunk ``block`` of all arrays, or of one, is written."""
        written = []
        # The directories of a group are its arrays; asking Zarr for them would take longer than all the rest.
        names = [entry.name for entry in os.scandir(self.path) if entry.is_dir()]
        for array in sorted(names) if name is None else (name,):
            length = self._array(array).chunks[0]
            places = self._chunks(array, block * length, (block + 1) * length)
            written += [self._file(array, place) for place in places]
        manifest.commit(self.path, part_name(block, name), written, durable=False, **facts)

    def entry(self, block: int, name: str | None = None) -> Record:
        """Return the manifest's entry of such a chunk; empty if there is none."""
        return manifest.read_entry(self.path, part_name(block, name))

    def revoke(self, block: int, name: str | None = None) -> None:
        """Remove such a chunk from the manifest, before it is rewritten."""
        manifest.revoke(self.path, part_name(block, name))

    def take(self, name: str, rows: npt.ArrayLike) -> Array:
        """Return rows of an array in the given order, reading each chunk needed once, one at a time."""
        array = self._array(name)
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < array.shape[0]):
            raise ValueError(
                f"{self.path}: array {name} has {array.shape[0]} rows, "
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
        """Write rows from ``start`` on, which must be whole chunks or end at the end of the array.

        Writers that share no chunk cannot overwrite each other's rows, whereas part of a chunk would be read,
        changed and written back.
        """
        array = self._array(name)
        values = np.asarray(values)
        if values.shape[1:] != array.shape[1:] or values.ndim != array.ndim:
            raise ValueError(
                f"{self.path}: array {name} has rows of shape {array.shape[1:]}, got {values.shape[1:]}"
            )
        stop, length = start + values.shape[0], array.chunks[0]
        if start % length or (stop % length and stop != array.shape[0]) or stop > array.shape[0]:
            raise ValueError(
                f"{self.path}: array {name}, rows {start}:{stop} are not whole chunks; "
                f"start and end on multiples of {length}, or end at row {array.shape[0]}"
            )
        array[start:stop] = values.astype(array.dtype, casting="same_kind", copy=False)

    def require_substance(self) -> None:
        """Refuse arrays that claim far more than is on disk, since missing chunks would be read as zeros.

        For stores of incompressible numbers that are read as a whole.
        """
        claimed = sum(prod(self.shape(name)) * self._array(name).dtype.itemsize for name in self.names)
        if claimed <= SMALL_BYTES:
            return
        on_disk = sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())
        if claimed > MOST_PACKED * on_disk:
            raise StoreError(
                f"{self.path}: claims {claimed:,} bytes but has {on_disk:,} on disk; chunks are missing: "
                "restore it from a copy"
            )

    def resize(self, dim: str, size: int) -> None:
        """Extend or truncate all arrays with this leading dimension; new rows are zero."""
        for name in self.names:
            array = self._array(name)
            if _dims(array)[:1] == (dim,) and array.shape[0] != size:
                array.resize((size, *array.shape[1:]))

    def finish(self) -> None:
        """Consolidate the metadata of all arrays in the group's own file; call once, at the end.

        Afterwards a store opens with one read. A later :meth:`update_attributes` undoes it.
        """
        with warnings.catch_warnings():
            # Readers without this extension of Zarr v3 ignore it and read the arrays' own files.
            warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
            zarr.consolidate_metadata(self._group.store)

    def __repr__(self) -> str:
        """Return path, kind and arrays."""
        return f"ArrayStore({str(self.path)!r}, kind={self._group.attrs['kind']!r}, arrays={self.names})"


def write_arrays(
    path: PathLike,
    kind: str,
    specs: Sequence[ArraySpec],
    arrays: Mapping[str, Array],
    attributes: Mapping[str, Any] | None = None,
    compressed: bool = True,
) -> ArrayStore:
    """Create a store that holds whole arrays, each in one chunk; ``finish`` completes it."""
    sizes = {
        dim: size for spec in specs for dim, size in zip(spec.dims, arrays[spec.name].shape, strict=True)
    }
    store = ArrayStore.create(path, kind, specs, sizes, {}, attributes, compressed)
    for spec in specs:
        if arrays[spec.name].size:
            store.write(spec.name, 0, arrays[spec.name])
    return store
