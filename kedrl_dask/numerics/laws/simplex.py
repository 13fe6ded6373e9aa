"""Convex quadratic problems on the simplex, many at once and with a certificate.

min_w ½wᵀPw − qᵀw + κ·KL(w‖w₀) over w ≥ 0, Σw = 1, with one P and, for each of n problems, its own q and w₀.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax, xlogy

from kedrl_dask.utils.arrays import Indices, Mask, Matrices, Matrix, Vector, Weights

#: Numbers in the Newton systems that are in memory at once.
SYSTEM_ELEMENTS = 8_000_000
#: Share of the way to the boundary that a step may go.
TO_BOUNDARY = 0.995
MAX_ITERATIONS = 100
#: Multiple of the tolerance from which on the positive weights are guessed.
POLISHED = 1e4


class SimplexProblem(NamedTuple):
    """The problems: P (m, m), q (n, m), κ ≥ 0 and w₀ (n, m).

    Where κ > 0, weights are zero wherever their reference is, or the divergence would be infinite.
    """

    quadratic: Matrix
    linear: Matrix
    divergence: float
    reference: Weights

    def value(self, weights: Weights) -> Vector:
        """The objective; (n,)."""
        value = ((0.5 * weights @ self.quadratic - self.linear) * weights).sum(axis=1)
        if self.divergence > 0:
            # 0·log(0/0) = 0: a weight must be zero if its reference is.
            ratio = np.divide(weights, self.reference, out=np.ones_like(weights), where=self.reference > 0)
            value += self.divergence * xlogy(weights, ratio).sum(axis=1)
        return value

    def gradient(self, weights: Weights) -> Matrix:
        """Its gradient; infinite at zero weights where κ > 0."""
        gradient = weights @ self.quadratic - self.linear
        if self.divergence > 0:
            with np.errstate(divide="ignore"):
                logarithm = np.log(weights) - np.log(np.where(self.allowed, self.reference, 1.0))
            gradient += self.divergence * (np.where(self.allowed, logarithm, 0.0) + 1)
        return gradient

    @property
    def allowed(self) -> Mask:
        """Which weights may be positive; (n, m)."""
        return self.reference > 0 if self.divergence > 0 else np.ones(self.linear.shape, dtype=bool)

    def gap(self, weights: Weights) -> Vector:
        """Upper bound gᵀw − min g, by convexity, of the objective minus its minimum; (n,)."""
        gradient = self.gradient(weights)
        inner = np.where(weights > 0, gradient, 0.0) * weights
        gap = inner.sum(axis=1) - np.where(self.allowed, gradient, np.inf).min(axis=1)
        return np.maximum(gap, 0.0)

    def rows(self, rows: slice | Indices) -> SimplexProblem:
        """Some of the problems."""
        return self._replace(linear=self.linear[rows], reference=self.reference[rows])


class SimplexSolution(NamedTuple):
    """Weights (n, m), the value of each problem, and the bound of its distance from the minimum."""

    weights: Weights
    value: Vector
    gap: Vector
    n_iterations: int


def minimise(problem: SimplexProblem, tolerance: float) -> SimplexSolution:
    """Minimise by a primal-dual interior-point method, then exactly on the weights that it leaves positive.

    The number of iterations hardly depends on how ill-conditioned P is, which for a smooth kernel on a fine
    grid it always is; first-order methods take thousands. ``tolerance`` is the gap at which to stop, and
    ``solution.gap`` the gap reached.
    """
    n, m = problem.linear.shape
    weights, iterations = np.empty((n, m)), 0
    batch = max(1, SYSTEM_ELEMENTS // m**2)
    for first in range(0, n, batch):
        rows = slice(first, first + batch)
        weights[rows], used = _interior_point(problem.rows(rows), tolerance)
        iterations = max(iterations, used)
    return SimplexSolution(weights, problem.value(weights), problem.gap(weights), iterations)


def _interior_point(problem: SimplexProblem, tolerance: float) -> tuple[Weights, int]:
    """Weights of a batch; problems leave it as they are solved."""
    allowed = problem.allowed
    best = allowed / allowed.sum(axis=1, keepdims=True)
    best_gap = problem.gap(best)
    left = np.flatnonzero(best_gap > tolerance)
    weights = best[left].copy()
    gradient = problem.rows(left).gradient(weights)
    gradient[~allowed[left]] = np.inf
    # Slacks near the gradient's own scale, so that w∘s is not far from the central path.
    lowest = gradient.min(axis=1, keepdims=True)
    spread = np.where(allowed[left], gradient - lowest, 0.0).max(axis=1, keepdims=True)
    level = -lowest + np.maximum(spread, tolerance)
    slacks = np.where(allowed[left], gradient + level, 0.0)
    centring = np.full(len(left), 0.3)
    iteration = 0
    while len(left) and iteration < MAX_ITERATIONS:
        iteration += 1
        part = problem.rows(left)
        step, slack_step, level_step = _newton_step(part, weights, slacks, level, centring)
        length = TO_BOUNDARY * np.minimum(_to_boundary(weights, step), _to_boundary(slacks, slack_step))
        length = np.minimum(length, 1.0)
        weights = weights + length[:, None] * step
        slacks = slacks + length[:, None] * slack_step
        level = level + length[:, None] * level_step
        centring = np.clip((1 - length) ** 2, 0.02, 0.8)
        _keep_better(problem, left, weights / weights.sum(axis=1, keepdims=True), best, best_gap)
        if problem.divergence == 0:
            near = best_gap[left] < POLISHED * tolerance
            polished = _polish(problem.rows(left[near]), weights[near], slacks[near])
            _keep_better(problem, left[near], polished, best, best_gap)
        stays = best_gap[left] > tolerance
        left, weights, slacks = left[stays], weights[stays], slacks[stays]
        level, centring = level[stays], centring[stays]
    return best, iteration


def _keep_better(
    problem: SimplexProblem, rows: Indices, candidates: Weights, best: Weights, best_gap: Vector
) -> None:
    gap = problem.rows(rows).gap(candidates)
    better = gap < best_gap[rows]
    best[rows[better]], best_gap[rows[better]] = candidates[better], gap[better]


def _newton_step(
    problem: SimplexProblem, weights: Weights, slacks: Matrix, level: Matrix, centring: Vector
) -> tuple[Matrix, Matrix, Matrix]:
    """Step of (w, s, y) towards g(w) − s + y·1 = 0, 1ᵀw = 1 and w∘s = centring·(wᵀs/m)."""
    n, m = weights.shape
    allowed = problem.allowed
    safe = np.where(allowed, weights, 1.0)
    target = (centring * (weights * slacks).sum(axis=1) / allowed.sum(axis=1))[:, None]
    dual = np.where(allowed, problem.gradient(weights) - slacks + level, 0.0)
    pull = np.where(allowed, target / safe - slacks, 0.0)
    system = np.broadcast_to(problem.quadratic, (n, m, m)).copy()
    if not allowed.all():
        system *= allowed[:, :, None] & allowed[:, None, :]
    system[:, np.arange(m), np.arange(m)] += np.where(allowed, (slacks + problem.divergence) / safe, 1.0)
    # 1ᵀdw = 1 − 1ᵀw fixes the change of y.
    step, level_step = _solve_with_sum(system, pull - dual, allowed, 1 - weights.sum(axis=1))
    return step, np.where(allowed, pull - slacks / safe * step, 0.0), level_step


def _solve_with_sum(system: Matrices, side: Matrix, allowed: Mask, total: Vector) -> tuple[Matrix, Matrix]:
    """x (n, m) and y (n, 1) with Ax + y·1 = side on the allowed entries, and 1ᵀx = total."""
    solved = np.linalg.solve(system, np.stack([side, allowed.astype(np.float64)], axis=2))
    free, by_level = solved[:, :, 0], solved[:, :, 1]
    level = ((free.sum(axis=1) - total) / by_level.sum(axis=1))[:, None]
    return free - level * by_level, level


def _to_boundary(values: Matrix, step: Matrix) -> Vector:
    """Largest multiple of the step that leaves the values nonnegative; (n,)."""
    ratio = np.divide(values, -step, out=np.full(values.shape, np.inf), where=step < 0)
    return ratio.min(axis=1)


def _polish(problem: SimplexProblem, weights: Weights, slacks: Matrix) -> Weights:
    """The minimisers if exactly the weights that exceed their slack are positive, clipped to the simplex."""
    n, m = weights.shape
    positive = weights > slacks
    positive[np.arange(n), weights.argmax(axis=1)] = True
    system = problem.quadratic * (positive[:, :, None] & positive[:, None, :])
    # The jitter keeps a solution where P is singular; the gap of the result is judged without it.
    jitter = 1e-15 * (np.trace(problem.quadratic) + np.abs(problem.linear).max(initial=0.0))
    system[:, np.arange(m), np.arange(m)] += np.where(positive, jitter, 1.0)
    solved, _ = _solve_with_sum(system, problem.linear * positive, positive, np.ones(n))
    found = np.maximum(np.where(positive, solved, 0.0), 0.0)
    mass = found.sum(axis=1, keepdims=True)
    return np.divide(found, mass, out=weights / weights.sum(axis=1, keepdims=True), where=mass > 0)


def minimise_by_adam(
    problem: SimplexProblem, n_iterations: int = 20_000, learning_rate: float = 1e-2
) -> SimplexSolution:
    """The paper's method: w = softmax(θ), Adam from the reference (subsec:expedia_density_recovery).

    It has no stopping rule and cannot reach a weight of zero; for comparison.
    """
    # softmax⁻¹ of a zero is −∞; the reference is left by as much as double precision can hold of a weight.
    logits = np.log(np.maximum(problem.reference, 1e-12))
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    for iteration in range(1, n_iterations + 1):
        weights = softmax(logits, axis=1)
        gradient = np.where(problem.allowed, problem.gradient(weights), 0.0)
        gradient = weights * (gradient - (weights * gradient).sum(axis=1, keepdims=True))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        scaled = first / (1 - 0.9**iteration) / (np.sqrt(second / (1 - 0.999**iteration)) + 1e-8)
        logits = logits - learning_rate * scaled
    weights = np.where(problem.allowed, softmax(logits, axis=1), 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return SimplexSolution(weights, problem.value(weights), problem.gap(weights), n_iterations)
