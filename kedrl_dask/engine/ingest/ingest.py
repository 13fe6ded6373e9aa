"""From a table to a store of transitions: read twice, sorted out of core, written bucket by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kedrl_dask.engine.data.encoding import MISSING, PARTS, Encoding, Part
from kedrl_dask.engine.data.validation import DataError, check_end, check_sequence
from kedrl_dask.engine.data.writer import Writer
from kedrl_dask.engine.ingest.columns import Columns, MissingPolicy
from kedrl_dask.engine.ingest.external_sort import Buckets
from kedrl_dask.engine.ingest.first_pass import Survey, survey
from kedrl_dask.engine.ingest.parsing import Parsed, parse
from kedrl_dask.engine.ingest.readers import Source, TableLike, open_source
from kedrl_dask.engine.storage.atomic import PathLike, atomic_directory, check_vacant
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import check_word
from kedrl_dask.utils.progress import ProgressMode, Reporter


@dataclass(frozen=True)
class Ingested:
    """Numbers of rows read, rows stored, and episodes and rows dropped."""

    rows: int
    stored: int
    dropped_episodes: int
    dropped_rows: int


def ingest(
    path: PathLike,
    source: TableLike,
    columns: Mapping[str, object],
    categorical: Sequence[str] | str = (),
    missing: MissingPolicy | Mapping[str, MissingPolicy] = "refuse",
    standardise: Sequence[Part] | Part = (),
    lone_rows: str = "refuse",
    format: str | None = None,
    chunk_rows: int = 16_384,
    progress: ProgressMode = "auto",
) -> Ingested:
    """Store a table as transitions; the store appears at its path when it is complete.

    Stored rows are sorted by episode and step, whatever the format and the order of the table. Memory does
    not grow with the number of rows, which are sorted through files beside the store in buckets of whole
    episodes; these take about as much space as the store.

    Parameters
    ----------
    path : path-like
        Directory of the new store.
    source : pandas.DataFrame, pyarrow.Table or path-like
        A table in memory; or a file, or a directory of files in one format, whose folders may be partitions
        (``key=value``): Parquet, CSV (also tab-separated ``.tsv``, and ``.gz``) or Arrow (Feather).
    columns : dict
        Names of columns by meaning. ``episode``: integers, which are kept, or text, which is numbered in
        alphabetical order. ``step``: integers that rise by one within an episode; or ``time``: rising numbers
        or timestamps, which are replaced by steps 0, 1, 2, …. ``state``, ``action`` and ``reward``: one or
        several columns. ``terminated``: true on the last row of episodes that ended. ``truncated``: true on
        the last row of episodes that were cut off; its only effect is that rows after it are refused.
    categorical : sequence of str
        State columns that are encoded by their levels, with a column of zeros and ones for each, in sorted
        order. All others must be numbers or flags.
    missing : {"refuse", "drop", "impute"} or dict
        Treatment of missing values, in all columns or by column: an error; omission of the episode; or, in
        state columns, replacement by the mean of the column (by no level, if it is categorical), with a
        further column that indicates where. In other columns "impute" refuses.
    standardise : sequence of {"state", "action", "reward"}
        Parts for whose columns the lengths of kernels are given in standard deviations. Numbers are stored
        unchanged, so that every output is in the table's units: see
        :mod:`kedrl_dask.engine.data.encoding`.
        Automatic kernels have lengths proportional to the deviations in any case.
    lone_rows : {"refuse", "drop"}
        Treatment of episodes of one row that is not terminated, which have no transition.
    format : {"parquet", "csv", "arrow"}, optional
        Needed if the file names do not tell.
    chunk_rows : int
        Rows per stored chunk, the unit of reading.
    progress : {"auto", "bars", "log", "none"}

    Raises
    ------
    DataError
        Naming file, row (from 0, not counting a header) and column; no files are left behind.
    """
    path = check_vacant(path)
    named = Columns.build(columns, categorical, missing)
    standardised = (standardise,) if isinstance(standardise, str) else tuple(standardise)
    for part in standardised:
        check_word("standardise", part, PARTS)
    check_word("lone_rows", lone_rows, ("refuse", "drop"))
    opened, reporter = open_source(source, format), Reporter(progress)
    with reporter.stage("reading the table") as advance:
        found = survey(opened, named, standardised, advance)
    n_bytes = found.n_rows * 8 * (len(named.names) + 3)
    with (
        atomic_directory(path) as partial,
        # Beside the store, where there is room for it.
        TemporaryDirectory(prefix=f".{path.name}-", dir=partial.parent) as folder,
        Buckets(Path(folder), found.episodes, n_bytes) as buckets,
    ):
        with reporter.stage("sorting by episode", found.n_rows) as advance:
            for rows in _typed_rows(opened, named, found):
                buckets.add(rows)
                advance(len(rows["row"]))
        with reporter.stage("writing the store", found.n_rows) as advance:
            return _write(partial, opened, named, found, buckets, lone_rows == "drop", chunk_rows, advance)


def _typed_rows(source: Source, columns: Columns, found: Survey) -> Iterator[dict[str, Array]]:
    """Yield the rows of the second pass as columns of numbers, with the place of each in the table."""
    levels = {column.name: column.levels for column in found.encoding.state if column.levels is not None}
    for piece in source.pieces(columns.names):
        rows = parse(piece, columns, found.kinds, source.files)
        yield {
            "episode": rows.episode,
            "order": rows.order,
            "file": np.full(len(piece), piece.file, dtype=np.int32),
            "row": piece.first + np.arange(len(piece)),
            "terminated": rows.terminated,
            "truncated": rows.truncated,
            "dropped": rows.dropped,
            **{f"value {name}": values for name, values in _values(rows, levels).items()},
        }


def _values(rows: Parsed, levels: Mapping[str, tuple[str, ...]]) -> dict[str, Array]:
    """Return numbers, and positions among all levels of the table."""
    found: dict[str, Array] = dict(rows.numbers)
    for name, own in rows.levels.items():
        places = np.searchsorted(np.array(levels[name], dtype=object), np.array(own.texts, dtype=object))
        found[name] = np.append(places, MISSING).astype(np.int32)[own.position]
    return found


def _write(
    path: Path,
    source: Source,
    columns: Columns,
    found: Survey,
    buckets: Buckets,
    drop_lone: bool,
    chunk_rows: int,
    advance: Callable[..., None],
) -> Ingested:
    dims: dict[str, int] = {part: len(found.encoding.names(part)) for part in PARTS}
    n_stored, n_episodes, dropped = 0, 0, np.zeros(2, dtype=np.int64)
    with Writer.create(path, dims, chunk_rows, found.encoding) as writer:
        for rows in buckets:
            n_read = len(rows["row"])
            rows, n_dropped = _kept(rows, drop_lone)
            dropped += n_dropped, n_read - len(rows["row"])
            if len(rows["row"]):
                rows = _sequenced(rows, columns.has_steps, found.kinds.episode == "text", n_episodes)
                n_episodes += len(np.unique(rows["episode"]))
                _checked(rows, source)
                for start in range(0, len(rows["row"]), chunk_rows):
                    part = {name: values[start : start + chunk_rows] for name, values in rows.items()}
                    writer.append_checked(_encoded(part, found.encoding))
                n_stored += len(rows["row"])
            advance(n_read)
        if n_stored == 0:
            raise DataError(
                f"{source.files[0]}: every episode has a missing value and is dropped; "
                "impute them, or leave out columns"
            )
    return Ingested(found.n_rows, n_stored, *dropped.tolist())


def _kept(rows: dict[str, Array], drop_lone: bool) -> tuple[dict[str, Array], int]:
    """Return the rows sorted by episode and order, without dropped episodes, and the number of these."""
    texts, episode = np.unique(rows["episode"], return_inverse=True)
    order = np.lexsort((rows["order"], episode))
    is_dropped = np.zeros(len(texts), dtype=bool)
    np.logical_or.at(is_dropped, episode, rows["dropped"])
    if drop_lone:
        counts = np.bincount(episode)
        ends = np.zeros(len(texts), dtype=bool)
        np.logical_or.at(ends, episode, rows["terminated"])
        is_dropped |= (counts == 1) & ~ends
    order = order[~is_dropped[episode[order]]]
    return {name: values[order] for name, values in rows.items()}, int(is_dropped.sum())


def _sequenced(rows: dict[str, Array], has_steps: bool, is_text: bool, first: int) -> dict[str, Array]:
    """Replace the names of episodes by numbers in the same order, and times by steps."""
    if is_text:
        rows["episode"] = first + np.unique(rows["episode"], return_inverse=True)[1]
    starts = np.flatnonzero(np.diff(rows["episode"], prepend=rows["episode"][0] - 1))
    within = np.arange(len(rows["row"])) - np.repeat(starts, np.diff(starts, append=len(rows["row"])))
    rows["step"] = rows["order"] if has_steps else within
    return rows


def _checked(rows: dict[str, Array], source: Source) -> None:
    """Refuse rows that do not form episodes, naming their places in the table."""

    def where(i: int) -> str:
        return f"row {rows['row'][i]} of {source.files[rows['file'][i]]}"

    follows = rows["episode"][1:] == rows["episode"][:-1]
    ties = follows & (rows["order"][1:] == rows["order"][:-1])
    if ties.any():
        i = int(np.argmax(ties))
        raise DataError(
            f"{where(i)} and {where(i + 1)} have the same episode and the same step or time, "
            f"{rows['order'][i]}, expected each once; remove one of the two rows"
        )
    cut = rows["truncated"][:-1] & follows
    if cut.any():
        i = int(np.argmax(cut))
        raise DataError(
            f"{where(i)} is truncated but {where(i + 1)} continues its episode, expected the flag on the "
            "last row of an episode only; clear it, or give later rows another episode"
        )
    # A bucket holds whole episodes, so that no earlier row matters.
    check_end(check_sequence(rows, where, None), where(len(rows["row"]) - 1))


def _encoded(rows: dict[str, Array], encoding: Encoding) -> dict[str, Array]:
    """Return arrays for a writer, which need no further checks than those of parsing."""
    state = [column.expand(rows[f"value {column.name}"]) for column in encoding.state]
    return {
        "state": np.hstack(state),
        "action": np.stack([rows[f"value {name}"] for name in encoding.action], axis=1),
        "reward": np.stack([rows[f"value {name}"] for name in encoding.reward], axis=1),
        **{name: rows[name] for name in ("episode", "step", "terminated")},
    }
