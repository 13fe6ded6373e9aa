"""Data and settings at the edge of what numbers can hold: finite results, with a warning, or a refusal."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.data.transition_store import DataError, DataWarning
from kedrl_dask.estimator.fit.pipeline import check_policy
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.numerics.kernels.spectral import frequencies, waves
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.numerics.laws.recovery import recover_law
from kedrl_dask.numerics.regression.input_kernel import standard_deviations
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.utils.exceptions import FitWarning, NumericalError, NumericalWarning, require_finite
from tests.conftest import make_episodes

ROWS = make_episodes(n_episodes=10, length=8)
N = len(ROWS["step"])
POLICY = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
SETTINGS = {
    "discount": 0.7,
    "n_atoms": 8,
    "n_basis": 10,
    "n_landmarks": 15,
    "n_features": 16,
    "n_blocks": 2,
    "input_kernel": Matern(5.5, 3.0),
    "ridge_gamma": 1e-4,
}
#: What the data or a fit may say aloud; anything else, such as NumPy's own warnings, is an error here.
ALOUD = (DataWarning, FitWarning)


def change(**functions):
    return ROWS | {name: function(ROWS[name]) for name, function in functions.items()}


def column(values, number, function):
    values = values.copy()
    values[:, number] = function(values[:, number])
    return values


def all_terminal():
    return ROWS | {"episode": np.arange(N), "step": np.zeros(N, int), "terminated": np.ones(N, bool)}


def repeated(values):
    return np.repeat(values[::8], 8, axis=0)


def fit(path, rows, policy=POLICY, **settings):
    """A fit, and what was said aloud on the way to it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("error")
        for category in ALOUD:
            warnings.simplefilter("always", category)
        store = TransitionStore.from_arrays(path, **rows)
        model = KEDRL(**({"centring": "none"} | SETTINGS | settings)).fit(store, policy, progress="none")
    return store, model, said


def numbers(value):
    """All numbers in nested dicts and lists."""
    if isinstance(value, dict):
        return [x for part in value.values() for x in numbers(part)]
    if isinstance(value, list | tuple):
        return [x for part in value for x in numbers(part)]
    return [value] if isinstance(value, float | int) else []


def check_finite(model, rows):
    """Everything that a fitted model answers."""
    state, action = (np.asarray(rows[name][:4], dtype=float) for name in ("state", "action"))
    assert np.isfinite(model.coefficients_).all()
    assert np.isfinite(model.weights(state, action)).all()
    assert np.isfinite(model.embed(state, action, at=model.grid_[:3])).all()
    assert np.isfinite(model.bellman_risk(state, action)).all()
    assert np.isfinite(numbers(model.diagnostics_)).all()
    # A coordinate without spread has no bandwidth of its own: that is refused, and said.
    varies = (model.grid_.std(axis=0) > 0).all()
    law = model.recover(state, action, accept=tuple(CODES), **({} if varies else {"bandwidth": 0.5}))
    for found in (law.mean(), law.covariance(), law.quantile([0.1, 0.9], 0), law.cvar(0.1, 1), law.residual):
        assert np.isfinite(found).all()
    assert (np.diagonal(law.covariance(), axis1=1, axis2=2) >= 0).all()
    assert set(law.flags) == {"not_converged", "residual", "sensitive"}
    assert np.isfinite(law.relative_residual).all()


