"""A linear trend of the reward: the literal formulas, invariances, what it is good for."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from io import StringIO

import numpy as np
import pytest
from distributed import Client, LocalCluster
from rich.console import Console

from kedrl_dask import KEDRL, Matern, TransitionStore, plots, policies
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.datasets.systems import LinearGaussianSystem
from kedrl_dask.engine.data.validation import DataWarning
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fit.regression import RegressionSums
from kedrl_dask.estimator.influence import ExpectedWaves
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import as_complex, waves
from kedrl_dask.numerics.regression.cross_validation import RIDGES
from kedrl_dask.numerics.regression.reward_trend import (
    LEAST_RIDGE,
    REWARD_RIDGES,
    TOLERATED,
    LinearTrend,
    try_trend,
)
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.report import terminal
from kedrl_dask.studies import profiles
from tests import dense
from tests.conftest import LOOPBACK, make_episodes
from tests.estimator.test_bootstrap import check_replicates, literal_influence
from tests.test_against_dense import DISCOUNT, MASS, RIDGE_B, RIDGE_GAMMA, close, exact_settings, some_points


@pytest.fixture(scope="module")
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture(scope="module")
def kernels():
    return Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)


@pytest.fixture(scope="module", params=["truncated", "terminated"])
def store(request, tmp_path_factory):
    n_terminated = 0 if request.param == "truncated" else 3
    data = make_episodes(n_episodes=6, length=5, n_terminated=n_terminated)
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("data") / "store", **data)


@pytest.fixture(scope="module")
def models(store, policy, kernels):
    """Fits with a ridge that was given, and with one that was chosen, for all who only ask them."""
    return {ridge: fit(store, policy, kernels, ridge_gamma=ridge) for ridge in (RIDGE_GAMMA, "auto")}


def fit(store, policy, kernels, **settings):
    """Every input is a landmark; the trend is linear."""
    given = exact_settings(store, kernels) | {"n_blocks": 6, "conditioning": some_points()}
    model = KEDRL(DISCOUNT, **(given | {"reward_trend": "linear", "centring": "none"} | settings))
    return model.fit(store, policy, executor=ThreadExecutor(2), progress="none")


def literal(model, store, policy, points, weights):
    """The criterion of the same fit."""
    t = store.transitions()
    kernel = model.input_kernel_
    kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    features = dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma)
    return dense.TrendCriterion(
        kernel, features, t.inputs, t.reward, t.terminal, kappa, model.basis_, model.grid_, points,
        weights / weights.sum(), DISCOUNT, model.ridge_gamma_, RIDGE_B, MASS,
        trend=dense.linear_trend(t.inputs, t.reward), ridge_reward=model.ridge_reward_,
    )  # fmt: skip


def literal_replicate(model, store, policy, points, weights, counts):
    """The criterion of a replicate that has each episode as often as ``counts`` says."""
    t = store.transitions()
    kernel, counts = model.input_kernel_, counts[np.unique(t.episode, return_inverse=True)[1]]
    kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, policy, 3)
    features = dense.FeatureKernel(model.frequencies_, model.return_kernel_.sigma)
    phi = [
        kappa.T @ dense.conditional_weights(kernel, t.inputs, x, model.ridge_gamma_, counts) for x in points
    ]
    rho, tau = dense.replicate_waves(
        kernel, model.frequencies_, t.inputs, t.reward, t.terminal, counts, points, model.ridge_gamma_,
        model.ridge_reward_,
    )  # fmt: skip
    return dense.WaveCriterion(
        kernel, features, model.basis_, model.grid_, points, weights / weights.sum(), phi, rho, tau,
        DISCOUNT, RIDGE_B, MASS,
    )  # fmt: skip


@pytest.mark.slow
def test_reward_law__new_inputs(store, models):
    """ρ and τ at inputs that no transition has, from N×N weights."""
    model = models[RIDGE_GAMMA]
    t, new = store.transitions(), some_points()[0]
    trend = dense.linear_trend(t.inputs, t.reward)
    law = dense.RewardLaw(model.input_kernel_, t.inputs, t.reward, trend, RIDGE_GAMMA)
    chunk, _ = model.operators_(new)
    for i, x in enumerate(new):
        atoms, weights = law(x)
        waves = np.exp(1j * atoms @ model.frequencies_.T)
        close(as_complex(chunk.reward_waves)[i], weights @ waves)
        if t.terminal.any():
            gamma = dense.conditional_weights(model.input_kernel_, t.inputs, x, RIDGE_GAMMA)
            close(as_complex(chunk.terminal_waves)[i], gamma[t.terminal] @ waves[t.terminal])


@pytest.mark.parametrize("ridge", [RIDGE_GAMMA, "auto"])
def test_minimiser_and_risk__literal(store, policy, models, ridge):
    model = models[ridge]
    assert (model.ridge_reward_ == model.ridge_gamma_) == (ridge != "auto")
    points, weights = some_points()
    oracle = literal(model, store, policy, points, weights)
    expected = oracle.minimiser(model.coefficients_.shape)
    close(model.coefficients_, expected)
    assert model.solution_.value == pytest.approx(oracle.value(expected), rel=1e-8)
    new = store.transitions().inputs[::4] + 0.2
    elsewhere = literal(model, store, policy, new, np.ones(len(new)))
    risk = [elsewhere.residual(q, model.coefficients_) for q in range(len(new))]
    close(model.bellman_risk(new[:, :2], new[:, 2:]), risk, 1e-7)
    blocks = model.operator_blocks(new[:, :2], new[:, 2:])
    close(blocks.H, elsewhere.h)
    close(blocks.G, elsewhere.g)


@pytest.mark.slow
def test_replicates__are_first_order_changes_around_their_own_trend(store, policy, models, monkeypatch):
    monkeypatch.setattr("kedrl_dask.estimator.influence.TOLERANCE", 1e-10)
    model = models["auto"]
    found = model.bootstrap(store, policy, 3, executor=ThreadExecutor(2), progress="none")

    def minimiser(counts):
        oracle = literal_replicate(model, store, policy, *some_points(), counts)
        return oracle.minimiser(model.coefficients_.shape)

    check_replicates(found, model, literal_influence(minimiser, 6))


@pytest.mark.slow
def test_replicates__around_their_own_trend_up_to_one_over_n(tmp_path):
    """Sums of waves around a trend fitted again, against those of the transitions as they were drawn."""
    pair = simulation.PAIRS["uniform-gaussian"]
    store = simulation.write(tmp_path / "data", pair, 4_000, seed=1)
    sizes = {"n_basis": 20, "n_landmarks": 80, "n_atoms": 20, "n_features": 32, "n_conditioning": 100}
    sizes |= {"n_blocks": 5, "input_kernel": Matern(5.5, 3.0), "return_kernel": Matern(5.5, 3.0)}
    model = KEDRL(0.7, reward_trend="linear", centring="none", **sizes)
    model.fit(store, pair.target, executor=ThreadExecutor(2), progress="none")
    t, operators = store.transitions(), model.operators_
    around = operators.trend
    episode = np.unique(t.episode, return_inverse=True)[1]
    n_episodes = episode[-1] + 1
    counts = np.random.default_rng(0).multinomial(n_episodes, np.full(n_episodes, 1 / n_episodes))
    weight, psi = counts[episode][:, None].astype(float), operators.features(t.inputs)

    def summed(trend):
        residual = t.reward - trend(t.inputs)
        y = waves(residual, model.frequencies_)
        design = np.column_stack([np.ones(len(t)), t.inputs - trend.center])
        gram, cross = design.T @ (weight * design), design.T @ (weight * residual)
        parts = {"gram": psi.T @ psi, "mass": psi.sum(axis=0), "count": weight.sum()}
        parts |= {"reward": psi.T @ (weight * y), "reward_sum": (weight * y).sum(axis=0)}
        parts |= {"trend_gram": gram, "trend_cross": cross}
        parts |= dict.fromkeys(("continuation", "continuation_sum", "scalar"), np.zeros(1))
        return RegressionSums(**{name: np.asarray(part)[None] for name, part in parts.items()})

    before = summed(around.trend)
    own, found = ExpectedWaves.build(operators, around, t.inputs).refit_trend(before)
    drawn = np.repeat(np.arange(len(t)), counts[episode])
    close(own(t.inputs), LinearTrend.fit(t.inputs[drawn], t.reward[drawn])(t.inputs))
    expected = summed(own)
    for name in ("reward", "reward_sum"):
        changed = np.linalg.norm(getattr(expected, name) - getattr(before, name))
        assert np.linalg.norm(getattr(found, name) - getattr(expected, name)) < 0.15 * changed


@pytest.mark.slow
def test_trend__is_of_all_transitions(tmp_path, monkeypatch):
    """Not of the design's sample alone."""
    monkeypatch.setattr("kedrl_dask.estimator.fit.design.DESIGN_SAMPLE", 200)
    monkeypatch.setattr("kedrl_dask.estimator.fit.design.TREND_ROWS", 300)
    store = simulation.write(tmp_path / "data", simulation.PAIRS["uniform-gaussian"], 1_000, seed=1)
    settings = {"n_basis": 20, "n_landmarks": 40, "n_atoms": 20, "n_features": 16, "reward_trend": "linear"}
    settings |= {"input_kernel": Matern(5.5, 3.0), "ridge_gamma": 1e-3, "n_blocks": 3, "n_conditioning": 50}
    target = simulation.PAIRS["uniform-gaussian"].target
    model = KEDRL(0.7, **({"centring": "none"} | settings))
    model.fit(store, target, executor=ThreadExecutor(2), progress="none")
    t = store.transitions()
    close(model.operators_.trend.trend(t.inputs), LinearTrend.fit(t.inputs, t.reward)(t.inputs))


