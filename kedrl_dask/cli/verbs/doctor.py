"""``kedrl doctor``: find problems of this machine, and say how to solve them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, UNWELL, Verb, number, option, path, print_out, show
from kedrl_dask.service.doctor import Check, examine

NOTE = """\
examples:
  kedrl doctor /data/stores                    the directory of future stores
  kedrl doctor --scheduler tls://head:8786     with a cluster
  kedrl doctor --json --seconds 0              for machines, without the small fits

"""


def _run(options: argparse.Namespace) -> int:
    if not options.directory.is_dir():
        raise NotADirectoryError(f"{options.directory} is no directory; name the one where stores will be")
    found = []
    for check in examine(options.directory, options.scheduler, options.seconds):
        found.append(check)
        if not options.json:
            print_out(_line(check))
    wrong = [check.name for check in found if check.status == "wrong"]
    if options.json:
        show(options, {"well": not wrong, "checks": [check.to_dict() for check in found]}, "")
    if wrong:
        print(f"kedrl: something is wrong: {', '.join(wrong)}", file=sys.stderr)
    return UNWELL if wrong else SUCCESS


def _line(check: Check) -> str:
    remedy = f"\n{'':<21}remedy: {check.remedy}" if check.remedy else ""
    return f"{check.status:<9}{check.name:<12}{check.found}{remedy}"


VERB = Verb(
    "Examine versions, BLAS, memory, disk speed, network, TLS, Slurm, and a scheduler if one is named;\n"
    "compare a small fit with the truth, and with the same fit in threads and on one and two workers.\n"
    "Every problem is reported with a remedy.",
    {
        "directory": option(
            "where stores are or will be (default: here)", Path(), type=path, nargs="?", metavar="DIR"
        ),
        "--scheduler": option("a Dask scheduler that should answer", metavar="ADDRESS"),
        "--seconds": option(
            "time limit of the small fits; 0 skips them (default: %(default)g)",
            60.0,
            type=number,
            metavar="SECONDS",
        ),
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