HUGE, TINY = 1e90, 1e-90
FITTED = {
    "duplicated inputs": (change(state=repeated, action=repeated), {}, None),
    "duplicated inputs, paired": (change(state=repeated), {"construction": "paired"}, None),
    "duplicated, no threshold": (change(state=repeated), {"landmark_threshold": 0.0}, None),
    "rank one": (change(state=lambda s: s[:, :1] * [1.0, 1.0]), {}, None),
    "all inputs the same": (change(state=lambda s: s * 0 + 1.5, action=lambda a: a * 0), {}, DataWarning),
    "constant action": (change(action=lambda a: a * 0 + 0.5), {}, DataWarning),
    "one constant reward": (change(reward=lambda r: column(r, 1, lambda v: v * 0 + 2)), {}, DataWarning),
    "one constant reward, exact": (
        change(reward=lambda r: column(r, 1, lambda v: v * 0 + 2)),
        {"operators": "exact"},
        DataWarning,
    ),
    "constant rewards, given grid": (
        change(reward=lambda r: r * 0 + 2),
        {"grid": np.random.default_rng(0).normal(6.7, 1, (8, 2))},
        DataWarning,
    ),
    "huge": (change(state=lambda s: HUGE * s, reward=lambda r: HUGE * r), {"input_kernel": "auto"}, None),
    "tiny": (change(state=lambda s: TINY * s, reward=lambda r: TINY * r), {"input_kernel": "auto"}, None),
    "mixed": (
        change(state=lambda s: s * [1e60, 1e-60], reward=lambda r: r * [1e-60, 1e60]),
        {"input_kernel": "auto", "precision": "mixed"},
        None,
    ),
    "far from zero": (
        change(state=lambda s: s + 1e8, reward=lambda r: r - 1e8),
        {"input_kernel": "auto"},
        None,
    ),
    "beyond the digits": (change(reward=lambda r: r + 1e15), {}, DataWarning),
    "single and half precision": (
        change(
            state=lambda s: s.astype("f4"), action=lambda a: a.astype("f2"), reward=lambda r: r.astype("f2")
        ),
        {},
        None,
    ),
    "flags, integers and unsigned": (
        change(
            state=lambda s: s > 0,
            action=lambda a: np.rint(4 * a).astype("i2"),
            reward=lambda r: np.rint(9 * r + 60).astype("u1"),
        ),
        {},
        None,
    ),
    "γ = 0.999": (ROWS, {"discount": 0.999}, NumericalWarning),
    "γ below one by rounding": (ROWS, {"discount": 1 - 2**-53}, NumericalWarning),
    "γ = 0.999, bounds": (ROWS, {"discount": 0.999, "reward_bounds": ([-4, -4], [4, 4])}, None),
    "γ next to nothing, kernels of ν = 1000": (
        ROWS,
        {"discount": 1e-300, "input_kernel": Matern(1e3, 3.0), "return_kernel": Matern(1e3, 3.0)},
        None,
    ),
    "every transition terminal": (all_terminal(), {}, None),
    "every transition terminal, paired": (all_terminal(), {"construction": "paired"}, None),
    "fewer transitions than basis": (
        {k: v[:16] for k, v in ROWS.items()},
        {"n_atoms": 2, "n_basis": 250, "n_landmarks": 500},
        None,
    ),
    "one episode": ({k: v[:8] for k, v in ROWS.items()}, {"grid": np.eye(4, 2) * 3}, None),
    "one conditioning point, atoms far out": (ROWS, {"n_conditioning": 1, "grid_expansion": 1e6}, None),
    "almost no ridge, kernel without end": (
        ROWS,
        {"ridge_gamma": 1e-300, "input_kernel": Matern(5.5, 1e90)},
        None,
    ),
    "all ridge": (ROWS, {"ridge_gamma": 1e30, "ridge_b": 1e30}, NumericalWarning),
    "no mass term": (ROWS, {"mass_penalty": 0}, None),
    "kernel of a large σ": (ROWS, {"input_kernel": Matern(5.5, 3.0, 1e6)}, None),
    "kernel of a small σ": (ROWS, {"input_kernel": Matern(5.5, 3.0, 1e-6)}, None),
    "ratio": (ROWS, {"continuation": "ratio"}, None),
}


#: Cases that are resampled as well.
RESAMPLED = ("duplicated inputs", "one constant reward", "every transition terminal", "ratio")


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTED)
def test_fit__finite_results(tmp_path, name):
    rows, settings, expected = FITTED[name]
    if name in RESAMPLED:
        settings = settings | {"n_blocks": 5}
    store, model, said = fit(tmp_path / "store", rows, **settings)
    if expected is not None:
        assert any(issubclass(line.category, expected) for line in said)
    if name == "no mass term":  # then nothing is the minimiser
        np.testing.assert_allclose(model.coefficients_, 0.0, atol=1e-12)
    else:
        check_finite(model, rows)
    if name in RESAMPLED:
        check_intervals(store, model, rows)
    model.save(tmp_path / "model")
    again = KEDRL.load(tmp_path / "model")
    np.testing.assert_array_equal(again.coefficients_, model.coefficients_)


def check_intervals(store, model, rows):
    replicates = model.bootstrap(store, POLICY, 4, progress="none")
    at = np.asarray(rows["state"][:3], float), np.asarray(rows["action"][:3], float)
    draws = replicates.apply(lambda replica: replica.embed(*at, at=model.grid_[:3]))
    assert np.isfinite(draws.values).all()
    assert np.isfinite(draws.interval(0.9)).all()


FAR = policies.Gaussian(weights=[[0.0], [0.0]], bias=1e6, scale=0.1)
REFUSED = {
    "squares overflow": (change(state=lambda s: 1e150 * s), {}, POLICY, DataError, "other units"),
    "squares vanish": (change(reward=lambda r: 1e-150 * r), {}, POLICY, DataError, "other units"),
    "one column overflows": (
        change(reward=lambda r: r * [1.0, 1e150]),
        {},
        POLICY,
        DataError,
        "column 1 is .*other units",
    ),
    "constant rewards": (
        change(reward=lambda r: r * 0 + 2),
        {},
        POLICY,
        ValueError,
        "found 1; lower n_atoms or give",
    ),
    "more atoms than returns": (ROWS, {"n_atoms": 70}, POLICY, ValueError, "lower n_atoms or give the grid"),
    "no overlap": (
        ROWS,
        {"continuation": "ratio"},
        FAR,
        ValueError,
        "no overlap .*use continuation='sampled'",
    ),
    "ratio of nothing": (
        all_terminal(),
        {"continuation": "ratio"},
        POLICY,
        ValueError,
        "every transition is termin",
    ),
    "one episode": (
        {k: v[:8] for k, v in ROWS.items()},
        {"input_kernel": "auto", "n_atoms": 1},
        POLICY,
        ValueError,
        "needs at least two episodes",
    ),
    "γ = 0": (ROWS, {"discount": 0.0}, POLICY, ValueError, "strictly between 0 and 1"),
    "γ = 1": (ROWS, {"discount": 1.0}, POLICY, ValueError, "strictly between 0 and 1"),
    "no ridge": (ROWS, {"ridge_gamma": 0.0}, POLICY, ValueError, "positive number"),
    "no ridge on B": (ROWS, {"ridge_b": 0.0}, POLICY, ValueError, "positive number"),
    "actions overflow": (
        ROWS,
        {},
        policies.Gaussian([[1e308], [1e308]], scale=1e308),
        ValueError,
        "not finite",
    ),
}


