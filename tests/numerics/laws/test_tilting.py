"""Tilted laws: certified minimisers of the literal criterion, between the simulation and the embedding."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kedrl_dask import Matern
from kedrl_dask.numerics.laws import tilting
from kedrl_dask.numerics.laws.simplex import SimplexProblem, minimise
from kedrl_dask.numerics.laws.tilting import tilt
from tests import dense

KERNEL = Matern(2.5, (1.1, 0.8), 0.9)


def problem(n=3, k=15, m=6, seed=0, spread=1.0):
    """Particles, signed coefficients of mass one, a grid, and its shift at each input."""
    rng = np.random.default_rng(seed)
    omega = rng.dirichlet(np.ones(m), size=n) + 0.1 * rng.standard_normal((n, m))
    omega /= omega.sum(axis=1, keepdims=True)
    return spread * rng.standard_normal((n, k, 2)), omega, rng.standard_normal((m, 2)), rng.random((n, 2))


@pytest.mark.parametrize("divergence", [1e-4, 1e-2, 1.0, 10.0])
def test_tilt__minimum_of_the_literal_criterion(divergence):
    z, omega, grid, shift = problem()
    found = tilt(z, omega, grid, KERNEL, divergence * KERNEL.sigma**2, shift)
    assert found.converged.all()
    y = grid + shift[:, None]
    for i in range(len(z)):
        fixed = z[i], omega[i], y[i], KERNEL, divergence * KERNEL.sigma**2
        value = dense.tilting_objective(found.weights[i], *fixed)
        # The interior-point method of recovered laws is another way to the same minimum.
        gram, target = dense.gram(KERNEL, z[i], z[i]), omega[i] @ dense.gram(KERNEL, y[i], z[i])
        other = minimise(
            SimplexProblem(2 * gram, 2 * target[None], fixed[-1], np.full((1, len(gram)), 1 / len(gram))),
            1e-10,
        )
        assert value == pytest.approx(dense.tilting_objective(other.weights[0], *fixed), abs=3e-10)
        assert value - found.gap[i] <= dense.tilting_objective(other.weights[0], *fixed) + 1e-14
        assert found.objective[i] == pytest.approx(value, abs=1e-9)
        norm = dense.mmd(KERNEL, 0 * omega[i], y[i], omega[i], y[i])
        residual = dense.mmd(KERNEL, found.weights[i], z[i], omega[i], y[i])
        assert found.residual[i] == pytest.approx(residual, abs=1e-7)
        assert found.relative_residual[i] == pytest.approx(residual / norm, abs=1e-7)
        assert found.simulated_residual[i] == pytest.approx(
            dense.mmd(KERNEL, np.full(15, 1 / 15), z[i], omega[i], y[i]) / norm, abs=1e-7
        )


def test_tilt__gap_bounds_the_distance_from_the_minimum_of_unfinished_weights(monkeypatch):
    z, omega, grid, _ = problem(seed=1)
    best = tilt(z, omega, grid, KERNEL, 1e-3)
    monkeypatch.setattr(tilting, "MAX_STEPS", 1)
    rough = tilt(z, omega, grid, KERNEL, 1e-3)
    assert not rough.converged.any()
    for i in range(len(z)):
        values = [
            dense.tilting_objective(law.weights[i], z[i], omega[i], grid, KERNEL, 1e-3)
            for law in (rough, best)
        ]
        assert 1e-12 < values[0] - values[1] <= rough.gap[i]


def test_tilt__between_the_simulation_and_the_embedding():
    z, omega, grid, _ = problem(n=2, k=60, m=8)
    omega[0] = np.full(8, 1 / 8)
    z[0, :8] = grid  # the first embedding is that of eight of the particles
    laws = [tilt(z, omega, grid, KERNEL, value) for value in (1e6, 1.0, 1e-2, 1e-4, 1e-8)]
    np.testing.assert_allclose(laws[0].weights, 1 / 60, rtol=1e-5)
    np.testing.assert_allclose(laws[0].relative_residual, laws[0].simulated_residual, rtol=1e-5)
    assert laws[0].effective_sample_size == pytest.approx(1.0)
    assert laws[-1].residual[0] < 1e-3
    for looser, closer in pairwise(laws):
        assert (closer.residual < looser.residual).all()
        assert (closer.effective_sample_size < looser.effective_sample_size).all()
    np.testing.assert_allclose(np.concatenate([law.weights.sum(axis=1) for law in laws]), 1.0, rtol=1e-12)


def test_tilt__inputs_by_themselves_or_together():
    z, omega, grid, shift = problem()
    together = tilt(z, omega, grid, KERNEL, 0.1, shift)
    for i in range(3):
        alone = tilt(z[i : i + 1], omega[i : i + 1], grid, KERNEL, 0.1, shift[i : i + 1])
        np.testing.assert_array_equal(alone.weights[0], together.weights[i])
        assert alone.gap[0] == together.gap[i]
        assert alone.residual[0] == pytest.approx(together.residual[i], abs=1e-12)


def test_tilt__units_of_the_kernel_do_not_matter():
    z, omega, grid, _ = problem()
    small, large = (
        tilt(z, omega, grid, Matern(2.5, (1.1, 0.8), sigma), 1e-2 * sigma**2) for sigma in (1e-3, 1e3)
    )
    np.testing.assert_allclose(small.weights, large.weights, atol=1e-6)
    np.testing.assert_allclose(small.relative_residual, large.relative_residual, atol=1e-6)


def test_tilted__second_specification_and_densities():
    z, omega, grid, shift = problem(k=200)
    law = tilt(z, omega, grid, KERNEL, 1e-2, shift)
    np.testing.assert_array_equal(law.sensitivity.weights, tilt(z, omega, grid, KERNEL, 0.1, shift).weights)
    assert set(law.flags) == {"not_converged", "residual", "sensitive"}
    with pytest.raises(ValueError, match="have the setting divergence, got bandwidth"):
        law.under(bandwidth=0.1)
    # The density is smoothed, and nothing else is.
    assert (law.bandwidth == 0).all()
    x = np.linspace(-8, 8, 2_001)
    for row, density in enumerate(law.density(x, 1)):
        mean = np.trapezoid(density * x, x)
        assert np.trapezoid(density, x) == pytest.approx(1.0, abs=1e-6)
        assert mean == pytest.approx(law.mean()[row, 1], abs=1e-6)
    np.testing.assert_allclose(law.mean(), np.einsum("nk,nkd->nd", law.weights, z))
    h = law.drawn_bandwidth
    np.testing.assert_allclose(law.density_bandwidth, h.min(axis=0))
    assert (h > 0.05).all()
    assert (h < 1).all()


def test_tilted__a_constant_has_no_density():
    _, omega, grid, _ = problem()
    law = tilt(np.zeros((3, 20, 2)), omega, grid, KERNEL, 1.0)
    assert (law.drawn_bandwidth == 0).all()
    with pytest.raises(ValueError, match="has no density"):
        law.density([0.0], 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("equal particles", lambda z, omega, y, _: (np.zeros_like(z), omega, y)),
        ("repeated particles", lambda z, omega, y, _: (z.round(), omega, y)),
        ("an embedding far away", lambda z, omega, y, _: (z, omega, y + 50.0)),
        ("an embedding of zero", lambda z, omega, y, _: (z, 0 * omega, y)),
        ("large coefficients", lambda z, omega, y, _: (z, 30 * omega, y)),
        ("one particle", lambda z, omega, y, _: (z[:, :1], omega, y)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("divergence", [1e-4, 1e-1, 10.0])
def test_tilt__converges_in_degenerate_problems(name, change, divergence):
    found = tilt(*change(*problem(k=80)), KERNEL, divergence * KERNEL.sigma**2)
    assert found.converged.all(), name
    assert np.isfinite(found.weights).all()
    assert found.weights.sum(axis=1) == pytest.approx(1.0)
    if name in ("equal particles", "one particle"):
        np.testing.assert_allclose(found.weights, 1 / found.weights.shape[1])


def test_tilt__repr_says_how_far_it_went():
    assert repr(tilt(*problem()[:3], KERNEL, 1e-2)).startswith(
        "Tilted: 3 laws of 2 coordinates on 15 simulated returns; effective sample size from "
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"particles": np.zeros((3, 2))}, r"particles have shape \(3, 2\), expected \(n, K, d\)"),
        ({"particles": np.full((3, 4, 2), np.nan)}, "particles"),
        ({"coefficients": np.zeros((2, 6))}, r"coefficients have shape \(2, 6\), expected \(3, m\)"),
        ({"grid": np.zeros((5, 2))}, r"grid has shape \(5, 2\), expected \(6, 2\)"),
        ({"shift": np.zeros((2, 2))}, r"shift has shape \(2, 2\), expected \(3, 2\)"),
        ({"divergence": 0.0}, "divergence must be a positive number"),
    ],
)
def test_tilt__refuses_what_defines_no_problem(change, message):
    z, omega, grid, _ = problem()
    given = {"particles": z, "coefficients": omega, "grid": grid, "divergence": 1.0} | change
    with pytest.raises(ValueError, match=message):
        tilt(kernel=KERNEL, **given)


@pytest.mark.slow
def test_tilt__a_thousand_particles_take_milliseconds():
    """About 10 to 40 ms an input on one core; the bound leaves room for slower machines."""
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((8, 1000, 3)), 1.5 * rng.standard_normal((100, 3))
    omega = 0.01 + 0.01 * rng.standard_normal((8, 100))
    for divergence in (10.0, 1e-2, 1e-4):
        start = time.process_time()
        with threadpool_limits(1):
            assert tilt(z, omega, y, Matern(5.5, 2.3), divergence).converged.all()
        assert (time.process_time() - start) / 8 < 0.25
