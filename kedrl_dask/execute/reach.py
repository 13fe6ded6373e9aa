"""Whether a scheduler can be reached, and what is behind it."""

from __future__ import annotations

from typing import Any

from distributed import Client

__all__ = ["reach_scheduler"]


def reach_scheduler(address: str, seconds: float) -> dict[str, Any]:
    """Workers, threads and memory of the cluster at an address, and packages that differ from this process's.

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
        "memory": sum(worker["memory_limit"] for worker in workers),
        "differing": sorted(differing),
        "encrypted": address.startswith("tls://"),
    }
