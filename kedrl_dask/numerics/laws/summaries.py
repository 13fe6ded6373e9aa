"""Summaries of laws by coordinate: numbers, and curves at thresholds that all laws have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.utils.arrays import Matrices, Matrix, Real, Vector

#: Levels of the quantiles, and the share of the tail mean, unless others are asked for.
LEVELS, TAIL = (0.05, 0.25, 0.5, 0.75, 0.95), 0.1
#: Summaries of a law by coordinate, and their meaning; quantiles have a level each.
SUMMARIES = {
    "mean": "mean of the recovered law",
    "sd": "its standard deviation, smoothing included",
    "quantile": "its quantiles",
    "cvar": "mean of its lowest share, the attribute tail",
}
#: Curves of a law, evaluated at every threshold.
CURVES = {
    "cdf": "its distribution function at the thresholds",
    "density": "its density at the thresholds; of a coordinate without smoothing, the mass of each",
}
#: Steps between thresholds of smoothed distribution functions, and how far they reach beyond the outermost
#: atoms, in bandwidths; and the most steps.
STEP, BEYOND, MOST_THRESHOLDS = 0.25, 3, 400
#: Probability on either side that a figure of smooth laws leaves out.
UNSEEN = 5e-4


def summarise(law: Mixture, levels: Sequence[float] = LEVELS, tail: float = TAIL) -> dict[str, Real]:
    """The summaries of n laws: (n, d) each, and (n, d, level) for the quantiles."""
    coordinates = range(law.dim)
    return {
        "mean": law.mean(),
        "sd": np.sqrt(np.diagonal(law.covariance(), axis1=1, axis2=2)),
        "quantile": np.stack([law.quantile(levels, c) for c in coordinates], axis=1),
        "cvar": np.stack([law.cvar(tail, c) for c in coordinates], axis=1),
    }


def thresholds(*laws: Mixture) -> Matrix:
    """Points at which distribution functions are evaluated, equally many for each coordinate; (d, T).

    Without smoothing these are the atoms, where the functions jump. With smoothing they are a quarter of the
    bandwidth apart, so that the largest difference between two functions is missed by less than 0.004:
    |F″| ≤ 0.25/h² for each. A coordinate with fewer thresholds than another repeats its last one. Of atoms
    that differ between inputs, which may be very many, at most 401 are taken, evenly by rank.
    """
    columns = []
    law, are_common = laws[0], all(law.is_common for law in laws)
    atoms = law.atoms if are_common else np.concatenate([one.atoms for law in laws for one in law.alone])
    for c, (y, h) in enumerate(zip(atoms.T, _least_bandwidth(laws), strict=True)):
        low, high = y.min() - BEYOND * h, y.max() + BEYOND * h
        n_steps = 0 if h == 0 else min(int(np.ceil((high - low) / (STEP * h))), MOST_THRESHOLDS)
        values = np.union1d(y, law.supports.get(c, y))
        if not are_common and len(values) > MOST_THRESHOLDS:
            values = values[np.linspace(0, len(values) - 1, MOST_THRESHOLDS + 1).astype(np.intp)]
        columns.append(values if h == 0 else np.linspace(low, high, n_steps + 1))
    longest = max(len(column) for column in columns)
    return np.stack([np.pad(column, (0, longest - len(column)), mode="edge") for column in columns])


def _least_bandwidth(laws: Sequence[Mixture]) -> Vector:
    """Smoothing of the densities of each coordinate, that of the least smoothed law; (d,)."""
    return np.min([law.density_bandwidth for law in laws], axis=0)


def seen(cdf: Matrix) -> slice:
    """The thresholds at which distribution functions (n, T) change visibly, and one more on either side."""
    inside = np.flatnonzero(((cdf > UNSEEN) & (cdf < 1 - UNSEEN)).any(axis=0))
    return slice(max(inside[0] - 1, 0), inside[-1] + 2) if inside.size else slice(None)


@dataclass(frozen=True, eq=False)
class Summaries:
    """The numbers computed for every law; packed in one array, so that a replicate is recovered once.

    Levels of the quantiles, share of the tail mean, and points (d, T) at which curves are evaluated.
    """

    levels: Sequence[float]
    tail: float
    thresholds: Matrix

    def __call__(self, law: Mixture) -> dict[str, Real]:
        """Summaries and curves of n laws by name: (n, d), (n, d, level) or (n, d, T)."""
        return summarise(law, self.levels, self.tail) | {
            "cdf": np.stack([law.cdf(t, c) for c, t in enumerate(self.thresholds)], axis=1),
            "density": np.stack([_density(law, t, c) for c, t in enumerate(self.thresholds)], axis=1),
        }

    @property
    def width(self) -> int:
        """Number of values for each coordinate."""
        return sum(self._sizes.values())

    @property
    def _sizes(self) -> dict[str, int]:
        numbers = {name: len(self.levels) if name == "quantile" else 1 for name in SUMMARIES}
        return numbers | {name: int(self.thresholds.shape[1]) for name in CURVES}

    def pack(self, law: Mixture) -> Matrices:
        """The same in one array (n, d, k)."""
        parts = [part[..., None] if part.ndim == 2 else part for part in self(law).values()]
        return np.concatenate(parts, axis=2)

    def unpack(self, values: Matrices) -> dict[str, Real]:
        """By name again, from an array (…, n, d, k)."""
        sizes = self._sizes
        parts = zip(sizes, np.split(values, np.cumsum(list(sizes.values()))[:-1], axis=-1), strict=True)
        return {name: part if self.dims(name)[2:] else part[..., 0] for name, part in parts}

    def dims(self, name: str) -> tuple[str, ...]:
        """Dimensions of a summary or curve, following that of the policy or pair."""
        further = {"quantile": ("level",)} | dict.fromkeys(CURVES, ("threshold",))
        return ("input", "coordinate", *further.get(name, ()))


def _density(law: Mixture, t: Vector, coordinate: int) -> Matrix:
    if law.density_bandwidth[coordinate] > 0:
        return law.density(t, coordinate)
    return law.mass(t[:, None], np.array([coordinate]))
