"""Studies: the runner that goes on where it stopped, the metrics of a cell, tables, figures, the command."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from kedrl_dask import KEDRL, cli
from kedrl_dask.datasets import benchmark_points, simulation, truth
from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import frequencies
from kedrl_dask.studies import cell as comparison
from kedrl_dask.studies import figures, profiles, runner, tables
from kedrl_dask.studies import simulation as study
from tests.conftest import end_worker, mortal_workers

PAIR = simulation.PAIRS["uniform-gaussian"]
SIZES = {"n_atoms": 20, "n_basis": 25, "n_landmarks": 30, "n_features": 32}
FAST = SIZES | {"input_kernel": PAIR.settings.kernel}
SMALL = {"pairs": ("uniform-gaussian",), "profiles": ("auto",), "transitions": 490} | FAST


pytestmark = pytest.mark.usefixtures("cells_one_by_one")


# The runner.


def square(work, number, directory=None):
    """A cell for tests: notes each call, and fails at negative numbers."""
    assert not list(work.iterdir())
    (work / "data").write_text("temporary")
    if directory is not None:
        (Path(directory) / f"{number}-{time.time_ns()}").touch()
    if number < 0:
        raise ArithmeticError(f"{number} is negative")
    return {"square": number**2}


def interrupted(work, number):
    """A cell that Ctrl-C reaches."""
    if number == 2:
        raise KeyboardInterrupt
    return {"square": number**2}


def numbered(numbers, **more):
    return [runner.Cell({"number": n}, {"number": n, **more}) for n in numbers]


def test_run_cells__records_in_order_and_nothing_left(tmp_path):
    records = runner.run_cells(tmp_path / "study", "squares", square, numbered([3, 1, 2]))
    assert [result["square"] for _, result in records.done] == [9, 1, 4]
    assert records.n_computed == 3
    assert {entry.name for entry in (tmp_path / "study").iterdir()} == {"study.json", "cells"}


def test_run_cells__computes_only_what_is_missing(tmp_path):
    (calls := tmp_path / "calls").mkdir()
    output, given = tmp_path / "study", {"directory": str(calls)}
    runner.run_cells(output, "squares", square, numbered([1, 2], **given))
    records = runner.run_cells(output, "squares", square, numbered([1, 2, 3], **given))
    assert records.n_computed == 1
    assert sorted(call.name.split("-")[0] for call in calls.iterdir()) == ["1", "2", "3"]
    assert [result["square"] for _, result in records.done] == [1, 4, 9]


def test_run_cells__other_settings_are_other_cells(tmp_path):
    assert numbered([1])[0].name != numbered([1], directory="elsewhere")[0].name
    by_kernel = [runner.Cell({}, {"kernel": Matern(length_scale=length)}).name for length in (1.0, 1.0, 2.0)]
    assert by_kernel[0] == by_kernel[1] != by_kernel[2]


def test_run_cells__a_failed_cell_does_not_lose_the_others(tmp_path):
    output = tmp_path / "study"
    cells = numbered([1, -1, 2])
    records = runner.run_cells(output, "squares", square, cells)
    assert [result["square"] for _, result in records.done] == [1, 4]
    assert records.failed == {cells[1].name: "ArithmeticError: -1 is negative"}
    (note,) = (output / "failures").iterdir()
    assert "Traceback" in note.read_text()
    assert "in square" in note.read_text()
    # It is tried again, and only it.
    again = runner.run_cells(output, "squares", square, cells)
    assert again.n_computed == 0
    assert list(again.failed) == [cells[1].name]


def test_run_cells__interrupted_keeps_what_was_done(tmp_path):
    output = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        runner.run_cells(output, "squares", interrupted, numbered([1, 2, 3]))
    done = [path.name for path in (output / "cells").iterdir()]
    assert numbered([1])[0].name + ".json" in done
    assert numbered([2])[0].name + ".json" not in done
    assert {entry.name for entry in output.iterdir()} == {"study.json", "cells"}
    assert runner.run_cells(output, "squares", square, numbered([1, 2, 3])).n_computed == 3 - len(done)


@pytest.mark.slow
def test_run_cells__worker_processes(tmp_path):
    cells = numbered([1, -1, 2, 3])
    records = runner.run_cells(tmp_path / "study", "squares", square, cells, workers=2)
    assert [result["square"] for _, result in records.done] == [1, 4, 9]
    assert records.failed == {cells[1].name: "ArithmeticError: -1 is negative"}
    assert "in square" in (tmp_path / "study" / "failures" / f"{cells[1].name}.txt").read_text()


def die(item):
    if item == 1:
        end_worker()
    return item


@pytest.mark.slow
def test_attempt__a_cell_that_kills_its_workers_fails_alone():
    # By default a task has failed when its fourth worker died; each takes seconds to start.
    with mortal_workers(1, **{"distributed.scheduler.allowed-failures": 0}) as client:
        first, second, third = DistributedExecutor(client).attempt(die, [0, 1, 2])
    assert (first, third) == (0, 2)
    assert type(second).__name__ == "KilledWorker"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"notes.txt": "mine"}, "is not empty and holds no study"),
        (
            {"study.json": '{"kind": "kedrl study", "study": "cubes"}'},
            "holds the study 'cubes', not 'squares'",
        ),
        ({"study.json": '{"kind": "other"}'}, "was not written by a study"),
        ({"study.json": "[1"}, "was not written by a study"),
    ],
)
def test_run_cells__foreign_directory(content, message, tmp_path):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        runner.run_cells(tmp_path, "squares", square, numbered([1]))
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == content


def test_run_cells__damaged_record(tmp_path):
    cells = numbered([1])
    runner.run_cells(tmp_path, "squares", square, cells)
    (tmp_path / "cells" / f"{cells[0].name}.json").write_text('{"result')
    with pytest.raises(ValueError, match="delete it and run the study again"):
        runner.run_cells(tmp_path, "squares", square, cells)


# Points and truth.


@pytest.mark.parametrize("pair", simulation.PAIRS)
def test_evaluation_points__four_fixed_and_six_supported(pair):
    state, action = benchmark_points.evaluation_points(pair)
    printed = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    assert state.shape == (10, 5)
    assert action.shape == (10, 1)
    np.testing.assert_array_equal(state[:4], printed[0][:4])
    np.testing.assert_array_equal(action[:4], printed[1][:4])
    assert benchmark_points.support(pair)(state, action).all()
    assert len(np.unique(state, axis=0)) == 10


def test_support__refuses_what_is_far_or_what_the_behaviour_never_does():
    state, action = benchmark_points.evaluation_points("uniform-gaussian")
    inside = benchmark_points.support("uniform-gaussian")
    assert inside(state, action).all()
    assert not inside(state + 5.0, action + PAIR.behavior.location(np.full((10, 5), 5.0))).any()
    location = PAIR.behavior.location(state[1:2])
    np.testing.assert_array_equal(inside(state[1:2], location + 0.74), [True])
    np.testing.assert_array_equal(inside(state[1:2], location + 0.76), [False])


@pytest.mark.parametrize("pair", ["uniform-gaussian", "gaussian-uniform", "uniform-logistic"])
def test_squared_norm__against_monte_carlo(pair):
    policies = simulation.PAIRS[pair]
    kernel = policies.settings.kernel
    law = truth.return_law(*(part[:1] for part in benchmark_points.evaluation_points(pair)), policies.target)
    first, second = (law.sample(40_000, np.random.default_rng(seed))[0] for seed in (1, 2))
    values = np.concatenate(
        [np.diag(kernel(first[i : i + 500], second[i : i + 500])) for i in range(0, len(first), 500)]
    )
    error = values.std() / np.sqrt(len(values))
    assert abs(law.squared_norm(kernel) - values.mean()) < 4 * error


def test_rkhs_error__is_the_expanded_square():
    kernel = PAIR.settings.kernel
    law = truth.return_law(*benchmark_points.evaluation_points("uniform-gaussian"), PAIR.target)
    rng = np.random.default_rng(0)
    atoms = law.sample(30, rng)[0]
    at_atoms, norm = law.embed(atoms, kernel), law.squared_norm(kernel)

    def expanded(weights, gram):
        own = np.einsum("ni,ij,nj->n", weights, gram, weights)
        return own - 2 * np.einsum("ni,ni->n", weights, at_atoms) + norm

    # All three terms on the same frequencies: equal but for rounding.
    waves = np.exp(1j * atoms @ frequencies(kernel, 3, 2**14).T)
    gram = kernel.sigma**2 / 2**14 * (waves @ waves.conj().T).real
    weights = rng.standard_normal((10, 30))
    np.testing.assert_allclose(
        law.rkhs_error(weights, atoms, kernel) ** 2, expanded(weights, gram), rtol=1e-8
    )
    # With the kernel itself: but for the quadrature.
    weights = rng.dirichlet(np.ones(30), 10)
    square = expanded(weights, kernel(atoms, atoms))
    np.testing.assert_allclose(law.rkhs_error(weights, atoms, kernel) ** 2, square, atol=1e-4)


def test_rkhs_error__of_independent_returns_falls_as_their_number_grows():
    """For the mean of n sections E‖μ̂ − μ‖² = (σ² − ‖μ‖²)/n."""
    kernel = PAIR.settings.kernel
    state, action = (
        np.repeat(part[:1], 200, axis=0) for part in benchmark_points.evaluation_points("uniform-gaussian")
    )
    law = truth.return_law(state, action, PAIR.target)
    samples = law.sample(25, np.random.default_rng(3))
    one = truth.return_law(state[:1], action[:1], PAIR.target)
    weights = np.full((1, 25), 1 / 25)
    squares = [one.rkhs_error(weights, sample, kernel, 2**11)[0] ** 2 for sample in samples]
    expected = (kernel.sigma**2 - law.squared_norm(kernel)) / 25
    assert np.mean(squares) == pytest.approx(expected, abs=4 * np.std(squares) / np.sqrt(200))


def test_rkhs_error__wrong_shapes():
    law = truth.return_law(*benchmark_points.evaluation_points("uniform-gaussian"), PAIR.target)
    with pytest.raises(ValueError, match=r"expected \(10, m\) and \(m, 3\)"):
        law.rkhs_error(np.ones((9, 4)), np.ones((4, 3)), PAIR.settings.kernel)


# A cell.


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A small fit as a cell makes it, with its store."""
    store = simulation.write(tmp_path_factory.mktemp("cell") / "data", PAIR, 490, seed=0)
    model = KEDRL(**comparison.parameters_of("uniform-gaussian", "auto", 0, **FAST))
    return model.fit(store, PAIR.target, progress="none"), store


