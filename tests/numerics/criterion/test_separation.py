"""The test of separation, and what the right construction gains."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kedrl_dask import KEDRL
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.numerics.criterion.separation_test import (
    SeparatedParts,
    Separation,
    SeparationWarning,
    separation,
)
from kedrl_dask.numerics.kernels.matern import Matern

PAIR = simulation.PAIRS["uniform-gaussian"]
SIZES = {"n_atoms": 60, "n_basis": 80, "n_landmarks": 150, "n_features": 64, "n_conditioning": 1_500}
KERNELS = {"input_kernel": Matern(5.5, 4.5), "return_kernel": PAIR.settings.kernel}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Fits of both constructions on a system, and their mean RMSE at the paper's points."""
    made = {}

    def get(system, construction, n=8_000):
        if (system, construction) not in made:
            path = tmp_path_factory.mktemp("systems") / "store"
            store = simulation.write(path, PAIR, n, system=simulation.SYSTEMS[system])
            model = KEDRL(simulation.DISCOUNT, construction=construction, centring="none", **KERNELS, **SIZES)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", SeparationWarning)
                model.fit(store, PAIR.target, executor=ThreadExecutor(2), progress="none")
            is_warned = any(w.category is SeparationWarning for w in caught)
            assert is_warned == ((system, construction) == ("reward-in-state", "separated"))
            made[system, construction] = model, rmse(model, simulation.SYSTEMS[system])
        return made[system, construction]

    return get


def rmse(model, system):
    points, kernel = simulation.TEST_POINTS_UNIFORM_GAUSSIAN, PAIR.settings.kernel
    if isinstance(system, simulation.LinearGaussianSystem):
        law = truth.return_law(*points, PAIR.target, system=system)
        at = truth.evaluation_grid(law)
        expected = law.embed(at, kernel)
    else:
        returns = truth.monte_carlo_returns(*points, PAIR.target, n_trajectories=4_000, system=system)
        at = truth.evaluation_grid(returns)
        expected = truth.monte_carlo_embedding(returns, at, kernel).mean
    return truth.embedding_errors(model.embed(*points, at=at), expected)["rmse"].mean()


@pytest.mark.slow
def test_reward_in_state__paired_error_is_at_most_half(fitted):
    separated, paired = fitted("reward-in-state", "separated"), fitted("reward-in-state", "paired")
    assert paired[1] <= 0.5 * separated[1]
    assert paired[1] < 0.015
    for model, _ in (separated, paired):
        found = model.diagnostics_["separation"]
        assert found["recommends"] == "paired"
        assert found["p_value"] <= 0.01
        assert found["difference"] > found["noise"]


@pytest.mark.slow
def test_independent_noise__constructions_agree_within_sampling_error(fitted):
    separated, paired = fitted("paper", "separated"), fitted("paper", "paired")
    assert max(separated[1], paired[1]) < 0.015
    at = paired[0].grid_
    values = [
        model.embed(*simulation.TEST_POINTS_UNIFORM_GAUSSIAN, at=at) for model, _ in (separated, paired)
    ]
    assert np.sqrt(np.mean((values[0] - values[1]) ** 2)) < 0.015
    for model, _ in (separated, paired):
        assert model.diagnostics_["separation"]["recommends"] == "separated"


@pytest.mark.slow
def test_termination__every_episode_ends(fitted):
    """Episodic data, in both constructions, against Monte Carlo returns."""
    for construction in ("separated", "paired"):
        model, error = fitted("terminating", construction)
        assert model.diagnostics_["sizes"]["terminal"] > 500
        assert error < 0.02


def blocks_of(covariance, n_blocks=20, n=200, seed=0):
    """Blocks with one feature, one frequency, and noises of reward and continuation with this covariance."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky([[1.0, covariance], [covariance, 1.0]])
    parts = []
    for _ in range(n_blocks):
        noise = root @ rng.standard_normal((2, n))
        x = rng.uniform(0.5, 1.5, (n, 1))
        zero = np.zeros(n)
        parts.append(
            SeparatedParts(x, np.column_stack([x[:, 0] + noise[0], zero]), np.column_stack([noise[1], zero]))
        )
    return parts


def test_separation__estimates_the_covariance():
    """Ê[(e − ρ)(c − c̄) | x] of constant covariance 0.3, regressed on a feature through the origin."""
    held_out = np.full((5, 1), 1.0)
    found = separation(blocks_of(0.3), held_out, 1e-9, 1.0)
    x = np.concatenate([part.features for part in blocks_of(0.3)])
    expected = 0.3 * x.sum() / (x**2).sum()
    assert found.difference == pytest.approx(expected, rel=0.1)
    assert found.p_value == pytest.approx(0.001)


def test_separation__p_values_are_uniform_without_covariance():
    found = [separation(blocks_of(0.0, n=50, seed=seed), np.ones((1, 1)), 1e-9, 1.0) for seed in range(200)]
    p_values = np.array([f.p_value for f in found])
    for level in (0.1, 0.5, 0.9):
        assert abs(np.mean(p_values <= level) - level) < 0.12


def test_separation__few_blocks_do_not_tell():
    found = separation(blocks_of(0.3, n_blocks=5), np.ones((1, 1)), 1e-9, 1.0)
    assert found.p_value is None
    assert found.recommends(0.001) == "separated"


def test_recommends__a_difference_far_below_the_residual_is_not_worth_it():
    found = Separation(difference=0.01, noise=0.001, p_value=0.001)
    assert found.recommends(0.1) == "separated"
    assert found.recommends(0.01) == "paired"
