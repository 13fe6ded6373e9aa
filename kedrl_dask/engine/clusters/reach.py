"""What a machine grants this process, whether a scheduler can be reached, and what is behind it."""

from __future__ import annotations

from typing import Any

from dask.system import cpu_count
from distributed import Client
from distributed.system import memory_limit

__all__ = ["granted", "reach_scheduler"]


def granted() -> tuple[int, int]:
    """Cores and bytes of memory that this process may use: the machine's, or what limits leave."""
    return cpu_count(), memory_limit()


def reach_scheduler(address: str, seconds: float) -> dict[str, Any]:
    """Workers and threads of the cluster at an address, and packages that differ from this process's.

    Raises
    ------
    OSError
        If nobody answers in time.
    """
    with Client(address, timeout=seconds, set_as_default=False) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        found = client.get_versions(check=False)
    own = found["client"]["packages"]
    others = [found["scheduler"], *found["workers"].values()]
    differing = {
        name
        for other in others
        for name in ("python", "dask", "distributed", "numpy")
        if other["packages"].get(name) != own.get(name)
    }
    return {
        "workers": len(workers),
        "threads": sum(worker["nthreads"] for worker in workers),
        "differing": sorted(differing),
    }
