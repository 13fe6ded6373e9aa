"""Convex quadratic problems on the simplex, many at once and with a certificate.

min_w ½wᵀPw − qᵀw + κ·KL(w‖w₀) over w ≥ 0, Σw = 1, with one P and, for each of n problems, its own q and w₀.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax, xlogy

from kedrl_dask.utils.arrays import Array

__all__ = ["SimplexProblem", "SimplexSolution", "minimise", "minimise_by_adam"]


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

    quadratic: Array
    linear: Array
    divergence: float
    reference: Array

    def value(self, weights: Array) -> Array:
        """The objective; (n,)."""
        value = ((0.5 * weights @ self.quadratic - self.linear) * weights).sum(axis=1)
        if self.divergence > 0:
            # 0·log(0/0) = 0: a weight may only be zero where its reference is.
            ratio = np.divide(weights, self.reference, out=np.ones_like(weights), where=self.reference > 0)
            value += self.divergence * xlogy(weights, ratio).sum(axis=1)
        return value

    def gradient(self, weights: Array) -> Array:
        """Its gradient; infinite at zero weights where κ > 0."""
        gradient = weights @ self.quadratic - self.linear
        if self.divergence > 0:
            with np.errstate(divide="ignore"):
                logarithm = np.log(weights) - np.log(np.where(self.allowed, self.reference, 1.0))
            gradient += self.divergence * (np.where(self.allowed, logarithm, 0.0) + 1)
        return gradient

    @property
    def allowed(self) -> Array:
        """Where a weight may be positive; (n, m)."""
        return self.reference > 0 if self.divergence > 0 else np.ones(self.linear.shape, dtype=bool)

    def gap(self, weights: Array) -> Array:
        """How far at most the objective is above its minimum: gᵀw − min g, by convexity; (n,)."""
        gradient = self.gradient(weights)
        inner = np.where(weights > 0, gradient, 0.0) * weights
        gap = inner.sum(axis=1) - np.where(self.allowed, gradient, np.inf).min(axis=1)
        return np.maximum(gap, 0.0)

    def rows(self, rows: Any) -> SimplexProblem:
        """Some of the problems."""
        return self._replace(linear=self.linear[rows], reference=self.reference[rows])


class SimplexSolution(NamedTuple):
    """Weights (n, m), the value of each problem, and how far above its minimum it is at most."""

    weights: Array
    value: Array
    gap: Array
    n_iterations: int


def minimise(problem: SimplexProblem, tolerance: float) -> SimplexSolution:
    """Minimise by a primal-dual interior-point method, then exactly on the weights that it leaves positive.

    The number of iterations hardly depends on how ill-conditioned P is, which for a smooth kernel on a fine
    grid it always is; first-order methods take thousands.

    Parameters
    ----------
    problem : SimplexProblem
    tolerance : float
        Gap at which to stop. ``solution.gap`` says what was reached.
    """
    n, m = problem.linear.shape
    weights, iterations = np.empty((n, m)), 0
    batch = max(1, SYSTEM_ELEMENTS // m**2)
    for first in range(0, n, batch):
        rows = slice(first, first + batch)
        weights[rows], used = _interior_point(problem.rows(rows), tolerance)
        iterations = max(iterations, used)
    return SimplexSolution(weights, problem.value(weights), problem.gap(weights), iterations)


def _interior_point(problem: SimplexProblem, tolerance: float) -> tuple[Array, int]:
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
    problem: SimplexProblem, rows: Array, candidates: Array, best: Array, best_gap: Array
) -> None:
    gap = problem.rows(rows).gap(candidates)
    better = gap < best_gap[rows]
    best[rows[better]], best_gap[rows[better]] = candidates[better], gap[better]


def _newton_step(
    problem: SimplexProblem, weights: Array, slacks: Array, level: Array, centring: Array
) -> tuple[Array, Array, Array]:
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
    sides = np.stack([pull - dual, allowed.astype(np.float64)], axis=2)
    solved = np.linalg.solve(system, sides)
    free, by_level = solved[:, :, 0], solved[:, :, 1]
    # 1ᵀdw = 1 − 1ᵀw fixes the change of y.
    missing = 1 - weights.sum(axis=1)
    level_step = ((free.sum(axis=1) - missing) / by_level.sum(axis=1))[:, None]
    step = free - level_step * by_level
    return step, np.where(allowed, pull - slacks / safe * step, 0.0), level_step


def _to_boundary(values: Array, step: Array) -> Array:
    """Largest multiple of the step that leaves the values nonnegative; (n,)."""
    ratio = np.divide(values, -step, out=np.full(values.shape, np.inf), where=step < 0)
    return ratio.min(axis=1)


def _polish(problem: SimplexProblem, weights: Array, slacks: Array) -> Array:
    """The minimisers if exactly the weights that exceed their slack are positive, clipped to the simplex."""
    n, m = weights.shape
    positive = weights > slacks
    positive[np.arange(n), weights.argmax(axis=1)] = True
    system = problem.quadratic * (positive[:, :, None] & positive[:, None, :])
    # The jitter keeps a solution where P is singular; the gap of the result is judged without it.
    jitter = 1e-15 * (np.trace(problem.quadratic) + np.abs(problem.linear).max(initial=0.0))
    system[:, np.arange(m), np.arange(m)] += np.where(positive, jitter, 1.0)
    sides = np.stack([problem.linear * positive, positive.astype(np.float64)], axis=2)
    solved = np.linalg.solve(system, sides)
    free, by_level = solved[:, :, 0], solved[:, :, 1]
    level = (free.sum(axis=1) - 1) / by_level.sum(axis=1)
    found = np.maximum(np.where(positive, free - level[:, None] * by_level, 0.0), 0.0)
    mass = found.sum(axis=1, keepdims=True)
    return np.divide(found, mass, out=weights / weights.sum(axis=1, keepdims=True), where=mass > 0)


def minimise_by_adam(
    problem: SimplexProblem, n_iterations: int = 20_000, learning_rate: float = 1e-2
) -> SimplexSolution:
    """The paper's way: w = softmax(θ), Adam from the reference (subsec:expedia_density_recovery).

    It has no rule to stop by and cannot reach a weight of zero; for comparison.
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
