"""Spectral frequencies of the Matérn kernel and the waves made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from scipy.stats import t as student

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import METHODS, as_complex, frequencies, kernel_error, waves

KERNEL = Matern(nu=5.5, length_scale=1.25, sigma=0.85)


def points(n, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim))


def mean_error(kernel, dim, n_features, method, n_seeds=6):
    sample = points(150, dim)
    errors = [
        kernel_error(kernel, sample, frequencies(kernel, dim, n_features, method, s)) for s in range(n_seeds)
    ]
    return np.mean(errors)


@pytest.mark.parametrize("nu", [0.8, 1.5, 5.5])
@pytest.mark.parametrize("method", METHODS)
def test_feature_kernel__converges_to_the_exact_one(method, nu):
    kernel = Matern(nu, (0.8, 2.0), 0.85)
    coarse, fine = (mean_error(kernel, 2, n, method) for n in (64, 4096))
    # At least the Monte Carlo rate 1/√64 of 1/8, with room for chance.
    assert fine < coarse / 5
    assert fine < 0.015


@pytest.mark.parametrize("n_features", [100, 256])
@pytest.mark.parametrize("dim", [2, 3, 4])
def test_feature_kernel__quasi_monte_carlo_beats_independent_draws(dim, n_features):
    assert mean_error(KERNEL, dim, n_features, "qmc") < 0.8 * mean_error(KERNEL, dim, n_features, "iid")


def test_feature_kernel__figures_of_the_design():
    """d = 3, ν = 5.5: 256 Sobol frequencies do as well as 1,024 independent ones, at about one per cent."""
    sobol = mean_error(KERNEL, 3, 256, "qmc")
    assert 0.004 < sobol < 0.025
    assert sobol < mean_error(KERNEL, 3, 1024, "iid")
    assert mean_error(KERNEL, 3, 1024, "qmc") < 0.5 * sobol


@pytest.mark.parametrize("method", METHODS)
def test_feature_kernel__is_unbiased(method):
    kernel = Matern(2.5, (0.7, 1.5, 1.0))
    apart = np.array([[0.3, 0.2, 0.1], [1.0, -0.5, 0.4], [0.0, 2.0, 0.0]])
    estimates = np.array(
        [np.cos(apart @ frequencies(kernel, 3, 24, method, seed).T).mean(axis=1) for seed in range(300)]
    )
    exact = kernel(np.zeros((1, 3)), apart)[0]
    standard_error = estimates.std(axis=0) / np.sqrt(len(estimates))
    assert (np.abs(estimates.mean(axis=0) - exact) < 4.5 * standard_error).all()


@pytest.mark.parametrize("nu", [0.8, 1.5, 5.5])
@pytest.mark.parametrize("method", METHODS)
def test_frequencies__each_coordinate_is_student_t(method, nu):
    lengths = np.array([0.5, 1.0, 4.0])
    w = frequencies(Matern(nu, tuple(lengths)), 3, 2000, method)
    for coordinate in (w * lengths).T:
        statistic = kstest(coordinate, student(2 * nu).cdf).statistic
        assert statistic < (0.008 if method == "qmc" else 0.043)  # 0.043: the 0.1 % level for 2,000 draws


@pytest.mark.parametrize("method", METHODS)
def test_frequencies__coordinates_share_their_chi_square(method):
    """Multivariate t, not a product of t laws: squares of coordinates are correlated."""
    w = frequencies(Matern(3.5), 2, 8192, method)
    ranks = np.argsort(np.argsort(w**2, axis=0), axis=0)
    assert np.corrcoef(ranks.T)[0, 1] > (0.02 if method != "orthogonal" else -0.5)
    lengths = np.linalg.norm(w, axis=1) ** 2 / 2  # F(2, 2ν)
    assert np.isclose(np.median(lengths), 0.7668, rtol=0.05)


def test_frequencies__orthogonal_blocks_are_orthogonal():
    w = frequencies(Matern(2.5), 3, 10, "orthogonal")
    for start in (0, 3, 6):
        block = w[start : start + 3] / np.linalg.norm(w[start : start + 3], axis=1, keepdims=True)
        np.testing.assert_allclose(block @ block.T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 4])
@pytest.mark.parametrize("n_features", [1, 2, 3, 100, 257])
@pytest.mark.parametrize("method", METHODS)
def test_frequencies__any_number_is_given(method, n_features, dim):
    w = frequencies(KERNEL, dim, n_features, method)
    assert w.shape == (n_features, dim)
    assert np.isfinite(w).all()
    assert len(np.unique(w, axis=0)) == n_features


def test_frequencies__sobol_of_any_size_is_a_prefix():
    np.testing.assert_array_equal(frequencies(KERNEL, 3, 200), frequencies(KERNEL, 3, 256)[:200])


@pytest.mark.parametrize("method", METHODS)
def test_frequencies__seed_decides(method):
    first, again, other = (frequencies(KERNEL, 2, 32, method, seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_frequencies__errors():
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        frequencies(KERNEL, 2, 0)
    with pytest.raises(ValueError, match="unknown spectral method 'halton'; use one of qmc"):
        frequencies(KERNEL, 2, 8, "halton")
    with pytest.raises(ValueError, match="2 length scales for points of dimension 3"):
        frequencies(Matern(1.5, (1.0, 2.0)), 3, 8)


@settings(max_examples=30, deadline=None)
@given(
    dim=st.integers(1, 4),
    n_features=st.integers(1, 40),
    discount=st.floats(0, 0.99),
    seed=st.integers(0, 999),
)
def test_waves__reward_shift_is_a_rotation(dim, n_features, discount, seed):
    rng = np.random.default_rng(seed)
    w = frequencies(KERNEL, dim, n_features, "iid", seed)
    r, z = rng.normal(size=(2, 5, dim))

    shifted = as_complex(waves(r + discount * z, w))
    np.testing.assert_allclose(
        shifted, as_complex(waves(r, w)) * as_complex(waves(discount * z, w)), atol=1e-12
    )
    np.testing.assert_allclose(shifted, np.exp(1j * (r + discount * z) @ w.T), atol=1e-12)


def test_waves__precision_is_that_of_the_points():
    w, z = frequencies(KERNEL, 2, 16), points(7, 2)
    single = waves(z.astype(np.float32), w)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, waves(z, w), atol=1e-5)


def test_waves__single_precision_far_from_zero_keeps_its_digits():
    w, z = frequencies(KERNEL, 2, 16), 1e5 + points(7, 2)
    out = np.empty((7, 32), np.float32)
    assert waves(z, w, out=out) is out
    np.testing.assert_allclose(out, waves(z, w), atol=1e-5)
    assert np.abs(waves(z.astype(np.float32), w) - waves(z, w)).max() > 1e-3


def test_waves__integer_points_keep_the_frequencies():
    w = frequencies(KERNEL, 2, 16)
    z = np.array([[0, 1], [2, 3]])
    np.testing.assert_allclose(waves(z, w), waves(z.astype(float), w))


def test_kernel_error__is_relative_to_the_variance():
    w, z = frequencies(KERNEL, 2, 32), points(20, 2)
    exact = KERNEL(z, z)
    approximate = KERNEL.sigma**2 * np.mean(np.cos((z[:, None] - z[None]) @ w.T), axis=2)
    expected = np.sqrt(np.mean((approximate - exact) ** 2)) / KERNEL.sigma**2
    assert np.isclose(kernel_error(KERNEL, z, w), expected, rtol=1e-10)
    assert np.isclose(kernel_error(Matern(5.5, 1.25, 3.0), z, w), expected, rtol=1e-10)
