"""The encoding of a table's columns as numbers of a store, its inverse, and the units of kernels.

Numbers are stored unchanged, so that inputs, rewards and all results on returns are in the table's own units.
Standardisation is stored separately, as one scale per column, and applied to the kernels:
k((x − c)/s, (y − c)/s) with lengths ℓ is k(x, y) with lengths s·ℓ for any centre c, because kernels are
stationary. A fit with lengths s·ℓ is therefore the fit on standardised columns with every output transformed
back, and no output can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Array, Indices, Points, Record, Vector
from kedrl_dask.utils.checks import as_numbers, check_word, has_control_characters, shown

Part = Literal["state", "action", "reward"]
K = TypeVar("K")

PARTS: tuple[Part, ...] = ("state", "action", "reward")
#: Codes of a categorical value that is not a level, and of a missing one.
UNKNOWN, MISSING = -1, -2
_WHOLE = re.compile(r"(-?\d+)\.0+")


def level_text(value: object) -> str | None:
    """Return a categorical value as text that does not depend on the file format; None if it is missing.

    Whole numbers have no decimals, and flags are "True" and "False".
    """
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        number = float(value)
        if np.isnan(number):
            return None
        return str(int(number)) if number.is_integer() else repr(number)
    text = str(value)
    if text in ("true", "false"):
        return text.capitalize()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text or None


@dataclass(frozen=True)
class StateColumn:
    """One column of a table and the state columns that encode it."""

    name: str
    levels: tuple[str, ...] | None = None  # of a categorical column: a column of zeros and ones each
    fill: float | None = None  # replaces a missing number
    has_indicator: bool = False  # whether a further column of zeros and ones indicates missing values

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the state columns."""
        own = (self.name,) if self.levels is None else tuple(f"{self.name}={level}" for level in self.levels)
        return (*own, f"{self.name} is missing") if self.has_indicator else own

    def codes(self, values: Sequence[object]) -> Indices:
        """Return the positions of categorical values among the levels, UNKNOWN or MISSING."""
        positions: dict[str | None, int] = {level: i for i, level in enumerate(self.levels or ())}
        positions[None] = MISSING
        return np.array([positions.get(level_text(value), UNKNOWN) for value in values], dtype=np.int32)

    def expand(self, values: Array) -> Points:
        """Return the state columns (n, k) of numbers, NaN where missing, or of codes of levels."""
        if self.levels is None:
            missing = np.isnan(values)
            columns = [np.where(missing, self.fill, values) if self.fill is not None else values]
        else:
            missing = values == MISSING
            columns = [(values == i).astype(np.float64) for i in range(len(self.levels))]
        if self.has_indicator:
            columns.append(missing.astype(np.float64))
        return np.stack(columns, axis=1)

    def decode(self, columns: Points) -> Array:
        """Invert :meth:`expand`: return numbers, NaN where missing; or levels, None where there is none."""
        missing = columns[:, -1] > 0.5 if self.has_indicator else np.zeros(len(columns), dtype=bool)
        if self.levels is None:
            return np.where(missing, np.nan, columns[:, 0])
        one_hot = columns[:, : len(self.levels)]
        chosen = np.array([*self.levels, None], dtype=object)
        return chosen[np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), len(self.levels))]


