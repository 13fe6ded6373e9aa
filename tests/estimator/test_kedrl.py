"""The estimator: conventions, invariances, errors, saving."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from kedrl_dask import KEDRL, ULSIF, Matern, TransitionStore, policies
from kedrl_dask.engine.data.transition_store import DataError
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.estimator.fit.problem import choose_mass_penalty, choose_ridge_b
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW
from tests.conftest import LOOPBACK, make_episodes

#: Sizes; kernels and ridges are chosen by the fit.
AUTOMATIC = {"n_atoms": 12, "n_basis": 10, "n_landmarks": 25, "n_features": 16, "n_blocks": 3}
#: Nothing to be chosen but points and grid, where a test is not about that.
SMALL = AUTOMATIC | {"input_kernel": Matern(2.5, 2.0), "return_kernel": Matern(5.5, 1.5), "ridge_gamma": 1e-3}
#: As a user has it who gives sizes alone.
AUTO = {"input_kernel": "auto", "return_kernel": "auto", "ridge_gamma": "auto"}


def small_model(discount=0.6, **settings):
    return KEDRL(discount, **({"centring": "none", "construction": "separated"} | SMALL | settings))


def fit(store, policy, executor=None, **settings):
    return small_model(**settings).fit(store, policy, executor=executor or ThreadExecutor(2), progress="none")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture(scope="module")
def store(place):
    return TransitionStore.from_arrays(place / "store", **make_episodes(n_episodes=30, length=9))


@pytest.fixture(scope="module")
def model(store, policy, place):
    """A fit for all who only ask it; its cache is kept, for tests to copy."""
    return small_model().fit(
        store, policy, executor=ThreadExecutor(2), cache=place / "cache", progress="none"
    )


@pytest.fixture
def cache(model, place, tmp_path):
    """The cache of that fit, for a test to add to."""
    return shutil.copytree(place / "cache", tmp_path / "cache")


@pytest.fixture(scope="module")
def automatic(store, policy):
    """A fit that chose its kernels and its ridge itself."""
    return fit(store, policy, **AUTO)


def random_actions(state, rng):
    return 0.2 * state[:, :1] + rng.standard_normal((len(state), 1))


def some_inputs():
    """Inputs all over the place."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((20, 2)), rng.standard_normal((20, 1))


def difference(first, second):
    """Relative difference of the fitted maps."""
    a, b = (model.weights(*some_inputs()) for model in (first, second))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.slow
def test_fit__only_discount_and_policy(store, policy):
    model = KEDRL(0.6, centring="none", n_atoms=20).fit(store, policy, progress="none")
    assert model.solution_.result.ok
    assert model.coefficients_.shape == (len(model.basis_), 20)
    held_out = model.diagnostics_["held_out"]
    assert held_out["coefficient_mass"]["mean"] == pytest.approx(1, abs=0.05)
    assert held_out["bellman_risk"] < 0.01


@pytest.mark.slow
def test_fit__repeats_exactly(store, policy, automatic):
    """On another number of threads too."""
    again = fit(store, policy, ThreadExecutor(1), **AUTO)
    np.testing.assert_array_equal(again.coefficients_, automatic.coefficients_)
    first, second = ({**model.diagnostics_} for model in (automatic, again))
    assert first.pop("seconds")
    assert second.pop("seconds")
    assert first == second


