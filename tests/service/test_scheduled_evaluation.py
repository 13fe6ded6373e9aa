"""``kedrl evaluate``: what is new is done, nothing is done twice, and nothing is left half done."""

from __future__ import annotations

import fcntl
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from kedrl_dask import KEDRL, TransitionStore, results
from kedrl_dask.cli import main
from kedrl_dask.comparison.drift import Change, compare_results
from kedrl_dask.service.schedule import Thresholds, load_schedule
from kedrl_dask.service.scheduled_evaluation import due, evaluate
from tests.conftest import make_episodes

pytestmark = pytest.mark.filterwarnings("ignore:reward and continuation", "ignore:coefficients sum")

CONFIG = """
data = "store"
discount = 0.6

[policies.first]
family = "gaussian"
weights = [[0.2], [-0.1]]
bias = 0.1
scale = 0.3

[policies.second]
family = "uniform"
weights = [[0.1], [0.1]]
half_width = 0.5

[settings]
centring = "none"
n_atoms = 12
n_basis = 16
n_landmarks = 24
n_features = 24
n_blocks = 5
n_conditioning = 40
precision = "double"
input_kernel = { nu = 2.5, length_scale = 2.5 }

[evaluate]
output = "out"
states = [[0.0, 0.0], [0.5, -0.5]]
actions = [[0.1], [0.0]]
replicates = 3
keep = 2
accept = ["accuracy", "coverage", "separation", "mass", "recovery"]
"""
BASE, MORE = 20, 2
#: Answers of one policy where two are not the point, and without intervals.
ONE = CONFIG.replace(CONFIG[CONFIG.index("[policies.second]") : CONFIG.index("[settings]")], "")
PLAIN = ONE.replace("replicates = 3", "replicates = 0")


def rows(start, stop, shift=0.0):
    data = make_episodes(stop, 9, seed=3)
    which = data["episode"] >= start
    data["reward"] = data["reward"] + shift
    return {name: values[which] for name, values in data.items()}


@pytest.fixture(scope="module")
def first_rows(tmp_path_factory):
    """A store that no test changes."""
    path = tmp_path_factory.mktemp("data") / "store"
    return TransitionStore.from_arrays(path, **rows(0, BASE), chunk_rows=64).path


@pytest.fixture
def config(tmp_path, first_rows):
    shutil.copytree(first_rows, tmp_path / "store")
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path / "config.toml"


def append(config, start, stop, shift=0.0):
    with TransitionStore.open(config.parent / "store").appender() as writer:
        writer.append(**rows(start, stop, shift))


def run(config, capsys, *options):
    code = main(["evaluate", str(config), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_evaluate__new_appended_unchanged_and_retained(config, capsys):
    """The life of an evaluation: first, again, after appending, and the oldest result goes."""
    output = config.parent / "out"
    code, first = run(config, capsys, "--dry-run")
    assert code == 0
    assert first["reasons"] == ["there is no earlier result"]
    assert first["policies"] == ["first", "second"]
    assert not output.exists()

    code, first = run(config, capsys)
    assert code == 0
    assert first["evaluated"]
    assert not first["incremental"]
    folder = output / "results" / first["name"]
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.toml", "models", "report.html", "results.zarr", "summary.json"]
    assert KEDRL.load(folder / "models" / "second").n_atoms == 12
    assert list(results.read_zarr(folder / "results.zarr")["policy"].values) == ["first", "second"]
    assert "This is the first result" in (folder / "report.html").read_text()

    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))
    assert main(["evaluate", str(config)]) == 0
    assert f"Nothing to do: data and settings are as in {folder}" in capsys.readouterr().out
    assert before == sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))

    append(config, BASE, BASE + MORE)
    code, again = run(config, capsys, "--dry-run")
    assert (code, again["incremental"], again["design_rows"]) == (0, True, BASE * 9)
    code, second = run(config, capsys)
    assert code in (0, 5)
    assert second["incremental"]
    assert second["reasons"] == [f"{MORE * 9} rows were appended"]
    assert second["drift"]["since"] == first["name"]
    assert {change["subject"] for change in second["drift"]["changes"]} == {"first", "second", "data"}
    assert "Compared with" in (output / "results" / second["name"] / "report.html").read_text()
    _equals_a_full_fit(config, output / "results" / second["name"])

    append(config, BASE + MORE, BASE + MORE + 2, shift=5.0)
    code, third = run(config, capsys)
    assert code == 5
    assert any("data: mean of reward" in alert for alert in third["drift"]["alerts"])
    kept = sorted(path.name for path in (output / "results").iterdir())
    assert kept == [second["name"], third["name"]]
    code, _ = run(config, capsys)
    assert code == 0


