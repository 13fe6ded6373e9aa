"""Operators from the return kernel itself: against literal double sums, and in a fit."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes.separated_objective import BellmanObjective
from kedrl_dask.engine.plan.plan import PlanError, make_plan
from kedrl_dask.engine.plan.stage_costs import NOMINAL, Sizes
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.criterion.separated import (
    ExactReturnSpace,
    Penalties,
    bellman_residual,
    product,
    value_and_gradient,
)
from kedrl_dask.numerics.regression.exact_operators import RewardShifts
from kedrl_dask.numerics.solvers import LBFGS, PCG
from tests import dense
from tests.benchmarks.features import SIZES as SIZES_OF_FEATURES
from tests.benchmarks.features import measure, rate
from tests.conftest import LOOPBACK, make_episodes

DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS = 0.6, 1e-3, 1e-4, 0.7


class LiteralKernel:
    """A Matérn return kernel, value by value from the Bessel formula."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, z, other):
        kernel = self.kernel
        return dense.matern(kernel.nu, np.asarray(kernel.length_scale), kernel.sigma, z, other)

    def gram(self, zs, others):
        return dense.gram(self.kernel, zs, others)


def close(actual, expected, tolerance=1e-8):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(expected)


def fit(store, policy, kernels, executor=None, cache=None, **settings):
    """Every input is a landmark, so that Γ is the paper's."""
    defaults = {
        "operators": "exact", "input_kernel": kernels[0], "return_kernel": kernels[1], "n_landmarks": 10_000,
        "landmark_threshold": 0.0, "n_basis": 5, "points": "random", "n_features": 12, "n_draws": 3,
        "ridge_gamma": RIDGE_GAMMA, "ridge_b": RIDGE_B, "mass_penalty": MASS, "n_blocks": 3,
        "grid": np.random.default_rng(3).standard_normal((4, store.reward_dim)), "chunk_points": 7,
        "solver": PCG(tolerance=1e-13),
    }  # fmt: skip
    model = KEDRL(DISCOUNT, **({"centring": "none"} | defaults | settings))
    return model.fit(store, policy, executor=executor or ThreadExecutor(2), cache=cache, progress="none")


def literal(model, store, policy, points=None, negative=0.0):
    """The criterion of the same fit, written out with the exact kernel."""
    t, kernel = store.transitions(), model.input_kernel_
    kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    points = t.inputs if points is None else points
    return dense.Criterion(
        kernel, LiteralKernel(model.return_kernel_), t.inputs, t.reward, t.terminal, kappa, model.basis_,
        model.grid_, points, np.full(len(points), 1 / len(points)), DISCOUNT, RIDGE_GAMMA, RIDGE_B, MASS,
        negative=negative,
    )  # fmt: skip


@pytest.fixture(scope="module")
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture(scope="module")
def kernels():
    return Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)


def make_store(path, n_terminated):
    return TransitionStore.from_arrays(
        path / "store", **make_episodes(n_episodes=4, length=4, n_terminated=n_terminated)
    )