@dataclass(frozen=True)
class Encoding:
    """The encoding of the columns of a store, created with it from a table and kept in its fits.

    The lengths of kernels for ``standardised`` parts are given in standard deviations. ``scales`` are units
    by part, one for each stored column, set when the store is complete.

    Examples
    --------
    >>> import pandas as pd
    >>> encoding = Encoding((StateColumn("age"), StateColumn("town", ("Bern", "Lyon"))), ("dose",), ("gain",))
    >>> encoding.encode("state", pd.DataFrame({"age": [30, 41], "town": ["Lyon", "Rome"]}))
    array([[30.,  0.,  1.],
           [41.,  0.,  0.]])
    """

    state: tuple[StateColumn, ...]
    action: tuple[str, ...]
    reward: tuple[str, ...]
    standardised: tuple[Part, ...] = ()
    scales: Mapping[Part, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the parts and their scales."""
        for part in self.standardised:
            check_word("standardise", part, PARTS)
        for part, scale in self.scales.items():
            check_word("scales", part, PARTS)
            values = as_numbers(f"scales of {part}", scale)
            if values.shape != (len(self.names(part)),) or not (values > 0).all():
                raise ValueError(f"scales of {part} must be {len(self.names(part))} positive numbers")

    def names(self, part: Part) -> tuple[str, ...]:
        """Return the names of the stored columns of a part."""
        if part == "state":
            return tuple(name for column in self.state for name in column.names)
        return self.action if part == "action" else self.reward

    def encode(self, part: Literal["state", "action"], frame: pd.DataFrame) -> Points:
        """Encode inputs given in the table's own columns as in the store; other columns are ignored.

        A level that the stored table did not have is encoded as zeros.
        """
        if part == "action":
            return np.stack([self._numbers(frame, name) for name in self.action], axis=1)
        return np.hstack([column.expand(self._values(frame, column)) for column in self.state])

    def decode(self, part: Part, values: npt.ArrayLike) -> pd.DataFrame:
        """Return stored columns as the table's own."""
        values = as_numbers(part, values)
        if values.ndim != 2 or values.shape[1] != len(self.names(part)):
            raise ValueError(
                f"decode: {part} has shape {values.shape}, expected (n, {len(self.names(part))})"
            )
        if part != "state":
            return pd.DataFrame(values, columns=list(self.names(part)))
        edges = np.cumsum([len(column.names) for column in self.state])[:-1]
        pieces = np.split(values, edges, axis=1)
        decoded = {c.name: c.decode(piece) for c, piece in zip(self.state, pieces, strict=True)}
        # With explicit types, or pandas would convert levels to text, and None to NaN.
        return pd.DataFrame({name: pd.Series(found, dtype=found.dtype) for name, found in decoded.items()})

    def _values(self, frame: pd.DataFrame, column: StateColumn) -> Array:
        values: Array
        if column.levels is None:
            values, allowed = self._numbers(frame, column.name, finite=False), column.fill is not None
            missing = np.isnan(values)
        else:
            values, allowed = column.codes(list(self._column(frame, column.name))), column.has_indicator
            missing = values == MISSING
        if missing.any() and not allowed:
            raise ValueError(
                f"column {column.name!r}, row {int(np.argmax(missing))} is missing, but the data had no "
                "missing values there; leave out the row or fill in the value"
            )
        return values

    def _numbers(self, frame: pd.DataFrame, name: str, finite: bool = True) -> Vector:
        column = self._column(frame, name)
        try:
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise ValueError(f"column {name!r} must be numbers, got {shown(column.iloc[0])}") from error
        if np.isinf(values).any() or (finite and np.isnan(values).any()):
            bad = int(np.argmax(~np.isfinite(values)))
            raise ValueError(f"column {name!r}, row {bad} is {values[bad]}, expected a finite number")
        return values

    @staticmethod
    def _column(frame: pd.DataFrame, name: str) -> pd.Series:
        if name not in frame:
            raise ValueError(f"the table has no column {name!r}; it has {shown(list(frame.columns))}")
        return frame[name]

    def with_scales(self, deviations: Mapping[str, Vector]) -> Encoding:
        """Return a copy with units: deviations of standardised columns; 1 for flags, levels and constants."""
        scales: dict[Part, tuple[float, ...]] = {}
        for part in self.standardised:
            scale = np.where(deviations[part] > 0, deviations[part], 1.0)
            if part == "state":
                is_number = [c.levels is None and i == 0 for c in self.state for i in range(len(c.names))]
                scale = np.where(is_number, scale, 1.0)
            scales[part] = tuple(scale.tolist())
        return replace(self, scales=scales)

    def in_own_units(self, kernel: K, *parts: Part) -> K:
        """Convert a kernel's lengths from the units of the columns of these parts to those of the store."""
        if not isinstance(kernel, Matern) or not any(part in self.scales for part in parts):
            return kernel
        scale = np.concatenate([self.scales.get(part) or np.ones(len(self.names(part))) for part in parts])
        return replace(kernel, length_scale=(np.asarray(kernel.length_scale) * scale).tolist())

    def to_json(self) -> Record:
        """Return plain values; JSON keeps every digit of a float."""
        return {
            "state": [
                vars(column) | {"levels": column.levels and list(column.levels)} for column in self.state
            ],
            "action": list(self.action),
            "reward": list(self.reward),
            "standardised": list(self.standardised),
            "scales": {part: list(scale) for part, scale in self.scales.items()},
        }

    @classmethod
    def from_json(cls, values: Record) -> Encoding:
        """Invert :meth:`to_json`, without trusting the values."""
        state = []
        for column in values["state"]:
            levels, fill = column["levels"], column["fill"]
            if levels is not None and not levels:
                raise ValueError("a categorical column without levels")
            own = _texts(levels) if levels is not None else None
            if fill is not None:
                fill = float(as_numbers("fill", fill))
            if not isinstance(column["has_indicator"], bool):
                raise ValueError(f"has_indicator is {shown(column['has_indicator'])}")
            state.append(StateColumn(_texts([column["name"]])[0], own, fill, column["has_indicator"]))
        scales = {part: tuple(scale) for part, scale in values["scales"].items()}
        action, reward = _texts(values["action"]), _texts(values["reward"])
        return cls(tuple(state), action, reward, tuple(values["standardised"]), scales)


def _texts(values: object) -> tuple[str, ...]:
    """Return names, which must be printable."""
    if not isinstance(values, list):
        raise ValueError(f"expected a list of names, got {shown(values)}")
    for text in values:
        if not isinstance(text, str) or has_control_characters(text):
            raise ValueError(f"{shown(text)} is not a printable name")
    return tuple(values)
