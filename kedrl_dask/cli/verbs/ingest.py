"""``kedrl ingest``: a table of recorded time points as a store of transitions."""

from __future__ import annotations

import argparse
import time
from typing import Any

from kedrl_dask.cli.common import JSON, SUCCESS, Verbs, add_verb, as_json, path, positive, print_out
from kedrl_dask.cli.verbs.simulate import store_summary
from kedrl_dask.engine.data.encoding import PARTS
from kedrl_dask.engine.data.new_store import new_store
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.ingest.columns import MISSING_POLICIES
from kedrl_dask.engine.ingest.ingest import ingest
from kedrl_dask.engine.ingest.readers import FORMATS

__all__ = ["add"]

NOTE = """\
examples:
  kedrl ingest visits.csv visits.zarr --episode patient --time date --state age weight town \\
      --categorical town --action dose --reward effect harm --terminated died --missing impute

The rows may be in any order, and more than fit in memory. The store does not depend on the format or on the
order of the rows. A directory is read as one table; its folders may be partitions (key=value).

"""


def _column(meaning: str) -> dict[str, Any]:
    return {"metavar": "COLUMN", "help": meaning}


def _columns(meaning: str, required: bool = True) -> dict[str, Any]:
    return {"nargs": "+", "metavar": "COLUMN", "required": required, "help": meaning}


def _policy(text: str) -> tuple[str | None, str]:
    """A policy for all columns, or COLUMN=POLICY for one."""
    column, _, policy = text.rpartition("=")
    if policy not in MISSING_POLICIES:
        raise argparse.ArgumentTypeError(f"{policy!r} is not one of {', '.join(MISSING_POLICIES)}")
    return column or None, policy


OPTIONS: dict[str, dict[str, Any]] = {
    "source": {"type": path, "metavar": "SOURCE", "help": "file, or directory of files: CSV, Parquet, Arrow"},
    "output": {"type": path, "metavar": "PATH", "help": "new directory for the store"},
    "--episode": _column("integers or text that tell episodes apart") | {"required": True},
    "--step": _column("integers that rise by one within an episode"),
    "--time": _column("in place of steps: numbers or timestamps that rise"),
    "--state": _columns("columns of the state"),
    "--action": _columns("columns of the action"),
    "--reward": _columns("columns of the reward"),
    "--terminated": _column("flag of the last row of episodes that ended for good"),
    "--truncated": _column("flag of the last row of episodes that were cut off"),
    "--categorical": _columns("state columns that are encoded by their levels", required=False)
    | {"default": ()},
    "--missing": {
        "nargs": "+",
        "type": _policy,
        "default": [(None, "refuse")],
        "metavar": "POLICY",
        "help": "what becomes of missing values: refuse, drop (the episode) or impute (the mean, with a "
        "column that tells where; in states), for all columns or as COLUMN=POLICY (default: refuse)",
    },
    "--standardise": {
        "nargs": "+",
        "choices": PARTS,
        "default": (),
        "metavar": "PART",
        "help": "parts, of state, action and reward, whose columns count in standard deviations where "
        "lengths of kernels are given",
    },
    "--lone-rows": {
        "choices": ("refuse", "drop"),
        "default": "refuse",
        "help": "what becomes of episodes of a single row that is not terminated (default: %(default)s)",
    },
    "--format": {"choices": tuple(FORMATS), "help": "format of the files, if their names do not tell"},
    "--chunk-rows": {
        "type": positive,
        "default": 16_384,
        "metavar": "N",
        "help": "rows per stored chunk (default: %(default)s)",
    },
    "--overwrite": {
        "action": "store_true",
        "help": "replace a transition store at PATH, and nothing else, once the new one is complete",
    },
    "--json": JSON,
}
#: Options that are meanings of columns.
MEANINGS = ("episode", "step", "time", "state", "action", "reward", "terminated", "truncated")


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "ingest",
        _run,
        description="Read a table with one row per recorded time point, and store its transitions.",
        note=NOTE,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    given = {key: getattr(options, key) for key in MEANINGS}
    with new_store(options.output, options.overwrite) as new:
        done = ingest(
            new,
            options.source,
            {key: value for key, value in given.items() if value is not None},
            categorical=options.categorical,
            missing=_missing(options.missing, given),
            standardise=options.standardise,
            lone_rows=options.lone_rows,
            format=options.format,
            chunk_rows=options.chunk_rows,
        )
    store = TransitionStore.open(options.output)
    seconds = time.perf_counter() - start
    encoding = store.encoding
    assert encoding is not None  # of a store made from a table
    columns = {part: list(encoding.names(part)) for part in PARTS}
    if options.json:
        print_out(as_json(store_summary(store) | vars(done) | {"columns": columns, "seconds": seconds}))
        return SUCCESS
    lines = [repr(store), *(f"  {part:<12} {', '.join(names)}" for part, names in columns.items())]
    if done.dropped_episodes:
        lines.append(f"  dropped      {done.dropped_episodes:,} episodes of {done.dropped_rows:,} rows")
    print_out("\n".join([*lines, f"{done.rows:,} rows read in {seconds:.1f} s"]))
    return SUCCESS


def _missing(policies: list[tuple[str | None, str]], given: dict[str, Any]) -> Any:
    """One policy for all columns, or by column, on top of the one for all."""
    overall = next((policy for column, policy in policies if column is None), "refuse")
    own = {column: policy for column, policy in policies if column is not None}
    if not own:
        return overall
    state = given["state"]
    others = [name for key in MEANINGS if key != "state" for name in _listed(given[key])]
    rest = dict.fromkeys(others, "refuse" if overall == "impute" else overall)
    return dict.fromkeys(state, overall) | rest | own


def _listed(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value
