"""Whitened landmark features: the exact limit, orthonormality, what the landmarks miss."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge, whiten
from tests import dense

RNG = np.random.default_rng(0)
INPUTS, RESPONSES, ELSEWHERE = RNG.normal(size=(30, 3)), RNG.normal(size=(30, 4)), RNG.normal(size=(6, 3))


@pytest.mark.parametrize("ridge", [1e-5, 1e-2])
@pytest.mark.parametrize(
    "kernel", [Matern(1.5, 1.2, 0.9), Matern(2.5, (0.8, 1.0, 2.0)), Matern(0.8, 1.0, 2.0)]
)
def test_regression__is_the_papers_when_every_input_is_a_landmark(kernel, ridge):
    features = NystromFeatures.from_landmarks(kernel, INPUTS)
    assert features.rank == len(INPUTS)
    psi = features(INPUTS)
    coefficients = solve_ridge(psi.T @ psi, psi.T @ RESPONSES, len(INPUTS), ridge)
    weights = np.array([dense.conditional_weights(kernel, INPUTS, x, ridge) for x in ELSEWHERE])
    expected = weights @ RESPONSES
    error = np.linalg.norm(features(ELSEWHERE) @ coefficients - expected) / np.linalg.norm(expected)
    assert error < 1e-8


def test_regression__sums_of_chunks_in_any_order_serve():
    features = NystromFeatures.from_landmarks(Matern(2.5), INPUTS[:10])
    psi = features(INPUTS)
    parts = [features(INPUTS[rows]) for rows in (slice(20, 30), slice(0, 7), slice(7, 20))]
    np.testing.assert_allclose(sum(part.T @ part for part in parts), psi.T @ psi, rtol=1e-10, atol=1e-10)


def test_solve_ridge__solves_and_leaves_its_arguments():
    gram, responses = np.cov(RNG.normal(size=(5, 40))), RNG.normal(size=(5, 2))
    before = gram.copy()
    solved = solve_ridge(gram, responses, 40, 0.01)
    np.testing.assert_allclose((gram + 0.4 * np.eye(5)) @ solved, responses, atol=1e-12)
    np.testing.assert_array_equal(gram, before)


@pytest.mark.parametrize("kernel", [Matern(1.5, 1.2, 0.9), Matern(5.5, 4.0, 3.0)])
def test_whiten__makes_the_gram_matrix_the_identity(kernel):
    gram = kernel(INPUTS, INPUTS)
    kept, whitening = whiten(gram, 1e-8)
    assert len(set(kept)) == len(kept) == len(whitening)
    np.testing.assert_allclose(
        whitening.T @ gram[np.ix_(kept, kept)] @ whitening, np.eye(len(kept)), atol=1e-7
    )
    np.testing.assert_array_equal(np.tril(whitening, -1), 0)


def test_whiten__leaves_out_what_the_kept_rows_explain():
    gram = Matern(5.5, 4.0, 3.0)(INPUTS, INPUTS)
    for threshold in (1e-1, 1e-3, 1e-5):
        kept, _ = whiten(gram, threshold)
        cross = gram[:, kept]
        left = np.diag(gram - cross @ np.linalg.solve(gram[np.ix_(kept, kept)], cross.T))
        assert 0 < len(kept) < len(gram)
        assert left.max() <= threshold * 9.0
        # The last one kept was needed.
        fewer = kept[:-1]
        cross = gram[:, fewer]
        left = np.diag(gram - cross @ np.linalg.solve(gram[np.ix_(fewer, fewer)], cross.T))
        assert left.max() > threshold * 9.0


@pytest.mark.parametrize("head", [1, 7, 30, 500])
def test_two_steps__are_the_whole(head, monkeypatch):
    """φ, then ψ: row by row, and on sums of φyᵀ; whatever the number of leading landmarks."""
    monkeypatch.setattr("kedrl_dask.numerics.kernels.nystrom.HEAD", head)
    features = NystromFeatures.from_landmarks(Matern(2.5, 1.5, 0.8), INPUTS)
    phi = features.partial(ELSEWHERE)
    expected = features.kernel(ELSEWHERE, features.landmarks) @ features.whitening
    np.testing.assert_allclose(features.complete(phi), expected, atol=1e-10)
    np.testing.assert_allclose(features(ELSEWHERE), expected, atol=1e-10)
    y = RNG.normal(size=(len(ELSEWHERE), 4))
    np.testing.assert_allclose(features.complete_sums(phi.T @ y), expected.T @ y, atol=1e-9)


def test_single_precision__sums_of_phi_keep_what_raw_sections_lose():
    """Σψyᵀ from single-precision sums: by φ as accurate as by ψ itself, by raw sections not."""
    rng = np.random.default_rng(2)
    inputs, y = rng.normal(size=(4_000, 4)), rng.normal(size=(4_000, 3)) + 1
    features = NystromFeatures.from_landmarks(Matern(5.5, 2.0), inputs[:400])
    single = features.astype(np.float32)
    exact = features(inputs).T @ y
    y32 = y.astype(np.float32)
    phi = single.partial(inputs)
    assert phi.dtype == np.float32
    by_phi = features.complete_sums((phi.T @ y32).astype(np.float64))
    by_psi = (single.complete(phi).T @ y32).astype(np.float64)
    sections = features.kernel(inputs.astype(np.float32), features.landmarks.astype(np.float32))
    by_sections = features.whitening.T @ (sections.T @ y32).astype(np.float64)
    errors = [np.linalg.norm(sums - exact) / np.linalg.norm(exact) for sums in (by_phi, by_psi, by_sections)]
    assert errors[0] < 1.1 * errors[1] < 1e-4
    assert errors[2] > 3 * errors[0]


def test_features__inner_products_are_the_kernel_between_landmarks():
    kernel = Matern(2.5, 1.5, 0.8)
    psi = NystromFeatures.from_landmarks(kernel, INPUTS)(INPUTS)
    np.testing.assert_allclose(psi @ psi.T, kernel(INPUTS, INPUTS), atol=1e-10)


def test_residual__is_zero_where_the_inputs_are_landmarks():
    features = NystromFeatures.from_landmarks(Matern(1.5, 1.0, 0.7), INPUTS)
    assert abs(features.residual(INPUTS)) < 1e-10
    assert features.residual(ELSEWHERE) > 0.05


def test_residual__is_literal_and_decreases_with_landmarks():
    kernel = Matern(1.5, 2.0, 0.7)
    sample = np.random.default_rng(1).normal(size=(200, 3))
    residuals = [
        NystromFeatures.from_landmarks(kernel, sample[:n]).residual(sample) for n in (5, 20, 80, 160)
    ]
    assert (np.diff(residuals) < 0).all()
    assert 0 < residuals[-1] < residuals[0] < 1
    cross = dense.gram(kernel, sample, sample[:5])
    explained = [k @ np.linalg.solve(dense.gram(kernel, sample[:5], sample[:5]), k) for k in cross]
    assert np.isclose(residuals[0], 1 - np.mean(explained) / kernel.sigma**2, rtol=1e-10)


def test_landmarks__duplicates_change_nothing():
    kernel = Matern(2.5, 1.5)
    once = NystromFeatures.from_landmarks(kernel, INPUTS[:12])
    twice = NystromFeatures.from_landmarks(kernel, np.vstack([INPUTS[:12], INPUTS[:7]]))
    assert once.rank == twice.rank == 12
    psi, psi_twice = once(ELSEWHERE), twice(ELSEWHERE)
    assert np.isfinite(psi_twice).all()
    np.testing.assert_allclose(psi_twice @ psi_twice.T, psi @ psi.T, atol=1e-9)


def test_landmarks__nearly_singular_gram_gives_bounded_features():
    kernel = Matern(5.5, 50.0)
    features = NystromFeatures.from_landmarks(kernel, INPUTS)
    assert features.rank < len(INPUTS)
    psi = features(ELSEWHERE)
    # ‖ψ(x)‖² ≤ k(x, x): the features are orthonormal in the RKHS.
    assert (np.einsum("ij,ij->i", psi, psi) <= 1 + 1e-6).all()