@pytest.mark.slow
def test_unshifted_risk__is_the_formula_without_h_and_g(fitted):
    model, _ = fitted
    state, action = benchmark_points.evaluation_points("uniform-gaussian")
    blocks = model.operator_blocks(state, action)
    gram = model.return_kernel_(model.grid_, model.grid_)
    expected = [
        (model.coefficients_.T @ (k - phi)) @ gram @ (model.coefficients_.T @ (k - phi))
        for k, phi in zip(blocks.k_L, blocks.Phi, strict=True)
    ]
    np.testing.assert_allclose(comparison.unshifted_risk(model, state, action), expected, rtol=1e-8)


@pytest.mark.slow
def test_compare__metrics_are_those_of_the_fit(fitted, tmp_path):
    model, _ = fitted
    parameters = comparison.parameters_of("uniform-gaussian", "auto", 0, **FAST)
    result = comparison.compare(tmp_path, "uniform-gaussian", "auto", 0, 490, parameters, monte_carlo=2)
    state, action = benchmark_points.evaluation_points("uniform-gaussian")
    law = truth.return_law(state, action, PAIR.target)
    at = truth.evaluation_grid(law)
    error = model.embed(state, action, at=at) - law.embed(at, PAIR.settings.kernel)
    np.testing.assert_allclose(result["rmse"], np.sqrt((error**2).mean(axis=1)), rtol=1e-6)
    np.testing.assert_allclose(result["bellman_risk"], model.bellman_risk(state, action), rtol=1e-4)
    assert set(result) == {*comparison.POINT_METRICS, "fit", "monte_carlo"}
    assert set(result["fit"]) == set(comparison.FIT_METRICS)
    assert result["fit"]["ratio_correlation"] is None
    json.dumps(result, allow_nan=False)


