"""Workers as pods, through Dask's operator for Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from kedrl_dask.engine.clusters.descriptions import Kubernetes
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.tls import warn_of_plain_text
from kedrl_dask.utils.checks import cut
from kedrl_dask.utils.process import Stopped, opened

__all__ = ["checked_manifest", "kubernetes_cluster"]


def _kube_cluster() -> Any:
    try:
        from dask_kubernetes.operator import KubeCluster
    except ImportError as error:
        raise ValueError(
            "a Kubernetes cluster needs the package dask-kubernetes: pip install 'kedrl-dask[kubernetes]'"
        ) from error
    return KubeCluster


def checked_manifest(described: Kubernetes) -> Path:
    """The manifest, which must be there."""
    if described.manifest is None:
        raise ValueError(
            "a kubernetes cluster needs the manifest of a DaskCluster: give manifest in the table [cluster] "
            "of a file; deploy/kubernetes/cluster.yaml is one to begin with"
        )
    if not described.manifest.is_file():
        raise FileNotFoundError(f"{described.manifest}: no such file, expected the manifest of a DaskCluster")
    return described.manifest


@contextmanager
def kubernetes_cluster(described: Kubernetes, patience: float) -> Iterator[Executor]:
    """The cluster of a manifest, or the one by its name that an earlier run left; taken down at the end.

    It begins when the first worker is there.
    """
    make, manifest = _kube_cluster(), checked_manifest(described)
    options = {"custom_cluster_spec": os.fspath(manifest), "namespace": described.namespace}
    try:
        cluster = make(**options, quiet=True)
    except Exception as error:  # of whatever library failed on the way: there is no other name for them all
        raise Stopped(
            f"{manifest}: no Kubernetes cluster could be made of it ({type(error).__name__}: "
            f"{cut(str(error))}); can 'kubectl get daskclusters' be run from here, and is Dask's operator "
            "installed?"
        ) from error

    def open_on(stack: ExitStack) -> Client:
        stack.enter_context(cluster)
        return stack.enter_context(Client(cluster, set_as_default=False))

    with opened(open_on) as client:
        warn_of_plain_text(client)
        if described.maximum is not None:
            cluster.adapt(minimum=described.minimum or 0, maximum=described.maximum)
        elif described.workers is not None:
            cluster.scale(described.workers)
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError as error:
            raise Stopped(f"no worker came within {patience:g} s; 'kubectl get pods' says why") from error
        yield DistributedExecutor(client, patience)
