"""``kedrl plan``: the resources that a fit will take, before it starts."""

from __future__ import annotations

import argparse

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Verb, number, option, path, show
from kedrl_dask.cli.parameters import SETTINGS, given_parameters
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL

NOTE = """\
examples:
  kedrl plan transitions.zarr --memory 2GiB
  kedrl plan transitions.zarr --construction paired --workers 8 --json

"""


def _run(options: argparse.Namespace) -> int:
    executor = ThreadExecutor(1 if options.workers else None)
    memory = options.memory or executor.memory // max(1, options.workers)
    plan = KEDRL(options.discount, **given_parameters(options)).plan(
        options.store, executor=executor, workers=options.workers or None, memory=memory
    )
    show(options, plan.to_dict(), repr(plan))
    plan.check()
    return SUCCESS


VERB = Verb(
    "Project the resources of a fit of a store: tasks, flop, kernel evaluations, time, peak memory of a\n"
    "worker and disk, from its sizes and from short measurements on this machine. A fit that exceeds its\n"
    "memory is refused.",
    {
        "store": option("the store of transitions", type=path, metavar="PATH"),
        "--discount": option("discount factor", 0.9, type=number),
        **SETTINGS,
        "--workers": shared.WORKERS,
        "--memory": shared.MEMORY,
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
