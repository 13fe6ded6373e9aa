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
    positive,
    print_out,
    workers,
)
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL

__all__ = ["PARAMETERS", "SETTINGS", "add"]


def _number(parameter: str, what: str) -> dict[str, Any]:
    """Option for a size of the fit, KEDRL's own default unless given."""
    return {"type": positive, "dest": parameter, "metavar": "N", "help": f"{what} ({parameter} of KEDRL)"}


#: Options that are parameters of KEDRL, in every verb that fits or plans a fit.
SETTINGS: dict[str, dict[str, Any]] = {
    "--atoms": _number("n_atoms", "atoms of the return grid"),
    "--basis": _number("n_basis", "points of the state-action basis"),
    "--landmarks": _number("n_landmarks", "Nyström landmarks"),
    "--features": _number("n_features", "spectral frequencies"),
    "--conditioning": _number("n_conditioning", "conditioning points"),
    "--construction": {
        "choices": ("separated", "paired"),
        "help": "how reward and continuation are averaged",
    },
    "--paired-form": {
        "choices": ("auto", "contracted", "matrix-free"),
        "help": "how the paired construction makes its target",
    },
    "--continuation": {"choices": ("sampled", "ratio"), "help": "how the target policy comes in"},
    "--operators": {"choices": ("features", "exact"), "help": "return kernel in features, or itself"},
    "--precision": {"choices": ("mixed", "double"), "help": "precision of matrix products"},
}
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
#: Names of these parameters.
PARAMETERS = (
    "n_atoms",
    "n_basis",
    "n_landmarks",
    "n_features",
    "n_conditioning",
    "construction",
    "paired_form",
    "continuation",
    "precision",
    "operators",
)


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
    given = {name: getattr(options, name) for name in PARAMETERS if getattr(options, name) is not None}
    executor = ThreadExecutor(1 if options.workers else None)
    memory = options.memory or executor.memory // max(1, options.workers)
    plan = KEDRL(options.discount, **given).plan(
        options.store, executor=executor, workers=options.workers or None, memory=memory
    )
    print_out(as_json(plan.to_dict()) if options.json else repr(plan))
    plan.check()
    return SUCCESS
