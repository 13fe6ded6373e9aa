"""The choice of points that represent many."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kedrl_dask.numerics.design.points import choose_points, cluster_centers, clusters, median_distance
from kedrl_dask.numerics.kernels.matern import Matern

SAMPLE = np.random.default_rng(0).normal(size=(3000, 3))


@pytest.mark.parametrize("method", ["kmeans", "random"])
def test_choose_points__depends_on_the_seed_alone(method):
    chosen = []
    for threads in (1, 2, None):
        with threadpool_limits(limits=threads):
            chosen.append(choose_points(SAMPLE, 60, Matern(), method, random_state=3))
    np.testing.assert_array_equal(chosen[0], chosen[1])
    np.testing.assert_array_equal(chosen[0], chosen[2])
    assert chosen[0].shape == (60, 3)
    assert not np.array_equal(chosen[0], choose_points(SAMPLE, 60, Matern(), method, random_state=4))


@pytest.mark.parametrize("method", ["kmeans", "random"])
def test_choose_points__few_distinct_rows_are_all_taken(method):
    distinct = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    repeated = np.tile(distinct, (10, 1))
    for n_points in (3, 8):
        np.testing.assert_array_equal(choose_points(repeated, n_points, Matern(), method), distinct)
    assert len(choose_points(repeated, 2, Matern(), method)) == 2


def test_choose_points__random_subset_has_distinct_rows_of_the_sample():
    repeated = np.vstack([SAMPLE[:40]] * 5)
    chosen = choose_points(repeated, 30, Matern(), "random")
    assert len(np.unique(chosen, axis=0)) == 30
    assert {tuple(row) for row in chosen} <= {tuple(row) for row in SAMPLE[:40]}


@pytest.mark.parametrize("important", [0, 1])
def test_choose_points__kernel_lengths_say_which_distances_matter(important):
    rng = np.random.default_rng(1)
    points = rng.choice([-5.0, 5.0], size=(400, 2)) + 0.1 * rng.normal(size=(400, 2))
    lengths = [1e3, 1e3]
    lengths[important] = 1.0
    centers = choose_points(points, 2, Matern(1.5, tuple(lengths)))
    # Two clusters along the short length; along the long one both centres are in the middle.
    np.testing.assert_allclose(np.sort(centers[:, important]), [-5, 5], atol=0.1)
    assert (np.abs(centers[:, 1 - important]) < 1.5).all()


def test_choose_points__centres_are_in_the_points_own_units():
    centers = choose_points(SAMPLE, 20, Matern(1.5, (0.01, 10.0, 1.0)))
    assert (np.abs(centers) <= np.abs(SAMPLE).max(axis=0)).all()
    assert (centers[:, 0].std() > 0.5) & (centers[:, 1].std() < 0.3)


@pytest.mark.parametrize("n_points", [2, 50])
def test_choose_points__unknown_method_is_refused(n_points):
    with pytest.raises(ValueError, match="method to choose points must be 'kmeans' or 'random', got 'grid'"):
        choose_points(SAMPLE[:20], n_points, Matern(), "grid")


def test_choose_points__wrong_number_of_lengths_is_refused():
    with pytest.raises(ValueError):
        choose_points(SAMPLE, 5, Matern(1.5, (1.0, 2.0)))


def test_cluster_centers__are_means_of_their_clusters():
    points = np.concatenate([SAMPLE[:100] + shift for shift in ([10, 0, 0], [0, 10, 0], [0, 0, 10])])
    centers = cluster_centers(points, 3, random_state=0)
    expected = [SAMPLE[:100].mean(axis=0) + shift for shift in ([0, 0, 10], [0, 10, 0], [10, 0, 0])]
    np.testing.assert_allclose(centers[np.argsort(centers @ [2, 1, 0])], expected, atol=1e-10)


def test_clusters__counts_go_with_their_centres():
    sizes = {(10, 0, 0): 300, (0, 10, 0): 50, (0, 0, 10): 7}
    points = np.concatenate([SAMPLE[:n] + shift for shift, n in sizes.items()])
    centers, counts = clusters(points, 3, random_state=0)
    np.testing.assert_array_equal(centers, cluster_centers(points, 3, random_state=0))
    for (shift, n), center in zip(sizes.items(), centers[np.argsort(-counts)], strict=True):
        assert n in counts
        np.testing.assert_allclose(center, SAMPLE[:n].mean(axis=0) + shift, atol=1e-10)


def test_clusters__fewer_distinct_points_than_centres():
    points = np.repeat([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [5, 3, 2], axis=0)
    centers, counts = clusters(points, 6, random_state=0)
    assert centers.shape == (6, 2)
    assert sorted(counts) == [0, 0, 0, 2, 3, 5]
    np.testing.assert_allclose(centers[np.argsort(-counts)][:3], [[0, 1], [2, 3], [4, 5]], atol=1e-12)


def test_median_distance__agrees_with_all_pairs():
    points = SAMPLE[:200]
    all_pairs = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(200, 1)]
    assert np.isclose(median_distance(points), np.median(all_pairs), rtol=0.03)
    assert median_distance(points) == median_distance(points)
    # A row is never paired with itself: with two rows there is one distance.
    assert median_distance(np.array([[0.0], [3.0]])) == 3.0
    assert median_distance(np.array([[1.0]])) == 0.0
