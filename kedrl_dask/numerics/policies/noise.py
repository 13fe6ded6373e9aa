"""Standard noise laws of the parametric policies, with quadrature nodes that depend on nothing else.

Each law is symmetric about zero and is declared by its quantile function, log density, characteristic
function and the recurrence coefficients β_k of its monic orthogonal polynomials,
p_{k+1}(x) = x·p_k(x) − β_k·p_{k−1}(x), from which its Gauss rules follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import ndtri
from scipy.stats import qmc

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Points, Vector, Weights
from kedrl_dask.utils.checks import check_count

# The points must be the same in every process and release: part of the definition, not a setting.
_SOBOL_SEED = 20_240_607
# Half the spacing of ``Generator.random``: keeps the quantile function finite when a uniform draw is zero.
_SMALLEST_PROBABILITY = 2.0**-54


class Noise(ABC):
    """A law on the line, symmetric about zero."""

    @abstractmethod
    def quantile(self, probability: Vector) -> Vector:
        """Quantile function."""

    @abstractmethod
    def log_density(self, noise: Vector) -> Vector:
        """Logarithm of the density."""

    @abstractmethod
    def characteristic_function(self, t: Vector) -> Vector:
        """E exp(i·t·n), real because the law is symmetric."""

    @abstractmethod
    def recurrence(self, k: Vector) -> Vector:
        """Recurrence coefficients β_k of the orthogonal polynomials, k = 1, 2, …"""

    @property
    def variance(self) -> float:
        """β_1."""
        return float(self.recurrence(np.array([1.0]))[0])

    def sample(self, shape: tuple[int, ...], rng: np.random.Generator) -> Vector:
        """Independent draws, by inversion."""
        return self.quantile(np.maximum(rng.random(shape), _SMALLEST_PROBABILITY))

    def nodes(self, n_nodes: int, dim: int) -> tuple[Points, Weights]:
        """Nodes (k, dim) and weights (k,) for the mean over ``dim`` independent coordinates, k ≤ n_nodes.

        The tensor Gauss rule with as many nodes per coordinate as ``n_nodes`` allows. If that is fewer than
        two, that is for 1 < ``n_nodes`` < 2^dim, ``n_nodes`` scrambled Sobol points of equal weight.
        """
        check_count("the number of draws", n_nodes)
        return _nodes(self, n_nodes, dim)

    def nodes_needed(self, spread: float, kernel: Matern, tolerance: float = 1e-6, at_most: int = 32) -> int:
        """Fewest Gauss nodes in one coordinate that average a kernel to within ``tolerance``·σ².

        Wherever its centre; of the kernel only the smoothness matters. ``spread`` is the scale of the noise
        in units of the kernel's length; ``at_most`` is returned if no smaller number is enough.
        """
        unit = Matern(kernel.nu)
        offsets = np.linspace(0.0, 3.0, 31)[:, None] * max(1.0, spread)

        def mean(n_nodes: int) -> Vector:
            nodes, weights = self.nodes(n_nodes, 1)
            return unit(offsets, spread * nodes) @ weights

        reference = mean(4 * at_most)
        enough = (n for n in range(1, at_most) if np.abs(mean(n) - reference).max() <= tolerance)
        return next(enough, at_most)


class GaussianNoise(Noise):
    """N(0, 1)."""

    def quantile(self, probability: Vector) -> Vector:
        """Φ⁻¹(u)."""
        return ndtri(probability)

    def log_density(self, noise: Vector) -> Vector:
        """−n²/2 − log √(2π)."""
        return -0.5 * noise**2 - 0.5 * np.log(2 * np.pi)

    def characteristic_function(self, t: Vector) -> Vector:
        """exp(−t²/2)."""
        return np.exp(-0.5 * t**2)

    def recurrence(self, k: Vector) -> Vector:
        """β_k = k (Hermite)."""
        return k


class UniformNoise(Noise):
    """Unif(−1, 1)."""

    def quantile(self, probability: Vector) -> Vector:
        """2u − 1."""
        return 2.0 * probability - 1.0

    def log_density(self, noise: Vector) -> Vector:
        """−log 2 on [−1, 1], −∞ elsewhere."""
        return np.where(np.abs(noise) <= 1.0, -np.log(2.0), -np.inf)

    def characteristic_function(self, t: Vector) -> Vector:
        """sin(t)/t."""
        return np.sinc(t / np.pi)

    def recurrence(self, k: Vector) -> Vector:
        """β_k = k²/(4k² − 1) (Legendre)."""
        return k**2 / (4 * k**2 - 1)


class LogisticNoise(Noise):
    """Standard logistic law, of variance π²/3."""

    def quantile(self, probability: Vector) -> Vector:
        """log(u/(1 − u))."""
        return np.log(probability) - np.log1p(-probability)

    def log_density(self, noise: Vector) -> Vector:
        """−|n| − 2·log(1 + exp(−|n|)), the form that never overflows."""
        size = np.abs(noise)
        return -size - 2.0 * np.log1p(np.exp(-size))

    def characteristic_function(self, t: Vector) -> Vector:
        """πt/sinh(πt) = 2u·exp(−u)/(1 − exp(−2u)) with u = π|t|, which never overflows; one at zero."""
        u = np.pi * np.abs(t)
        positive = np.where(u > 0, u, 1.0)
        return np.where(u > 0, -2.0 * positive * np.exp(-positive) / np.expm1(-2.0 * positive), 1.0)

    def recurrence(self, k: Vector) -> Vector:
        """β_k = π²k⁴/(4k² − 1): continuous Hahn polynomials with all parameters 1/2, at n/(2π)."""
        return np.pi**2 * k**4 / (4 * k**2 - 1)


@lru_cache(maxsize=64)
def _nodes(noise: Noise, n_nodes: int, dim: int) -> tuple[Points, Weights]:
    """Read-only nodes and weights: see :meth:`Noise.nodes`."""
    per_axis = max(k for k in range(1, n_nodes + 1) if k**dim <= n_nodes)
    if per_axis >= 2 or n_nodes == 1:
        axis, axis_weights = _gauss_rule(noise, per_axis)
        index = np.indices((per_axis,) * dim).reshape(dim, -1).T
        nodes, weights = axis[index], axis_weights[index].prod(axis=1)
    else:
        # A power of two keeps Sobol points balanced; a prefix of one serves any other number.
        sobol = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(_SOBOL_SEED))
        points = sobol.random_base2((n_nodes - 1).bit_length())[:n_nodes]
        nodes = noise.quantile(np.maximum(points, _SMALLEST_PROBABILITY))
        weights = np.full(n_nodes, 1.0 / n_nodes)
    nodes.flags.writeable = weights.flags.writeable = False
    return nodes, weights


def _gauss_rule(noise: Noise, n_nodes: int) -> tuple[Vector, Weights]:
    """Golub-Welsch: eigenvalues of the Jacobi matrix, squared first entries of its eigenvectors."""
    off_diagonal = np.sqrt(noise.recurrence(np.arange(1.0, n_nodes)))
    nodes, vectors = eigh_tridiagonal(np.zeros(n_nodes), off_diagonal)
    weights = vectors[0] ** 2
    # The law is symmetric: making the rule so to the last digit annihilates odd moments exactly.
    nodes, weights = (nodes - nodes[::-1]) / 2, (weights + weights[::-1]) / 2
    return nodes, weights / weights.sum()
