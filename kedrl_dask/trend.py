"""A linear trend of the reward, taken out before its law given x is estimated.

With any fixed function m and the residual e = r − m(x), E[exp(iWr)|x] = exp(iWm(x)) ⊙ E[exp(iWe)|x]. What
is left to estimate varies less with x, if m is near the mean of the reward, and stands more smoothing. It is
consistent whatever the law of the reward, because the regression follows a residual whose law depends on x;
but where the reward is far from linear that is no easier, and the error may be larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.spectral import as_complex, waves
from kedrl_dask.tuning import standard_deviations

__all__ = ["LinearTrend", "TrendWaves"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LinearTrend:
    """m(x) = mean + (x − center)ᵀ·weights.

    Attributes
    ----------
    center : (p + q,) array
        Mean input.
    weights : (p + q, d) array
    mean : (d,) array
        Mean reward.
    """

    center: Array
    weights: Array
    mean: Array

    @classmethod
    def fit(cls, inputs: Array, reward: Array) -> LinearTrend:
        """Least squares; where inputs do not tell weights apart, the smallest, in standard deviations."""
        center, mean = inputs.mean(axis=0), reward.mean(axis=0)
        spread = standard_deviations(inputs)
        scaled = np.linalg.lstsq((inputs - center) / spread, reward - mean, rcond=None)[0]
        return cls(center, scaled / spread[:, None], mean)

    def __call__(self, inputs: Array) -> Array:
        """m at each row of ``inputs``; (n, d)."""
        return self.mean + (inputs - self.center) @ self.weights

    def explained(self, inputs: Array, reward: Array) -> Array:
        """Share of each reward coordinate's variance that the trend explains; zero of a constant; (d,)."""
        left, total = (reward - self(inputs)).var(axis=0), reward.var(axis=0)
        varies = np.ptp(reward, axis=0) > 0
        return np.where(varies, 1 - left / np.where(varies, total, 1.0), 0.0)


@dataclass(frozen=True)
class TrendWaves:
    """The trend among the waves: what turns those of the residual into those of the reward.

    Attributes
    ----------
    trend : LinearTrend
    frequencies : (Q, d) array
        W.
    mean : (2Q,) array
        Mean of exp(iWe), which the regression leaves out.
    """

    trend: LinearTrend
    frequencies: Array
    mean: Array

    def turn(self, inputs: Array, residual_waves: Array) -> Array:
        """exp(iWm(x)) ⊙ the waves at each input; (n, 2Q)."""
        turned = waves(self.trend(inputs), self.frequencies)
        turning = as_complex(turned)
        turning *= as_complex(residual_waves)
        return turned
