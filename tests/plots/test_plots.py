"""Figures and tables: each shows the numbers that it claims to show."""

import json
from copy import copy
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import xarray
from matplotlib.figure import Figure
from rich.console import Console

from kedrl_dask import KEDRL, Matern, plots, results
from kedrl_dask.comparison.contrasts import contrasts, intervals
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.estimator.bootstrap import Draws
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.numerics.kernels import theory
from kedrl_dask.numerics.laws.recovery import RecoverySettings, recover_law
from kedrl_dask.numerics.laws.summaries import Summaries, thresholds
from kedrl_dask.numerics.solvers import AdamW
from kedrl_dask.report import terminal
from tests import dense

PAIR = simulation.PAIRS["uniform-gaussian"]
SIZES = {"n_atoms": 20, "n_basis": 25, "n_landmarks": 30, "n_features": 32, "n_blocks": 4}
SIZES["n_conditioning"] = 100
STATE, ACTION = simulation.TEST_POINTS_UNIFORM_GAUSSIAN


@pytest.fixture(scope="module", autouse=True)
def _rough_truth():
    """The truth to three digits: its values are tested elsewhere."""
    embed = truth.ReturnLaw.embed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth.ReturnLaw, "embed", lambda self, at, kernel, _=0: embed(self, at, kernel, 2**8))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return simulation.write(tmp_path_factory.mktemp("plots") / "data", PAIR, 490)


@pytest.fixture(scope="module")
def model(store):
    model = KEDRL(0.7, centring="none", return_kernel=PAIR.settings.kernel, **SIZES)
    return model.fit(store, PAIR.target, progress="none")


@pytest.fixture(scope="module")
def adamw_model(store):
    kernel = PAIR.settings.kernel
    given = {"input_kernel": kernel, "return_kernel": kernel, "ridge_gamma": 1e-3}
    model = KEDRL(0.7, centring="none", solver=AdamW(n_iterations=120), **given, **SIZES)
    return model.fit(store, PAIR.target, progress="none")


def check_labels(figure, tmp_path):
    """Draw it as a file, and look for labels on every visible axis."""
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000
    return [axes for axes in figure.axes if axes.axison and axes.get_label() != "<colorbar>"]


@pytest.mark.slow
def test_convergence__pcg(model, tmp_path):
    left, right = check_labels(plots.convergence(model), tmp_path)
    line = right.lines[0]
    assert line.get_ydata()[0] == 1.0
    assert line.get_ydata()[-1] == model.solution_.certificate
    assert line.get_xdata()[-1] == model.solution_.n_iterations
    assert right.lines[1].get_ydata()[0] == 1e-8
    gap = left.lines[0].get_ydata()
    assert (gap > 0).all()
    assert gap[0] == pytest.approx(model.solution_.history[0].value - model.solution_.value, rel=1e-6)
    assert left.get_yscale() == right.get_yscale() == "log"


@pytest.mark.slow
def test_convergence__adamw_shows_batch_gradients(adamw_model, tmp_path):
    _, right = check_labels(plots.convergence(adamw_model), tmp_path)
    assert right.get_title() == "Gradient of the mini-batch"
    assert list(right.lines[0].get_xdata()) == [50, 100, 120]


def test_convergence__loaded_model(model, tmp_path):
    model.save(tmp_path / "model")
    figure = plots.convergence(KEDRL.load(tmp_path / "model"))
    expected = plots.convergence(model).axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), expected)


def test_embedding_curves__sorted_by_truth(tmp_path):
    rng = np.random.default_rng(0)
    true = rng.random((7, 30))
    estimate = true + 0.01
    panels = check_labels(plots.embedding_curves(estimate, true, columns=4), tmp_path)
    assert len(panels) == 7
    for point, axes in enumerate(panels):
        dots, line = (artist.get_ydata() for artist in axes.lines)
        np.testing.assert_array_equal(line, np.sort(true[point]))
        np.testing.assert_allclose(dots - line, 0.01)
        assert axes.get_title() == f"point {point + 1}: RMSE 0.0100"


def test_embedding_curves__shapes_differ():
    with pytest.raises(ValueError, match=r"estimate \(2, 3\) and truth \(2, 4\)"):
        plots.embedding_curves(np.zeros((2, 3)), np.zeros((2, 4)))


