"""``kedrl evaluate``: a scheduled evaluation, which does what is new and nothing if nothing is."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kedrl_dask.cli.common import (
    BUSY,
    DRIFT,
    JSON,
    NOT_CONVERGED,
    REFUSED,
    SUCCESS,
    Verbs,
    add_verb,
    as_json,
    path,
    print_out,
)
from kedrl_dask.cli.where import CLUSTER, MEMORY, PATIENTLY
from kedrl_dask.engine.clusters.descriptions import chosen_cluster
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.storage.lock import Busy
from kedrl_dask.service.schedule import Schedule, load_schedule
from kedrl_dask.service.scheduled_evaluation import Due, Outcome, due, evaluate

__all__ = ["add"]

NOTE = """\
examples:
  kedrl evaluate config.toml             evaluate if there is anything new
  kedrl evaluate config.toml --dry-run   say what would be done, and write nothing
  kedrl evaluate config.toml --json      for a scheduler's log

The file is that of kedrl fit with a table [evaluate] (see kedrl_dask.service.schedule). If data and settings
are as in the last result, nothing is done. Appended episodes add their own sums to those that are kept, with
the design of the earlier fit. A killed evaluation is begun again by the same command, with the sums that it
left.

"""

OPTIONS: dict[str, dict[str, Any]] = {
    "config": {"type": path, "metavar": "CONFIG", "help": "TOML file with a table [evaluate]"},
    "--dry-run": {"action": "store_true", "help": "say what would be done, and write nothing"},
    "--force": {"action": "store_true", "help": "evaluate though nothing has changed"},
    "--cluster": CLUSTER,
    "--patience": PATIENTLY,
    "--memory": MEMORY,
    "--json": JSON,
}


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "evaluate",
        _run,
        description="Evaluate the policies of a file where data or settings are new, keep dated results,\n"
        "and compare with the last one.",
        note=NOTE,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)


def _run(options: argparse.Namespace) -> int:
    schedule = load_schedule(options.config)
    if options.dry_run:
        return _say_what_is_due(schedule, options)
    options.interrupted = f"sums are kept in {schedule.output / 'cache'}: the same command goes on with them"
    cluster = chosen_cluster(options.cluster, schedule.config.cluster)
    try:
        with open_cluster(cluster, options.patience) as executor:
            outcome = evaluate(schedule, force=options.force, executor=executor, memory=options.memory)
    except Busy as error:
        print(f"kedrl: {error}; nothing was done", file=sys.stderr)
        return BUSY
    code = _code(outcome)
    if options.json:
        print_out(as_json({"exit_code": code, **_facts(outcome)}))
    else:
        print_out("\n".join(_lines(outcome)))
    return code


def _code(outcome: Outcome) -> int:
    if outcome.result is None:
        return REFUSED
    if not outcome.due.reasons:
        return SUCCESS
    if not all(outcome.summary["converged"].values()):
        return NOT_CONVERGED
    return DRIFT if outcome.summary["drift"]["alerts"] else SUCCESS


def _facts(outcome: Outcome) -> dict[str, Any]:
    result = None if outcome.result is None else str(outcome.result)
    done = outcome.result is not None and bool(outcome.due.reasons)
    return {"evaluated": done, "result": result, "reasons": list(outcome.due.reasons), **outcome.summary}


def _lines(outcome: Outcome) -> list[str]:
    summary = outcome.summary
    if outcome.result is None:
        return [summary["message"], "Codes go into 'accept' of [evaluate]."]
    if not outcome.due.reasons:
        return [f"Nothing to do: data and settings are as in {outcome.result}."]
    how = "added to the sums of earlier rows" if summary["incremental"] else "with a design of its own"
    lines = [f"Evaluated, {how}, because {'; '.join(summary['reasons'])}."]
    drift = summary["drift"]
    if drift["since"]:
        lines.append(f"Compared with {drift['since']}: {len(drift['alerts'])} alerts.")
    lines += [f"  alert: {alert}" for alert in drift["alerts"]]
    lines += [f"  {drift['remark']}"] if drift["remark"] else []
    lines += [f"  finding: {finding}" for finding in summary["findings"]]
    return [*lines, f"Written to {outcome.result}"]


def _say_what_is_due(schedule: Schedule, options: argparse.Namespace) -> int:
    todo, config = due(schedule, options.force), schedule.config
    plan = config.model().plan(todo.store, memory=options.memory, calibrate=False)
    summary = {
        "reasons": list(todo.reasons),
        "incremental": todo.is_incremental,
        "data": str(config.data),
        "rows": todo.store.n_rows,
        "design_rows": todo.store.base.n_rows,
        "policies": list(config.policies),
        "inputs": len(schedule.state),
        "output": str(schedule.output),
        "last": None if todo.last is None else str(todo.last),
        "plan": plan.to_dict(),
    }
    if options.json:
        print_out(as_json(summary))
    else:
        print_out("\n".join([*_planned(todo, schedule), repr(plan)]))
    plan.check()
    return SUCCESS


def _planned(todo: Due, schedule: Schedule) -> list[str]:
    what = f"Would evaluate, because {'; '.join(todo.reasons)}." if todo.reasons else "Nothing to do."
    rows = f"{schedule.config.data}: {todo.store.n_rows:,} rows"
    if todo.is_incremental:
        rows += f", of which the design and the sums of {todo.store.base.n_rows:,} are kept"
    return [
        what,
        rows,
        f"policies: {', '.join(schedule.config.policies)}, at {len(schedule.state):,} inputs",
        f"output: {schedule.output}; last result: {todo.last or 'none'}",
        "Nothing is written. A full pass over all rows for each policy would take:",
    ]