@pytest.fixture(scope="module", params=["truncated", "terminated"])
def store(request, tmp_path_factory):
    """Few transitions, some of which are terminal, or none."""
    return make_store(tmp_path_factory.mktemp("data"), 0 if request.param == "truncated" else 2)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The one with terminal transitions, where the others would tell nothing new."""
    return make_store(tmp_path_factory.mktemp("ended"), 2)


@pytest.fixture(scope="module")
def fitted(store, policy, kernels, tmp_path_factory):
    """An exact fit, the arguments of its problem, and its cache, for all who only ask them."""
    captured = []

    class Captured(BellmanObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            captured.append((self, arguments))

    cache = tmp_path_factory.mktemp("exact") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.estimator.fit.separated.BellmanObjective", Captured)
        model = fit(store, policy, kernels, cache=cache)
    return model, captured[0], cache


@pytest.fixture(scope="module")
def exact(fitted):
    return fitted[0]


@pytest.fixture(scope="module")
def oracle(exact, store, policy):
    return literal(exact, store, policy)


def with_penalty(oracle, negative):
    """The same criterion with a penalty on negative weights."""
    penalized = copy.copy(oracle)
    penalized.negative = negative
    return penalized


@pytest.fixture(scope="module")
def features(store, policy, kernels):
    """The same fit with features."""
    return fit(store, policy, kernels, operators="features", precision="double")


def split(inputs):
    return inputs[:, :2], inputs[:, 2:]


TERMS = ("grid_terminal", "shifted_terminal", "terminal_square")


def close_blocks(blocks, oracle, tolerance):
    close(blocks.H, oracle.h, tolerance)
    close(blocks.G, oracle.g, tolerance)
    close(blocks.Phi, oracle.phi, tolerance)
    close(blocks.k_L, oracle.k, tolerance)
    for name in TERMS:
        if oracle.terminal_square[0] > 0:
            close(getattr(blocks, name), getattr(oracle, name), tolerance)
        else:
            assert getattr(blocks, name) is None


@pytest.mark.parametrize("block_values", [2**20, 50, 1])
@pytest.mark.parametrize(
    "kernel", [Matern(5.5, (1.2, 0.9), 0.85), Matern(0.5, 1.1), Matern(1.3, 0.7)], ids=str
)
def test_blocks__literal_double_sums(kernel, block_values, monkeypatch):
    """Any weights, closed and Bessel form, terminal rows, and blocks of rows down to a single one."""
    monkeypatch.setattr("kedrl_dask.numerics.regression.exact_operators.BLOCK_VALUES", block_values)
    rng = np.random.default_rng(0)
    grid, rewards, gamma = rng.normal(size=(3, 2)), rng.normal(size=(7, 2)), rng.normal(size=(7, 4))
    terminal = np.array([0, 1, 0, 0, 1, 0, 0], dtype=bool)
    blocks = RewardShifts(kernel, grid, DISCOUNT, rewards, terminal).blocks(gamma)
    k = LiteralKernel(kernel)
    for q, weights in enumerate(gamma.T):
        close(blocks["h"][q], dense.h_matrix(k, grid, DISCOUNT, rewards, weights), 1e-10)
        close(blocks["g"][q], dense.g_matrix(k, grid, DISCOUNT, rewards, weights), 1e-10)
        ended, t = rewards[terminal], weights[terminal]
        close(blocks["grid_terminal"][q], k.gram(grid, ended) @ t, 1e-10)
        shifted = [weights @ k.gram(rewards + DISCOUNT * z, ended) @ t for z in grid]
        close(blocks["shifted_terminal"][q], shifted, 1e-10)
        close(blocks["terminal_square"][q], t @ k.gram(ended, ended) @ t, 1e-10)
    np.testing.assert_array_equal(blocks["g"], blocks["g"].transpose(0, 2, 1))


def test_operators__of_an_exact_fit(exact, store, policy):
    """H, G, Φ, k_L at 1e-10 of the literal ones, at inputs of the data and at new ones."""
    inputs = np.vstack([store.transitions().inputs[:3], store.transitions().inputs[:3] + 0.3])
    close_blocks(exact.operator_blocks(*split(inputs)), literal(exact, store, policy, inputs), 1e-10)


def test_operators__either_way_after_either_fit(exact, features, store):
    inputs = split(store.transitions().inputs[:4] + 0.1)
    for name in ("H", "G", "Phi", "k_L"):
        array = getattr(exact.operator_blocks(*inputs), name)
        for data in (store, store.path, str(store.path)):
            close(getattr(features.operator_blocks(*inputs, exact=True, store=data), name), array, 1e-10)
        in_features = getattr(features.operator_blocks(*inputs), name)
        close(getattr(exact.operator_blocks(*inputs, exact=False), name), in_features, 1e-10)
    assert np.abs(features.operator_blocks(*inputs).H - exact.operator_blocks(*inputs).H).max() > 1e-3


def test_operators__blocks_of_features_are_one_criterion_with_features(features, store):
    """Residual, value, gradient and product of FeatureChunk and of its H and G written out."""
    space, (chunk, _) = features.return_space_, features.operators_(store.transitions().inputs)
    blocks, gram = chunk.with_blocks(space), ExactReturnSpace(space.gram)
    b = np.random.default_rng(1).standard_normal(features.coefficients_.shape)
    close(bellman_residual(blocks, gram, b), bellman_residual(chunk, space, b), 1e-12)
    for penalties in (Penalties(MASS), Penalties(MASS, 1.0, 0.4)):
        for ours, theirs in zip(
            value_and_gradient(blocks, gram, penalties, b),
            value_and_gradient(chunk, space, penalties, b),
            strict=True,
        ):
            close(ours, theirs, 1e-12)
        close(product(blocks, gram, penalties, b), product(chunk, space, penalties, b), 1e-12)
    close(gram.mean_target(blocks.target_moment()), space.mean_target(chunk.target_moment()), 1e-12)


def test_criterion__random_coefficients(exact, store, oracle):
    inputs, penalized = store.transitions().inputs, with_penalty(oracle, 0.3)
    b = np.random.default_rng(1).standard_normal(exact.coefficients_.shape)
    (chunk, _), space = exact.operators_(inputs), exact.return_space_
    close(space.gram, oracle.grid_gram, 1e-10)
    value, gradient = value_and_gradient(chunk, space, Penalties(MASS, 1.0, 0.3), b)
    ridge = RIDGE_B * oracle.basis_gram @ b
    close(value + np.vdot(b, ridge), penalized.value(b))
    close(gradient + 2 * ridge, penalized.gradient(b))
    expected = [oracle.residual(q, b) for q in range(len(inputs))]
    close(bellman_residual(chunk, space, b), expected)


def test_minimiser__pcg(exact, oracle):
    expected = oracle.minimiser(exact.coefficients_.shape)
    close(exact.coefficients_, expected)
    assert exact.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    assert exact.solution_.certificate <= 1e-13
    assert exact.diagnostics_["operators"] == "exact"
    assert exact.diagnostics_["precision"] == "double"
    json.dumps(exact.diagnostics_)


def test_minimiser__negative_penalty(store, policy, kernels, exact, oracle):
    model = fit(store, policy, kernels, negative_penalty=0.5, solver=LBFGS(tolerance=1e-7))
    np.testing.assert_array_equal(model.basis_, exact.basis_)
    penalized = with_penalty(oracle, 0.5)
    assert model.solution_.result.ok
    assert model.solution_.value == pytest.approx(penalized.value(model.coefficients_), rel=1e-9)
    assert np.abs(penalized.gradient(model.coefficients_)).max() < 1e-6


def test_bellman_risk__new_inputs(exact, store, policy, monkeypatch):
    new = store.transitions().inputs[::4] + 0.2
    oracle = literal(exact, store, policy, new)
    expected = [oracle.residual(q, exact.coefficients_) for q in range(len(new))]
    close(exact.bellman_risk(*split(new)), expected, 1e-7)
    monkeypatch.setattr(
        "kedrl_dask.estimator.fit.settings.EXACT_BYTES", 16 * 4**2 * 2
    )  # two inputs at a time
    close(exact.bellman_risk(*split(new)), expected, 1e-7)


def test_no_inputs__empty_answers(exact, features):
    none = np.zeros((0, 2)), np.zeros((0, 1))
    for model in (exact, features):
        assert model.bellman_risk(*none).shape == (0,)
        blocks = model.operator_blocks(*none)
        assert blocks.H.shape == blocks.G.shape == (0, 4, 4)
        assert blocks.Phi.shape == blocks.k_L.shape == (0, 5)


def test_block_matrix__positive_semidefinite(exact, store):
    """[[K_Z, −H], [−Hᵀ, G]] ⪰ 0: the criterion is convex (app:population_finite_criterion)."""
    blocks = exact.operator_blocks(*split(store.transitions().inputs))
    for h, g in zip(blocks.H, blocks.G, strict=True):
        block = np.block([[exact.return_space_.gram, -h], [-h.T, g]])
        assert np.linalg.eigvalsh(block).min() > -1e-12


def embedded(model):
    inputs = split(np.random.default_rng(0).standard_normal((10, 3)))
    return model.embed(*inputs, at=model.grid_)


@pytest.mark.slow
def test_fit__workers_and_chunks_do_not_matter(ended, policy, kernels):
    reference = fit(ended, policy, kernels, ThreadExecutor(1))
    np.testing.assert_array_equal(fit(ended, policy, kernels).coefficients_, reference.coefficients_)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **LOOPBACK) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        spread = fit(ended, policy, kernels, DistributedExecutor(client))
    close(embedded(spread), embedded(reference), 1e-10)
    close(embedded(fit(ended, policy, kernels, chunk_points=3)), embedded(reference), 1e-9)


@pytest.mark.slow
def test_fit__cache_does_not_matter(fitted, features, store, policy, kernels):
    model, _, cache = fitted
    before = {path.name for path in cache.iterdir()}
    again = fit(store, policy, kernels, cache=cache)
    assert {path.name for path in cache.iterdir()} == before
    np.testing.assert_array_equal(again.coefficients_, model.coefficients_)
    # Features are filed apart, and so is another grid.
    cache = shutil.copytree(cache, cache.parent / "copy")
    given = {"operators": "features", "precision": "double"}
    other = fit(store, policy, kernels, cache=cache, **given)
    np.testing.assert_array_equal(other.coefficients_, features.coefficients_)
    grid = np.random.default_rng(4).standard_normal((4, 2))
    other, cold = (fit(store, policy, kernels, cache=place, grid=grid) for place in (cache, None))
    np.testing.assert_array_equal(other.coefficients_, cold.coefficients_)


def test_stored__chunked_over_points_in_double_precision(fitted, store):
    (path,) = (p for p in fitted[2].iterdir() if p.name.rpartition("-")[0] == "conditioning")
    stored = ArrayStore.open(path / "result", "kedrl conditioning points")
    n = store.n_transitions
    assert stored.read("h").shape == stored.read("g").shape == (n, 4, 4)
    assert stored.read("g").dtype == np.float64
    assert stored.chunk("point") == -(-n // -(-n // 7))
    assert ("grid_terminal" in stored.names) == (store.n_terminal > 0)
    assert "reward_waves" not in stored.names


@pytest.mark.parametrize("residency", ["stored", "recomputed"])
def test_residency__does_not_matter(residency, fitted):
    resident, (executor, points, groups, kept, *rest) = fitted[1]
    assert kept == "resident"
    other = BellmanObjective(executor, points, groups, residency, *rest)
    c = np.random.default_rng(1).standard_normal(resident.shape)
    close(other.product(c), resident.product(c), 1e-12)
    close(other.value_and_gradient(c)[1], resident.value_and_gradient(c)[1], 1e-12)


def test_save_and_load__with_the_transitions(exact, store, tmp_path):
    exact.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    inputs = split(store.transitions().inputs[:3] + 0.2)
    assert loaded.get_params()["operators"] == "exact"
    close(loaded.bellman_risk(*inputs), exact.bellman_risk(*inputs), 1e-12)
    for way in (None, False):
        ours, theirs = (m.operator_blocks(*inputs, exact=way) for m in (loaded, exact))
        for name, array in vars(theirs).items():
            if array is not None:
                close(getattr(ours, name), array, 1e-12)


def test_operators__is_a_plain_parameter():
    model = KEDRL(0.6, operators="exact")
    assert type(model.operators) is str
    assert model.operators == "exact"
    assert model.get_params()["operators"] == "exact"
    assert clone(model).get_params()["operators"] == "exact"
    assert "operators='exact'" in repr(model)
    assert model.set_params(operators="features") is model
    assert model.get_params()["operators"] == "features"
    assert KEDRL(0.6).get_params() == model.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'operator'"):
        model.set_params(operator="exact")


def test_operators__call_of_version_one_is_deprecated(exact):
    one = np.zeros((1, 2)), np.zeros((1, 1))
    with pytest.warns(DeprecationWarning, match="use model.operator_blocks"):
        blocks = exact.operators(*one, exact=False)
    np.testing.assert_array_equal(blocks.H, exact.operator_blocks(*one, exact=False).H)
    assert exact.operators == "exact"
    for other in (clone(exact), copy.copy(exact), pickle.loads(pickle.dumps(exact))):
        assert type(vars(other)["operators"]) is str


def test_operators__errors(store, policy, features, exact, tmp_path):
    one = np.zeros((1, 2)), np.zeros((1, 1))
    with pytest.raises(ValueError, match="does not keep them; give store=, or fit with operators='exact'"):
        features.operator_blocks(*one, exact=True)
    with pytest.raises(ValueError, match="features need no transitions"):
        features.operator_blocks(*one, store=store)
    with pytest.raises(ValueError, match="the model keeps its transitions"):
        exact.operator_blocks(*one, store=store)
    other = TransitionStore.from_arrays(tmp_path / "other", **make_episodes(4, 5, seed=1))
    with pytest.raises(ValueError, match="other does not hold the transitions that the model was fitted on"):
        features.operator_blocks(*one, exact=True, store=other)
    with pytest.raises(ValueError, match="action has shape"):
        exact.operator_blocks(np.zeros((1, 2)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="operators must be 'features' or 'exact', got 'dense'"):
        KEDRL(0.6, operators="dense").fit(store, policy)


SIZES = Sizes(
    n_rows=2_040, n_transitions=2_000, state_dim=5, action_dim=1, reward_dim=3, chunk_rows=16_384,
    n_blocks=40, n_atoms=100, n_basis=250, n_landmarks=500, n_features=256, n_conditioning=2_000,
    chunk_points=250, n_draws=3, n_centers=0, has_terminal=False, itemsize=8, exact=True,
)  # fmt: skip


def plan(budget=4 * 2**30, machine=NOMINAL, **sizes):
    return make_plan(replace(SIZES, **sizes), machine, 2, 1, budget)


def stage(of, name):
    return next(s for s in of.stages if s.name == name)


def test_plan__states_the_cost_of_exact_operators():
    points = stage(plan(), "conditioning points")
    m, n = 100, 2_000
    n_pairs = m * (m - 1) // 2 + 1
    # Eight chunks evaluate the kernel; every point is contracted once.
    sections = n * (500 + 250)
    assert points.evaluations == pytest.approx(8 * n * (m * m + n_pairs * n) + sections)
    assert points.flop == pytest.approx(2_000 * 2.0 * n * n * n_pairs, rel=0.01)
    assert points.disk == pytest.approx(2_000 * 16 * m * m, rel=0.05)
    assert points.memory > 250 * 16 * m * m
    assert "diagnostics" in repr(plan())
    assert stage(plan(chunk_points=500), "conditioning points").evaluations < 0.51 * points.evaluations


def test_plan__exact_over_budget_names_the_setting():
    with pytest.raises(PlanError, match=r"lower (chunk_points|n_atoms) from .*, or use operators='features'"):
        plan(budget=2**30, chunk_points=2_000).check()
    with pytest.raises(PlanError, match="lower n_conditioning or n_atoms"):
        plan().check(free_disk=10**6)


def test_plan__residency_of_exact_operators():
    assert plan().residency == "resident"
    tight = plan(budget=2 * 2**30, n_conditioning=100_000)
    assert tight.residency == "stored"
    assert tight.memory <= 2 * 2**30


def test_ranges__large_enough_to_share_kernel_evaluations_and_small_enough_for_memory():
    def chunk(n_conditioning, **settings):
        model = KEDRL(0.6, centring="none", operators="exact", n_conditioning=n_conditioning, **settings)
        return Settings(**model.get_params()).ranges(10**6)[0][1]

    assert chunk(200) == 200
    assert chunk(1_000) == 500
    assert chunk(8_000, n_atoms=50) == 1_000
    assert 16 * 100**2 * chunk(50_000) <= 2**27
    assert chunk(50_000, n_atoms=5_000) == 1
    assert chunk(100, chunk_points=7) == 7
    grid = np.zeros((5_000, 2))
    assert chunk(50_000, grid=grid) == 1


# Over ten other sets of eight draws: iid −0.54 to −0.46, qmc −0.78 to −0.66.
@pytest.mark.parametrize(("method", "steepest", "flattest"), [("iid", -0.6, -0.4), ("qmc", -0.85, -0.6)])
def test_features__converge_to_exact_blocks(method, steepest, flattest):
    """The rate over Q = 64 … 4,096; ``python -m tests.benchmarks.features`` prints the table."""
    errors = measure(method, SIZES_OF_FEATURES, n_seeds=8)
    for name, values in errors.items():
        slope = rate(SIZES_OF_FEATURES, values)
        print(f"{method}: error of {name} falls as Q^{slope:.2f}, to {values[-1]:.1e} at Q = 4,096")
        assert steepest < slope < flattest
