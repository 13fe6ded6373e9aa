"""The passes over the data: chunk functions that read transitions by path and sum over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.transitions import Source, Transitions
from kedrl_dask.engine.passes.continuation import Continuation, TargetActions
from kedrl_dask.engine.plan.partition import FIRST_READ, GROUP_ROWS, READ_GROUPS, RowBlock
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.numerics.kernels import matern_compiled
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.regression.density_ratio import RatioMoments, moments, section_means
from kedrl_dask.numerics.regression.reward_trend import LinearTrend
from kedrl_dask.utils.arrays import Features, Inputs, Matrix, Points, Real, Vector
from kedrl_dask.utils.process import check_abandoned
from kedrl_dask.utils.scratch import scratch

Sums = dict[str, Real]

SUMS_KIND = "kedrl block sums"


def warm_up(number: int) -> None:
    """Import this module, and compile the kernel or load its compiled code."""
    matern_compiled.half_integer_kernel(np.ones(1, np.float32), np.ones(2, np.float32))


def read_groups(source: Source, block: RowBlock) -> Iterator[tuple[int, Transitions, slice]]:
    """Groups with transitions in a block: number, all transitions of the group, and those in the block.

    Groups are read ahead of the computation; the first read, which nothing overlaps, is short.
    """
    store = TransitionStore.open(*source)
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
                group = transitions.select(slice(*rows))
                start, stop = np.searchsorted(group.rows, [block.start, block.stop])
                if start < stop:
                    yield number, group, slice(start, stop)


class Destination(NamedTuple):
    """Where sums over a block go: the store, the index in it, and the names of the sums."""

    path: Path
    place: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class StreamingPass:
    """What every task of the streaming pass needs.

    Attributes
    ----------
    source : Source
        The transitions.
    features : NystromFeatures
        ψ, in the precision of the products; sums are always in double precision.
    sums : dict
        The destinations of the sums by the number of the block, with the same sums for every block.
    frequencies : array or None
        W, for the sums with the waves of the reward.
    continuation : Continuation or None
        κ, for the sums with it.
    responses : NystromFeatures or None
        Features of the reward under the return kernel, for the sums with them.
    trend : LinearTrend or None
        Subtracted from the reward before its waves are taken.
    """

    source: Source
    features: NystromFeatures
    sums: dict[int, tuple[Destination, ...]]
    frequencies: Points | None = None
    continuation: Continuation | None = None
    responses: NystromFeatures | None = None
    trend: LinearTrend | None = None

    @property
    def names(self) -> set[str]:
        """Names of all sums."""
        return {name for places in self.sums.values() for place in places for name in place.names}


def accumulate(piece: RowBlock, task: StreamingPass) -> Sums:
    """Sum ψψᵀ and φyᵀ over the transitions of a piece, for all requested responses y."""
    names, dtype = task.names, task.features.whitening.dtype
    phi, psi = scratch("features", (2, GROUP_ROWS, task.features.rank), dtype)
    totals: Sums = {}
    for number, group, inside in read_groups(task.source, piece):
        part = group.select(inside)
        n = len(part)
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
    """Add to sums in double precision, in place."""
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
    """Store the sums over a block of episodes, given by its pieces, at their destinations."""
    for path, place, names in task.sums[block[0].number]:
        _write_sums(path, place, {name: total[name] for name in names})


def _write_sums(path: Path, number: int, totals: Sums) -> None:
    sums = ArrayStore.open(path, SUMS_KIND, writable=True)
    for name, total in totals.items():
        sums.write(name, number, np.asarray(total)[None])
    sums.commit(number)


def _product(name: str, phi: Features, responses: Features) -> Matrix:
    out = scratch(name, (phi.shape[1], responses.shape[1]), phi.dtype)
    return np.matmul(phi.T, responses, out=out)


def _total(x: Features) -> Vector:
    """Sum over the rows, as a product: this is several times faster."""
    return np.ones(len(x), x.dtype) @ x


def _input_sums(psi: Features, n: int) -> Sums:
    gram = np.matmul(psi.T, psi, out=scratch("gram", (psi.shape[1],) * 2, psi.dtype))
    return {"gram": gram, "mass": _total(psi), "count": np.array(float(n))}


def _reward_sums(
    phi: Features, part: Transitions, frequencies: Points, trend: LinearTrend | None, with_terminal: bool
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


def _response_sums(phi: Features, part: Transitions, features: NystromFeatures) -> Sums:
    responses = scratch("responses", (len(part), features.rank), phi.dtype)
    return {"response": _product("response", phi, features.partial(part.reward, out=responses))}


def _continuation_sums(phi: Features, part: Transitions, kappa: Features, eta: Vector) -> Sums:
    eta = eta[~part.terminal]
    square = np.einsum("ij,ij->i", kappa, kappa).sum(dtype=np.float64)
    scalars = [len(eta), square, eta.sum(), np.vdot(eta, eta)]
    scalars += [eta.min(initial=np.inf), eta.max(initial=-np.inf)]
    return {
        "continuation": _product("continuation", phi, kappa),
        "continuation_sum": _total(kappa),
        "scalar": np.array(scalars),
    }


def combine_scalars(first: Vector, second: Vector) -> Vector:
    """BLOCK_SCALARS of the union of two sets of transitions: sums, followed by the extremes."""
    low, high = min(first[-2], second[-2]), max(first[-1], second[-1])
    return np.append(first[:-2] + second[:-2], [low, high])


def ratio_moments(
    block: RowBlock,
    sums: Path,
    source: Source,
    kernel: Matern,
    centers: Inputs,
    target: TargetActions,
    dtype: npt.DTypeLike,
) -> None:
    """Store the sums of uLSIF over the transitions of a block that have a successor."""
    b = len(centers)
    total = RatioMoments(np.zeros((b, b)), np.zeros(b), np.zeros(b), 0)
    for number, group, inside in read_groups(source, block):
        successors, weights = target(number, group, inside)
        part = group.select(inside)
        # A block consists of whole episodes. One that continues after the block has grown since; its last
        # row in the block counts as having no successor, as it did before.
        goes_on = ~part.terminal & (part.rows < block.stop - 1)
        logged = np.hstack([part.next_state, part.next_action])[goes_on]
        at_logged, at_drawn = scratch("ratio", (2, len(logged), b), dtype)
        kernel(logged, centers, out=at_logged)
        section_means(kernel, centers, successors[:, goes_on], weights, out=at_drawn)
        total += moments(at_logged, at_drawn)
    _write_sums(sums, block.number, {name: np.asarray(part) for name, part in vars(total).items()})
