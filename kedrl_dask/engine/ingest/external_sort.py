"""An external sort of rows by episode, with part of them in memory.

Rows are distributed to buckets by ranges of episodes, each a file, so that a bucket holds whole episodes and
fits in memory; then the buckets are sorted one after another. The resulting order does not depend on the
boundaries of the ranges, which only decide how even the buckets are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from kedrl_dask.utils.arrays import Array

#: Approximate bytes of a bucket, and of the rows waiting to be written to it; and most files open at once.
BUCKET_BYTES, WAITING_BYTES, MOST_BUCKETS = 2**26, 2**20, 400


class Buckets:
    """Files of rows by ranges of episodes in an empty directory; a context manager that closes them.

    Takes sorted episodes of some of the rows, and the approximate size of all rows in bytes.
    """

    def __init__(self, folder: Path, sample: Array, n_bytes: int) -> None:
        n_buckets = int(np.clip(-(-n_bytes // BUCKET_BYTES), 1, MOST_BUCKETS))
        # An edge is the first episode of its bucket, so that no episode is divided.
        places = np.arange(1, n_buckets) * len(sample) // n_buckets
        self._edges = np.unique(sample[places]) if n_buckets > 1 else sample[:0]
        self._folder = folder
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._files: dict[int, ipc.RecordBatchStreamWriter] = {}

    def __enter__(self) -> Buckets:
        """Return the buckets themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def add(self, rows: Mapping[str, Array]) -> None:
        """Distribute rows to their buckets by ``episode``."""
        bucket = self._bucket_of(rows["episode"])
        order = np.argsort(bucket, kind="stable")
        batch = pa.RecordBatch.from_arrays([pa.array(values[order]) for values in rows.values()], list(rows))
        numbers, starts = np.unique(bucket[order], return_index=True)
        for number, start, stop in zip(numbers.tolist(), starts, [*starts[1:], len(order)], strict=True):
            waiting = self._waiting.setdefault(number, [])
            waiting.append(batch.slice(start, stop - start))
            if sum(part.nbytes for part in waiting) > WAITING_BYTES:
                self._write(number)

    def _bucket_of(self, episode: Array) -> Array:
        if episode.dtype != object:
            return np.searchsorted(self._edges, episode, side="right")
        texts, position = np.unique(episode, return_inverse=True)
        return np.searchsorted(self._edges, texts, side="right")[position]

    def _write(self, number: int) -> None:
        table = pa.Table.from_batches(self._waiting.pop(number)).combine_chunks()
        if number not in self._files:
            self._files[number] = ipc.new_stream(str(self._folder / f"{number}.arrows"), table.schema)
        self._files[number].write_table(table)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yield the buckets in the order of episodes, removing each file once it is read."""
        for number in list(self._waiting):
            self._write(number)
        for number in sorted(self._files):
            self._files[number].close()
            path = self._folder / f"{number}.arrows"
            with ipc.open_stream(str(path)) as stream:
                table = stream.read_all()
            path.unlink()
            yield {name: table[name].to_numpy() for name in table.column_names}
