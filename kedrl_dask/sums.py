"""The regression behind the conditional weights Γ, from sums over blocks of episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.costs import N_FOLDS
from kedrl_dask.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.operators import ConditionalOperators
from kedrl_dask.passes import SUMS_KIND, combine_scalars
from kedrl_dask.ratio import DensityRatio
from kedrl_dask.schema import BLOCK_SCALARS
from kedrl_dask.store import ArrayStore
from kedrl_dask.tuning import RIDGES, BlockSums, cross_validate_ridge

__all__ = ["RegressionSums", "choose_ridge", "read_folds", "recalibrate", "regress"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RegressionSums:
    """The block sums of the streaming pass, added up over folds of episodes (the first axis).

    Sums are with ψ: those that were made with φ are completed here, in double precision.
    """

    gram: Array
    mass: Array
    count: Array
    reward: Array
    reward_sum: Array
    continuation: Array
    continuation_sum: Array
    scalar: Array
    terminal: Array | None = None

    @classmethod
    def from_blocks(cls, paths: list[Path], features: NystromFeatures, n_folds: int) -> RegressionSums:
        """Read the stored blocks by folds."""
        return cls(**read_folds(paths, features, n_folds))

    def scalars(self, name: str) -> Array:
        """One of BLOCK_SCALARS, by fold."""
        return self.scalar[:, BLOCK_SCALARS.index(name)]

    @property
    def n_transitions(self) -> float:
        """Number N of transitions."""
        return float(self.count.sum())


def read_folds(paths: list[Path], features: NystromFeatures, n_folds: int = N_FOLDS) -> dict[str, Array]:
    """Deal the stored blocks out to at most so many folds in turn; one block is in memory at a time.

    Sums are with ψ: those that were made with φ are completed.
    """
    folds: dict[str, Array] = {}
    for path in paths:
        sums = ArrayStore.open(path, SUMS_KIND)
        for name in sums.names:
            folds[name] = _fold(sums, name, n_folds)
    for name in {"reward", "terminal", "continuation", "response"} & set(folds):
        folds[name] = features.complete_sums(folds[name])
    return folds


def _fold(sums: ArrayStore, name: str, most: int) -> Array:
    n_blocks = sums.size("block")
    n_folds = min(most, n_blocks)
    folds = [sums.read(name, i, i + 1)[0] for i in range(n_folds)]
    for i in range(n_folds, n_blocks):
        block, fold = sums.read(name, i, i + 1)[0], i % n_folds
        folds[fold] = combine_scalars(folds[fold], block) if name == "scalar" else folds[fold] + block
    return np.stack(folds)


def _total(folds: Array) -> Array:
    """Sum over folds; of a single one no copy, as it may be large."""
    return folds[0] if len(folds) == 1 else folds.sum(axis=0)


def recalibrate(ratio: DensityRatio, sums: RegressionSums) -> tuple[DensityRatio, RegressionSums]:
    """Scale clipped ratios to mean one: everything made of κ is linear in it, so no pass is needed."""
    mean = sums.scalars("ratio").sum() / sums.scalars("successors").sum()
    return replace(ratio, scale=1 / mean), replace(
        sums,
        continuation=sums.continuation / mean,
        continuation_sum=sums.continuation_sum / mean,
        scalar=sums.scalar / np.array([1, mean**2, mean, mean**2, mean, mean]),
    )


def choose_ridge(given: float | str, sums: RegressionSums) -> tuple[float, Array | None]:
    """λ_Γ as given, or by cross-validation over folds of episodes from the stored sums alone."""
    if not isinstance(given, str):
        return float(given), None
    if len(sums.count) < 2:
        raise ValueError(
            "ridge_gamma='auto' needs at least two episodes to leave one out; give ridge_gamma a number"
        )
    n = sums.n_transitions
    responses, squares = [], np.zeros(len(sums.count))
    # |exp(iWr)|² = 1 at each frequency. Each group of responses is scaled to unit total variance.
    reward_square = sums.count * (sums.reward.shape[2] // 2)
    groups = (
        (sums.reward, sums.reward_sum, reward_square),
        (sums.continuation, sums.continuation_sum, sums.scalars("continuation_square")),
    )
    for response, total, square in groups:
        mean = total.sum(axis=0) / n
        variance = square.sum() / n - mean @ mean
        # A response that does not vary says nothing; its rounding errors must not be blown up.
        scale = 1 / variance if variance > 1e-12 * square.sum() / n else 0.0
        responses.append(np.sqrt(scale) * response)
        squares += scale * square
    blocks = BlockSums(sums.gram, np.concatenate(responses, axis=2), squares, sums.count)
    errors = cross_validate_ridge(blocks)
    return RIDGES[int(np.argmin(errors))], errors


def regress(
    features: NystromFeatures, basis: Array, sums: RegressionSums, ridge: float
) -> ConditionalOperators:
    """The conditional operators of all transitions."""
    gram = _total(sums.gram)
    parts = [sums.continuation, sums.reward, sums.mass[:, :, None]]
    if sums.terminal is not None:
        parts.append(sums.terminal)
    totals = [_total(part) for part in parts]
    solved = solve_ridge(gram, np.hstack(totals), sums.n_transitions, ridge)
    pieces = np.split(solved, np.cumsum([total.shape[1] for total in totals])[:-1], axis=1)
    continuation, reward, mass = (np.ascontiguousarray(piece) for piece in pieces[:3])
    terminal = np.ascontiguousarray(pieces[3]) if sums.terminal is not None else None
    return ConditionalOperators(features, basis, continuation, reward, terminal, mass[:, 0])
