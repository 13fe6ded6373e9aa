"""Workers in pods, through Dask's operator for Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import Client

from kedrl_dask.engine.clusters.descriptions import Kubernetes
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.tls import warn_of_plain_text
from kedrl_dask.utils.checks import cut
from kedrl_dask.utils.process import Stopped, opened

if TYPE_CHECKING:
    from dask_kubernetes.operator import KubeCluster


def _kube_cluster() -> type[KubeCluster]:
    try:
        from dask_kubernetes.operator import KubeCluster
    except ImportError as error:
        raise ValueError(
            "a Kubernetes cluster needs the package dask-kubernetes: pip install 'kedrl-dask[kubernetes]'"
        ) from error
    return KubeCluster


def checked_manifest(described: Kubernetes) -> Path:
    """The path of the manifest, which must exist."""
    if described.manifest is None:
        raise ValueError(
            "a kubernetes cluster needs the manifest of a DaskCluster: set manifest in the table [cluster] "
            "of a file; deploy/kubernetes/cluster.yaml is an example"
        )
    if not described.manifest.is_file():
        raise FileNotFoundError(f"{described.manifest}: no such file, expected the manifest of a DaskCluster")
    return described.manifest


@contextmanager
def kubernetes_cluster(described: Kubernetes, patience: float) -> Iterator[Executor]:
    """The cluster of a manifest, or an existing one of the same name, which is deleted at the end.

    The body starts when the first worker has connected.
    """
    make, manifest = _kube_cluster(), checked_manifest(described)
    options = {"custom_cluster_spec": os.fspath(manifest), "namespace": described.namespace}
    try:
        cluster = make(**options, quiet=True)
    except Exception as error:  # of any library below, which have no common base class
        raise Stopped(
            f"{manifest}: the Kubernetes cluster could not be created ({type(error).__name__}: "
            f"{cut(str(error))}); check that 'kubectl get daskclusters' works here, and that Dask's operator "
            "is installed"
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
            raise Stopped(f"no worker has connected within {patience:g} s; see 'kubectl get pods'") from error
        yield DistributedExecutor(client, patience)