def test_trend__fitted_again_from_moments():
    """As by least squares from nothing, also with columns that are constant or twice the same."""
    rng = np.random.default_rng(0)
    x = 100 + 1e3 * rng.standard_normal((50, 4))
    x[:, 2], x[:, 3] = 7.0, x[:, 0]
    r = rng.standard_normal((50, 2)) + x[:, :2] / 300
    first = LinearTrend.fit(x[:20], r[:20])
    found = first.refit(first.moments(x, r - first(x)))
    close(found(x), LinearTrend.fit(x, r)(x))


def test_ridges__cross_validation_is_the_literal_one(store, policy, kernels):
    """Folds of one episode each: every fold predicted by weights of the others, around the common mean."""
    model = fit(store, policy, kernels, ridge_gamma="auto", n_blocks=5)
    t = store.transitions()
    trend, kernel = dense.linear_trend(t.inputs, t.reward), model.input_kernel_
    waves = np.exp(1j * (t.reward - np.array([trend(x) for x in t.inputs])) @ model.frequencies_.T)
    centred = waves - waves.mean(axis=0)
    gram = dense.gram(kernel, t.inputs, t.inputs)
    block = np.searchsorted(store.block_edges(5), t.rows, side="right") - 1
    tried = model.diagnostics_["tuning"]["ridge_reward"]
    assert tried["ridges"][-1] == 100.0
    for ridge, found in list(zip(tried["ridges"], tried["errors"], strict=True))[4::4]:
        total = 0.0
        for fold in range(5):
            out = block == fold
            system = gram[~out][:, ~out] + (~out).sum() * ridge * np.eye((~out).sum())
            predicted = gram[out][:, ~out] @ np.linalg.solve(system, centred[~out])
            total += np.sum(np.abs(centred[out] - predicted) ** 2)
        assert found == pytest.approx(total / np.sum(np.abs(centred) ** 2), rel=1e-6)
    assert model.ridge_reward_ == tried["ridges"][int(np.argmin(tried["errors"]))]


