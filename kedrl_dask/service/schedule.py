"""A scheduled evaluation described by a TOML file: what ``kedrl fit`` reads, and a table ``[evaluate]``.

::

    [evaluate]
    output = "evaluations"        # directory of the results
    inputs = "inputs.csv"         # a table of inputs, .csv or .parquet ...
    state_columns = ["age", "load"]  # default: the columns of the ingested table, encoded like it, with its
                                  # actions if the inputs have them
    action_columns = ["dose"]     # default: laws of states, each policy choosing its own actions
    # states = [[0.0, 1.0]]       # ... or the inputs themselves
    # actions = [[0.5]]
    average = false               # over the inputs, as over a sample of initial states
    replicates = 100              # of the bootstrap; 0 for no intervals
    interval = 0.9
    accept = []                   # codes of findings despite which answers are given
    keep = 10                     # results; older ones are removed
    redesign = 1.0                # growth, as a share of the rows, after which a new design is made

    [evaluate.drift]              # shifts since the last result that are worth an alert
    mean = 0.25                   # of a policy's return, in standard deviations of its last law
    quantile = 0.5
    cvar = 0.5
    data = 0.25                   # of a column of the appended rows, in its earlier standard deviations;
                                  # twice the standard error of the mean over these episodes is added
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import pandas as pd

from kedrl_dask.comparison.drift import Thresholds
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.ingest.readers import MISSING_TEXTS
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.service.config import RunConfig, config_error, load_config, refuse_unknown, typed
from kedrl_dask.service.toml import Toml
from kedrl_dask.utils.arrays import Actions, Points, Record
from kedrl_dask.utils.checks import cut

#: Largest number of inputs: each has a law, and replicates of it.
MOST_INPUTS = 100_000


@dataclass(frozen=True)
class Schedule:
    """The content of a file; without ``action``, laws of states are evaluated.

    A new design is made when the rows have grown by the share ``redesign`` of those of the last design.
    """

    config: RunConfig
    output: Path
    state: Points
    action: Actions | None
    average: bool = False
    replicates: int = 100
    interval: float = 0.9
    accept: tuple[str, ...] = ()
    keep: int = 10
    redesign: float = 1.0
    thresholds: Thresholds = field(default_factory=Thresholds)


#: Simple keys, with their types and smallest and largest values.
VALUES: dict[str, tuple[type, str, float, float]] = {
    "average": (bool, "true or false", 0, 1),
    "replicates": (int, "a whole number, 0 or from 2 to 100,000", 0, 100_000),
    "interval": (float, "a number strictly between 0 and 1", 0, 1),
    "keep": (int, "a number of results ≥ 1", 1, 10**6),
    "redesign": (float, "a share of the rows ≥ 0", 0, np.inf),
}
INPUTS = ("inputs", "state_columns", "action_columns", "states", "actions")


def load_schedule(path: str | Path) -> Schedule:
    """Read a file and its inputs; errors name the file, the line and the key."""
    config = load_config(path)
    source = config.source
    assert source is not None  # it was read from a file
    if "evaluate" not in source.content:
        raise ValueError(
            f"{source.path}: the table [evaluate] is missing; kedrl_dask.service.schedule describes it"
        )
    given = typed(source, "evaluate", source.content["evaluate"], dict, "a table")
    refuse_unknown(source, "evaluate.", given, (*VALUES, *INPUTS, "output", "accept", "drift"))
    if "output" not in given:
        raise config_error(
            source, "evaluate", "the key 'evaluate.output' is missing: a directory for results"
        )
    output = source.path.parent / typed(source, "evaluate.output", given["output"], str, "a path, as text")
    state, action = _inputs(source, given, config.data)
    values: Record = {name: _value(source, name, given[name]) for name in VALUES if name in given}
    return Schedule(
        config,
        output,
        state,
        action,
        accept=_accepted(source, given.get("accept", [])),
        thresholds=_thresholds(source, given.get("drift", {})),
        **values,
    )


def _value(source: Toml, name: str, value: object) -> float:
    kind, words, low, high = VALUES[name]
    given: float = typed(source, f"evaluate.{name}", value, kind, words)
    is_open = name == "interval" and not 0 < given < 1
    if not low <= given <= high or is_open or (name == "replicates" and given == 1):
        raise _wrong(source, name, f"must be {words}, got {value!r}")
    return given


def _wrong(source: Toml, name: str, text: str) -> ValueError:
    return config_error(source, f"evaluate.{name}", f"the key 'evaluate.{name}' {text}")


def _accepted(source: Toml, given: object) -> tuple[str, ...]:
    codes = typed(source, "evaluate.accept", given, list, "a list of codes")
    for code in codes:
        if code not in CODES:
            known = ", ".join(CODES)
            raise config_error(
                source, "evaluate.accept", f"{code!r} is not the code of a finding; known codes are {known}"
            )
    return tuple(codes)


def _thresholds(source: Toml, given: object) -> Thresholds:
    table = typed(source, "evaluate.drift", given, dict, "a table")
    refuse_unknown(source, "evaluate.drift.", table, [f.name for f in fields(Thresholds)])
    for name, value in table.items():
        words = "a number of standard deviations > 0"
        if not typed(source, f"evaluate.drift.{name}", value, float, words) > 0:
            raise _wrong(source, f"drift.{name}", f"must be above 0, got {value!r}")
    return Thresholds(**table)


def _inputs(source: Toml, given: Record, data: Path) -> tuple[Points, Actions | None]:
    """State and action of each input, from a table or from the file itself."""
    if ("inputs" in given) == ("states" in given):
        raise config_error(
            source, "evaluate", "give either 'evaluate.inputs', a table of inputs, or 'evaluate.states'"
        )
    if "states" in given:
        _refuse_with(source, given, "states", ("state_columns", "action_columns"))
        state = _matrix(source, "states", given["states"])
        action = _matrix(source, "actions", given["actions"]) if "actions" in given else None
        if action is not None and len(action) != len(state):
            raise config_error(
                source, "evaluate.actions", f"{len(action)} rows of actions for {len(state)} rows of states"
            )
        return state, action
    _refuse_with(source, given, "inputs", ("actions",))
    path = source.path.parent / typed(source, "evaluate.inputs", given["inputs"], str, "a path, as text")
    if "state_columns" in given:
        return _table_inputs(source, given, path)
    _refuse_with(source, given, "inputs' without 'evaluate.state_columns", ("action_columns",))
    return _encoded_inputs(source, path, data)


def _refuse_with(source: Toml, given: Record, key: str, others: tuple[str, ...]) -> None:
    for other in others:
        if other in given:
            raise _wrong(source, other, f"cannot be combined with 'evaluate.{key}'")


def _matrix(source: Toml, name: str, given: object) -> Points:
    rows = typed(source, f"evaluate.{name}", given, list, "a list of rows")
    try:
        values = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong(source, name, "must be rows of numbers of equal length") from error
    return _checked(values, lambda text: _wrong(source, name, text))


def _checked(values: Points, error: Callable[[str], ValueError]) -> Points:
    if values.ndim != 2 or not 1 <= len(values) <= MOST_INPUTS or values.shape[1] < 1:
        raise error(f"must be 1 to {MOST_INPUTS:,} rows of numbers, got shape {values.shape}")
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise error(f"has {values[bad[0]].tolist()} in row {bad[0]}, expected finite numbers")
    return values


def _encoded_inputs(source: Toml, path: Path, data: Path) -> tuple[Points, Actions | None]:
    """Inputs in the columns of the table that the data were ingested from."""
    encoding = TransitionStore.open(data).encoding
    if encoding is None:
        raise config_error(
            source,
            "evaluate.inputs",
            f"the key 'evaluate.state_columns' is missing: {data} has no names of columns, as it was not "
            "ingested from a table",
        )
    frame = _read_table(path)
    try:
        state = encoding.encode("state", frame)
        has_action = set(encoding.action) <= set(frame.columns)
        action = encoding.encode("action", frame) if has_action else None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return _checked(state, lambda text: ValueError(f"{path}: {text}")), action


def _table_inputs(source: Toml, given: Record, path: Path) -> tuple[Points, Actions | None]:
    frame = _read_table(path)
    parts = {}
    for name in ("state_columns", "action_columns"):
        columns = typed(source, f"evaluate.{name}", given.get(name, []), list, "a list of column names")
        for column in columns:
            if column not in frame.columns:
                known = ", ".join(map(str, frame.columns))
                raise config_error(
                    source, f"evaluate.{name}", f"{path} has no column {column!r}; it has {cut(known)}"
                )
        parts[name] = _numbers(path, frame, columns) if columns else None
    state = parts["state_columns"]
    if state is None:
        raise _wrong(source, "state_columns", "is empty")
    return state, parts["action_columns"]


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file with the same texts for missing values as ``kedrl ingest``."""
    return pd.read_csv(path, keep_default_na=False, na_values=MISSING_TEXTS)


def _read_table(path: Path) -> pd.DataFrame:
    readers = {".csv": _read_csv, ".parquet": pd.read_parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: inputs are read from {', '.join(readers)}, not from {path.suffix!r} files")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; 'evaluate.inputs' names a table of inputs")
    try:
        return readers[path.suffix](path)
    except ImportError as error:
        raise ValueError(f"{path}: reading Parquet needs pyarrow; install it, or give a .csv") from error
    except (ValueError, OSError) as error:  # pandas and pyarrow raise subclasses of these
        raise ValueError(f"{path}: not a {path.suffix} table: {cut(str(error))}") from error


def _numbers(path: Path, frame: pd.DataFrame, columns: list[str]) -> Points:
    for column in columns:
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"{path}: column {column!r} has {frame[column].dtype} entries, expected numbers")
    values = frame[columns].to_numpy(dtype=np.float64)
    return _checked(values, lambda text: ValueError(f"{path}: columns {', '.join(columns)}: {text}"))
