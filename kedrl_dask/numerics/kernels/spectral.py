"""Spectral features of the Matérn kernel: the return space becomes C^Q, and a reward shift a rotation.

The spectral measure of a Matérn kernel is the multivariate Student-t law with 2ν degrees of freedom
and scale 1/ℓ. With frequencies W drawn from it, φ(z) = (σ/√Q)·exp(iWz) satisfies
Re φ(z)ᴴφ(z') ≈ k(z, z'), and φ(r + γz) = exp(iWr) ⊙ φ(γz) exactly.

Complex features are kept as real arrays of twice the width, real and imaginary parts in turn: every
matrix product is then a real one, and :func:`as_complex` looks at the same memory as complex numbers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import gammaincinv, ndtri
from scipy.stats import chi, ortho_group, qmc

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Complex, Frequencies, Points, Waves
from kedrl_dask.utils.scratch import scratch

Method = Literal["qmc", "orthogonal", "iid"]
METHODS: tuple[Method, ...] = ("qmc", "orthogonal", "iid")


def frequencies(
    kernel: Matern, dim: int, n_features: int, method: Method = "qmc", random_state: int = 0
) -> Frequencies:
    """Frequencies W (n_features, dim) of the spectral measure of ``kernel``, whose sigma does not matter.

    Scrambled Sobol points through the inverse Gaussian and χ² maps (the most accurate for a few dimensions),
    orthogonal Gaussian directions, or independent draws.
    """
    if n_features < 1:
        raise ValueError(f"n_features must be at least 1, got {n_features}")
    kernel.refuse_directions("frequencies")
    rng = np.random.default_rng(random_state)
    gaussian: Points
    if method == "qmc":
        # A power of two keeps Sobol points balanced; a prefix of one serves any other number.
        sobol = qmc.Sobol(dim + 1, scramble=True, rng=rng)
        uniform = sobol.random_base2(int(np.ceil(np.log2(max(n_features, 2)))))[:n_features]
        uniform = np.clip(uniform, 1e-15, 1 - 1e-15)
        gaussian, chi_square = ndtri(uniform[:, :dim]), 2 * gammaincinv(kernel.nu, uniform[:, dim])
    elif method == "orthogonal":
        gaussian = _orthogonal_gaussian(dim, n_features, rng)
        chi_square = rng.chisquare(2 * kernel.nu, n_features)
    elif method == "iid":
        gaussian = rng.standard_normal((n_features, dim))
        chi_square = rng.chisquare(2 * kernel.nu, n_features)
    else:
        raise ValueError(f"unknown spectral method {method!r}; use one of {', '.join(METHODS)}")
    student = gaussian / np.sqrt(chi_square / (2 * kernel.nu))[:, None]
    return kernel.scale(student)


def _orthogonal_gaussian(dim: int, n_features: int, rng: np.random.Generator) -> Points:
    """Rows of random rotations with the lengths of Gaussian vectors."""
    n_rotations = -(-n_features // dim)
    if dim == 1:
        return rng.standard_normal((n_features, 1))
    directions = ortho_group.rvs(dim, size=n_rotations, random_state=rng).reshape(-1, dim)[:n_features]
    return directions * chi.rvs(dim, size=n_features, random_state=rng)[:, None]


def waves(points: Points, frequencies: Frequencies, out: Waves | None = None) -> Waves:
    """exp(iWz) for each row z of ``points``, as cosines and sines in turn; shape (n, 2Q).

    In the precision of the points, or into ``out`` in its own. If the two differ, the points are first
    shifted to their centre, a rotation that is undone, so that returns far from zero keep their digits.
    """
    points = np.asarray(points)
    points = points.astype(np.result_type(points, np.float32), copy=False)
    if out is None:
        out = np.empty((len(points), 2 * len(frequencies)), points.dtype)
    dtype, centre, rescaled = out.dtype, None, frequencies
    if points.dtype != dtype:
        centre = points.mean(axis=0, keepdims=True)
        shifted = points - centre
        # To numbers below one, by powers of two, which change no digit: others may not exist in ``dtype``.
        unit = np.ldexp(1.0, np.frexp(np.abs(shifted).max(axis=0, initial=0.0))[1])
        points, rescaled = (shifted / unit).astype(dtype), frequencies * unit
    phase = scratch("phase", (len(points), len(frequencies)), dtype)
    np.matmul(points, rescaled.T.astype(dtype, copy=False), out=phase)
    np.cos(phase, out=out[:, 0::2])
    np.sin(phase, out=out[:, 1::2])
    if centre is not None:
        rotated = as_complex(out)
        rotated *= np.exp(1j * (centre @ frequencies.T)).astype(rotated.dtype)
    return out


def as_complex(x: Waves) -> Complex:
    """View an array of real and imaginary parts in turn (n, 2Q) as complex numbers (n, Q)."""
    return x.view(np.result_type(x.dtype, np.complex64))


def kernel_error(kernel: Matern, points: Points, frequencies: Frequencies) -> float:
    """Root mean square error of the feature kernel against the exact one between ``points``, over σ²."""
    features = waves(points, frequencies)
    approximate = features @ features.T / len(frequencies)
    return float(np.sqrt(np.mean((approximate - kernel(points, points) / kernel.sigma**2) ** 2)))