@pytest.mark.slow
def test_compare__monte_carlo_spreads_around_the_closed_form(fitted):
    model, _ = fitted
    state, action = (part[:3] for part in benchmark_points.evaluation_points("uniform-gaussian"))
    law = truth.return_law(state, action, PAIR.target)
    at = truth.evaluation_grid(law, n=20)
    estimate = model.embed(state, action, at=at)
    rng = np.random.default_rng(0)
    repeats = comparison.repeated_monte_carlo(estimate, law, at, model, 8, rng)
    closed = truth.embedding_errors(estimate, law.embed(at, model.return_kernel_))
    assert repeats["bias"].shape == (8, 3)
    spread = repeats["bias"].std(axis=0, ddof=1)
    assert (spread > 0).all()
    assert (np.abs(repeats["bias"].mean(axis=0) - closed["bias"]) < 5 * spread / np.sqrt(8)).all()


def test_prepare__paper_grid_is_made_of_rewards(fitted):
    _, store = fitted
    parameters = comparison.parameters_of("uniform-gaussian", "paper", 0, n_atoms=20)
    model = profiles.prepare(KEDRL(**parameters), "paper", store)
    reward = store.transitions().reward
    assert model.grid.shape == (20, 3)
    assert (model.grid >= reward.min(axis=0)).all()
    assert (model.grid <= reward.max(axis=0)).all()
    # Each centre is the mean of the rewards nearest to it.
    nearest = np.argmin(((reward[:, None] - model.grid) ** 2).sum(axis=2), axis=1)
    means = np.stack([reward[nearest == k].mean(axis=0) for k in range(20)])
    np.testing.assert_allclose(means, model.grid, atol=0.05)
    given = KEDRL(**parameters | {"grid": np.zeros((2, 3))})
    assert len(profiles.prepare(given, "paper", store).grid) == 2
    assert profiles.prepare(KEDRL(0.7), "auto", store).grid is None


