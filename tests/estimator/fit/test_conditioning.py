"""The choice of the conditioning points: how many, which, with what weights; and saving what was asked."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fit import settings as settings_module
from kedrl_dask.estimator.fit.conditioning import choose_conditioning
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.solvers import AdamW
from tests.conftest import make_episodes

KERNEL = Matern(2.5, 2.0)
# Fewer points than basis functions leave much to the ridge.
SMALL = {
    "n_atoms": 12, "n_basis": 10, "n_landmarks": 25, "n_features": 16, "n_blocks": 2, "input_kernel": KERNEL,
    "return_kernel": Matern(5.5, 1.5), "ridge_gamma": 1e-3, "ridge_b": 1e-3,
}  # fmt: skip
POINTS = np.random.default_rng(5).standard_normal((7, 3))
WEIGHTS = np.arange(1.0, 8.0)


def settings(**given):
    return Settings(**KEDRL(0.6, centring="none", **given).get_params(deep=False))


def choose(store, kernel=KERNEL, **given):
    return choose_conditioning(settings(**given), store, kernel)


def fit(store, policy, **given):
    model = KEDRL(0.6, **({"centring": "none"} | SMALL | given))
    return model.fit(store, policy, executor=ThreadExecutor(1), progress="none")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """240 transitions in five chunks, which do not end where episodes do."""
    data = make_episodes(n_episodes=30, length=9)
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("data") / "store", **data, chunk_rows=64)


@pytest.fixture(scope="module")
def fitted(store):
    """A fit to points and weights that were given."""
    policy = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
    return fit(store, policy, conditioning=(POINTS, WEIGHTS))


def store_of_inputs(path, inputs):
    """Store whose transitions have these inputs, two columns of state and one of action."""
    n = len(inputs)
    rows = np.repeat(np.asarray(inputs, dtype=float), 2, axis=0)
    reward = np.arange(2.0 * n)[:, None] % 7
    episode, step = np.repeat(np.arange(n), 2), np.tile([0, 1], n)
    return TransitionStore.from_arrays(
        path, state=rows[:, :2], action=rows[:, 2:], reward=reward, episode=episode, step=step
    )


def blobs(sizes, spread=0.01, axis=0):
    """Inputs in groups far from each other along one coordinate, and alike in the others."""
    rng = np.random.default_rng(0)
    inputs = spread * rng.standard_normal((sum(sizes), 3))
    inputs[:, axis] += 10.0 * np.repeat(np.arange(len(sizes)), sizes)
    return inputs


@pytest.mark.parametrize(
    ("given", "n_transitions", "expected"),
    [
        (None, 14_700, 14_700),
        (None, 1_000_000, 20_000),
        ("all", 1_000_000, 1_000_000),
        (1, 50, 1),
        (30_000, 1_000_000, 30_000),
        (np.int64(80), 50, 50),
        (1.0, 50, 50),
        (0.5, 51, 26),
        (0.07, 100, 7),  # 0.07 · 100 is 7.000000000000001 in floating point
        (np.float32(0.07), 100, 7),
        (1e-9, 50, 1),
    ],
)
def test_n_points__number_fraction_or_all(given, n_transitions, expected):
    assert settings(n_conditioning=given).n_points(n_transitions) == expected


def test_n_points__of_given_points():
    assert settings(conditioning=POINTS).n_points(3) == 7
    assert settings(conditioning=(POINTS, WEIGHTS)).n_points(1_000_000) == 7


@pytest.mark.parametrize(
    ("n_points", "n_transitions", "expected"),
    [
        (2, 100, 100),
        (100, 1_000_000, 20_000),
        (10_000, 1_000_000, 50_000),
        (30_000, 1_000_000, 100_000),
        (10_000, 30_000, 30_000),
    ],
)
def test_n_clustered__five_for_each_point_within_bounds(n_points, n_transitions, expected):
    chosen = settings(n_conditioning=n_points, conditioning="kmeans")
    assert chosen.n_clustered(n_transitions) == expected


@pytest.mark.parametrize(("n_conditioning", "expected"), [(0.3, 72), ("all", 240)])
def test_fit__evaluates_that_many_points(store, policy, n_conditioning, expected):
    model = fit(store, policy, n_conditioning=n_conditioning)
    assert model.diagnostics_["sizes"]["conditioning"] == expected


@pytest.mark.parametrize("n_conditioning", ["all", None, 1.0, 240, 1_000])
def test_choose__all_are_the_inputs_in_order(store, n_conditioning):
    inputs, weights = choose(store, n_conditioning=n_conditioning)
    np.testing.assert_array_equal(inputs, store.transitions().inputs)
    np.testing.assert_array_equal(weights, np.full(240, 1 / 240))


def test_choose__all_with_terminal_rows(tmp_path):
    data = make_episodes(n_episodes=8, length=6, n_terminated=3)
    ended = TransitionStore.from_arrays(tmp_path / "ended", **data, chunk_rows=4)
    inputs, _ = choose(ended, n_conditioning="all")
    assert len(inputs) == 43
    np.testing.assert_array_equal(inputs, ended.transitions().inputs)


def test_choose__random_inputs_repeat_with_the_seed(store):
    inputs, weights = choose(store, n_conditioning=60)
    known = {tuple(row) for row in store.transitions().inputs}
    assert {tuple(row) for row in inputs} <= known
    assert len(np.unique(inputs, axis=0)) == 60
    np.testing.assert_array_equal(weights, np.full(60, 1 / 60))
    np.testing.assert_array_equal(choose(store, n_conditioning=60)[0], inputs)
    assert not np.array_equal(choose(store, n_conditioning=60, random_state=1)[0], inputs)


@pytest.mark.parametrize("conditioning", ["random", "kmeans"])
def test_choose__stored_chunks_do_not_matter(store, tmp_path, conditioning):
    data = make_episodes(n_episodes=30, length=9)
    whole = TransitionStore.from_arrays(tmp_path / "whole", **data)
    given = {"n_conditioning": 20, "conditioning": conditioning}
    for first, second in zip(choose(store, **given), choose(whole, **given), strict=True):
        np.testing.assert_array_equal(first, second)


def test_choose__kmeans_weights_are_the_shares_of_the_clusters(tmp_path):
    sizes = (60, 30, 10)
    inputs = blobs(sizes)
    centers, weights = choose(
        store_of_inputs(tmp_path / "s", inputs), n_conditioning=3, conditioning="kmeans"
    )
    order = np.argsort(centers[:, 0])
    np.testing.assert_allclose(weights[order], [0.6, 0.3, 0.1], rtol=1e-14)
    assert weights.sum() == pytest.approx(1, abs=1e-15)
    means = [part.mean(axis=0) for part in np.split(inputs, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(centers[order], means, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 2])
def test_choose__kmeans_in_the_coordinates_of_the_kernel(tmp_path, axis):
    """Groups along a coordinate of great length are none; those along a short one are found."""
    inputs = blobs((40, 40), axis=0) + blobs((40, 40), axis=2)[np.arange(80) * 7 % 80]
    lengths = [1.0, 1.0, 1.0]
    lengths[2 - axis] = 1e4
    data = store_of_inputs(tmp_path / "s", inputs)
    centers, weights = choose(data, Matern(2.5, tuple(lengths)), n_conditioning=2, conditioning="kmeans")
    np.testing.assert_allclose(np.sort(centers[:, axis]), [0, 10], atol=0.1)
    assert (np.abs(centers[:, 2 - axis] - 5) < 2).all()
    np.testing.assert_allclose(weights, [0.5, 0.5])


def test_choose__kmeans_repeats_with_the_seed(store):
    given = {"n_conditioning": 20, "conditioning": "kmeans"}
    first, again, other = (choose(store, **given, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_choose__kmeans_of_a_sample(store, monkeypatch):
    """Shares are those of the sample, which is drawn when there are more transitions."""
    monkeypatch.setattr(settings_module, "FEWEST_CLUSTERED", 40)
    _, weights = choose(store, n_conditioning=4, conditioning="kmeans")
    np.testing.assert_allclose(weights * 40, np.round(weights * 40), atol=1e-12)
    assert weights.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coefficients sum to:kedrl_dask.utils.exceptions.NumericalWarning")
def test_fit__kmeans_of_few_distinct_inputs(tmp_path, policy):
    """Centres without inputs have no weight: the fit is that to the distinct inputs and their shares."""
    distinct = np.array([[0.0, 1.0, 0.5], [2.0, 1.0, -0.5], [1.0, -1.0, 0.0]])
    inputs = np.repeat(distinct, [20, 12, 8], axis=0)
    data = store_of_inputs(tmp_path / "s", inputs)
    model = fit(data, policy, n_conditioning=10, conditioning="kmeans", grid=np.arange(12.0)[:, None] / 2)
    shares = fit(data, policy, conditioning=(distinct, [0.5, 0.3, 0.2]), grid=np.arange(12.0)[:, None] / 2)
    state, action = np.split(POINTS, [2], axis=1)
    np.testing.assert_allclose(model.weights(state, action), shares.weights(state, action), atol=1e-6)
    one_by_one = AdamW(n_iterations=60, batch_size=1)
    paper = fit(data, policy, n_conditioning=10, conditioning="kmeans", grid=model.grid_, solver=one_by_one)
    assert np.isfinite(paper.coefficients_).all()


def test_choose__given_weights_sum_to_one(store):
    inputs, weights = choose(store, conditioning=(POINTS, WEIGHTS))
    np.testing.assert_array_equal(inputs, POINTS)
    np.testing.assert_allclose(weights, WEIGHTS / 28, rtol=1e-15)
    _, huge = choose(store, conditioning=(POINTS, WEIGHTS * 2e307))
    np.testing.assert_allclose(huge, weights, rtol=1e-14)
    _, equal = choose(store, conditioning=POINTS)
    np.testing.assert_array_equal(equal, np.full(7, 1 / 7))


def test_choose__two_points_are_not_points_and_weights(store):
    """A pair of rows, as a tuple too, which is what a saved model gives back."""
    for two in (POINTS[:2], POINTS[:2].tolist(), tuple(map(tuple, POINTS[:2]))):
        inputs, weights = choose(store, conditioning=two)
        np.testing.assert_array_equal(inputs, POINTS[:2])
        np.testing.assert_array_equal(weights, [0.5, 0.5])
    inputs, weights = choose(store, conditioning=(POINTS[:2].tolist(), [1, 3]))
    np.testing.assert_array_equal(inputs, POINTS[:2])
    np.testing.assert_array_equal(weights, [0.25, 0.75])


class Frame:
    """Something that is no array but gives one, as a data frame does."""

    def __array__(self, dtype=None, copy=None):
        return POINTS


@pytest.mark.parametrize(
    "given",
    [
        {"conditioning": POINTS},
        {"conditioning": POINTS[:2]},
        {"conditioning": (POINTS, WEIGHTS)},
        {"conditioning": (POINTS[:2], WEIGHTS[:2])},
        {"conditioning": Frame()},
        {"conditioning": "kmeans", "n_conditioning": 0.1},
        {"n_conditioning": "all"},
        {"n_conditioning": np.int64(9)},
    ],
)
def test_save_and_load__same_choice(fitted, store, tmp_path, given):
    """Whatever was asked for, in whatever type; a model is saved with its settings."""
    model = copy.copy(fitted).set_params(**({"conditioning": "random"} | given))
    asked = Settings(**model.get_params(deep=False))
    model.fitted_ = replace(fitted.fitted_, settings=asked)
    model.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    again = Settings(**loaded.get_params(deep=False))
    chosen = [choose_conditioning(settings, store, KERNEL) for settings in (asked, again)]
    for before, after in zip(*chosen, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"conditioning": Frame()}, {"conditioning": "kmeans", "n_conditioning": 0.1}]
)
def test_save_and_load__same_fit(store, policy, tmp_path, given):
    model = fit(store, policy, **given)
    model.save(tmp_path / "model")
    assert model.solution_.result.ok
    loaded = KEDRL.load(tmp_path / "model")
    again = loaded.fit(store, policy, executor=ThreadExecutor(1), progress="none")
    np.testing.assert_array_equal(again.coefficients_, model.coefficients_)


def test_clone__given_points(fitted):
    copied = clone(fitted)
    assert fitted.diagnostics_["sizes"]["conditioning"] == 7
    assert Settings(**copied.get_params(deep=False)).n_points(240) == 7
    assert "conditioning=" in repr(copied)


NOT_FINITE = POINTS.copy()
NOT_FINITE[3, 1] = np.inf
COUNT = (
    r"n_conditioning must be an integer ≥ 1, a fraction in \(0, 1\] of the transitions, 'all' or None, got "
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_conditioning": 0}, COUNT + "0"),
        ({"n_conditioning": True}, COUNT + "True"),
        ({"n_conditioning": 0.0}, COUNT + "0.0"),
        ({"n_conditioning": 500.0}, COUNT + "500.0"),
        ({"n_conditioning": float("nan")}, COUNT + "nan"),
        ({"n_conditioning": "most"}, COUNT + "'most'"),
        ({"n_conditioning": [3]}, COUNT + r"\[3\]"),
        ({"conditioning": "grid"}, r"conditioning must be 'random', 'kmeans', an array .* got 'grid'"),
        ({"conditioning": None}, "conditioning points must be real numbers, got None"),
        ({"conditioning": [[1.0, 2.0, 3.0], [4.0]]}, "conditioning points has rows of unequal"),
        ({"conditioning": WEIGHTS}, r"conditioning points have shape \(7,\), expected \(M, p \+ q\)"),
        ({"conditioning": np.empty((0, 3))}, r"conditioning points have shape \(0, 3\)"),
        ({"conditioning": POINTS[:, :2]}, r"points have shape \(7, 2\), expected \(M, 3\): one row of state"),
        ({"conditioning": NOT_FINITE}, r"conditioning points must be finite, got -?inf at \[3, \d\]"),
        (
            {"conditioning": (POINTS, WEIGHTS[:4])},
            r"weights have shape \(4,\), expected \(7,\): one for each",
        ),
        ({"conditioning": (POINTS, POINTS)}, r"weights have shape \(7, 3\), expected \(7,\)"),
        ({"conditioning": (POINTS, WEIGHTS - 3)}, "weight 0 is -2.0, expected a positive number; leave out"),
        ({"conditioning": (POINTS, WEIGHTS * np.nan)}, "weight 0 is nan, expected a positive number"),
        ({"conditioning": (POINTS, ["a"] * 7)}, "conditioning weights must be real numbers"),
        (
            {"conditioning": POINTS, "n_conditioning": 7},
            "gives 7 points, so n_conditioning must be None, got 7",
        ),
        (
            {"conditioning": "kmeans", "n_conditioning": 121},
            "'kmeans' cannot divide 240 transitions into 121 clusters .* at most 120, or use "
            "conditioning='random'",
        ),
        ({"conditioning": "kmeans"}, "cannot divide 240 transitions into 240 clusters"),
    ],
)
def test_fit__bad_choice_before_any_work(store, policy, given, message, monkeypatch):
    def work(*_):
        raise AssertionError("work was begun")

    monkeypatch.setattr("kedrl_dask.estimator.fit_model.run_fit", work)
    with pytest.raises(ValueError, match=message):
        fit(store, policy, **given)


def test_check_data__more_clusters_than_the_largest_sample_allows():
    chosen = settings(conditioning="kmeans", n_conditioning=50_001)
    with pytest.raises(ValueError, match="cannot divide 100,000 transitions into 50,001 clusters"):
        chosen.check_data(2, 1, 2, n_transitions=10**9)
    settings(conditioning="kmeans", n_conditioning=50_000).check_data(2, 1, 2, n_transitions=10**9)