# Each pair of the three choices occurs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("continuation", "target", "precision"),
    [
        ("sampled", "gaussian", "double"),
        ("sampled", "function", "mixed"),
        ("ratio", "gaussian", "mixed"),
        ("ratio", "function", "double"),
    ],
)
def test_fit__number_of_chunks_does_not_matter(store, policy, continuation, target, precision):
    """One chunk, or five, of every kind: of episodes and of conditioning points."""
    chosen = policy if target == "gaussian" else policies.Function(random_actions)
    settings = {"continuation": continuation, "ridge_gamma": 1e-4, "precision": precision}
    settings["solver"] = PCG(tolerance=1e-12 if precision == "double" else 1e-9)
    n = store.n_transitions
    one, five = (fit(store, chosen, n_blocks=k, chunk_points=-(-n // k), **settings) for k in (1, 5))
    assert difference(five, one) < (1e-10 if precision == "double" else 1e-3)


@pytest.mark.slow
def test_precision__mixed_is_close_to_double(store, policy, model):
    assert model.precision == "mixed"
    assert 0 < difference(model, fit(store, policy, precision="double")) < 1e-3
    assert model.solution_.certificate <= 1e-8


@pytest.mark.slow
def test_cache__second_policy_reuses_what_does_not_depend_on_it(store, cache, monkeypatch):
    other = policies.Gaussian(weights=[[0.1], [0.3]], bias=-0.2, scale=0.5)
    cold = fit(store, other)
    before = {path.name for path in cache.iterdir()}
    warm = small_model().fit(store, other, cache=cache, progress="none")
    np.testing.assert_array_equal(warm.coefficients_, cold.coefficients_)
    new = {path.name for path in cache.iterdir()} - before
    assert {name.rpartition("-")[0] for name in new} <= {
        "continuation",
        "conditioning",
        "conditioning-inputs",
        "conditioning-policy",
    }
    # The same fit again writes nothing, and streams nothing.
    monkeypatch.setattr(
        "kedrl_dask.engine.passes.streaming_pass.accumulate",
        lambda *_: pytest.fail("the pass was repeated"),
        raising=True,
    )
    again = small_model().fit(store, other, cache=cache, progress="none")
    assert {path.name for path in cache.iterdir()} == before | new
    np.testing.assert_array_equal(again.coefficients_, warm.coefficients_)


def test_cache__next_discount_reuses_sums(store, policy, cache):
    before = {path.name for path in cache.iterdir()}
    later = small_model(discount=0.8).fit(store, policy, cache=cache, progress="none")
    new = {path.name for path in cache.iterdir()} - before
    assert {name.rpartition("-")[0] for name in new} == {"returns"}
    np.testing.assert_array_equal(later.coefficients_, fit(store, policy, discount=0.8).coefficients_)


@pytest.mark.slow
def test_cache__other_data_or_settings_are_told_apart(store, policy, model, cache, tmp_path):
    other = TransitionStore.from_arrays(tmp_path / "other", **make_episodes(30, 9, seed=5))
    for data, settings in ((other, {}), (store, {"n_basis": 9}), (store, {"random_state": 3})):
        warm = small_model(**settings).fit(data, policy, cache=cache, progress="none")
        assert difference(warm, model) > 1e-6
        np.testing.assert_array_equal(warm.coefficients_, fit(data, policy, **settings).coefficients_)


def test_cache__code_is_never_found_again(store, tmp_path):
    cache = tmp_path / "cache"
    for _ in range(2):
        small_model().fit(store, policies.Function(random_actions), cache=cache, progress="none")
    kinds = [path.name.rpartition("-")[0] for path in cache.iterdir()]
    assert kinds.count("continuation") == 2
    assert kinds.count("inputs") == 1


@pytest.mark.slow
def test_fit__stored_chunks_do_not_matter(tmp_path, policy, automatic):
    data = make_episodes(n_episodes=30, length=9)
    chunked = TransitionStore.from_arrays(tmp_path / "chunked", **data, chunk_rows=50)
    assert difference(fit(chunked, policy, **AUTO), automatic) == 0


@pytest.mark.slow
def test_fit__number_of_workers_does_not_matter(store, policy, automatic):
    """Two worker processes as threads; all that is chosen automatically is chosen the same."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **LOOPBACK) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        spread = fit(store, policy, DistributedExecutor(client), **AUTO)
    found, expected = (m.embed(*some_inputs(), at=automatic.grid_[:5]) for m in (spread, automatic))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_fit__active_client_is_used(store, policy, model, monkeypatch):
    used = []
    original = DistributedExecutor.map
    monkeypatch.setattr(
        DistributedExecutor, "map", lambda self, *a, **k: used.append(1) or original(self, *a, **k)
    )
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", **LOOPBACK
        ) as cluster,
        Client(cluster),
    ):
        found = small_model().fit(store, policy, progress="none")
    assert used
    assert difference(found, model) < 1e-10


def test_fit__leaves_nothing_behind_unless_asked(store, policy, cache):
    before = sorted(store.path.parent.rglob("*"))
    fit(store, policy, n_blocks=2)
    assert sorted(store.path.parent.rglob("*")) == before
    kinds = {path.name.rpartition("-")[0] for path in cache.iterdir()}
    assert kinds == {
        "sample", "points", "returns", "inputs", "rewards", "continuation", "conditioning",
        "conditioning-inputs", "conditioning-policy",
    }  # fmt: skip


def test_fit__terminal_rows_change_the_answer(store, tmp_path, policy, model):
    ended = TransitionStore.from_arrays(tmp_path / "ended", **make_episodes(30, 9, n_terminated=30))
    assert ended.n_transitions == store.n_transitions + 30
    second = fit(ended, policy)
    assert second.operators_.terminal is not None
    assert difference(model, second) > 0.01
    assert second.diagnostics_["held_out"]["coefficient_mass"]["mean"] == pytest.approx(1, abs=0.1)


def test_pcg__objective_not_above_adamw(store, policy, model):
    paper = fit(store, policy, solver=AdamW(n_iterations=600, batch_size=32, learning_rate=0.01))
    assert model.solution_.value <= paper.solution_.value
    # The same problem: its value at the other's minimiser is what the other reports, and not far off.
    assert paper.solution_.value < 20 * model.solution_.value
    assert paper.solution_.certificate > model.solution_.certificate


@pytest.mark.slow
def test_automatic_kernels__scales_of_columns_do_not_matter(tmp_path, automatic):
    data = make_episodes(30, 9)
    scaled = dict(data, state=data["state"] * [1000.0, 0.01], reward=data["reward"] * [50.0, 0.02])
    other = policies.Gaussian(weights=[[0.2 / 1000.0], [-0.1 / 0.01]], bias=0.1, scale=0.3)
    rescaled = fit(TransitionStore.from_arrays(tmp_path / "b", **scaled), other, **AUTO)
    state, action = data["state"][:5], data["action"][:5]
    np.testing.assert_allclose(
        rescaled.weights(state * [1000.0, 0.01], action), automatic.weights(state, action), atol=1e-5
    )


def test_input_kernel__lengths_along_directions_are_those_of_turned_data(store, policy, tmp_path):
    turn, lengths = np.array([[0.8, 0.6], [-0.5, 1.1]]), np.array([1.5, 3.0, 2.0])
    rows = make_episodes(n_episodes=30, length=9)
    rows["state"] = rows["state"] @ turn
    turned = TransitionStore.from_arrays(tmp_path / "turned", **rows)
    back = np.linalg.inv(turn)
    acts = policies.Gaussian(weights=back @ np.array([[0.2], [-0.1]]), bias=0.1, scale=0.3)
    matrix = lengths[:, None] * np.block([[back, np.zeros((2, 1))], [np.zeros((1, 2)), np.ones((1, 1))]])
    plain = fit(turned, acts, input_kernel=Matern(2.5, lengths), precision="double")
    model = fit(store, policy, input_kernel=Matern(2.5, matrix), precision="double")
    model.save(tmp_path / "model")
    state, action = np.array([[0.3, 0.3], [-0.2, -0.2]]), np.zeros((2, 1))
    expected = plain.embed(state @ turn, action, at=plain.grid_)
    for found in (model, KEDRL.load(tmp_path / "model")):
        np.testing.assert_allclose(found.embed(state, action, at=plain.grid_), expected, atol=1e-6)


def test_grid__bounded_rewards_fill_the_bellman_box(store, policy):
    low, high = store.statistics["reward"]["min"], store.statistics["reward"]["max"]
    model = fit(store, policy, reward_bounds=(low, high))
    assert (model.grid_ >= low / 0.4 - 1e-12).all()
    assert (model.grid_ <= high / 0.4 + 1e-12).all()
    assert np.ptp(model.grid_, axis=0) == pytest.approx((high - low) / 0.4, rel=0.3)


@pytest.mark.slow
def test_n_conditioning__some_of_the_inputs(store, policy, automatic):
    few = fit(store, policy, n_conditioning=50, **AUTO)
    assert few.diagnostics_["sizes"]["conditioning"] == 50
    assert difference(few, automatic) < 0.5


def test_save_and_load__same_answers(store, policy, tmp_path):
    model = fit(
        store, policy, continuation="ratio", ratio=ULSIF(n_centers=9, clip=4.0), solver=PCG(tolerance=1e-9)
    )
    model.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    state, action = np.ones((3, 2)), np.zeros((3, 1))
    at = np.array([[0.0, 0.5]])
    np.testing.assert_array_equal(loaded.weights(state, action), model.weights(state, action))
    np.testing.assert_array_equal(loaded.embed(state, action, at=at), model.embed(state, action, at=at))
    np.testing.assert_array_equal(loaded.bellman_risk(state, action), model.bellman_risk(state, action))
    assert loaded.get_params() == model.get_params()
    assert loaded.diagnostics_ == json.loads(json.dumps(model.diagnostics_))
    assert (loaded.solution_.result, loaded.solution_.history) == (
        model.solution_.result,
        model.solution_.history,
    )
    assert loaded.ratio_ is not None
    np.testing.assert_array_equal(loaded.ratio_(np.ones((2, 3))), model.ratio_(np.ones((2, 3))))


@pytest.mark.parametrize("solver", [AdamW(n_iterations=60), LBFGS()])
def test_save_and_load__solvers_whose_history_begins_without_a_certificate(store, policy, tmp_path, solver):
    model = fit(store, policy, solver=solver)
    model.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    assert loaded.solution_.history == model.solution_.history
    np.testing.assert_array_equal(loaded.coefficients_, model.coefficients_)


def test_save__no_pickle_on_disk(model, tmp_path):
    model.save(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert not any("pickle" in name or name.endswith(".pkl") for name in names)
    for path in (tmp_path / "model").rglob("zarr.json"):
        assert "pickle" not in path.read_text()


def test_save__existing_path(model, tmp_path):
    model.save(tmp_path / "model")
    with pytest.raises(FileExistsError, match=r"model.*already exists"):
        model.save(tmp_path / "model")


def test_load__array_that_claims_far_more_than_there_is(model, tmp_path):
    """Chunks that are absent count as zeros: a few bytes of metadata must not fill the memory."""
    model.save(tmp_path / "model")
    for file in (tmp_path / "model" / "zarr.json", tmp_path / "model" / "history" / "zarr.json"):
        metadata = json.loads(file.read_text())
        consolidated = (metadata.get("consolidated_metadata") or {}).get("metadata", {})
        (metadata if "shape" in metadata else consolidated.get("history", {}))["shape"] = [2 * 10**7, 3]
        file.write_text(json.dumps(metadata))
    with pytest.raises(
        StoreError, match=r"claims 480,\d\d\d,\d\d\d bytes but has .* on disk; chunks are missing"
    ):
        KEDRL.load(tmp_path / "model")


def test_load__not_a_model(store):
    with pytest.raises(StoreError, match="expected 'kedrl model'"):
        KEDRL.load(store.path)


def test_choose_ridge_b__falls_with_the_transitions_to_a_floor():
    kernels = Matern(5.5, 1.0, 2.0), Matern(5.5, 1.0, 3.0)
    for n, relative in ((100, 1e-5), (10_000, 1e-7), (10**9, 1e-10)):
        assert np.isclose(choose_ridge_b("auto", *kernels, n), relative * 36, rtol=1e-12)
    assert choose_ridge_b(0.25, *kernels, 100) == 0.25


def test_choose_mass_penalty__auto_is_the_variance_of_the_return_kernel():
    assert choose_mass_penalty("auto", Matern(5.5, 1.0, 3.0)) == 9.0
    assert choose_mass_penalty(0, Matern(5.5, 1.0, 3.0)) == 0.0


@pytest.mark.slow
def test_fit__automatic_penalties_make_coefficients_free_of_the_kernels_amplitude(store, policy):
    given = {"precision": "double", "n_blocks": 2}
    fits = [
        fit(store, policy, mass_penalty="auto", return_kernel=Matern(5.5, 1.5, sigma), **given)
        for sigma in (1.0, 3.0)
    ]
    assert [model.mass_penalty_ for model in fits] == [1.0, 9.0]
    assert fits[1].diagnostics_["mass_penalty"] == 9.0
    one, nine = (model.coefficients_ for model in fits)
    np.testing.assert_allclose(nine, one, atol=1e-5 * np.abs(one).max())
    own = fit(store, policy, return_kernel=Matern(5.5, 1.5, 3.0), **given)
    assert np.abs(own.coefficients_ - one).max() > 1e-3 * np.abs(one).max()


def test_sklearn__params_clone_and_html(model):
    own = small_model()
    copy = clone(own)
    assert copy is not own
    assert copy.get_params() == own.get_params()
    assert own.set_params(n_atoms=15).n_atoms == 15
    assert "KEDRL" in own._repr_html_()
    assert "discount=0.6" in repr(own)
    assert not hasattr(clone(model), "coefficients_")


def test_weights__not_fitted():
    with pytest.raises(NotFittedError):
        small_model().weights(np.zeros((1, 2)), np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.0}, "discount must lie strictly between 0 and 1, got 1.0"),
        ({"discount": "a"}, "discount must lie"),
        ({"construction": "joint"}, "construction must be"),
        ({"paired_form": "dense"}, "paired_form must be"),
        (
            {"construction": "paired", "operators": "exact"},
            "operators='exact' needs construction='separated'",
        ),
        ({"continuation": "weighted"}, "continuation must be 'sampled' or 'ratio', got 'weighted'"),
        ({"solver": "newton"}, "unknown solver 'newton'; use one of pcg, lbfgs, adamw"),
        ({"solver": 3}, "solver must be a name or a solver object"),
        ({"negative_penalty": 1.0}, "needs negative_penalty=0; use solver='lbfgs'"),
        ({"negative_penalty": -1.0}, "negative_penalty must be a number ≥ 0"),
        ({"input_kernel": "rbf"}, "input_kernel must be 'auto' or a Matern kernel"),
        ({"input_kernel": Matern(1.5, (1.0, 2.0))}, "input_kernel has 2 length scales, the data have 3"),
        ({"n_atoms": 0}, "n_atoms must be 'auto' or an integer ≥ 1, got 0"),
        ({"n_basis": 2.5}, "n_basis must be 'auto' or an integer"),
        ({"n_conditioning": -3}, "n_conditioning must be an integer ≥ 1"),
        ({"ridge_b": 0.0}, "ridge_b must be 'auto' or a positive number"),
        ({"ridge_gamma": "cv"}, "ridge_gamma must be 'auto' or a positive number"),
        ({"mass_penalty": float("nan")}, "mass_penalty must be 'auto' or a number ≥ 0"),
        ({"mass_penalty": "cv"}, "mass_penalty must be 'auto' or a number ≥ 0, got 'cv'"),
        ({"landmark_threshold": "auto"}, "landmark_threshold must be a number ≥ 0"),
        ({"grid_expansion": 0.5}, "grid_expansion must be a number ≥ 1"),
        ({"grid": np.zeros((4, 3))}, "grid must be finite with one row per atom and 2 columns"),
        ({"reward_bounds": ([0.0], [1.0])}, "reward_bounds must be"),
        ({"ratio": {"n_centers": 3}}, "ratio must be None or ULSIF settings"),
        ({"spectral": "sobol"}, "spectral must be 'qmc'"),
        ({"points": "grid"}, "points must be 'kmeans' or 'random'"),
        ({"random_state": -1}, "random_state must be an integer ≥ 0"),
        ({"n_atoms": 5_000}, "lower n_atoms or give the grid"),
    ],
)
def test_fit__bad_setting(store, policy, settings, message):
    with pytest.raises(ValueError, match=message):
        KEDRL(**({"centring": "none", "discount": 0.6} | AUTOMATIC | settings)).fit(
            store, policy, progress="none"
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (policies.Gaussian(weights=np.zeros((3, 1))), "state has shape .* expected .n, 3."),
        (policies.Gaussian(weights=np.zeros((2, 2))), "policy returns 2 action columns, the store has 1"),
        (policies.Function(lambda state, rng: state[:, 0]), "sample returned actions of shape"),
        (policies.Function(lambda state, rng: np.full((len(state), 1), np.nan)), "not finite"),
        (lambda state: state, "policy must be one of kedrl_dask.policies"),
    ],
)
def test_fit__bad_policy_before_any_work(store, wrong, message, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=message):
        small_model().fit(store, wrong, progress="none")
    assert sorted(tmp_path.iterdir()) == before


def test_fit__missing_store(policy, tmp_path):
    with pytest.raises(StoreError, match="no such store"):
        small_model().fit(tmp_path / "nothing", policy)


def test_fit__one_episode_needs_a_ridge(tmp_path, policy):
    single = TransitionStore.from_arrays(tmp_path / "one", **make_episodes(1, 60))
    with pytest.raises(ValueError, match="ridge_gamma='auto' needs at least two episodes"):
        fit(single, policy, ridge_gamma="auto")
    assert fit(single, policy).solution_.result.ok


@pytest.mark.parametrize(
    ("state", "action", "message"),
    [
        (np.zeros(2), np.zeros((1, 1)), "state has shape"),
        (np.zeros((1, 3)), np.zeros((1, 1)), "expected .n, 2."),
        (np.zeros((2, 2)), np.zeros((1, 1)), "state has 2 rows and action 1"),
        (np.array([[0.0, 0.0], [np.nan, 0.0]]), np.zeros((2, 1)), "state, row 1: .* not finite"),
    ],
)
def test_weights__bad_inputs(model, state, action, message):
    with pytest.raises(ValueError, match=message):
        model.weights(state, action)


def test_embed__bad_points(model):
    with pytest.raises(ValueError, match=r"at has shape \(3,\), expected \(g, 2\)"):
        model.embed(np.zeros((1, 2)), np.zeros((1, 1)), at=np.zeros(3))


def test_data_error__is_a_value_error():
    assert issubclass(DataError, ValueError)


def test_save__interrupted_leaves_nothing(model, tmp_path, monkeypatch):
    """A model appears when it is complete: an error while its arrays are written leaves no directory."""

    def broken(self, name, *arguments):
        if name == "grid":
            raise KeyboardInterrupt
        return write(self, name, *arguments)

    write = ArrayStore.write
    monkeypatch.setattr(ArrayStore, "write", broken)
    with pytest.raises(KeyboardInterrupt):
        model.save(tmp_path / "models" / "model")
    assert not list(tmp_path.iterdir())