@pytest.mark.parametrize("coordinates", [(0, 1), (2, 0)])
def test_embedding_contours__atoms_and_truth(model, coordinates, tmp_path):
    law = truth.return_law(STATE[:1], ACTION[:1], PAIR.target)
    figure = plots.embedding_contours(model, STATE[0], ACTION[0], coordinates, law=law)
    (axes,) = check_labels(figure, tmp_path)
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), model.grid_[:, coordinates])
    assert axes.get_xlabel() == f"return {coordinates[0] + 1}"
    (held,) = {0, 1, 2} - set(coordinates)
    assert f"return {held + 1} = {law.mean[0, held]:.2f}" in axes.get_title()
    assert len(axes.collections) == 2
    assert len(plots.embedding_contours(model, STATE[0], ACTION[0]).axes[0].collections) == 1


def test_embedding_contours__values_are_those_of_embed(model):
    figure = plots.embedding_contours(model, STATE[1], ACTION[1])
    low, high = figure.axes[0].collections[0].get_clim()
    weights = model.weights(STATE[1:2], ACTION[1:2])[0]
    center = weights @ model.grid_ / weights.sum()
    (peak,) = model.embed(STATE[1:2], ACTION[1:2], at=center[None]).ravel()
    assert low <= peak <= high


@pytest.mark.parametrize("coordinates", [(0, 0), (0, 3), (-1, 0)])
def test_embedding_contours__bad_coordinates(model, coordinates):
    with pytest.raises(ValueError, match="two different coordinates below 3"):
        plots.embedding_contours(model, STATE[0], ACTION[0], coordinates)


def test_embedding_surface__is_the_embedding_over_the_mesh(model, tmp_path):
    law = truth.return_law(STATE[:1], ACTION[:1], PAIR.target)
    figure = plots.embedding_surface(model, STATE[0], ACTION[0], (0, 2), law=law)
    check_labels(figure, tmp_path)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_zlabel()) == ("return 1", "return 3", "embedding")
    assert len(axes.collections) == 2
    low, high = axes.get_zlim()
    (peak,) = model.embed(STATE[:1], ACTION[:1], at=law.mean).ravel()
    assert low <= peak <= high
    assert f"return 2 = {law.mean[0, 1]:.2f}" in figure.get_suptitle()
    assert len(plots.embedding_surface(model, STATE[0], ACTION[0]).axes[0].collections) == 1
    with pytest.raises(ValueError, match="embedding_surface: expected two"):
        plots.embedding_surface(model, STATE[0], ACTION[0], (1, 1))


def laws_of_two(d=2, projected=None):
    """Results of two made-up policies at three inputs, with intervals."""
    rng = np.random.default_rng(0)
    grid, kernel = rng.standard_normal((25, d)), Matern(5.5, 1.5)
    laws = {
        name: recover_law(
            rng.dirichlet(np.ones(25), size=3), grid, kernel, RecoverySettings(projected=projected)
        )
        for name in ("rev", "clk")
    }
    summaries = Summaries((0.1, 0.5, 0.9), 0.2, thresholds(laws["rev"]))
    counts = rng.integers(0, 3, (6, 5))
    packed = {name: summaries.pack(law) for name, law in laws.items()}
    draws = {
        name: Draws(value, value + 0.05 * rng.standard_normal((6, *value.shape)), counts)
        for name, value in packed.items()
    }
    parts = [intervals(summaries, list(draws.values()), 0.8), contrasts(summaries, packed, draws, 0.8)]
    dataset = xarray.merge([results.law_dataset(laws, (0.1, 0.5, 0.9), 0.2), *parts])
    return dataset.assign_attrs(interval=0.8, tail=0.2)


def test_marginals__densities_with_bands(two_laws, tmp_path):
    dataset = two_laws
    panels = check_labels(plots.marginals(dataset, 2), tmp_path)
    assert [axes.get_xlabel() for axes in panels] == ["return 1", "return 2"]
    for c, axes in enumerate(panels):
        for i, line in enumerate(axes.lines):
            own = dataset.isel(policy=i, input=2, coordinate=c)
            x, first, _ = np.intersect1d(dataset["thresholds"][c], line.get_xdata(), return_indices=True)
            np.testing.assert_array_equal(line.get_xydata(), np.stack([x, own["density"][first]], axis=1))
            assert own["cdf"][first[0]] < 1e-3 < 1 - 1e-3 < own["cdf"][first[-1]]
            vertices = axes.collections[i].get_paths()[0].vertices[:, 1]
            assert vertices.max() == own["density_high"].max()
        assert len(axes.lines) == len(axes.collections) == 2
    without = dataset.drop_vars([name for name in dataset if name.endswith(("_low", "_high"))])
    assert not plots.marginals(without).axes[0].collections