def _equals_a_full_fit(config, folder):
    """The same design and rows, with no cache."""
    schedule = load_schedule(config)
    store = TransitionStore.open(schedule.config.data).grown_from(BASE * 9)
    for name, policy in schedule.config.policies.items():
        expected = schedule.config.model().fit(store, policy, progress="none")
        found = KEDRL.load(folder / "models" / name)
        np.testing.assert_array_equal(found.grid_, expected.grid_)
        asked = {"state": schedule.state, "action": schedule.action, "at": expected.grid_}
        values = expected.embed(**asked)
        np.testing.assert_allclose(found.embed(**asked), values, rtol=0, atol=1e-8 * np.abs(values).max())


@pytest.mark.slow
def test_evaluate__settings_changed_and_data_replaced(config, capsys):
    schedule = load_schedule(config)
    config.write_text(PLAIN)
    assert run(config, capsys)[0] == 0
    changed = ONE.replace("replicates = 3", "replicates = 2").replace("scale = 0.3", "scale = 0.4")
    config.write_text(changed)
    found = due(load_schedule(config))
    assert found.reasons == ("policies changed: first", "answers changed: replicates")
    config.write_text(ONE.replace("n_atoms = 12", "n_atoms = 13"))
    append(config, BASE, BASE + MORE)
    found = due(load_schedule(config))
    assert "settings changed: n_atoms" in found.reasons
    assert not found.is_incremental  # another design
    config.write_text(ONE.replace("replicates = 3", "replicates = 0\nredesign = 0.05"))
    assert not due(load_schedule(config)).is_incremental  # it has grown by a tenth
    config.write_text(PLAIN)
    assert due(load_schedule(config)).is_incremental
    shutil.rmtree(schedule.config.data)
    TransitionStore.from_arrays(schedule.config.data, **rows(1, BASE + 2), chunk_rows=64)
    found = due(load_schedule(config))
    assert found.reasons == ("the data were replaced",)
    assert not found.is_incremental
    assert found.n_checked == 0


@pytest.mark.slow
def test_evaluate__killed_in_the_middle_is_begun_again(config, capsys, monkeypatch):
    config.write_text(PLAIN)
    schedule = load_schedule(config)

    def killed(*_):
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("kedrl_dask.service.scheduled_evaluation._described", killed)
        with pytest.raises(SystemExit):
            evaluate(schedule, progress="none")
    output = schedule.output
    assert not (output / "results").exists()
    leftovers = [output / ".partial-0", output / "results" / ".20260101T000000Z.0.partial"]
    for path in leftovers:
        path.mkdir(parents=True)
    seen = []
    monkeypatch.setattr("kedrl_dask.estimator.fit.streaming.write_block", lambda *_: seen.append(1))
    code, found = run(config, capsys)
    assert code == 0
    assert not seen  # all sums were found
    assert not any(path.exists() for path in leftovers)
    assert [path.name for path in (output / "results").iterdir()] == [found["name"]]


def test_evaluate__one_at_a_time(config, capsys):
    output = config.parent / "out"
    output.mkdir()
    with (output / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["evaluate", str(config)]) == 7
    assert "is in use by" in capsys.readouterr().err
    assert not (output / "results").exists()


def test_evaluate__refused_answers_are_remembered(config, capsys, monkeypatch):
    text = PLAIN.replace('accept = ["accuracy", "coverage", "separation", "mass", "recovery"]', "accept = []")
    config.write_text(text.replace("n_atoms = 12", "n_atoms = 3"))
    assert main(["evaluate", str(config)]) == 6
    said = capsys.readouterr().out
    assert "refused, because it would mislead" in said
    assert "coverage" in said
    assert not (config.parent / "out" / "results").exists()
    monkeypatch.setattr(
        "kedrl_dask.service.scheduled_evaluation._evaluate", lambda *_: pytest.fail("computed again")
    )
    assert main(["evaluate", str(config)]) == 6
    assert capsys.readouterr().out == said


def test_evaluate__damaged_data_are_refused(config, capsys):
    (file,) = (config.parent / "store" / "reward" / "c").glob("2/0")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert main(["evaluate", str(config)]) == 2
    assert "array reward, chunk 2" in capsys.readouterr().err


LINES = CONFIG.splitlines()


