"""The input kernel along the directions that matter for simulated returns."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.simulation import relevance
from kedrl_dask.numerics.simulation.metric_search import fit_smooth
from kedrl_dask.numerics.simulation.relevance import LONGEST, MULTIPLES, choose_relevance, relevant_lengths
from kedrl_dask.numerics.simulation.smooth_regression import Metric

ALIKE = Matern(length_scale=4.0)


def returns_along(direction, n=4_000, seed=0):
    """Inputs of eight dimensions, and returns whose mean bends along one direction."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 8))
    return inputs, np.sin(2 * inputs @ direction)[:, None] + 0.5 * rng.normal(size=(n, 1))


def found(inputs, returns):
    regression = fit_smooth(inputs, returns, np.arange(len(inputs)) % 5, 0).regression
    return relevant_lengths(regression.metric)


def test_kernel__is_that_of_the_metric_where_its_directions_are_complete():
    rng = np.random.default_rng(0)
    metric = Metric(rng.normal(size=3), np.array([1.0, 2.0, 0.5]), rng.normal(size=(3, 3)), "test")
    kernel, x = Matern(length_scale=relevant_lengths(metric)), rng.normal(size=(20, 3))
    np.testing.assert_allclose(kernel(x, x), Matern(length_scale=1.0)(metric(x), metric(x)), atol=1e-10)


def test_kernel__is_long_along_all_other_directions():
    metric = Metric(np.zeros(3), np.ones(3), np.array([[0.5], [0.5], [0.0]]), "test")
    kernel = Matern(length_scale=relevant_lengths(metric))
    along, across = np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(np.abs(kernel.scale(along)).sum(), 1.0)
    shortest = np.sqrt(2.0)
    expected = np.array([np.sqrt(2.0), 1.0]) / (LONGEST * shortest)
    np.testing.assert_allclose(np.linalg.norm(kernel.scale(across), axis=1), expected)


@pytest.mark.slow
def test_choice__one_of_many_directions_is_found():
    direction = np.array([1.0, -1.0, 1.0, 1.0, 0, 0, 0, 0]) / 2
    inputs, returns = returns_along(direction)
    kernel, trial = choose_relevance(ALIKE, found(inputs, returns), inputs, returns, 0)
    assert trial.accepted
    assert trial.gain > 3 * trial.noise
    assert min(trial.errors) == pytest.approx(trial.error - trial.gain)
    along = np.linalg.norm(kernel.scale(direction[None]))
    across = np.linalg.norm(kernel.scale(np.eye(8)[4:]), axis=1)
    assert across.max() < along / 5


@pytest.mark.slow
def test_choice__coordinates_stay_where_directions_say_no_more():
    inputs, returns = returns_along(np.eye(8)[0])
    lengths = np.full(8, 30.0)
    lengths[0] = 1.0
    kernel, trial = choose_relevance(Matern(length_scale=lengths), found(inputs, returns), inputs, returns, 0)
    assert not trial.accepted
    assert not kernel.has_directions


@pytest.mark.slow
def test_choice__returns_that_depend_on_nothing_turn_no_kernel():
    rng = np.random.default_rng(0)
    inputs, returns = rng.normal(size=(4_000, 8)), rng.normal(size=(4_000, 1))
    assert not choose_relevance(ALIKE, found(inputs, returns), inputs, returns, 0)[1].accepted


def test_choice__kernels_that_predict_worse_than_nothing_turn_no_kernel(monkeypatch):
    """Errors above the variance of the returns leave nothing that a longer length could lose."""
    worse = iter([1.01, *(1.03 + 0.01 * i for i in range(len(MULTIPLES)))])
    monkeypatch.setattr(relevance, "cross_validate_folds", lambda sums: np.full((5, 1), next(worse) / 5))
    rng = np.random.default_rng(0)
    kernel, trial = choose_relevance(
        ALIKE, np.eye(2), rng.normal(size=(300, 2)), rng.normal(size=(300, 1)), 0
    )
    assert (kernel, trial.accepted, trial.multiple) == (ALIKE, False, MULTIPLES[0])
