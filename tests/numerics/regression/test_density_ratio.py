"""uLSIF: agreement with the literal algorithm, the leave-one-out score, calibration, a known ratio."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.density_ratio import (
    ULSIF,
    DensityRatio,
    RatioMoments,
    leave_one_out_score,
    moments,
    section_means,
    solve,
)
from tests import dense

KERNEL = Matern(2.5, 0.8, 0.9)


def samples(n=40, dim=2, shift=0.5, seed=0):
    """Denominator and numerator inputs."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)), shift + 0.7 * rng.normal(size=(n, dim))


@pytest.mark.parametrize("ridge", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("centers_from", ["numerator", "denominator"])
def test_solve__agrees_with_the_literal_algorithm(centers_from, ridge):
    denominator, numerator = samples()
    centers = (numerator if centers_from == "numerator" else denominator)[:12]
    alpha = solve(moments(KERNEL(denominator, centers), KERNEL(numerator, centers)), ridge)
    expected = dense.ulsif(KERNEL, centers, denominator, numerator, ridge)
    np.testing.assert_allclose(alpha, expected, rtol=1e-8, atol=1e-10)
    assert (alpha >= 0).all()


def test_solve__negative_coefficients_do_occur_and_are_cut():
    denominator, numerator = samples()
    sums = moments(KERNEL(denominator, denominator[:12]), KERNEL(numerator, denominator[:12]))
    raw = np.linalg.solve(sums.second / 40 + 1e-4 * np.eye(12), sums.numerator / 40)
    assert (raw < 0).any()
    np.testing.assert_array_equal(solve(sums, 1e-4) == 0, raw < 0)


@settings(max_examples=25, deadline=None)
@given(ridge=st.floats(1e-5, 10), seed=st.integers(0, 999), shift=st.floats(0, 1.5))
def test_solve__mean_ratio_over_the_denominator_is_one(ridge, seed, shift):
    denominator, numerator = samples(seed=seed, shift=shift)
    centers = numerator[:10]
    alpha = solve(moments(KERNEL(denominator, centers), KERNEL(numerator, centers)), ridge)
    ratio = DensityRatio(KERNEL, centers, alpha, None, ridge)
    assert np.isclose(ratio(denominator).mean(), 1.0, rtol=1e-10)
    assert (ratio(denominator) >= 0).all()


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 39), unique=True, max_size=5))
def test_moments__chunks_add_up(cuts):
    denominator, numerator = samples()
    sections = KERNEL(denominator, numerator[:9]), KERNEL(numerator, numerator[:9])
    whole = moments(*sections)
    parts = [moments(x, y) for x, y in zip(*(np.split(s, sorted(cuts)) for s in sections), strict=True)]
    total = reduce(add, parts)
    assert total.count == whole.count == 40
    for name in ("second", "denominator", "numerator"):
        np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-12)


def test_section_means__are_weighted_over_the_draws():
    rng = np.random.default_rng(0)
    draws, centers, weights = rng.normal(size=(3, 6, 2)), rng.normal(size=(4, 2)), np.array([0.5, 0.3, 0.2])
    expected = sum(w * dense.gram(KERNEL, draw, centers) for w, draw in zip(weights, draws, strict=True))
    np.testing.assert_allclose(section_means(KERNEL, centers, draws, weights), expected, rtol=1e-12)


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 3.0])
@pytest.mark.parametrize(("n", "n_centers"), [(25, 8), (6, 10)])
def test_leave_one_out_score__agrees_with_refits(n, n_centers, ridge):
    denominator, numerator = samples(n=n)
    centers = np.vstack([numerator, denominator])[:n_centers]
    x, y = KERNEL(denominator, centers), KERNEL(numerator, centers)
    score = 0.0
    for j in range(n):
        rest = np.arange(n) != j
        system = x[rest].T @ x[rest] / (n - 1) + ridge * np.eye(n_centers)
        alpha = np.maximum(np.linalg.solve(system, y[rest].mean(axis=0)), 0)
        score += ((x[j] @ alpha) ** 2 / 2 - y[j] @ alpha) / n
    assert np.isclose(leave_one_out_score(x, y, ridge), score, rtol=1e-10, atol=1e-12)


