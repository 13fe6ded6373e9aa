"""Solvers on a small criterion in memory, against its dense solution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kedrl_dask import KEDRL
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.numerics.criterion.preconditioner import Coordinates, return_gram
from kedrl_dask.numerics.criterion.separated import FeatureChunk, Penalties, ReturnSpace
from kedrl_dask.numerics.criterion.surrogate import Expansion, Surrogate, SurrogateCost
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW, Record, Result, by_name
from kedrl_dask.numerics.solvers.base import certify

N_POINTS, N_BASIS, N_ATOMS, N_FEATURES = 40, 8, 6, 24


class InMemory:
    """The criterion over one chunk of conditioning points."""

    def __init__(self, mass=1.0, negative=0.0, ridge=1e-3, seed=0, width=1.0):
        rng = np.random.default_rng(seed)
        kernel, return_kernel = Matern(1.5, 1.5), Matern(2.5, 1.0, 0.85)
        w = frequencies(return_kernel, 2, N_FEATURES)
        basis, points, successors = (rng.normal(size=(n, 3)) for n in (N_BASIS, N_POINTS, N_POINTS))
        points *= width
        rewards = rng.normal(size=(N_POINTS, 5, 2))
        rho = np.mean([waves(rewards[:, i], w) for i in range(5)], axis=0)
        weights = rng.uniform(0.5, 1.5, N_POINTS)
        features = NystromFeatures.from_landmarks(kernel, basis)
        self.whitening, self.products_are_exact = features.whitening, True
        self.chunk = FeatureChunk(weights / weights.sum(), features(points), features(successors), rho)
        self.space = ReturnSpace.build(rng.normal(size=(N_ATOMS, 2)), w, 0.7, return_kernel)
        self.penalties, self.ridge = Penalties(mass, 1.0, negative), ridge
        moment, power = separated.moments(self.chunk)
        self.coordinates = Coordinates.build(
            moment, return_gram(self.space, power, self.penalties.mass), ridge
        )
        self.n_products, self.surrogate = 0, None

    shape = (N_BASIS, N_ATOMS)
    n_points = N_POINTS

    @property
    def is_quadratic(self):
        return self.penalties.negative == 0

    def with_surrogate(self):
        expansion = Expansion.of_sample(self.chunk.reward_waves)
        sums = separated.expanded_moments(self.chunk, expansion, self.coordinates.directions())
        self.surrogate = Surrogate(self.coordinates, expansion, sums, self.space, self.penalties.mass)
        return self

    def _over(self, chunk, b):
        value, gradient = separated.value_and_gradient(chunk, self.space, self.penalties, b)
        image = self.ridge * b
        return value + np.vdot(b, image), gradient + 2 * image

    def value_and_gradient(self, b):
        self.n_products += 1
        return self._over(self.chunk, b)

    def product(self, direction):
        self.n_products += 1
        image = separated.product(self.chunk, self.space, self.penalties, direction)
        return image + 2 * self.ridge * direction

    def precondition(self, residual):
        return residual if self.surrogate is None else self.surrogate(residual)

    def batch_gradient(self, rows, b):
        batch = self.chunk.rows(rows)
        return self._over(replace(batch, weights=batch.weights / batch.weights.sum()), b)[1]


def dense_minimiser(problem):
    """Solve the normal equations, found by probing the gradient."""
    zero = problem.value_and_gradient(np.zeros(problem.shape))[1].ravel()
    units = np.eye(zero.size).reshape(-1, *problem.shape)
    hessian = np.array([problem.value_and_gradient(unit)[1].ravel() - zero for unit in units])
    return np.linalg.solve(hessian, -zero).reshape(problem.shape)


def start_like(seed=1):
    return np.random.default_rng(seed).normal(size=(N_BASIS, N_ATOMS))


@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("start", [None, start_like()])
def test_pcg__reaches_the_dense_solution(start, ridge):
    problem = InMemory(ridge=ridge)
    expected = dense_minimiser(problem)
    problem.n_products = 0
    solution = PCG(tolerance=1e-13).solve(problem, start)
    np.testing.assert_allclose(solution.coefficients, expected, atol=1e-10 * np.abs(expected).max())
    assert solution.result is Result.CONVERGED
    assert solution.result.ok
    assert solution.n_products == problem.n_products
    assert 0 < solution.n_iterations < 2 * expected.size
    assert np.isclose(solution.value, problem.value_and_gradient(expected)[0], rtol=1e-10)


def largest_curvature(problem, coordinates):
    """Largest eigenvalue of the Hessian in some coordinates."""
    units = np.eye(int(np.prod(problem.shape))).reshape(-1, *problem.shape)
    images = [coordinates.pull_back(problem.product(coordinates.to_coefficients(unit))) for unit in units]
    return np.linalg.eigvalsh(np.array(images).reshape(len(units), -1))[-1]


@pytest.mark.parametrize("width", [1.0, 0.3, 0.1])
def test_coordinates__bound_the_hessian_though_the_policy_leads_away(width):
    """Conditioning points in a small part of where continuations are."""
    problem = InMemory(width=width, ridge=1e-6)
    assert largest_curvature(problem, problem.coordinates) < 4


def test_coordinates__of_the_conditioning_points_alone_are_no_bound():
    problem = InMemory(width=0.1, ridge=1e-6)
    right = return_gram(problem.space, separated.moments(problem.chunk)[1], problem.penalties.mass)
    sections = problem.chunk.basis
    moment = sections.T @ (problem.chunk.weights[:, None] * sections)
    assert largest_curvature(problem, Coordinates.build(moment, right, problem.ridge)) > 100


def test_surrogate__is_the_hessian_when_nothing_is_left_out(monkeypatch):
    """With all principal components, up to single precision; with few of them, roughly."""
    coordinates = InMemory().coordinates
    y = np.random.default_rng(3).normal(size=coordinates.shape)
    expected = coordinates.pull_back(InMemory().product(coordinates.to_coefficients(y)))
    errors = []
    for tail in (1e-1, 1e-3, 0.0):
        monkeypatch.setattr("kedrl_dask.numerics.criterion.surrogate.EXPANSION_TAIL", tail)
        image = InMemory().with_surrogate().surrogate.product(y.astype(np.float32))
        errors.append(np.linalg.norm(image - expected) / np.linalg.norm(expected))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-5


@pytest.mark.parametrize("n", [1, 5])
def test_expansion__of_rewards_that_do_not_vary(n):
    """The mean says everything: one term, and coordinates that are one."""
    rho = np.tile(waves(np.array([[0.3, -0.2]]), np.random.default_rng(0).normal(size=(4, 2))), (n, 1))
    expansion = Expansion.of_sample(rho)
    waves_of, powers_of = expansion(rho)
    np.testing.assert_allclose(waves_of @ expansion.waves, rho, atol=1e-15)
    np.testing.assert_allclose(powers_of @ expansion.powers, np.ones((n, 4)), rtol=1e-14)


def test_surrogate__sees_the_leading_directions_only(monkeypatch):
    """The others are left as they are, and the solver ends at the same minimum."""
    expected = PCG(tolerance=1e-10).solve(InMemory())
    monkeypatch.setattr("kedrl_dask.numerics.criterion.preconditioner.MOST_DIRECTIONS", N_BASIS // 2)
    problem = InMemory().with_surrogate()
    residual = np.random.default_rng(3).normal(size=problem.shape)
    changed = problem.precondition(residual)
    half = N_BASIS - N_BASIS // 2
    np.testing.assert_array_equal(changed[:half], residual[:half])
    assert np.abs(changed[half:] - residual[half:]).max() > 1e-3
    solution = PCG(tolerance=1e-10).solve(problem)
    scale = np.abs(expected.coefficients).max()
    np.testing.assert_allclose(solution.coefficients, expected.coefficients, atol=1e-7 * scale)


def test_coordinates__share_of_the_trace_that_a_surrogate_sees(monkeypatch):
    moment = np.diag([4.0, 1.0, 3.0, 2.0])
    coordinates = Coordinates.build(moment, np.eye(2), 1e-3)
    assert coordinates.seen_share == 1
    monkeypatch.setattr("kedrl_dask.numerics.criterion.preconditioner.MOST_DIRECTIONS", 2)
    assert coordinates.seen_share == pytest.approx(0.7)
    assert Coordinates.build(0 * moment, np.eye(2), 1e-3).seen_share == 1


@pytest.mark.slow
def test_objective__flat_spectrum__has_no_surrogate(small_store, policy, monkeypatch):
    """Where the leading directions say little, conjugate gradients go without; the minimum is the same."""
    points = small_store.transitions().inputs
    settings = {"n_atoms": 6, "n_basis": 12, "n_landmarks": 20, "n_features": 16, "conditioning": points}
    settings |= {"input_kernel": Matern(2.5, 0.3), "ridge_gamma": 1e-2, "precision": "double"}
    made = []
    build = Surrogate.__init__
    monkeypatch.setattr(Surrogate, "__init__", lambda self, *given: (made.append(1), build(self, *given))[1])
    monkeypatch.setattr(
        "kedrl_dask.engine.passes.separated_objective.SurrogateCost.of",
        lambda *_: SurrogateCost(0.0, 0.0, True),
    )
    values = []
    for most in (12, 3):
        monkeypatch.setattr("kedrl_dask.numerics.criterion.preconditioner.MOST_DIRECTIONS", most)
        model = KEDRL(0.7, centring="none", **settings).fit(small_store, policy, progress="none")
        values.append(model.solution_.value)
    assert len(made) == 1
    assert values[1] == pytest.approx(values[0], rel=1e-8)


def test_surrogate__negative_curvature_leaves_a_direction_of_descent():
    problem = InMemory(ridge=1e-6).with_surrogate()
    problem.surrogate._left[: problem.surrogate._rows] *= -1  # Σϱ k̃k̃ᵀ
    residual = np.random.default_rng(3).normal(size=problem.shape)
    assert np.vdot(residual, problem.precondition(residual)) > 0


@pytest.mark.parametrize("ridge", [1e-3, 1e-6])
@pytest.mark.parametrize("start", [None, start_like()])
def test_pcg__a_surrogate_saves_products(start, ridge):
    plain = PCG(tolerance=1e-10).solve(InMemory(ridge=ridge), start)
    problem = InMemory(ridge=ridge).with_surrogate()
    solution = PCG(tolerance=1e-10).solve(problem, start)
    assert solution.result is Result.CONVERGED
    assert solution.n_products == problem.n_products <= 0.7 * plain.n_products
    assert certify(problem, solution.coefficients)[1] <= 1e-10
    scale = np.abs(plain.coefficients).max()
    np.testing.assert_allclose(solution.coefficients, plain.coefficients, atol=1e-6 * scale)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_pcg__certificate_is_true(tolerance):
    problem = InMemory()
    solution = PCG(tolerance=tolerance).solve(problem)
    value, certificate = certify(problem, solution.coefficients)
    assert 0 < certificate <= tolerance
    assert np.isclose(solution.certificate, certificate, rtol=1e-5)
    assert np.isclose(solution.value, value, rtol=1e-12)
    # In words: the gradient in preconditioned coordinates, over that at zero.
    gradients = [problem.value_and_gradient(b)[1] for b in (solution.coefficients, np.zeros(problem.shape))]
    left, right, spread = (getattr(problem.coordinates, name) for name in ("left", "right", "spread"))
    norms = [np.linalg.norm(left.T @ g @ right / spread) for g in gradients]
    assert np.isclose(certificate, norms[0] / norms[1], rtol=1e-8)


def in_single_precision(problem):
    """Products with rounding errors of single precision; gradients stay exact."""
    space, chunk = problem.space.astype(np.float32), problem.chunk.astype(np.float32)

    def product(direction):
        problem.n_products += 1
        image = separated.product(chunk, space, problem.penalties, direction.astype(np.float32))
        return image + 2 * problem.ridge * direction

    problem.product, problem.products_are_exact = product, False
    return problem


@pytest.mark.parametrize("ridge", [1e-3, 1e-6])
def test_pcg__single_precision_products_reach_the_same_tolerance(ridge):
    exact = PCG(tolerance=1e-10).solve(InMemory(ridge=ridge))
    problem = in_single_precision(InMemory(ridge=ridge))
    solution = PCG(tolerance=1e-10).solve(problem)
    assert solution.result is Result.CONVERGED
    assert certify(problem, solution.coefficients)[1] <= 1e-10
    assert solution.n_products <= 1.5 * exact.n_products + 10
    scale = np.abs(exact.coefficients).max()
    np.testing.assert_allclose(solution.coefficients, exact.coefficients, atol=1e-6 * scale)


def test_pcg__single_precision_without_new_gradients_falls_short(monkeypatch):
    """What the replacement is for: the recurrence alone believes what is not so."""
    problem = in_single_precision(InMemory(ridge=1e-6))
    monkeypatch.setattr("kedrl_dask.numerics.solvers.pcg.REPLACE_AT", 0.0)
    monkeypatch.setattr(PCG, "_restart", lambda self, problem, state: replace(state, is_exact=True))
    solution = PCG(tolerance=1e-10).solve(problem)
    assert solution.certificate <= 1e-10
    assert certify(problem, solution.coefficients)[1] > 1e-9


def test_pcg__warm_start_takes_fewer_iterations():
    problem = InMemory()
    cold = PCG().solve(problem)
    warm = PCG().solve(problem, cold.coefficients + 1e-5 * start_like())
    assert warm.result is Result.CONVERGED
    assert 0 < warm.n_iterations < 0.7 * cold.n_iterations
    assert PCG().solve(problem, cold.coefficients).n_iterations == 0


def test_pcg__preconditioner_pays():
    problem = InMemory(ridge=1e-6)
    n_iterations = PCG().solve(problem).n_iterations
    shape = problem.coordinates.shape
    # Plain conjugate gradients, on the same unknowns.
    problem.coordinates = replace(problem.coordinates, right=np.eye(N_ATOMS), spread=np.ones(shape))
    assert PCG().solve(problem).n_iterations > 1.3 * n_iterations


@pytest.mark.parametrize("n_iterations", [1, 3, 6])
def test_pcg__iterates_are_the_best_of_their_krylov_space(n_iterations):
    problem = InMemory(ridge=1e-5)
    to_coefficients, pull_back = problem.coordinates.to_coefficients, problem.coordinates.pull_back
    powers = [-pull_back(problem.value_and_gradient(np.zeros(problem.shape))[1])]
    for _ in range(n_iterations - 1):
        powers.append(pull_back(problem.product(to_coefficients(powers[-1] / np.linalg.norm(powers[-1])))))
    space = np.linalg.qr(np.array([power.ravel() for power in powers]).T)[0]
    images = [
        pull_back(problem.product(to_coefficients(v.reshape(problem.coordinates.shape)))) for v in space.T
    ]
    hessian = space.T @ np.array([image.ravel() for image in images]).T
    best = space @ np.linalg.solve(hessian, space.T @ powers[0].ravel())
    found = PCG(max_iterations=n_iterations).solve(problem).coefficients
    expected = to_coefficients(best.reshape(problem.coordinates.shape))
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())


def test_pcg__history_decreases_and_is_reported():
    problem, seen = InMemory(), []
    solution = PCG().solve(problem, report=seen.append)
    values = [record.value for record in solution.history]
    assert (np.diff(values) <= 1e-14 * values[0]).all()
    assert solution.history[0] == Record(0, problem.value_and_gradient(np.zeros(problem.shape))[0], 1.0)
    assert tuple(seen) == solution.history[1:]
    assert max(record.iteration for record in seen) == solution.n_iterations
    assert np.isclose(values[-1], problem.value_and_gradient(solution.coefficients)[0], rtol=1e-12)


def test_pcg__used_up_budget_is_said():
    solution = PCG(max_iterations=2).solve(InMemory())
    assert (solution.result, solution.n_iterations) == (Result.BUDGET, 2)
    assert not solution.result.ok
    assert "budget" in solution.result.value
    assert solution.certificate > 1e-8


def test_pcg__last_iteration_of_the_budget_may_converge():
    n_iterations = PCG().solve(InMemory()).n_iterations
    assert PCG(max_iterations=n_iterations).solve(InMemory()).result is Result.CONVERGED
    assert PCG(max_iterations=n_iterations - 1).solve(InMemory()).result is Result.BUDGET


@pytest.mark.parametrize("start", [None, start_like()])
def test_pcg__zero_right_hand_side_has_zero_for_solution(start):
    solution = PCG().solve(InMemory(mass=0.0), start)
    assert solution.result is Result.CONVERGED
    np.testing.assert_allclose(solution.coefficients, 0, atol=1e-6)
    if start is None:
        assert (solution.n_iterations, solution.value, solution.certificate) == (0, 0.0, 0.0)


@pytest.mark.parametrize("factor", [-1.0, 0.0, np.nan])
def test_pcg__criterion_that_is_not_convex_breaks_down(factor):
    problem = InMemory()
    problem.product = lambda direction: factor * direction
    solution = PCG().solve(problem)
    assert solution.result is Result.BREAKDOWN
    assert not solution.result.ok
    assert np.isfinite(solution.coefficients).all()


def test_pcg__criterion_that_is_not_finite_breaks_down():
    problem = InMemory()
    problem.value_and_gradient = lambda b: (np.nan, np.full(problem.shape, np.nan))
    assert PCG().solve(problem).result is Result.BREAKDOWN


@pytest.mark.parametrize("start", [None, start_like()])
def test_pcg__noise_above_the_tolerance_is_stagnation(start):
    problem, rng = InMemory(), np.random.default_rng(0)
    exact = problem.value_and_gradient

    def noisy(b):
        value, gradient = exact(b)
        return value, gradient + 1e-6 * rng.normal(size=problem.shape)

    problem.value_and_gradient = noisy
    solution = PCG(tolerance=1e-12).solve(problem, start)
    assert solution.result is Result.STAGNATED
    assert not solution.result.ok
    assert 1e-12 < solution.certificate < 1e-3
    assert (
        sum(a.iteration == b.iteration for a, b in zip(solution.history, solution.history[1:], strict=False))
        == 4
    )


def test_pcg__penalty_on_negative_coefficients_is_refused():
    with pytest.raises(ValueError, match="solver='lbfgs'"):
        PCG().solve(InMemory(negative=1.0))


@pytest.mark.parametrize("start", [None, start_like()])
def test_lbfgs__equals_pcg_without_the_penalty(start):
    problem = InMemory()
    exact = PCG(tolerance=1e-12).solve(problem)
    problem.n_products = 0
    solution = LBFGS(tolerance=1e-8).solve(problem, start)
    assert solution.result is Result.CONVERGED
    assert solution.n_products == problem.n_products
    np.testing.assert_allclose(
        solution.coefficients, exact.coefficients, atol=1e-6 * np.abs(exact.coefficients).max()
    )
    assert np.isclose(solution.value, exact.value, rtol=1e-10)


@pytest.mark.parametrize("negative", [0.1, 10.0])
def test_lbfgs__minimises_the_penalised_criterion(negative):
    problem = InMemory(negative=negative)
    solution = LBFGS(tolerance=1e-7).solve(problem)
    assert solution.result is Result.CONVERGED
    value, gradient = problem.value_and_gradient(solution.coefficients)
    at_zero = problem.value_and_gradient(np.zeros(problem.shape))[1]
    assert np.linalg.norm(gradient) < 1e-5 * np.linalg.norm(at_zero)
    assert np.isclose(solution.value, value, rtol=1e-14)
    assert np.isclose(solution.certificate, certify(problem, solution.coefficients)[1], rtol=1e-8)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 1e-1, 1.0):
        for _ in range(20):
            elsewhere = solution.coefficients + scale * rng.normal(size=problem.shape)
            assert problem.value_and_gradient(elsewhere)[0] > value


def test_lbfgs__penalty_reduces_negative_coefficients():
    free = PCG().solve(InMemory()).coefficients

    def negative_mass(b):
        return np.minimum(InMemory().chunk.basis @ b, 0).sum()

    assert negative_mass(free) < -0.1
    heavy = LBFGS().solve(InMemory(negative=100.0)).coefficients
    assert negative_mass(heavy) > 0.3 * negative_mass(free)


def test_lbfgs__warm_start_takes_fewer_iterations():
    problem = InMemory(negative=1.0)
    cold = LBFGS().solve(problem)
    warm = LBFGS().solve(problem, cold.coefficients + 1e-6 * start_like())
    assert warm.result is Result.CONVERGED
    assert warm.n_iterations < 0.7 * cold.n_iterations


def test_lbfgs__history_decreases_and_is_reported():
    problem, seen = InMemory(negative=1.0), []
    solution = LBFGS().solve(problem, report=seen.append)
    assert tuple(seen) == solution.history[1:]
    assert (np.diff([record.value for record in solution.history]) <= 0).all()
    assert [record.iteration for record in solution.history] == list(range(solution.n_iterations + 1))


def test_lbfgs__used_up_budget_is_said():
    solution = LBFGS(max_iterations=3).solve(InMemory(negative=1.0))
    assert (solution.result, solution.n_iterations) == (Result.BUDGET, 3)


@pytest.mark.parametrize("start", [None, start_like()])
def test_lbfgs__zero_right_hand_side_has_zero_for_solution(start):
    solution = LBFGS().solve(InMemory(mass=0.0, negative=1.0), start)
    assert solution.result is Result.CONVERGED
    np.testing.assert_array_equal(solution.coefficients, 0)
    assert solution.value == 0


def test_lbfgs__tolerance_below_rounding_is_stagnation():
    solution = LBFGS(tolerance=1e-30).solve(InMemory(negative=1.0))
    assert solution.result is Result.STAGNATED
    assert solution.certificate < 1e-5


def test_lbfgs__criterion_that_is_not_finite_breaks_down():
    problem = InMemory(negative=1.0)
    problem.value_and_gradient = lambda b: (np.nan, np.full(problem.shape, np.nan))
    assert LBFGS().solve(problem).result is Result.BREAKDOWN


def literal_adamw(b, gradients, rate, decay, clip=np.inf):
    """AdamW as in Loshchilov and Hutter, and in torch.optim."""
    mean, square = np.zeros_like(b), np.zeros_like(b)
    for t, gradient_at in enumerate(gradients, 1):
        gradient = gradient_at(b)
        gradient = gradient * min(1.0, clip / np.linalg.norm(gradient))
        b = b - rate * decay * b
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        b = b - rate * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
    return b


def run(solver, problem, n_steps, start):
    """States after 0, 1, …, n_steps steps."""
    states = [solver.init(problem, start)]
    for _ in range(n_steps):
        states.append(solver.step(problem, states[-1]))
    return states


@pytest.mark.parametrize("n_steps", [1, 4])
@pytest.mark.parametrize(("decay", "clip"), [(0.0, 1e9), (0.5, 1e9), (0.5, 1e-7)])
def test_adamw__steps_agree_with_the_literal_formula(n_steps, decay, clip):
    problem = InMemory()
    solver = AdamW(batch_size=N_POINTS, learning_rate=0.05, weight_decay=decay, gradient_clip=clip)
    start = start_like()
    before = start.copy()
    state = run(solver, problem, n_steps, start)[-1]
    inverse = np.linalg.inv(problem.whitening)
    full = [lambda b: inverse.T @ problem.value_and_gradient(inverse @ b)[1]] * n_steps
    expected = literal_adamw(problem.whitening @ start, full, 0.05, decay, clip)
    np.testing.assert_allclose(state.coefficients, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(start, before)


def test_adamw__weight_decay_is_apart_from_the_gradient():
    problem, start = Scripted(gradient=lambda step, b: np.zeros_like(b)), np.full((2, 2), 3.0)
    solver = AdamW(learning_rate=0.1, weight_decay=0.2, evaluate_every=100)
    np.testing.assert_allclose(run(solver, problem, 5, start)[-1].coefficients, 3.0 * 0.98**5, rtol=1e-14)


def test_adamw__clipped_gradient_keeps_its_direction():
    raw, clip = np.array([[30.0, 40.0], [0.0, 0.0]]), 5.0
    solver = AdamW(gradient_clip=clip)
    clipped = run(solver, Scripted(gradient=lambda step, b: raw), 1, np.zeros((2, 2)))[-1]
    np.testing.assert_allclose(clipped.mean, 0.1 * raw * clip / 50, rtol=1e-14)
    assert clipped.batch_gradient_norm == 50.0
    below = run(solver, Scripted(gradient=lambda step, b: raw / 20), 1, np.zeros((2, 2)))[-1]
    np.testing.assert_allclose(below.mean, 0.1 * raw / 20, rtol=1e-14)


class Scripted:
    """A problem whose values and batch gradients are given by functions; counts its batches."""

    shape = (2, 2)
    n_points = 10
    is_quadratic = True

    def __init__(self, gradient, value=lambda b: 1.0):
        self.gradient, self.value, self.batches = gradient, value, []
        self.coordinates = Coordinates(np.eye(2), np.eye(2), np.ones((2, 2)), np.ones(2), 0.0)
        self.whitening = np.eye(2)

    def value_and_gradient(self, b):
        return self.value(b), np.ones(self.shape)

    def batch_gradient(self, rows, b):
        self.batches.append(rows)
        return self.gradient(len(self.batches), b)


def test_adamw__every_epoch_uses_each_point_once():
    problem = Scripted(gradient=lambda step, b: np.ones_like(b))
    AdamW(n_iterations=9, batch_size=4).solve(problem)
    assert [len(rows) for rows in problem.batches] == [4, 4, 2] * 3
    epochs = [np.concatenate(problem.batches[i : i + 3]) for i in (0, 3, 6)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(10))
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("tiny_from", "tiny_to", "expected"), [(3, 99, 5), (5, 5, 5), (6, 99, 10), (3, 4, 20)]
)
def test_adamw__tiny_batch_gradient_stops_at_evaluations_only(tiny_from, tiny_to, expected):
    problem = Scripted(lambda step, b: np.full_like(b, 1e-12 if tiny_from <= step <= tiny_to else 1.0))
    solution = AdamW(n_iterations=20, evaluate_every=5).solve(problem)
    assert solution.n_iterations == expected
    assert solution.result is (Result.BUDGET if expected == 20 else Result.SMALL_BATCH_GRADIENT)


def test_adamw__learning_rate_halves_on_a_plateau():
    solver = AdamW(learning_rate=0.08, patience=2, evaluate_every=1)
    problem = Scripted(lambda step, b: np.ones_like(b))
    rates = [state.learning_rate for state in run(solver, problem, 7, np.zeros((2, 2)))]
    # As torch's ReduceLROnPlateau: two evaluations without gain are borne, the third halves.
    np.testing.assert_allclose(rates, [0.08, 0.08, 0.08, 0.04, 0.04, 0.04, 0.02, 0.02])


def test_adamw__learning_rate_stays_while_there_is_gain():
    # The value falls by about 0.3 % with each step: more than plateau_gain, or less.
    problem = Scripted(lambda step, b: np.ones_like(b), value=lambda b: 100.0 + b.sum())
    for gain, is_halved in ((1e-4, False), (1e-1, True)):
        solver = AdamW(learning_rate=0.08, weight_decay=0.0, patience=2, evaluate_every=1, plateau_gain=gain)
        rates = [state.learning_rate for state in run(solver, problem, 7, np.zeros((2, 2)))]
        assert (rates[-1] < 0.08) is is_halved


def test_adamw__returns_the_best_iterate_and_not_the_last():
    # One unknown, minimiser 1, steps of 0.3: momentum carries the iterates past it.
    problem = Scripted(lambda step, b: 2 * (b - 1), value=lambda b: float(np.sum((b - 1) ** 2)))
    solver = AdamW(n_iterations=7, learning_rate=0.3, weight_decay=0.0, evaluate_every=1)
    states = run(solver, problem, 7, np.zeros((2, 2)))
    values = [problem.value(state.coefficients) for state in states]
    best = int(np.argmin(values))
    assert 0 < best < 7
    solution = solver.solve(problem, np.zeros((2, 2)))
    np.testing.assert_allclose(solution.coefficients, states[best].coefficients)
    assert solution.value == values[best] < values[-1]
    assert [record.value for record in solution.history] == values


def test_adamw__decreases_the_criterion_but_not_below_pcg():
    problem = InMemory()
    exact = PCG().solve(problem)
    problem.n_products = 0
    seen = []
    solution = AdamW(n_iterations=400, batch_size=10, learning_rate=0.02, weight_decay=0.0).solve(
        problem, report=seen.append
    )
    assert solution.result is Result.BUDGET
    assert solution.n_products == problem.n_products
    assert solution.value < 0.5 * solution.history[0].value
    assert solution.value == min(record.value for record in solution.history)
    assert exact.value <= solution.value
    assert np.isclose(solution.certificate, certify(problem, solution.coefficients)[1])
    assert [record.iteration for record in seen] == list(range(50, 401, 50))


def test_adamw__budget_that_is_no_multiple_is_evaluated_at_its_end():
    solution = AdamW(n_iterations=7, batch_size=10, evaluate_every=5).solve(InMemory())
    assert [record.iteration for record in solution.history] == [0, 5, 7]


def test_adamw__penalised_criterion_is_accepted():
    problem = InMemory(negative=10.0)
    solution = AdamW(n_iterations=300, batch_size=20, learning_rate=0.02).solve(problem)
    assert LBFGS().solve(problem).value <= solution.value < 0.8 * solution.history[0].value


def test_adamw__seed_decides():
    settings = {"n_iterations": 30, "batch_size": 7, "learning_rate": 0.01, "evaluate_every": 10}
    first, again, other = (AdamW(**settings, random_state=s).solve(InMemory()) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.coefficients, again.coefficients)
    assert first.history == again.history
    assert not np.allclose(first.coefficients, other.coefficients)


def test_adamw__random_start_has_the_scale_asked_for():
    state = AdamW(initial_scale=0.1).init(InMemory(), None)
    assert 0.07 < state.coefficients.std() < 0.14


def test_adamw__criterion_that_is_not_finite_breaks_down():
    problem = Scripted(lambda step, b: np.ones_like(b), value=lambda b: 1.0 if (b == 0).all() else np.nan)
    solution = AdamW(n_iterations=50, evaluate_every=5).solve(problem, np.zeros((2, 2)))
    assert (solution.result, solution.n_iterations) == (Result.BREAKDOWN, 5)
    np.testing.assert_array_equal(solution.coefficients, 0)


@pytest.mark.parametrize(("name", "kind"), [("pcg", PCG), ("lbfgs", LBFGS), ("adamw", AdamW)])
def test_by_name__gives_the_solver_with_its_defaults(name, kind):
    assert by_name(name) == kind()


def test_by_name__objects_pass_and_other_names_are_refused():
    solver = PCG(tolerance=1e-3)
    assert by_name(solver) is solver
    with pytest.raises(ValueError, match="unknown solver 'newton'; use one of pcg, lbfgs, adamw"):
        by_name("newton")