def test_marginals__masses_of_a_projected_coordinate(tmp_path):
    dataset = laws_of_two(projected={1: [-1, 0, 3]})
    smooth, masses = check_labels(plots.marginals(dataset), tmp_path)
    assert (smooth.get_ylabel(), masses.get_ylabel()) == ("density", "probability")
    heights = [bar.get_height() for bar in masses.patches]
    _, first = np.unique(dataset["thresholds"][1], return_index=True)
    expected = dataset["density"].isel(input=0, coordinate=1).to_numpy()[:, first]
    np.testing.assert_allclose(heights, expected.ravel())
    np.testing.assert_allclose(np.sum(expected, axis=1), 1)


def test_distribution_functions__lines_and_steps(tmp_path):
    dataset = laws_of_two(projected={1: [-1, 0, 3]})
    smooth, steps = check_labels(plots.distribution_functions(dataset, 1), tmp_path)
    own = dataset.isel(policy=0, input=1)
    x, y = smooth.lines[0].get_data()
    np.testing.assert_allclose(y, np.interp(x, own["thresholds"][0], own["cdf"].isel(coordinate=0)))
    assert (y[0], y[-1]) == pytest.approx((0, 1), abs=1e-3)
    values = steps.lines[0].get_ydata()
    assert (values[0], values[-1]) == pytest.approx((0, 1))
    assert list(steps.lines[0].get_xdata()) == [-2, -1, -1, 0, 0, 3, 3, 4, 4]
    np.testing.assert_array_equal(values[1:-1:2], [0, *own["cdf"].isel(coordinate=1).to_numpy()[:3]])
    low, high = steps.get_xlim()
    assert low < -1 < 3 < high


def test_policy_differences__values_and_intervals(two_laws, tmp_path):
    dataset = two_laws
    figure = plots.policy_differences(dataset, ("mean", "quantile"), inputs=[2, 0])
    panels = check_labels(figure, tmp_path)
    assert figure.get_suptitle() == "clk − rev, with 80% intervals"
    for c, axes in enumerate(panels):
        mean, median, zero = axes.lines
        own = dataset.isel(pair=0, coordinate=c, input=[2, 0])
        np.testing.assert_array_equal(mean.get_xdata(), own["mean_difference"])
        np.testing.assert_array_equal(median.get_xdata(), own["quantile_difference"].sel(level=0.5))
        assert list(zero.get_xdata()) == [0, 0]
        ends = np.array([segment[:, 0] for segment in axes.collections[0].get_segments()])
        np.testing.assert_array_equal(ends[:, 0], own["mean_difference_low"])
        np.testing.assert_array_equal(ends[:, 1], own["mean_difference_high"])
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["2", "0"]


@pytest.fixture(scope="module")
def two_laws():
    return laws_of_two()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda found: plots.marginals(found, 3), "marginals: input 3 is not one of 0 to 2"),
        (lambda found: plots.policy_differences(found, ("median",)), "summaries must be in"),
        (lambda found: plots.policy_differences(found, pair=1), "pair 1 is not one of 0 to 0"),
        (lambda found: plots.policy_differences(found.drop_dims("pair")), "compare at least two"),
    ],
)
def test_compared__refused(two_laws, call, message):
    with pytest.raises(ValueError, match=message):
        call(two_laws)


@pytest.mark.slow
def test_density_ratio__ratios_and_effective_sample_size(store, tmp_path):
    kernel = PAIR.settings.kernel
    given = {"input_kernel": kernel, "return_kernel": kernel, "ridge_gamma": 1e-3}
    ratio = KEDRL(0.7, centring="none", continuation="ratio", **given, **SIZES).fit(
        store, PAIR.target, progress="none"
    )
    figure = plots.density_ratio(ratio, store)
    left, right = check_labels(figure, tmp_path)
    assert sum(bar.get_height() for bar in left.patches) == store.n_transitions
    data = store.transitions()
    values = ratio.ratio_(np.hstack([data.next_state, data.next_action]))
    curve = right.lines[0].get_ydata()
    assert curve[0] == pytest.approx(values.max() / values.sum())
    ess = values.sum() ** 2 / (values**2).sum() / len(values)
    assert right.lines[2].get_xdata()[0] == pytest.approx(ess, rel=1e-4)
    assert f"{ess:.1%}" in figure.get_suptitle()


def test_density_ratio__without_one(model, store):
    with pytest.raises(ValueError, match="continuation='sampled', which has no ratio"):
        plots.density_ratio(model, store)


