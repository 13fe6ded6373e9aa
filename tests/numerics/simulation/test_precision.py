"""Standard errors of simulated returns, from models of replicates."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import policies
from kedrl_dask.numerics.simulation.precision import MOST, precision
from kedrl_dask.numerics.simulation.smooth_regression import Resampling
from kedrl_dask.numerics.simulation.transition_model import TransitionModel

POLICY = policies.Gaussian(weights=[[0.0]], scale=1.0)
DISCOUNT = 0.8


def _data(n, seed, ends=0.0):
    """Rewards with a mean of their own and unit noise, which nothing tells: the simplest case."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 2))
    terminal = rng.random(n) < ends
    return inputs, 1 + rng.normal(size=(n, 1)), rng.normal(size=(n, 1)), terminal, np.arange(n) // 20


def _fit(data, n_replicates):
    return TransitionModel.fit_replicates(*data, Resampling.drawn(data[-1], n_replicates, 0))


def _found(n, seed=0, ends=0.0):
    models = _fit(_data(n, seed, ends), 12)
    return models, precision(models, POLICY, DISCOUNT, np.zeros((4, 1)), np.zeros((4, 1)), n, 0)


@pytest.mark.slow
def test_precision__is_the_standard_error_of_independent_rewards():
    """The mean return is r̄/(1 − γ), with a standard error of 1/(√N(1 − γ)) and a spread of 1/√(1 − γ²)."""
    for n in (600, 4_000):
        _, found = _found(n)
        expected = np.sqrt(1 - DISCOUNT**2) / (np.sqrt(n) * (1 - DISCOUNT))
        # Features that nothing needs add a little to the error of a mean.
        assert 0.5 * expected < found.mean[0] < 3 * expected
        assert found.mean_noise[0] < 2 * found.mean[0]


def test_precision__no_difference_is_no_error():
    models, _ = _found(600)
    found = precision([models[0]] * 3, POLICY, DISCOUNT, np.zeros((2, 1)), np.zeros((2, 1)), 600, 0)
    assert found.mean == found.tail == (0.0,)
    assert (found.n_replicates, found.n_inputs) == (2, 2)


def test_precision__more_returns_where_episodes_end_early():
    assert _found(1_000)[1].n_returns < _found(1_000, ends=0.4)[1].n_returns <= MOST


def test_precision__a_return_that_does_not_vary():
    inputs, reward, after, terminal, episode = _data(600, 0)
    models = _fit((inputs, 0 * reward, after, terminal, episode), 2)
    found = precision(models, POLICY, DISCOUNT, np.zeros((2, 1)), np.zeros((2, 1)), 600, 0)
    assert found.mean == (0.0,)
