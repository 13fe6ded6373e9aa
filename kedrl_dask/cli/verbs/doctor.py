"""``kedrl doctor``: what may be wrong with this machine, and the remedy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from kedrl_dask.cli.common import JSON, SUCCESS, UNWELL, Verbs, add_verb, as_json, number, path, print_out
from kedrl_dask.service.doctor import Check, examine

__all__ = ["add"]

NOTE = """\
examples:
  kedrl doctor /data/stores                    where stores will be
  kedrl doctor --scheduler tls://head:8786     with a cluster
  kedrl doctor --json --seconds 0              for machines, without the small fits

"""

OPTIONS: dict[str, dict[str, Any]] = {
    "directory": {
        "type": path,
        "nargs": "?",
        "default": Path(),
        "metavar": "DIR",
        "help": "where stores are or will be (default: here)",
    },
    "--scheduler": {"metavar": "ADDRESS", "help": "a Dask scheduler that should answer"},
    "--seconds": {
        "type": number,
        "default": 60.0,
        "metavar": "SECONDS",
        "help": "what the small fits may take; 0 leaves them out (default: %(default)g)",
    },
    "--json": JSON,
}


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "doctor",
        _run,
        description="Look at versions, BLAS, memory, the speed of a disk, network, TLS, Slurm, and a\n"
        "scheduler if one is named; compare a small fit with the truth, and with itself in\n"
        "threads, on one and on two workers. Says what is wrong, and the remedy.",
        note=NOTE,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(name, **settings)


def _run(options: argparse.Namespace) -> int:
    if not options.directory.is_dir():
        raise NotADirectoryError(f"{options.directory} is no directory; name the one where stores will be")
    found = []
    for check in examine(options.directory, options.scheduler, options.seconds):
        found.append(check)
        if not options.json:
            print_out(_line(check))
    is_wrong = any(check.status == "wrong" for check in found)
    if options.json:
        print_out(as_json({"well": not is_wrong, "checks": [check.to_dict() for check in found]}))
    if is_wrong:
        names = ", ".join(check.name for check in found if check.status == "wrong")
        print(f"kedrl: something is wrong: {names}", file=sys.stderr)
    return UNWELL if is_wrong else SUCCESS


def _line(check: Check) -> str:
    remedy = f"\n{'':<21}remedy: {check.remedy}" if check.remedy else ""
    return f"{check.status:<9}{check.name:<12}{check.found}{remedy}"