def test_leave_one_out_score__prefers_neither_extreme():
    denominator, numerator = samples(n=300, dim=1)
    x, y = KERNEL(denominator, numerator[:100]), KERNEL(numerator, numerator[:100])
    ridges = [1e-9, 1e-2, 1e3]
    assert np.argmin([leave_one_out_score(x, y, ridge) for ridge in ridges]) == 1


@pytest.mark.parametrize("centers_from", ["numerator", "denominator"])
def test_ratio__recovers_a_known_one(centers_from):
    rng = np.random.default_rng(0)
    denominator, numerator = rng.normal(0, 1, (4000, 1)), rng.normal(0.5, 0.7, (4000, 1))
    kernel = Matern(2.5, 0.7)
    centers = (numerator if centers_from == "numerator" else denominator)[:100]
    x, y = kernel(denominator, centers), kernel(numerator, centers)
    ridge = min([1e-4, 1e-3, 1e-2, 1e-1], key=lambda value: leave_one_out_score(x[:1000], y[:1000], value))
    ratio = DensityRatio(kernel, centers, solve(moments(x, y), ridge), None, ridge)
    at = np.linspace(-2, 2.5, 50)
    truth = norm(0.5, 0.7).pdf(at) / norm(0, 1).pdf(at)
    found = ratio(at[:, None])
    assert np.corrcoef(found, truth)[0, 1] > 0.95
    assert (
        np.corrcoef(
            ratio(denominator), norm(0.5, 0.7).pdf(denominator[:, 0]) / norm(0, 1).pdf(denominator[:, 0])
        )[0, 1]
        > 0.9
    )
    assert 0.7 < found.max() / truth.max() < 1.3


def test_ratio__of_equal_laws_is_flat():
    rng = np.random.default_rng(0)
    denominator, numerator = rng.normal(size=(2, 3000, 1))
    kernel = Matern(2.5, 1.0)
    alpha = solve(moments(kernel(denominator, numerator[:50]), kernel(numerator, numerator[:50])), 1e-2)
    at = np.linspace(-1.5, 1.5, 20)[:, None]
    np.testing.assert_allclose(DensityRatio(kernel, numerator[:50], alpha, None, 1e-2)(at), 1.0, atol=0.2)


def test_ratio__clip_comes_before_the_scale():
    denominator, numerator = samples()
    alpha = solve(moments(KERNEL(denominator, numerator[:9]), KERNEL(numerator, numerator[:9])), 0.01)
    free = DensityRatio(KERNEL, numerator[:9], alpha, None, 0.01)(denominator)
    assert free.max() > 1.2
    clipped = DensityRatio(KERNEL, numerator[:9], alpha, 1.2, 0.01, scale=1.1)(denominator)
    np.testing.assert_allclose(clipped, 1.1 * np.minimum(free, 1.2), rtol=1e-12)


def test_solve__samples_without_overlap_are_refused():
    with pytest.raises(ValueError, match=r"no overlap .* continuation='sampled'"):
        solve(RatioMoments(np.eye(3), np.ones(3), -np.ones(3), 5), 0.1)
    # Centres among the numerator: the kernel vanishes at every denominator input.
    denominator, numerator = samples(shift=1e6)
    with pytest.raises(ValueError, match="no overlap"):
        solve(moments(KERNEL(denominator, numerator[:9]), KERNEL(numerator, numerator[:9])), 0.1)
    with pytest.raises(ValueError, match="no overlap"):
        solve(moments(KERNEL(denominator, denominator[:9]), KERNEL(numerator, denominator[:9])), 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_centers": 0}, "n_centers must be an integer ≥ 1"),
        ({"centers_from": "both"}, "centers_from must be 'numerator' or 'denominator'"),
        ({"ridge": 0.0}, "ridge must be positive or 'auto'"),
        ({"ridge": -1}, "ridge must be positive or 'auto'"),
        ({"ridge": "best"}, "ridge must be positive or 'auto'"),
        ({"ridge": float("nan")}, "ridge must be positive or 'auto'"),
        ({"clip": 1.0}, "clip must exceed 1"),
        ({"clip": float("nan")}, "clip must exceed 1"),
    ],
)
def test_settings__that_define_no_estimate_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ULSIF(**arguments)


def test_settings__accept_what_they_document():
    assert ULSIF().ridge == "auto"
    assert ULSIF(n_centers=1, centers_from="denominator", ridge=1, kernel=KERNEL, clip=20.0).clip == 20.0
