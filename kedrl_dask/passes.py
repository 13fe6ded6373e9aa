"""Chunk functions of the two passes over the data: they read by path, compute, and write what they own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kedrl_dask.criterion import Chunk
from kedrl_dask.kernels import Matern
from kedrl_dask.nystrom import NystromFeatures
from kedrl_dask.operators import ConditionalOperators
from kedrl_dask.policies import Policy
from kedrl_dask.ratio import DensityRatio, RatioMoments, moments, section_means
from kedrl_dask.schema import BLOCK_SCALARS
from kedrl_dask.spectral import waves
from kedrl_dask.store import ArrayStore
from kedrl_dask.transitions import Transitions, TransitionStore

__all__ = [
    "CONDITIONING_KIND",
    "SUMS_KIND",
    "Continuation",
    "RowBlock",
    "StreamingPass",
    "accumulate_block",
    "combine_scalars",
    "empty_scalars",
    "evaluate_points",
    "load_points",
    "ratio_moments",
]

Array = npt.NDArray[Any]

SUMS_KIND = "kedrl block sums"
CONDITIONING_KIND = "kedrl conditioning points"

#: Rows whose random actions come from one generator, and whose features are in memory at once. Groups
#: are counted from the first row of the store, so that draws do not depend on how work is divided.
GROUP_ROWS = 2_048
#: Groups read at a time.
READ_GROUPS = 32


class RowBlock(NamedTuple):
    """A block of whole episodes."""

    number: int
    start: int
    stop: int


def _groups(store: TransitionStore, block: RowBlock) -> Iterator[tuple[int, Transitions]]:
    """Groups of transitions that touch a block: each whole, whatever part of it lies in the block."""
    first, last = block.start // GROUP_ROWS, -(-block.stop // GROUP_ROWS)
    for begin in range(first, last, READ_GROUPS):
        end = min(begin + READ_GROUPS, last)
        read = store.transitions(begin * GROUP_ROWS, min(end * GROUP_ROWS, store.n_rows))
        edges = np.searchsorted(read.rows, np.arange(begin, end + 1) * GROUP_ROWS)
        for i, group in enumerate(range(begin, end)):
            yield group, read.select(slice(edges[i], edges[i + 1]))


def _in_block(group: Transitions, block: RowBlock) -> slice:
    return slice(*np.searchsorted(group.rows, [block.start, block.stop]))


@dataclass(frozen=True)
class TargetActions:
    """Actions of the target policy at successor states; the same for a row wherever it is computed."""

    policy: Policy
    n_draws: int
    seed: int

    def __call__(self, number: int, group: Transitions, which: slice) -> tuple[Array, Array]:
        """Successor inputs (draws, n, p + q) for some rows of a group, and the weights of the draws."""
        states = group.next_state[which]
        if self.policy.deterministic_draws:
            actions, weights = self.policy.draws(states, self.n_draws)
        else:
            # The whole group draws from one generator, so that a row's actions are always the same.
            rng = np.random.default_rng([self.seed, number])
            actions, weights = self.policy.draws(group.next_state, self.n_draws, rng)
            actions = actions[:, which]
        states = np.broadcast_to(states, (len(actions), *states.shape))
        return np.concatenate([states, actions], axis=2), weights


@dataclass(frozen=True)
class Continuation:
    """κ_j ∈ R^L, whose conditional expectation is Φ_L (eq:Phi).

    With a density ratio, κ_j = η̂_j k_L(x'_j); without, the mean of k_L(s'_j, a') over target actions.
    """

    kernel: Matern
    basis: Array
    target: TargetActions
    ratio: DensityRatio | None

    def __call__(self, number: int, group: Transitions, which: slice) -> tuple[Array, Array]:
        """κ (n, L) and η̂ (n,) of some rows of a group; both are zero after a terminal transition."""
        part = group.select(which)
        if self.ratio is None:
            successors, weights = self.target(number, group, which)
            kappa = section_means(self.kernel, self.basis, successors, weights)
            eta = np.ones(len(part))
        else:
            successor = np.hstack([part.next_state, part.next_action])
            eta = self.ratio(successor)
            kappa = eta[:, None] * self.kernel(successor, self.basis)
        kappa[part.terminal] = 0.0
        eta[part.terminal] = 0.0
        return kappa, eta


@dataclass(frozen=True)
class StreamingPass:
    """What every task of the streaming pass needs."""

    store_path: Path
    sums_path: Path
    features: NystromFeatures
    frequencies: Array
    continuation: Continuation


def accumulate_block(block: RowBlock, task: StreamingPass) -> None:
    """Sum ψψᵀ and ψyᵀ over the transitions of a block, for all responses y, and store the sums."""
    store = TransitionStore.open(task.store_path)
    sums = ArrayStore.open(task.sums_path, SUMS_KIND, writable=True)
    totals: dict[str, Array] = {name: np.zeros(sums.shape(name)[1:]) for name in sums.names}
    totals["scalar"] = empty_scalars()
    for number, group in _groups(store, block):
        inside = _in_block(group, block)
        _add(totals, task, group.select(inside), *task.continuation(number, group, inside))
    for name, total in totals.items():
        sums.write(name, block.number, total[None])


def empty_scalars() -> Array:
    """The BLOCK_SCALARS of no transition."""
    return np.array([0.0] * (len(BLOCK_SCALARS) - 2) + [np.inf, -np.inf])


def combine_scalars(first: Array, second: Array) -> Array:
    """BLOCK_SCALARS of two sets of transitions together: sums, and at the end the extremes."""
    low, high = min(first[-2], second[-2]), max(first[-1], second[-1])
    return np.append(first[:-2] + second[:-2], [low, high])


def _add(totals: dict[str, Array], task: StreamingPass, part: Transitions, kappa: Array, eta: Array) -> None:
    if len(part) == 0:
        return
    psi = task.features(part.inputs)
    reward = waves(part.reward, task.frequencies)
    totals["gram"] += psi.T @ psi
    totals["mass"] += psi.sum(axis=0)
    totals["reward"] += psi.T @ reward
    totals["reward_sum"] += reward.sum(axis=0)
    if "terminal" in totals and part.terminal.any():
        totals["terminal"] += psi[part.terminal].T @ reward[part.terminal]
    totals["continuation"] += psi.T @ kappa
    totals["continuation_sum"] += kappa.sum(axis=0)
    eta = eta[~part.terminal]
    scalars = [len(part), len(eta), np.vdot(kappa, kappa), eta.sum(), np.vdot(eta, eta)]
    scalars += [eta.min(initial=np.inf), eta.max(initial=-np.inf)]
    totals["scalar"] = combine_scalars(totals["scalar"], np.array(scalars))


def ratio_moments(
    block: RowBlock, store_path: Path, kernel: Matern, centers: Array, target: TargetActions
) -> RatioMoments:
    """Sums of uLSIF over the transitions of a block that have a successor."""
    store = TransitionStore.open(store_path)
    b = len(centers)
    total = RatioMoments(np.zeros((b, b)), np.zeros(b), np.zeros(b), 0)
    for number, group in _groups(store, block):
        inside = _in_block(group, block)
        successors, weights = target(number, group, inside)
        part = group.select(inside)
        goes_on = ~part.terminal
        logged = np.hstack([part.next_state, part.next_action])[goes_on]
        total += moments(
            kernel(logged, centers), section_means(kernel, centers, successors[:, goes_on], weights)
        )
    return total


def evaluate_points(rows: tuple[int, int], path: Path, operators: ConditionalOperators) -> None:
    """Evaluate the conditional operators at some conditioning points and store them."""
    points = ArrayStore.open(path, CONDITIONING_KIND, writable=True)
    start, stop = rows
    chunk, mass = operators(points.read("input", start, stop), points.read("weight", start, stop))
    points.write("basis", start, chunk.basis)
    points.write("continuation", start, chunk.continuation)
    points.write("reward_waves", start, chunk.reward_waves)
    if chunk.terminal_waves is not None:
        points.write("terminal_waves", start, chunk.terminal_waves)
    points.write("mass", start, mass)


def load_points(rows: tuple[int, int], path: Path) -> Chunk:
    """Read some conditioning points back, as the criterion takes them."""
    points = ArrayStore.open(path, CONDITIONING_KIND)
    return Chunk(
        points.read("weight", *rows),
        points.read("basis", *rows),
        points.read("continuation", *rows),
        points.read("reward_waves", *rows),
        points.read("terminal_waves", *rows) if "terminal_waves" in points.names else None,
    )
