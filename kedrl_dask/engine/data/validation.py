"""Checks of recorded data before any of it is stored.

Every message is one line with the array, the user's row, what was found, what was expected, and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.encoding import PARTS
from kedrl_dask.utils.arrays import Array

Locate = Callable[[int], str]  # describes a row of the arrays; −1 is the row before the first

_ROWS_AT_ONCE = 65_536  # so that checking an array mapped from disk does not read it into memory
_EXACT = 2**53  # from here on, floats skip integers
#: Bounds on the largest absolute entry of a column, so that squares and their sums and products are finite
#: and not lost.
LARGEST, SMALLEST = 1e100, 1e-100


class DataError(ValueError):
    """Recorded data cannot be stored; the message names array, row and remedy."""


class DataWarning(UserWarning):
    """Recorded data was stored but looks unintended."""


@dataclass(frozen=True)
class LastRow:
    """The last row accepted so far, which is all that checks across pieces need."""

    episode: int
    step: int
    terminated: bool
    alone: bool  # no earlier row belongs to its episode


def check_arrays(
    arrays: Mapping[str, npt.ArrayLike | None], dims: Mapping[str, int], where: Locate
) -> dict[str, Array]:
    """Check each array on its own, and that all have the same number of rows.

    ``terminated`` may be None, and ``dims`` are the numbers of columns where known. Matrices are returned
    unchanged, episode and step as int64, terminated as bool.
    """
    checked: dict[str, Array] = {name: _as_matrix(name, arrays[name], dims.get(name)) for name in PARTS}
    n_rows = checked["state"].shape[0]
    if n_rows == 0:
        raise DataError("state: has 0 rows, expected at least one recorded time point; give non-empty arrays")
    for name in ("episode", "step", "terminated"):
        given = arrays[name]
        if given is None and name == "terminated":
            given = np.zeros(n_rows, dtype=bool)
        checked[name] = _as_vector(name, given)
    for name, values in checked.items():
        if values.shape[0] != n_rows:
            raise DataError(
                f"{name}: has {values.shape[0]} rows but state has {n_rows}, expected one row per recorded "
                f"time point in every array; the first unmatched is "
                f"{where(min(values.shape[0], n_rows))}: cut or complete the arrays"
            )
    for name in PARTS:
        _check_finite(name, checked[name], where)
    for name in ("episode", "step"):
        checked[name] = _as_integers(name, checked[name], where)
    checked["terminated"] = _as_flags(checked["terminated"], where)
    return checked


def _as_array(name: str, given: npt.ArrayLike | None) -> Array:
    """Convert to an array of real numbers without changing their type."""
    if given is None:
        raise DataError(f"{name}: is None, expected an array; only terminated may be left out")
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise DataError(f"{name}: has masked entries, expected every entry present; drop or fill those rows")
    try:
        values = np.asarray(given)
    except ValueError as error:
        raise DataError(
            f"{name}: rows have unequal lengths, expected a rectangular array; pad or split it ({error})"
        ) from error
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{name}: has dtype {values.dtype}, expected real numbers; convert it, e.g. with astype(float)"
        )
    return values


def _as_matrix(name: str, given: npt.ArrayLike | None, columns: int | None) -> Array:
    """Convert to a matrix with one row per time point."""
    values = _as_array(name, given)
    if values.ndim != 2:
        remedy = "reshape it with reshape(-1, 1)" if values.ndim == 1 else "flatten the trailing dimensions"
        raise DataError(
            f"{name}: has {values.ndim} dimension(s), shape {values.shape}, "
            f"expected 2 (rows, columns); {remedy}"
        )
    if values.shape[1] == 0:
        raise DataError(
            f"{name}: has 0 columns, expected at least one; give a column of zeros if there is none"
        )
    if columns is not None and values.shape[1] != columns:
        raise DataError(
            f"{name}: has {values.shape[1]} columns, expected {columns} as in the store; "
            "give the same columns in every piece"
        )
    return values


def _as_vector(name: str, given: npt.ArrayLike | None) -> Array:
    """Convert to a vector with one entry per time point."""
    values = _as_array(name, given)
    if values.ndim != 1:
        raise DataError(
            f"{name}: has {values.ndim} dimension(s), shape {values.shape}, expected 1 (rows,); "
            "flatten it with reshape(-1)"
        )
    return values


def _check_finite(name: str, values: Array, where: Locate) -> None:
    """Refuse NaN and infinity, also after conversion to float64, and entries whose squares overflow."""
    for start in range(0, values.shape[0], _ROWS_AT_ONCE):
        with np.errstate(over="ignore"):
            block = np.asarray(values[start : start + _ROWS_AT_ONCE], dtype=np.float64)
        bad = ~(np.abs(block) <= LARGEST)
        if not bad.any():
            continue
        row, column = (int(i) for i in np.argwhere(bad)[0])
        found = f"{name}: {where(start + row)}, column {column} is {block[row, column]}"
        if np.isfinite(block[row, column]):
            raise DataError(
                f"{found}, expected at most {LARGEST:g} in size, as squares of it overflow; give the column "
                "in other units"
            )
        raise DataError(
            f"{found}, expected a finite number; drop the episode from there on, or fill the value in"
        )


def check_scale(name: str, largest: Array) -> None:
    """Refuse columns whose largest entries are so small that their squares are lost."""
    small = np.flatnonzero((largest > 0) & (largest < SMALLEST))
    if small.size:
        raise DataError(
            f"{name}: column {small[0]} is nowhere larger than {largest[small[0]]:.3g}, expected at least "
            f"{SMALLEST:g}, as squares of it vanish; give the column in other units"
        )


def _as_integers(name: str, values: Array, where: Locate) -> Array:
    """Convert to int64; floats are accepted where they are whole numbers."""
    if values.dtype.kind == "b":
        raise DataError(
            f"{name}: has dtype bool, expected integers; convert it with astype(int) if it is meant"
        )
    if values.dtype.kind == "f":
        bad = ~(np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < _EXACT))
    else:
        bad = values > np.iinfo(np.int64).max if values.dtype.kind == "u" else np.zeros(values.shape, bool)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{name}: {where(row)} is {values[row]}, expected an integer; number the {name}s with integers"
        )
    return values.astype(np.int64, copy=False)


def _as_flags(values: Array, where: Locate) -> Array:
    """Convert to bool; zeros and ones are accepted."""
    if values.dtype.kind != "b":
        bad = (values != 0) & (values != 1)
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(
                f"terminated: {where(row)} is {values[row]}, expected True or False (or 1 or 0); "
                "give a boolean array"
            )
    return values.astype(bool, copy=False)


def check_sequence(rows: Mapping[str, Array], where: Locate, last: LastRow | None) -> LastRow:
    """Check that sorted rows form episodes of consecutive steps, and return the last of them.

    They continue from ``last``, the row before the first one; None at the beginning of a store.
    """
    names = ("episode", "step", "terminated")
    episode, step, terminated = (rows[name] for name in names)
    if last is not None:
        episode, step, terminated = (np.concatenate(([getattr(last, n)], rows[n])) for n in names)

    def locate(i: int) -> str:
        return where(i if last is None else i - 1)

    _check_steps(episode, step, locate)
    same = episode[1:] == episode[:-1]
    ends_early = terminated[:-1] & same
    if ends_early.any():
        i = int(np.argmax(ends_early))
        raise DataError(
            f"terminated: {locate(i)} is terminated but {locate(i + 1)} goes on with episode {episode[i]}, "
            "expected it on the last row of an episode only; clear the flag, or give later rows a new number"
        )
    first = np.concatenate(([True if last is None else last.alone], ~same))
    alone = first[:-1] & ~same & ~terminated[:-1]
    if alone.any():
        i = int(np.argmax(alone))
        raise _lone_row(locate(i), int(episode[i]))
    return LastRow(int(episode[-1]), int(step[-1]), bool(terminated[-1]), bool(first[-1]))


def _check_steps(episode: Array, step: Array, locate: Locate) -> None:
    """Check the order of the rows and that steps rise by one within an episode."""
    same = episode[1:] == episode[:-1]
    backwards = (episode[1:] < episode[:-1]) | (same & (step[1:] < step[:-1]))
    repeated = same & (step[1:] == step[:-1])
    # Not step[:-1] + 1, which wraps around at the largest integer.
    gap = same & (step[1:] > step[:-1]) & (step[1:] - 1 != step[:-1])
    wrong = backwards | repeated | gap
    if not wrong.any():
        return
    i = int(np.argmax(wrong)) + 1
    here, before = (int(episode[i]), int(step[i])), (int(episode[i - 1]), int(step[i - 1]))
    if repeated[i - 1]:
        raise DataError(
            f"step: {locate(i)} repeats step {here[1]} of episode {here[0]}, already at {locate(i - 1)}, "
            "expected every step once; remove one of the two rows"
        )
    if gap[i - 1]:
        raise DataError(
            f"step: {locate(i)} has step {here[1]} of episode {here[0]} after step {before[1]}, expected "
            f"step {before[1] + 1}; add the missing rows, or give the rows after the gap a new episode number"
        )
    name = "step" if same[i - 1] else "episode"
    raise DataError(
        f"{name}: {locate(i)} has (episode, step) {here} after {before}, expected rising order; "
        "sort the rows before appending them, with episodes numbered above those already stored"
    )


def check_end(last: LastRow, row: str) -> None:
    """Check that the data may end with this row."""
    if last.alone and not last.terminated:
        raise _lone_row(row, last.episode)


def _lone_row(row: str, episode: int) -> DataError:
    """Error for an episode without a transition."""
    return DataError(
        f"episode: {row} is the only row of episode {episode} and not terminated, expected a successor; "
        "remove the row, or mark it terminated if the episode truly ended there"
    )
