"""``kedrl ingest``: a table of recorded time points as a store of transitions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Option, Verb, option, path, show
from kedrl_dask.cli.verbs.simulate import store_summary
from kedrl_dask.engine.data.encoding import PARTS
from kedrl_dask.engine.data.new_store import new_store
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.ingest.columns import MISSING_POLICIES, MissingPolicy
from kedrl_dask.engine.ingest.ingest import ingest
from kedrl_dask.engine.ingest.readers import FORMATS

NOTE = """\
examples:
  kedrl ingest visits.csv visits.zarr --episode patient --time date --state age weight town \\
      --categorical town --action dose --reward effect harm --terminated died --missing impute

The rows may be in any order, and more than fit in memory. The store does not depend on the format or on the
order of the rows. A directory is read as one table; its folders may be partitions (key=value).

"""


def _column(meaning: str, required: bool = False) -> Option:
    return option(meaning, metavar="COLUMN", required=required)


def _columns(meaning: str, required: bool = True) -> Option:
    return option(meaning, (), nargs="+", metavar="COLUMN", required=required)


def _policy(text: str) -> tuple[str | None, MissingPolicy]:
    """A policy for all columns, or COLUMN=POLICY for one."""
    column, _, given = text.rpartition("=")
    for policy in MISSING_POLICIES:
        if policy == given:
            return column or None, policy
    raise argparse.ArgumentTypeError(f"{given!r} is not one of {', '.join(MISSING_POLICIES)}")


#: Options that give the meaning of columns.
MEANINGS = ("episode", "step", "time", "state", "action", "reward", "terminated", "truncated")


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    given = {key: getattr(options, key) for key in MEANINGS}
    with new_store(options.output, options.overwrite) as new:
        done = ingest(
            new, options.source, {key: value for key, value in given.items() if value is not None},
            categorical=options.categorical, missing=_missing(options.missing, given),
            standardise=options.standardise, lone_rows=options.lone_rows, format=options.format,
            chunk_rows=options.chunk_rows,
        )  # fmt: skip
    store = TransitionStore.open(options.output)
    seconds = time.perf_counter() - start
    encoding = store.encoding
    assert encoding is not None  # of a store made from a table
    columns = {part: list(encoding.names(part)) for part in PARTS}
    summary = store_summary(store) | vars(done) | {"columns": columns, "seconds": seconds}
    lines = [repr(store), *(f"  {part:<12} {', '.join(names)}" for part, names in columns.items())]
    if done.dropped_episodes:
        lines.append(f"  dropped      {done.dropped_episodes:,} episodes of {done.dropped_rows:,} rows")
    show(options, summary, "\n".join([*lines, f"{done.rows:,} rows read in {seconds:.1f} s"]))
    return SUCCESS


def _missing(
    policies: list[tuple[str | None, MissingPolicy]], given: Mapping[str, str | list[str] | None]
) -> MissingPolicy | dict[str, MissingPolicy]:
    """One policy for all columns, or one for each."""
    overall: MissingPolicy = next((policy for column, policy in policies if column is None), "refuse")
    own = {column: policy for column, policy in policies if column is not None}
    if not own:
        return overall
    columns: dict[str, MissingPolicy] = {
        name: "refuse" if overall == "impute" and key != "state" else overall
        for key, names in given.items()
        for name in ([names] if isinstance(names, str) else names or ())
    }
    return columns | own


VERB = Verb(
    "Read a table with one row per recorded time point, and store its transitions.",
    {
        "source": option("file, or directory of files: CSV, Parquet, Arrow", type=path, metavar="SOURCE"),
        "output": shared.STORE,
        "--episode": _column("integers or text that identify episodes", required=True),
        "--step": _column("integers that rise by one within an episode"),
        "--time": _column("instead of steps: numbers or timestamps that rise"),
        "--state": _columns("columns of the state"),
        "--action": _columns("columns of the action"),
        "--reward": _columns("columns of the reward"),
        "--terminated": _column("flag of the last row of episodes that ended for good"),
        "--truncated": _column("flag of the last row of episodes that were cut off"),
        "--categorical": _columns("state columns that are encoded by their levels", required=False),
        "--missing": option(
            "treatment of missing values: refuse, drop (the episode) or impute (the mean, with an indicator "
            "column; in states only), for all columns or as COLUMN=POLICY (default: refuse)",
            [(None, "refuse")],
            nargs="+",
            type=_policy,
            metavar="POLICY",
        ),
        "--standardise": option(
            "parts, of state, action and reward, whose columns are measured in standard deviations where "
            "kernel lengths are given",
            (),
            nargs="+",
            choices=PARTS,
            metavar="PART",
        ),
        "--lone-rows": option(
            "treatment of episodes of a single row that is not terminated",
            "refuse",
            choices=("refuse", "drop"),
        ),
        "--format": option("format of the files, if their names do not tell", choices=tuple(FORMATS)),
        "--chunk-rows": shared.CHUNK_ROWS,
        "--overwrite": shared.OVERWRITE,
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
