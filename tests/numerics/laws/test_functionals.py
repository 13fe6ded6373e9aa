"""Functionals of embeddings against literal double sums."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from kedrl_dask import Matern
from kedrl_dask.numerics.laws.functionals import (
    Box,
    Embedding,
    KernelFunction,
    Proxy,
    above,
    below,
    interpolate,
)
from tests import dense
from tests.numerics.laws.test_recovery import KERNEL, signed


def embedding(seed=0, n=4, m=9, kernel=KERNEL):
    return Embedding(*signed(n=n, m=m, seed=seed), kernel)


def utility(points):
    return np.sin(points[:, 0]) + 0.5 * points[:, 1] ** 2


def test_expect__function_of_the_rkhs_is_a_double_sum():
    mu, rng = embedding(), np.random.default_rng(1)
    h = KernelFunction(rng.standard_normal((5, 2)), rng.standard_normal(5), KERNEL)
    found = mu.expect(h)
    literal = [
        dense.inner_product(KERNEL, omega, mu.grid, h.coefficients, h.points) for omega in mu.coefficients
    ]
    np.testing.assert_allclose(found.value, literal, rtol=1e-8)
    norm = np.sqrt(dense.inner_product(KERNEL, h.coefficients, h.points, h.coefficients, h.points))
    assert found.norm == pytest.approx(norm, rel=1e-8)
    assert found.grid_error == 0
    np.testing.assert_array_equal(found.bias, 0)


@pytest.mark.parametrize(
    "function", [utility, below(0.2, 1, width=0.4), above(-0.1, 0)], ids=["utility", "below", "above"]
)
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_expect__proxy_is_the_literal_one(function, ridge):
    mu = embedding()
    g = function(mu.grid)
    c = dense.proxy_coefficients(KERNEL, mu.grid, g, ridge)
    found = mu.expect(function, ridge)
    literal = [dense.inner_product(KERNEL, omega, mu.grid, c, mu.grid) for omega in mu.coefficients]
    np.testing.assert_allclose(found.value, literal, rtol=1e-8)
    assert found.norm == pytest.approx(dense.spectral_norm(KERNEL, mu.grid, g, ridge), rel=1e-8)
    np.testing.assert_allclose(
        found.function.residual, dense.gram(KERNEL, mu.grid, mu.grid) @ c - g, rtol=1e-8, atol=1e-12
    )
    assert found.grid_error == pytest.approx(np.abs(found.function.residual).max())


def literal_left_out(grid, g, ridge):
    """Squared errors of the interpolants of all atoms but one, at the same mλ."""
    m, total = len(grid), 0.0
    for i in range(m):
        kept = np.arange(m) != i
        c = dense.proxy_coefficients(KERNEL, grid[kept], g[kept], ridge * m / (m - 1))
        total += (dense.gram(KERNEL, grid[i : i + 1], grid[kept])[0] @ c - g[i]) ** 2
    return total


@pytest.mark.parametrize("function", [utility, below(0.2, 1)], ids=["utility", "below"])
def test_interpolate__automatic_ridge_has_the_least_error_at_left_out_atoms(function):
    grid = embedding(m=14).grid
    found = interpolate(function, grid, KERNEL)
    best = literal_left_out(grid, function(grid), found.ridge)
    for factor in (1e-3, 10**-0.5, 10**0.5, 1e3):
        assert best <= literal_left_out(grid, function(grid), found.ridge * factor) * (1 + 1e-6)


def test_ridge__trades_stability_for_bias():
    mu, step = embedding(m=30), below(0.0, 0)
    found = [mu.expect(step, ridge) for ridge in (1e-6, 1e-3, 1e-1)]
    assert found[0].norm > 1.5 * found[1].norm > 2 * found[2].norm
    assert found[0].grid_error < found[1].grid_error < found[2].grid_error


def test_bias__of_a_box_is_exact_under_the_recovered_law():
    """Both means by a Gauss rule for the smoothing of each atom, where the indicator is integrated by Φ."""
    mu, step = embedding(m=20), above(0.1, 0, width=0.3)
    found, law = mu.expect(step, 1e-3), mu.recover()
    nodes, masses = np.polynomial.hermite_e.hermegauss(30)
    masses /= masses.sum()
    for i in range(len(mu.coefficients)):
        smooth = exact = 0.0
        for weight, y in zip(law.weights[i], law.atoms, strict=True):
            for u, a in zip(nodes, masses, strict=True):
                points = np.array([y + law.bandwidth * [u, v] for v in nodes])
                smooth += weight * a * masses @ found.function(points)
            exact += weight * ndtr((y[0] - 0.1) / law.bandwidth[0])
        assert found.bias[i] == pytest.approx(smooth - exact, rel=1e-6)
    np.testing.assert_allclose(
        mu.expect(lambda z: step(z), 1e-3).bias + law.expectation(step) - law.prob(step.ends(2)),
        found.bias,
        atol=2e-3,
    )


def test_expect__law_on_the_grid_and_smooth_utility_give_its_mean():
    """Where the coefficients are a law and the function is smooth, the plug-in is nearly the mean."""
    rng = np.random.default_rng(2)
    grid, weights = rng.standard_normal((40, 2)), rng.dirichlet(np.ones(40), size=3)
    mu = Embedding(weights, grid, Matern(5.5, 2.0))
    found = mu.expect(utility)
    np.testing.assert_allclose(found.value, weights @ utility(grid), atol=1e-2)
    assert found.grid_error < 0.02


def test_box__joint_events():
    points = np.array([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(Box({0: (-1, 1), 1: (0, 1)})(points), [1, 0, 0])
    smooth = Box({0: (-1, 1), 1: (0, 1)}, width=0.5)(points)
    one = ndtr(2.0) - ndtr(-2.0)
    assert smooth[0] == pytest.approx(one * (ndtr(2.0) - 0.5))
    low, high = Box({1: (0, 1)}).ends(2)
    np.testing.assert_array_equal([low, high], [[-np.inf, 0], [np.inf, 1]])


@pytest.mark.parametrize("same_grid", [True, False])
def test_mmd__is_the_literal_double_sums(same_grid):
    first = embedding()
    second = embedding(seed=3) if same_grid else embedding(seed=4, m=7)
    if same_grid:
        second = Embedding(second.coefficients, first.grid, KERNEL)
    found = first.mmd(second)
    literal = [
        dense.mmd(KERNEL, a, first.grid, b, second.grid)
        for a, b in zip(first.coefficients, second.coefficients, strict=True)
    ]
    np.testing.assert_allclose(found, literal, rtol=1e-8)
    pair = first.coefficients[1], first.grid, second.coefficients[2], second.grid
    assert first.inner(second)[1, 2] == pytest.approx(dense.inner_product(KERNEL, *pair), rel=1e-8)
    one = Embedding(second.coefficients[:1], second.grid, KERNEL)
    literal = [dense.mmd(KERNEL, a, first.grid, one.coefficients[0], one.grid) for a in first.coefficients]
    np.testing.assert_allclose(first.mmd(one), literal, rtol=1e-8)
    np.testing.assert_array_equal(first.mmd(first), 0)


def test_mmd__of_averages_over_initial_states():
    first, second, w = embedding(), embedding(seed=4, m=7), np.array([1.0, 2.0, 0.0, 5.0])
    shares = w / w.sum()
    a, b = (sum(s * c for s, c in zip(shares, mu.coefficients, strict=True)) for mu in (first, second))
    found = first.average(w).mmd(second.average(w))
    np.testing.assert_allclose(found, [dense.mmd(KERNEL, a, first.grid, b, second.grid)], rtol=1e-8)
    assert found[0] < np.sqrt(shares @ first.mmd(second) ** 2)
    np.testing.assert_allclose(first.average().coefficients[0], first.coefficients.mean(axis=0))


def test_embedding__values_and_laws():
    mu = embedding()
    at = np.array([[0.1, 0.2], [1.0, -1.0]])
    literal = [[dense.inner_product(KERNEL, w, mu.grid, [1.0], [z]) for z in at] for w in mu.coefficients]
    np.testing.assert_allclose(mu(at), literal, rtol=1e-8)
    assert mu.recover(ridge=1e-2).weights.sum() == pytest.approx(4)


def test_kernels__one_length_for_all_is_the_same_kernel():
    one, each = Matern(2.5, 0.9), Matern(2.5, (0.9, 0.9))
    np.testing.assert_allclose(embedding(kernel=one).mmd(embedding(seed=1, kernel=each)) > 0, True)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda mu: mu.mmd(embedding(kernel=Matern(2.5, (1.1, 0.7), 0.9))), "return_kernel=Matern"),
        (lambda mu: mu.mmd(embedding(kernel=Matern(2.5, (1.1, 0.8), 1.0))), "must be the same"),
        (lambda mu: mu.mmd(embedding(n=3)), "4 embeddings and 3"),
        (lambda mu: mu.expect(KernelFunction([[0, 0]], [1.0], Matern())), "the function's"),
        (lambda mu: mu.expect(lambda z: z), r"shape \(9, 2\) for 9 atoms"),
        (lambda mu: mu.expect(utility, ridge=0.0), "ridge must be"),
        (lambda mu: mu.expect(utility, ridge="none"), "ridge must be"),
        (lambda mu: mu.expect(below(0.0, 2)), "coordinate 2 is not one of 0 to 1"),
        (lambda mu: mu.average([1.0, -1.0, 1.0, 1.0]), "weights must be 4 numbers"),
        (lambda mu: Box({0: (1.0, 0.0)}), "low ≤ high"),
        (lambda mu: below(0.0, width=-1.0), "width must be"),
        (lambda mu: KernelFunction([[0.0, 0.0]], [1.0, 2.0], KERNEL), r"expected \(k, d\) and \(k,\)"),
        (lambda mu: KernelFunction([[0.0, np.nan]], [1.0], KERNEL), "must be finite"),
    ],
)  # fmt: skip
def test_functionals__refuse(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(embedding())


def test_proxy__is_made_for_callables_only():
    assert isinstance(embedding().expect(utility).function, Proxy)
