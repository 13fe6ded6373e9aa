"""uLSIF: the successor-action density ratio η = π/β without either density (alg:ulsif, app:uLSIF).

Denominator inputs are the logged successors (s', a'); numerator inputs pair the same s' with actions of
the target policy. η̂(x) = Σ_ℓ α_ℓ k(c_ℓ, x) minimises ½αᵀVα − vᵀα + ½λ‖α‖² with V the second moment of
the kernel sections over the denominator and v their mean over the numerator. Both are sums over
transitions, so they are gathered chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from operator import add
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Features, Inputs, Matrix, Vector, Weights
from kedrl_dask.utils.checks import check_count, check_number, check_word, is_word, shown
from kedrl_dask.utils.scratch import scratch

#: More centres than can be solved for in practice.
MOST_CENTERS = 10**5


@dataclass(frozen=True)
class ULSIF:
    """Settings of the density-ratio estimate.

    Parameters
    ----------
    n_centers : int
        b_η, the number of kernel centres.
    centers_from : {"numerator", "denominator"}
        The sample from which they are drawn.
    ridge : float or "auto"
        λ; "auto" minimises the closed-form leave-one-out score on a subsample.
    kernel : Matern or None
        None takes the input kernel, as the paper does.
    clip : float or None
        Upper bound on the ratios, which are afterwards scaled to mean one again.

    Examples
    --------
    >>> ULSIF(n_centers=200, clip=20.0)
    ULSIF(n_centers=200, centers_from='numerator', ridge='auto', kernel=None, clip=20.0)
    >>> ULSIF(clip=0.5)
    Traceback (most recent call last):
    ValueError: ULSIF: clip must exceed 1, the mean of a ratio, got 0.5
    """

    n_centers: int = 500
    centers_from: Literal["numerator", "denominator"] = "numerator"
    ridge: float | Literal["auto"] = "auto"
    kernel: Matern | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        """Check that the settings define an estimate."""
        check_count("ULSIF: n_centers", self.n_centers, most=MOST_CENTERS)
        check_word("ULSIF: centers_from", self.centers_from, ("numerator", "denominator"))
        if not is_word(self.ridge, "auto"):
            check_number("ULSIF: ridge", self.ridge, "positive or 'auto'", open_low=True)
        if self.kernel is not None and not isinstance(self.kernel, Matern):
            raise ValueError(f"ULSIF: kernel must be None or a Matern kernel, got {shown(self.kernel)}")
        if self.clip is not None and not (isinstance(self.clip, Real) and 1 < self.clip < np.inf):
            raise ValueError(f"ULSIF: clip must exceed 1, the mean of a ratio, got {shown(self.clip)}")


@dataclass(frozen=True)
class RatioMoments:
    """Sums over transitions: Σ k kᵀ and Σ k over the denominator, Σ k over the numerator, their number."""

    second: Matrix
    denominator: Vector
    numerator: Vector
    count: int

    def __add__(self, other: RatioMoments) -> RatioMoments:
        """Sums over both samples."""
        return RatioMoments(*map(add, vars(self).values(), vars(other).values()))


def section_means(
    kernel: Matern, centers: Inputs, numerators: Inputs, weights: Weights, out: Features | None = None
) -> Features:
    """Kernel sections at the numerator inputs (draws, n, dim), averaged over the draws; (n, b).

    In the precision of ``out``, if that is given.
    """
    mean = np.empty((numerators.shape[1], len(centers))) if out is None else out
    section = scratch("section", mean.shape, mean.dtype)
    for i, (draw, weight) in enumerate(zip(numerators, weights, strict=True)):
        weighted = replace(kernel, sigma=kernel.sigma * np.sqrt(weight))
        weighted(draw, centers, out=section if i else mean)
        if i:
            mean += section
    return mean


def moments(denominator_sections: Features, numerator_sections: Features) -> RatioMoments:
    """Sums for one chunk from its kernel sections (n, b)."""
    return RatioMoments(
        denominator_sections.T @ denominator_sections,
        denominator_sections.sum(axis=0, dtype=np.float64),
        numerator_sections.sum(axis=0, dtype=np.float64),
        len(denominator_sections),
    )


def solve(sums: RatioMoments, ridge: float) -> Vector:
    """Coefficients α: the ridge solution, its negative entries set to zero, with mean ratio one."""
    system = sums.second / sums.count + ridge * np.eye(len(sums.second))
    alpha = np.maximum(cho_solve(cho_factor(system), sums.numerator / sums.count), 0)
    mean = float(alpha @ sums.denominator) / sums.count
    if not mean > 0:
        raise ValueError(
            "uLSIF found no overlap between the target policy's actions and the logged ones: every "
            "coefficient is zero; check the policy, or use continuation='sampled'"
        )
    return alpha / mean


def leave_one_out_score(denominator_sections: Features, numerator_sections: Features, ridge: float) -> float:
    """Closed-form leave-one-out value of the uLSIF objective (Kanamori, Hido and Sugiyama, 2009).

    Each fold leaves out one transition from both samples; coefficients are made non-negative in each.
    The sections (n, b) of both samples belong to the same transitions.
    """
    n = len(denominator_sections)
    x, y = denominator_sections.T, numerator_sections.T
    system = x @ x.T / n + ridge * (n - 1) / n * np.eye(len(x))
    factor = cho_factor(system)
    mean = y.mean(axis=1)
    solved_x, solved_y = cho_solve(factor, x), cho_solve(factor, y)
    # The rank-one update of the inverse when one denominator point is left out.
    denominator = n - np.einsum("ij,ij->j", x, solved_x)
    full = cho_solve(factor, mean)[:, None] + solved_x * (mean @ solved_x / denominator)
    own = solved_y + solved_x * (np.einsum("ij,ij->j", y, solved_x) / denominator)
    alpha = np.maximum(full - own / n, 0)
    at_denominator = np.einsum("ij,ij->j", x, alpha)
    at_numerator = np.einsum("ij,ij->j", y, alpha)
    return float(np.mean(at_denominator**2) / 2 - np.mean(at_numerator))


@dataclass(frozen=True)
class DensityRatio:
    """The fitted ratio η̂: non-negative, with mean one over the denominator sample.

    ``clip`` bounds it before ``scale``, which brings clipped ratios back to mean one; ``ridge`` is the λ with
    which it was fitted.
    """

    kernel: Matern
    centers: Inputs
    alpha: Vector
    clip: float | None
    ridge: float
    scale: float = 1.0

    def __call__(self, inputs: Inputs, dtype: npt.DTypeLike = np.float64) -> Vector:
        """η̂ at each row of ``inputs``, from kernel sections in the precision ``dtype``."""
        sections = scratch("section", (len(inputs), len(self.centers)), dtype)
        values = self.kernel(inputs, self.centers, out=sections) @ self.alpha
        return self.scale * (values if self.clip is None else np.minimum(values, self.clip))