# Tables, figures, the command.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two profiles, two replicates, as small as can be."""
    output = tmp_path_factory.mktemp("study") / "output"
    given = SMALL | {"profiles": ("auto", "paper-exact"), "ratio": None}
    outcome = study.run(output, replicates=2, monte_carlo=3, **given)
    assert not outcome.records.failed
    return outcome, output, given


@pytest.mark.slow
def test_run__files(finished):
    _, output, _ = finished
    expected = {"study.json", "cells", "points.csv", "fits.csv", "results.zarr", "summary.json", "plots"}
    assert {entry.name for entry in output.iterdir()} == expected
    drawn = {"errors", "points_uniform-gaussian"}
    drawn |= {f"monte_carlo_uniform-gaussian_{profile}" for profile in ("auto", "paper-exact")}
    assert {path.stem for path in (output / "plots").iterdir()} == drawn


@pytest.mark.slow
def test_run__tables_hold_the_records(finished):
    outcome, output, _ = finished
    table = pd.read_csv(output / "points.csv")
    assert len(table) == 2 * 2 * 10
    stored = xr.open_zarr(output / "results.zarr", consolidated=False).load()
    assert stored["rmse"].dims == ("pair", "profile", "replicate", "point")
    assert stored["criterion"].dims == ("pair", "profile", "replicate")
    for cell, result in outcome.records.done:
        where = dict(cell.labels)
        np.testing.assert_allclose(stored["rmse"].sel(where), result["rmse"])
        rows = table[(table["profile"] == where["profile"]) & (table["replicate"] == where["replicate"])]
        np.testing.assert_allclose(rows["mmd"], result["mmd"])
        assert float(stored["criterion"].sel(where)) == pytest.approx(result["fit"]["criterion"])
    assert np.isnan(stored["ratio_correlation"].sel(profile="auto")).all()
    assert np.isfinite(stored["ratio_correlation"].sel(profile="paper-exact")).all()


@pytest.mark.slow
def test_run__summary_averages_replicates_then_points(finished):
    outcome, _, _ = finished
    first = outcome.summary["results"][0]
    of_profile = [result for cell, result in outcome.records.done if cell.labels["profile"] == "auto"]
    at_points = np.mean([result["rmse"] for result in of_profile], axis=0)
    assert first["points"]["rmse"]["mean"] == pytest.approx(at_points.mean())
    assert first["points"]["rmse"]["std"] == pytest.approx(at_points.std(ddof=1))
    assert first["replicates"] == 2
    assert first["rmse_over_paper"] == pytest.approx(at_points.mean() / 0.0255)


@pytest.mark.slow
def test_run__again_computes_nothing_and_more_replicates_only_those(finished):
    outcome, output, given = finished
    again = study.run(output, replicates=2, monte_carlo=3, draw=False, **given)
    assert again.summary["computed"] == 0
    assert again.summary["results"] == outcome.summary["results"]
    fewer = study.run(output, replicates=1, monte_carlo=3, draw=False, **given)
    assert fewer.summary["cells"] == 2
    more = study.run(output, replicates=3, monte_carlo=3, draw=False, **given | {"profiles": ("auto",)})
    assert (more.summary["cells"], more.summary["computed"]) == (3, 1)


