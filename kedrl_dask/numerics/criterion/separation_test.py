"""Do the data call for the paired construction? A test of ass:reward_continuation_separation.

The separated target at x is ρ(x) ⊙ c(x), with c_j = (CE)ᵀκ̃_j the fitted embedding that follows a transition,
in features; the paired one is Ê[exp(iWR) ⊙ c | x]. They differ by the conditional covariance of the two,
which is estimated here by regressing (exp(iWr_j) − ρ(x_j)) ⊙ (c_j − c(x_j)) on x. The squared norm of an
estimate is never zero, so it is compared with that of the same products when the sign of each
block of episodes is random: under separation their mean is zero, whatever the sign (a wild bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.numerics.kernels.spectral import as_complex
from kedrl_dask.utils.arrays import Features, Matrix, Waves
from kedrl_dask.utils.exceptions import FitWarning

#: Random signs tried.
N_SIGNS = 999
#: Fewest blocks of episodes for which the test is made.
FEWEST_BLOCKS = 8
#: Level of the test, and the smallest share of the residual's norm that is worth another construction.
LEVEL, SHARE = 0.01, 0.5


class SeparationWarning(FitWarning):
    """The data contradict the assumption of the separated construction."""


class SeparatedParts(NamedTuple):
    """A block of episodes: ψ (n, r), exp(iWr) and the continuation c in features, (n, 2Q) each."""

    features: Features
    reward: Waves
    continuation: Waves

    def astype(self, dtype: npt.DTypeLike) -> SeparatedParts:
        """The same in another precision."""
        return SeparatedParts(*(array.astype(dtype) for array in self))


@dataclass(frozen=True)
class Separation:
    """The difference of the two targets, as root mean squares over held-out inputs in the norm of the RKHS.

    ``difference`` is its systematic part: the squared norm minus the contribution of noise, at least zero.
    ``p_value`` is the share of random signs that give as large a norm; None with too few episodes to tell.
    """

    difference: float
    noise: float
    p_value: float | None

    def recommends(self, residual: float) -> Literal["separated", "paired"]:
        """The construction that the data call for, given the norm of the Bellman residual."""
        is_real = self.p_value is not None and self.p_value <= LEVEL
        return "paired" if is_real and self.difference > SHARE * residual else "separated"


def separation(
    blocks: Iterable[SeparatedParts], held_out: Features, ridge: float, scale: float, random_state: int = 0
) -> Separation:
    """Estimate the difference of the targets and test it.

    The blocks of whole episodes are kept in single precision. ``held_out`` (n, r) are the features ψ of the
    inputs where the targets are compared, ``ridge`` is λ_Γ, and ``scale`` σ²/Q.
    """
    parts = [part.astype(np.float32) for part in blocks]
    gram, responses, n = _moments(part.astype(np.float64) for part in parts)
    factor = cho_factor(gram + n * ridge * np.eye(len(gram)), lower=True)
    fitted = cho_solve(factor, responses).astype(np.float32)
    root: Matrix = np.linalg.qr(held_out / np.sqrt(len(held_out)), mode="r")  # type: ignore[assignment]
    # From sums of ψyᵀ to the regression of y at the held-out inputs.
    regression = cho_solve(factor, root.T).T.astype(np.float32)
    fields = []
    for part in parts:
        error = np.hstack([part.reward, part.continuation]) - part.features @ fitted
        reward, continuation = (np.ascontiguousarray(half) for half in np.hsplit(error, 2))
        rotated = as_complex(continuation)
        rotated *= as_complex(reward)
        fields.append((regression @ (part.features.T @ continuation)).ravel())
    inner = scale * np.array([[np.vdot(a, b) for b in fields] for a in fields], dtype=np.float64)
    total, noise = float(inner.sum()), float(np.trace(inner))
    return Separation(
        float(np.sqrt(max(0.0, total - noise))), float(np.sqrt(noise)), _p_value(inner, total, random_state)
    )


def _moments(blocks: Iterable[SeparatedParts]) -> tuple[Matrix, Matrix, int]:
    """Σψψᵀ, Σψyᵀ for both responses side by side, and the number of transitions."""
    gram, responses, n = np.zeros(()), np.zeros(()), 0
    for part in blocks:
        gram = gram + part.features.T @ part.features
        responses = responses + part.features.T @ np.hstack([part.reward, part.continuation])
        n += len(part.features)
    return gram, responses, n


def _p_value(inner: Matrix, total: float, random_state: int) -> float | None:
    if len(inner) < FEWEST_BLOCKS:
        return None
    signs = np.random.default_rng(random_state).choice([-1.0, 1.0], size=(N_SIGNS, len(inner)))
    drawn = np.einsum("ij,jk,ik->i", signs, inner, signs)
    return float((1 + np.count_nonzero(drawn >= total)) / (1 + N_SIGNS))
