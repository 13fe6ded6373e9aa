"""The benchmark of competing methods: those without torch, cells that are kept, tables and the command."""

import json

import numpy as np
import pandas as pd
import pytest

from kedrl_dask.datasets.benchmark.case import Case, FunctionSystem
from kedrl_dask.numerics.policies.families import Gaussian
from kedrl_dask.studies.systems import METRICS
from tests.benchmarks.peers import __main__ as command
from tests.benchmarks.peers import cells, environment, lstd, nearest_rollouts, tables
from tests.benchmarks.peers.problem import Problem, Standard


def linear(state, action, rng):
    reward = np.hstack([state + 0.5 * action, -state]) + 0.1 * rng.standard_normal((len(state), 2))
    return reward, 0.5 * state + 0.3 * action + 0.3 * rng.standard_normal(state.shape)


def out(reached, rng):
    return np.abs(reached[:, 0]) > 1.2


def a_case(ends=None):
    system = FunctionSystem(1, 1, 2, linear, *([ends] if ends else []))
    behaviour, target = Gaussian([[0.0]]), Gaussian([[0.3]], bias=0.2, scale=0.5)
    return Case("tiny", "", system, behaviour, target, 0.7, 20, lambda rng, n: rng.standard_normal((n, 1)))


@pytest.fixture(scope="module")
def judged():
    """A problem with the truth at its inputs."""
    case = a_case()
    return Problem.of_case(case, 4_000, 0), case.truth(0, n_inputs=4, n_returns=1_000)


def test_problem__has_the_transitions_of_the_log():
    case = a_case(out)
    rows, problem = case.log(500, 3), Problem.of_case(case, 500, 3)
    is_last = np.append(np.diff(rows["episode"]) != 0, True)
    assert len(problem.state) == (~is_last | rows["terminated"]).sum()
    assert problem.terminal.sum() == rows["terminated"].sum() > 0
    goes_on = np.flatnonzero(~problem.terminal[:-1])
    same = problem.episode[goes_on] == problem.episode[goes_on + 1]
    np.testing.assert_array_equal(problem.next_state[goes_on[same]], problem.state[goes_on[same] + 1])
    held_out = problem.held_out()
    assert not set(problem.episode[held_out]) & set(problem.episode[~held_out])
    assert 0.05 < held_out.mean() < 0.3


def test_reward_unit__is_that_of_discounted_sums():
    episode = np.repeat([0, 1, 2], 2)
    reward = np.array([[1.0], [2], [3], [0], [-1], [4]])
    given = np.zeros((6, 1)), np.zeros((6, 1)), reward, np.zeros((6, 1))
    ends = episode == 2
    centre, scale = Problem(*given, ends, episode, None, 0.5).reward_unit()
    assert (centre[0], scale[0]) == (0, pytest.approx(np.std([2, 3, 1])))
    centre, scale = Problem(*given, ends & False, episode, None, 0.5).reward_unit()
    assert (centre[0], scale[0]) == (1.5, pytest.approx(np.std([2, 3, 1])))


def test_standard__inverts_and_bears_constants():
    values = np.column_stack([np.arange(5.0), np.ones(5)])
    unit = Standard.of(values)
    np.testing.assert_allclose(unit.back(unit(values)), values)
    np.testing.assert_allclose(unit(values)[:, 1], 0)


@pytest.mark.parametrize("ends", [None, out])
def test_nearest_rollouts__are_near_the_truth(ends, monkeypatch):
    """On average over inputs: what follows a single one is the noise of its five neighbours."""
    monkeypatch.setattr(nearest_rollouts, "MOST_RETURNS", 200)
    case = a_case(ends)
    problem, truth = Problem.of_case(case, 3_000, 0), case.truth(0, n_inputs=24, n_returns=500)
    returns = nearest_rollouts.returns(problem, truth.state, truth.action)
    unit, true = truth.returns.std(axis=1), truth.returns
    assert np.abs(((returns.mean(axis=1) - true.mean(axis=1)) / unit).mean(axis=0)).max() < 0.15
    assert (returns.std(axis=1) / unit).mean() == pytest.approx(1, abs=0.15)


def test_lstd__is_near_the_true_mean(judged, monkeypatch):
    problem, truth = judged
    monkeypatch.setattr(lstd, "N_FEATURES", 30)
    monkeypatch.setattr(lstd, "N_LOSS", 300)
    means = lstd.returns(problem, truth.state, truth.action)
    assert means.shape == (4, 1, 2)
    off = np.abs(means[:, 0] - truth.returns.mean(axis=1)) / truth.returns.std(axis=1)
    assert off.mean() < 0.1


def a_table(**errors):
    """Methods with the same error in all metrics; None for a method without laws."""
    rows = [
        {"system": "ring", "transitions": 10, "replicate": 0, "method": method, "seconds": 1.0}
        | dict.fromkeys(METRICS, np.nan if error is None else error)
        for method, error in errors.items()
    ]
    return pd.DataFrame(rows)