@pytest.mark.parametrize("given", [None, (1e-3,)])
def test_trial__cross_validation_is_the_literal_one(store, kernels, given):
    """Folds of whole episodes, each predicted by weights of the others, around their trend and their mean."""
    t = store.transitions()
    kernel, w = kernels[0], np.random.default_rng(0).standard_normal((7, t.reward.shape[1]))
    features = NystromFeatures.from_landmarks(kernel, t.inputs, 0.0)
    found = try_trend(features, t.inputs, t.reward, t.episode, w, given)
    fold = np.unique(t.episode, return_inverse=True)[1] % 5
    gram = dense.gram(kernel, t.inputs, t.inputs)
    none, linear = [], []
    for f in range(5):
        out = fold == f
        trend = dense.linear_trend(t.inputs[~out], t.reward[~out])
        residual = np.exp(1j * (t.reward - np.array([trend(x) for x in t.inputs])) @ w.T)
        mean = residual[~out].mean(axis=0)
        for errors, wave, centre, ridges in (
            (none, np.exp(1j * t.reward @ w.T), 0.0, given or RIDGES),
            (linear, residual, mean, given or REWARD_RIDGES),
        ):
            by_ridge = []
            for ridge in ridges:
                system = gram[~out][:, ~out] + (~out).sum() * ridge * np.eye((~out).sum())
                weights = np.linalg.solve(system, gram[~out][:, out]).T
                predicted = centre + weights @ (wave[~out] - centre)
                by_ridge.append(np.sum(np.abs(wave[out] - predicted) ** 2) / wave.size)
            errors.append(by_ridge)
    smallest = [np.sum(errors, axis=0).min() for errors in (none, linear)]
    np.testing.assert_allclose([found.error_none, found.error_linear], smallest, rtol=1e-6)
    assert found.gain == pytest.approx(found.error_none - found.error_linear)
    is_accepted = found.gain > found.noise
    if given is None:
        errors = np.sum(linear, axis=0)
        smooth = [error for error, ridge in zip(errors, REWARD_RIDGES, strict=True) if ridge >= LEAST_RIDGE]
        assert found.lost == pytest.approx(min(smooth) - errors.min(), rel=1e-5)
        is_accepted &= found.lost <= TOLERATED * found.gain
    assert found.accepted == is_accepted


