"""The choice of representative points: landmarks, state-action basis, atoms of the return grid."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Indices, Points
from kedrl_dask.utils.checks import check_word


def cluster_centers(points: Points, n_centers: int, random_state: int) -> Points:
    """Centres of k-means; the same for the same seed, whatever the number of threads."""
    return clusters(points, n_centers, random_state)[0]


def clusters(points: Points, n_centers: int, random_state: int) -> tuple[Points, Indices]:
    """Centres of k-means (n_centers, dim) and the number of points in each cluster (n_centers,).

    With fewer distinct points than centres, each point has its own cluster and the other clusters are empty.
    """
    # scikit-learn adds the partial sums of its threads in the order in which they finish.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters", ConvergenceWarning)
        fitted = KMeans(n_centers, n_init=1, random_state=random_state).fit(points)
    return fitted.cluster_centers_, np.bincount(fitted.labels_, minlength=n_centers)


def choose_points(
    points: Points,
    n_points: int,
    kernel: Matern,
    method: Literal["kmeans", "random"] = "kmeans",
    random_state: int = 0,
) -> Points:
    """Choose points that cover a sample: k-means centres in the kernel's coordinates, or a random subset.

    The distinct rows of the sample are returned if there are no more than ``n_points``.
    """
    check_word("the method to choose points", method, ("kmeans", "random"))
    distinct = np.unique(points, axis=0)
    if len(distinct) <= n_points:
        return distinct
    if method == "random":
        rows = np.random.default_rng(random_state).choice(len(distinct), n_points, replace=False)
        return distinct[np.sort(rows)]
    return kernel.unscale(cluster_centers(kernel.scale(points), n_points, random_state))


def median_distance(points: Points, n_pairs: int = 20_000, random_state: int = 0) -> float:
    """Median distance between two rows of a sample; zero for a single row."""
    if len(points) < 2:
        return 0.0
    rng = np.random.default_rng(random_state)
    first, second = rng.integers(len(points), size=(2, n_pairs))
    apart = first != second
    return float(np.median(np.linalg.norm(points[first[apart]] - points[second[apart]], axis=1)))
