"""Centred fits: the return less a potential, which simulated returns give."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, compare, plots, policies
from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.estimator.fit.design import Choices
from kedrl_dask.estimator.fitted.answers import SimulatedLaw
from kedrl_dask.estimator.fitted.findings import CODES, fit_evidence, judge
from kedrl_dask.numerics.laws.tilting import tilt

SIZES = {"n_atoms": 40, "n_basis": 60, "n_landmarks": 100, "n_features": 64, "n_blocks": 16}
CASE = CASES["counts"]
# One of the counts moves the state: the separated construction objects, which is not the point here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:reward and continuation are correlated"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return CASE.write(tmp_path_factory.mktemp("pilot") / "log", 3_000, seed=0)


@pytest.fixture(scope="module")
def model(store):
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, construction="separated", input_kernel=kernel, **SIZES)
    return estimator.fit(store, CASE.target, progress="none")


@pytest.mark.parametrize("construction", ["separated", "paired"])
def test_centred_criterion__is_the_plain_one_of_shaped_rewards(store, tmp_path, monkeypatch, construction):
    """Rewards r + γ·Ψ(s') − Ψ(s), written as if they had been logged, give the same coefficients.

    Both are shrunk towards zero here, as the plain fit has no simulated returns.
    """
    monkeypatch.setattr(Choices, "prior", lambda self, *_: np.zeros((self.basis.rank, len(self.grid))))
    given = {"construction": construction, "ridge_b": 1e-7, **SIZES}
    estimator = KEDRL(CASE.discount, input_kernel=Matern(length_scale=(2.0, 2.0, 3.0)), **given)
    model = estimator.fit(store, CASE.target, progress="none")
    rows = {name: np.asarray(values) for name, values in CASE.log(3_000, 0).items()}
    value = model.potential_(rows["state"])
    ahead = np.vstack([value[1:], value[:1]])  # rows are in the order of (episode, step)
    rows["reward"] = rows["reward"] + CASE.discount * ahead - value
    rows.pop("terminated")
    shaped = TransitionStore.from_arrays(tmp_path / "shaped", **rows)
    kernels = {"input_kernel": model.input_kernel_, "return_kernel": model.return_kernel_}
    plain = KEDRL(CASE.discount, grid=model.grid_, **kernels, **given).fit(
        shaped, CASE.target, progress="none"
    )
    state, action = rows["state"][:50], rows["action"][:50]
    at = model.grid_ + model.potential_(state)[:, None]
    found, expected = model.embed(state, action, at=at), plain.embed(state, action, at=model.grid_)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_relevance__columns_without_influence_have_nearly_none(tmp_path):
    """The second state moves the reward only later, through the first; the third never."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(1_000, 4)), columns=["now", "later", "noise", "dose"])
    table["visit"], table["name"] = np.arange(1_000) % 20, np.arange(1_000) // 20
    for i in range(1, 1_000):
        if table.loc[i, "visit"]:
            before = table.loc[i - 1]
            table.loc[i, "now"] = 0.9 * before["later"] + 0.3 * table.loc[i, "now"]
            table.loc[i, "later"] = 0.5 * before["later"] + 0.3 * table.loc[i, "later"]
            table.loc[i, "noise"] = 0.95 * before["noise"] + 0.3 * table.loc[i, "noise"]
    table["gain"] = table["now"] + 0.2 * table["dose"]
    columns = {"state": ["now", "later", "noise"], "action": ["dose"], "reward": ["gain"]}
    columns |= {"episode": "name", "step": "visit"}
    store = TransitionStore.from_table(tmp_path / "log", table, columns=columns)
    policy = policies.Gaussian(weights=np.zeros((3, 1)), scale=0.5)
    model = KEDRL(0.8, construction="separated", **SIZES).fit(store, policy, progress="none")
    found = dict(
        zip(columns["state"] + columns["action"], np.ravel(model.diagnostics_["relevance"]), strict=True)
    )
    assert min(found["now"], found["later"]) > 4 * found["noise"]
    assert "Directions of the input kernel: rejected" in [a.get_title() for a in plots.tuning(model).axes]
    axes = plots.relevance(model).axes[0]
    assert {label.get_text() for label in axes.get_yticklabels()[-2:]} == {"now", "later"}
    assert max(bar.get_width() for bar in axes.patches) == pytest.approx(max(found.values()))


def test_relevance__needs_simulated_returns(store):
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    plain = KEDRL(CASE.discount, centring="none", construction="separated", input_kernel=kernel, **SIZES)
    with pytest.raises(ValueError, match="fit with centring='auto'"):
        plots.relevance(plain.fit(store, CASE.target, progress="none"))


def judged(model, code, **changes):
    """The finding of one rule, with some of its evidence changed."""
    found = judge(fit_evidence(model.fitted_) | changes)
    return next(finding for finding in found if finding.code == code)


def test_precision__is_a_finding(model):
    simulation = model.diagnostics_["simulation"]

    def found(**changes):
        return judged(
            model, "precision", simulation=simulation | {"precision": simulation["precision"] | changes}
        )

    assert found().severity == "good"
    assert "over 8 replicates" in found().sentence
    assert found(mean=[0.05, 0.31]).severity == "refuse"
    assert "0.31 standard deviations" in found(mean=[0.05, 0.31]).sentence
    # A tail that its own noise explains is no objection.
    assert found(tail=[0.3, 0.0], tail_noise=[0.2, 0.1]).severity == "good"
    assert found(tail=[0.3, 0.0], tail_noise=[0.05, 0.1]).severity == "refuse"


@pytest.mark.parametrize(
    ("follows", "is_simulated", "severity"),
    [(True, True, "refuse"), (False, True, "warn"), (False, False, "refuse")],
)
def test_coverage__counts_where_laws_follow_the_embedding(model, follows, is_simulated, severity):
    simulation = model.diagnostics_["simulation"] | {"follows_embedding": follows}
    changes = {"grid": {"inside": 0.5, "p90": 0.5}, "is_simulated": is_simulated}
    assert judged(model, "coverage", simulation=simulation, **changes).severity == severity


def test_answers__are_of_the_return_itself(model):
    truth = CASE.truth(seed=0, n_returns=2_000)
    law = model.embedding(truth.state, truth.action, accept=["separation", "coverage"]).recover()
    spread = truth.returns.std(axis=1)
    assert (np.abs(law.mean() - truth.returns.mean(axis=1)) / spread).mean() < 0.2
    median = np.stack([law.quantile(0.5, c) for c in range(2)], axis=1)
    assert (np.abs(median - np.median(truth.returns, axis=1)) / spread).mean() < 0.25
    at = truth.returns[:, :30]
    kernel = model.return_kernel_
    expected = np.stack([kernel(z, y).mean(axis=0) for z, y in zip(truth.returns, at, strict=True)])
    error = model.embed(truth.state, truth.action, at=at) - expected
    assert np.sqrt(np.mean(error**2)) < 0.05 * kernel.sigma**2


def test_fit__is_shrunk_towards_simulated_returns(store):
    """With a large ridge the embedding is that of the simulated returns."""
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, construction="separated", input_kernel=kernel, ridge_b=1e3, **SIZES)
    model = estimator.fit(store, CASE.target, progress="none")
    state, action = np.array([[0.0, 0.0], [1.0, -1.0]]), np.zeros((2, 1))
    simulated = model.simulator_(state, action, 4_000)
    at = simulated[:, :30]
    expected = np.stack([model.return_kernel_(z, y).mean(axis=0) for z, y in zip(simulated, at, strict=True)])
    np.testing.assert_allclose(model.embed(state, action, at=at), expected, atol=0.08)