def test_grid_coverage__each_pair(model, tmp_path):
    returns = np.random.default_rng(0).standard_normal((500, 3))
    panels = check_labels(plots.grid_coverage(model, returns), tmp_path)
    assert [(a.get_xlabel(), a.get_ylabel()) for a in panels] == [
        ("return 1", "return 2"),
        ("return 1", "return 3"),
        ("return 2", "return 3"),
    ]
    for axes, pair in zip(panels, ([0, 1], [0, 2], [1, 2]), strict=True):
        assert axes.collections[0].get_array().sum() == 500
        np.testing.assert_array_equal(axes.lines[0].get_xydata(), model.grid_[:, pair])


def test_grid_coverage__one_coordinate_is_a_histogram(tmp_path):
    grid = np.linspace(-1, 1, 9)[:, None]
    returns = np.random.default_rng(0).standard_normal((200, 1))
    (axes,) = check_labels(plots.grid_coverage(SimpleNamespace(grid_=grid), returns), tmp_path)
    assert sum(bar.get_height() for bar in axes.patches) == 200
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), grid[:, 0])


def test_grid_coverage__wrong_dimension(model):
    with pytest.raises(ValueError, match=r"shape \(5, 2\), expected \(n, 3\)"):
        plots.grid_coverage(model, np.zeros((5, 2)))


def test_coefficient_mass__counts_all_inputs(model, tmp_path):
    panels = check_labels(plots.coefficient_mass(model, STATE, ACTION), tmp_path)
    weights = model.weights(STATE, ACTION)
    for axes, values in zip(panels, (weights.sum(axis=1), np.maximum(-weights, 0).sum(axis=1)), strict=True):
        assert sum(bar.get_height() for bar in axes.patches) == len(STATE)
        left, right = axes.patches[0].get_x(), axes.patches[-1].get_x() + axes.patches[-1].get_width()
        np.testing.assert_allclose((left, right), (values.min(), values.max()))


def test_tuning__chosen_settings_stand_out(model, tmp_path):
    kernel, trials, ridge, *_ = check_labels(plots.tuning(model), tmp_path)
    tried = model.diagnostics_["tuning"]
    accepted = [trial["accepted"] for trial in tried["input_kernel"]["trials"]]
    assert [bar.get_width() > 1 for bar in trials.patches] == accepted
    errors = np.array(tried["input_kernel"]["errors"])
    np.testing.assert_array_equal(np.ravel(kernel.collections[0].get_array()), errors.ravel())
    x, y = kernel.lines[0].get_xydata()[0]
    assert errors[int(y), tried["input_kernel"]["ridges"].index(x)] == errors.min()
    np.testing.assert_array_equal(ridge.lines[0].get_ydata(), tried["ridge_gamma"]["errors"])
    assert ridge.lines[1].get_xdata()[0] == model.ridge_gamma_


def test_tuning__nothing_tuned(adamw_model):
    with pytest.raises(ValueError, match="nothing was tuned"):
        plots.tuning(adamw_model)


def test_convergence__failed_solution(model):
    """A criterion that became NaN is still drawn, as far as it goes."""
    record = model.solution_.history[0]._replace(iteration=10_000, value=np.nan, certificate=np.nan)
    failed = copy(model)
    solution = replace(model.solution_, history=(*model.solution_.history, record))
    failed.fitted_ = replace(model.fitted_, solution=solution)
    left, _ = plots.convergence(failed).axes
    assert len(left.lines[0].get_xdata()) > 1


def test_summary__not_finite_numbers_are_null(model, tmp_path):
    model.save(tmp_path / "model")
    model = KEDRL.load(tmp_path / "model")
    model.diagnostics_["solver"]["certificate"] = float("nan")
    model.diagnostics_["gamma_mass"]["max"] = float("inf")
    text = json.dumps(terminal.summary(model), allow_nan=False)
    assert json.loads(text)["solver"]["certificate"] is None
    console = Console(file=StringIO(), width=100)
    terminal.render(model, console=console)
    assert "nan, relative norm" in console.file.getvalue()


def test_render__ratio_rows(model, tmp_path):
    model.save(tmp_path / "model")
    model = KEDRL.load(tmp_path / "model")
    ratio = {"effective_sample_size": 0.94, "mean": 1.0, "min": 0.5, "max": 5.0, "ridge": 1e-3, "centers": 7}
    model.diagnostics_["ratio"] = ratio
    console = Console(file=StringIO(), width=200)
    terminal.render(model, {"rmse": np.array([0.1, 0.3])}, console)
    text = console.file.getvalue()
    assert "94.0% of the transitions" in text
    assert f"{model.diagnostics_['sizes']['conditioning']}, random" in text
    assert "0.2000" in text
    assert "paper" not in text


