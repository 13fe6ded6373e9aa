"""``kedrl cluster``: where a run would go, without going there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kedrl_dask.cli.common import JSON, SUCCESS, Verbs, add_verb, as_json, print_out
from kedrl_dask.cli.where import CLUSTER
from kedrl_dask.engine.clusters.descriptions import chosen_cluster, describe_cluster
from kedrl_dask.engine.clusters.status import cluster_status
from kedrl_dask.service.config import load_config
from kedrl_dask.utils.checks import printable

__all__ = ["add"]

NOTE = """\
examples:
  kedrl cluster config.toml                            what the file's table [cluster] comes to
  kedrl cluster --cluster address=tls://10.0.0.7:8786  who is at work for this scheduler
  kedrl cluster config.toml --cluster local=4          the file, but on four processes of this machine

"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "cluster",
        _run,
        description="Check the description of a cluster and show what it comes to: the number and sizes of\n"
        "its workers, the script of its jobs, and what the batch system or scheduler says now. Nothing is\n"
        "started.",
        note=NOTE,
    )
    parser.add_argument(
        "source", type=Path, nargs="?", metavar="FILE", help="TOML file with a table [cluster]"
    )
    parser.add_argument("--cluster", **CLUSTER)
    parser.add_argument("--json", **JSON)


def _run(options: argparse.Namespace) -> int:
    described = load_config(options.source).cluster if options.source else None
    chosen = chosen_cluster(options.cluster, described) or describe_cluster({"kind": "threads"})
    found = cluster_status(chosen)
    print_out(as_json(found) if options.json else _text(found))
    return SUCCESS


def _text(found: dict[str, Any]) -> str:
    """One line for each fact, and the script below."""
    script = found.pop("script", "")
    lines = [f"{name.replace('_', ' '):<18} {_words(name, value)}" for name, value in found.items()]
    return "\n".join([*lines, *(["", script.rstrip()] if script else [])])


def _words(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_words('', item)}" for key, item in value.items()) or "none"
    if value is None:
        return "as the manifest has it" if name == "workers" else "not found"
    return f"{value / 2**30:.2f} GiB" if name.startswith("memory") else printable(str(value))
