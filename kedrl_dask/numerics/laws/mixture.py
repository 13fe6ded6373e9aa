"""Probability laws with finitely many atoms, smoothed in some coordinates, and their summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, Literal, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from kedrl_dask.utils.arrays import Atoms, Indices, Matrices, Matrix, Points, Real, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, check_share, check_word, shown

ReturnFunction = Callable[[Points], npt.ArrayLike]
"""Takes returns (k, d) and gives k numbers."""

Parameters = ParamSpec("Parameters")

Event = ReturnFunction | tuple[npt.ArrayLike, npt.ArrayLike]

#: Nodes that replace each atom's Gaussian when a function is averaged.
N_NODES = 256
#: Halvings that reduce a bracket to the spacing of double precision.
HALVINGS = 64
#: Sums of weights are equal up to rounding.
ROUNDING = 1e-14


class MassFunction(NamedTuple):
    """Probabilities (n, k) of the k values of a support, in increasing order; (k, c) of c coordinates."""

    support: Points
    probability: Weights


def _by_input(
    method: Callable[Concatenate[Mixture, Parameters], Real],
) -> Callable[Concatenate[Mixture, Parameters], Real]:
    """A method for laws with common atoms, applied input by input to laws with atoms of their own."""

    @wraps(method)
    def of_any(self: Mixture, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Real:
        laws = [self] if self.is_common else self.alone
        return np.concatenate([method(law, *args, **kwargs) for law in laws])

    return of_any


@dataclass(frozen=True, eq=False)
class Mixture:
    """n laws Σ_i w_i·N(y_i, diag(h²)); where h is zero the law is discrete.

    The atoms y_i are common to all inputs, moved by a shift for each input, or different for each.

    Attributes
    ----------
    atoms : (m, d) or (n, m, d) array
        y, before the shift.
    weights : (n, m) array
        w, each row a probability vector.
    bandwidth : (d,) array
        h, the standard deviation by which each coordinate is smoothed; zero for none.
    supports : dict
        Supports of the coordinates that were projected on one, by coordinate.
    shift : (n, d) array, optional
        Added to the atoms of each input, which in projected coordinates then move to the nearest value of
        the support: a support is one of the shifted return.
    drawn_bandwidth : (n, d) array, optional
        Smoothing of densities alone, where the law itself is not smoothed because its atoms are many.

    Examples
    --------
    >>> law = Mixture(np.array([[0.0], [1.0], [4.0]]), np.array([[0.5, 0.3, 0.2]]), np.zeros(1))
    >>> law.mean().round(6).tolist(), law.covariance().round(6).tolist()
    ([[1.1]], [[[2.29]]])
    >>> law.cdf([0.0, 2.0], 0).tolist(), law.quantile(0.9, 0).tolist()
    ([[0.5, 0.8]], [4.0])
    >>> law.cvar(0.4, 0, tail="upper").round(6).tolist(), law.prob(([0.5], [5.0])).tolist()
    ([2.5], [0.5])
    >>> law.expectation(lambda z: z[:, 0] ** 2).tolist()
    [3.5]
    >>> Mixture(law.atoms, law.weights, np.ones(1)).density([0.0, 1.0], 0).round(4).tolist()
    [[0.2721, 0.2416]]
    >>> Mixture(law.atoms, law.weights, np.zeros(1), {0: law.atoms[:, 0]}).pmf(0).probability.tolist()
    [[0.5, 0.3, 0.2]]
    >>> moved = Mixture(law.atoms, law.weights[[0, 0]], np.zeros(1), shift=np.array([[0.0], [10.0]]))
    >>> moved.mean().round(6).tolist(), moved.quantile(0.9, 0).tolist()
    ([[1.1], [11.1]], [4.0, 14.0])
    """

    atoms: Atoms
    weights: Weights
    bandwidth: Vector
    supports: Mapping[int, Vector] = field(default_factory=dict)
    shift: Points | None = None
    drawn_bandwidth: Points | None = field(default=None, kw_only=True)

    @property
    def dim(self) -> int:
        """Coordinates of the return."""
        return int(self.atoms.shape[-1])

    @property
    def is_common(self) -> bool:
        """Whether all inputs have the same atoms."""
        return self.shift is None and self.atoms.ndim == 2

    def atoms_of(self, row: int) -> Atoms:
        """The atoms of one input; (m, d)."""
        return atoms_at(row, self.atoms, self.shift, self.supports)

    def rows(self, rows: Indices | slice) -> Mixture:
        """The laws of some inputs."""
        atoms = self.atoms if self.atoms.ndim == 2 else self.atoms[rows]
        shift, drawn = (None if part is None else part[rows] for part in (self.shift, self.drawn_bandwidth))
        return Mixture(atoms, self.weights[rows], self.bandwidth, self.supports, shift, drawn_bandwidth=drawn)

    @property
    def density_bandwidth(self) -> Vector:
        """Smoothing of the densities of each coordinate, that of the least smoothed input; (d,)."""
        drawn = np.zeros(self.dim) if self.drawn_bandwidth is None else self.drawn_bandwidth.min(axis=0)
        return np.where(self.bandwidth > 0, self.bandwidth, drawn)

    @property
    def alone(self) -> list[Mixture]:
        """The law of each input by itself."""
        drawn = self.drawn_bandwidth
        return [
            Mixture(
                self.atoms_of(row), weights[None], self.bandwidth, self.supports,
                drawn_bandwidth=None if drawn is None else drawn[row : row + 1],
            )
            for row, weights in enumerate(self.weights)
        ]  # fmt: skip

    @_by_input
    def mean(self) -> Points:
        """Means; (n, d)."""
        return self.weights @ self.atoms

    @_by_input
    def covariance(self) -> Matrices:
        """Covariances, smoothing included; (n, d, d)."""
        # From deviations: a difference of squares may be negative by rounding.
        deviations = self.atoms - self.mean()[:, None, :]
        return np.einsum("ni,nij,nik->njk", self.weights, deviations, deviations) + np.diag(self.bandwidth**2)

    @_by_input
    def cdf(self, t: npt.ArrayLike, coordinate: int) -> Vector:
        """P(Y ≤ t) of one coordinate; (n,) for a number t, (n, g) for g of them."""
        y, h = self._column(coordinate)
        t = as_numbers("cdf: t", t, finite=False)
        if np.isnan(t).any():
            raise ValueError("cdf: t has NaN, expected numbers; leave it out")
        if t.ndim > 1:
            raise ValueError(f"cdf: t has shape {t.shape}, expected a number or (g,)")
        return self.weights @ _below(t - y.reshape(-1, *[1] * t.ndim), h)

    @_by_input
    def quantile(self, q: npt.ArrayLike, coordinate: int) -> Vector:
        """Smallest t with P(Y ≤ t) ≥ q; (n,) for a number q, (n, k) for k of them."""
        y, h = self._column(coordinate)
        levels = as_numbers("quantile: q", q, finite=False)
        if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"quantile: q must lie strictly between 0 and 1, got {shown(q)}")
        flat = levels.reshape(-1)
        found = self._atom_quantile(flat, y) if h == 0 else self._smooth_quantile(flat, y, h)
        return found.reshape(len(self.weights), *levels.shape)

    def _atom_quantile(self, levels: Vector, y: Vector) -> Matrix:
        order = np.argsort(y, kind="stable")
        below = np.cumsum(self.weights[:, order], axis=1)
        # With ties or sums of just under one, the last atom of positive weight.
        last = len(y) - 1 - np.argmax(self.weights[:, order][:, ::-1] > 0, axis=1)
        position = (below[:, None, :] < levels[:, None] - ROUNDING).sum(axis=2)
        return y[order][np.minimum(position, last[:, None])]

    def _smooth_quantile(self, levels: Vector, y: Vector, h: float) -> Matrix:
        reach = h * (1 - ndtri(min(levels.min(), 1 - levels.max())))
        low = np.full((len(self.weights), len(levels)), y.min() - reach)
        high = np.full_like(low, y.max() + reach)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            value = np.stack(
                [(self.weights * ndtr((t[:, None] - y) / h)).sum(axis=1) for t in middle.T], axis=1
            )
            reached = value >= levels
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high

    @_by_input
    def cvar(self, level: float, coordinate: int, tail: Literal["lower", "upper"] = "lower") -> Vector:
        """Mean of the lowest, or highest, share ``level`` of one coordinate; (n,).

        By q ∓ E(q − Y)₊/level at the quantile q, which also divides an atom that the share cuts through.
        """
        check_word("cvar: tail", tail, ("lower", "upper"))
        check_share("cvar: level", level)
        y, h = self._column(coordinate)
        sign = 1.0 if tail == "lower" else -1.0
        q = self.quantile(level if tail == "lower" else 1 - level, coordinate)
        excess = sign * (q[:, None] - y)
        expected = np.maximum(excess, 0.0)
        if h > 0:
            z = excess / h
            expected = h * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
        return q - sign * (self.weights * expected).sum(axis=1) / level

    @_by_input
    def density(
        self,
        at: npt.ArrayLike,
        coordinates: int | Sequence[int] = 0,
        bandwidth: npt.ArrayLike | None = None,
        where: Mapping[int, float] | None = None,
    ) -> Matrix:
        """Density of some coordinates, the others integrated out; (n, g).

        Parameters
        ----------
        at : (g,) or (g, c) array
            The points, for one coordinate or for c of them.
        coordinates : int or sequence of int
        bandwidth : float or (c,) array, optional
            Smoothing in place of the law's own; the weights stay as they were matched.
        where : dict, optional
            Values of projected coordinates: the result is joint in their mass and the density.
        """
        chosen = np.atleast_1d(np.asarray(coordinates))
        h = self.density_bandwidth[[self._index(c) for c in chosen]]
        if bandwidth is not None:
            h = np.broadcast_to(as_numbers("density: bandwidth", bandwidth), chosen.shape)
        if not (np.isfinite(h).all() and (h > 0).all()):
            raise ValueError(
                f"density: bandwidth {h.tolist()} of coordinates {chosen.tolist()}; a coordinate without "
                "smoothing has no density: give a positive bandwidth, or ask pmf or cdf"
            )
        points = as_numbers("density: at", at)
        points = points[:, None] if points.ndim == 1 and len(chosen) == 1 else points
        if points.ndim != 2 or points.shape[1] != len(chosen):
            raise ValueError(f"density: at has shape {points.shape}, expected (g, {len(chosen)})")
        weights = self.weights
        for coordinate, value in (where or {}).items():
            self._support("density", coordinate)
            weights = weights * (self._column(coordinate)[0] == value)
        z = (points[None, :, :] - self.atoms[:, None, chosen]) / h
        normal = np.exp(-0.5 * (z**2).sum(axis=2)) / np.prod(np.sqrt(2 * np.pi) * h)
        return weights @ normal

    def pmf(self, coordinates: int | Sequence[int]) -> MassFunction:
        """Probabilities of the support that a coordinate was projected on, or of several jointly.

        For several, the support is every combination (k, c) of their values.
        """
        chosen = np.atleast_1d(np.asarray(coordinates))
        supports = [self._support("pmf", coordinate) for coordinate in chosen]
        points = np.stack(np.meshgrid(*supports, indexing="ij"), axis=-1).reshape(-1, len(chosen))
        return MassFunction(points[:, 0] if np.ndim(coordinates) == 0 else points, self.mass(points, chosen))

    @_by_input
    def mass(self, points: Points, coordinates: Indices) -> Matrix:
        """Probabilities of points (k, c) of some coordinates, without their smoothing; (n, k)."""
        return self.weights @ (self.atoms[:, None, coordinates] == points).all(axis=2)

    @_by_input
    def expectation(self, function: ReturnFunction) -> Vector:
        """E f(Y); (n,). ``function`` takes points (k, d) and gives k numbers.

        Each atom's Gaussian is replaced by the same low-discrepancy nodes.
        """
        nodes, smooth = self.atoms[:, None, :], np.flatnonzero(self.bandwidth)
        if smooth.size:
            uniform = qmc.Sobol(smooth.size, seed=0).random(N_NODES)
            noise = np.zeros((N_NODES, self.dim))
            noise[:, smooth] = ndtri(uniform) * self.bandwidth[smooth]
            nodes = nodes + noise
        values = np.asarray(function(nodes.reshape(-1, self.dim)), dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("function gave NaN or infinity; expected finite numbers: check it there")
        if values.shape != (nodes.shape[0] * nodes.shape[1],):
            raise ValueError(
                f"function gave shape {values.shape} for {nodes.shape[0] * nodes.shape[1]} points; "
                "expected one number for each"
            )
        return self.weights @ values.reshape(nodes.shape[:2]).mean(axis=1)

    @_by_input
    def prob(self, event: Event) -> Vector:
        """Probability of an event; (n,).

        Parameters
        ----------
        event : (low, high) or function
            A closed box, whose ends are (d,) arrays and may be infinite; or a function that says of points
            (k, d) whether they are in.
        """
        if callable(event):
            return self.expectation(lambda points: np.asarray(event(points), dtype=bool))
        dim = self.dim
        if not (isinstance(event, tuple | list) and len(event) == 2):
            raise ValueError(f"prob: an event is (low, high) or a function, got {shown(event)}")
        low, high = (as_numbers("prob: event", end, finite=False) for end in event)
        if low.shape != (dim,) or high.shape != (dim,) or not (low <= high).all():
            raise ValueError(f"prob: a box takes low ≤ high of {dim} numbers each, got {shown(event)}")
        inside = np.ones(len(self.atoms))
        for y, h, a, b in zip(self.atoms.T, self.bandwidth, low, high, strict=True):
            inside *= (y >= a) & (y <= b) if h == 0 else ndtr((b - y) / h) - ndtr((a - y) / h)
        return self.weights @ inside

    def _index(self, coordinate: int) -> int:
        return checked_coordinate(coordinate, self.dim)

    def _column(self, coordinate: int) -> tuple[Vector, float]:
        index = self._index(coordinate)
        return self.atoms[:, index], float(self.bandwidth[index])

    def _support(self, name: str, coordinate: int) -> Vector:
        if self._index(coordinate) not in self.supports:
            raise ValueError(
                f"{name}: coordinate {coordinate} was not projected on a support; give "
                f"projected={{{coordinate}: support}} to the recovery"
            )
        return self.supports[coordinate]


def checked_coordinate(coordinate: object, dim: int, whose: str = "") -> int:
    """A coordinate of the return, from 0 to d − 1."""
    if not isinstance(coordinate, int | np.integer) or not 0 <= coordinate < dim:
        raise ValueError(f"{whose}coordinate {shown(coordinate)} is not one of 0 to {dim - 1}")
    return int(coordinate)


def on_supports(atoms: Atoms, supports: Mapping[int, Vector]) -> Atoms:
    """Atoms whose projected coordinates are moved to the nearest value of their support."""
    moved = atoms.copy()
    for coordinate, support in supports.items():
        nearest = np.abs(atoms[:, coordinate, None] - support).argmin(axis=1)
        moved[:, coordinate] = support[nearest]
    return moved


def atoms_at(row: int, atoms: Atoms, shift: Points | None, supports: Mapping[int, Vector]) -> Atoms:
    """The atoms of one input, from common ones or its own, moved by its shift; (m, d)."""
    own = atoms if atoms.ndim == 2 else atoms[row]
    return own if shift is None else on_supports(own + shift[row], supports)


def checked_shift(name: str, shift: npt.ArrayLike | None, n: int, dim: int) -> Points | None:
    """A shift for each of n inputs, or none."""
    if shift is None:
        return None
    values = as_numbers(f"{name}: shift", shift)
    if values.shape != (n, dim):
        raise ValueError(f"{name}: shift has shape {values.shape}, expected {(n, dim)}: one row per input")
    return values


def _below(distance: Vector, h: float) -> Vector:
    """P(N(0, h²) ≤ distance)."""
    return (distance >= 0).astype(np.float64) if h == 0 else ndtr(distance / h)
