"""Options that mean the same in every verb that has them.

Those that need a heavy library are functions, so that a verb imports only what it uses.
"""

from __future__ import annotations

import argparse

from kedrl_dask.cli.common import Option, count, number, option, path, positive, workers

JSON = option(
    "print the summary as JSON, and nothing else, to standard output; progress still goes to standard error",
    action="store_true",
)
MEMORY = option("memory limit of each process, e.g. 2GiB (default: the free memory)", metavar="SIZE")
NO_PLOTS = option("draw no figures", action="store_false", dest="draw")
SEED = option("seed of everything random", 0, type=count, metavar="N")
WORKERS = option(
    "worker processes of a local Dask cluster; 0 uses threads of this process", 0, type=workers, metavar="N"
)
STORE = option("new directory for the store", type=path, metavar="PATH")
OVERWRITE = option(
    "replace an existing transition store at PATH, and nothing else, once the new one is complete",
    action="store_true",
)
CHUNK_ROWS = option("rows per stored chunk", 16_384, type=positive, metavar="N")


def pair() -> Option:
    """A pair of policies of the simulation study."""
    from kedrl_dask.datasets.simulation import PAIRS

    meaning = "behaviour and target policy: %(choices)s"
    return option(meaning, "uniform-gaussian", choices=sorted(PAIRS), metavar="PAIR")


def cluster() -> Option:
    """Where a verb runs."""
    from kedrl_dask.engine.clusters.descriptions import KINDS, parse_cluster

    def parsed(text: str) -> tuple[str, str | None]:
        try:
            return parse_cluster(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return option(
        f"where it runs: {', '.join(KINDS)}; with a number of threads, workers or jobs, or, as "
        "address=tls://host:port, an existing scheduler. The table [cluster] of a file supplies the other "
        "settings if it is of the same kind (default: the file's cluster, or else threads of this process)",
        type=parsed,
        metavar="KIND[=N]",
    )


def patience() -> Option:
    """How long a fit waits for workers."""
    from kedrl_dask.engine.execute.dask_client import PATIENCE

    meaning = "how long a cluster may be without workers before the fit stops (default: %(default)g)"
    return option(meaning, PATIENCE, type=number, metavar="SECONDS")
