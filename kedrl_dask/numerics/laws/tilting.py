"""Laws by tilting simulated returns: nearest to the simulation among those that have the fitted embedding.

A recovered law lives on the atoms of the return grid, which is an ill-posed inversion where laws differ in
width or have two modes. Here the law lives on simulated returns z_k of the input itself, and only departs
from equal weights as far as the embedding μ = Σ_i ω_i k_Z(y_i, ·) demands:
min_p ‖Σ_k p_k k_Z(z_k, ·) − μ‖² + λ·KL(p‖1/K) over the simplex. How far it departs, the effective sample
size, tells how much two independent estimates disagree.

The dual problem is smooth and has no constraint: for any a in R^K, h = Σ_k a_k k_Z(z_k, ·) − μ gives the
weights p ∝ exp(−2h(z)/λ) and the duality gap (p − a)ᵀK_Z(p − a), which is zero at the minimiser. Newton's
method follows the solutions as λ falls to its value. The Gram matrix in its systems is replaced by a factor
of low rank, whose error is too small, against λ, to spoil a step; gradient and gap have the matrix itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_softmax, logsumexp

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import pivoted_cholesky
from kedrl_dask.numerics.laws.mixture import Mixture, checked_shift
from kedrl_dask.numerics.laws.recovery import TOLERANCE, Recovered, RecoverySettings
from kedrl_dask.utils.arrays import Atoms, Matrix, Points, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, check_number

#: Variance that the factor of K_Z may leave unexplained, as a share of λ: below a half, every step descends.
UNEXPLAINED = 0.25
#: λ in units of σ_Z² from which weights are equal, and the particles from which their distance is found.
EQUAL, JUDGED = 1e9, 1_000
#: Factor by which λ falls, and the gap, as a share of λ, at which it does.
FALL, NEAR = 10.0, 0.03
#: Newton steps for one λ, share of the predicted decrease that a step must bring, and the shortest step.
MAX_STEPS, SUFFICIENT, SHORTEST = 50, 1e-4, 1e-9


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Tilted(Recovered):
    """Laws on simulated returns, weighted so that they have a given embedding.

    They minimise the criterion of recovered laws with simulated returns as atoms, neither smoothed nor
    projected, and no penalty but the divergence from equal weights.

    Attributes
    ----------
    simulated_residual : (n,) array
        RKHS distance from the embedding with equal weights, relative to the embedding's norm.
    grid_shift : (n, d) array or None
        By which the grid of each embedding is moved.
    """

    simulated_residual: Vector
    grid_shift: Points | None

    def __repr__(self) -> str:
        """How many laws of what, and how far the weights had to depart from the simulation."""
        n, k, d = self.atoms.shape
        return (
            f"{type(self).__name__}: {n} laws of {d} coordinates on {k} simulated returns; effective sample "
            f"size from {self.effective_sample_size.min(initial=1.0):.1%}, gap up to "
            f"{self.gap.max(initial=0.0):.1e}"
        )

    @property
    def effective_sample_size(self) -> Vector:
        """1/(K·Σp²), from 1/K to one for equal weights; (n,)."""
        return effective_share(self.weights)

    @property
    def is_equal(self) -> bool:
        """Whether the simulated returns have equal weights, whatever the embedding."""
        return bool(self.settings.divergence >= EQUAL * self.kernel.sigma**2)

    @property
    def second_specification(self) -> str:
        """What :attr:`sensitivity` changes."""
        if self.is_equal:
            return "half of the simulated returns"
        return "ten times the penalty on departures from the simulation"

    def under(self, **settings: Any) -> Tilted:
        """The laws under another divergence: ``tilted.under(divergence=0.1)``."""
        if settings.keys() != {"divergence"}:
            raise ValueError(
                f"under: laws of simulated returns have the setting divergence, got {', '.join(settings)}; "
                "recover with method='grid' for the others"
            )
        fixed = self.atoms, self.coefficients, self.grid, self.kernel
        return tilt(*fixed, settings["divergence"], self.grid_shift)

    @cached_property
    def sensitivity(self) -> Tilted:
        """The laws with ten times the divergence, or every second of the equally weighted returns."""
        if self.is_equal:
            fixed = self.coefficients, self.grid, self.kernel, self.settings.divergence, self.grid_shift
            return tilt(self.atoms[:, ::2], *fixed)
        return self.under(divergence=10 * self.settings.divergence)


def effective_share(weights: Weights) -> Vector:
    """Effective sample size of each row of weights, as a share of their number; (n,)."""
    return 1 / (weights.shape[1] * (weights**2).sum(axis=1))


def tilt(
    particles: npt.ArrayLike,
    coefficients: npt.ArrayLike,
    grid: npt.ArrayLike,
    kernel: Matern,
    divergence: float,
    shift: npt.ArrayLike | None = None,
) -> Tilted:
    """Weights of simulated returns whose law has nearly the given embedding, for n inputs.

    Minimises ‖Σ_k p_k k_Z(z_k, ·) − Σ_i ω_i k_Z(y_i, ·)‖² + λ·KL(p‖1/K) over the simplex.

    Parameters
    ----------
    particles : (n, K, d) array
        z, simulated returns of each input.
    coefficients : (n, m) array
        ω, signed.
    grid : (m, d) array
        y, the atoms of the embeddings.
    kernel : Matern
        k_Z.
    divergence : float
        λ > 0. A large one leaves the simulated law as it is, and exactly so from ``EQUAL``·σ_Z² on; a small
        one matches the embedding as far as the particles can.
    shift : (n, d) array, optional
        Added to the atoms of each embedding.

    Examples
    --------
    >>> import numpy as np
    >>> simulated = np.linspace(-1.0, 1.0, 5).reshape(1, 5, 1)
    >>> law = tilt(simulated, [[0.5, 0.5]], [[0.0], [1.0]], Matern(length_scale=2.0), divergence=1e-2)
    >>> law.weights.round(2)
    array([[0.04, 0.09, 0.19, 0.3 , 0.39]])
    >>> law.effective_sample_size.round(2)
    array([0.7])
    """
    z, omega, y = _checked(particles, coefficients, grid)
    check_number("tilt: divergence", divergence, "a positive number", open_low=True)
    n, k, d = z.shape
    moves = checked_shift("tilt", shift, n, d)
    gram = kernel(y, y)
    weights, gap, square = np.empty((n, k)), np.empty(n), np.empty((2, n))
    norm = np.einsum("ni,ij,nj->n", omega, gram, omega, optimize=True)
    tolerance = TOLERANCE * kernel.sigma**2
    is_equal = divergence >= EQUAL * kernel.sigma**2
    for i in range(n):
        own = z[i] if moves is None else z[i] - moves[i]
        if is_equal:  # some of the particles tell the distance
            own = own[:: max(1, k // JUDGED)]
        between, target = kernel(own, own), omega[i] @ kernel(y, own)
        equal = np.full(len(own), 1 / len(own))
        found, gap[i] = (equal, 0.0) if is_equal else _minimise(between, target, divergence, tolerance)
        weights[i] = 1 / k if is_equal else found
        square[:, i] = [norm[i] + p @ (between @ p - 2 * target) for p in (equal, found)]
    # Differences of nearly equal squares: below zero they are rounding.
    before, after = np.sqrt(np.maximum(square, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = [
            np.where(norm > 0, part / np.sqrt(np.maximum(norm, 0.0)), np.inf) for part in (before, after)
        ]
    entropy = (weights * np.log(np.maximum(k * weights, np.finfo(float).tiny))).sum(axis=1)
    settings = RecoverySettings(0.0, 0.0, None, divergence, None, "uniform")
    return Tilted(
        z, weights, np.zeros(d), drawn_bandwidth=drawn_bandwidth(z, weights),
        residual=after, relative_residual=relative[1], simulated_residual=relative[0], gap=gap,
        converged=gap <= tolerance, objective=after**2 + divergence * entropy,
        coefficients=omega, grid=y, kernel=kernel, settings=settings, grid_shift=moves,
    )  # fmt: skip


def drawn_bandwidth(particles: Points, weights: Weights) -> Points:
    """Smoothing of the densities of weighted particles, by Silverman's rule for as many as are effective.

    A coordinate of one value has none.
    """
    law = Mixture(particles, weights, np.zeros(particles.shape[2]))
    spread = np.sqrt(np.diagonal(law.covariance(), axis1=1, axis2=2))
    quartiles = np.stack([law.quantile((0.25, 0.75), c) for c in range(law.dim)], axis=1)
    middle = np.diff(quartiles, axis=2)[..., 0] / 1.34
    width = np.where(middle > 0, np.minimum(spread, middle), spread)
    return np.asarray(0.9 * width * (1 / (weights**2).sum(axis=1))[:, None] ** -0.2)


def _minimise(gram: Matrix, target: Vector, divergence: float, tolerance: float) -> tuple[Vector, float]:
    """The weights of one input and their gap, from the embedding's values at the particles."""
    order, lower = pivoted_cholesky(gram, UNEXPLAINED * divergence)
    factor = np.empty_like(lower)
    factor[order] = lower
    log_p = np.full(len(target), -np.log(len(target)))
    # At the first λ the logarithms of the weights differ by little more than one.
    spread = 2 * float(np.ptp(target - gram.mean(axis=1)))
    n_falls = int(np.ceil(np.log(max(spread / divergence, 1.0)) / np.log(FALL)))
    for level in divergence * FALL ** np.arange(n_falls, 0, -1):
        rank = max(1, np.count_nonzero(np.diagonal(lower) ** 2 > UNEXPLAINED * level))
        log_p, _ = _newton(gram, target, factor[:, :rank], level, log_p, NEAR * level)
    log_p, gap = _newton(gram, target, factor, divergence, log_p, tolerance)
    return np.exp(log_p), gap