def test_tables__tell_losses_as_well_as_wins():
    peers, ours = a_table(nearest=0.2, lstd=None), a_table(kedrl=0.3).drop(columns="method")
    found = tables.means(tables.with_ours(peers, ours.assign(refused=True)))
    text = tables.text_table(found)
    assert [row[2] for row in text.rows] == ["kedrl (refused 100%)", "nearest", "lstd"]
    assert text.rows[1][3] == "[bold]0.200[/bold]"
    assert text.rows[2][3:8] == ("–",) * 5
    line, last = tables.summary(found)
    assert "CVaR nearest 0.200 (loss; kedrl 0.300, place 2 of 2)" in line
    assert last == "kedrl is best in CVaR 0, in quantiles 0 of 1"
    better = tables.means(tables.with_ours(peers, ours.assign(cvar=0.1)))
    line, last = tables.summary(better)
    assert "CVaR kedrl 0.100 (win; next nearest 0.200); quantiles nearest 0.200 (loss;" in line
    assert last == "kedrl is best in CVaR 1, in quantiles 0 of 1"


def test_tables__without_ours_name_the_best():
    found = tables.means(a_table(nearest=0.2, other=0.1))
    assert tables.summary(found) == ["ring, N = 10: CVaR other 0.100; quantiles other 0.100"]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (a_table(x=1.0).drop(columns="cvar"), "no column cvar"),
        (a_table(x=1.0).assign(replicate=7), "no cell"),
    ],
)
def test_tables__refuse_what_cannot_be_compared(ours, message):
    with pytest.raises(ValueError, match=message):
        tables.with_ours(a_table(nearest=0.2), ours)


@pytest.fixture
def computed(monkeypatch):
    """Cells that are made up, and the names of those that were computed."""
    names = []

    def evaluate(system, size, replicate, method):
        if method == "quantile-fqe":
            raise RuntimeError("no torch")
        names.append(method)
        return {**dict.fromkeys(METRICS, 0.5), "energy": None, "seconds": 2.0}

    monkeypatch.setattr(cells, "evaluate", evaluate)
    return names


def test_run__keeps_finished_cells_and_goes_on_after_failures(computed, tmp_path, capsys):
    chosen = ["--output", str(tmp_path), "--systems", "ring", "--methods", "lstd"]
    assert command.main(chosen) == 0
    assert command.main([*chosen, "quantile-fqe", "nearest-rollouts"]) == 1
    assert computed == ["lstd", "nearest-rollouts"]
    shown = capsys.readouterr()
    assert "ring_15000_0_quantile-fqe failed: RuntimeError: no torch" in shown.err
    assert "ring, N = 15,000: CVaR lstd 0.500" in shown.out
    table = pd.read_csv(tmp_path / "peers.csv")
    assert table["method"].tolist() == ["lstd", "nearest-rollouts"]
    assert table["energy"].isna().all()


def test_command__shows_ours_where_the_study_has_the_same_cell(computed, tmp_path, capsys):
    ours = a_table(kedrl=0.4).drop(columns="method").assign(transitions=15_000, refused=False)
    ours.to_csv(tmp_path / "errors.csv", index=False)
    chosen = ["--output", str(tmp_path), "--systems", "ring", "counts", "--methods", "lstd"]
    assert command.main([*chosen, "--kedrl", str(tmp_path / "errors.csv")]) == 0
    shown = capsys.readouterr().out
    assert "1 cells that" in shown
    assert "ring, N = 15,000: CVaR kedrl 0.400 (win; next lstd 0.500)" in shown


def test_evaluate__leaves_out_what_a_method_does_not_answer(monkeypatch, judged):
    problem, truth = judged
    monkeypatch.setattr(cells, "given", lambda *labels: (problem, truth))
    monkeypatch.setattr(lstd, "returns", lambda *given: truth.returns[:, :1])
    found = json.loads(json.dumps(cells.evaluate("ring", 10, 0, "lstd")))
    assert [name for name in METRICS if found[name] is not None] == ["mean"]
    assert cells.METHODS["quantile-fqe"].answers(1) == tuple(METRICS)
    assert cells.METHODS["quantile-fqe"].answers(2) == ("mean", "quantiles", "cvar")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--systems", "rings"], "systems: 'rings' is not one of nonlinear"),
        (["--methods", "td"], "methods: 'td' is not one of fitted-likelihood"),
        (["--kedrl", "nowhere.csv"], "nowhere.csv is not a file"),
    ],
)
def test_command__bad_options_are_a_clear_error(given, message, tmp_path, capsys):
    assert command.main(["--output", str(tmp_path / "out"), *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_command__runs_the_same_options_in_the_environment(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(environment, "prepare", lambda path: path / "python")
    monkeypatch.setattr(
        environment, "run_in", lambda python, arguments: calls.append((python, arguments)) or 0
    )
    given = ["--output", str(tmp_path), "--systems", "ring", "--sizes", "5", "6", "--replicates", "2"]
    assert command.main([*given, "--environment", str(tmp_path / "env")]) == 0
    ((python, arguments),) = calls
    assert python == tmp_path / "env" / "python"
    same = vars(command.make_parser().parse_args(arguments))
    assert same == vars(command.make_parser().parse_args(given))


def test_environment__does_not_take_another_directory(tmp_path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ValueError, match="not empty and no environment"):
        environment.prepare(tmp_path)
