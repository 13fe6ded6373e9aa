"""How the coefficients of a fit change with the weights of its blocks of episodes.

The fit is the minimiser Ĉ of a criterion J(C; w), made from sums over blocks that have the weight w_b = 1.
Replicates, in which blocks have other weights, are to first order Ĉ + Σ_b (w_b − 1)·∂Ĉ/∂w_b, where
∂Ĉ/∂w_b = −H⁻¹ ∂∇J/∂w_b and H is the Hessian: any number of them costs one solution for each block.
Landmarks, basis, grid, kernels, ridges, potential and conditioning points are those of the fit; a trend of
the reward is fitted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask.engine.passes.paired_objective import PairedObjective
from kedrl_dask.engine.passes.paired_target import PairedRows
from kedrl_dask.engine.passes.separated_objective import BellmanObjective, Objective, ValueAndGradient
from kedrl_dask.engine.plan.partition import Range, RowBlock, even_ranges, in_groups
from kedrl_dask.engine.storage.schema import BLOCK_SCALARS
from kedrl_dask.estimator.fit.conditioning import find_conditioning
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.estimator.fit.paired import Pairing
from kedrl_dask.estimator.fit.problem import Prepared
from kedrl_dask.estimator.fit.regression import RegressionSums, Ridges, StoredBlocks, recalibrate, regress
from kedrl_dask.estimator.fit.streaming import Streamed, episode_blocks
from kedrl_dask.numerics.criterion import paired, separated
from kedrl_dask.numerics.criterion.separated import Chunk, Penalties, ReturnSpace
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import as_complex, waves
from kedrl_dask.numerics.regression.density_ratio import DensityRatio
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.numerics.regression.reward_trend import LinearTrend, TrendWaves
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.utils.arrays import (
    Coefficients,
    Features,
    Inputs,
    Matrices,
    Matrix,
    Precision,
    Real,
    Vector,
    Waves,
    Weights,
)
from kedrl_dask.utils.exceptions import NumericalError
from kedrl_dask.utils.progress import Reporter

#: Conditioning points at which the separated criterion is differentiated, at most, and those of a task.
N_POINTS, TASK_POINTS = 4_000, 1_000
#: Change of a block's weight in differences, and of coefficients, in units of the largest.
STEP, COEFFICIENT_STEP = 0.05, 1e-4
#: Relative gradient to which changes of the coefficients are found: two digits more than replicates have.
TOLERANCE = 1e-3
#: Which of a block's numbers are extremes and not sums.
EXTREMES = [BLOCK_SCALARS.index(name) for name in ("ratio_min", "ratio_max")]
#: Inputs at which the fit's expectations are taken to fit a trend again.
EXPECTED_AT = 4_000


def block_influence(
    start: Prepared, streamed: Streamed, coefficients: Coefficients, reporter: Reporter
) -> Matrices:
    """∂C/∂w of each block, C in the whitened basis; (n_blocks, rank, m)."""
    find = _paired_changes if start.settings.construction == "paired" else _separated_changes
    problem, changes = find(start, streamed, coefficients, reporter)
    found = []
    with reporter.stage("influence of episodes", len(changes)) as advance:
        for change in changes:
            solution = PCG(TOLERANCE).solve(_Newton(problem, coefficients, change))
            if not solution.result.ok:
                raise NumericalError(
                    f"bootstrap: the influence of a block of episodes was not found: {solution.result.value}"
                )
            found.append(solution.coefficients)
            advance()
    return np.stack(found)


class _Newton:
    """½⟨C, HC⟩ + ⟨g, C⟩, whose minimiser is −H⁻¹g, with the Hessian of a criterion at some coefficients."""

    is_quadratic = True

    def __init__(self, problem: Objective, at: Coefficients, gradient: Coefficients) -> None:
        self._problem, self._at, self._gradient = problem, at, gradient
        self.coordinates, self.products_are_exact = problem.coordinates, problem.products_are_exact
        self.whitening, self.shape, self.n_points = problem.whitening, problem.shape, problem.n_points
        self.precondition, self.batch_gradient = problem.precondition, problem.batch_gradient
        self.product = problem.product if problem.is_quadratic else self._difference

    def value_and_gradient(self, coefficients: Coefficients) -> ValueAndGradient:
        """Its value and gradient, in double precision."""
        image = self._difference(coefficients)
        value = np.vdot(coefficients, 0.5 * image + self._gradient)
        return float(value), image + self._gradient

    def _difference(self, direction: Coefficients) -> Coefficients:
        """The Hessian times a direction, from gradients of the criterion."""
        size = float(np.abs(direction).max())
        if size == 0:
            return np.zeros_like(direction)
        length = COEFFICIENT_STEP * max(float(np.abs(self._at).max()), 1.0) / size
        ahead, behind = (
            self._problem.value_and_gradient(self._at + sign * length * direction)[1] for sign in (1, -1)
        )
        return (ahead - behind) / (2 * length)


# The separated construction: operators are smooth functions of the sums, so differences are taken.


def _separated_changes(
    start: Prepared, streamed: Streamed, coefficients: Coefficients, reporter: Reporter
) -> tuple[Objective, list[Coefficients]]:
    """The criterion at some of the conditioning points, and ∂∇J/∂w of each block."""
    choices, settings, executor = start.choices, start.settings, start.executor
    inputs, weights = find_conditioning(settings, start.store, start.operators.kernel, start.cache)
    chosen = slice(None, None, -(-len(inputs) // N_POINTS))
    inputs, weights = inputs[chosen], weights[chosen] / weights[chosen].sum()
    space = ReturnSpace.build(choices.grid, choices.frequencies, settings.discount, choices.return_kernel)
    points = _Points(inputs, weights, start.operators.whitened(choices.basis), choices.basis, settings.dtype)
    groups = in_groups(even_ranges(len(inputs), TASK_POINTS), executor.n_threads)
    problem = BellmanObjective(executor, points, groups, "resident", space, start.penalties, start.ridge_b)
    trend = start.operators.trend
    expected = None if trend is None else ExpectedWaves.build(start.operators, trend, choices.sample.inputs)
    sums = _Reweighted.build(streamed, choices, start.ridges, expected)
    shared = executor.share(sums), executor.share(points), space, start.penalties, coefficients
    n_blocks = len(streamed.blocks[0])
    with reporter.stage("changes of the criterion", n_blocks) as advance:
        return problem, executor.map(_gradient_change, range(n_blocks), *shared, advance=advance)


@dataclass(frozen=True)
class _Points:
    """Some conditioning points in memory: a ``PointSource`` that nothing stores."""

    inputs: Inputs
    weights: Weights
    operators: ConditionalOperators
    basis: NystromFeatures
    dtype: Precision

    def compute(self, rows: Range) -> Chunk:
        """Evaluate some of the points."""
        some = slice(*rows)
        chunk: Chunk = self.operators(self.inputs[some], self.weights[some])[0]
        return replace(chunk, basis=self.basis(self.inputs[some])).astype(self.dtype)

    load = compute

    def sample_rewards(self, n_points: int, at_most: int) -> Features:
        """ρ at evenly spaced points."""
        inputs = self.inputs[:: -(-n_points // at_most)]
        return self.operators.target(inputs, self.operators.features(inputs))["reward_waves"]


@dataclass(frozen=True)
class _Reweighted:
    """Sums of all blocks, and the operators where one block has another weight."""

    blocks: list[StoredBlocks]
    choices: Choices
    ridges: Ridges
    total: dict[str, Real]
    ratio: DensityRatio | None
    expected: ExpectedWaves | None

    @classmethod
    def build(
        cls, streamed: Streamed, choices: Choices, ridges: Ridges, expected: ExpectedWaves | None
    ) -> _Reweighted:
        total: dict[str, Real] = {}
        for number in range(len(streamed.blocks[0])):
            for name, block in read_block(streamed.blocks, choices.features, number):
                total[name] = block + total.get(name, 0.0)
        return cls(streamed.blocks, choices, ridges, total, streamed.continuation.ratio, expected)

    def operators(self, number: int, change: float) -> ConditionalOperators:
        """The operators where the weight of a block is one plus the change."""
        blocks = read_block(self.blocks, self.choices.features, number)
        parts = {name: (self.total[name] + change * block)[None] for name, block in blocks}
        sums, choices = RegressionSums(**parts), self.choices
        if self.expected is not None:
            trend, sums = self.expected.refit_trend(sums)
            choices = replace(choices, trend=trend)
        if self.ratio is not None and self.ratio.clip is not None:
            _, sums = recalibrate(self.ratio, sums)
        return regress(choices, sums, self.ridges).whitened(choices.basis)


def read_block(
    blocks: list[StoredBlocks], features: NystromFeatures, number: int
) -> Iterator[tuple[str, Real]]:
    """The sums of one block by name, completed to sums with ψ; extremes, which are no sums, as zeros."""
    for of_kind in blocks:
        for name in of_kind.names:
            found = of_kind.read(name, number)
            if name == "scalar":
                found[EXTREMES] = 0.0
            is_partial = name in {"reward", "terminal", "continuation"}
            yield name, features.complete_sums(found) if is_partial else found


def _gradient_change(
    number: int,
    sums: _Reweighted,
    points: _Points,
    space: ReturnSpace,
    penalties: Penalties,
    coefficients: Coefficients,
) -> Coefficients:
    """∂∇J/∂w of a block."""
    gradients = []
    for change in (STEP, -STEP):
        moved = replace(points, operators=sums.operators(number, change), dtype=np.dtype(np.float64))
        total = np.zeros_like(coefficients)
        for rows in even_ranges(len(points.inputs), TASK_POINTS):
            total += separated.value_and_gradient(moved.compute(rows), space, penalties, coefficients)[1]
        gradients.append(total)
    return (gradients[0] - gradients[1]) / (2 * STEP)


@dataclass(frozen=True)
class ExpectedWaves:
    """Expectations of exp(iWe), e = r − m(x), under the fit at some logged inputs.

    With the trend m + δ of a replicate the residual's waves are exp(iWe) ⊙ exp(−iWδ(x)). What the second
    factor changes in their sums is taken at the expectation of the first: δ is of the order of N^(-1/2), and
    what that leaves out of N⁻¹.
    """

    around: TrendWaves  # the fit's trend m
    inputs: Inputs
    features: Features  # ψ
    reward: Waves  # E[exp(iWe)|x]
    terminal: Waves | None  # E[1{terminal} exp(iWe)|x]

    @classmethod
    def build(cls, operators: ConditionalOperators, around: TrendWaves, inputs: Inputs) -> ExpectedWaves:
        """By the operators of the fit, at no more than ``EXPECTED_AT`` of the inputs."""
        inputs = inputs[:: -(-len(inputs) // EXPECTED_AT)]
        psi = operators.features(inputs)
        terminal = None if operators.terminal is None else psi @ operators.terminal
        return cls(around, inputs, psi, around.mean + psi @ operators.reward, terminal)

    def refit_trend(self, sums: RegressionSums) -> tuple[LinearTrend, RegressionSums]:
        """The trend of a replicate, and its sums around this, given those around m."""
        before = self.around.trend
        trend = before.refit(sums.trend_moments)
        turned = as_complex(waves(before(self.inputs) - trend(self.inputs), self.around.frequencies))
        turned -= 1
        share = sums.n_transitions / len(self.inputs)

        def change(expected: Waves) -> Waves:
            return share * (turned * as_complex(expected)).view(np.float64)

        reward, terminal = change(self.reward), sums.terminal
        if terminal is not None and self.terminal is not None:
            terminal = terminal + self.features.T @ change(self.terminal)
        return trend, replace(
            sums,
            reward=sums.reward + self.features.T @ reward,
            reward_sum=sums.reward_sum + reward.sum(axis=0),
            terminal=terminal,
        )


# The paired construction: its target is linear in the sums, of which a sweep over the transitions finds those
# that matter at Ĉ.


def _paired_changes(
    start: Prepared, streamed: Streamed, coefficients: Coefficients, reporter: Reporter
) -> tuple[Objective, list[Coefficients]]:
    """The criterion, and ∂∇J/∂w of each block.

    With K = A + NλI and S(C) = Σ φ ⊗ exp(iWr) ⊗ κ̃ᵀC the target is D = K⁻¹S(C), and half the gradient is
    k̃ᵀfFᵀ + S*(K⁻¹y), y = −ψᵀf. Derivatives by a block's weight have its own K_b and S_b.
    """
    choices, settings, executor = start.choices, start.settings, start.executor
    sums, continuation = streamed.collect(choices.features, settings.n_folds)
    pairing = Pairing(start, sums, continuation, streamed.facts)
    problem, _ = pairing.problem(reporter)
    space = ReturnSpace.build(choices.grid, choices.frequencies, settings.discount, choices.return_kernel)
    at_fit = _PairedTarget.build(problem, start, sums, space, coefficients)
    shared = executor.share(pairing.rows()), space, coefficients, at_fit.by_sums(choices.features)
    blocks = episode_blocks(start.store, settings.n_blocks)
    with reporter.stage("changes of the criterion", len(blocks)) as advance:
        swept = executor.map(_sweep_block, blocks, *shared, advance=advance)
    changes = []
    for number, (response, adjoint) in enumerate(swept):
        own = dict(read_block(streamed.blocks, choices.features, number))
        response = choices.features.complete_sums(response)
        if continuation.ratio is not None and continuation.ratio.clip is not None:
            excess = _excess(own["scalar"], continuation.ratio, sums)
            response, adjoint = response - excess * at_fit.response, adjoint - excess * at_fit.adjoint
        changes.append(at_fit.change(own, response, adjoint))
    return problem, changes


def _sweep_block(
    block: RowBlock, rows: PairedRows, space: ReturnSpace, coefficients: Coefficients, by_sums: Matrix
) -> tuple[Matrix, Coefficients]:
    """S_b(C) with φ in place of ψ, and S_b*, of a block."""
    response: Matrix = np.zeros(by_sums.shape)
    adjoint = np.zeros_like(coefficients)
    for batch in rows.compute((block.start, block.stop)):
        exact = batch.astype(np.float64)
        response += paired.sweep_forward(exact, space, coefficients)
        adjoint += paired.sweep_adjoint(exact, space, by_sums)
    return response, adjoint


def _excess(scalars: Vector, ratio: DensityRatio, sums: RegressionSums) -> float:
    """Derivative of the logarithm of the mean ratio by the weight of a block."""
    of_block, successors = (scalars[BLOCK_SCALARS.index(name)] for name in ("ratio", "successors"))
    return float((ratio.scale * of_block - successors) / sums.scalars("successors").sum())


@dataclass(frozen=True)
class _PairedTarget:
    """The target and the gradient at the fit: K's factor and ridge, D + τ, S(C), y and S*(K⁻¹y)."""

    problem: PairedObjective
    space: ReturnSpace
    factor: tuple[Matrix, bool]
    ridge: float
    target: Matrix
    response: Matrix
    solved: Matrix  # K⁻¹y
    adjoint: Coefficients

    @classmethod
    def build(
        cls,
        problem: PairedObjective,
        start: Prepared,
        sums: RegressionSums,
        space: ReturnSpace,
        coefficients: Coefficients,
    ) -> _PairedTarget:
        target, ridge = problem.target(coefficients), start.ridges.gamma
        gram = sums.gram.sum(axis=0)
        gram += sums.n_transitions * ridge * np.eye(len(gram))
        factor, terminal = cho_factor(gram), start.operators.terminal
        _, _, y = paired.residual(problem.target.points, space.grid_waves, coefficients, target)
        response = gram @ (target if terminal is None else target - terminal)
        fixed = target, response, cho_solve(factor, y), problem.target.adjoint(y)
        return cls(problem, space, factor, ridge, *fixed)

    def by_sums(self, features: NystromFeatures) -> Matrix:
        """K⁻¹y for products with φ in place of ψ."""
        return features.complete_sums_adjoint(self.solved)

    def change(self, own: dict[str, Real], response: Matrix, adjoint: Coefficients) -> Coefficients:
        """∂∇J/∂w of a block from its sums, S_b(C) and S_b*(K⁻¹y)."""
        gram = own["gram"] + float(own["count"]) * self.ridge * np.eye(len(own["gram"]))
        response = response + own.get("terminal", 0.0)
        moved = cho_solve(self.factor, response - gram @ self.target)
        points, nothing = self.problem.target.points, np.zeros_like(adjoint)
        _, by_basis, y = paired.residual(points, self.space.grid_waves, nothing, moved)
        found = by_basis + adjoint + self.problem.target.adjoint(y - gram @ self.solved)
        return 2 * self.space.scale * found