@pytest.mark.filterwarnings("ignore::kedrl_dask.engine.data.transition_store.DataWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_fit__refused(tmp_path, name):
    rows, settings, policy, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        fit(tmp_path / "store", rows, policy, **settings)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".kedrl")]


def test_fit__policy_far_from_the_data_warns(tmp_path):
    _, model, said = fit(tmp_path / "store", ROWS, FAR)
    assert any(issubclass(line.category, NumericalWarning) for line in said)
    check = model.weights(ROWS["state"][:3], np.full((3, 1), 1e6))
    assert np.isfinite(check).all()


def test_fit__exploding_ratio_warns(tmp_path):
    """Target actions where few logged ones are: the ratio of those explodes."""
    rows = change(action=lambda a: np.where(np.arange(N)[:, None] % 40 == 1, 5.0, a))
    target = policies.Gaussian(weights=[[0.0], [0.0]], bias=5.0, scale=0.05)
    _, model, said = fit(
        tmp_path / "store", rows, target, continuation="ratio", input_kernel=Matern(5.5, 0.7)
    )
    assert model.diagnostics_["ratio"]["effective_sample_size"] < 0.1
    assert any("effective sample size" in str(line.message) for line in said)


def test_fit__solver_that_does_not_converge_warns(tmp_path):
    _, model, said = fit(tmp_path / "store", ROWS, solver=PCG(max_iterations=1))
    assert not model.solution_.result.ok
    assert any("not the minimiser" in str(line.message) for line in said)


@pytest.mark.slow
def test_fit__answers_do_not_depend_on_units(tmp_path):
    """Coefficients of data in other units are the same: nothing is lost between 1e-60 and 1e60."""
    found = []
    for scale in (1.0, 2.0**200, 2.0**-200):
        rows = change(state=lambda s, c=scale: c * s, reward=lambda r, c=scale: c * r)
        policy = policies.Gaussian(weights=[[0.2 / scale], [-0.1 / scale]], bias=0.1, scale=0.3)
        options = {"input_kernel": "auto", "precision": "double"}
        _, model, _ = fit(tmp_path / f"{scale}", rows, policy, **options)
        found.append(model.weights(rows["state"][:5], rows["action"][:5]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-8)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-8)


@pytest.mark.parametrize("unit", [1e-90, 1e-30, 1.0, 1e30, 1e90])
def test_waves__in_any_units(unit):
    points = np.random.default_rng(0).standard_normal((20, 2)) * unit
    w = frequencies(Matern(5.5, unit), 2, 16)
    single = waves(points, w, out=np.empty((20, 32), np.float32))
    np.testing.assert_allclose(single, waves(points, w), atol=2e-5)


def test_covariance__of_a_point_far_from_zero():
    law = Mixture(np.full((3, 2), 1e15) + np.eye(3, 2), np.array([[0.2, 0.3, 0.5]]), np.zeros(2))
    assert (np.linalg.eigvalsh(law.covariance()[0]) >= 0).all()
    expected = np.diag([0.16, 0.21]) - 0.06 * (1 - np.eye(2))
    for offset, accuracy in ((0.0, 1e-15), (1e8, 1e-7)):
        moved = Mixture(np.eye(3, 2) + offset, law.weights, np.zeros(2))
        np.testing.assert_allclose(moved.covariance()[0], expected, atol=accuracy)


def test_recover__of_zero_says_so():
    law = recover_law(np.zeros((1, 4)), np.eye(4, 2), Matern())
    assert law.flags["residual"].all()
    assert np.isfinite(law.mean()).all()


def test_standard_deviations__of_small_numbers():
    """Small is not constant; constant is, whatever its size."""
    points = np.random.default_rng(0).standard_normal((50, 3)) * [1e-90, 1.0, 0.0] + [0.0, 0.0, 1e80]
    assert standard_deviations(points)[0] == pytest.approx(points[:, 0].std())
    assert standard_deviations(points)[2] == 1.0


def test_require_finite__names_what_and_how_many():
    require_finite("nothing", "do nothing", None, 1.0, np.zeros(3))
    with pytest.raises(NumericalError, match="2 of 3 numbers of the sums are not finite; change the units"):
        require_finite("the sums", "change the units", np.array([np.nan, 0.0, np.inf]))


def test_check_policy__a_custom_one_passes(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "store", **ROWS)
    check_policy(policies.Function(lambda state, rng: rng.normal(size=(len(state), 1))), store)
