"""``kedrl fit``: a fit in a run directory, begun or gone on with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from kedrl_dask.cli.common import JSON, NOT_CONVERGED, SUCCESS, Verbs, add_verb, as_json, number, print_out
from kedrl_dask.cli.options import PARAMETERS, SETTINGS, given_parameters
from kedrl_dask.cli.where import CLUSTER, MEMORY, PATIENTLY
from kedrl_dask.engine.clusters.descriptions import chosen_cluster
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.estimator.run import CHECKPOINT_SECONDS, is_finished, read_run, recorded_fit
from kedrl_dask.report import terminal
from kedrl_dask.service.config import ONLY, RunConfig, load_config, load_policy

__all__ = ["add"]

NOTE = """\
examples:
  kedrl fit run.toml                begin, or go on with, the fit of a file
  kedrl fit run.toml --dry-run      what it would do and take; nothing is written
  kedrl fit transitions.zarr --policy policy.json --discount 0.9 --run run
  kedrl fit run                     go on with a run

The source is a TOML file (see kedrl_dask.service.config), a store of transitions with --policy, --discount
and --run, or the directory of a run that was begun. The same command again goes on with a run that was
interrupted, by Ctrl-C, by SIGTERM as at the end of a job's time, or by the loss of workers, of room on the
disk or of the machine; it prints the result of one that is finished.

"""

OPTIONS: dict[str, dict[str, Any]] = {
    "source": {"type": Path, "metavar": "SOURCE", "help": "TOML file, store of transitions, or run"},
    "--policy": {
        "type": Path,
        "metavar": "FILE",
        "help": "target policy, .json, .toml or .npz: a family (gaussian, uniform, logistic) and its numbers",
    },
    "--run": {
        "type": Path,
        "dest": "directory",
        "metavar": "DIR",
        "help": "directory of the run, new or to go on with",
    },
    "--cache": {"type": Path, "metavar": "DIR", "help": "directory of blocks that several fits share"},
    **SETTINGS,
    "--discount": {"type": number, "help": "discount factor"},
    "--cluster": CLUSTER,
    "--patience": PATIENTLY,
    "--checkpoint-seconds": {
        "type": number,
        "default": CHECKPOINT_SECONDS,
        "metavar": "SECONDS",
        "help": "time between checkpoints of the solver (default: %(default)g)",
    },
    "--memory": MEMORY,
    "--dry-run": {"action": "store_true", "help": "say what would be done, and write nothing"},
    "--json": JSON,
}
#: What describes a fit; a TOML file and a run have it themselves.
DESCRIPTION = ("policy", "discount", *PARAMETERS)


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "fit",
        _run,
        description="Estimate the law of the return under a target policy, in a directory that keeps all\n"
        "that was done.",
        note=NOTE,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)


def _run(options: argparse.Namespace) -> int:
    if options.dry_run:
        return _say_what_would_be_done(options)
    fit = _described(options)
    options.interrupted = (
        f"what was finished is kept in {options.directory}: the same command goes on from there"
    )
    cluster = None if is_finished(options.directory) else options.cluster
    with open_cluster(cluster, options.patience) as executor:
        model: KEDRL = fit(
            executor=executor, memory=options.memory, checkpoint_seconds=options.checkpoint_seconds
        )
    run: Path = options.directory
    summary = {"run": str(run), "model": str(run / "model"), "fit": terminal.summary(model)}
    print_out(as_json(summary) if options.json else _text(model, run))
    if terminal.did_its_work(model):
        return SUCCESS
    print(f"kedrl: the fit did not converge: {model.solution_.result.value}", file=sys.stderr)
    return NOT_CONVERGED


def _described(options: argparse.Namespace) -> Any:
    """The fit that the source describes, lacking only its executor.

    ``options.directory`` becomes its run, and ``options.cluster`` the description of its cluster.
    """
    source: Path = options.source
    if not source.exists():
        raise ValueError(f"{source}: no such file or directory; give a TOML file, a store or a run")
    if (source / "run.json").exists():
        _refuse(options, (*DESCRIPTION, "directory", "cache"), f"{source} is a run, which has")
        options.directory = source
        options.cluster = chosen_cluster(options.cluster, None)
        read_run(source)
        return lambda **where: KEDRL.resume(source, **where)
    if source.is_file():
        _refuse(options, DESCRIPTION, f"{source} has")
        config = load_config(source)
    else:
        config = _from_options(options)
    options.directory = options.directory or config.run
    options.cluster = chosen_cluster(options.cluster, config.cluster)
    if options.directory is None:
        raise ValueError(f"{source}: where is the run to be kept? Give --run DIR")
    given = {"run": options.directory, "cache": options.cache or config.cache}
    return lambda **where: config.model().fit(config.data, config.policy, **given, **where)


def _say_what_would_be_done(options: argparse.Namespace) -> int:
    """The plan, data, policy and run; nothing is written."""
    source: Path = options.source
    run: Path | None = source
    if (source / "run.json").exists():
        settings, found = recorded_fit(source, None)
        model, store, policy = KEDRL(**settings), found["store"], found["policy"]
    else:
        config = load_config(source) if source.is_file() else _from_options(options)
        model, store, policy = config.model(), TransitionStore.open(config.data), config.policy
        run = options.directory or config.run
    plan = model.plan(store, memory=options.memory, calibrate=False)
    if options.json:
        summary = {"data": str(store.path), "policy": repr(policy), "run": None if run is None else str(run)}
        print_out(as_json({**summary, "plan": plan.to_dict()}))
    else:
        begun = "gone on with" if run is not None and (run / "run.json").exists() else "begun"
        lines = [f"data: {store.path}", f"policy: {policy!r}", f"run: {run}, to be {begun}"]
        print_out("\n".join([*lines, "Nothing is written.", repr(plan)]))
    plan.check()
    return SUCCESS


def _from_options(options: argparse.Namespace) -> RunConfig:
    for name in ("policy", "discount"):
        if getattr(options, name) is None:
            raise ValueError(f"{options.source}: a store of transitions needs --{name} too")
    parameters = {"discount": options.discount, **given_parameters(options)}
    return RunConfig(options.source, {ONLY: load_policy(options.policy)}, parameters)


def _refuse(options: argparse.Namespace, names: tuple[str, ...], what: str) -> None:
    given = [name for name in names if getattr(options, name) is not None]
    if given:
        raise ValueError(f"{what} its own {given[0].replace('n_', '')}; leave the option out")


def _text(model: KEDRL, run: Path) -> str:
    console = Console()
    with console.capture() as captured:
        terminal.render(model, console=console)
        console.print(f"\nThe model is in {run / 'model'}.", markup=False)
    return "\n" + captured.get().rstrip()
