"""State-action inputs and return points that a user asks at, checked against the data of the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.utils.arrays import Inputs, Points, Real
from kedrl_dask.utils.checks import as_numbers

#: Inputs evaluated at a time.
ROWS = 4_096

Given = TypeVar("Given")


def as_stored(encoding: Encoding | None, part: Literal["state", "action"], given: Given) -> Given | Points:
    """Encode a table with ingested columns as the store has them; return anything else as it is."""
    if encoding is None or not isinstance(given, pd.DataFrame):
        return given
    return encoding.encode(part, given)


def joined_inputs(state: npt.ArrayLike, action: npt.ArrayLike, state_dim: int, action_dim: int) -> Inputs:
    """Put states and actions with as many rows and the right columns side by side."""
    state, action = checked_columns("state", state, state_dim), checked_columns("action", action, action_dim)
    if len(state) != len(action):
        raise ValueError(f"state has {len(state)} rows and action {len(action)}; they must agree")
    return np.hstack([state, action])


def checked_columns(name: str, given: npt.ArrayLike, dim: int) -> Points:
    """Return finite rows with as many columns as the data have."""
    array = as_numbers(name, given, finite=False)
    if array.ndim != 2 or array.shape[1] != dim:
        raise ValueError(f"{name} has shape {array.shape}, expected (n, {dim}): one row per input")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(f"{name}, row {bad[0]}: {array[bad[0]].tolist()} is not finite")
    return array


def checked_returns(at: npt.ArrayLike, n_inputs: int, dim: int) -> Points:
    """Return points (g, d) that are common to all inputs, or (n, g, d) with each input's own."""
    at = as_numbers("embed: at", at)
    if at.ndim not in (2, 3) or at.shape[-1] != dim or (at.ndim == 3 and len(at) != n_inputs):
        raise ValueError(
            f"embed: at has shape {at.shape}, expected (g, {dim}), or ({n_inputs}, g, {dim}) "
            "for own points at each input"
        )
    return at


def by_rows(inputs: Inputs, function: Callable[[Inputs], Real], rows: int = ROWS) -> Real:
    """Apply a function to some inputs at a time."""
    if len(inputs) == 0:
        return function(inputs)
    return np.concatenate([function(inputs[a:b]) for a, b in even_ranges(len(inputs), rows)])
