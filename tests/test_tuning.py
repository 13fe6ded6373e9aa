"""Automatic settings: cross-validation from block sums, the scale of the input kernel."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.kernels import Matern
from kedrl_dask.tuning import (
    RIDGES,
    BlockSums,
    cross_validate_ridge,
    median_kernel,
    regression_targets,
    tune_input_kernel,
)

EPISODE = np.repeat(np.arange(40), 10)
LENGTH_SCALES = (0.4, 0.8, 1.5, 3.0, 6.0)


def regression(n=90, r=6, k=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, r)) * np.array([3.0, 2.0, 1.0, 0.3, 0.1, 0.01])[:r]
    return features, features @ rng.normal(size=(r, k)) + 0.5 * rng.normal(size=(n, k))


def refits(features, targets, block, n_folds, ridges):
    """Mean squared error of k-fold refits; the folds take the blocks in turn."""
    fold = block % n_folds
    errors = []
    for ridge in ridges:
        total = 0.0
        for f in np.unique(fold):
            x, y = features[fold != f], targets[fold != f]
            beta = np.linalg.solve(x.T @ x + len(x) * ridge * np.eye(x.shape[1]), x.T @ y)
            total += np.sum((targets[fold == f] - features[fold == f] @ beta) ** 2)
        errors.append(total / len(features))
    return np.array(errors)


@pytest.mark.parametrize(("n_blocks", "n_folds"), [(5, 5), (13, 5), (13, 4), (3, 5), (2, 2)])
def test_cross_validate_ridge__agrees_with_refits(n_blocks, n_folds):
    features, targets = regression()
    block = np.random.default_rng(1).integers(n_blocks, size=len(features))  # blocks of unequal size
    sums = BlockSums.gather(features, targets, block, n_blocks)
    ridges = (1e-8, 1e-4, 1e-2, 1.0, 100.0)
    expected = refits(features, targets, block, min(n_folds, n_blocks), ridges)
    np.testing.assert_allclose(cross_validate_ridge(sums, ridges, n_folds), expected, rtol=1e-10)


def test_cross_validate_ridge__more_features_than_rows_in_a_fold():
    features, targets = regression(n=8, r=6)
    block = np.arange(8) // 2
    sums = BlockSums.gather(features, targets, block, 4)
    np.testing.assert_allclose(
        cross_validate_ridge(sums, (1e-3, 1.0), 4),
        refits(features, targets, block, 4, (1e-3, 1.0)),
        rtol=1e-8,
    )


def test_cross_validate_ridge__pure_noise_prefers_the_largest():
    rng = np.random.default_rng(0)
    sums = BlockSums.gather(rng.normal(size=(60, 20)), rng.normal(size=(60, 2)), np.arange(60) % 5, 5)
    assert np.argmin(cross_validate_ridge(sums)) == len(RIDGES) - 1


def test_block_sums__merge_deals_blocks_in_turn():
    features, targets = regression()
    block = np.arange(len(features)) % 7
    merged = BlockSums.gather(features, targets, block, 7).merge(3)
    expected = BlockSums.gather(features, targets, block % 3, 3)
    for name in ("gram", "response", "square", "count"):
        np.testing.assert_allclose(getattr(merged, name), getattr(expected, name), rtol=1e-12)
    assert merged.count.sum() == len(features)


def system(target, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(400, 2))
    reward = target(inputs) + noise * rng.normal(size=(400, 1))
    return inputs, reward


def linear(x):
    return x @ np.array([[1.0], [0.5]])


def wiggly(x):
    return np.sin(5 * x[:, :1])


def tune(inputs, reward, next_state=None, episode=EPISODE):
    next_state = reward if next_state is None else next_state
    return tune_input_kernel(inputs, reward, next_state, episode, n_landmarks=80, length_scales=LENGTH_SCALES)


def test_tune_input_kernel__smooth_target_gets_the_longer_length():
    smooth, rough = tune(*system(linear)), tune(*system(wiggly))
    assert smooth.kernel.length_scale[0] > 1.5 * rough.kernel.length_scale[0]
    assert smooth.errors.min() < 1.0 < 2.0 < rough.errors[-1].min() + 0.1
    for tuning in (smooth, rough):
        best = LENGTH_SCALES[np.unravel_index(tuning.errors.argmin(), tuning.errors.shape)[0]]
        assert tuning.errors.shape == (len(LENGTH_SCALES), len(RIDGES))
        np.testing.assert_allclose(tuning.kernel.length_scale, best * system(linear)[0].std(axis=0))


def test_tune_input_kernel__unit_of_a_column_only_scales_its_length():
    inputs, reward = system(linear)
    plain = tune(inputs, reward, inputs)
    rescaled = tune(inputs * [1, 1000], reward, inputs * [1, 1000])
    np.testing.assert_allclose(rescaled.errors, plain.errors, rtol=1e-5)
    np.testing.assert_allclose(
        rescaled.kernel.length_scale, np.array(plain.kernel.length_scale) * [1, 1000], rtol=1e-10
    )


def test_tune_input_kernel__constant_columns_are_harmless():
    inputs, reward = system(linear)
    plain = tune(inputs, reward)
    constant = tune(
        np.column_stack([inputs, np.full(400, 7.0)]),
        np.column_stack([reward, np.zeros(400)]),
        np.column_stack([reward, np.full(400, 1e6)]),
    )
    assert np.isfinite(constant.errors).all()
    assert np.isfinite(constant.kernel.length_scale).all()
    np.testing.assert_allclose(constant.kernel.length_scale[:2], plain.kernel.length_scale, rtol=1e-10)


def test_tune_input_kernel__whole_episodes_are_left_out():
    """Rows that repeat within an episode would betray each other if folds cut through episodes."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(40, 2)), 10, axis=0) + 1e-3 * rng.normal(size=(400, 2))
    reward = np.repeat(rng.normal(size=(40, 1)), 10, axis=0)
    by_episode, by_row = tune(inputs, reward), tune(inputs, reward, episode=np.arange(400))
    assert by_row.errors.min() < 0.5
    assert by_episode.errors.min() > 1.5


