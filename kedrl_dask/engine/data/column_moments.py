"""Mean, spread and range of columns, which can be merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kedrl_dask.utils.arrays import Points, Record, Vector

MOMENT_ARRAYS = ("mean", "squares", "minimum", "maximum")


@dataclass(frozen=True)
class Moments:
    """Count, mean, sum of squared deviations, minimum and maximum of each column of some rows."""

    count: int
    mean: Vector
    squares: Vector
    minimum: Vector
    maximum: Vector

    @classmethod
    def of(cls, values: Points) -> Moments:
        """Return the moments of the rows of a matrix."""
        mean = values.mean(axis=0)
        mean += (values - mean).mean(axis=0)  # removes the rounding error of the long first sum
        squares = np.square(values - mean).sum(axis=0)
        return cls(values.shape[0], mean, squares, values.min(axis=0), values.max(axis=0))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows together (Chan, Golub and LeVeque 1983)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * (other.count / count),
            self.squares + other.squares + shift**2 * (self.count * other.count / count),
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
        )

    @property
    def largest(self) -> Vector:
        """Largest absolute entry of each column."""
        return np.maximum(np.abs(self.minimum), np.abs(self.maximum))

    @property
    def deviation(self) -> Vector:
        """Standard deviation of each column."""
        return np.sqrt(self.squares / self.count)

    def to_json(self) -> Record:
        """Return plain numbers; JSON keeps every digit of a float."""
        return {key: getattr(self, key).tolist() for key in MOMENT_ARRAYS} | {"count": self.count}

    @classmethod
    def from_json(cls, values: Record) -> Moments:
        """Invert :meth:`to_json`."""
        return cls(count=values["count"], **{key: np.array(values[key]) for key in MOMENT_ARRAYS})
