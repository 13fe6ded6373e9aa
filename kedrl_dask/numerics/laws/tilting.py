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

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_softmax, logsumexp

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import pivoted_cholesky
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.numerics.laws.recovery import TOLERANCE
from kedrl_dask.utils.arrays import Atoms, Mask, Matrix, Points, Vector, Weights
from kedrl_dask.utils.checks import as_numbers

#: Variance that the factor of K_Z may leave unexplained, as a share of λ: below a half, every step descends.
UNEXPLAINED = 0.25
#: Factor by which λ falls, and the gap, as a share of λ, at which it does.
FALL, NEAR = 10.0, 0.03
#: Newton steps for one λ, share of the predicted decrease that a step must bring, and the shortest step.
MAX_STEPS, SUFFICIENT, SHORTEST = 50, 1e-4, 1e-9


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Tilted(Mixture):
    """Laws on simulated returns, weighted so that they have a given embedding.

    Attributes
    ----------
    simulated_residual, residual : (n,) arrays
        RKHS distance from the embedding, in units of σ_Z, with equal weights and with those found.
    gap : (n,) array
        How far at most the objective is above its minimum.
    converged : (n,) bool array
        Whether the gap is below 10⁻¹⁰ of k_Z(z, z).
    """

    simulated_residual: Vector
    residual: Vector
    gap: Vector
    converged: Mask

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
        return 1 / (self.weights.shape[1] * (self.weights**2).sum(axis=1))


def tilt(
    particles: npt.ArrayLike,
    coefficients: npt.ArrayLike,
    atoms: npt.ArrayLike,
    kernel: Matern,
    divergence: npt.ArrayLike,
) -> Tilted:
    """Weights of simulated returns whose law has nearly the given embedding, for n inputs.

    Minimises ‖Σ_k p_k k_Z(z_k, ·) − Σ_i ω_i k_Z(y_i, ·)‖² + λ·KL(p‖1/K) over the simplex.

    Parameters
    ----------
    particles : (n, K, d) array
        z, simulated returns of each input.
    coefficients : (n, m) array
        ω, signed.
    atoms : (m, d) or (n, m, d) array
        y, the atoms of the embeddings: common to all inputs, or of each input.
    kernel : Matern
        k_Z.
    divergence : float or (n,) array
        λ > 0. A large one leaves the simulated law as it is, a small one matches the embedding as far as the
        particles can.

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
    z, omega, y, ridge = _checked(particles, coefficients, atoms, divergence)
    n, k, d = z.shape
    weights, gap, square = np.empty((n, k)), np.empty(n), np.empty((2, n))
    tolerance = TOLERANCE * kernel.sigma**2
    for i in range(n):
        gram, target = kernel(z[i], z[i]), omega[i] @ kernel(y[i], z[i])
        weights[i], gap[i] = _minimise(gram, target, float(ridge[i]), tolerance)
        norm = omega[i] @ kernel(y[i], y[i]) @ omega[i]
        square[:, i] = [norm + p @ (gram @ p - 2 * target) for p in (np.full(k, 1 / k), weights[i])]
    # Differences of nearly equal squares: below zero they are rounding.
    before, after = np.sqrt(np.maximum(square, 0.0)) / kernel.sigma
    return Tilted(
        z, weights, np.zeros(d),
        simulated_residual=before, residual=after, gap=gap, converged=gap <= tolerance,
    )  # fmt: skip


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
    particles: npt.ArrayLike, coefficients: npt.ArrayLike, atoms: npt.ArrayLike, divergence: npt.ArrayLike
) -> tuple[Points, Weights, Atoms, Vector]:
    """All of them with one row for each input."""
    z, omega = as_numbers("tilt: particles", particles), as_numbers("tilt: coefficients", coefficients)
    y, ridge = as_numbers("tilt: atoms", atoms), as_numbers("tilt: divergence", divergence)
    if z.ndim != 3 or 0 in z.shape[1:]:
        raise ValueError(f"tilt: particles have shape {z.shape}, expected (n, K, d): K returns of each input")
    n, _, d = z.shape
    if omega.ndim != 2 or len(omega) != n:
        raise ValueError(f"tilt: coefficients have shape {omega.shape}, expected ({n}, m) for {n} inputs")
    if y.shape not in ((omega.shape[1], d), (n, omega.shape[1], d)):
        raise ValueError(
            f"tilt: atoms have shape {y.shape}, expected {(omega.shape[1], d)}, or one such array for each "
            f"of {n} inputs"
        )
    if ridge.shape not in ((), (n,)) or not (ridge > 0).all():
        raise ValueError("tilt: divergence must be a positive number, or one for each input")
    return z, omega, np.broadcast_to(y, (n, omega.shape[1], d)), np.broadcast_to(ridge, (n,))
