"""The Matérn kernel, for inputs (k_X), returns (k_Z) and density ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import factorial

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist
from scipy.special import gammaln, kve

from kedrl_dask.numerics.kernels import matern_compiled
from kedrl_dask.utils.arrays import Matrix, Points, Record, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, shown
from kedrl_dask.utils.scratch import scratch

#: Elements of a block: two of them in single precision take half of a core's second-level cache.
BLOCK_ELEMENTS = 65_536
#: Scaled distance where exp overflows, so that the kernel is exactly zero, while powers of it do not.
FARTHEST = 800.0
#: Largest parameters, and inverses of the smallest: everything computed from the kernel stays in the range of
#: floats. Beyond this ν the kernel hardly changes: it is nearly Gaussian.
LARGEST_NU, LARGEST_LENGTH, LARGEST_SIGMA = 1e3, 1e110, 1e50
#: Scaled coordinates beyond which differences are taken first: squares lose them, or overflow in single
#: precision.
FAR = 1e15


@lru_cache(maxsize=64)
def _half_integer_polynomial(order: int) -> tuple[float, ...]:
    """Coefficients, constant first, of the polynomial p with k(t) = p(t)·exp(−t) at ν = order + 1/2.

    t is the scaled distance √(2ν)·|x − y|/ℓ.
    """
    # One division of integers each: the constant is then exactly one.
    return tuple(
        (factorial(order) * factorial(2 * order - j) * 2**j)
        / (factorial(2 * order) * factorial(order - j) * factorial(j))
        for j in range(order + 1)
    )


def _half_integer_kernel(order: int, variance: float, t: Matrix, out: Matrix) -> None:
    """σ²·p(t)/exp(t) into ``out``, at scaled distances ``t``, which are overwritten; double precision."""
    first, *others = (variance * c for c in reversed(_half_integer_polynomial(order)))
    if not others:
        out[...] = first
    for i, c in enumerate(others):
        np.multiply(out if i else t, t if i else first, out=out)
        out += c
    with np.errstate(over="ignore"):  # far away the kernel is zero
        np.exp(t, out=t)
    out /= t


def _bessel_correlation(nu: float, t: Matrix) -> Matrix:
    """Matérn correlation 2^{1−ν}/Γ(ν)·t^ν·K_ν(t) at scaled distances t ≥ 0, in logarithms."""
    # kve carries the factor exp(t) and is reliable up to 10⁶.
    wide = np.minimum(t.astype(np.float64, copy=False), 1e6)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_k = (1 - nu) * np.log(2.0) - gammaln(nu) + nu * np.log(wide) + np.log(kve(nu, wide)) - wide
    # As t → 0 the product tends to 1 while K_ν overflows, for large ν well before t = 0: its series.
    small = ~np.isfinite(log_k) & ~np.isnan(wide)
    n, x = max(nu, 3.0), wide**2 / 4
    near_zero = -x / (n - 1) + x**2 / (2 * (n - 1) ** 2 * (n - 2))
    return np.exp(np.minimum(np.where(small, near_zero, log_k), 0.0))


@lru_cache(maxsize=64)
def _gamma_nodes(nu: float) -> tuple[Vector, Weights]:
    """Nodes and weights of the mean over Gamma(ν, rate ν): the trapezoidal rule in log u.

    There the density, and Gaussian kernels of squared length u, are analytic and fall off at both ends, so
    that the rule converges exponentially: this step and these ends give fourteen digits.
    """
    step = 0.7 / np.sqrt(max(nu, 1.0)) / 4
    low, high = -34 / nu - 1, np.log(2.0) + np.log1p(36 / nu)
    t = np.arange(low, high, step)
    log_density = nu * np.log(nu) - gammaln(nu) + nu * t - nu * np.exp(t)
    kept = log_density > -40
    return np.exp(t[kept]), step * np.exp(log_density[kept])


@lru_cache(maxsize=64)
def _inverse(lengths: tuple[tuple[float, ...], ...]) -> Matrix:
    """S⁻¹."""
    return np.linalg.inv(np.array(lengths))


@dataclass(frozen=True)
class Matern:
    """Matérn kernel σ²·M_ν(√(2ν)·‖(x − y)/ℓ‖), for any smoothness ν > 0.

    Parameters
    ----------
    nu : float
        Smoothness. Half-integers use the closed form, other values the Bessel function.
    length_scale : float, tuple of float or tuple of tuples
        One length for all coordinates, or one for each, or a matrix S for lengths along other directions: the
        coordinates in which the kernel has unit length are u with x = uS.
    sigma : float
        Standard deviation: k(x, x) = sigma².

    Examples
    --------
    >>> kernel = Matern(nu=1.5, length_scale=2.0)
    >>> kernel(np.zeros((1, 3)), np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])).round(4)
    array([[1.    , 0.7849]])
    >>> kernel.scale(np.array([[4.0, 5.0]])).tolist(), kernel.to_dict()
    ([[2.0, 2.5]], {'nu': 1.5, 'length_scale': 2.0, 'sigma': 1.0})
    >>> Matern.from_dict({"nu": 2.5, "length_scale": [1.0, 3.0], "sigma": 2.0})
    Matern(nu=2.5, length_scale=(1.0, 3.0), sigma=2.0)
    >>> x = np.zeros((1, 2))
    >>> Matern(nu=1.5).smoothed(x, x, [0.5, 0.0]).round(4).tolist()
    [[0.7436]]
    """

    nu: float = 5.5
    length_scale: float | tuple[float, ...] | tuple[tuple[float, ...], ...] = 1.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        """Check that the parameters define a kernel; make sequences of lengths hashable."""
        for name, largest in (("nu", LARGEST_NU), ("length_scale", LARGEST_LENGTH), ("sigma", LARGEST_SIGMA)):
            given = getattr(self, name)
            value = as_numbers(f"Matern: {name}", given, finite=False)
            is_matrix = name == "length_scale" and value.ndim == 2 and len(value) == len(value.T)
            if value.ndim > (name == "length_scale") and not is_matrix:
                raise ValueError(f"Matern: {name} must be a number, got {shown(given)}")
            if is_matrix and np.isfinite(value).all():
                value = np.linalg.svd(value, compute_uv=False)
            if value.size == 0 or not (np.isfinite(value).all() and (value > 0).all()):
                raise ValueError(f"Matern: {name} must be positive and finite, got {shown(given)}")
            if value.max() > largest or value.min() < 1 / largest:
                raise ValueError(
                    f"Matern: {name} must lie between {1 / largest:g} and {largest:g}, got {shown(given)}; "
                    "give the data in other units"
                )
        lengths = np.asarray(self.length_scale, dtype=np.float64)
        if lengths.ndim:
            rows = map(tuple, lengths.tolist()) if lengths.ndim == 2 else lengths.tolist()
            object.__setattr__(self, "length_scale", tuple(rows))

    @property
    def has_directions(self) -> bool:
        """Whether lengths are along other directions than the coordinates."""
        return np.ndim(self.length_scale) == 2

    def lengths(self, dim: int) -> Vector:
        """Length along each of ``dim`` coordinates."""
        if self.has_directions:
            return 1 / np.linalg.norm(_inverse(self.length_scale), axis=1)
        return np.broadcast_to(np.asarray(self.length_scale, dtype=np.float64), (dim,))

    def refuse_directions(self, caller: str) -> None:
        """Raise an error if lengths are along other directions than the coordinates."""
        if self.has_directions:
            raise ValueError(
                f"{caller}: lengths along directions are for kernels of inputs; give one length or one for "
                "each coordinate"
            )

    def scale(self, x: Points) -> Points:
        """Coordinates in which the kernel is isotropic with unit length."""
        lengths = np.asarray(self.length_scale, dtype=x.dtype)
        if lengths.ndim and lengths.shape[0] != x.shape[-1]:
            raise ValueError(
                f"Matern: {lengths.shape[0]} length scales for points of dimension {x.shape[-1]}; "
                "give one length scale or one per coordinate"
            )
        return x @ _inverse(self.length_scale).astype(x.dtype) if self.has_directions else x / lengths

    def unscale(self, coordinates: Points) -> Points:
        """Inverse of :meth:`scale`."""
        lengths = np.asarray(self.length_scale, dtype=coordinates.dtype)
        return coordinates @ lengths if self.has_directions else coordinates * lengths

    def __call__(self, x: Points, y: Points, out: Matrix | None = None) -> Matrix:
        """Kernel matrix (n, k) between the rows of ``x`` (n, dim) and of ``y`` (k, dim).

        It is written to ``out``, in its precision, if that is given, and otherwise in the precision of the
        inputs, in blocks of rows that stay in a core's own cache. Coordinates are scaled and shifted to a
        common centre in the precision of the inputs.
        """
        x, y = np.atleast_2d(x), np.atleast_2d(y)
        given = np.result_type(x, y, np.float32)
        values = np.empty((len(x), len(y)), given) if out is None else out
        dtype = values.dtype
        x, y = self.scale(x.astype(given, copy=False)), self.scale(y.astype(given, copy=False))
        # The shift keeps the cancellation in |x|² − 2xy + |y|² at rounding level.
        centre = y.mean(axis=0) if len(y) else given.type(0)
        x, y = x - centre, y - centre
        if max(np.abs(x).max(initial=0), np.abs(y).max(initial=0)) < FAR:
            x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
        rows = max(16, BLOCK_ELEMENTS // max(1, len(y)))
        work = scratch("distances", (min(rows, len(x)), len(y)), dtype)
        in_place = dtype == np.float32 and values.flags.c_contiguous
        squares = self._squares(x, y)
        for start in range(0, len(x), rows):
            block = values[start : start + rows]
            square = block if in_place else work[: len(block)]
            squares(start, square)
            self._of_square(square, block)
        return values

    def _squares(self, x: Points, y: Points) -> Callable[[int, Matrix], None]:
        """Return a function that fills an array with squares of scaled distances from rows of ``x`` to ``y``.

        Rounding may make them slightly negative.
        """
        root = x.dtype.type(np.sqrt(2 * self.nu))
        largest = max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))
        if self.nu < 1 or not largest < FAR:
            # Rough at zero: there an error of √eps in the distance is an error of √eps in the kernel.
            def by_differences(start: int, square: Matrix) -> None:
                t = np.minimum(root * cdist(x[start : start + len(square)], y), FARTHEST)
                square[...] = t**2

            return by_differences
        x_square, y_square = (np.einsum("ij,ij->i", z, z) for z in (x, y))
        left, right = x, np.ascontiguousarray(-2 * y.T)
        is_single = x.dtype.itemsize < 8
        if is_single:
            # Squares and scale join the product: 2ν·(x, |x|², 1)·(−2y, 1, |y|²). In double that would cost
            # digits.
            left = root**2 * np.column_stack([x, x_square, np.ones_like(x_square)])
            right = np.vstack([right, np.ones_like(y_square), y_square])

        def by_product(start: int, square: Matrix) -> None:
            rows = slice(start, start + len(square))
            np.matmul(left[rows], right, out=square)
            if not is_single:
                square += x_square[rows, None]
                square += y_square
                square *= root**2

        return by_product

    def _of_square(self, square: Matrix, out: Matrix) -> None:
        """Kernel at squares of scaled distances, which are overwritten; ``out`` may be the same array."""
        order = self.nu - 0.5
        if order != int(order) or order > 20:
            t = np.sqrt(np.clip(square, 0, FARTHEST**2))
            np.multiply(_bessel_correlation(self.nu, t), self.sigma**2, out=out, casting="same_kind")
        elif square.dtype == np.float32:
            coefficients = self.sigma**2 * np.array(_half_integer_polynomial(int(order))[::-1])
            matern_compiled.half_integer_kernel(square.reshape(-1), coefficients.astype(np.float32))
            if out is not square:
                out[...] = square
        else:
            t = np.sqrt(np.clip(square, 0, FARTHEST**2, out=square), out=square)
            _half_integer_kernel(int(order), self.sigma**2, t, out)

    def smoothed(self, x: Points, y: Points, variance: npt.ArrayLike) -> Matrix:
        """E k(x, y + ε) with ε ~ N(0, diag(variance)), for all rows of ``x`` and ``y``; (n, k).

        The kernel is a mean over u ~ Gamma(ν, rate ν) of Gaussian kernels of squared lengths ℓ²u, and the
        mean of one of those has a closed form. One integral remains, whatever the dimension.

        Parameters
        ----------
        x, y : (n, dim) and (k, dim) arrays
        variance : float or (dim,) array
            Variance of the noise of each coordinate; zero leaves the coordinate as it is.
        """
        self.refuse_directions("smoothed")
        x, y = (np.atleast_2d(np.asarray(z, dtype=np.float64)) for z in (x, y))
        x, y = self.scale(x), self.scale(y)
        added = np.broadcast_to(variance, x.shape[1:]) / np.asarray(self.length_scale) ** 2
        squares = [(x[:, None, c] - y[None, :, c]) ** 2 for c in range(x.shape[1])]
        total = np.zeros((len(x), len(y)))
        for u, weight in zip(*_gamma_nodes(self.nu), strict=True):
            exponent = sum(square / (u + a) for square, a in zip(squares, added, strict=True))
            total += weight / np.sqrt(np.prod(1 + added / u)) * np.exp(-0.5 * exponent)
        return self.sigma**2 * total

    def to_dict(self) -> Record:
        """Plain numbers, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Record) -> Matern:
        """Inverse of :meth:`to_dict`."""
        return cls(values["nu"], values["length_scale"], values["sigma"])
