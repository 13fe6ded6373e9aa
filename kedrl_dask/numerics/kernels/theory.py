"""What the paper's theorems say about a Matérn return kernel, in numbers if they give any.

The feature map's Lipschitz constant, the spectral density and the exponents are explicit. The constant C_*
between MMD and W₁ (thm:mmd_wasserstein_equiv) is not: it exists, and nothing more is known of it. What
follows from a Bellman residual (thm:fixed_point) is therefore a rate only, and nothing here turns a residual
into a distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Vector
from kedrl_dask.utils.checks import check_count

#: Scaled distances below which 1 − k/σ² is integrated, because the difference would lose its digits.
SMALL_DISTANCE = 1.0
#: Gauss-Legendre nodes of that integral.
QUADRATURE_NODES = 64


def lipschitz_constant(kernel: Matern) -> float:
    """L_k = σ/ℓ·√(ν/(ν − 1)), the Lipschitz constant of z ↦ k(z, ·) (app:matern_verification).

    With one length per coordinate ℓ is the shortest of them: the supremum over all directions. The feature
    map of a kernel with ν ≤ 1 is not Lipschitz, and is refused.
    """
    if kernel.nu <= 1:
        raise ValueError(
            f"lipschitz_constant: the feature map of a Matern kernel is Lipschitz for nu > 1 only, "
            f"got nu={kernel.nu}"
        )
    return float(kernel.sigma / np.min(kernel.length_scale) * np.sqrt(kernel.nu / (kernel.nu - 1)))


def feature_quotient(kernel: Matern, distance: npt.ArrayLike) -> Vector:
    """‖k(z, ·) − k(z', ·)‖/‖z − z'‖ = √(2{σ² − k(t)})/t at distances t > 0 (app:matern_verification).

    It falls as t rises (lem:Bnu_monotone), so that its supremum L_k is its limit at zero. Near zero, for
    ν > 1, the difference is integrated: with u = √(2ν)·t/ℓ and M_ν the correlation,
    B_ν(u) = {1 − M_ν(u)}/u² = ∫₀¹ s·M_{ν−1}(us) ds/(2(ν − 1)), which loses no digits.

    Parameters
    ----------
    kernel : Matern
        With one length scale.
    distance : array
        t, positive.
    """
    if np.size(kernel.length_scale) != 1:
        raise ValueError(
            "feature_quotient: with one length scale per coordinate the quotient is no function of the "
            "distance; give a kernel with one length scale"
        )
    distance = np.asarray(distance, dtype=np.float64)
    if not (distance > 0).all():
        raise ValueError("feature_quotient: distances must be positive")
    u = np.sqrt(2 * kernel.nu) * distance / np.ravel(kernel.length_scale)[0]
    quotient = (1 - _correlation(kernel.nu, u)) / u**2
    if kernel.nu > 1:
        nodes, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
        s, weights = (nodes + 1) / 2, weights / 2
        near = u < SMALL_DISTANCE
        inner = _correlation(kernel.nu - 1, u[near][:, None] * s)
        quotient[near] = inner @ (weights * s) / (2 * (kernel.nu - 1))
    scale = 2 * kernel.sigma * np.sqrt(kernel.nu) / np.ravel(kernel.length_scale)[0]
    return scale * np.sqrt(quotient)


def _correlation(nu: float, u: Vector) -> Vector:
    """M_ν at scaled distances u ≥ 0."""
    kernel = Matern(nu, np.sqrt(2 * nu))
    return kernel(u.reshape(-1, 1), np.zeros((1, 1)))[:, 0].reshape(u.shape)


def spectral_density(kernel: Matern, frequencies: npt.ArrayLike) -> Vector:
    """Spectral density of the kernel at the rows w of ``frequencies`` (Q, d); it integrates to σ².

    k(z, z') = ∫ S(w) cos(w·(z − z')) dw with, for one length scale,
    S(w) = σ²·Γ(ν + d/2)/(Γ(ν)·π^{d/2})·(2ν/ℓ²)^ν·(2ν/ℓ² + ‖w‖²)^{−(ν + d/2)}. The paper's ψ̂
    (app:matern_verification) is the Fourier transform of the kernel, (2π)^d times as large.
    """
    frequencies = np.asarray(frequencies, dtype=np.float64)
    if frequencies.ndim != 2:
        raise ValueError(
            f"spectral_density: frequencies have shape {frequencies.shape}, expected (Q, d): "
            "one frequency in a row"
        )
    kernel.refuse_directions("spectral_density")
    nu, dim = kernel.nu, frequencies.shape[1]
    lengths = kernel.lengths(dim)
    square = np.sum((frequencies * lengths) ** 2, axis=1)
    log_density = gammaln(nu + dim / 2) - gammaln(nu) - dim / 2 * np.log(2 * nu * np.pi)
    log_density = log_density - (nu + dim / 2) * np.log1p(square / (2 * nu))
    return kernel.sigma**2 * np.prod(lengths) * np.exp(log_density)


def fourier_decay_order(kernel: Matern, dim: int) -> float:
    """s_k = 2ν + d: one over the spectral density grows like ‖w‖^{s_k} (thm:mmd_wasserstein_equiv, II)."""
    check_count("fourier_decay_order: dim", dim)
    return 2 * kernel.nu + dim


def sobolev_order(kernel: Matern, dim: int) -> float:
    """s_k/2 = ν + d/2: the least smoothness s of return densities to which the comparison applies."""
    return fourier_decay_order(kernel, dim) / 2


def holder_exponent(dim: int, moment: float) -> float:
    """ρ = (r − 1)/(d + 2r) in W₁ ≤ C_*·MMD^ρ (thm:mmd_wasserstein_equiv).

    It depends on the dimension d and the moments of the laws, and on neither ν nor s: these decide whether
    a law belongs to the class at all. It rises with r towards 1/2.

    Parameters
    ----------
    dim : int
        d, the dimension of the return.
    moment : float
        r > 1: moments of this order are bounded over the class. ``inf`` for laws that have them all.
    """
    check_count("holder_exponent: dim", dim)
    if not (isinstance(moment, Real) and moment > 1):
        raise ValueError(f"holder_exponent: moment must be a number above 1, got {moment!r}")
    return 0.5 if np.isinf(moment) else (moment - 1) / (dim + 2 * moment)


def wasserstein_lower_bound(kernel: Matern, mmd: npt.ArrayLike) -> Vector:
    """MMD/L_k ≤ W₁ (thm:mmd_wasserstein_equiv): the one comparison whose constant is known.

    ``mmd`` is a distance between embeddings of probability laws, not its square. A small MMD does not bound
    W₁ from above by this.
    """
    return np.asarray(mmd, dtype=np.float64) / lipschitz_constant(kernel)


@dataclass(frozen=True)
class ResidualBound:
    """Shape of d₁(Q, P^π) ≤ C_*/(1 − γ)·ε^ρ in the residual ε (thm:fixed_point d).

    ε is the largest MMD over all inputs between a law-valued candidate and its Bellman update, both in the
    regular class: densities with smoothness s ≥ ν + d/2 in a Sobolev ball, and moments of order r in
    another. C_* depends on the radii of both and is not known, so that a residual is no distance: the
    bound is given in proportion to another one, in which C_* and γ cancel, or with a C_* that the caller
    answers for. A fitted embedding is signed and its :meth:`~kedrl_dask.KEDRL.bellman_risk` is a square, at
    some inputs, projected on the grid: the theorem does not speak of it.

    Parameters
    ----------
    kernel : Matern
        Return kernel, ν > 1.
    dim : int
        d, the dimension of the return.
    moment : float
        r > 1.
    smoothness : float, optional
        s; unless given, the least that the theorem allows, ν + d/2.
    """

    kernel: Matern
    dim: int
    moment: float
    smoothness: float | None = None

    def __post_init__(self) -> None:
        """Check the assumptions of the theorem."""
        lipschitz_constant(self.kernel)
        holder_exponent(self.dim, self.moment)
        least = sobolev_order(self.kernel, self.dim)
        if self.smoothness is not None and not self.smoothness >= least:
            raise ValueError(
                f"ResidualBound: densities must have smoothness s ≥ ν + d/2 = {least:g}, "
                f"got {self.smoothness!r}; take a rougher return kernel"
            )

    @property
    def exponent(self) -> float:
        """ρ."""
        return holder_exponent(self.dim, self.moment)

    def ratio(self, residual: npt.ArrayLike, baseline: npt.ArrayLike) -> Vector:
        """The bound at ``residual`` over the bound at ``baseline``: (ε/ε₀)^ρ."""
        residual, baseline = _checked_residual(residual), _checked_residual(baseline)
        if not (baseline > 0).all():
            raise ValueError("ResidualBound: a baseline of zero bounds the distance by zero; give another")
        return (residual / baseline) ** self.exponent

    def residual_ratio(self, bound_ratio: npt.ArrayLike) -> Vector:
        """By which factor the residual must change for the bound to change by ``bound_ratio``."""
        return _checked_residual(bound_ratio) ** (1 / self.exponent)

    def bound(self, residual: npt.ArrayLike, discount: float, constant: float | None = None) -> Vector:
        """C_*/(1 − γ)·ε^ρ, if the caller has a C_* for the class at hand; refused without."""
        if constant is None:
            raise ValueError(
                "ResidualBound: C_* of thm:mmd_wasserstein_equiv is not known, so that a residual bounds no "
                "distance in numbers; compare two residuals with ratio(), or give a constant of your own"
            )
        if not (isinstance(constant, Real) and 0 < constant < np.inf):
            raise ValueError(f"ResidualBound: constant must be a positive number, got {constant!r}")
        if not (isinstance(discount, Real) and 0 <= discount < 1):
            raise ValueError(f"ResidualBound: discount must lie in [0, 1), got {discount!r}")
        return constant / (1 - discount) * _checked_residual(residual) ** self.exponent


def _checked_residual(values: npt.ArrayLike) -> Vector:
    values = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError("ResidualBound: residuals and their ratios must be finite and not negative")
    return values
