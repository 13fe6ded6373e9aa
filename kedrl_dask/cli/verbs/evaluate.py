"""``kedrl evaluate``: a scheduled evaluation, which does nothing if nothing has changed."""

from __future__ import annotations

import argparse
import sys

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import BUSY, DRIFT, NOT_CONVERGED, REFUSED, SUCCESS, Verb, option, path, show
from kedrl_dask.engine.clusters.descriptions import chosen_cluster
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.storage.lock import Busy
from kedrl_dask.service.schedule import Schedule, load_schedule
from kedrl_dask.service.scheduled_evaluation import Due, Outcome, due, evaluate
from kedrl_dask.utils.arrays import Record

NOTE = """\
examples:
  kedrl evaluate config.toml             evaluate if data or settings have changed
  kedrl evaluate config.toml --dry-run   say what would be done, and write nothing
  kedrl evaluate config.toml --json      for a scheduler's log

The file is that of kedrl fit with a table [evaluate] (see kedrl_dask.service.schedule). If data and settings
are as in the last result, nothing is done. The sums of appended episodes are added to those in the cache,
with the design of the earlier fit. After an evaluation was killed, the same command starts it again with the
sums in the cache.

"""


def _run(options: argparse.Namespace) -> int:
    schedule = load_schedule(options.config)
    if options.dry_run:
        return _say_what_is_due(schedule, options)
    options.interrupted = f"sums are kept in {schedule.output / 'cache'}: repeat the command to resume"
    cluster = chosen_cluster(options.cluster, schedule.config.cluster)
    try:
        with open_cluster(cluster, options.patience) as executor:
            outcome = evaluate(schedule, force=options.force, executor=executor, memory=options.memory)
    except Busy as error:
        print(f"kedrl: {error}; nothing was done", file=sys.stderr)
        return BUSY
    code = _code(outcome)
    show(options, {"exit_code": code, **_facts(outcome)}, "\n".join(_lines(outcome)))
    return code


def _code(outcome: Outcome) -> int:
    if outcome.result is None:
        return REFUSED
    if not outcome.due.reasons:
        return SUCCESS
    if not all(outcome.summary["converged"].values()):
        return NOT_CONVERGED
    return DRIFT if outcome.summary["drift"]["alerts"] else SUCCESS


def _facts(outcome: Outcome) -> Record:
    result = None if outcome.result is None else str(outcome.result)
    done = outcome.result is not None and bool(outcome.due.reasons)
    return {"evaluated": done, "result": result, "reasons": list(outcome.due.reasons), **outcome.summary}


def _lines(outcome: Outcome) -> list[str]:
    summary = outcome.summary
    if outcome.result is None:
        return [summary["message"], "To accept a finding, add its code to 'accept' in [evaluate]."]
    if not outcome.due.reasons:
        return [f"Nothing to do: data and settings are as in {outcome.result}."]
    how = "by adding to the sums of earlier rows" if summary["incremental"] else "with a new design"
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
    show(options, summary, "\n".join([*_planned(todo, schedule), repr(plan)]))
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


VERB = Verb(
    "Evaluate the policies of a file if data or settings have changed, keep dated results, and compare with\n"
    "the last one.",
    {
        "config": option("TOML file with a table [evaluate]", type=path, metavar="CONFIG"),
        "--dry-run": option("say what would be done, and write nothing", action="store_true"),
        "--force": option("evaluate even if nothing has changed", action="store_true"),
        "--cluster": shared.cluster(),
        "--patience": shared.patience(),
        "--memory": shared.MEMORY,
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
