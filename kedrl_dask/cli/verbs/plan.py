"""``kedrl plan``: what a fit will take, before it starts."""

from __future__ import annotations

import argparse
from typing import Any

from kedrl_dask.cli.common import (
    JSON,
    SUCCESS,
    Verbs,
    add_verb,
    as_json,
    number,
    path,
    print_out,
    workers,
)
from kedrl_dask.cli.options import SETTINGS, given_parameters
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL

__all__ = ["add"]


OPTIONS: dict[str, dict[str, Any]] = {
    "store": {"type": path, "metavar": "PATH", "help": "the store of transitions"},
    "--discount": {"type": number, "default": 0.9, "help": "discount factor (default: %(default)s)"},
    **SETTINGS,
    "--workers": {
        "type": workers,
        "default": 0,
        "metavar": "N",
        "help": "worker processes of one thread each; 0 is threads of one process (default: %(default)s)",
    },
    "--memory": {
        "metavar": "SIZE",
        "help": "what each process may use, e.g. 2GiB (default: what is free here)",
    },
    "--json": JSON,
}
NOTE = """\
examples:
  kedrl plan transitions.zarr --memory 2GiB
  kedrl plan transitions.zarr --construction paired --workers 8 --json

"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "plan",
        _run,
        description="Project what a fit of a store will take: tasks, flop, kernel evaluations, time, peak\n"
        "memory of a worker and disk, from its sizes and from short measurements on this machine.\n"
        "A fit over its memory is refused.",
        note=NOTE,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)


def _run(options: argparse.Namespace) -> int:
    executor = ThreadExecutor(1 if options.workers else None)
    memory = options.memory or executor.memory // max(1, options.workers)
    plan = KEDRL(options.discount, **given_parameters(options)).plan(
        options.store, executor=executor, workers=options.workers or None, memory=memory
    )
    print_out(as_json(plan.to_dict()) if options.json else repr(plan))
    plan.check()
    return SUCCESS