def _newton(
    gram: Matrix, target: Vector, factor: Matrix, level: float, log_p: Vector, tolerance: float
) -> tuple[Vector, float]:
    """Logarithms of the weights for one λ, from those for another, and the gap.

    A state holds a and K_Z·a. The first step linearises the logarithms of the weights where they are, the
    others are those of the dual problem, −‖h‖² − 2⟨h, μ⟩ − λ·log mean exp(−2h(z)/λ), along lines of which
    its value does not fall.
    """

    def step_from(log_p: Vector, p: Vector, at: Vector) -> Matrix:
        slope = 2 / level * (target - at) - log_p
        side = p * (slope - p @ slope)
        rooted, mean = np.sqrt(p)[:, None] * factor, p @ factor
        system = np.eye(len(mean)) + 2 / level * (rooted.T @ rooted - np.outer(mean, mean))
        turned = factor @ cho_solve(cho_factor(system), side @ factor)
        a = p + side - 2 / level * p * (turned - p @ turned)
        return np.stack([a, gram @ a])

    def loss(state: Matrix) -> float:
        return float(state[0] @ state[1] + level * logsumexp(2 / level * (target - state[1])))

    p = np.exp(log_p)
    state = step_from(log_p, p, gram @ p)
    for _ in range(MAX_STEPS):
        log_p = log_softmax(2 / level * (target - state[1]))
        p = np.exp(log_p)
        at = gram @ p
        gap = max(float((p - state[0]) @ (at - state[1])), 0.0)
        if gap <= tolerance:
            break
        change, length = step_from(log_p, p, at) - state, 1.0
        enough = 2 * SUFFICIENT * float((p - state[0]) @ change[1])
        while loss(state + length * change) > loss(state) - length * enough and length > SHORTEST:
            length /= 2
        state = state + length * change
    return log_p, gap


def _checked(
    particles: npt.ArrayLike, coefficients: npt.ArrayLike, grid: npt.ArrayLike
) -> tuple[Points, Weights, Atoms]:
    z, omega = as_numbers("tilt: particles", particles), as_numbers("tilt: coefficients", coefficients)
    y = as_numbers("tilt: grid", grid)
    if z.ndim != 3 or 0 in z.shape[1:]:
        raise ValueError(f"tilt: particles have shape {z.shape}, expected (n, K, d): K returns of each input")
    n, _, d = z.shape
    if omega.ndim != 2 or len(omega) != n:
        raise ValueError(f"tilt: coefficients have shape {omega.shape}, expected ({n}, m) for {n} inputs")
    if y.shape != (omega.shape[1], d):
        raise ValueError(f"tilt: grid has shape {y.shape}, expected {(omega.shape[1], d)}")
    return z, omega, y
