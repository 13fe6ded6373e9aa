"""``kedrl fit``: a fit in a run directory, begun or resumed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Verb, failures, number, option, show
from kedrl_dask.cli.parameters import PARAMETERS, SETTINGS, given_parameters
from kedrl_dask.engine.clusters.descriptions import chosen_cluster
from kedrl_dask.engine.clusters.opening import open_cluster
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.estimator.fitted.findings import did_its_work
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.estimator.run import CHECKPOINT_SECONDS, is_finished, read_run, recorded_fit
from kedrl_dask.report import terminal
from kedrl_dask.service.config import ONLY, RunConfig, load_config, load_policy

NOTE = """\
examples:
  kedrl fit run.toml                begin or resume the fit of a file
  kedrl fit run.toml --dry-run      what it would do and take; nothing is written
  kedrl fit transitions.zarr --policy policy.json --discount 0.9 --run run
  kedrl fit run                     resume a run

The source is a TOML file (see kedrl_dask.service.config), a store of transitions with --policy, --discount
and --run, or the directory of an existing run. Repeating the command resumes a run that was interrupted by
Ctrl-C, by SIGTERM as at the end of a job's time, or by the loss of workers, disk space or the machine; it
prints the result of a finished run.

"""

#: Options that describe a fit; a TOML file and a run contain them.
DESCRIPTION = ("policy", "discount", *PARAMETERS)


def _run(options: argparse.Namespace) -> int:
    if options.dry_run:
        return _say_what_would_be_done(options)
    fit = _described(options)
    options.interrupted = f"finished work is kept in {options.directory}: repeat the command to resume"
    cluster = None if is_finished(options.directory) else options.cluster
    with open_cluster(cluster, options.patience) as executor:
        model = fit(executor=executor, memory=options.memory, checkpoint_seconds=options.checkpoint_seconds)
    run: Path = options.directory
    summary = {"run": str(run), "model": str(run / "model"), "fit": terminal.summary(model)}

    def render(console: Console) -> None:
        terminal.render(model, console=console)
        console.print(f"\nThe model is in {run / 'model'}.", markup=False)

    show(options, summary, render)
    is_done = did_its_work(model.fitted_)
    return failures([] if is_done else [f"the fit did not converge: {model.solution_.result.value}"])


def _described(options: argparse.Namespace) -> Callable[..., KEDRL]:
    """The fit that the source describes, to be called with its executor.

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
    summary = {"data": str(store.path), "policy": repr(policy), "run": None if run is None else str(run)}
    begun = "resumed" if run is not None and (run / "run.json").exists() else "begun"
    lines = [f"data: {store.path}", f"policy: {policy!r}", f"run: {run}, to be {begun}"]
    text = "\n".join([*lines, "Nothing is written.", repr(plan)])
    show(options, {**summary, "plan": plan.to_dict()}, text)
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


VERB = Verb(
    "Estimate the law of the return under a target policy, in a directory that keeps all intermediate\n"
    "results.",
    {
        "source": option("TOML file, store of transitions, or run", type=Path, metavar="SOURCE"),
        "--policy": option(
            "target policy, .json, .toml or .npz: a family (gaussian, uniform, logistic) and its numbers",
            type=Path,
            metavar="FILE",
        ),
        "--run": option(
            "directory of the run, new or to be resumed", type=Path, dest="directory", metavar="DIR"
        ),
        "--cache": option("directory of blocks that several fits share", type=Path, metavar="DIR"),
        **SETTINGS,
        "--discount": option("discount factor", type=number),
        "--cluster": shared.cluster(),
        "--patience": shared.patience(),
        "--checkpoint-seconds": option(
            "time between checkpoints of the solver (default: %(default)g)",
            CHECKPOINT_SECONDS,
            type=number,
            metavar="SECONDS",
        ),
        "--memory": shared.MEMORY,
        "--dry-run": option("say what would be done, and write nothing", action="store_true"),
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
