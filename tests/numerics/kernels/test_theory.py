"""The explicit statements of the paper's theorems, against numerical suprema, integrals and formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma
from scipy.stats import kstest

from kedrl_dask import Matern
from kedrl_dask.numerics.kernels import theory
from kedrl_dask.numerics.kernels.spectral import frequencies
from tests import dense


def paper_spectral_density(kernel, u):
    """ψ̂(u) of app:matern_verification, letter by letter."""
    nu, length, d = kernel.nu, kernel.length_scale, len(u)
    scale = kernel.sigma**2 * 2**d * np.pi ** (d / 2) * gamma(nu + d / 2) * (2 * nu) ** nu
    return scale / (gamma(nu) * length ** (2 * nu)) * (2 * nu / length**2 + np.dot(u, u)) ** -(nu + d / 2)


@pytest.mark.parametrize("nu", [1.1, 1.5, 2.5, 3.2, 5.5])
@pytest.mark.parametrize(("length", "sigma"), [(1.0, 1.0), (0.4, 2.0), (1.25, 0.85)])
def test_lipschitz_constant__is_the_supremum_of_the_quotient(nu, length, sigma):
    kernel = Matern(nu, length, sigma)
    t = length * np.geomspace(1e-8, 1e3, 400)
    quotient = theory.feature_quotient(kernel, t)
    constant = theory.lipschitz_constant(kernel)
    assert (quotient <= constant * (1 + 1e-8)).all()
    # At t the quotient misses its limit by a share of order (t/ℓ)^{2 min(1, ν − 1)}.
    assert quotient[0] == pytest.approx(constant, rel=0.05 if nu < 1.2 else 1e-6)
    literal = [np.sqrt(2 * (sigma**2 - dense.matern(nu, length, sigma, [0.0], [x]))) / x for x in t[150:250]]
    np.testing.assert_allclose(quotient[150:250], literal, rtol=1e-6)


def test_lipschitz_constant__of_the_feature_map_between_points():
    """‖k(z, ·) − k(z', ·)‖ from the kernel matrix, in directions of unequal lengths."""
    kernel = Matern(2.5, (0.5, 2.0), 1.3)
    constant = theory.lipschitz_constant(kernel)
    rng = np.random.default_rng(0)
    z = rng.standard_normal((400, 2))
    other = z + rng.standard_normal((400, 2)) * rng.uniform(0.001, 2, (400, 1))
    k = np.array([kernel(a[None], b[None])[0, 0] for a, b in zip(z, other, strict=True)])
    quotient = np.sqrt(2 * (kernel.sigma**2 - k)) / np.linalg.norm(z - other, axis=1)
    assert quotient.max() <= constant * (1 + 1e-6)
    step = np.array([[1e-3, 0.0]])
    along = np.sqrt(2 * (kernel.sigma**2 - kernel(step, 0 * step)[0, 0])) / 1e-3
    assert along == pytest.approx(constant, rel=1e-4)


@pytest.mark.parametrize("nu", [0.5, 1.0])
def test_lipschitz_constant__rough_kernels_are_refused(nu):
    with pytest.raises(ValueError, match=f"nu > 1 only, got nu={nu}"):
        theory.lipschitz_constant(Matern(nu))
    # And rightly: the quotient has no bound.
    near, nearer = theory.feature_quotient(Matern(nu), [1e-3, 1e-6])
    assert nearer > 1.3 * near


@pytest.mark.parametrize("nu", [0.5, 0.8, 1.0, 1.1, 1.5, 2.5, 5.5, 12.3])
def test_feature_quotient__falls_with_the_distance(nu):
    """lem:Bnu_monotone, for every ν > 0, across the point where one formula takes over from the other."""
    t = np.geomspace(1e-2 if nu <= 1 else 1e-7, 1e2, 3_000)
    quotient = theory.feature_quotient(Matern(nu, 1.3, 0.7), t)
    assert (np.diff(quotient) <= 1e-9 * quotient[1:]).all()
    assert quotient[-1] < 0.02 * quotient[0]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_feature_quotient__needs_positive_distances(bad):
    with pytest.raises(ValueError, match="must be positive"):
        theory.feature_quotient(Matern(2.5), [1.0, bad])


def test_feature_quotient__needs_one_length():
    with pytest.raises(ValueError, match="one length scale"):
        theory.feature_quotient(Matern(2.5, (1.0, 2.0)), [1.0])


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("nu", [0.7, 1.5, 5.5])
def test_spectral_density__is_the_paper_s_over_two_pi(nu, dim):
    kernel = Matern(nu, 1.25, 0.85)
    u = np.random.default_rng(0).standard_normal((20, dim)) * 3
    expected = [paper_spectral_density(kernel, row) / (2 * np.pi) ** dim for row in u]
    np.testing.assert_allclose(theory.spectral_density(kernel, u), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("nu", [0.7, 1.5, 5.5])
def test_spectral_density__integrates_to_the_variance(nu, dim):
    kernel = Matern(nu, 0.8, 1.4)
    sphere = 2 * np.pi ** (dim / 2) / gamma(dim / 2)

    def shell(radius):
        return sphere * radius ** (dim - 1) * theory.spectral_density(kernel, radius * np.eye(dim)[:1])[0]

    assert quad(shell, 0, np.inf)[0] == pytest.approx(kernel.sigma**2, rel=1e-7)


@pytest.mark.parametrize("nu", [1.5, 2.5, 5.5])
def test_spectral_density__transforms_back_to_the_kernel(nu):
    """In one dimension k(t) = 2∫₀^∞ S(w) cos(wt) dw, and S(w) = ∫₀^∞ k(t) cos(wt) dt/π."""
    kernel = Matern(nu, 1.25, 0.85)

    def density(w):
        return theory.spectral_density(kernel, [[w]])[0]

    for t in (0.3, 1.0, 2.5):
        back = 2 * quad(density, 0, np.inf, weight="cos", wvar=t)[0]
        assert back == pytest.approx(dense.matern(nu, 1.25, 0.85, [0.0], [t]), abs=1e-8)
    for w in (0.2, 1.0, 3.0):
        forth = quad(lambda t: dense.matern(nu, 1.25, 0.85, [0.0], [t]), 0, np.inf, weight="cos", wvar=w)
        assert density(w) == pytest.approx(forth[0] / np.pi, abs=1e-8)


def test_spectral_density__unequal_lengths_are_a_change_of_coordinates():
    """k(z, z') over a grid of frequencies in the plane, where the density has decayed at the edge."""
    kernel = Matern(5.5, (0.9, 1.6), 0.85)
    axes = [np.linspace(-14, 14, 401) / length for length in kernel.length_scale]
    w = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    for apart in ([0.0, 0.0], [0.5, -0.3], [1.0, 2.0]):
        back = np.sum(theory.spectral_density(kernel, w) * np.cos(w @ np.array(apart))) * cell
        exact = kernel(np.array([apart]), np.zeros((1, 2)))[0, 0]
        assert back == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("method", ["qmc", "iid"])
def test_spectral_density__is_that_of_the_frequencies(dim, method):
    """The lengths of drawn frequencies against the integral of the density over balls."""
    kernel = Matern(2.5, 1.25, 0.85)
    drawn = np.linalg.norm(frequencies(kernel, dim, 2**12, method), axis=1)
    sphere = 2 * np.pi ** (dim / 2) / gamma(dim / 2) / kernel.sigma**2
    radius = np.linspace(0, 60, 20_001)
    shell = sphere * radius ** (dim - 1) * theory.spectral_density(kernel, radius[:, None] * np.eye(dim)[:1])
    below = np.concatenate([[0], np.cumsum((shell[1:] + shell[:-1]) / 2 * np.diff(radius))])
    statistic = kstest(drawn, lambda x: np.interp(x, radius, below)).statistic
    critical = 1.63 / np.sqrt(len(drawn))  # independent draws exceed it in one case of a hundred
    assert statistic < (critical / 2 if method == "qmc" else critical)


def test_spectral_density__needs_a_matrix():
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(Q, d\)"):
        theory.spectral_density(Matern(), [1.0, 2.0, 3.0])


@pytest.mark.parametrize(("nu", "dim"), [(1.5, 1), (2.5, 2), (5.5, 3), (3.2, 4)])
def test_fourier_decay_order__is_the_slope_of_the_density(nu, dim):
    kernel = Matern(nu, 0.7)
    far = theory.spectral_density(kernel, np.array([[1e5], [1e6]]) * np.eye(dim)[0])
    slope = -np.log10(far[1] / far[0])
    assert theory.fourier_decay_order(kernel, dim) == 2 * nu + dim == pytest.approx(slope, rel=1e-6)
    assert theory.sobolev_order(kernel, dim) == nu + dim / 2


@pytest.mark.parametrize(
    ("dim", "moment", "expected"),
    [(1, 2, 1 / 5), (3, 2, 1 / 7), (3, 4, 3 / 11), (2, 1.5, 1 / 10), (4, 10, 9 / 24)],
)  # fmt: skip
def test_holder_exponent__is_the_paper_s(dim, moment, expected):
    assert theory.holder_exponent(dim, moment) == pytest.approx(expected, rel=1e-14)
    for nu, extra in [(1.5, 0.0), (5.5, 2.0)]:  # ν and s decide on the class, not on the exponent
        bound = theory.ResidualBound(Matern(nu), dim, moment, nu + dim / 2 + extra)
        assert bound.exponent == theory.holder_exponent(dim, moment)


def test_holder_exponent__rises_to_one_half():
    moments = [1.01, 2, 10, 1e3, 1e9]
    exponents = [theory.holder_exponent(3, r) for r in moments]
    assert (np.diff(exponents) > 0).all()
    assert exponents[-1] == pytest.approx(theory.holder_exponent(3, np.inf), abs=1e-8)
    assert theory.holder_exponent(3, np.inf) == 0.5


@pytest.mark.parametrize(("dim", "moment", "message"), [
    (3, 1.0, "moment must be a number above 1"), (3, np.nan, "moment must be"),
    (0, 2, "dim must be an integer"), (2.5, 2, "dim must be an integer"),
])  # fmt: skip
def test_holder_exponent__outside_the_theorem_is_refused(dim, moment, message):
    with pytest.raises(ValueError, match=message):
        theory.holder_exponent(dim, moment)


def test_wasserstein_lower_bound__holds_for_shifted_laws():
    """W₁ between a law and its shift by δ is |δ|; MMD from the kernel matrix of equally many draws."""
    kernel = Matern(2.5, 0.8, 1.2)
    z = np.random.default_rng(0).standard_normal((300, 2))
    for size in (1e-2, 0.3, 2.0):
        shifted = z + np.array([size, 0.0])
        square = 2 * kernel(z, z).mean() - 2 * kernel(z, shifted).mean()
        assert 0 < theory.wasserstein_lower_bound(kernel, np.sqrt(square)) <= size


def test_residual_bound__ratios_follow_the_power():
    bound = theory.ResidualBound(Matern(5.5), 3, 4)
    assert bound.ratio(0.01, 0.1) == pytest.approx(0.1 ** (3 / 11), rel=1e-14)
    np.testing.assert_allclose(bound.ratio([0.0, 0.2], 0.2), [0, 1])
    # To halve the bound the residual must fall by 2^{11/3}, more than twelvefold.
    assert bound.residual_ratio(0.5) == pytest.approx(0.5 ** (11 / 3), rel=1e-14)
    assert bound.ratio(bound.residual_ratio(0.3), 1.0) == pytest.approx(0.3, rel=1e-12)


def test_residual_bound__gives_no_number_without_a_constant():
    bound = theory.ResidualBound(Matern(5.5), 3, 4)
    with pytest.raises(ValueError, match=r"C_\* .* is not known"):
        bound.bound(0.01, 0.7)
    given = bound.bound([0.01, 0.1], 0.7, constant=2.0)
    np.testing.assert_allclose(given, 2.0 / 0.3 * np.array([0.01, 0.1]) ** (3 / 11), rtol=1e-14)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: theory.ResidualBound(Matern(5.5), 3, 4, 6.9), "smoothness s ≥ ν . d/2 = 7"),
    (lambda: theory.ResidualBound(Matern(1.0), 3, 4), "nu > 1 only"),
    (lambda: theory.ResidualBound(Matern(5.5), 3, 1), "moment"),
    (lambda: theory.ResidualBound(Matern(5.5), 3, 4).ratio(-0.1, 1), "not negative"),
    (lambda: theory.ResidualBound(Matern(5.5), 3, 4).ratio(0.1, 0), "baseline of zero"),
    (lambda: theory.ResidualBound(Matern(5.5), 3, 4).bound(0.1, 1.0, 2.0), "discount"),
    (lambda: theory.ResidualBound(Matern(5.5), 3, 4).bound(0.1, 0.7, -2.0), "constant must be"),
])  # fmt: skip
def test_residual_bound__what_the_theorem_does_not_cover_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
