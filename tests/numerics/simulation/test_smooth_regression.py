"""Regressions in a metric of their own."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.numerics.simulation.metric_search import fit_smooth
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.numerics.simulation.smooth_regression import Resampling, relevance


def _data(function, dim, n=2_000, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, dim)) * np.linspace(0.5, 2, dim)
    responses = function(inputs)
    return inputs, responses + noise * rng.normal(size=responses.shape), np.arange(n) // 20 % 5


def test_fit_smooth__finds_the_mean_and_what_matters():
    inputs, responses, fold = _data(lambda x: np.sin(2 * x[:, [1]]) + x[:, [4]], dim=6)
    found = fit_smooth(inputs, responses, fold, seed=0)
    new, truth, _ = _data(lambda x: np.sin(2 * x[:, [1]]) + x[:, [4]], dim=6, noise=0.0, seed=1)
    assert np.sqrt(np.mean((found.regression(new) - truth) ** 2)) < 0.05
    # The nonlinear part depends on the second coordinate, which the metric finds.
    matters = np.diag(relevance(found.regression, inputs, responses, linear=False))
    assert matters.argmax() == 1
    assert matters[1] > 50 * np.delete(matters, 1).max()


def test_fit_smooth__residuals_have_the_variance_of_the_noise():
    inputs, responses, fold = _data(lambda x: np.cos(x[:, [0]]) * x[:, [1]], dim=2, noise=0.3)
    found = fit_smooth(inputs, responses, fold, seed=0)
    assert found.residuals.std() == pytest.approx(0.3, rel=0.05)
    assert found.score == pytest.approx(0.3**2 / responses.var(), rel=0.1)


def test_fit_smooth__is_exact_for_a_linear_function_beyond_the_data():
    inputs, responses, fold = _data(lambda x: x @ [[1.0, 2.0], [-1.0, 0.5]], dim=2, noise=1e-3)
    found = fit_smooth(inputs, responses, fold, seed=0).regression
    far = np.array([[8.0, -8.0], [-10.0, 5.0]])
    np.testing.assert_allclose(found(far), far @ [[1.0, 2.0], [-1.0, 0.5]], atol=0.05)


def test_fit_smooth__constant_responses_and_inputs():
    inputs, responses, fold = _data(lambda x: x[:, [0]], dim=2)
    inputs[:, 1], responses[:] = 3.0, 7.0
    found = fit_smooth(inputs, responses, fold, seed=0).regression
    np.testing.assert_allclose(found(inputs), 7.0, atol=1e-6)


def test_fit_smooth__finds_a_product_of_two_directions_among_many():
    directions = np.linalg.qr(np.random.default_rng(7).normal(size=(20, 20)))[0][:, :2]

    def function(x):
        return np.prod(x @ directions, axis=1, keepdims=True) + x[:, :1]

    inputs, responses, fold = _data(function, dim=20, n=1_000, noise=0.5)
    error = fit_smooth(inputs, responses, fold, seed=0).score * responses.var() / 0.5**2
    # Without the quadratic regression it is nearly four times the variance of the noise.
    assert error < 1.2


def test_gradients__are_derivatives():
    inputs, responses, fold = _data(lambda x: np.sin(x[:, [0]]) + 2 * x[:, [1]], dim=2, noise=0.0)
    found = fit_smooth(inputs, responses, fold, seed=0).regression
    at = inputs[:50]
    expected = np.stack([np.cos(at[:, 0]), np.full(50, 2.0)], axis=1) * found.metric.scale
    np.testing.assert_allclose(found.gradients(at, linear=True)[:, :, 0], expected, atol=0.05)


def test_resampled__is_the_literal_regression_on_the_rows_drawn():
    inputs, responses, fold = _data(lambda x: np.hstack([np.sin(2 * x[:, [1]]), x[:, [0]]]), dim=2, n=600)
    fitted = fit_smooth(inputs, responses, fold, seed=0).regression
    resampling = Resampling(np.arange(600) // 20 % 6, np.array([[1, 1, 1, 1, 1, 1], [0, 2, 1, 3, 0, 0]]))
    same, drawn = fitted.resampled(inputs, responses, resampling)
    np.testing.assert_allclose(same(inputs), fitted(inputs), atol=1e-7)
    rows = np.repeat(np.arange(600), resampling.counts[1][resampling.group])
    design, mean, scale = fitted.design(inputs[rows]), responses.mean(axis=0), responses.std(axis=0)
    for k in range(2):
        system = design.T @ design + fitted.penalty[k] * np.eye(design.shape[1])
        literal = np.linalg.solve(system, design.T @ ((responses[rows, k] - mean[k]) / scale[k]))
        expected = mean[k] + scale[k] * (fitted.design(inputs) @ literal)
        np.testing.assert_allclose(drawn(inputs)[:, k], expected, atol=1e-7)


def test_potential__is_the_regression_and_survives_its_arrays():
    states, returns, fold = _data(lambda x: np.tanh(x[:, [0]]) + x[:, [1]], dim=3)
    regression = fit_smooth(states, returns, fold, seed=0).regression
    potential = Potential.from_regression(regression)
    np.testing.assert_allclose(potential(states), regression(states), atol=1e-8)
    again = Potential.from_arrays(potential.to_arrays())
    np.testing.assert_array_equal(again(states), potential(states))


def test_potential__shapes_rewards():
    states, returns, fold = _data(lambda x: x[:, [0]] ** 2, dim=2)
    potential = Potential.from_regression(fit_smooth(states, returns, fold, seed=0).regression)
    terminal = np.array([False, True, False])
    reward, now, after = np.array([[1.0], [2.0], [3.0]]), states[:3], states[3:6]
    shaped = potential.shape(reward, now, after, terminal, 0.9)
    for i in range(3):
        ahead = 0.0 if terminal[i] else 0.9 * potential(after[i : i + 1])[0]
        np.testing.assert_allclose(shaped[i], reward[i] + ahead - potential(now[i : i + 1])[0])
