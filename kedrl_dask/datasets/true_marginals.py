"""Marginal laws of the true return: distribution function, quantiles and tail means of one coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kedrl_dask.datasets.truth import ReturnLaw
from kedrl_dask.utils.arrays import Vector

__all__ = ["CentredMarginal"]


#: Half the width of the tabulated range, in standard deviations: the aliases of the inversion lie beyond it.
REACH = 16.0
#: Points of the table.
N_POINTS = 4_001
#: Frequencies, in units of one over the standard deviation of the Gaussian part, up to which it is inverted.
HIGHEST = 9.0


@dataclass(frozen=True)
class CentredMarginal:
    """Law of Z_c − E Z_c, which is the same at every point and symmetric.

    By Gil-Pelaez' inversion of its characteristic function φ₀: F(t) = ½ + (1/π)∫_0^∞ sin(wt)·φ₀(w)/w dw. The
    midpoint rule is exact here to rounding: φ₀ is smooth, with a Gaussian factor. F is tabulated, and taken
    as linear in between: quantiles are right to five digits.
    """

    at: Vector
    cdf: Vector

    @classmethod
    def build(cls, law: ReturnLaw, coordinate: int) -> CentredMarginal:
        """Tabulate the marginal of one coordinate."""
        spread = float(np.sqrt(law.covariance[coordinate, coordinate]))
        gaussian = float(np.sqrt(law.gaussian_cov[coordinate, coordinate]))
        step = np.pi / (2 * REACH * spread)
        w = (np.arange(int(np.ceil(HIGHEST / gaussian / step))) + 0.5) * step
        direction = np.zeros((1, len(law.covariance)))
        direction[0, coordinate] = 1.0
        phi = law.centred_characteristic_function(w[:, None] * direction)
        at = np.linspace(-REACH / 2, REACH / 2, N_POINTS) * spread
        return cls(at, 0.5 + np.sin(np.outer(at, w)) @ (phi / w) * (step / np.pi))

    def quantile(self, level: float) -> float:
        """Smallest t with F(t) ≥ level."""
        if not 0 < level < 1:
            raise ValueError(f"quantile: level must lie strictly between 0 and 1, got {level!r}")
        return float(np.interp(level, self.cdf, self.at))

    def cvar(self, level: float) -> float:
        """Mean of the lowest share ``level``: q − E(q − Y)₊/level, with E(q − Y)₊ = ∫_{−∞}^q F."""
        q = self.quantile(level)
        below = self.at < q
        t, values = np.append(self.at[below], q), np.append(self.cdf[below], level)
        return q - float(np.trapezoid(values, t)) / level