def test_recover__weights_simulated_returns(model):
    state, action = np.array([[0.0, 0.0], [1.0, -1.0]]), np.zeros((2, 1))
    embedding = model.embedding(state, action, accept=tuple(CODES))
    law = embedding.recover(divergence=1e-2)
    assert isinstance(law, SimulatedLaw)
    np.testing.assert_array_equal(law.atoms, model.simulator_(state, action))
    expected = tilt(
        law.atoms, embedding.coefficients, model.grid_, model.return_kernel_, 1e-2, embedding.shift
    )
    np.testing.assert_array_equal(law.weights, expected.weights)
    assert law.accepted == tuple(CODES)
    # Settings of the inversion ask for it, and so does its name.
    for inverted in (embedding.recover(bandwidth=0.0), embedding.recover("grid")):
        assert not isinstance(inverted, SimulatedLaw)
    with pytest.raises(ValueError, match="method must be"):
        embedding.recover("guess")
    averaged = embedding.average([1, 3]).recover(divergence=1e-2)
    mixture = law.mean().T @ [0.25, 0.75]
    np.testing.assert_allclose(averaged.mean()[0], mixture, atol=0.2 * law.covariance().max() ** 0.5)


def test_recover__equal_weights_where_the_embedding_is_not_accurate(model):
    found = model.diagnostics_["simulation"]
    risk = model.diagnostics_["held_out"]["bellman_risk"] / (1 - CASE.discount) ** 2
    assert found["follows_embedding"] == (risk <= 1e-3 * model.return_kernel_.sigma**2)
    equal = model.recover(np.zeros((1, 2)), [[0.0]], accept=tuple(CODES), divergence=1e10)
    assert equal.weights.shape == (1, 4_000)
    assert (equal.weights == 1 / 4_000).all()
    assert equal.sensitivity.weights.shape == (1, 2_000)
    assert equal.second_specification == "half of the simulated returns"


