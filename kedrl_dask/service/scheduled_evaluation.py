"""Scheduled evaluations: a repeated command does nothing unless data or settings have changed.

::

    lock        held by the process that is evaluating
    cache/      landmarks, sums and points, so that appended episodes cost only their own sums
    results/    one directory for each result, named by its time in UTC
      20261117T134500Z/
        models/NAME/   the fit of each policy, as ``KEDRL.save`` writes it
        results.zarr   answers, as ``compare(...).to_zarr`` writes them
        report.html    the page
        summary.json   its inputs, what changed, and the answers in numbers
        config.toml    a copy of the file
    refused.json    why the last evaluation was refused, if it was

A result appears under its name when it is complete. What a killed process leaves, the next one removes;
blocks in the cache are used again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kedrl_dask import report as reporting
from kedrl_dask._version import __version__
from kedrl_dask.comparison.compare import compare
from kedrl_dask.comparison.comparison import Comparison
from kedrl_dask.comparison.drift import Drift, compare_results
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.default import checked_executor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.storage.atomic import atomic_directory, discard, remove
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.directories import digest
from kedrl_dask.engine.storage.lock import locked
from kedrl_dask.engine.storage.manifest import read_record, write_record
from kedrl_dask.estimator.fitted import results
from kedrl_dask.estimator.fitted.findings import Refused, did_its_work
from kedrl_dask.estimator.fitted.persistence import finite, parameters
from kedrl_dask.estimator.run import check_input
from kedrl_dask.report.content import from_results
from kedrl_dask.service.schedule import Schedule
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.progress import ProgressMode, Reporter

logger = logging.getLogger("kedrl_dask")

KIND = "kedrl evaluation"
#: Number of inputs whose answers are in the summary; the store has all.
SUMMARISED = 20


@dataclass(frozen=True)
class Due:
    """The work to be done: an evaluation, if there are reasons for it.

    The base of the store holds the rows of the design, ``facts`` are everything that a result depends on, as
    JSON, and the checksums of the first ``n_checked`` rows were verified before.
    """

    reasons: tuple[str, ...]
    store: TransitionStore
    facts: Record
    last: Path | None
    n_checked: int

    @property
    def is_incremental(self) -> bool:
        """Whether the earlier design is kept."""
        return self.store.base is not self.store


@dataclass(frozen=True)
class Outcome:
    """The result of an evaluation.

    Its directory is that of the last result if nothing was due, and None if answers were refused, for reasons
    that are then in the summary.
    """

    due: Due
    result: Path | None
    summary: Record


def due(schedule: Schedule, force: bool = False) -> Due:
    """Find out what is to be done; nothing is written."""
    config = schedule.config
    store = TransitionStore.open(config.data)
    if schedule.state.shape[1] != store.state_dim:
        own = schedule.state.shape[1]
        raise ValueError(f"{config.data}: states have {store.state_dim} columns, but {own} in [evaluate]")
    last = next(_newest_first(schedule.output), None)
    before = {} if last is None else _summary(last)["facts"]
    facts = _facts(schedule, store)
    reasons = tuple(_reasons(before, facts, store)) if before else ("there is no earlier result",)
    if force and not reasons:
        reasons = ("it was requested",)
    is_prefix = bool(before) and _is_prefix(before["data"], store)
    n_checked = before["data"]["rows"] if is_prefix else 0
    base = before["base"] if is_prefix and before["settings"] == facts["settings"] else None
    if base is not None and store.n_rows - base["rows"] <= schedule.redesign * base["rows"]:
        facts["base"] = base
        if base["rows"] < store.n_rows:
            store = store.grown_from(base["rows"])
    return Due(reasons, store, facts, last, n_checked)


def _facts(schedule: Schedule, store: TransitionStore) -> Record:
    """Everything that a result depends on, as JSON."""
    columns = {
        name: {key: values[key].tolist() for key in ("mean", "std")}
        for name, values in store.statistics.items()
    }
    inputs = [schedule.state] if schedule.action is None else [schedule.state, schedule.action]
    facts = {
        "data": {
            "fingerprint": store.fingerprint,
            "rows": store.n_rows,
            "episodes": store.n_episodes,
            "columns": columns,
        },
        "base": {"fingerprint": store.fingerprint, "rows": store.n_rows},
        "settings": parameters(schedule.config.model()),
        "policies": {name: policy.to_dict() for name, policy in schedule.config.policies.items()},
        "inputs": [digest(part).hex() for part in inputs],
        "answers": {
            name: getattr(schedule, name) for name in ("average", "replicates", "interval", "accept")
        },
    }
    return json.loads(json.dumps(facts))


def _is_prefix(data: Record, store: TransitionStore) -> bool:
    """Whether the store still begins with the rows that it had."""
    return data["rows"] <= store.n_rows and store.fingerprint_of(data["rows"]) == data["fingerprint"]


def _reasons(before: Record, now: Record, store: TransitionStore) -> Iterator[str]:
    if before["data"]["fingerprint"] != now["data"]["fingerprint"]:
        if _is_prefix(before["data"], store):
            yield f"{now['data']['rows'] - before['data']['rows']:,} rows were appended"
        else:
            yield "the data were replaced"
    for what in ("settings", "policies", "answers"):
        changed = [name for name in now[what] if before[what].get(name) != now[what][name]]
        changed += [name for name in before[what] if name not in now[what]]
        if changed:
            yield f"{what} changed: {', '.join(sorted(changed))}"
    if before["inputs"] != now["inputs"]:
        yield "the inputs changed"


def evaluate(
    schedule: Schedule,
    *,
    force: bool = False,
    executor: Executor | None = None,
    memory: int | str | None = None,
    progress: ProgressMode = "auto",
) -> Outcome:
    """Evaluate what is due, under the lock of the output directory; Busy if another process holds it."""
    output = schedule.output
    output.mkdir(parents=True, exist_ok=True)
    with locked(output):
        _tidy(output)
        todo = due(schedule, force)
        if not todo.reasons and todo.last is not None:
            return Outcome(todo, todo.last, _summary(todo.last))
        refused = read_record(output / "refused.json")
        if refused.get("facts") == todo.facts and not force:
            return Outcome(todo, None, refused)
        started = output / "started"
        started.touch()
        try:
            outcome = _evaluate(schedule, todo, executor, memory, progress)
        except Refused as refusal:
            refused = {
                "facts": todo.facts,
                "refused": [finding.to_dict() for finding in refusal.findings],
                "message": str(refusal),
            }
            write_record(output / "refused.json", refused, durable=True)
            return Outcome(todo, None, refused)
        (output / "refused.json").unlink(missing_ok=True)
        Cache(output / "cache").prune(started)
        for old in [*_newest_first(output)][schedule.keep :]:
            discard(old)
        return outcome


def _evaluate(
    schedule: Schedule, todo: Due, executor: Executor | None, memory: int | str | None, progress: ProgressMode
) -> Outcome:
    config, store, output = schedule.config, todo.store, schedule.output
    executor, reporter = checked_executor(executor), Reporter(progress)
    first = todo.n_checked // store.chunk_rows
    with reporter.stage("input check") as advance:
        check_input(store, executor, advance, first)
    found = compare(
        store, config.policies, (schedule.state, schedule.action), config.model(),
        average=schedule.average, n_replicates=schedule.replicates, interval=schedule.interval,
        accept=schedule.accept, executor=executor, cache=output / "cache", memory=memory, progress=progress,
    )  # fmt: skip
    result = _free_path(output / "results")
    drift = _drift(schedule, todo, found)
    with atomic_directory(result) as partial:
        (partial / "models").mkdir(parents=True)
        for policy, model in found.models.items():
            model.save(partial / "models" / policy)
        found.to_zarr(partial / "results.zarr")
        content = from_results(found.dataset, str(result / "results.zarr"))
        reporting.write(replace(content, drift=drift), partial / "report.html")
        if config.source is not None:
            shutil.copyfile(config.source.path, partial / "config.toml")
        summary = _described(todo, found, drift, result.name)
        write_record(partial / "summary.json", summary, durable=True)
    return Outcome(todo, result, summary)


def _drift(schedule: Schedule, todo: Due, found: Comparison) -> Drift:
    """What changed since the last result, if any."""
    if todo.last is None:
        return Drift(remark="this is the first result")
    before = _summary(todo.last)["facts"]["data"]
    appended = todo.n_checked == before["rows"] < todo.store.n_rows
    data = (before, todo.facts["data"]) if appended else None
    try:
        last = results.read_zarr(todo.last / "results.zarr")
    except (OSError, ValueError, KeyError) as error:
        return Drift(todo.last.name, remark=f"the last result cannot be read ({error})")
    drift = compare_results(todo.last.name, last, found.dataset, data, schedule.thresholds)
    if todo.is_incremental:
        return drift
    return replace(drift, remark="; ".join(filter(None, [drift.remark, "a new design was made"])))


def _described(todo: Due, found: Comparison, drift: Drift, name: str) -> Record:
    """The summary of a result, as JSON."""
    table = found.table
    shown = table[(table["input"] < SUMMARISED) & table["summary"].isin(["mean", "cvar"])]
    columns = [c for c in ("policy", "input", "coordinate", "summary", "value", "low", "high") if c in shown]
    return finite(
        {
            "kind": KIND,
            "name": name,
            "version": __version__,
            "reasons": list(todo.reasons),
            "incremental": todo.is_incremental,
            "facts": todo.facts,
            "converged": {policy: did_its_work(model.fitted_) for policy, model in found.models.items()},
            "findings": [str(finding) for finding in found.findings],
            "accepted": list(found.accepted),
            "answers": shown[columns].to_dict("records"),
            "drift": drift.to_dict(),
            "seconds": {
                **json.loads(found.dataset.attrs["seconds"]),
                **{policy: model.diagnostics_["seconds"] for policy, model in found.models.items()},
            },
        }
    )


def _summary(result: Path) -> Record:
    found = read_record(result / "summary.json")
    return found if found.get("kind") == KIND else {}


def _newest_first(output: Path) -> Iterator[Path]:
    """Complete results; those with a damaged summary are left alone and not counted."""
    for path in sorted((output / "results").glob("[0-9]*T[0-9]*Z*"), reverse=True):
        if _summary(path):
            yield path
        else:
            logger.warning("%s has no readable summary.json, and is left alone", path)


def _free_path(folder: Path) -> Path:
    """A directory named by the time in UTC, followed by a number if a result has that name."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    paths = (folder / (f"{stamp}-{n:03}" if n else stamp) for n in range(1000))
    return next(path for path in paths if not path.exists())


def _tidy(output: Path) -> None:
    """Remove what a killed process left."""
    for path in (*output.glob("results/.*.partial"), *output.glob(".partial-*")):  # version one's name
        remove(path)
