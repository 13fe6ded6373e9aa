"""The directory of a fit, from which an interrupted fit resumes.

::

    run.json      settings, data, policy and versions, with which a resumed fit must agree
    plan.json     the projected cost of the fit
    stages/       one small file for each finished stage
    cache/        blocks of sums, points and operators, with their checksums in manifests
    checkpoints/  the last two states of the solver
    log.jsonl     a log of events, one JSON object a line
    lock          held by the process that works on the run
    model/        the result, as ``KEDRL.save`` writes it
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from kedrl_dask._version import __version__
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.storage.atomic import remove, write_atomic
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.checkpoints import Checkpoints
from kedrl_dask.engine.storage.directories import DamageError, StoreError, digest
from kedrl_dask.engine.storage.lock import locked, now
from kedrl_dask.engine.storage.manifest import commit, committed, damaged, read_record, revoke, write_record
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.estimator.fitted.persistence import from_json, load, parameters, save
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.policies import LocationScale, Policy, from_dict
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.process import Stopped, terminable
from kedrl_dask.utils.progress import Advance, Reporter

KIND = "kedrl run"
#: Seconds between checkpoints of the solver.
CHECKPOINT_SECONDS = 10.0
#: Stored chunks of the data that one task compares with their digests.
CHECKED_CHUNKS = 8
#: What the operating system calls a full disk.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Run:
    """A run whose lock this process holds; made by :func:`open_run`, with the contents of ``run.json``."""

    def __init__(self, path: Path, settings: Settings, facts: Record, seconds: float) -> None:
        self.path, self._settings, self._facts, self._seconds = path, settings, facts, seconds
        self._lock = threading.Lock()
        (path / "stages").mkdir(exist_ok=True)
        log = path / "log.jsonl"
        if log.exists() and not log.read_bytes().endswith(b"\n"):  # its process was killed
            with log.open("a") as file:
                file.write("\n")

    def note(self, event: str, **facts: Any) -> None:
        """Write a line to the log; the plan and each finished stage also have files of their own."""
        if event == "plan":
            write_atomic(self.path / "plan.json", json.dumps(facts["plan"], indent=1) + "\n")
            facts = facts["plan"]["totals"]
        if event == "stage finished":
            write_atomic(self.path / "stages" / f"{facts['stage'].replace(' ', '-')}.json", json.dumps(facts))
        line = json.dumps({"time": now(), "event": event, **facts}, default=str)
        with self._lock, (self.path / "log.jsonl").open("a") as log:
            log.write(line + "\n")

    def _cache(self) -> Cache:
        """The cache of the run, checked at once, or the one that was given."""
        given = self._facts["cache"]
        code = f"{self._facts['id']} {self._facts['policy'].get('probe')}"
        cache = Cache(Path(given) if given else self.path / "cache", self.note, code)
        if not given:
            cache.check()
        return cache

    def _checkpoints(self) -> Checkpoints:
        """The checkpoints of the solver."""
        return Checkpoints(self.path / "checkpoints", self._seconds, self.note)

    @property
    def model(self) -> Path | None:
        """Path of the result, if there is an undamaged one."""
        path = self.path / "model"
        if path.name not in committed(path):
            return None
        files = damaged(path, path.name)
        for file in files:
            self.note("damaged", file=str(file))
        return None if files else path

    def _save(self, model: FittedModel) -> None:
        """Write the result, which counts once it is complete."""
        path = self.path / "model"
        revoke(path, path.name)
        remove(path)
        save(model, path)
        commit(path, path.name, sorted(file for file in path.rglob("*") if file.is_file()), durable=True)
        self.note("finished", result=model.solution.result.name, criterion=model.solution.value)

    def carry_out(
        self,
        store: TransitionStore,
        executor: Executor,
        reporter: Reporter,
        fit: Callable[[Cache, Reporter, Checkpoints], FittedModel],
    ) -> FittedModel:
        """Fit a model from where the run has come, or read the result of a finished run.

        The result of a stage that turns out to be damaged on the way is computed again.
        """
        with self._ends_noted(), terminable():
            finished = self.model
            if finished is not None:
                return load(finished, lambda **_: self._settings)
            for partial in [*self.path.rglob("*.partial")]:  # of a process that was killed
                remove(partial)
            with reporter.stage("input check", -(-store.n_chunks // CHECKED_CHUNKS)) as advance:
                check_input(store, executor, advance)
            cache = self._cache()
            try:
                model = fit(cache, reporter, self._checkpoints())
            except DamageError as error:
                if cache.directory not in error.path.resolve().parents:
                    raise
                cache.recheck()
                model = fit(cache, reporter, self._checkpoints())
            self._save(model)
            return model

    @contextmanager
    def _ends_noted(self) -> Iterator[None]:
        """Log how the body ended; errors about a full disk or lost workers say how to resume."""
        self.note("started", host=socket.gethostname(), pid=os.getpid(), version=__version__)
        remedy = f"finished work is kept in {self.path}: the same fit resumes from there"
        try:
            yield
        except BaseException as error:
            with suppress(OSError):  # a full disk has no room for this line either; the error is raised below
                self.note("stopped", error=type(error).__name__, message=str(error))
            if isinstance(error, OSError) and error.errno in FULL:
                raise Stopped(f"the disk is full ({error}); make room; {remedy}") from error
            if isinstance(error, Stopped):
                raise type(error)(f"{error}; {remedy}") from error
            raise


def is_finished(path: Path) -> bool:
    """Whether a run has an undamaged result, so that nothing is left to compute."""
    model = path / "model"
    return model.name in committed(model) and not damaged(model, model.name)


@contextmanager
def open_run(
    path: Path,
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    cache: str | Path | None,
    seconds: float,
) -> Iterator[Run]:
    """Begin a run, or resume an existing one with the same settings, data and policy.

    Raises ValueError if the directory holds anything else, or if another process is working on the run.
    """
    path = path.resolve()
    if path.exists() and not (path / "run.json").exists() and _is_foreign(path):
        raise ValueError(f"{path} is not empty and holds no run; choose another directory for the run")
    path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        facts = _agreed(path, describe(settings, store, policy, cache))
        yield Run(path, settings, facts, seconds)


def _is_foreign(path: Path) -> bool:
    """Whether there is anything but the files of a run that ended at once."""
    return not path.is_dir() or any(entry.name not in ("lock", "log.jsonl") for entry in path.iterdir())


def describe(settings: Settings, store: TransitionStore, policy: Policy, cache: str | Path | None) -> Record:
    """Everything on which a run depends, as JSON."""
    return {
        "kind": KIND,
        "id": uuid4().hex,
        "created": now(),
        "settings": parameters(settings),
        "data": {
            "path": str(store.path.resolve()),
            "fingerprint": store.fingerprint,
            **({} if store.encoding is None else {"encoding": store.encoding.to_json()}),
            **({} if store.base is store else {"grown_from": store.base.n_rows}),
        },
        "policy": _describe_policy(policy, store),
        "cache": None if cache is None else str(Path(cache).resolve()),
        "versions": {
            "kedrl_dask": __version__,
            "python": sys.version.split()[0],
            **{name: version(name) for name in ("numpy", "scipy", "scikit-learn", "zarr", "distributed")},
        },
    }


def _describe_policy(policy: Policy, store: TransitionStore) -> Record:
    """Numbers of a policy or, for code, its name and a digest of its draws at the first states."""
    if isinstance(policy, LocationScale):
        return policy.to_dict()
    states = store.transitions(0, min(64, store.n_rows)).inputs[:, : store.state_dim]
    drawn = policy.sample(states, np.random.default_rng(0))
    return {"code": repr(policy), "probe": digest(np.asarray(drawn, dtype=np.float64)).hex()}


def _agreed(path: Path, wanted: Record) -> Record:
    """The contents of ``run.json``, written if the run is new; refused if they differ from those wanted."""
    file = path / "run.json"
    wanted = json.loads(json.dumps(wanted))
    if not file.exists():
        write_record(file, wanted, durable=True)
        return wanted
    found = read_run(path)
    differences = [
        *_differences("settings", found["settings"], wanted["settings"]),
        *_differences("policy", found["policy"], wanted["policy"]),
    ]
    if any(found["data"].get(key) != wanted["data"].get(key) for key in ("fingerprint", "encoding")):
        before, now = (f"{d['path']} ({d['fingerprint'][:16]})" for d in (found["data"], wanted["data"]))
        differences.append(f"data were {before}, now {now}")
    else:
        bases = [part["data"].get("grown_from", "all its") for part in (found, wanted)]
        if bases[0] != bases[1]:
            differences.append(f"the design was made on {bases[0]} rows of the store, now on {bases[1]}")
    if differences:
        raise ValueError(
            f"{path} is a run with other inputs: {'; '.join(differences)}. Fit with the same inputs, or "
            "choose another directory for the run"
        )
    return {**found, "cache": wanted["cache"]}


def _differences(what: str, found: Record, wanted: Record) -> list[str]:
    return [
        f"{what} {name} was {_short(found.get(name))}, now {_short(wanted.get(name))}"
        for name in sorted({*found, *wanted} - {"code"})
        if found.get(name) != wanted.get(name)
    ]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_run(path: Path) -> Record:
    """Read ``run.json``."""
    found = read_record(path / "run.json")
    if found.get("kind") != KIND:
        raise ValueError(
            f"{path / 'run.json'} does not describe a run, or is damaged; give the directory of a run, or "
            "begin another"
        )
    return found | {"settings": VERSION_ONE | found["settings"]}


def recorded_fit(path: Path, policy: Policy | None) -> tuple[Record, Record]:
    """Parameters of the estimator and arguments of its ``fit``, as a run recorded them."""
    path = path.resolve()
    found = read_run(path)
    if policy is None:
        if "code" in found["policy"]:
            raise ValueError(
                f"{path}: the policy of this run is code, {found['policy']['code']}, which cannot be stored; "
                "give it as policy=..."
            )
        policy = from_dict(found["policy"])
    settings = {name: from_json(value) for name, value in found["settings"].items()}
    store = TransitionStore.open(found["data"]["path"])
    rows = found["data"].get("grown_from")
    return settings, {
        "store": store if rows is None else store.grown_from(rows),
        "policy": policy,
        "cache": found.get("cache"),
        "run": path,
    }


def check_input(store: TransitionStore, executor: Executor, advance: Advance, first: int = 0) -> None:
    """Raise StoreError if the data, from chunk ``first`` on, differ from their digests when written."""
    starts = range(first, store.n_chunks, CHECKED_CHUNKS)
    ranges = [(start, min(start + CHECKED_CHUNKS, store.n_chunks)) for start in starts]
    found = executor.map(_damage, ranges, store.path.resolve(), advance=advance)
    messages = list(dict.fromkeys(message for part in found for message in part))
    if messages:
        more = f" ({len(messages) - 1} more are damaged)" if len(messages) > 1 else ""
        raise StoreError(messages[0] + more)


def _damage(chunks: tuple[int, int], path: Path) -> list[str]:
    return list(TransitionStore.open(path).damage(*chunks))