def line_of(text):
    return 1 + next(i for i, line in enumerate(LINES) if text in line)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('output = "out"', "", "the key 'evaluate.output' is missing"),
        ('output = "out"', "output = 3", "the key 'evaluate.output' must be a path, as text, got 3"),
        ("replicates = 3", "replicate = 3", "unknown key 'evaluate.replicate'; did you mean 'replicates'"),
        ("replicates = 3", "replicates = 1", "must be a whole number, 0 or from 2 to 100,000, got 1"),
        ("replicates = 3", "interval = 1.0", "strictly between 0 and 1, got 1.0"),
        ("replicates = 3", "average = 1", "must be true or false, got 1"),
        ("keep = 2", "keep = 0", "must be a number of results ≥ 1, got 0"),
        ("keep = 2", "drift = { means = 1 }", "unknown key 'evaluate.drift.means'; did you mean 'mean'"),
        ("keep = 2", "drift = { mean = 0 }", "the key 'evaluate.drift.mean' must be above 0"),
        ("keep = 2", 'accept = ["all"]\n[x]', "'all' is not the code of a finding"),
        ("actions = [[0.1], [0.0]]", "actions = [[0.1]]", "1 rows of actions for 2 rows of states"),
        ("actions = [[0.1], [0.0]]", 'inputs = "a.csv"', "give either 'evaluate.inputs'"),
        (
            "states = [[0.0, 0.0], [0.5, -0.5]]",
            "states = [[0.0], [0.5, 1]]",
            "numbers of equal length",
        ),
        ("states = [[0.0, 0.0], [0.5, -0.5]]", "states = [[nan, 0.0]]", "expected finite numbers"),
        ("[policies.second]", '[policies."../x"]', "policy name '../x'"),
        (
            "half_width = 0.5",
            "half_width = -0.5",
            r"\[policies.second\] Uniform: half_width must be",
        ),
        ("half_width = 0.5", 'file = "p.json"', "'policies.second.family' cannot be combined with"),
        ("n_blocks = 5", "n_blocks = 0", r"\[settings\] KEDRL: n_blocks must be"),
        ("nu = 2.5", "mu = 2.5", "unknown key 'settings.input_kernel.mu'"),
        ("discount = 0.6", "discount = 2.0", r"\[settings\] KEDRL: discount must lie"),
    ],
)
def test_load_schedule__errors_name_file_line_and_key(config, old, new, message):
    text = CONFIG.replace(old, new, 1)
    if "[x]" in new:
        text = text.replace("[x]\n", "").replace(LINES[-1] + "\n", "")
    config.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_schedule(config)
    line = line_of("[evaluate]") if "missing" in message or "either" in message else line_of(old)
    if "cannot be combined with" in message:
        line = line_of('family = "uniform"')
    assert str(caught.value).startswith(f"{config}: line {line}: ")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_load_schedule__inputs_from_a_table(config, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": [0.1, 0.2], "y": [1.0, 2.0], "x": [3, 4], "name": ["u", "v"]})
    path = config.parent / f"inputs{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    keys = f'inputs = "{path.name}"\nstate_columns = ["x", "y"]\n'
    arrays = "states = [[0.0, 0.0], [0.5, -0.5]]\nactions = [[0.1], [0.0]]\n"
    config.write_text(CONFIG.replace(arrays, keys))
    found = load_schedule(config)
    np.testing.assert_array_equal(found.state, [[3, 1], [4, 2]])
    assert found.action is None
    config.write_text(CONFIG.replace(arrays, keys + 'action_columns = ["a"]\n'))
    np.testing.assert_array_equal(load_schedule(config).action, [[0.1], [0.2]])
    for columns, message in (
        ('["z"]', "has no column 'z'; it has a, y, x, name"),
        ('["name"]', "expected numbers"),
    ):
        config.write_text(CONFIG.replace(arrays, keys.replace('["x", "y"]', columns)))
        with pytest.raises(ValueError, match=message) as caught:
            load_schedule(config)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_load_schedule__inputs_encoded_like_the_table_of_the_data(config, suffix):
    """Levels, missing values and actions in the columns that were ingested, in any order, among others."""
    frame = pd.DataFrame(
        {"who": [1, 1, 2, 2], "when": [0, 1, 0, 1], "age": [30.0, 31.0, np.nan, 52.0]}
        | {"town": ["Bern", "Lyon", "Lyon", None], "dose": [0.1, 0.2, 0.3, 0.4], "gain": [1.0, 2.0, 3.0, 4.0]}
    )
    columns = {"episode": "who", "step": "when", "state": ["age", "town"], "action": "dose", "reward": "gain"}
    TransitionStore.from_table(
        config.parent / "ingested", frame, columns, categorical=["town"], missing="impute", progress="none"
    )
    asked = pd.DataFrame(
        {"town": ["Lyon", "Rome", None], "note": ["a", "b", "c"], "age": [40.0, np.nan, 50.0]}
    )
    path = config.parent / f"inputs{suffix}"

    def load(asked, extra=""):
        asked.to_csv(path, index=False) if suffix == ".csv" else asked.to_parquet(path)
        arrays = "states = [[0.0, 0.0], [0.5, -0.5]]\nactions = [[0.1], [0.0]]\n"
        text = CONFIG.replace(arrays, f'inputs = "{path.name}"\n{extra}').replace("store", "ingested", 1)
        config.write_text(text)
        return load_schedule(config)

    encoding = TransitionStore.open(config.parent / "ingested").encoding
    found = load(asked)
    np.testing.assert_array_equal(found.state, encoding.encode("state", asked))
    assert encoding.names("state") == ("age", "age is missing", "town=Bern", "town=Lyon", "town is missing")
    np.testing.assert_array_equal(found.state[:, 1:], [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    assert found.action is None
    np.testing.assert_array_equal(load(asked.assign(dose=[0.5, 0.6, 0.7])).action, [[0.5], [0.6], [0.7]])
    with pytest.raises(ValueError, match="has no column 'age'") as caught:
        load(asked.drop(columns="age"))
    assert str(path) in str(caught.value)
    with pytest.raises(ValueError, match=r"'evaluate.action_columns' cannot be combined with"):
        load(asked, 'action_columns = ["dose"]\n')


def test_load_schedule__inputs_without_columns_need_an_ingested_table(config):
    arrays = "states = [[0.0, 0.0], [0.5, -0.5]]\nactions = [[0.1], [0.0]]\n"
    config.write_text(CONFIG.replace(arrays, 'inputs = "inputs.csv"\n'))
    with pytest.raises(ValueError, match=r"'evaluate.state_columns' is missing.*not ingested from a table"):
        load_schedule(config)


def test_drift__shifts_in_deviations_of_the_last_law():
    import xarray as xr

    def dataset(mean, sd, findings=()):
        shape = ("policy", "input", "coordinate")
        mean, sd = np.array([mean]), np.array([sd])
        return xr.Dataset(
            {
                "mean": (shape, mean),
                "cvar": (shape, mean - 1),
                "quantile": ((*shape, "level"), np.stack([mean - 1, mean], axis=-1)),
                "sd": (shape, sd),
            },
            coords={"policy": ["p"], "input": [0, 1], "coordinate": [0, 1], "level": [0.1, 0.5]},
            attrs={"findings": json.dumps(list(findings))},
        )

    last = dataset([[0.0, 1.0], [2.0, 3.0]], [[1.0, 1.0], [2.0, 0.5]])
    finding = {"subject": "p", "code": "mass", "severity": "refuse", "sentence": "they sum to 2"}
    now = dataset([[0.1, 1.0], [2.0, 3.2]], [[1.0, 1.0], [2.0, 0.5]], [finding])
    data = (
        {"rows": 100, "episodes": 10, "columns": {"reward": {"mean": [1.0], "std": [2.0]}}},
        {"rows": 110, "episodes": 14, "columns": {"reward": {"mean": [1.5], "std": [2.0]}}},
    )
    drift = compare_results("before", last, now, data, Thresholds())
    found = {change.what: round(change.shift, 9) for change in drift.changes}
    assert found == {
        "mean of reward 1 in 10 appended rows": 2.75,  # (110·1.5 − 100)/10 is 6.5
        "mean of return 2 at input 2": 0.4,
        "quantile 0.1 of return 2 at input 2": 0.4,
        "cvar of return 2 at input 2": 0.4,
    }
    assert drift.changes[0].threshold == 0.25 + 2 / 4**0.5
    assert [change.is_alert for change in drift.changes] == [True, True, False, False]
    assert len(drift.alerts) == 3
    assert drift.alerts[-1] == "new finding: p: mass: they sum to 2"
    other = now.assign_coords(input=[0, 2])
    assert "the inputs have changed" in compare_results("before", last, other, None, Thresholds()).remark
    assert Change("p", "x", float("nan"), 1.0).is_alert
