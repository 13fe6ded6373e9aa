"""Observed returns, the atoms of the return grid, and how well they cover the Bellman image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import Delaunay

from kedrl_dask.numerics.design.return_grid import (
    bellman_box,
    box_grid,
    coverage,
    discounted_returns,
    return_grid,
)
from kedrl_dask.numerics.kernels.matern import Matern

KERNEL = Matern(2.5, 1.0, 0.85)


def literal_returns(reward, episode, terminated, discount):
    """Return of every row, and the share of the discounted weight that it lacks, by a double loop."""
    n = len(reward)
    returns, missing = np.zeros(reward.shape), np.zeros(n)
    for i in range(n):
        ended = False
        weight = 0.0
        for j in range(i, n):
            if episode[j] != episode[i]:
                break
            returns[i] += discount ** (j - i) * reward[j]
            weight += (1 - discount) * discount ** (j - i)
            ended = terminated[j]
        missing[i] = 0.0 if ended else 1 - weight
    return returns, missing


def episodes(lengths, ended, dim, seed):
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(len(lengths)) * 3, lengths)
    terminated = np.zeros(len(episode), bool)
    terminated[np.cumsum(lengths) - 1] = ended
    return rng.normal(size=(len(episode), dim)), episode, terminated


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6),
    dim=st.integers(1, 3),
    discount=st.sampled_from([0.0, 0.3, 0.7, 0.9]),
    tail=st.sampled_from([0.003, 0.05, 0.4]),
    seed=st.integers(0, 999),
)
def test_discounted_returns__agree_with_a_double_loop(shape, dim, discount, tail, seed):
    lengths, ended = zip(*shape, strict=True)
    reward, episode, terminated = episodes(lengths, ended, dim, seed)
    returns, missing = literal_returns(reward, episode, terminated, discount)
    got = discounted_returns(reward, episode, terminated, discount, tail)
    complete = missing <= tail
    if complete.any():
        np.testing.assert_allclose(got, returns[complete], atol=1e-12)
    else:
        first = np.searchsorted(episode, np.unique(episode))
        filled = returns[first] + missing[first, None] * reward.mean(axis=0) / (1 - discount)
        np.testing.assert_allclose(got, filled, atol=1e-12)


def test_discounted_returns__truncated_tail_is_left_out_and_terminated_kept():
    reward = np.ones((10, 1))
    episode = np.repeat([0, 1], 5)
    terminated = np.zeros(10, bool)
    # 0.5⁵ = 0.031: one row of each truncated episode lacks less than 0.05 of the weight.
    np.testing.assert_allclose(discounted_returns(reward, episode, terminated, 0.5, 0.05), [[1.9375]] * 2)
    terminated[-1] = True
    got = discounted_returns(reward, episode, terminated, 0.5, 0.05)[:, 0]
    np.testing.assert_allclose(got, [1.9375, 1.9375, 1.875, 1.75, 1.5, 1.0])


def test_discounted_returns__short_episodes_are_filled_with_the_mean_reward():
    reward = np.full((6, 2), 3.0)
    got = discounted_returns(reward, np.repeat([0, 1, 2], 2), np.zeros(6, bool), 0.9)
    np.testing.assert_allclose(got, np.full((3, 2), 3.0 / (1 - 0.9)))


def test_discounted_returns__rewards_are_left_alone():
    reward, episode, terminated = episodes((4, 3), (True, True), 2, 0)
    before = reward.copy()
    discounted_returns(reward, episode, terminated, 0.8)
    np.testing.assert_array_equal(reward, before)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("n_atoms", [1, 7, 100])
def test_return_grid__has_exactly_the_atoms_asked_for(dim, n_atoms):
    returns = np.random.default_rng(0).normal(size=(500, dim))
    grid = return_grid(returns, n_atoms, KERNEL)
    assert grid.shape == (n_atoms, dim)
    assert len(np.unique(grid, axis=0)) == n_atoms


@pytest.mark.parametrize("length_scale", [1.0, (0.5, 3.0)])
def test_return_grid__extreme_atoms_move_outward_and_others_stay(length_scale):
    returns = np.random.default_rng(0).normal(size=(2000, 2))
    kernel = Matern(2.5, length_scale)
    still, moved = (return_grid(returns, 50, kernel, c, random_state=1) for c in (1.0, 1.5))
    is_moved = np.abs(still - moved).max(axis=1) > 1e-12
    middle = still.mean(axis=0)
    np.testing.assert_allclose(moved[is_moved] - middle, 1.5 * (still[is_moved] - middle), atol=1e-10)
    assert 4 <= is_moved.sum() < 30
    for coordinate in (0, 1):
        assert is_moved[still[:, coordinate].argmax()]
        assert is_moved[still[:, coordinate].argmin()]
    # Every atom moved is a vertex of the hull, and no atom deep inside is touched.
    vertices = set(np.unique(Delaunay(still).convex_hull))
    assert set(np.flatnonzero(is_moved)) <= vertices


def test_return_grid__kernel_lengths_say_which_distances_matter():
    returns = np.random.default_rng(0).normal(size=(2000, 2))
    grid = return_grid(returns, 40, Matern(2.5, (0.01, 10.0)), expansion=1.0)
    # Clusters are slices of the first coordinate, and the atoms are in the returns' own units.
    assert grid[:, 0].std() > 0.8
    assert np.abs(grid[:, 0]).max() < 1.001 * np.abs(returns[:, 0]).max()
    assert grid[:, 1].std() < 0.5


def test_return_grid__too_few_distinct_returns_are_refused():
    returns = np.repeat(np.arange(5.0), 4)[:, None]
    assert len(return_grid(returns, 5, KERNEL)) == 5
    with pytest.raises(ValueError, match=r"n_atoms=6 distinct observed returns, found 5"):
        return_grid(returns, 6, KERNEL)


def test_return_grid__seed_decides():
    returns = np.random.default_rng(0).normal(size=(500, 2))
    first, again, other = (return_grid(returns, 30, KERNEL, random_state=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 10)), min_size=1, max_size=4),
    discount=st.floats(0, 0.99),
    seed=st.integers(0, 999),
)
def test_bellman_box__contains_its_bellman_image(bounds, discount, seed):
    low = np.array([a for a, _ in bounds])
    high = low + np.array([b for _, b in bounds])
    box_low, box_high = bellman_box(low, high, discount)
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 2, size=(2, 30, len(low))).astype(float)  # the extremes are the hard case
    inner = rng.uniform(size=(2, 30, len(low)))
    share_r, share_z = np.concatenate([corners, inner], axis=1)
    image = low + share_r * (high - low) + discount * (box_low + share_z * (box_high - box_low))
    slack = 1e-12 * (1 + np.abs(box_low) + np.abs(box_high))
    assert (image >= box_low - slack).all()
    assert (image <= box_high + slack).all()
    # And no smaller box does: its corners are reached.
    np.testing.assert_allclose(high + discount * box_high, box_high, atol=1e-9)
    np.testing.assert_allclose(low + discount * box_low, box_low, atol=1e-9)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), ([0, 2], [1, 1]), (-np.inf, 1), (0, np.nan)])
def test_bellman_box__impossible_bounds_are_refused(low, high):
    with pytest.raises(ValueError, match="reward bounds must be finite with low ≤ high"):
        bellman_box(low, high, 0.5)


@pytest.mark.parametrize("n_atoms", [1, 2, 100])
def test_box_grid__fills_the_box(n_atoms):
    low, high = np.array([-1.0, 5.0, 2.0]), np.array([3.0, 6.0, 2.0])
    grid = box_grid(low, high, n_atoms)
    assert grid.shape == (n_atoms, 3)
    assert (grid >= low).all()
    assert (grid <= high).all()
    if n_atoms == 100:
        np.testing.assert_allclose(grid.mean(axis=0), (low + high) / 2, atol=0.1)
        assert np.ptp(grid[:, 0]) > 3.8
    assert not np.array_equal(grid, box_grid(low, high, n_atoms, random_state=1))


@pytest.mark.parametrize("kernel", [KERNEL, Matern(5.5, 4.0, 2.0)])
def test_coverage__shifted_points_on_the_grid_have_no_residual(kernel):
    grid = np.random.default_rng(0).normal(size=(30, 2))
    for reward, discount in ((grid, 0.0), (np.zeros((1, 2)), 1.0)):
        found = coverage(grid, reward, discount, kernel)
        assert found.p99 < 2e-5
        assert found.inside == 1.0


def test_coverage__far_points_are_not_represented_at_all():
    grid = np.random.default_rng(0).normal(size=(30, 2))
    found = coverage(grid, np.full((1, 2), 100.0), 0.5, KERNEL)
    np.testing.assert_allclose([found.median, found.p90, found.p99], 1.0, atol=1e-6)
    assert found.inside == 0.0


def test_coverage__residual_quantiles_are_literal():
    rng = np.random.default_rng(0)
    grid, reward = rng.normal(size=(15, 2)), rng.normal(size=(1, 2))
    found = coverage(grid, reward, 0.6, KERNEL, n_pairs=4000)
    shifted = reward + 0.6 * grid  # each atom is met equally often
    cross, gram = KERNEL(grid, shifted), KERNEL(grid, grid)
    explained = np.einsum("ij,ij->j", cross, np.linalg.solve(gram, cross)) / KERNEL.sigma**2
    residual = np.sqrt(1 - explained)
    assert np.isclose(found.p99, residual.max(), rtol=1e-6)
    assert np.sort(residual)[6] <= found.median <= np.sort(residual)[8]
    assert found.median <= found.p90 <= found.p99


@pytest.mark.parametrize("dim", [2, 3])
def test_coverage__inside_fraction_agrees_with_a_triangulation(dim):
    rng = np.random.default_rng(0)
    grid, reward = rng.normal(size=(40, dim)), rng.normal(size=(200, dim))
    found = coverage(grid, reward, 0.7, KERNEL, n_pairs=3000)
    pairs = (reward[:, None] + 0.7 * grid[None]).reshape(-1, dim)
    exact = np.mean(Delaunay(grid).find_simplex(pairs) >= 0)
    assert 0.1 < exact < 0.9
    # 300 pairs are tried: three standard errors.
    assert abs(found.inside - exact) < 3 * np.sqrt(exact * (1 - exact) / 300)


def test_coverage__of_one_dimension():
    grid = np.linspace(-1, 1, 9)[:, None]
    assert coverage(grid, np.zeros((1, 1)), 0.9, KERNEL).inside == 1.0
    assert coverage(grid, np.full((1, 1), 2.0), 0.9, KERNEL).inside == 0.0


def test_coverage__degenerate_dimension_is_no_obstacle():
    rng = np.random.default_rng(0)
    grid = np.column_stack([rng.normal(size=40), np.full(40, 2.0)])
    within = np.column_stack([0.01 * rng.normal(size=20), np.full(20, 2.0 * (1 - 0.5))])
    found = coverage(grid, within, 0.5, KERNEL)
    assert found.inside == 1.0
    assert found.p90 < 0.2
    # Off the line on which the grid lies nothing is inside.
    assert coverage(grid, within + np.array([0, 0.1]), 0.5, KERNEL).inside == 0.0