def test_load__a_policy_that_is_code_is_given_again(store, tmp_path):
    policy = policies.Function(CASE.target.sample)
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    fitted = KEDRL(CASE.discount, input_kernel=kernel, n_draws=2, **SIZES).fit(store, policy, progress="none")
    fitted.save(tmp_path / "model")
    at = np.zeros((1, 2)), np.ones((1, 1))
    without, given = KEDRL.load(tmp_path / "model"), KEDRL.load(tmp_path / "model", policy)
    assert without.simulator_ is None
    assert not isinstance(without.recover(*at, accept=tuple(CODES)), SimulatedLaw)
    with pytest.raises(ValueError, match=r"give KEDRL\.load its policy"):
        without.recover(*at, accept=tuple(CODES), method="simulated")
    laws = [m.recover(*at, accept=tuple(CODES)) for m in (given, fitted)]
    np.testing.assert_array_equal(laws[0].weights, laws[1].weights)
    np.testing.assert_array_equal(laws[0].atoms, laws[1].atoms)


def test_save_and_load__keep_the_potential(model, tmp_path):
    model.save(tmp_path / "model")
    again = KEDRL.load(tmp_path / "model")
    state, action = np.zeros((2, 2)), np.ones((2, 1))
    laws = [m.recover(state, action, accept=tuple(CODES)) for m in (model, again)]
    np.testing.assert_array_equal(laws[0].weights, laws[1].weights)
    at = np.array([[1.0, 1.0], [5.0, 2.0]])
    np.testing.assert_array_equal(again.embed(state, action, at=at), model.embed(state, action, at=at))
    np.testing.assert_array_equal(again.potential_(state), model.potential_(state))
    assert again.centring == "auto"


def test_diagnostics__describe_the_logged_rewards(model, store):
    assert model.diagnostics_["centred"] is True
    reward = store.transitions().reward
    np.testing.assert_allclose(
        model.diagnostics_["columns"]["reward"]["mean"], reward.mean(axis=0), rtol=1e-9
    )
    assert model.diagnostics_["data"] == store.fingerprint


def test_truncation__is_no_finding_where_returns_are_simulated(model):
    evidence = fit_evidence(model.fitted_) | {"sizes": {"episodes": 10, "terminal": 0, "transitions": 10}}
    settings = evidence["settings"] | {"discount": 0.99}
    found = {f.code: f for f in judge(evidence | {"settings": settings})}
    assert found["truncation"].severity == "good"
    assert "simulated" in found["truncation"].sentence
    plain = {f.code: f for f in judge(evidence | {"settings": settings, "centred": False})}
    assert plain["truncation"].severity == "warn"


def test_none__is_the_papers_estimator(store):
    plain = KEDRL(CASE.discount, centring="none", **SIZES).fit(store, CASE.target, progress="none")
    assert plain.potential_ is None
    assert plain.simulator_ is None
    assert plain.diagnostics_["simulation"] is None
    assert plain.diagnostics_["centred"] is False