def test_recovered_marginals__draws_the_law_and_the_truth(model, tmp_path):
    recovered = model.recover(STATE, ACTION, accept=tuple(CODES))
    returns = truth.return_law(STATE, ACTION, PAIR.target).sample(500, np.random.default_rng(0))[2]
    panels = check_labels(plots.recovered_marginals(recovered, 2, returns), tmp_path)
    assert len(panels) == 6
    for c in range(3):
        other, density = panels[c].lines
        x = density.get_xdata()
        np.testing.assert_array_equal(density.get_ydata(), recovered.density(x, c)[2])
        np.testing.assert_array_equal(other.get_ydata(), recovered.sensitivity.density(x, c)[2])
        true, _, cdf = panels[3 + c].lines
        np.testing.assert_array_equal(cdf.get_ydata(), recovered.cdf(x, c)[2])
        np.testing.assert_allclose(true.get_ydata()[200], np.mean(returns[:, c] <= x[200]))


def test_recovered_marginals__projected_coordinate_has_masses(model, tmp_path):
    recovered = model.recover(STATE[:1], ACTION[:1], tuple(CODES), projected={1: [-1, 0, 1]})
    panels = check_labels(plots.recovered_marginals(recovered), tmp_path)
    assert not panels[1].lines
    heights = {(x, y) for (x, _), (_, y) in panels[1].collections[-1].get_segments()}
    support, probability = recovered.pmf(1)
    assert heights == set(zip(support, probability[0], strict=True))


def test_recovered_marginals__refused(model):
    recovered = model.recover(STATE[:1], ACTION[:1], tuple(CODES))
    with pytest.raises(ValueError, match=r"shape \(4, 2\), expected \(k, 3\)"):
        plots.recovered_marginals(recovered, returns=np.zeros((4, 2)))
    with pytest.raises(ValueError, match="point 1 is not one of 0 to 0"):
        plots.recovered_marginals(recovered, 1)


def test_matern_kernels__shows_kernels_and_their_lipschitz_constants(tmp_path):
    nus, lengths = (0.5, 1.5, 5.5), (0.7, 1.4)
    figure = plots.matern_kernels(nus, lengths, nu=2.5, sigma=0.8)
    smoothness, length, quotient = check_labels(figure, tmp_path)
    assert [line.get_label() for line in smoothness.lines] == ["ν = 0.5", "ν = 1.5", "ν = 5.5"]
    for line, nu in zip(smoothness.lines, nus, strict=True):
        t, k = line.get_data()
        expected = [dense.matern(nu, 1.0, 0.8, [0.0], [x]) for x in t]
        np.testing.assert_allclose(k, expected, atol=1e-12)
    assert [line.get_ydata()[0] for line in length.lines] == pytest.approx([0.64, 0.64])
    assert length.lines[0].get_ydata()[100] < length.lines[1].get_ydata()[100]
    lines = [line for line in quotient.lines if len(line.get_xdata()) > 1]
    marks = [line.get_ydata()[0] for line in quotient.lines if len(line.get_xdata()) == 1]
    assert len(lines) == 3
    assert marks == pytest.approx([theory.lipschitz_constant(Matern(nu, 1.0, 0.8)) for nu in nus[1:]])
    for line, mark in zip(lines[1:], marks, strict=True):
        assert line.get_ydata().max() == pytest.approx(mark, rel=2e-3)
    assert quotient.get_ylim()[1] > max(marks)


def test_matern_kernels__rough_ones_alone_have_no_constant(tmp_path):
    *_, quotient = check_labels(plots.matern_kernels((0.5, 1.0)), tmp_path)
    assert len(quotient.lines) == 2


@pytest.mark.slow
def test_embedding_contours__of_a_centred_model_are_where_its_returns_are(tmp_path):
    """The atoms and the mesh move with the potential of the state."""
    case = CASES["heavy-tailed"]
    store = case.write(tmp_path / "log", 1_500, seed=0)
    sizes = {"n_atoms": 30, "n_basis": 40, "n_landmarks": 60, "n_features": 32, "n_blocks": 8}
    kernel = Matern(length_scale=(3.0, 3.0, 3.0))
    model = KEDRL(case.discount, centring="auto", input_kernel=kernel, return_kernel="auto", **sizes)
    model = model.fit(store, case.target, progress="none")
    state = np.array([[3.0, -3.0]])
    drawn = plots.embedding_contours(model, state[0], [0.0]).axes[0].lines[0].get_xydata()
    np.testing.assert_allclose(drawn, model.grid_ + model.potential_(state))
    assert np.abs(model.potential_(state)).max() > 1
