"""Automatic settings: cross-validation from block sums, the scale of the input kernel."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.cross_validation import RIDGES, BlockSums, cross_validate_ridge
from kedrl_dask.numerics.regression.input_kernel import (
    median_kernel,
    refine_lengths,
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


def tune(inputs, reward, next_state=None, episode=EPISODE, **options):
    next_state = reward if next_state is None else next_state
    options = {"n_landmarks": 80, "length_scales": LENGTH_SCALES, "most_trials": 0} | options
    return tune_input_kernel(inputs, reward, next_state, episode, **options)


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


def left_out_errors(kernel, inputs, targets, fold, ridges):
    """Kernel ridge regression on the other folds, with dense kernel matrices; error by fold and ridge."""
    errors = np.zeros((fold.max() + 1, len(ridges)))
    for f in range(fold.max() + 1):
        train, held = fold != f, fold == f
        gram, cross = kernel(inputs[train], inputs[train]), kernel(inputs[held], inputs[train])
        for i, ridge in enumerate(ridges):
            weights = np.linalg.solve(gram + train.sum() * ridge * np.eye(train.sum()), targets[train])
            errors[f, i] = np.sum((targets[held] - cross @ weights) ** 2) / len(inputs)
    return errors


def test_tune_input_kernel__per_coordinate_errors_are_those_of_dense_refits():
    """With every input a landmark, each trial's error, gain and noise come from dense kernel matrices."""
    rng = np.random.default_rng(3)
    inputs, episode = rng.normal(size=(60, 2)) * [1, 10], np.repeat(np.arange(12), 5)
    reward = np.sin(3 * inputs[:, :1]) + 0.1 * rng.normal(size=(60, 1))
    # Short lengths: the Gram matrix is far from singular, so that no landmark is left out.
    tuning = tune_input_kernel(
        inputs, reward, reward, episode, n_landmarks=60, nu=1.5, length_scales=(0.3, 0.6), most_trials=6
    )
    targets, fold = regression_targets(reward, reward), episode % 5
    spread = inputs.std(axis=0)

    def score(lengths):
        return left_out_errors(Matern(1.5, tuple(lengths * spread)), inputs, targets, fold, RIDGES)

    for length, errors in zip(tuning.length_scales, tuning.errors, strict=True):
        np.testing.assert_allclose(errors, score(np.full(2, length)).sum(axis=0), rtol=1e-8)
    lengths = np.full(2, tuning.length_scales[tuning.errors.min(axis=1).argmin()])
    assert len(tuning.trials) == 6
    for trial in tuning.trials:
        tried = lengths.copy()
        tried[trial.coordinate] = trial.length_scale
        before, after = score(lengths), score(tried)
        gains = before[:, before.sum(axis=0).argmin()] - after[:, after.sum(axis=0).argmin()]
        assert np.isclose(trial.error, after.sum(axis=0).min(), rtol=1e-8)
        assert np.isclose(trial.gain, gains.sum(), rtol=1e-6)
        assert np.isclose(trial.noise, np.sqrt(5 * gains.var(ddof=1)), rtol=1e-6)
        assert trial.accepted == (trial.gain > trial.noise)
        lengths = tried if trial.accepted else lengths
    np.testing.assert_allclose(tuning.kernel.length_scale, lengths * spread, rtol=1e-12)


def test_tune_input_kernel__coordinate_of_noise_gets_a_long_length():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 3)) * [1, 1, 50]  # the last one has no say in the reward
    reward = np.sin(3 * inputs[:, :1]) + inputs[:, 1:2] + 0.1 * rng.normal(size=(400, 1))
    tuning = tune(inputs, reward, most_trials=30)
    lengths = np.array(tuning.kernel.length_scale) / inputs.std(axis=0)
    assert lengths[2] >= 4 * lengths[0]
    assert min(trial.error for trial in tuning.trials if trial.accepted) < 0.9 * tuning.errors.min()


def test_tune_input_kernel__constant_coordinate_is_not_tried():
    inputs, reward = system(wiggly)
    tuning = tune(np.column_stack([np.full(400, 7.0), inputs]), reward, most_trials=8)
    assert {trial.coordinate for trial in tuning.trials} == {1, 2}


def test_refine_lengths__moves_while_the_gain_exceeds_its_noise():
    """Error Σ(log2 length − best)² in two equal folds, without noise: it stops at the best powers of two."""
    best, calls = np.array([3.0, -2.0, 0.0]), []

    def score(lengths):
        calls.append(lengths)
        error = np.sum((np.log2(lengths) - best) ** 2) / 2
        return np.array([[error, 99.0], [error, 99.0]])

    start = np.ones(3)
    lengths, trials = refine_lengths(score, start, score(start), range(3), 100)
    np.testing.assert_array_equal(lengths, [8, 0.25, 1])
    assert len(calls) == 1 + len(trials)
    assert [t.length_scale for t in trials if t.coordinate == 0] == [2, 4, 8, 16]
    assert [t.length_scale for t in trials if t.coordinate == 2] == [2, 0.5]
    np.testing.assert_array_equal(start, 1)
    for most in (0, 1, 4):
        assert len(refine_lengths(score, start, score(start), range(3), most)[1]) == most


def test_refine_lengths__gain_within_its_noise_is_refused():
    def score(lengths):
        # Doubling gains 1 in one fold and loses 0.9 in the other.
        step = np.log2(lengths[0])
        return np.array([[5 - step], [5 + 0.9 * step]])

    lengths, trials = refine_lengths(score, np.ones(1), score(np.ones(1)), [0], 10)
    assert lengths == [1]
    assert [trial.accepted for trial in trials] == [False, False]
    assert np.isclose(trials[0].gain, 0.1)
    assert np.isclose(trials[0].noise, 1.9)


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
