"""Recovered laws: certified minimisers of the paper's criterion, and summaries by their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from kedrl_dask import KEDRL, Matern, TransitionStore
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.numerics.laws.recovery import RecoverySettings, auto_bandwidth, recover_law
from kedrl_dask.numerics.laws.simplex import SimplexProblem, minimise
from tests import dense
from tests.benchmarks import recovery as benchmark
from tests.conftest import make_episodes
from tests.test_against_dense import DISCOUNT, exact_settings, some_points

KERNEL = Matern(2.5, (1.1, 0.8), 0.9)


def signed(n=5, m=12, d=2, seed=0):
    """Coefficients of mass one with negative parts, and a grid."""
    rng = np.random.default_rng(seed)
    coefficients = rng.dirichlet(np.ones(m), size=n) + 0.1 * rng.standard_normal((n, m))
    return coefficients / coefficients.sum(axis=1, keepdims=True), rng.standard_normal((m, d))


def by_slsqp(value, start, allowed):
    """A minimum on the simplex by another method."""
    found = minimize(
        value, start, method="SLSQP", bounds=[(0, 1 if a else 0) for a in allowed],
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"maxiter": 2000, "ftol": 1e-15},
    )  # fmt: skip
    w = np.maximum(found.x, 0) / np.maximum(found.x, 0).sum()
    return value(w)


@pytest.mark.parametrize(
    "given",
    [
        {"ridge": 1e-2},
        {"ridge": 1e-3, "bandwidth": 0.0},
        {"ridge": 0.0, "reference": "uniform"},
        {"ridge": 1e-3, "divergence": 1e-2},
        {"ridge": 1e-3, "divergence": 1e-2, "reference": "uniform", "projected": {1: [-1, 0, 1]}},
    ],
    ids=str,
)
def test_recover__minimum_of_the_literal_criterion(given):
    omega, grid = signed()
    found = recover_law(omega, grid, KERNEL, RecoverySettings(**given))
    assert found.converged.all()
    k, h = dense.gram(KERNEL, grid, grid), found.bandwidth
    a = KERNEL.smoothed(grid, found.atoms, h**2)
    for i, w in enumerate(found.weights):
        w0 = np.full(len(grid), 1 / len(grid))
        if given.get("reference") != "uniform":
            w0 = np.maximum(omega[i], 0) / np.maximum(omega[i], 0).sum()
        fixed = omega[i], k, a, w0, found.settings.dictionary_ridge, given["ridge"]

        def value(w, fixed=fixed):
            return dense.recovery_objective(w, *fixed, given.get("divergence", 0.0))

        assert found.objective[i] == pytest.approx(value(w), abs=1e-12)
        other = by_slsqp(value, w0, w0 > 0 if "divergence" in given else w0 >= 0)
        assert found.objective[i] <= other + 1e-10
        assert other - found.objective[i] < 1e-8
        assert found.gap[i] < 1e-10


@pytest.mark.parametrize("nu", [2.5, 5.5])
def test_smoothed_kernel__is_the_literal_integral(nu):
    kernel = Matern(nu, (1.1, 0.8), 0.9)
    _, grid = signed(m=4)
    bandwidth = np.array([0.3, 0.0])
    literal = dense.smoothed_cross_gram(kernel, grid, grid, bandwidth, n_nodes=100)
    found = kernel.smoothed(grid, grid, bandwidth**2)
    # The literal rule converges slowly where a kernel is rough at zero distance.
    np.testing.assert_allclose(found, literal, rtol=0, atol=1e-12 if nu > 5 else 1e-8)
    np.testing.assert_allclose(kernel.smoothed(grid, grid, 0.0), kernel(grid, grid), rtol=0, atol=1e-13)


def test_residual__is_the_distance_of_embeddings():
    omega, grid = signed(n=2, m=6)
    kernel = Matern(5.5, (1.1, 0.8), 0.9)
    found = recover_law(omega, grid, kernel, RecoverySettings(ridge=1e-2, bandwidth=0.3))
    nodes, masses = np.polynomial.hermite_e.hermegauss(24)
    shifts = 0.3 * np.array([(x, y) for x in nodes for y in nodes])
    masses = np.outer(masses, masses).ravel() / masses.sum() ** 2
    points = np.vstack([grid, *(z + shifts for z in grid)])
    for i in range(2):
        signs = np.concatenate([omega[i], -np.outer(found.weights[i], masses).ravel()])
        distance = np.sqrt(signs @ kernel(points, points) @ signs)
        assert found.residual[i] == pytest.approx(distance, rel=1e-6)
        norm = np.sqrt(omega[i] @ kernel(grid, grid) @ omega[i])
        assert found.relative_residual[i] == pytest.approx(distance / norm, rel=1e-6)


def test_weights__are_probabilities_and_do_not_depend_on_the_batch(monkeypatch):
    omega, grid = signed(n=40, m=30, d=3)
    kernel = Matern(5.5, 1.5)
    found = recover_law(omega, grid, kernel)
    assert found.converged.all()
    assert (found.weights >= 0).all()
    assert (found.weights == 0).any()
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=0, atol=1e-12)
    for i in range(0, 40, 13):
        alone = recover_law(omega[i : i + 1], grid, kernel)
        np.testing.assert_allclose(alone.weights[0], found.weights[i], rtol=0, atol=1e-9)
    monkeypatch.setattr("kedrl_dask.numerics.laws.simplex.SYSTEM_ELEMENTS", 7 * 30**2)
    np.testing.assert_allclose(recover_law(omega, grid, kernel).weights, found.weights, rtol=0, atol=1e-9)


def test_recover__a_law_on_the_grid_is_found():
    """Also without a penalty that knows it: the ridge towards equal weights goes to zero."""
    _, grid = signed(m=15)
    law = np.random.default_rng(1).dirichlet(np.ones(15), size=3)
    law[0] = np.eye(15)[4]
    errors = []
    for ridge in (1e-2, 1e-5, 1e-9):
        settings = RecoverySettings(ridge=ridge, bandwidth=0.0, reference="uniform", dictionary_ridge=None)
        errors.append(np.abs(recover_law(law, grid, KERNEL, settings).weights - law).max())
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    assert errors[2] < 1e-5
    exact = recover_law(law, grid, KERNEL, RecoverySettings(bandwidth=0.0, dictionary_ridge=None))
    np.testing.assert_allclose(exact.weights, law, rtol=0, atol=1e-7)
    assert exact.residual.max() < 1e-7


def test_adam__ends_above_the_certified_minimum():
    omega, grid = signed(n=4, m=20)
    found = recover_law(omega, grid, KERNEL, RecoverySettings(ridge=1e-4))
    adam = recover_law(omega, grid, KERNEL, RecoverySettings(ridge=1e-4, solver="adam"))
    assert (adam.objective > found.objective - found.gap).all()
    assert adam.objective.sum() > found.objective.sum() + 1e-6
    assert not adam.converged.any()
    # Its own gap admits it: the true distance from the minimum is below it.
    assert (adam.objective - found.objective <= adam.gap + 1e-9).all()


@pytest.mark.parametrize(
    "given",
    [
        {"ridge": 1e-2},
        {"ridge": 0.0, "dictionary_ridge": None},
        {"ridge": 1e-3, "reference": "uniform", "divergence": 1e-2},
        {"ridge": 1e-2, "divergence": 1e-3, "projected": {1: [-1, 0, 1]}},
    ],
    ids=str,
)
def test_certified__objective_is_never_above_that_of_adam(given):
    omega, grid = signed(n=12, m=15)
    omega += np.geomspace(1e-3, 1, 12)[:, None] * np.random.default_rng(1).standard_normal(omega.shape)
    found = recover_law(omega, grid, KERNEL, RecoverySettings(**given))
    adam = recover_law(omega, grid, KERNEL, RecoverySettings(**given, solver="adam"))
    assert (found.objective <= adam.objective + 1e-12).all()
    assert (np.abs(found.weights.sum(axis=1) - 1) <= 1e-10).all()
    assert (found.weights >= 0).all()


@pytest.mark.slow
def test_simulation__marginals_are_near_the_truth(tmp_path):
    """What ``python -m tests.benchmarks.recovery`` prints, from fewer data and a smaller fit."""
    sizes = {"n_atoms": 60, "n_basis": 80, "n_landmarks": 100, "n_features": 64, "n_conditioning": 400}
    model, _ = benchmark.fit(tmp_path, 2, 6_000, input_kernel=Matern(5.5, 4.5), **sizes)
    law = model.recover(benchmark.STATE, benchmark.ACTION, accept=tuple(CODES))
    true, deviation = benchmark.true_summaries(2)
    off = benchmark.errors(benchmark.recovered_summaries(law), true, deviation)
    for name, (mean, _) in off.items():
        assert mean < 2 * benchmark.TOLERANCES[name][0]


def test_minimise__gap_says_when_it_stops_early(monkeypatch):
    monkeypatch.setattr("kedrl_dask.numerics.laws.simplex.MAX_ITERATIONS", 2)
    omega, grid = signed()
    stopped = recover_law(omega, grid, KERNEL)
    monkeypatch.undo()
    assert not stopped.converged.any()
    better = recover_law(omega, grid, KERNEL)
    assert (stopped.objective - better.objective <= stopped.gap).all()
    assert (stopped.objective > better.objective).all()


def test_minimise__vertex_and_singular_problems():
    reference = np.full((2, 3), 1 / 3)
    linear = np.array([[5.0, 0, 0], [0, 0, 0]])
    solution = minimise(SimplexProblem(np.zeros((3, 3)), linear, 0.0, reference), 1e-12)
    np.testing.assert_allclose(solution.weights[0], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(solution.value, [-5, 0], atol=1e-12)
    assert (solution.gap <= 1e-12).all()


@pytest.fixture(params=[0.0, 0.4], ids=["atoms", "smooth"])
def law(request):
    rng = np.random.default_rng(2)
    weights = rng.dirichlet(np.full(8, 0.5), size=3)
    weights[0, :4] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    return Mixture(rng.standard_normal((8, 2)), weights, np.full(2, request.param))


def draws(law, i, size=400_000):
    rng = np.random.default_rng(3)
    chosen = rng.choice(len(law.atoms), size=size, p=law.weights[i])
    return law.atoms[chosen] + law.bandwidth * rng.standard_normal((size, 2))


def test_summaries__by_simulation(law):
    box = np.array([-0.5, -np.inf]), np.array([0.7, 0.4])
    for i in range(3):
        y = draws(law, i)
        np.testing.assert_allclose(law.mean()[i], y.mean(axis=0), atol=0.01)
        np.testing.assert_allclose(law.covariance()[i], np.cov(y.T), atol=0.02)
        np.testing.assert_allclose(law.cdf([-0.3, 0.45], 1)[i], [(y[:, 1] <= t).mean() for t in (-0.3, 0.45)],
                                   atol=0.005)  # fmt: skip
        column = np.sort(y[:, 0])
        assert law.cvar(0.2, 0)[i] == pytest.approx(column[:80_000].mean(), abs=0.01)
        assert law.cvar(0.3, 0, "upper")[i] == pytest.approx(column[-120_000:].mean(), abs=0.01)
        inside = ((y >= box[0]) & (y <= box[1])).all(axis=1).mean()
        assert law.prob(box)[i] == pytest.approx(inside, abs=0.005)
        assert law.prob(lambda z: z.sum(axis=1) > 0.3)[i] == pytest.approx(
            (y.sum(axis=1) > 0.3).mean(), abs=0.01
        )
        assert law.expectation(lambda z: z[:, 0] * z[:, 1])[i] == pytest.approx(
            (y[:, 0] * y[:, 1]).mean(), abs=0.01
        )


def test_cvar__literal_definition_on_atoms():
    """Sort, take atoms until their mass is the level, and the part of the last one that is missing."""
    law = Mixture(np.array([[1.0], [-2.0], [0.5]]), np.array([[0.5, 0.2, 0.3]]), np.zeros(1))
    assert law.cvar(0.1, 0)[0] == pytest.approx(-2)
    assert law.cvar(0.4, 0)[0] == pytest.approx((0.2 * -2 + 0.2 * 0.5) / 0.4)
    assert law.cvar(0.6, 0, "upper")[0] == pytest.approx((0.5 * 1 + 0.1 * 0.5) / 0.6)


def test_cdf_and_quantile__invert_each_other(law):
    levels = np.array([0.01, 0.1, 0.5, 0.9, 0.999])
    t = np.linspace(-4, 4, 301)
    for coordinate in (0, 1):
        cdf = law.cdf(t, coordinate)
        assert (np.diff(cdf, axis=1) >= -1e-15).all()
        assert (cdf >= 0).all()
        assert (cdf <= 1 + 1e-12).all()
        quantile = law.quantile(levels, coordinate)
        assert (np.diff(quantile, axis=1) >= 0).all()
        for i in range(3):
            at = law.cdf(quantile[i], coordinate)[i]
            before = law.cdf(quantile[i] - 1e-9, coordinate)[i]
            assert (at >= levels - 1e-9).all()
            assert (before <= levels + 1e-9).all()
        np.testing.assert_allclose(law.quantile(0.5, coordinate), quantile[:, 2], rtol=1e-13)
        np.testing.assert_allclose(law.cdf(t[7], coordinate), cdf[:, 7], rtol=1e-13)


def test_density__integrates_to_the_cdf_and_over_the_others():
    rng = np.random.default_rng(2)
    law = Mixture(rng.standard_normal((8, 2)), rng.dirichlet(np.ones(8), size=3), np.array([0.4, 0.3]))
    t = np.linspace(-8, 8, 2001)
    step = t[1] - t[0]
    np.testing.assert_allclose(law.density(t, 0).cumsum(axis=1) * step, law.cdf(t, 0), atol=5e-3)
    plane = np.linspace(-6, 6, 121)
    points = np.stack([np.full(121, 0.2), plane], axis=1)
    np.testing.assert_allclose(law.density(points, (0, 1)).sum(axis=1) * 0.1, law.density([0.2], 0)[:, 0])
    wider = law.density(t, 0, bandwidth=1.0)
    assert (wider.max(axis=1) < law.density(t, 0).max(axis=1)).all()


def test_projected__mass_function_and_mixed_joint():
    omega, grid = signed(n=4, m=25)
    found = recover_law(omega, grid, KERNEL, RecoverySettings(projected={1: [2, -1, 0, 1]}))
    assert found.bandwidth[0] > 0
    assert found.bandwidth[1] == 0
    support, probability = found.pmf(1)
    np.testing.assert_array_equal(support, [-1, 0, 1, 2])
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    for z, y in zip(grid[:, 1], found.atoms[:, 1], strict=True):
        assert abs(z - y) == min(abs(z - c) for c in (-1, 0, 1, 2))
    np.testing.assert_array_equal(found.atoms[:, 0], grid[:, 0])
    at_least_one = found.prob((np.array([-np.inf, 1]), np.array([np.inf, np.inf])))
    np.testing.assert_allclose(at_least_one, probability[:, 2:].sum(axis=1))
    t = np.linspace(-2, 2, 9)
    joint = sum(found.density(t, 0, where={1: c}) for c in support)
    np.testing.assert_allclose(joint, found.density(t, 0))


def test_projected__joint_mass_function():
    omega, grid = signed(n=3, m=30)
    found = recover_law(omega, grid, KERNEL, RecoverySettings(projected={0: [1, -1], 1: [0, 1, 2]}))
    support, probability = found.pmf((0, 1))
    np.testing.assert_array_equal(support, [(a, b) for a in (-1, 1) for b in (0, 1, 2)])
    for point, mass in zip(support, probability.T, strict=True):
        expected = found.weights[:, (found.atoms == point).all(axis=1)].sum(axis=1)
        np.testing.assert_allclose(mass, expected, rtol=0, atol=1e-15)
    both = probability.reshape(3, 2, 3)
    np.testing.assert_allclose(both.sum(axis=1), found.pmf(1).probability)
    np.testing.assert_allclose(both.sum(axis=2), found.pmf(0).probability)


def test_bandwidth__of_chosen_coordinates():
    omega, grid = signed(m=25)
    chosen = recover_law(omega, grid, KERNEL, RecoverySettings(bandwidth={0: "auto"}))
    np.testing.assert_allclose(chosen.bandwidth, [auto_bandwidth(grid)[0], 0], rtol=1e-12)
    number = recover_law(omega, grid, KERNEL, RecoverySettings(bandwidth={1: 0.3}))
    np.testing.assert_array_equal(number.bandwidth, [0, 0.3])
    # One value of a projected coordinate says nothing about the spacing of the others.
    flat = grid * [1, 0]
    found = recover_law(omega, flat, KERNEL, RecoverySettings(projected={1: [0, 1]}))
    assert found.bandwidth[0] == pytest.approx(auto_bandwidth(flat[:, :1])[0], rel=1e-12)


def test_flags__a_coordinate_of_one_value_that_moves_is_sensitive():
    """It has no standard deviation to measure in."""
    _, grid = signed(m=20)
    grid[:, 1] = grid[:, 1] > 0
    law = (grid[:, 1] == 0) / (grid[:, 1] == 0).sum()
    settings = RecoverySettings(ridge=1e-3, reference="uniform", projected={1: [0, 1]})
    found = recover_law(law[None], grid, KERNEL, settings)
    assert found.covariance()[0, 1, 1] == 0
    assert found.differs(lambda law: law.mean()[:, 1], 1e-4).all()
    assert found.flags["sensitive"].all()


def test_flags__sensitivity_and_residual():
    omega, grid = signed(n=6, m=20)
    found = recover_law(omega, grid, KERNEL)
    other = found.sensitivity
    assert other.settings.ridge == pytest.approx(10 * found.settings.ridge)
    np.testing.assert_allclose(other.bandwidth, 0.5 * found.bandwidth)
    direct = recover_law(omega, grid, KERNEL, other.settings)
    np.testing.assert_array_equal(direct.weights, other.weights)
    change = np.abs(found.mean()[:, 0] - other.mean()[:, 0])
    middle = np.sort(change)[2:4].mean()
    np.testing.assert_array_equal(found.differs(lambda law: law.mean()[:, 0], middle), change > middle)
    # An embedding that no law has: its mass is not one.
    far = recover_law(np.vstack([omega[:1], 3 * omega[:1]]), grid, KERNEL)
    assert far.flags["residual"][1]
    assert far.relative_residual[1] > 0.5
    # Smoothing by far more than the law's width cannot be matched either.
    assert recover_law(np.eye(20)[:1], grid, KERNEL, RecoverySettings(bandwidth=3.0)).flags["residual"][0]
    # A law in the middle of the atoms, matched without a penalty, changes when it is penalised.
    free = recover_law(np.eye(20)[:2], grid, KERNEL, RecoverySettings(ridge=1e-6, bandwidth=0.0))
    assert not free.flags["sensitive"].any()
    assert not free.flags["residual"].any()


def test_flags__penalised_laws_are_sensitive():
    omega, grid = signed(n=6, m=20)
    free = recover_law(omega, grid, KERNEL, RecoverySettings(ridge=0.3, reference="uniform"))
    assert free.flags["sensitive"].all()


def test_reference__no_positive_coefficient():
    _, grid = signed()
    found = recover_law(-np.ones((1, 12)), grid, KERNEL)
    assert found.flags["residual"][0]
    np.testing.assert_allclose(found.weights.sum(), 1)


def test_auto_bandwidth__follows_each_coordinate():
    _, grid = signed(m=50)
    np.testing.assert_allclose(auto_bandwidth(grid * [1, 1000]), auto_bandwidth(grid) * [1, 1000])
    with pytest.raises(ValueError, match="do not vary"):
        auto_bandwidth(grid * [1, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ridge": -1.0}, "ridge must be a number ≥ 0"),
        ({"ridge": "much"}, "ridge must be a number ≥ 0"),
        ({"divergence": np.nan}, "divergence must be"),
        ({"reference": "zero"}, "reference must be .positive. or .uniform."),
        ({"solver": "sgd"}, "solver must be .interior-point. or .adam."),
        ({"bandwidth": [0.1, 0.2, 0.3]}, "bandwidth must be 'auto', a number ≥ 0 or 2"),
        ({"bandwidth": "wide"}, "bandwidth must be"),
        ({"bandwidth": [0.1, 0.2], "projected": {1: [0, 1]}}, r"projected coordinates \[1\] must be 0"),
        ({"bandwidth": {2: 0.1}}, r"coordinates \[2\], there are 0 to 1"),
        ({"bandwidth": {0: "wide"}}, "bandwidth must be"),
        ({"bandwidth": {1: 0.2}, "projected": {1: [0, 1]}}, r"projected coordinates \[1\] must be 0"),
        ({"projected": {2: [0, 1]}}, "coordinate 2 is not one of 0 to 1"),
        ({"projected": {1: []}}, "support of coordinate 1"),
    ],
)
def test_settings__refused(given, message):
    with pytest.raises(ValueError, match=message):
        recover_law(*signed(), KERNEL, RecoverySettings(**given))


def test_inputs__refused():
    omega, grid = signed()
    with pytest.raises(ValueError, match=r"shape \(5, 11\), expected \(n, 12\)"):
        recover_law(omega[:, 1:], grid, KERNEL)
    omega[3, 2] = np.nan
    with pytest.raises(ValueError, match="row 3, are not finite"):
        recover_law(omega, grid, KERNEL)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda law: law.quantile(1.0, 0), "strictly between 0 and 1"),
        (lambda law: law.cvar(0.0, 0), "level must lie"),
        (lambda law: law.cvar(0.1, 0, "left"), "tail must be"),
        (lambda law: law.cdf(0.0, 2), "coordinate 2 is not one of 0 to 1"),
        (lambda law: law.pmf(0), "was not projected"),
        (lambda law: law.density([0.0], 0, bandwidth=0.0), "has no density"),
        (lambda law: law.density([0.0], (0, 1), bandwidth=1.0), r"expected \(g, 2\)"),
        (lambda law: law.prob(([0, 0], [-1, 0])), "low ≤ high"),
        (lambda law: law.prob(lambda z: z), "expected one number for each"),
    ],
)
def test_summaries__refused(law, call, message):
    with pytest.raises(ValueError, match=message):
        call(law)


@pytest.mark.slow
def test_model__recovers_and_bootstraps(tmp_path, policy, kernels):
    store = TransitionStore.from_arrays(tmp_path / "store", **make_episodes(n_episodes=6, length=5))
    given = exact_settings(store, kernels) | {"n_blocks": 6, "conditioning": some_points()}
    model = KEDRL(DISCOUNT, centring="none", **given).fit(
        store, policy, executor=ThreadExecutor(2), progress="none"
    )
    inputs = np.zeros((3, 2)), np.linspace(-0.5, 0.5, 3)[:, None]
    # Thirty transitions: nothing is accurate, the grid covers little, and coefficients are off.
    accept = ("accuracy", "coverage", "mass")
    found = model.recover(*inputs, accept, ridge=1e-3)
    assert found.settings.ridge == 1e-3
    np.testing.assert_array_equal(found.coefficients, model.weights(*inputs))
    found_again = recover_law(
        model.weights(*inputs), model.grid_, model.return_kernel_, RecoverySettings(ridge=1e-3)
    )
    np.testing.assert_array_equal(found.weights, found_again.weights)
    replicates = model.bootstrap(store, policy, 4, executor=ThreadExecutor(2), progress="none")
    drawn = replicates.apply(lambda fit: fit.recover(*inputs, accept).mean())
    assert drawn.values.shape == (4, 3, model.grid_.shape[1])
    np.testing.assert_array_equal(drawn.estimate, model.recover(*inputs, accept).mean())
    assert (drawn.standard_error > 0).all()
    with pytest.raises(TypeError, match="bandwith"):
        model.recover(*inputs, accept, bandwith=0.1)