@pytest.mark.parametrize("n_episodes", [2, 3])
def test_tune_input_kernel__few_episodes_suffice(n_episodes):
    inputs, reward = system(linear)
    assert np.isfinite(tune(inputs, reward, episode=np.arange(400) % n_episodes).errors).all()


def test_tune_input_kernel__one_episode_is_refused():
    inputs, reward = system(linear)
    with pytest.raises(ValueError, match=r"input_kernel='auto' needs at least two episodes"):
        tune(inputs, reward, episode=np.zeros(400, int))


def test_regression_targets__each_group_has_unit_variance():
    rng = np.random.default_rng(0)
    targets = regression_targets(100 * rng.normal(size=(300, 2)), 1e-3 * rng.normal(size=(300, 4)), 32)
    assert targets.shape == (300, 128)
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-12)
    for group in np.split(targets, 2, axis=1):
        assert np.isclose((group**2).sum(axis=1).mean(), 1.0, rtol=1e-12)


def test_regression_targets__constant_reward_carries_nothing():
    targets = regression_targets(np.full((50, 1), 3.0), np.random.default_rng(0).normal(size=(50, 2)), 16)
    assert np.isfinite(targets).all()
    np.testing.assert_allclose(targets[:, :32], 0, atol=1e-12)


def test_median_kernel__lengths_follow_the_units():
    points = np.random.default_rng(0).normal(size=(400, 3))
    kernel = median_kernel(points * [1, 1000, 0.01], nu=2.5)
    assert kernel.nu == 2.5
    np.testing.assert_allclose(
        kernel.length_scale, np.array(median_kernel(points).length_scale) * [1, 1000, 0.01], rtol=1e-10
    )
    # The typical pair is one length apart.
    scaled = kernel.scale(points * [1, 1000, 0.01])
    distances = np.linalg.norm(scaled[:, None] - scaled[None], axis=2)[np.triu_indices(400, 1)]
    assert np.isclose(np.median(distances), 1.0, rtol=0.03)


@pytest.mark.parametrize("points", [np.full((20, 2), 5.0), np.array([[1.0, 2.0]])])
def test_median_kernel__sample_without_spread_gets_unit_lengths(points):
    assert median_kernel(points) == Matern(5.5, (1.0, 1.0), 1.0)
