"""Results of an embedding without inversion: expectations, smoothed events, distances, averages.

Σ_i ω_i k_Z(z_i, ·) gives ⟨h, μ̂⟩ = Σ_i ω_i h(z_i) for h in the RKHS of the return kernel (sec:stat_recovery).
Other functions go through a regularised proxy ĥ in the RKHS, with its norm and its error (app:emb_ill_posed).
The coefficients are signed: none of the results is a probability, and an estimate of one may lie outside
[0, 1]. Recovered laws give probabilities, :mod:`kedrl_dask.numerics.laws.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.laws.mixture import ReturnFunction, atoms_at, checked_coordinate
from kedrl_dask.numerics.laws.recovery import Recovered, RecoverySettings, recover_law
from kedrl_dask.utils.arrays import Atoms, Matrix, Points, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, check_number, shown

__all__ = ["Box", "Embedding", "Expectation", "KernelFunction", "Proxy", "above", "below", "interpolate"]


#: Values of λ that are tried, in units of σ². Below the first, K_Z + mλI is singular in double precision.
RIDGES = 10.0 ** np.arange(-12, 0.5, 0.5)
#: Atoms of an average whose Gram matrix fits in memory.
MOST_ATOMS = 10_000


@dataclass(frozen=True, eq=False)
class KernelFunction:
    """h = Σ_u c_u k_Z(y_u, ·), a function in the RKHS of the return kernel.

    Attributes
    ----------
    points : (k, d) array
        y.
    coefficients : (k,) array
        c.
    kernel : Matern
        k_Z.

    Examples
    --------
    >>> h = KernelFunction([[0.0], [1.0]], [1.0, -1.0], Matern(nu=1.5))
    >>> h([[0.5]]).tolist(), round(h.norm, 4)
    ([0.0], 1.0165)
    """

    points: Points
    coefficients: Vector
    kernel: Matern

    def __post_init__(self) -> None:
        """Check the shapes."""
        points = as_numbers("KernelFunction: points", self.points, finite=False)
        c = as_numbers("KernelFunction: coefficients", self.coefficients, finite=False)
        if points.ndim != 2 or c.shape != (len(points),):
            raise ValueError(
                f"KernelFunction: points of shape {points.shape} and coefficients of shape {c.shape}; "
                "expected (k, d) and (k,)"
            )
        if not (np.isfinite(points).all() and np.isfinite(c).all()):
            raise ValueError("KernelFunction: points and coefficients must be finite")
        vars(self).update(points=points, coefficients=c)

    def __call__(self, at: npt.ArrayLike) -> Vector:
        """Values at the rows of ``at`` (g, d); (g,)."""
        return self.kernel(_return_points(at, self.points.shape[1]), self.points) @ self.coefficients

    @cached_property
    def norm(self) -> float:
        """‖h‖ = √(cᵀKc): the factor by which an error of the embedding becomes one of the expectation."""
        return float(np.sqrt(np.maximum(self.coefficients @ self(self.points), 0.0)))


@dataclass(frozen=True, eq=False)
class Proxy(KernelFunction):
    """ĥ, which stands for a function g that need not be in the RKHS; made by :func:`interpolate`.

    Attributes
    ----------
    function : callable
        g.
    ridge : float
        λ.
    residual : (m,) array
        ĥ(z_i) − g(z_i) at the atoms.
    """

    function: ReturnFunction
    ridge: float
    residual: Vector

    @property
    def grid_error(self) -> float:
        """Largest |ĥ − g| at the atoms; it bounds nothing between them."""
        return float(np.abs(self.residual).max())


def interpolate(
    function: ReturnFunction,
    grid: npt.ArrayLike,
    kernel: Matern,
    ridge: float | Literal["auto"] = "auto",
) -> Proxy:
    """Regularised interpolant ĥ of a function on the atoms, c = (K_Z + mλI)⁻¹g (app:emb_ill_posed).

    Parameters
    ----------
    function : callable
        g: takes points (k, d) and gives k numbers.
    grid : (m, d) array
        The atoms.
    kernel : Matern
    ridge : "auto" or float
        λ: a larger one lowers ‖ĥ‖, and with it the error inherited from the embedding, but raises the bias.
        "auto" minimises the squared error at atoms left out one at a time, in closed form: an estimate of
        the error between atoms. It does not know how accurate the embedding is.

    Examples
    --------
    >>> grid = np.linspace(-1, 1, 21)[:, None]
    >>> proxy = interpolate(lambda z: z[:, 0] ** 2, grid, Matern())
    >>> proxy([[0.33]]).round(4).tolist()
    [0.1089]
    """
    if not callable(function):
        raise ValueError(f"expect: the function must be callable on points (k, d), got {shown(function)}")
    grid = as_numbers("expect: grid", grid)
    g = as_numbers("expect: the values of the function", function(grid), finite=False)
    m = len(grid)
    if g.shape != (m,) or not np.isfinite(g).all():
        raise ValueError(
            f"expect: the function gave shape {g.shape} for {m} atoms, expected one finite number for each"
        )
    values, vectors = np.linalg.eigh(kernel(grid, grid))
    values, rotated = np.maximum(values, 0.0), vectors.T @ g
    if isinstance(ridge, str) and ridge == "auto":
        tried = RIDGES * kernel.sigma**2
        ridge = float(min(tried, key=lambda value: _left_out(values + m * value, vectors, rotated)))
    else:
        check_number("expect: ridge", ridge, "a positive number or 'auto'", open_low=True)
    coefficients = vectors @ (rotated / (values + m * ridge))
    # (K + mλI)c = g, so that Kc − g is this, without a difference of nearly equal numbers.
    return Proxy(grid, coefficients, kernel, function, float(ridge), -m * ridge * coefficients)


def _left_out(shifted: Vector, vectors: Matrix, rotated: Vector) -> float:
    """Sum of squared errors at atoms left out one at a time: cᵢ/[(K + mλI)⁻¹]ᵢᵢ each."""
    return float((((vectors @ (rotated / shifted)) / (vectors**2 @ (1 / shifted))) ** 2).sum())


@dataclass(frozen=True)
class Box:
    """Indicator of a box, or a smoothed one: the product of Φ((b − z)/width) − Φ((a − z)/width).

    Attributes
    ----------
    bounds : dict
        Ends (a, b), which may be infinite, of the coordinates that are bounded.
    width : float
        Standard deviation of the smoothing; zero for the indicator itself.

    Examples
    --------
    >>> Box({0: (0.0, 1.0)})([[0.5], [2.0]]).tolist()
    [1.0, 0.0]
    """

    bounds: Mapping[int, tuple[float, float]]
    width: float = 0.0

    def __post_init__(self) -> None:
        """Check the ends."""
        if not isinstance(self.bounds, Mapping):
            raise ValueError(f"Box: bounds must be a dict of ends by coordinate, got {shown(self.bounds)}")
        for coordinate, ends in self.bounds.items():
            if as_numbers(f"Box: coordinate {shown(coordinate)}", ends, finite=False).shape != (2,):
                raise ValueError(f"Box: coordinate {coordinate} needs two ends, got {shown(ends)}")
            a, b = ends
            if not a <= b:
                raise ValueError(
                    f"Box: coordinate {coordinate} is bounded by {a} and {b}; expected low ≤ high"
                )
        check_number("Box: width", self.width, "a number ≥ 0")

    def __call__(self, at: npt.ArrayLike) -> Vector:
        """Values at the rows of ``at`` (g, d); (g,)."""
        at = as_numbers("Box: at", at)
        if at.ndim != 2:
            raise ValueError(f"Box: at has shape {at.shape}, expected (g, d): one row per point")
        self.ends(at.shape[1])
        inside = np.ones(len(at))
        for coordinate, (a, b) in self.bounds.items():
            z = at[:, coordinate]
            if self.width > 0:
                inside *= ndtr((b - z) / self.width) - ndtr((a - z) / self.width)
            else:
                inside *= (a <= z) & (z <= b)
        return inside

    def ends(self, dim: int) -> tuple[Vector, Vector]:
        """Low and high ends (d,), as :meth:`kedrl_dask.numerics.laws.mixture.Mixture.prob` takes them."""
        low, high = np.full(dim, -np.inf), np.full(dim, np.inf)
        for coordinate, (a, b) in self.bounds.items():
            index = checked_coordinate(coordinate, dim, "Box: ")
            low[index], high[index] = a, b
        return low, high


def below(t: float, coordinate: int = 0, width: float = 0.0) -> Box:
    """1{z ≤ t} of one coordinate, smoothed by ``width``: its expectation is the distribution function.

    Examples
    --------
    >>> below(1.0, width=0.5)([[1.0], [0.0]]).round(3).tolist()
    [0.5, 0.977]
    """
    return Box({coordinate: (-np.inf, t)}, width)


def above(t: float, coordinate: int = 0, width: float = 0.0) -> Box:
    """1{z ≥ t} of one coordinate, smoothed by ``width``: its expectation is the tail probability.

    Examples
    --------
    >>> above(1.0)([[1.0], [0.0]]).tolist()
    [1.0, 0.0]
    """
    return Box({coordinate: (t, np.inf)}, width)


@dataclass(frozen=True, eq=False)
class Expectation:
    """⟨ĥ, μ̂⟩ for n embeddings, with diagnostics.

    The error is at most ‖ĥ‖·‖μ̂ − μ‖ plus the smoothing bias (app:emb_ill_posed). Neither the error of the
    embedding nor the bias under the true law is known: the bias is that under the recovered law.

    Attributes
    ----------
    value : (n,) array
        Not expectations under a law, because coefficients are signed: those of an indicator may be below
        zero or above one.
    function : KernelFunction
        ĥ; a :class:`Proxy`, with its ridge and residual, unless the function was given as one of the RKHS. A
        tuple, one for each input, if the embeddings are shifted.
    bias : (n,) array
        E ĥ − E g under the recovered laws; zero for functions of the RKHS. For a smoothed box, g is its
        indicator.
    """

    value: Vector
    function: KernelFunction | tuple[KernelFunction, ...] = field(repr=False)
    bias: Vector

    @property
    def norm(self) -> float | Vector:
        """Stability factor ‖ĥ‖; (n,) if the embeddings are shifted."""
        return self._of_functions(lambda function: function.norm)

    @property
    def grid_error(self) -> float | Vector:
        """Largest |ĥ − g| at the atoms; zero for functions of the RKHS; (n,) if embeddings are shifted."""
        return self._of_functions(lambda f: f.grid_error if isinstance(f, Proxy) else 0.0)

    def _of_functions(self, number: Callable[[KernelFunction], float]) -> float | Vector:
        if isinstance(self.function, tuple):
            return np.array([number(function) for function in self.function])
        return number(self.function)


@dataclass(frozen=True, eq=False)
class Embedding:
    """n elements Σ_i ω_i k_Z(z_i, ·) of the return kernel's RKHS on a common grid, or moved ones.

    Attributes
    ----------
    coefficients : (n, m) array
        ω, signed: they are not probabilities.
    grid : (m, d) array
        z.
    kernel : Matern
        k_Z.
    shift : (n, d) array, optional
        Added to the grid of each input.

    Examples
    --------
    >>> grid = np.array([[0.0], [1.0], [2.0]])
    >>> embedding = Embedding(np.array([[0.4, 0.8, -0.2]]), grid, Matern())
    >>> embedding([[1.0]]).round(4).tolist()
    [[0.9132]]
    >>> embedding.expect(lambda z: z[:, 0]).value.round(3).tolist()
    [0.4]
    >>> law = embedding.recover(bandwidth=0.0)
    >>> law.weights.round(3).tolist(), law.relative_residual.round(3).tolist()
    ([[0.399, 0.601, 0.0]], [0.186])
    >>> both = Embedding(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), grid, Matern())
    >>> both.average([3, 1]).coefficients.tolist()
    [[0.875, 0.125, 0.0]]
    >>> embedding.mmd(both).round(4).tolist(), embedding.inner(both).round(4).tolist()
    ([0.5901, 0.2088], [[0.8255, 0.8693]])
    """

    coefficients: Weights
    grid: Atoms
    kernel: Matern
    shift: Points | None = field(default=None, kw_only=True)

    @property
    def alone(self) -> list[Embedding]:
        """The embedding of each input by itself, on its own grid."""
        return [
            Embedding(row[None], atoms_at(i, self.grid, self.shift, {}), self.kernel)
            for i, row in enumerate(self.coefficients)
        ]

    def __call__(self, at: npt.ArrayLike) -> Matrix:
        """Values at the rows of ``at`` (g, d); (n, g)."""
        if self.shift is not None:
            return np.concatenate([one(at) for one in self.alone])
        return self.coefficients @ self.kernel(self.grid, _return_points(at, self.grid.shape[1]))

    def recover(self, **settings: Any) -> Recovered:
        """Laws near the embeddings; settings are those of ``recovery.RecoverySettings``."""
        used = RecoverySettings(**settings)
        return recover_law(self.coefficients, self.grid, self.kernel, used, self.shift)

    def expect(
        self,
        function: KernelFunction | ReturnFunction,
        ridge: float | Literal["auto"] = "auto",
    ) -> Expectation:
        """Plug-in expectations of a function of the return.

        Parameters
        ----------
        function : KernelFunction or callable
            A function of the RKHS; or any that takes points (k, d) and gives k numbers, such as a smooth
            utility, :func:`below` or :func:`above`, which is replaced by its proxy (:func:`interpolate`).
        ridge : "auto" or float
            λ of the proxy.
        """
        if self.shift is not None:
            each = [one.expect(function, ridge) for one in self.alone]
            value, bias = (np.concatenate([getattr(e, name) for e in each]) for name in ("value", "bias"))
            return Expectation(value, tuple(cast("KernelFunction", e.function) for e in each), bias)
        if isinstance(function, KernelFunction):
            require_same_kernel(self.kernel, function.kernel, "the function's")
            return Expectation(
                self.coefficients @ function(self.grid), function, np.zeros(len(self.coefficients))
            )
        proxy = interpolate(function, self.grid, self.kernel, ridge)
        return Expectation(self.coefficients @ proxy(self.grid), proxy, _bias(self.recover(), proxy))

    def inner(self, other: Embedding) -> Matrix:
        """⟨μ_i, ν_j⟩ with every element of another embedding; (n, k)."""
        require_same_kernel(self.kernel, other.kernel, "the other's")
        if self.shift is not None:
            return np.concatenate([one.inner(other) for one in self.alone])
        if other.shift is not None:
            return other.inner(self).T
        return self.coefficients @ self.kernel(self.grid, other.grid) @ other.coefficients.T

    def mmd(self, other: Embedding) -> Vector:
        """‖μ_i − ν_i‖, row by row; (n,). A single row is compared with all.

        Grids may differ; the return kernel, whose RKHS defines the distance, must not. It is a distance
        between fitted embeddings, and not zero for equal laws. Values below about 10⁻⁸·σ·‖ω‖ are rounding.
        """
        require_same_kernel(self.kernel, other.kernel, "the other's")
        first, second = self.coefficients, other.coefficients
        n = max(len(first), len(second))
        if not {len(first), len(second)} <= {1, n}:
            raise ValueError(f"mmd: {len(first)} embeddings and {len(second)}; expected as many, or one")
        if not np.array_equal(np.asarray(self.shift), np.asarray(other.shift)):
            pairs = zip(*(e.alone * (n // len(e.coefficients)) for e in (self, other)), strict=True)
            return np.concatenate([one.mmd(another) for one, another in pairs])
        first, second = (np.broadcast_to(c, (n, c.shape[1])) for c in (first, second))
        grid, difference = self.grid, first
        if np.array_equal(self.grid, other.grid):
            # Of coefficients, and not of squared norms: equal embeddings are at distance zero.
            difference = first - second
        else:
            grid, difference = np.vstack([grid, other.grid]), np.hstack([first, -second])
        square = ((difference @ self.kernel(grid, grid)) * difference).sum(axis=1)
        return np.sqrt(np.maximum(square, 0.0))

    def average(self, weights: npt.ArrayLike | None = None) -> Self:
        """The embedding of the mixture of the laws: equal weights, or given ones scaled to sum to one.

        Averaged over a sample of initial states, it is the embedding of the return from the initial law. On
        grids that are moved differently, it is one on the atoms of all.
        """
        n = len(self.coefficients)
        w = np.ones(n) if weights is None else as_numbers("average: weights", weights, finite=False)
        if w.shape != (n,) or not (np.isfinite(w).all() and (w >= 0).all() and w.sum() > 0):
            raise ValueError(
                f"average: weights must be {n} numbers ≥ 0 that are not all zero, got shape {w.shape}"
            )
        if self.shift is None:
            return replace(self, coefficients=(w / w.sum())[None, :] @ self.coefficients)
        if self.coefficients.size > MOST_ATOMS:
            raise ValueError(
                f"average: {n} shifted embeddings have {self.coefficients.size:,} atoms, more than "
                f"{MOST_ATOMS:,}; average over fewer inputs, or average summaries of their laws"
            )
        coefficients = ((w / w.sum())[:, None] * self.coefficients).reshape(1, -1)
        return replace(
            self, coefficients=coefficients, grid=np.vstack([e.grid for e in self.alone]), shift=None
        )


def _return_points(at: npt.ArrayLike, dim: int) -> Points:
    """Return points (g, d) at which a function is evaluated."""
    points = as_numbers("at", at)
    if points.ndim != 2 or points.shape[1] != dim:
        raise ValueError(f"at has shape {points.shape}, expected (g, {dim}): one row per return")
    return points


def require_same_kernel(kernel: Matern, other: Matern, whose: str) -> None:
    """Refuse elements of different RKHS, between which there is no inner product."""
    first, second = np.atleast_1d(kernel.length_scale), np.atleast_1d(other.length_scale)
    comparable = 1 in (first.size, second.size) or first.size == second.size
    same = (kernel.nu, kernel.sigma) == (other.nu, other.sigma)
    if not (same and comparable and (first == second).all()):
        raise ValueError(
            f"the return kernel is {kernel}, {whose} is {other}: they must be the same; fit both with one "
            "return_kernel=Matern(...)"
        )


def _bias(law: Recovered, proxy: Proxy) -> Vector:
    """E ĥ − E g under the laws; exactly for a box."""
    g = proxy.function
    if isinstance(g, Box):
        smoothed = proxy.kernel.smoothed(law.atoms, proxy.points, law.bandwidth**2)
        return law.weights @ (smoothed @ proxy.coefficients) - law.prob(g.ends(law.dim))
    return law.expectation(lambda points: proxy(points) - np.asarray(g(points), dtype=np.float64))
