"""Automatic sizes: estimates against literal computations, growth that stops where they say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore
from kedrl_dask.numerics.design import sizes as sizing
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from tests.conftest import make_episodes

AUTO = dict.fromkeys(sizing.MOST, "auto")
FEW = {"n_blocks": 4, "n_conditioning": 60}
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(900, 2))
KERNEL = Matern(2.5, 1.0, 1.3)


def literal_residual(kernel, points, at):
    """Mean of min_c ‖k(x, ·) − Σ c_i k(p_i, ·)‖² / k(x, x), by solving for c."""
    gram = kernel(points, points) + 1e-10 * kernel.sigma**2 * np.eye(len(points))
    cross = kernel(points, at)
    explained = [c @ np.linalg.solve(gram, c) for c in cross.T]
    return np.mean(1 - np.array(explained) / kernel.sigma**2)


def test_residual_curve__agrees_with_projections_for_every_size():
    points, at, sizes = INPUTS[:40], INPUTS[40:90], [1, 3, 10, 39, 40]
    expected = [literal_residual(KERNEL, points[:size], at) for size in sizes]
    np.testing.assert_allclose(sizing.residual_curve(KERNEL, points, at, sizes), expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("estimates", "tolerance", "size", "reason"),
    [
        ([0.5, 0.2, 0.1, 0.05], 0.2, 20, "tolerance met"),
        ([0.5, 0.2, 0.1, 0.05], 0.9, 10, "tolerance met"),
        ([0.5, 0.2, 0.1, 0.05], 0.01, 80, "largest allowed"),
        ([0.5, 0.2, 0.199, 0.05], 0.1, 20, "no longer falling"),
        ([0.5, 0.6, 0.1, 0.05], 0.1, 10, "no longer falling"),
    ],
)
def test_grow__stops_where_the_estimate_says(estimates, tolerance, size, reason):
    growth = sizing.grow([10, 20, 40, 80], estimates, tolerance)
    assert (growth.size, growth.reason) == (size, reason)
    assert growth.to_dict()["estimates"] == estimates


def test_choose_landmarks__more_for_more_transitions_and_for_shorter_lengths():
    def size(kernel, n):
        return sizing.choose_landmarks("n_landmarks", kernel, INPUTS, n).size

    smooth = Matern(5.5, 2.0)
    assert size(smooth, 1_000) < size(smooth, 10_000_000)
    assert size(Matern(5.5, 4.0), 10_000) < size(smooth, 10_000)
    growth = sizing.choose_landmarks("n_basis", smooth, INPUTS, 10_000)
    assert growth.tolerance == pytest.approx(sizing.TOLERANCES["n_basis"] * 10_000 ** (-1 / 3))
    assert growth.sizes[-1] == 4 * 100  # √N
    estimates = dict(zip(growth.sizes, growth.estimates, strict=True))
    assert estimates[growth.size] <= growth.tolerance
    assert min(v for s, v in estimates.items() if s < growth.size) > growth.tolerance


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_choose_landmarks__tiny_samples(n):
    repeated = np.repeat(INPUTS[:n], 3, axis=0)
    growth = sizing.choose_landmarks("n_landmarks", KERNEL, repeated, 3 * n)
    assert 1 <= growth.size <= (n + 1) // 2
    assert np.isfinite(growth.estimates).all()


def test_choose_features__estimate_is_the_error_between_grid_and_shifted_points():
    grid, reward, kernel = RNG.normal(size=(1, 3)), np.full((5, 3), 0.4), Matern(5.5, 1.1, 0.85)
    growth = sizing.choose_features(kernel, grid, reward, 0.7, "qmc", 14_700)
    points = np.vstack([grid, 0.4 + 0.7 * grid])
    for size, estimate in zip(growth.sizes, growth.estimates, strict=True):
        phi = waves(points, frequencies(kernel, 3, size))
        exact = kernel(points, points) / kernel.sigma**2
        assert np.isclose(estimate, np.mean((phi @ phi.T / size - exact) ** 2), rtol=1e-10)


def test_choose_atoms__more_for_more_transitions():
    returns, reward = 2 * RNG.normal(size=(2_000, 2)), RNG.normal(size=(500, 2))
    kernel = Matern(5.5, 1.0)
    few, many = (
        sizing.choose_atoms(kernel, returns[:1_000], returns, reward, 0.7, n) for n in (1_000, 10**7)
    )
    assert few.size < many.size <= 400
    # No more than there are.
    assert sizing.choose_atoms(kernel, returns[:9], returns, reward, 0.7, 10**9).size <= 9


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("sizing") / "store"
    return TransitionStore.from_arrays(path, **make_episodes(n_episodes=30, length=9))


@pytest.mark.slow
def test_fit__automatic_sizes_are_used_recorded_and_planned_for(store, policy, tmp_path):
    model = KEDRL(0.6, centring="none", **AUTO, **FEW).fit(
        store, policy, progress="none", cache=tmp_path / "cache"
    )
    tuning, sizes = model.diagnostics_["tuning"], model.diagnostics_["sizes"]
    assert {"input_kernel", "ridge_gamma", "reward_trend", *AUTO} == set(tuning) - {"ridge_reward"}
    assert sizes["atoms"] == tuning["n_atoms"]["size"] == model.plan_.sizes.n_atoms
    assert sizes["features"] == tuning["n_features"]["size"] == model.plan_.sizes.n_features
    # Points that the others explain are left out.
    assert sizes["landmarks"] <= tuning["n_landmarks"]["size"] == model.plan_.sizes.n_landmarks
    assert len(model.basis_) <= tuning["n_basis"]["size"] == model.plan_.sizes.n_basis
    again = KEDRL(0.6, centring="none", **AUTO, **FEW).fit(
        store, policy, progress="none", cache=tmp_path / "cache"
    )
    np.testing.assert_array_equal(again.coefficients_, model.coefficients_)
    given = {name: tuning[name]["size"] for name in AUTO}
    same = KEDRL(0.6, centring="none", **given, **FEW).fit(store, policy, progress="none")
    np.testing.assert_array_equal(same.coefficients_, model.coefficients_)
    assert not set(AUTO) & set(same.diagnostics_["tuning"])


def test_plan__automatic_sizes_are_planned_at_their_largest(store):
    sizes = KEDRL(0.6, centring="none", **AUTO).plan(store, calibrate=False).sizes
    assert (sizes.n_atoms, sizes.n_features) == (400, 2_048)
    assert (sizes.n_basis, sizes.n_landmarks) == (240, 240)  # there are no more transitions


def test_fit__given_grid_leaves_no_atoms_to_choose(store, policy):
    grid = RNG.normal(size=(15, 2))
    sizes = {"n_atoms": "auto", "n_basis": 10, "n_landmarks": 20, "n_features": 16}
    model = KEDRL(0.6, centring="none", grid=grid, input_kernel=Matern(2.5, 1.5), **sizes, **FEW)
    model.fit(store, policy, progress="none")
    assert "n_atoms" not in model.diagnostics_["tuning"]
    np.testing.assert_array_equal(model.grid_, grid)


def test_fit__bad_size(store, policy):
    for name, value in product(sizing.MOST, ["large", 0, 2.5, True]):
        with pytest.raises(ValueError, match=f"{name} must be 'auto' or an integer ≥ 1, got {value!r}"):
            KEDRL(0.6, centring="none", **{name: value}).fit(store, policy, progress="none")