@pytest.mark.slow
def test_tables__missing_cells_are_nan(finished):
    outcome, _, _ = finished
    records = runner.Records(outcome.records.done[:3], {}, 3)
    found = tables.dataset(
        tables.points_table(records), tables.fits_table(records), study.LABELS, "three of four"
    )
    assert found.sizes == {"pair": 1, "profile": 2, "replicate": 2, "point": 10}
    assert int(np.isnan(found["rmse"]).sum()) == 10


@pytest.mark.slow
def test_figures__show_every_box(finished):
    outcome, _, _ = finished
    figure = figures.errors(outcome.tables["points"])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["auto", "paper-exact"]
    assert figure.axes[0].get_title() == "Uniform→Gaussian"
    repeats = outcome.records.done[0][1]["monte_carlo"]
    drawn = figures.monte_carlo(repeats, "uniform-gaussian", "auto")
    assert [axes.get_title() for axes in drawn.axes] == ["RMSE", "MAE", "Bias"]
    assert len(drawn.axes[0].patches) == 10


@pytest.fixture
def small(monkeypatch):
    """Make the command's studies small."""
    run = study.run

    def run_small(output, **options):
        return run(output, **(options | FAST | {"transitions": 490}))

    monkeypatch.setattr(study, "run", run_small)


ONE = ["--pairs", "uniform-gaussian", "--profiles", "auto", "--replicates", "1", "--monte-carlo", "0"]
ONE += ["--workers", "0", "--no-plots"]


@pytest.mark.slow
def test_command__table_beside_the_paper(small, tmp_path, capsys):
    assert cli.main(["study", "simulation", "--output", str(tmp_path / "out"), *ONE]) == 0
    out = capsys.readouterr().out
    for part in (
        "the paper",
        "0.0255 (0.0114)",
        "0.0116 (0.0099)",
        "auto",
        "1 cells, 1 of them computed now",
    ):
        assert part in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "…" not in out


@pytest.mark.slow
def test_command__json(small, tmp_path, capsys):
    arguments = ["study", "simulation", "--json", "--output", str(tmp_path / "out"), *ONE]
    assert cli.main(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["results"][0]["paper"]["rmse"] == {"mean": 0.0255, "deviation": 0.0114}
    assert math.isfinite(summary["results"][0]["points"]["mmd"]["mean"])


@pytest.mark.slow
def test_command__failed_cell(small, tmp_path, capsys, monkeypatch):
    compute = comparison.compare

    def fail_once(work, **given):
        if given["replicate"] == 1:
            raise ArithmeticError("no luck")
        return compute(work, **given)

    monkeypatch.setattr(study, "compare", fail_once)
    arguments = ["study", "simulation", "--output", str(tmp_path / "out"), *ONE, "--replicates", "2"]
    assert cli.main(arguments) == 3
    assert "uniform-gaussian_auto_1_" in (err := capsys.readouterr().err)
    assert "failed: ArithmeticError: no luck" in err
    assert (tmp_path / "out" / "points.csv").exists()


def test_command__every_cell_failed(tmp_path, capsys):
    arguments = ["study", "simulation", "--output", str(tmp_path / "out"), *ONE, "--transitions", "20"]
    assert cli.main(arguments) == 2
    assert "every cell of the study failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a study"),
        (["simulation"], "required: --output"),
        (["dance"], "invalid choice: 'dance'"),
        (["simulation", "--output", "x", "--pairs", "cauchy"], "invalid choice: 'cauchy'"),
        (["simulation", "--output", "x", "--replicates", "0"], "0 is not a whole number ≥ 1"),
    ],
)
def test_command__bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_command__foreign_directory(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["study", "simulation", "--output", str(tmp_path), *ONE]) == 2
    assert "is not empty and holds no study" in capsys.readouterr().err


@pytest.mark.slow
def test_module__ctrl_c_keeps_finished_cells(tmp_path):
    """The real thing, with worker processes: a signal, one line, and no data left behind."""
    output = tmp_path / "out"
    arguments = ["study", "simulation", "--output", str(output), "--pairs", "uniform-gaussian"]
    arguments += ["--profiles", "auto", "--replicates", "50", "--workers", "1", "--transitions", "490"]
    command = [sys.executable, "-m", "kedrl_dask", *arguments, "--monte-carlo", "0"]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(output.glob("cells/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith("kedrl: interrupted; finished cells are kept")
    assert "Traceback" not in err
    assert {entry.name for entry in output.iterdir()} == {"study.json", "cells"}
    assert len(list(output.glob("cells/*.json"))) >= 1
