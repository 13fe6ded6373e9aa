"""Policies side by side: every number is the one that the parts give by themselves."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xarray

from kedrl_dask import KEDRL, Matern, Refused, TransitionStore, compare, policies
from kedrl_dask.comparison import frames
from kedrl_dask.comparison.contrasts import dominance
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.numerics.laws.mixture import Mixture
from kedrl_dask.numerics.laws.summaries import thresholds
from kedrl_dask.numerics.laws.tilting import Tilted
from kedrl_dask.numerics.policies.overlap import action_overlap
from tests.conftest import make_episodes
from tests.estimator.fitted.test_answers import ACTION, OTHER, POLICY, STATE

REPLICATES = 4
POLICIES = {"rev": POLICY, "clk": OTHER}
SETTINGS = {
    "input_kernel": Matern(2.5, 2.0, 1.1), "return_kernel": Matern(5.5, (2.2, 2.1), 0.85), "n_atoms": 20,
    "n_basis": 20, "n_landmarks": 30, "n_features": 24, "n_conditioning": 60, "n_blocks": 5,
    "ridge_gamma": 1e-3, "reward_trend": "none",
}  # fmt: skip


#: The fits of this module are too small to be accurate.
SMALL = ("accuracy",)


def run(store, given=POLICIES, at=(STATE, ACTION), n_replicates=0, settings=SETTINGS, accept=(), **options):
    """A comparison; what does not differ between those of this module is computed once."""
    accept = (*SMALL, *accept) if isinstance(accept, tuple) else accept
    options = {
        "accept": accept,
        "executor": ThreadExecutor(1),
        "progress": "none",
        "cache": store.path.parent / "all",
    } | options
    return compare(
        store, given, at, KEDRL(0.6, centring="none", **settings), n_replicates=n_replicates, **options
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def store(place):
    return TransitionStore.from_arrays(place / "store", **make_episodes(24, 10))


@pytest.fixture(scope="module")
def comparison(place, store):
    return run(store, n_replicates=REPLICATES, cache=place / "cache")


@pytest.fixture(scope="module")
def fits(store):
    """Each policy fitted and bootstrapped by itself."""
    found = {}
    for name, policy in POLICIES.items():
        own = {"executor": ThreadExecutor(1), "progress": "none"}
        model = KEDRL(0.6, centring="none", **SETTINGS).fit(store, policy, **own)
        found[name] = model, model.bootstrap(store, policy, n_replicates=REPLICATES, **own)
    return found


def value(table, column="value", **where):
    for name, wanted in where.items():
        table = table[table[name] == wanted]
    assert len(table) == 1
    return table[column].iloc[0]


@pytest.mark.slow
def test_table__has_the_summaries_of_each_fit(comparison, fits):
    table = comparison.table
    assert len(table) == 2 * 3 * 2 * (1 + 1 + 5 + 1)
    for name, (model, _) in fits.items():
        law = model.recover(STATE, ACTION, SMALL)
        for i in range(3):
            for c in range(2):
                at = {"policy": name, "input": i, "coordinate": c}
                assert value(table, summary="mean", **at) == pytest.approx(law.mean()[i, c], rel=1e-8)
                spread = np.sqrt(law.covariance()[i, c, c])
                assert value(table, summary="sd", **at) == pytest.approx(spread, rel=1e-8)
                for q in (0.05, 0.25, 0.5, 0.75, 0.95):
                    expected = law.quantile(q, c)[i]
                    assert value(table, summary="quantile", level=q, **at) == pytest.approx(
                        expected, abs=1e-6
                    )
                found = value(table, summary="cvar", level=0.1, **at)
                assert found == pytest.approx(law.cvar(0.1, c)[i], abs=1e-6)


def test_differences__have_the_intervals_of_paired_replicates(comparison, fits):
    def tail(fit):
        return fit.recover(STATE, ACTION, SMALL).cvar(0.1, 1)

    draws = {name: bootstrap.apply(tail) for name, (_, bootstrap) in fits.items()}
    difference = draws["clk"] - draws["rev"]
    low, high = difference.interval(0.9)
    for i in range(3):
        at = {"input": i, "coordinate": 1, "summary": "cvar"}
        pair = {"minuend": "clk", "subtrahend": "rev", **at}
        table = comparison.differences
        assert value(table, **pair) == pytest.approx(difference.estimate[i], abs=1e-6)
        assert value(table, "low", **pair) == pytest.approx(low[i], abs=1e-6)
        assert value(table, "high", **pair) == pytest.approx(high[i], abs=1e-6)
        own = value(comparison.table, "standard_error", policy="rev", **at)
        assert own == pytest.approx(draws["rev"].standard_error[i], abs=1e-6)


def test_precomputation__is_shared(comparison, place):
    kinds = [path.name.split("-")[0] for path in (place / "cache").iterdir()]
    assert kinds.count("inputs") == kinds.count("rewards") == kinds.count("points") == 1
    assert kinds.count("continuation") == 2


def test_dominance__is_that_of_the_distribution_functions(comparison):
    frame = comparison.dominance
    for i in range(3):
        for c in range(2):
            t = np.linspace(-12, 12, 4_001)
            below = {name: law.cdf(t, c)[i] for name, law in comparison.laws.items()}
            ahead = below["rev"] - below["clk"]
            at = {"input": i, "coordinate": c}
            assert value(frame, "gain", **at) == pytest.approx(ahead.max(), abs=1e-3)
            assert value(frame, "loss", **at) == pytest.approx(max(-ahead.min(), 0), abs=1e-3)
            expected = "clk" if ahead.min() >= -0.01 and ahead.max() > 0.01 else "neither"
            assert value(frame, "dominant", **at) == expected
    assert (frame["dominant"] == "clk").any()
    assert frame["share"].between(0, 1).all()


def test_dominance__by_hand():
    below = np.array([[0.0, -0.3, 0.005], [0.2, 0.1, -0.005], [0.2, -0.2, 0.0], [0.005, -0.005, 0.0]])
    np.testing.assert_array_equal(dominance(below), [1, -1, 0, 0])


@pytest.mark.slow
def test_same_policy__has_no_differences(store):
    found = run(store, {"a": POLICY, "b": POLICY, "c": OTHER}, n_replicates=2)
    same = found.differences.query("minuend == 'b' and subtrahend == 'a'")
    assert len(found.differences) == 3 * len(same)
    np.testing.assert_array_equal(same[["value", "standard_error", "low", "high"]], 0)
    frame = found.dominance.query("minuend == 'b' and subtrahend == 'a'")
    assert (frame["dominant"] == "neither").all()
    assert (frame["share"] == 1).all()
    turned = run(store, {"c": OTHER, "a": POLICY}).dominance
    named = found.dominance.query("minuend == 'c' and subtrahend == 'a'")
    np.testing.assert_array_equal(turned["dominant"], named["dominant"])
    np.testing.assert_allclose(turned["loss"], named["gain"], rtol=1e-6)


def test_support__is_the_mass_at_the_edges(comparison):
    frame, law = comparison.support, comparison.laws["clk"]
    low, high = law.grid[:, 1].min(), law.grid[:, 1].max()
    ends = low + 0.05 * (high - low), high - 0.05 * (high - low)
    at = {"policy": "clk", "input": 2, "coordinate": 1}
    box = np.array([-np.inf, -np.inf]), np.array([np.inf, ends[0]])
    assert value(frame, "edge_low", **at) == pytest.approx(law.prob(box)[2], abs=1e-12)
    box = np.array([-np.inf, ends[1]]), np.array([np.inf, np.inf])
    assert value(frame, "edge_high", **at) == pytest.approx(law.prob(box)[2], abs=1e-12)


@pytest.mark.slow
def test_support__narrow_grid_is_a_finding(store):
    narrow = np.random.default_rng(0).uniform(-0.3, 0.3, (30, 2))
    found = run(store, settings=SETTINGS | {"grid": narrow}, accept=("coverage", "mass", "solver"))
    assert {f.subject for f in found.findings if f.code == "support"} == {"rev", "clk"}
    assert (found.support[["edge_low", "edge_high"]].max(axis=1) > 0.1).any()


def test_overlap__by_loops():
    rng = np.random.default_rng(3)
    n, draws, kernel = 30, 4, Matern(2.5, (0.5, 2.0, 1.0))
    inputs, episode = rng.standard_normal((n, 3)), np.repeat(np.arange(5), 6)
    state, logged = rng.standard_normal((n, 2)), rng.uniform(-1, 1, (n, 1))
    actions, weights = rng.standard_normal((draws, n, 1)), np.array([0.4, 0.3, 0.2, 0.1])
    found = action_overlap(inputs, episode, state, logged, actions, weights, kernel)
    outside = square = mean = 0.0
    nearest, shares, own = [], [], []
    for j in range(n):
        others = [x for x, e in zip(inputs, episode, strict=True) if e % 2 == 0]

        def distance(action, j=j, others=others):
            x = np.concatenate([state[j], action])
            return min(np.sqrt((((x - y) / kernel.length_scale) ** 2).sum()) for y in others)

        if episode[j] % 2 == 1:
            own.append(distance(logged[j]))
        for k in range(draws):
            a = actions[k, j, 0]
            outside += weights[k] * (a < logged.min() or a > logged.max()) / n
            square += weights[k] * (a - logged[j, 0]) ** 2 / n
            mean += weights[k] * a / n
            if episode[j] % 2 == 1:
                nearest.append(distance(actions[k, j]))
                shares.append(weights[k])
    assert found.outside[0] == pytest.approx(outside)
    assert found.shift[0] == pytest.approx(np.sqrt(square) / logged.std())
    assert found.target_mean[0] == pytest.approx(mean)
    assert found.logged_distance == pytest.approx(np.median(own))
    order = np.argsort(nearest)
    half = np.searchsorted(np.cumsum(np.array(shares)[order]), 0.5 * sum(shares) - 1e-12)
    assert found.distance == pytest.approx(np.array(nearest)[order][half])
    alone = action_overlap(inputs, np.zeros(n), state, logged, actions, weights, kernel)
    assert np.isnan(alone.distance)


def test_overlap__a_policy_farther_away_is_farther_away(comparison):
    frame = comparison.overlap.set_index("policy")
    assert frame.loc["clk", "shift"] > frame.loc["rev", "shift"]
    assert frame.loc["clk", "target_mean"] == pytest.approx(frame.loc["rev", "target_mean"] + 0.5)
    assert frame["ess"].isna().all()


def test_ratio__has_an_effective_sample_size(store):
    found = run(store, {"rev": POLICY}, settings=SETTINGS | {"continuation": "ratio"}, accept=("ess",))
    expected = found.models["rev"].diagnostics_["ratio"]["effective_sample_size"]
    assert value(found.overlap, "ess", policy="rev") == expected


def test_dataset__reads_back_from_zarr(comparison, store, tmp_path):
    comparison.to_zarr(tmp_path / "results.zarr")
    stored = xarray.open_zarr(tmp_path / "results.zarr", consolidated=False).load()
    xarray.testing.assert_identical(stored, comparison.dataset)
    sizes = {"policy": 2, "input": 3, "coordinate": 2, "level": 5, "atom": 20, "pair": 1, "action": 1}
    sizes |= {"state": 2, "coordinate_2": 2, "threshold": stored["thresholds"].shape[1]}
    assert dict(stored.sizes) == sizes
    assert stored.attrs["fingerprint"] == store.fingerprint
    assert stored.attrs["seed"] == 0
    assert stored.attrs["n_replicates"] == REPLICATES
    assert json.loads(stored.attrs["accepted"]) == [*SMALL]
    assert list(json.loads(stored.attrs["policies"])) == ["rev", "clk"]
    np.testing.assert_array_equal(stored["input_state"], STATE)
    np.testing.assert_array_equal(stored["input_action"].sel(policy="clk"), ACTION)
    law = comparison.laws["clk"]
    np.testing.assert_array_equal(stored["weight"].sel(policy="clk"), law.weights)
    np.testing.assert_array_equal(stored["atoms"], law.atoms)


def test_dataset__tells_where_it_comes_from(comparison, store):
    attributes = comparison.dataset.attrs
    facts = json.loads(attributes["diagnostics"])
    assert list(facts) == ["rev", "clk"]
    assert facts["clk"]["sizes"]["transitions"] == store.n_transitions
    assert facts["clk"]["seconds"].keys() >= {"streaming pass", "solver"}
    reward = store.transitions().reward
    np.testing.assert_allclose(facts["rev"]["columns"]["reward"]["mean"], reward.mean(axis=0))
    np.testing.assert_allclose(facts["rev"]["columns"]["reward"]["max"], reward.max(axis=0))
    assert json.loads(attributes["seconds"]).keys() == {"recovery", "summaries and differences"}
    assert json.loads(attributes["versions"]).keys() >= {"kedrl_dask", "numpy", "zarr"}


def test_second_specification__stands_beside_the_first(comparison):
    law = comparison.laws["clk"].sensitivity
    at = {"policy": "clk", "input": 1, "coordinate": 0}
    table = comparison.table
    assert value(table, "second", summary="mean", **at) == law.mean()[1, 0]
    assert value(table, "second", summary="cvar", **at) == law.cvar(0.1, 0)[1]
    assert value(table, "second", summary="quantile", level=0.75, **at) == law.quantile(0.75, 0)[1]
    flags = comparison.laws["clk"].flags
    assert value(table, "sensitive", summary="mean", **at) == flags["sensitive"][1]
    assert value(table, "residual", summary="mean", **at) == flags["residual"][1]


def test_curves__have_the_intervals_of_replicates(comparison, fits):
    """Those of the distribution function and of the density, within what they can be."""
    model, bootstrap = fits["rev"]
    dataset = comparison.dataset.sel(policy="rev", coordinate=1)
    t = dataset["thresholds"].values
    for name in ("cdf", "density"):
        draws = bootstrap.apply(lambda fit, name=name: getattr(fit.recover(STATE, ACTION, SMALL), name)(t, 1))
        np.testing.assert_allclose(
            dataset[name], getattr(model.recover(STATE, ACTION, SMALL), name)(t, 1), atol=1e-6
        )
        low, high = (np.clip(end, 0, 1 if name == "cdf" else None) for end in draws.interval(0.9))
        np.testing.assert_allclose(dataset[f"{name}_low"], low, atol=1e-6)
        np.testing.assert_allclose(dataset[f"{name}_high"], high, atol=1e-6)
    other = comparison.dataset.sel(policy="clk", coordinate=1)["cdf"] - dataset["cdf"]
    found = comparison.dataset["cdf_difference"].sel(coordinate=1).isel(pair=0)
    np.testing.assert_allclose(found, other, atol=1e-12)


def test_curves__of_a_projected_coordinate_are_its_masses(store):
    found = run(store, {"only": POLICY}, recovery={"projected": {1: [-2, 0, 1, 40]}})
    mass = found.laws["only"].pmf(1)
    part = found.dataset.sel(policy="only", coordinate=1)
    support, first = np.unique(part["thresholds"], return_index=True)
    np.testing.assert_array_equal(support, mass.support)
    np.testing.assert_allclose(part["density"].values[:, first], mass.probability)


def test_distance__is_that_of_the_embeddings(comparison, fits):
    embeddings = [model.embedding(STATE, ACTION, SMALL) for model, _ in fits.values()]
    np.testing.assert_allclose(comparison.distance["mmd"], embeddings[0].mmd(embeddings[1]), rtol=1e-6)
    assert list(comparison.distance["minuend"]) == ["clk"] * 3


@pytest.mark.slow
def test_average__is_the_law_from_the_initial_states(store):
    found = run(store, at=(STATE, None), average=True, n_replicates=2)
    law = found.models["clk"].embedding(STATE, OTHER, SMALL).average().recover()
    assert found.dataset.sizes["input"] == 1
    np.testing.assert_allclose(found.laws["clk"].weights, law.weights, atol=1e-9)
    np.testing.assert_array_equal(found.dataset["input_state"], STATE)
    assert found.dataset["input_state"].dims == ("averaged", "state")
    assert len(found.differences) == 2 * (1 + 1 + 5 + 1)


@pytest.mark.slow
def test_replicates__a_few_inputs_at_a_time_give_the_same(comparison, store, place, monkeypatch):
    """Memory does not grow with the number of inputs."""
    monkeypatch.setattr("kedrl_dask.comparison.compare.DRAWN_ELEMENTS", 1)
    monkeypatch.setattr("kedrl_dask.comparison.compare.TASK_LAWS", 2)
    found = run(store, n_replicates=REPLICATES, cache=place / "cache").dataset
    xarray.testing.assert_allclose(found, comparison.dataset, rtol=1e-6, atol=1e-8)
    assert list(found["pair"]) == ["clk − rev"]


@pytest.mark.slow
def test_cluster__gives_the_same_as_threads(comparison, store, place):
    """Sums are those of the other comparison; fits, replicates and recoveries run on the workers."""
    options = {"given": {"clk": OTHER}, "n_replicates": 2, "cache": place / "cache"}
    with local_cluster(2) as executor:
        found = run(store, executor=executor, **options)
    xarray.testing.assert_allclose(found.dataset, run(store, **options).dataset, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_laws_of_states__and_actions_of_their_own(store):
    states = run(store, {"clk": OTHER}, at=(STATE, None))
    assert "input_action" not in states.dataset
    law = states.models["clk"].embedding(STATE, OTHER, SMALL).recover()
    np.testing.assert_array_equal(states.laws["clk"].weights, law.weights)
    own = {"rev": ACTION, "clk": ACTION + 0.3}
    found = run(store, at=(STATE, own))
    law = found.models["clk"].recover(STATE, ACTION + 0.3, SMALL)
    np.testing.assert_array_equal(found.laws["clk"].weights, law.weights)
    np.testing.assert_array_equal(found.dataset["input_action"].sel(policy="rev"), ACTION)


def test_recovery__settings_hold_for_all(store):
    found = run(store, {"only": POLICY}, recovery={"projected": {1: [-1, 0, 1, 2]}}, levels=(0.5,), tail=0.2)
    assert found.dataset.sizes["level"] == 1
    assert set(np.unique(found.dataset["atoms"].sel(coordinate=1))) == {-1, 0, 1, 2}
    assert json.loads(found.dataset.attrs["recovery"])["projected"] == {"1": [-1, 0, 1, 2]}
    assert "mean_difference" not in found.dataset
    assert "standard_error" not in found.table


@pytest.mark.slow
def test_paired__with_intervals(store):
    settings = SETTINGS | {"construction": "paired"}
    found = run(store, {"rev": POLICY}, settings=settings, n_replicates=4)
    assert found.models["rev"].target_ is not None
    assert (found.dataset["mean_standard_error"] > 0).all()


def test_exact_operators__have_no_intervals(store):
    with pytest.raises(ValueError, match="give n_replicates=0"):
        run(store, settings=SETTINGS | {"operators": "exact"}, n_replicates=4)


@pytest.mark.slow
def test_centred__laws_and_intervals_are_of_simulated_returns(tmp_path):
    """Every replicate simulates with a model of its own; a policy does not differ from itself."""
    arrays = make_episodes(25, 25)
    store = TransitionStore.from_arrays(tmp_path / "store", **arrays)
    same = {"a": POLICY, "b": POLICY}
    estimator = KEDRL(0.6, centring="auto", construction="separated", **SETTINGS)
    found = compare(
        store, same, (STATE, ACTION), estimator, n_replicates=3, accept=tuple(CODES), progress="none"
    )
    assert isinstance(found.laws["a"], Tilted)
    assert (found.dataset["mean_standard_error"] > 0).all()
    np.testing.assert_array_equal(found.dataset["mean_difference"], 0)
    np.testing.assert_array_equal(found.dataset["mean_difference_standard_error"], 0)


@pytest.mark.slow
def test_gate__refuses_before_the_bootstrap_and_records_what_was_accepted(store, monkeypatch):
    monkeypatch.setattr("kedrl_dask.estimator.fitted.rules.TOO_LARGE_OUTSIDE", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(KEDRL, "bootstrap", lambda *_, **__: pytest.fail("bootstrapped"))
        with pytest.raises(Refused, match=r"rev: coverage(.|\n)*clk: coverage"):
            run(store, n_replicates=REPLICATES)
    found = run(store, {"rev": POLICY}, accept=("coverage",))
    assert found.accepted == (*SMALL, "coverage")
    assert {finding.code for finding in found.findings} >= {"coverage"}
    assert json.loads(found.dataset.attrs["accepted"]) == [*SMALL, "coverage"]
    assert "rev: coverage: the return grid" in str(found)
    assert "accepted: accuracy, coverage" in str(found)


def test_replicates__that_are_not_recovered_are_a_finding(store, monkeypatch):
    original = KEDRL.bootstrap

    def then_hamper(*given, **options):
        monkeypatch.setattr("kedrl_dask.numerics.laws.simplex.MAX_ITERATIONS", 1)
        return original(*given, **options)

    monkeypatch.setattr(KEDRL, "bootstrap", then_hamper)
    found = run(store, {"only": POLICY}, n_replicates=2)
    finding = next(finding for finding in found.findings if finding.code == "replicates")
    assert finding.severity == "warn"
    assert "did not converge" in finding.sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"given": {}}, "at least one by name"),
        ({"given": {1: POLICY}}, "at least one by name"),
        ({"at": STATE}, r"at must be \(state, action\)"),
        ({"at": (STATE[:, :1], ACTION)}, r"state has shape \(3, 1\), expected \(n, 2\)"),
        ({"at": (STATE[:2], ACTION)}, "state has 2 rows and action 3"),
        ({"at": (STATE, {"rev": ACTION})}, r"actions are of \['rev'\]"),
        ({"at": (STATE[0], None)}, r"state has shape \(2,\)"),
        ({"n_replicates": 1}, "n_replicates must be 0 or an integer ≥ 2"),
        ({"interval": 1.0}, "interval must lie strictly between"),
        ({"levels": (0.0, 0.5)}, "levels must lie strictly between"),
        ({"tail": 1.5}, "tail must lie strictly between"),
        ({"accept": ("none",)}, "accept must be"),
        ({"recovery": {"ridge": -1.0}}, "ridge must be a number"),
    ],
)
def test_compare__refuses_before_it_fits(store, monkeypatch, options, message):
    monkeypatch.setattr(KEDRL, "fit", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(ValueError, match=message):
        run(store, **options)


def test_compare__needs_an_estimator(store):
    with pytest.raises(ValueError, match="estimator must be a KEDRL, got float"):
        compare(store, POLICIES, (STATE, ACTION), 0.6)


@pytest.mark.slow
def test_policy__of_another_kind_is_compared_too(store):
    policy = policies.Function(lambda s, rng: 0.2 * s[:, :1] + 0.3 * rng.standard_normal((len(s), 1)))
    found = run(store, {"rev": POLICY, "drawn": policy}, at=(STATE, None), n_replicates=2)
    assert np.isfinite(found.table["value"]).all()
    assert np.isfinite(found.differences["standard_error"]).all()


def test_thresholds__of_smoothed_and_discrete_coordinates():
    atoms = np.array([[0.0, 1.0], [2.0, 1.0], [1.0, 4.0]])
    found = thresholds(Mixture(atoms, np.full((1, 3), 1 / 3), np.array([0.5, 0.0])))
    assert (found[0, 0], found[0, -1]) == (-1.5, 3.5)
    assert np.diff(found[0]).max() <= 0.125
    np.testing.assert_array_equal(np.unique(found[1]), [1.0, 4.0])
    narrow = thresholds(Mixture(atoms, np.full((1, 3), 1 / 3), np.array([1e-6, 0.0])))
    assert narrow.shape == (2, 401)


def test_parquet__has_the_tables(comparison, tmp_path):
    comparison.to_parquet(tmp_path / "results")
    names = {path.stem for path in (tmp_path / "results").iterdir()}
    assert names == set(frames.TABLES)
    tables = {
        "summaries": comparison.table,
        "differences": comparison.differences,
        "dominance": comparison.dominance,
        "distance": comparison.distance,
        "overlap": comparison.overlap,
        "support": comparison.support,
    }
    for name, wanted in tables.items():
        found = pd.read_parquet(tmp_path / "results" / f"{name}.parquet")
        pd.testing.assert_frame_equal(found, wanted, check_dtype=False)
        assert found.attrs["caution"] == comparison.dataset.attrs["caution"]
        assert found.attrs["fingerprint"] == comparison.dataset.attrs["fingerprint"]
    weights = pd.read_parquet(tmp_path / "results" / "weights.parquet")
    law = comparison.laws[comparison.dataset["policy"].to_numpy()[0]]
    first = weights[
        (weights["policy"] == comparison.dataset["policy"].to_numpy()[0]) & (weights["input"] == 0)
    ]
    np.testing.assert_array_equal(first["weight"], law.weights[0])
    np.testing.assert_array_equal(first.filter(like="return_"), law.atoms)
    with pytest.raises(FileExistsError, match="already exists"):
        comparison.to_parquet(tmp_path / "results")
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
