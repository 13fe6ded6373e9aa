"""``kedrl cluster``: describe the cluster of a run without starting it."""

from __future__ import annotations

import argparse
from pathlib import Path

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Verb, option, show
from kedrl_dask.engine.clusters.descriptions import chosen_cluster, describe_cluster
from kedrl_dask.engine.clusters.opening import cluster_status
from kedrl_dask.service.config import load_config
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.checks import printable

NOTE = """\
examples:
  kedrl cluster config.toml                            what the file's table [cluster] describes
  kedrl cluster --cluster address=tls://10.0.0.7:8786  which workers this scheduler has
  kedrl cluster config.toml --cluster local=4          the file, but on four processes of this machine

"""


def _run(options: argparse.Namespace) -> int:
    described = load_config(options.source).cluster if options.source else None
    chosen = chosen_cluster(options.cluster, described) or describe_cluster({"kind": "threads"})
    found = cluster_status(chosen)
    show(options, found, _text(found))
    return SUCCESS


def _text(found: Record) -> str:
    """One line for each fact, and the script below."""
    lines = [
        f"{name.replace('_', ' '):<18} {_words(name, value)}"
        for name, value in found.items()
        if name != "script"
    ]
    return "\n".join([*lines, *(["", found["script"].rstrip()] if found.get("script") else [])])


def _words(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_words('', item)}" for key, item in value.items()) or "none"
    if value is None:
        return "as the manifest has it" if name == "workers" else "not found"
    if name.startswith("memory") and isinstance(value, (int, float)):
        return f"{value / 2**30:.2f} GiB"
    return printable(str(value))


VERB = Verb(
    "Check the description of a cluster and show the result: the number and sizes of its workers, the\n"
    "script of its jobs, and the current state of the batch system or scheduler. Nothing is started.",
    {
        "source": option("TOML file with a table [cluster]", type=Path, nargs="?", metavar="FILE"),
        "--cluster": shared.cluster(),
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
