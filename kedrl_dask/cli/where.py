"""Options of the verbs that compute: where they run, and with what."""

from __future__ import annotations

import argparse
from typing import Any

from kedrl_dask.cli.common import number
from kedrl_dask.engine.clusters.descriptions import KINDS, parse_cluster
from kedrl_dask.engine.execute.dask_client import PATIENCE

__all__ = ["CLUSTER", "MEMORY", "PATIENTLY"]


def cluster(text: str) -> tuple[str, str | None]:
    """A kind of cluster and its size or address; argparse turns the error into a usage message."""
    try:
        return parse_cluster(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


CLUSTER: dict[str, Any] = {
    "type": cluster,
    "metavar": "KIND[=N]",
    "help": f"where it runs: {', '.join(KINDS)}; with a number of threads, workers or jobs, or, as "
    "address=tls://host:port, a scheduler that is there. A file's table [cluster] of this kind has the rest "
    "(default: the file's cluster; without one threads of this process)",
}
PATIENTLY: dict[str, Any] = {
    "type": number,
    "default": PATIENCE,
    "metavar": "SECONDS",
    "help": "how long a cluster may be without any worker before the fit stops (default: %(default)g)",
}
MEMORY: dict[str, Any] = {"metavar": "SIZE", "help": "what each process may use, e.g. 2GiB"}
