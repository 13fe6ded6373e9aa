"""Chunk functions of the two passes over the data: they read by path, compute, and write what they own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.plan.partition import FIRST_READ, GROUP_ROWS, READ_GROUPS, RowBlock
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.numerics.criterion.separated import Chunk
from kedrl_dask.numerics.kernels import matern_compiled
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.policies.draws import checked_draws
from kedrl_dask.numerics.policies.families import Policy
from kedrl_dask.numerics.regression.density_ratio import DensityRatio, RatioMoments, moments, section_means
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.numerics.regression.reward_trend import LinearTrend
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.process import check_abandoned
from kedrl_dask.utils.scratch import scratch

__all__ = [
    "CONDITIONING_KIND",
    "SUMS_KIND",
    "Conditioning",
    "Continuation",
    "Destination",
    "StreamingPass",
    "TargetActions",
    "accumulate",
    "combine_scalars",
    "combine_sums",
    "evaluate_points",
    "ratio_moments",
    "warm_up",
    "write_block",
]

Sums = dict[str, Array]

SUMS_KIND = "kedrl block sums"
CONDITIONING_KIND = "kedrl conditioning points"


def warm_up(number: int) -> None:
    """Import what the passes need, by being called, and have the kernel compiled, or its code read."""
    matern_compiled.half_integer_kernel(np.ones(1, np.float32), np.ones(2, np.float32))


def read_groups(store: TransitionStore, block: RowBlock) -> Iterator[tuple[int, Transitions]]:
    """Groups of transitions that touch a block: each whole, whatever part of it lies in the block.

    They are read ahead of the work; the first read, which nothing hides, is a short one.
    """
    first, last = block.start // GROUP_ROWS, -(-block.stop // GROUP_ROWS)
    edges = [first, *range(min(first + FIRST_READ, last), last, READ_GROUPS), last]

    def read(begin: int, end: int) -> Transitions:
        return store.transitions(begin * GROUP_ROWS, min(end * GROUP_ROWS, store.n_rows))

    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(read, *edges[:2])
        for i, (begin, end) in enumerate(pairwise(edges)):
            transitions = ahead.result()
            if i + 2 < len(edges):
                ahead = reader.submit(read, end, edges[i + 2])
            cuts = np.searchsorted(transitions.rows, np.arange(begin, end + 1) * GROUP_ROWS)
            for number, rows in zip(range(begin, end), pairwise(cuts), strict=True):
                check_abandoned()
                yield number, transitions.select(slice(*rows))


def in_block(group: Transitions, block: RowBlock) -> slice:
    return slice(*np.searchsorted(group.rows, [block.start, block.stop]))


@dataclass(frozen=True)
class TargetActions:
    """Actions of the target policy at successor states; the same for a row wherever it is computed."""

    policy: Policy
    n_draws: int
    seed: int

    def __call__(self, number: int, group: Transitions, which: slice) -> tuple[Array, Array]:
        """Successor inputs (draws, n, p + q) for some rows of a group, and the weights of the draws."""
        states, rows = group.next_state[which], group.rows[which]
        if self.policy.deterministic_draws:
            actions, weights = self._draw(states, None, group, rows)
        else:
            # The whole group draws from one generator, so that a row's actions are always the same.
            rng = np.random.default_rng([self.seed, number])
            actions, weights = self._draw(group.next_state, rng, group, group.rows)
            actions = actions[:, which]
        states = np.broadcast_to(states, (len(actions), *states.shape))
        return np.concatenate([states, actions], axis=2), weights

    def _draw(
        self, states: Array, rng: np.random.Generator | None, group: Transitions, rows: Array
    ) -> tuple[Array, Array]:
        where = f"the successors of rows {rows[0]} to {rows[-1]}" if len(rows) else "no rows"
        n_actions = group.next_action.shape[1]
        return checked_draws(self.policy, states, self.n_draws, rng, n_actions, where)


@dataclass(frozen=True)
class Continuation:
    """κ_j ∈ R^L, whose conditional expectation is Φ_L (eq:Phi).

    With a density ratio, κ_j = η̂_j k_L(x'_j); without, the mean of k_L(s'_j, a') over target actions.
    """

    kernel: Matern
    basis: Array
    target: TargetActions
    ratio: DensityRatio | None

    def __call__(
        self, number: int, group: Transitions, which: slice, dtype: npt.DTypeLike
    ) -> tuple[Array, Array]:
        """κ (n, L) and η̂ (n,) of some rows of a group; both are zero after a terminal transition."""
        part = group.select(which)
        kappa = scratch("kappa", (len(part), len(self.basis)), dtype)
        if self.ratio is None:
            successors, weights = self.target(number, group, which)
            section_means(self.kernel, self.basis, successors, weights, out=kappa)
            eta = np.ones(len(part))
        else:
            successor = np.hstack([part.next_state, part.next_action])
            eta = self.ratio(successor, dtype)
            self.kernel(successor, self.basis, out=kappa)
            kappa *= eta[:, None].astype(dtype)
        kappa[part.terminal] = 0.0
        eta[part.terminal] = 0.0
        return kappa, eta


class Destination(NamedTuple):
    """Where sums over a block go: the store, the place in it, and which sums."""

    path: Path
    place: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class StreamingPass:
    """What every task of the streaming pass needs.

    Attributes
    ----------
    store_path : Path
        The transitions.
    features : NystromFeatures
        ψ, in the precision of the products; sums are always in double precision.
    sums : dict
        Where sums go, by the number of the block: the same sums for all.
    frequencies : array or None
        W, for the sums with the reward's waves.
    continuation : Continuation or None
        κ, for the sums with it.
    responses : NystromFeatures or None
        Features of the reward under the return kernel, for the sums with them.
    trend : LinearTrend or None
        What is taken from the reward before its waves.
    """

    store_path: Path
    features: NystromFeatures
    sums: dict[int, tuple[Destination, ...]]
    frequencies: Array | None = None
    continuation: Continuation | None = None
    responses: NystromFeatures | None = None
    trend: LinearTrend | None = None

    @property
    def names(self) -> set[str]:
        """All sums to make."""
        return {name for places in self.sums.values() for place in places for name in place.names}


def accumulate(piece: RowBlock, task: StreamingPass) -> Sums:
    """Sum ψψᵀ and φyᵀ over the transitions of a piece, for all responses y that are asked for."""
    store, names = TransitionStore.open(task.store_path), task.names
    dtype = task.features.whitening.dtype
    phi, psi = scratch("features", (2, GROUP_ROWS, task.features.rank), dtype)
    totals: Sums = {}
    for number, group in read_groups(store, piece):
        inside = in_block(group, piece)
        part = group.select(inside)
        n = len(part)
        if n == 0:
            continue
        task.features.partial(part.inputs, out=phi[:n])
        parts: Sums = {}
        if "gram" in names:
            parts |= _input_sums(task.features.complete(phi[:n], out=psi[:n]), n)
        if task.responses is not None:
            parts |= _response_sums(phi[:n], part, task.responses)
        if task.frequencies is not None and "reward" in names:
            parts |= _reward_sums(phi[:n], part, task.frequencies, task.trend, "terminal" in names)
        if task.continuation is not None:
            parts |= _continuation_sums(phi[:n], part, *task.continuation(number, group, inside, dtype))
        _add(totals, parts)
    return totals


def _add(totals: Sums, parts: Sums) -> None:
    """Add to double precision sums in their place."""
    for name, part in parts.items():
        if name not in totals:
            totals[name] = np.array(part, dtype=np.float64)
        elif name == "scalar":
            totals[name] = combine_scalars(totals[name], part)
        else:
            totals[name] += part


def combine_sums(first: Sums, second: Sums) -> Sums:
    """Sums over both sets of transitions."""
    total = {name: part.copy() for name, part in first.items()}
    _add(total, second)
    return total


def write_block(total: Sums, block: Sequence[RowBlock], task: StreamingPass) -> None:
    """Store the sums over a block of episodes, given by its pieces, where each belongs."""
    for path, place, names in task.sums[block[0].number]:
        _write_sums(path, place, {name: total[name] for name in names})


def _write_sums(path: Path, number: int, totals: Sums) -> None:
    sums = ArrayStore.open(path, SUMS_KIND, writable=True)
    for name, total in totals.items():
        sums.write(name, number, np.asarray(total)[None])
    sums.commit(number)


def _product(name: str, phi: Array, responses: Array) -> Array:
    out = scratch(name, (phi.shape[1], responses.shape[1]), phi.dtype)
    return np.matmul(phi.T, responses, out=out)


def _total(x: Array) -> Array:
    """Sum over the rows: as a product it is several times faster."""
    return np.ones(len(x), x.dtype) @ x


def _input_sums(psi: Array, n: int) -> Sums:
    gram = np.matmul(psi.T, psi, out=scratch("gram", (psi.shape[1],) * 2, psi.dtype))
    return {"gram": gram, "mass": _total(psi), "count": np.array(float(n))}


def _reward_sums(
    phi: Array, part: Transitions, frequencies: Array, trend: LinearTrend | None, with_terminal: bool
) -> Sums:
    reward = scratch("waves", (len(part), 2 * len(frequencies)), phi.dtype)
    residual = part.reward if trend is None else part.reward - trend(part.inputs)
    waves(residual, frequencies, out=reward)
    sums = {"reward": _product("reward", phi, reward), "reward_sum": _total(reward)}
    if trend is not None:
        sums["trend_gram"], sums["trend_cross"] = trend.moments(part.inputs, residual)
    if with_terminal:
        sums["terminal"] = phi[part.terminal].T @ reward[part.terminal]
    return sums


def _response_sums(phi: Array, part: Transitions, features: NystromFeatures) -> Sums:
    responses = scratch("responses", (len(part), features.rank), phi.dtype)
    return {"response": _product("response", phi, features.partial(part.reward, out=responses))}


def _continuation_sums(phi: Array, part: Transitions, kappa: Array, eta: Array) -> Sums:
    eta = eta[~part.terminal]
    square = np.einsum("ij,ij->i", kappa, kappa).sum(dtype=np.float64)
    scalars = [len(eta), square, eta.sum(), np.vdot(eta, eta)]
    scalars += [eta.min(initial=np.inf), eta.max(initial=-np.inf)]
    return {
        "continuation": _product("continuation", phi, kappa),
        "continuation_sum": _total(kappa),
        "scalar": np.array(scalars),
    }


def combine_scalars(first: Array, second: Array) -> Array:
    """BLOCK_SCALARS of two sets of transitions together: sums, and at the end the extremes."""
    low, high = min(first[-2], second[-2]), max(first[-1], second[-1])
    return np.append(first[:-2] + second[:-2], [low, high])


def ratio_moments(
    block: RowBlock,
    sums: Path,
    store_path: Path,
    kernel: Matern,
    centers: Array,
    target: TargetActions,
    dtype: npt.DTypeLike,
) -> None:
    """Store the sums of uLSIF over the transitions of a block that have a successor."""
    store = TransitionStore.open(store_path)
    b = len(centers)
    total = RatioMoments(np.zeros((b, b)), np.zeros(b), np.zeros(b), 0)
    for number, group in read_groups(store, block):
        inside = in_block(group, block)
        successors, weights = target(number, group, inside)
        part = group.select(inside)
        # A block is of whole episodes: one that goes on after it had not when the block was all there was.
        goes_on = ~part.terminal & (part.rows < block.stop - 1)
        logged = np.hstack([part.next_state, part.next_action])[goes_on]
        at_logged, at_drawn = scratch("ratio", (2, len(logged), b), dtype)
        kernel(logged, centers, out=at_logged)
        section_means(kernel, centers, successors[:, goes_on], weights, out=at_drawn)
        total += moments(at_logged, at_drawn)
    _write_sums(sums, block.number, {name: np.asarray(part) for name, part in vars(total).items()})


@dataclass(frozen=True)
class Conditioning:
    """The conditioning points: where they are stored, and how what the criterion needs there is computed.

    Sections with the basis are whitened, k̃ = T_Lᵀk_L and Φ̃ = T_LᵀΦ_L: products of the solver then stay
    accurate in single precision.

    Attributes
    ----------
    points : Path
        Inputs, weights, and all that does not depend on the policy.
    continuation : Path
        Φ̃.
    operators : ConditionalOperators
        With ``continuation`` coefficients that give Φ̃.
    basis : NystromFeatures
        k̃.
    dtype : dtype
        Precision of what is stored and of the products.
    """

    points: Path
    continuation: Path
    operators: ConditionalOperators
    basis: NystromFeatures
    dtype: np.dtype[Any]

    def compute(self, rows: tuple[int, int]) -> Chunk:
        """Evaluate at some of the points; nothing but inputs and weights is read."""
        points = ArrayStore.open(self.points, CONDITIONING_KIND)
        inputs, weights = points.read("input", *rows), points.read("weight", *rows)
        chunk, _ = self.operators(inputs, weights)
        return replace(chunk, basis=self.basis(inputs)).astype(self.dtype)

    def sample_rewards(self, n_points: int, at_most: int) -> Array:
        """ρ at points spread evenly over all of them, the same however they are divided into chunks."""
        points = ArrayStore.open(self.points, CONDITIONING_KIND)
        inputs = points.read("input", 0, n_points)[:: -(-n_points // at_most)]
        return self.operators.target(inputs, self.operators.features(inputs))["reward_waves"]

    def load(self, rows: tuple[int, int]) -> Chunk:
        """Read what was stored."""
        points = ArrayStore.open(self.points, CONDITIONING_KIND)
        continuation = ArrayStore.open(self.continuation, CONDITIONING_KIND)
        kind = self.operators.chunk_type
        return kind(
            points.read("weight", *rows),
            points.read("basis", *rows),
            continuation.read("continuation", *rows),
            **{name: points.read(name, *rows) for name in kind.target_names() if name in points.names},
        )


def evaluate_points(
    block: tuple[int, tuple[int, int]], task: Conditioning, with_shared: bool, with_own: bool
) -> None:
    """Evaluate the operators at the conditioning points of a chunk, given by its number and rows; store them.

    What all policies share, and what depends on the policy.
    """
    number, rows = block
    points = ArrayStore.open(task.points, CONDITIONING_KIND, writable=True)
    inputs = points.read("input", *rows)
    psi, start, operators = task.operators.features(inputs), rows[0], task.operators
    if with_own:
        own = ArrayStore.open(task.continuation, CONDITIONING_KIND, writable=True)
        own.write("continuation", start, psi @ operators.continuation)
        own.commit(number)
    if not with_shared:
        return
    points.write("basis", start, task.basis(inputs))
    points.write("mass", start, psi @ operators.mass)
    for name, array in operators.target(inputs, psi).items():
        points.write(name, start, array)
    points.commit(number)