@pytest.mark.parametrize("given", [{"grid": np.linspace(0, 9, 40).repeat(2).reshape(-1, 2)}, "few"])
def test_auto__leaves_it_where_it_cannot_help(given, store, tmp_path):
    """Given atoms are atoms of the return; and a few episodes are not enough to simulate from."""
    options, data = SIZES, store
    if given == "few":
        options, data = (
            {**SIZES, "n_atoms": 15, "n_basis": 20, "n_landmarks": 30},
            CASE.write(tmp_path / "few", 100, seed=0),
        )
    else:
        options = {**SIZES, **given}
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, centring="auto", input_kernel=kernel, **options)
    assert estimator.fit(data, CASE.target, progress="none").potential_ is None


def test_auto__leaves_states_with_categories(tmp_path):
    """A simulated state would lie between categories, where no policy can be asked."""
    rng = np.random.default_rng(0)
    n = 1_000
    table = pd.DataFrame({"episode": np.arange(n) // 20, "step": np.arange(n) % 20, "x": rng.normal(size=n)})
    table["kind"], table["action"], table["reward"] = (
        rng.choice(["a", "b"], n),
        rng.normal(size=n),
        table["x"],
    )
    columns = {
        "episode": "episode",
        "step": "step",
        "state": ["x", "kind"],
        "action": "action",
        "reward": "reward",
    }
    data = TransitionStore.from_table(tmp_path / "table", table, columns, categorical=["kind"])
    policy = policies.Gaussian(weights=np.zeros((data.state_dim, 1)), scale=1.0)
    sizes = {**SIZES, "n_atoms": 15, "n_basis": 20, "n_landmarks": 30}
    estimator = KEDRL(0.5, centring="auto", input_kernel=Matern(length_scale=3.0), **sizes)
    assert estimator.fit(data, policy, progress="none").potential_ is None


def test_bootstrap__replicates_are_of_the_return(model, store):
    state, action = np.array([[0.0, 0.0], [1.0, -1.0]]), np.zeros((2, 1))

    def mean(fitted):
        return fitted.embedding(state, action, accept=tuple(CODES)).recover().mean()

    draws = model.bootstrap(store, CASE.target, 4, progress="none").apply(mean)
    assert draws.estimate.shape == (2, 2)
    spread = np.std(draws.values, axis=0)
    assert (spread > 0).all()
    assert (np.abs(draws.values - draws.estimate) < 1.0).all()


def test_compare__simulated_laws_of_each_policy(store):
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, construction="separated", input_kernel=kernel, **SIZES)
    targets = {"logged": CASE.behaviour, "target": CASE.target}
    at = np.zeros((2, 2)), None
    found = compare(store, targets, at, estimator, n_replicates=0, accept=tuple(CODES), progress="none")
    # As many returns of each, though only one fit follows its embedding.
    assert len({law.weights.shape for law in found.laws.values()}) == 1
    for name, law in found.laws.items():
        assert isinstance(law, SimulatedLaw)
        n_returns = law.weights.shape[1]
        alone = found.models[name].recover(at[0], targets[name], accept=tuple(CODES), n_returns=n_returns)
        np.testing.assert_array_equal(law.weights, alone.weights)
    table = found.table.query("summary == 'mean' and input == 0 and coordinate == 0").set_index("policy")
    assert table.loc["target", "value"] == pytest.approx(found.laws["target"].mean()[0, 0])
    assert found.dataset["atoms"].dims == ("policy", "input", "atom", "coordinate")
    assert (found.distance["mmd"] > 0).all()
    assert (found.support[["edge_low", "edge_high"]] <= 1).all(axis=None)
    averaged = compare(
        store, targets, at, estimator, average=True, n_replicates=0, accept=tuple(CODES), progress="none"
    )
    assert averaged.dataset.sizes["input"] == 1


def test_grown_stores__keep_the_pilot_of_their_first_rows(store, tmp_path):
    grown = store.grown_from(2_080)
    kernel = Matern(length_scale=(2.0, 2.0, 3.0))
    estimator = KEDRL(CASE.discount, centring="auto", input_kernel=kernel, return_kernel="auto", **SIZES)
    first = TransitionStore.from_arrays(
        tmp_path / "first", **{name: np.asarray(part)[:2_080] for name, part in CASE.log(3_000, 0).items()}
    )
    alone = estimator.fit(first, CASE.target, progress="none").potential_
    whole = estimator.fit(grown, CASE.target, progress="none").potential_
    state = np.zeros((1, 2))
    np.testing.assert_allclose(whole(state), alone(state))
