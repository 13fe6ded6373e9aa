"""Tables as stores: every format and order of rows gives the same store; errors name file, row and column."""

from __future__ import annotations

import gzip
import json
import os
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.cli import main
from kedrl_dask.engine.data.encoding import Encoding, StateColumn, level_text
from kedrl_dask.engine.data.transition_store import DataError
from kedrl_dask.engine.ingest import external_sort, readers
from kedrl_dask.engine.ingest.first_pass import ExactSum
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.estimator.fitted.findings import CODES

COLUMNS = {
    "episode": "id",
    "step": "t",
    "state": ["x", "k", "town", "open"],
    "action": "a",
    "reward": ["r1", "r2"],
    "terminated": "done",
    "truncated": "cut",
}
OPTIONS = {"columns": COLUMNS, "categorical": ["town"], "missing": "impute", "progress": "none"}


def make_table(n_episodes=60, seed=0, missing=0.01):
    """Mixed types in the order of episodes and steps, one in a hundred values of two columns missing."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 12, n_episodes)
    n = lengths.sum()
    episode = np.repeat(np.arange(n_episodes) * 3 - 7, lengths)
    last = np.append(episode[1:] != episode[:-1], True)
    frame = pd.DataFrame(
        {
            "id": episode,
            "t": np.concatenate([np.arange(length) for length in lengths]),
            "x": 1e3 + 50 * rng.normal(size=n),
            "k": rng.integers(0, 9, n),
            "town": rng.choice(["Bern", "Lyon", "Genève", "St. Gallen, CH"], n),
            "open": rng.random(n) < 0.5,
            "a": rng.normal(size=n),
            "r1": rng.normal(size=n),
            "r2": rng.exponential(size=n),
            "done": last & (rng.random(n) < 0.5),
        }
    )
    frame["cut"] = last & ~frame["done"]
    frame["name"] = [f"user {number:03}" for number in episode + 7]
    frame["day"] = pd.Timestamp("2020-02-28") + pd.to_timedelta(frame["t"] * 7.5, unit="h")
    frame.loc[rng.random(n) < missing, "x"] = np.nan
    frame.loc[rng.random(n) < missing, "town"] = None
    return frame


def shuffled(frame, seed=1):
    return frame.sample(frac=1.0, random_state=seed)


def literal_arrays(frame):
    """What the table means, column by column: the oracle."""
    frame = frame.sort_values(["id", "t"])
    x, towns = frame["x"], sorted(frame["town"].dropna().unique())
    present = x.dropna()
    mean = float(sum(map(Fraction, present), Fraction()) / len(present))
    state = [x.fillna(mean), x.isna(), frame["k"], *(frame["town"] == town for town in towns)]
    state += [frame["town"].isna(), frame["open"]]
    return {
        "state": np.stack([np.asarray(column, dtype=float) for column in state], axis=1),
        "action": frame[["a"]].to_numpy(),
        "reward": frame[["r1", "r2"]].to_numpy(),
        "episode": frame["id"].to_numpy(),
        "step": frame["t"].to_numpy(),
        "terminated": frame["done"].to_numpy(),
    }


def write(frame, path):
    """The table in the format that the name of the file tells; of a directory, in partitions."""
    name = path.name
    if name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    elif name.endswith(".csv"):
        frame.to_csv(path, index=False)
    elif name.endswith(".tsv"):
        frame.to_csv(path, index=False, sep="\t")
    elif name.endswith(".parquet"):
        frame.to_parquet(path, row_group_size=97)
    elif name.endswith(".feather"):
        frame.reset_index(drop=True).to_feather(path)
    elif name == "parts":
        frame.to_parquet(path, partition_cols=["k"])
    else:
        path.mkdir()
        for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
            frame.iloc[part].to_csv(path / f"{i}.csv", index=False)
    return path


@pytest.fixture(scope="module")
def frame():
    return make_table()


@pytest.fixture(scope="module")
def expected(tmp_path_factory, frame):
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("e") / "store", **literal_arrays(frame))


NAMES = ["a.csv", "a.csv.gz", "a.tsv", "a.parquet", "a.feather", "parts", "several"]


@pytest.mark.parametrize("name", NAMES)
def test_file__gives_the_store_of_its_arrays(tmp_path, frame, expected, name):
    path = write(shuffled(frame), tmp_path / name)
    store = TransitionStore.from_table(tmp_path / "store", path, **OPTIONS)
    assert store.fingerprint == expected.fingerprint
    assert store.encoding.names("state") == (
        "x", "x is missing", "k", "town=Bern", "town=Genève", "town=Lyon", "town=St. Gallen, CH",
        "town is missing", "open",
    )  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == sorted([name, "store"])


def test_table_in_memory__gives_the_store_of_its_arrays(tmp_path, frame, expected):
    tables = {
        "frame": frame,
        "shuffled": shuffled(frame),
        "categories": shuffled(frame.astype({"town": "category", "k": "Int16", "t": "float32"})),
        "arrow": pa.Table.from_pandas(shuffled(frame)),
    }
    for name, table in tables.items():
        store = TransitionStore.from_table(tmp_path / name, table, **OPTIONS)
        assert store.fingerprint == expected.fingerprint, name


def test_buckets__give_the_same_store(tmp_path, frame, expected, monkeypatch):
    """As many buckets as there can be, and pieces of a few rows."""
    monkeypatch.setattr(external_sort, "BUCKET_BYTES", 2_000)
    monkeypatch.setattr(external_sort, "WAITING_BYTES", 300)
    monkeypatch.setattr(readers, "PIECE_ROWS", 17)
    path = write(shuffled(frame), tmp_path / "a.csv")
    store = TransitionStore.from_table(tmp_path / "store", path, **OPTIONS)
    assert store.fingerprint == expected.fingerprint
    names = OPTIONS | {"columns": COLUMNS | {"episode": "name"}}
    store = TransitionStore.from_table(tmp_path / "names", path, **names)
    assert_episodes_numbered(store, expected)


def assert_episodes_numbered(store, expected):
    """Names in the place of numbers are numbered in their order; all else is the same."""
    found, wanted = (ArrayStore.open(s.path, "transitions") for s in (store, expected))
    for name in ("state", "action", "reward", "step", "terminated"):
        np.testing.assert_array_equal(found.read(name), wanted.read(name))
    np.testing.assert_array_equal(
        found.read("episode"), np.unique(wanted.read("episode"), return_inverse=True)[1]
    )


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.feather"])
def test_names_and_times__are_numbered_in_their_order(tmp_path, frame, expected, name):
    path = write(shuffled(frame), tmp_path / name)
    columns = {key: value for key, value in COLUMNS.items() if key != "step"}
    for number, time in enumerate(["day", "t"]):
        given = OPTIONS | {"columns": columns | {"episode": "name", "time": time}}
        assert_episodes_numbered(TransitionStore.from_table(tmp_path / f"{number}", path, **given), expected)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), n_files=st.integers(1, 4))
def test_order_of_rows__does_not_matter(tmp_path_factory, seed, n_files):
    folder = tmp_path_factory.mktemp("order")
    frame = make_table(n_episodes=9, seed=seed, missing=0.2)
    (folder / "csv").mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        shuffled(frame, seed).iloc[part].to_csv(folder / "csv" / f"{i}.csv", index=False)
    given = OPTIONS | {"missing": dict.fromkeys(["x", "town"], "impute")}
    found = TransitionStore.from_table(folder / "found", folder / "csv", **given)
    wanted = TransitionStore.from_table(folder / "wanted", frame, **given)
    assert found.fingerprint == wanted.fingerprint
    assert found.encoding == wanted.encoding


def test_drop__leaves_out_whole_episodes(tmp_path, frame):
    bad = frame.loc[frame["x"].isna() | frame["town"].isna(), "id"]
    assert 0 < bad.nunique() < frame["id"].nunique()
    given = OPTIONS | {"missing": "drop"}
    found = TransitionStore.from_table(tmp_path / "found", shuffled(frame), **given)
    wanted = TransitionStore.from_table(tmp_path / "wanted", frame[~frame["id"].isin(bad)], **given)
    assert found.fingerprint == wanted.fingerprint
    assert found.n_episodes == frame["id"].nunique() - bad.nunique()
    assert "x is missing" not in found.encoding.names("state")


def test_lone_rows__are_dropped_if_asked(tmp_path, frame):
    lone = frame.groupby("id").head(1).assign(id=lambda f: f["id"] + 1, done=False)
    table = pd.concat([frame, lone])
    with pytest.raises(DataError, match=f"row {len(frame)} of the DataFrame is the only row of episode -6"):
        TransitionStore.from_table(tmp_path / "store", table.reset_index(drop=True), **OPTIONS)
    store = TransitionStore.from_table(tmp_path / "store", table, **OPTIONS, lone_rows="drop")
    assert store.n_rows == len(frame)


def change(frame, row, column, value):
    frame = frame.astype({column: object})
    frame.loc[frame.index[row], column] = value
    return frame


REFUSED = {
    "text": (("x", "tall"), {}, "column 'x' is 'tall', expected a number; correct it, or name 'x' in"),
    "infinity": (("r1", "inf"), {}, "row 11, column 'r1' is 'inf', expected at most 1e"),
    "missing": (("a", None), {}, "row 11, column 'a' is missing, expected a number; fill it in, or give"),
    "missing level": (("town", None), {"missing": "refuse"}, "column 'town' is missing.*or 'impute'"),
    "missing episode": (("id", None), {"missing": "drop"}, "column 'id' is missing, expected an episode"),
    "half step": (("t", 1.5), {}, "row 11, column 't' is '1.5', expected an integer"),
    "flag": (("done", "maybe"), {}, "row 11, column 'done' is 'maybe', expected True or False"),
    "control": (("town", "a\x1b[2J"), {}, r"column 'town' is 'a\\x1b\[2J', expected text that can be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_value__is_named_by_file_row_and_column(tmp_path, frame, name):
    (column, value), options, message = REFUSED[name]
    whole = frame.dropna()
    path = write(change(whole, 11, column, value), tmp_path / "a.csv")
    with pytest.raises(DataError, match=message) as caught:
        TransitionStore.from_table(tmp_path / "store", path, **OPTIONS | options)
    assert str(caught.value).startswith(f"{path}: row 11")
    assert os.listdir(tmp_path) == ["a.csv"]


def test_bad_sequence__is_named_by_the_rows_of_the_table(tmp_path):
    whole = make_table(n_episodes=5, missing=0)
    first, second = whole.index[whole["id"] == -7][:2]
    for column, value, message in [
        ("t", 0, f"row {first} of .*a.csv and row {second} of .*same episode and the same step or time, 0"),
        ("done", True, "goes on with episode -7"),
        ("cut", True, "is truncated but row 1 of .* continues its episode"),
        ("t", 77, "row . of .*a.csv has step"),
    ]:
        row = first if column != "t" else second
        path = write(change(whole, row, column, value), tmp_path / "a.csv")
        with pytest.raises(DataError, match=message):
            TransitionStore.from_table(tmp_path / "store", path, **OPTIONS)
        assert os.listdir(tmp_path) == ["a.csv"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=40), st.randoms())
def test_exact_sum__is_that_of_fractions(values, random):
    total = ExactSum()
    parts = values.copy()
    random.shuffle(parts)
    cut = random.randrange(len(parts) + 1)
    total.add(np.array(parts[:cut]))
    total.add(np.array(parts[cut:]))
    assert total.mean == float(sum(map(Fraction, values), Fraction()) / len(values))


def test_levels__are_the_same_text_from_every_type():
    same = [[1, 1.0, np.int8(1), "1", "1.0"], [True, np.True_, "true", "True"], [0.5, "0.5"]]
    for values in same:
        assert len({level_text(value) for value in values}) == 1
    assert {level_text(value) for value in (None, np.nan, pd.NA, pd.NaT, "")} == {None}
    assert level_text("01") != level_text("1")


ENCODING = Encoding(
    (StateColumn("x", None, 2.5, True), StateColumn("town", ("Bern", "Lyon"), None, True), StateColumn("k")),
    ("a",),
    ("r",),
)


def test_encoding__is_inverted_and_kept():
    frame = pd.DataFrame(
        {"k": [1, 2, 3], "x": [1.0, None, 3.0], "town": ["Lyon", None, "Rome"], "a": [1, 2, 3]}
    )
    state = ENCODING.encode("state", frame)
    np.testing.assert_array_equal(state, [[1, 0, 0, 1, 0, 1], [2.5, 1, 0, 0, 1, 2], [3, 0, 0, 0, 0, 3]])
    back = ENCODING.decode("state", state)
    assert back["town"].tolist() == ["Lyon", None, None]
    np.testing.assert_array_equal(back["x"], [1.0, np.nan, 3.0])
    assert ENCODING.encode("action", frame).tolist() == [[1.0], [2.0], [3.0]]
    assert Encoding.from_json(json.loads(json.dumps(ENCODING.to_json()))) == ENCODING


KERNELS = {"input_kernel": Matern(2.5, 2.0, 1.1), "return_kernel": Matern(5.5, (1.2, 0.9), 0.85)}
FIT = {
    "discount": 0.8,
    "n_atoms": 12,
    "n_basis": 12,
    "n_landmarks": 20,
    "n_features": 32,
    "precision": "double",
    "n_blocks": 4,
    "n_conditioning": 100,
}


def linear_table(seed=0, n_episodes=40, length=6):
    """A table in units far from one."""
    rng = np.random.default_rng(seed)
    rows, scale, centre = [], np.array([40.0, 0.02]), np.array([500.0, -3.0])
    for episode in range(n_episodes):
        s = rng.normal(size=2)
        for step in range(length):
            a = 0.4 * s[0] + rng.normal()
            reward = np.array([0.3, 200.0]) * (s[0] + a + 0.3 * rng.normal(size=2))
            rows.append([episode, step, *(centre + scale * s), 7.0 + 3.0 * a, *reward])
            s = 0.6 * s + 0.2 * a + 0.3 * rng.normal(size=2)
    return pd.DataFrame(rows, columns=["id", "t", "u", "v", "a", "r1", "r2"])


@pytest.mark.slow
def test_standardisation__is_that_of_the_columns_with_every_output_inverted(tmp_path):
    """Beside a fit on columns that are standardised by hand, and whose answers are inverted by hand."""
    table = linear_table()
    columns = {"episode": "id", "step": "t", "state": ["u", "v"], "action": "a", "reward": ["r1", "r2"]}
    parts = ("state", "action", "reward")
    store = TransitionStore.from_table(tmp_path / "a", table, columns, standardise=parts, progress="none")
    sizes = {"u": "state", "v": "state", "a": "action", "r1": "reward", "r2": "reward"}
    mean, unit = table[list(sizes)].mean(), table[list(sizes)].std(ddof=0)
    by_hand = table.copy()
    inputs = ["u", "v", "a"]
    by_hand[inputs] = (table[inputs] - mean[inputs]) / unit[inputs]
    by_hand[["r1", "r2"]] = table[["r1", "r2"]] / unit[["r1", "r2"]]
    plain = TransitionStore.from_table(tmp_path / "b", by_hand, columns, progress="none")

    # a = 7 + 1.2·(u − 500)/40 + noise, in either units.
    weights = np.array([[1.2 / 40], [0.0]])
    policy = policies.Gaussian(weights, bias=7.0 - 500 * 1.2 / 40, scale=1.5)
    inner = policies.Gaussian(
        weights * unit[["u", "v"]].to_numpy()[:, None] / unit["a"],
        bias=(7.0 - 1.2 / 40 * (500 - mean["u"]) - mean["a"]) / unit["a"],
        scale=1.5 / unit["a"],
    )
    model = KEDRL(**FIT, **KERNELS, ridge_gamma=1e-3, ridge_b=1e-4).fit(store, policy, progress="none")
    hand = KEDRL(**FIT, **KERNELS, ridge_gamma=1e-3, ridge_b=1e-4).fit(plain, inner, progress="none")
    asked, asked_by_hand = table.iloc[:5], by_hand.iloc[:5]
    reward_unit = unit[["r1", "r2"]].to_numpy()
    np.testing.assert_allclose(model.grid_, hand.grid_ * reward_unit, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        model.weights(asked, asked), hand.weights(asked_by_hand, asked_by_hand), atol=1e-7
    )
    at = hand.grid_[:4] + 0.1
    np.testing.assert_allclose(
        model.embed(asked, asked, at=at * reward_unit),
        hand.embed(asked_by_hand, asked_by_hand, at=at),
        rtol=1e-6,
    )
    accept = tuple(CODES)
    laws = (
        model.recover(asked, asked, accept=accept),
        hand.recover(asked_by_hand, asked_by_hand, accept=accept),
    )
    for c in range(2):
        for ask in (
            lambda law, c: law.mean()[:, c],
            lambda law, c: law.quantile([0.1, 0.5, 0.9], c),
            lambda law, c: law.cvar(0.1, c),
        ):
            np.testing.assert_allclose(ask(laws[0], c), ask(laws[1], c) * reward_unit[c], rtol=1e-5)
    of_states = (
        model.embedding(asked, policy, accept=accept),
        hand.embedding(asked_by_hand, inner, accept=accept),
    )
    np.testing.assert_allclose(of_states[0].coefficients, of_states[1].coefficients, atol=1e-7)

    model.save(tmp_path / "model")
    loaded = KEDRL.load(tmp_path / "model")
    assert loaded.encoding_ == store.encoding
    np.testing.assert_array_equal(loaded.weights(asked, asked), model.weights(asked, asked))


def test_store__keeps_its_encoding(tmp_path, frame):
    store = TransitionStore.from_table(tmp_path / "store", frame, **OPTIONS, standardise=("state", "reward"))
    deviations = store.statistics["state"]["std"]
    assert store.encoding.scales["state"][0] == deviations[0]
    assert store.encoding.scales["state"][1] == 1.0  # a flag
    assert "action" not in store.encoding.scales
    state = ArrayStore.open(store.path, "transitions").read("state")
    back = store.encoding.decode("state", state)
    ordered = frame.sort_values(["id", "t"])
    np.testing.assert_array_equal(back["x"], ordered["x"])
    assert back["town"].tolist() == [v if isinstance(v, str) else None for v in ordered["town"]]
    before = store.encoding
    with store.appender() as appender:
        rows = {"state": state[:2], "action": np.zeros((2, 1)), "reward": np.ones((2, 2)) * 50}
        appender.append(**rows, episode=[10_000, 10_000], step=[0, 1])
    assert TransitionStore.open(store.path).encoding == before


def test_command__stores_a_table(tmp_path, capsys, frame, expected):
    path = write(shuffled(frame), tmp_path / "a.csv")
    arguments = ["ingest", str(path), str(tmp_path / "store"), "--episode", "id", "--step", "t", "--state"]
    arguments += ["x", "k", "town", "open", "--action", "a", "--reward", "r1", "r2", "--terminated", "done"]
    arguments += [
        "--truncated",
        "cut",
        "--categorical",
        "town",
        "--missing",
        "drop",
        "x=impute",
        "town=impute",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fingerprint"] == expected.fingerprint
    assert found["columns"]["reward"] == ["r1", "r2"]
    assert found["stored"] == len(frame)
    assert main([*arguments, "--overwrite", "--missing", "drop"]) == 0
    assert "dropped" in capsys.readouterr().out