REWARDS = {
    "linear": lambda state: 2 * state,
    "none": lambda state: np.where(np.abs(state) > 2, 20 * state, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("chosen", REWARDS)
def test_auto__takes_the_trend_where_it_predicts_better(policy, tmp_path, chosen):
    """The other reward is zero but for a few states, and a line through these is wrong for all others."""
    data = make_episodes(60, 9)
    noise = 0.1 * np.random.default_rng(0).standard_normal(data["reward"].shape)
    data["reward"] = REWARDS[chosen](data["state"]) + noise
    store = TransitionStore.from_arrays(tmp_path / "store", **data)
    kernels = {"input_kernel": Matern(5.5, 3.0), "return_kernel": Matern(5.5, 2.0), "n_blocks": 3}
    model = small_fit(store, policy, reward_trend="auto", **kernels)
    tried = model.diagnostics_["tuning"]["reward_trend"]
    assert tried["accepted"] == (chosen == "linear")
    assert (tried["gain"] > 0) == (chosen == "linear")
    same = small_fit(store, policy, reward_trend=chosen, **kernels)
    np.testing.assert_array_equal(model.coefficients_, same.coefficients_)
    out = StringIO()
    terminal.render(model, console=Console(file=out, width=160))
    assert f"{chosen}{', explains' if chosen == 'linear' else ' (automatic)'}" in out.getvalue()


def test_auto__one_episode(policy, tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "store", **make_episodes(1, 60))
    fitted = small_fit(store, policy, reward_trend="auto", ridge_gamma=1e-3, input_kernel=Matern(5.5, 2.0))
    assert fitted.diagnostics_["reward_trend"] is None  # no episode could be left out


SMALL = {
    "n_atoms": 12, "n_basis": 10, "n_landmarks": 25, "n_features": 16, "reward_trend": "linear",
    "input_kernel": Matern(5.5, 2.0), "n_blocks": 5,
}  # fmt: skip


def small_fit(store, policy, executor=None, cache=None, **settings):
    model = KEDRL(0.6, **(SMALL | {"centring": "none"} | settings))
    return model.fit(store, policy, executor=executor or ThreadExecutor(2), cache=cache, progress="none")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("trend")


@pytest.fixture(scope="module")
def larger(place):
    return TransitionStore.from_arrays(place / "larger", **make_episodes(30, 9, n_terminated=4))


@pytest.fixture(scope="module")
def linear(larger, policy):
    """A fit with a trend, for all who only ask it."""
    return small_fit(larger, policy)


@pytest.fixture(scope="module")
def without(larger, policy, place):
    """The same without a trend; its cache is kept."""
    return small_fit(larger, policy, cache=place / "cache", reward_trend="none")


@pytest.mark.slow
def test_fit__chunks_and_executor_do_not_matter(larger, policy):
    given = {"ridge_gamma": 1e-4, "precision": "double", "solver": PCG(tolerance=1e-12)}
    n = larger.n_transitions
    one, five = (small_fit(larger, policy, n_blocks=k, chunk_points=-(-n // k), **given) for k in (1, 5))
    with LocalCluster(n_workers=2, threads_per_worker=1, **LOOPBACK) as cluster, Client(cluster) as client:
        executor = DistributedExecutor(client)
        elsewhere = small_fit(larger, policy, executor, n_blocks=5, chunk_points=-(-n // 5), **given)
    inputs = np.random.default_rng(0).standard_normal((20, 3))
    first, second, third = (
        model.embed(inputs[:, :2], inputs[:, 2:], at=one.grid_) for model in (one, five, elsewhere)
    )
    close(second, first, 1e-9)
    close(third, second, 1e-10)


@pytest.mark.slow
def test_cache__only_what_the_trend_changes_is_made_again(larger, policy, linear, without, place, tmp_path):
    cache = shutil.copytree(place / "cache", tmp_path / "cache")
    before = {path.name for path in cache.iterdir()}
    warm = small_fit(larger, policy, cache=cache)
    new = {path.name.rpartition("-")[0] for path in cache.iterdir() if path.name not in before}
    assert new == {"rewards", "conditioning", "conditioning-policy"}
    np.testing.assert_array_equal(warm.coefficients_, linear.coefficients_)


@pytest.mark.slow
def test_save_and_load__same_answers(larger, policy, linear, tmp_path):
    linear.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    inputs = np.random.default_rng(0).standard_normal((5, 2)), np.zeros((5, 1))
    np.testing.assert_array_equal(loaded.bellman_risk(*inputs), linear.bellman_risk(*inputs))
    np.testing.assert_array_equal(loaded.operator_blocks(*inputs).H, linear.operator_blocks(*inputs).H)
    assert loaded.get_params() == linear.get_params()
    assert (loaded.ridge_gamma_, loaded.ridge_reward_) == (linear.ridge_gamma_, linear.ridge_reward_)
    assert linear.ridge_gamma_ != linear.ridge_reward_
    again, first = (
        m.bootstrap(larger, policy, 2, executor=ThreadExecutor(2), progress="none") for m in (loaded, linear)
    )
    np.testing.assert_array_equal(again.coefficients, first.coefficients)


def test_load__model_saved_before_there_was_a_trend(without, tmp_path):
    without.save(tmp_path / "model")
    metadata = tmp_path / "model" / "zarr.json"
    content = json.loads(metadata.read_text())
    del content["attributes"]["ridge_reward"], content["attributes"]["parameters"]["reward_trend"]
    for name in ("ridge_reward", "reward_trend"):
        del content["attributes"]["diagnostics"][name]
    metadata.write_text(json.dumps(content))
    loaded = KEDRL.load(tmp_path / "model")
    assert (loaded.reward_trend, loaded.ridge_reward_) == ("none", without.ridge_gamma_)
    inputs = np.zeros((2, 2)), np.ones((2, 1))
    np.testing.assert_array_equal(loaded.bellman_risk(*inputs), without.bellman_risk(*inputs))
    terminal.render(loaded, console=Console(file=StringIO()))


def test_diagnostics__report_and_plot_show_the_trend(larger, linear, without):
    model = linear
    t = larger.transitions()
    design = np.column_stack([t.inputs, np.ones(len(t))])
    left = t.reward - design @ np.linalg.lstsq(design, t.reward, rcond=None)[0]
    shares = 1 - left.var(axis=0) / t.reward.var(axis=0)
    np.testing.assert_allclose(model.diagnostics_["reward_trend"]["explained"], shares)
    assert model.diagnostics_["ridge_reward"] == model.ridge_reward_
    out = StringIO()
    terminal.render(model, console=Console(file=out, width=160))
    assert f"linear, explains {shares[0]:.1%}, {shares[1]:.1%} of the reward's variance" in out.getvalue()
    assert f"{model.ridge_reward_:.3g} (automatic)" in out.getvalue()
    titles = [axes.get_title() for axes in plots.tuning(model).axes]
    assert "λ of the reward's residual, all transitions" in titles
    assert without.diagnostics_["reward_trend"] is None


@pytest.mark.parametrize("precision", ["mixed", "double"])
def test_fit__rewards_that_the_trend_explains(policy, tmp_path, precision):
    """One linear in x, one constant: nothing of the residual's law depends on x, and it is that of zero."""
    data = make_episodes(30, 9)
    data["state"][:, 1] = 4.0  # an input that does not vary either
    linear = 100 + 2 * data["state"][:, 0] - data["action"][:, 0]
    data["reward"] = np.column_stack([linear, np.full(len(linear), 3.0)])
    with pytest.warns(DataWarning, match="constant column"):
        store = TransitionStore.from_arrays(tmp_path / "store", **data)
    model = small_fit(store, policy, precision=precision)
    assert model.ridge_reward_ == 100.0
    explained = model.diagnostics_["reward_trend"]["explained"]
    assert explained == pytest.approx([1.0, 0.0])
    t = store.transitions()
    chunk, _ = model.operators_(t.inputs)
    tolerance = 1e-10 if precision == "double" else 1e-5
    close(chunk.reward_waves, waves(t.reward, model.frequencies_), tolerance)


def test_linear_trend__far_from_zero_and_collinear():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 2))
    inputs = np.column_stack([1e6 + x[:, 0], x[:, 0] + 1e6, 1e-6 * x[:, 1], np.full(500, -7.0)])
    reward = np.column_stack([3 * x[:, 0] + x[:, 1], 5e4 + 1e-3 * x[:, 1]])
    trend = LinearTrend.fit(inputs, reward)
    # Beside 1e6, sums of 500 inputs keep about eight decimals.
    np.testing.assert_allclose(trend(inputs), reward, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(trend.weights[0], trend.weights[1])  # the same input: equal shares
    assert (trend.weights[3] == 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_trend": "quadratic"}, "reward_trend must be 'none' or 'linear' or 'auto', got 'quadratic'"),
        ({"construction": "paired"}, "reward_trend='linear' needs construction='separated'"),
        ({"operators": "exact"}, "operators='features', got 'auto' and 'exact'"),
    ],
)
def test_fit__refuses(larger, policy, settings, message):
    with pytest.raises(ValueError, match=message):
        small_fit(larger, policy, **settings)


def test_operators__exact_ones_are_refused_after_the_fit(larger, linear):
    with pytest.raises(ValueError, match="fit with reward_trend='none'"):
        linear.operator_blocks(np.zeros((1, 2)), np.zeros((1, 1)), exact=True, store=larger)


def test_profiles__have_no_trend():
    """The automatic settings are the defaults, but for the unit of the error; the others the paper's."""
    settings = {name: profiles.settings(PAIR, name) for name in profiles.PROFILES}
    assert set(settings["auto"]) == {"discount", "return_kernel", "random_state"}
    for name in ("paper", "paper-exact"):
        assert settings[name].items() >= VERSION_ONE.items()


PAIR = simulation.PAIRS["gaussian-uniform"]
POINTS = evaluation_points("gaussian-uniform")


def errors_of_trends(path, seed, at, expected, system=simulation.PAPER_SYSTEM):
    """Mean RMSE of the embedding without a trend, with one and with an automatic one; small fits."""
    store = simulation.write(path, PAIR, 4_000, seed=seed, system=system)
    # One length for both: short enough for the reward's law to be noisy without a trend.
    given = {"input_kernel": Matern(5.5, 3.0), "return_kernel": PAIR.settings.kernel, "random_state": seed}
    given |= {"n_atoms": 40, "n_basis": 60, "n_landmarks": 100, "n_features": 64, "n_conditioning": 1_000}
    given["n_blocks"] = 5
    found = []
    for trend in ("none", "linear", "auto"):
        model = KEDRL(simulation.DISCOUNT, reward_trend=trend, centring="none", **given)
        model.fit(store, PAIR.target, executor=ThreadExecutor(2), progress="none")
        found.append(truth.embedding_errors(model.embed(*POINTS, at=at), expected)["rmse"].mean())
    return found


@pytest.mark.slow
def test_error__linear_reward(tmp_path):
    """The paper's system, whose reward is linear with noise that does not depend on x."""
    law = truth.return_law(*POINTS, PAIR.target)
    at = truth.evaluation_grid(law)
    expected = law.embed(at, PAIR.settings.kernel)
    errors = [errors_of_trends(tmp_path / str(i), i, at, expected) for i in range(2)]
    none, linear, auto = np.transpose(errors)
    assert (linear < none).all()
    np.testing.assert_array_equal(auto, linear)
    assert linear.mean() < 0.85 * none.mean()


class Nonlinear(LinearGaussianSystem):
    """The same states, with a reward that no line follows and noise that grows with the state."""

    def step(self, state, action, rng):
        reward, following = super().step(state, action, rng)
        noise = rng.standard_normal(reward.shape) * (0.1 + 0.5 * np.abs(state[:, :1]))
        return np.sin(2 * state[:, :3]) + np.cos(3 * action[:, :1]) + noise, following


@pytest.mark.slow
def test_error__nonlinear_reward_and_noise_that_depends_on_the_state(tmp_path):
    """Where a trend does not fit, it costs accuracy, and the automatic choice does not take it."""
    paper = simulation.PAPER_SYSTEM
    system = Nonlinear(**{field.name: getattr(paper, field.name) for field in fields(paper)})
    returns = truth.monte_carlo_returns(*POINTS, PAIR.target, n_trajectories=4_000, system=system)
    at = returns[:, :60]
    expected = truth.monte_carlo_embedding(returns[:, 60:], at, PAIR.settings.kernel).mean
    none, linear, auto = errors_of_trends(tmp_path / "data", 0, at, expected, system)
    assert linear > 1.1 * none
    assert auto == none
