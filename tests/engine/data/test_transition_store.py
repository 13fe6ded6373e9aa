"""Transition stores: validation, piecewise writing, commits, pairing, sampling, verification."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedrl_dask.engine.data.transition_store import DataError, DataWarning, Transitions, TransitionStore
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.lock import Busy

NAMES = ("state", "action", "reward", "episode", "step", "terminated")


def make_data(lengths, terminal=(), seed=0, first_episode=0):
    """Rows of episodes of these lengths, in order; those listed in ``terminal`` end for good."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    terminated = np.zeros(n, dtype=bool)
    ends = np.cumsum(lengths) - 1
    terminated[[ends[i] for i in terminal]] = True
    return {
        "state": rng.normal(size=(n, 2)),
        "action": rng.normal(size=(n, 1)),
        "reward": rng.normal(size=(n, 3)),
        "episode": np.repeat(np.arange(len(lengths)) * 3 + first_episode, lengths),
        "step": np.concatenate([np.arange(k) + i for i, k in enumerate(lengths)]),
        "terminated": terminated,
    }


def stored(store):
    arrays = ArrayStore.open(store.path, "transitions")
    return {name: arrays.read(name, 0, store.n_rows) for name in NAMES}


def part(data, start, stop):
    return {name: values[start:stop] for name, values in data.items()}


def assert_same_rows(found, expected):
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def write_pieces(path, data, cuts, chunk_rows):
    with TransitionStore.writer(
        path, state_dim=2, action_dim=1, reward_dim=3, chunk_rows=chunk_rows
    ) as writer:
        for start, stop in itertools.pairwise([0, *cuts, data["step"].size]):
            if start < stop:
                writer.append(**part(data, start, stop))
    return TransitionStore.open(path)


def append_and_fail(writer, data):
    with writer:
        writer.append(**data)
        raise RuntimeError("interrupted")


@st.composite
def episodes(draw):
    """Data of a few episodes; an episode of one row is terminal."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    terminal = [i for i, k in enumerate(lengths) if k == 1 or draw(st.booleans())]
    return make_data(lengths, terminal, seed=draw(st.integers(0, 3)))


def cuts_of(draw, n):
    return sorted(draw(st.lists(st.integers(0, n), max_size=5)))


def pairs_by_hand(data):
    """Rows of the transitions and of their successors, by a loop."""
    n = data["step"].size
    pairs = []
    for row in range(n):
        if data["terminated"][row]:
            pairs.append((row, row))
        elif row + 1 < n and data["episode"][row + 1] == data["episode"][row]:
            pairs.append((row, row + 1))
    return np.array(pairs).reshape(-1, 2).T


def assert_transitions_are(found, data, rows, successors):
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.inputs, np.hstack((data["state"], data["action"]))[rows])
    np.testing.assert_array_equal(found.reward, data["reward"][rows])
    np.testing.assert_array_equal(found.next_state, data["state"][successors])
    np.testing.assert_array_equal(found.next_action, data["action"][successors])
    np.testing.assert_array_equal(found.terminal, data["terminated"][rows])
    assert len(found) == len(rows)


# Creation


def test_from_arrays__counts_and_dimensions(tmp_path):
    data = make_data([4, 1, 3], terminal=[1])
    store = TransitionStore.from_arrays(tmp_path / "s", **data, chunk_rows=3)
    assert (store.n_rows, store.n_episodes, store.n_terminal, store.n_transitions) == (8, 3, 1, 6)
    assert (store.state_dim, store.action_dim, store.reward_dim, store.chunk_rows) == (2, 1, 3, 3)
    assert store.path == tmp_path / "s"
    assert_same_rows(stored(store), data)


def test_from_arrays__rows_are_sorted(tmp_path):
    data = make_data([5, 4, 7], terminal=[0])
    mixed = np.random.default_rng(1).permutation(16)
    shuffled = {name: values[mixed] for name, values in data.items()}
    a = TransitionStore.from_arrays(tmp_path / "a", **data)
    b = TransitionStore.from_arrays(tmp_path / "b", **shuffled, chunk_rows=65_536)
    assert_same_rows(stored(b), data)
    assert a.fingerprint == b.fingerprint


def test_from_arrays__other_number_types_are_accepted(tmp_path):
    data = make_data([3, 3], terminal=[1])
    given = {
        "state": data["state"].astype(np.float32).tolist(),
        "action": np.arange(6).reshape(-1, 1),
        "reward": data["reward"].astype(np.float16),
        "episode": data["episode"].astype(float),
        "step": data["step"].astype(np.uint8),
        "terminated": data["terminated"].astype(int),
    }
    found = stored(TransitionStore.from_arrays(tmp_path / "s", **given))
    assert_same_rows(found, {name: np.asarray(values) for name, values in given.items()})
    assert [found[name].dtype.name for name in NAMES] == ["float64"] * 3 + ["int64"] * 2 + ["bool"]


def test_from_arrays__existing_path_is_refused(tmp_path):
    TransitionStore.from_arrays(tmp_path / "s", **make_data([3]))
    with pytest.raises(FileExistsError, match="already exists"):
        TransitionStore.from_arrays(tmp_path / "s", **make_data([4]))
    assert TransitionStore.open(tmp_path / "s").n_rows == 3


def test_writer__impossible_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="reward_dim: is 0"):
        TransitionStore.writer(tmp_path / "s", state_dim=1, action_dim=1, reward_dim=0)
    with pytest.raises(ValueError, match="chunk_rows: is 0"):
        TransitionStore.from_arrays(tmp_path / "s", **make_data([3]), chunk_rows=0)
    assert not (tmp_path / "s").exists()


# Validation

DATA = make_data([4, 5])  # rows 0–3 and 4–8


def replaced(name, values):
    return {**DATA, name: values}


def with_entry(name, index, value, dtype=None):
    values = DATA[name].astype(dtype or DATA[name].dtype)
    values[index] = value
    return replaced(name, values)


def rows_of(rows):
    return {name: values[rows] for name, values in DATA.items()}


FAULTS = {
    "nan": (with_entry("state", (5, 1), np.nan), "state: row 5.*, column 1 is nan, expected a finite"),
    "inf": (with_entry("reward", (2, 0), -np.inf), "reward: row 2.*, column 0 is -inf"),
    "nan action": (with_entry("action", (8, 0), np.nan), "action: row 8.*, column 0 is nan"),
    "overflow": (
        with_entry("reward", (1, 2), np.longdouble("1e4000"), np.longdouble),
        "reward: row 1.*is inf",
    ),
    "1-D state": (replaced("state", DATA["state"][:, 0]), r"state: has 1 dimension.*reshape\(-1, 1\)"),
    "1-D action": (replaced("action", DATA["action"][:, 0]), r"action: has 1 dimension.*reshape\(-1, 1\)"),
    "1-D reward": (replaced("reward", DATA["reward"][:, 0]), r"reward: has 1 dimension.*reshape\(-1, 1\)"),
    "3-D state": (replaced("state", DATA["state"][None]), "state: has 3 dimension.*flatten"),
    "2-D episode": (replaced("episode", DATA["episode"][:, None]), r"episode: has 2 dim.*reshape\(-1\)"),
    "short reward": (replaced("reward", DATA["reward"][:7]), "reward: has 7 rows but state has 9.*row 7"),
    "long step": (replaced("step", np.arange(11)), "step: has 11 rows but state has 9.*row 9"),
    "object": (replaced("state", DATA["state"].astype(object)), r"state: has dtype object.*astype\(float\)"),
    "text": (replaced("action", DATA["action"].astype(str)), "action: has dtype <U.*expected real numbers"),
    "complex": (replaced("reward", DATA["reward"] + 0j), "reward: has dtype complex128"),
    "text episode": (replaced("episode", DATA["episode"].astype(str)), "episode: has dtype <U"),
    "ragged": (replaced("state", [[1.0, 2.0], [1.0]]), "state: rows have unequal lengths"),
    "masked": (replaced("state", np.ma.masked_less(DATA["state"], 0)), "state: has masked entries"),
    "missing": (replaced("step", None), "step: is None"),
    "half episode": (with_entry("episode", 3, 0.5, float), "episode: row 3.* is 0.5, expected an integer"),
    "nan step": (with_entry("step", 6, np.nan, float), "step: row 6.* is nan, expected an integer"),
    "huge step": (with_entry("step", 6, 2**63, np.uint64), "step: row 6.*expected an integer"),
    "bool episode": (replaced("episode", DATA["episode"] > 0), "episode: has dtype bool"),
    "repeated": (rows_of([0, 1, 2, 2, 3]), "step: row 3.* repeats step 2 of episode 0, already at row 2"),
    "gap": (rows_of([0, 1, 3, 4, 5]), "step: row 2.* has step 3 of episode 0 after step 1, expected step 2"),
    "lone first": (rows_of([0, 4, 5, 6]), "episode: row 0.* is the only row of episode 0"),
    "lone last": (rows_of([0, 1, 4]), "episode: row 2.* is the only row of episode 3"),
    "early end": (with_entry("terminated", 5, True), "terminated: row 5.* is terminated but row 6.* goes on"),
    "flag 2": (with_entry("terminated", 4, 2, int), "terminated: row 4.* is 2, expected True or False"),
    "flag text": (replaced("terminated", DATA["terminated"].astype(str)), "terminated: has dtype <U"),
    "empty": (rows_of([]), "state: has 0 rows"),
    "no column": (replaced("action", np.empty((9, 0))), "action: has 0 columns"),
}


def test_from_arrays__fault_is_named_before_any_file_is_made(tmp_path):
    for fault, (data, message) in FAULTS.items():
        with pytest.raises(DataError, match=message) as raised:
            TransitionStore.from_arrays(tmp_path / "s", **data)
        assert "\n" not in str(raised.value), fault
        assert ";" in str(raised.value), f"{fault}: a remedy follows the semicolon"
        assert not (tmp_path / "s").exists(), fault


def test_append__faulty_piece_is_refused_as_a_whole(tmp_path):
    """However many are tried, the store has the rows of the sound pieces alone."""
    before, after = make_data([3, 2], first_episode=-9), make_data([6], first_episode=3, seed=5)
    with TransitionStore.writer(
        tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3, chunk_rows=2
    ) as writer:
        writer.append(**before)
        for fault, (data, message) in FAULTS.items():
            if fault == "lone last":  # the next piece may go on with it
                continue
            with pytest.raises(DataError, match=message) as raised:
                writer.append(**data)
            assert writer.n_rows == 5, fault
            if ": row " in message:
                row = int(message.split(": row ")[1].split(".")[0].split(" ")[0])
                assert f"row {row} of the piece (row {row + 5} of the store)" in str(raised.value), fault
        writer.append(**after)
    store = TransitionStore.open(tmp_path / "s")
    assert_same_rows(stored(store), {name: np.concatenate((before[name], after[name])) for name in NAMES})
    store.verify()


def test_from_arrays__unsorted_rows_are_named_by_the_users_numbers(tmp_path):
    backwards = np.array([8, 7, 6, 6, 5, 4, 3, 2, 1, 0])
    with pytest.raises(DataError, match="step: row 3 repeats step 3 of episode 3, already at row 2"):
        TransitionStore.from_arrays(tmp_path / "s", **rows_of(backwards))
    with pytest.raises(DataError, match="step: row 1 has step 4 of episode 3 after step 2, expected step 3"):
        TransitionStore.from_arrays(tmp_path / "s", **rows_of([8, 7, 5, 4, 3, 2, 1, 0]))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            [0, 1],
            [1, 2],
            "step: row 0 of the piece .row 2 of the store. repeats step 1.*row before the piece",
        ),
        ([0, 1], [3], "step: row 0 of the piece .row 2 of the store. has step 3"),
        ([0, 1, 2], [1, 2], "step: row 0 of the piece .* has .episode, step. .0, 1. after .0, 2."),
        ([4, 5], [0, 1], "episode: row 0 of the piece .* after .3, 2.*sort the rows"),
        ([0, 1, 4], [], "episode: row 2 of the store, the last one, is the only row of episode 3"),
    ],
)
def test_append__faults_across_pieces_are_found(tmp_path, first, second, message):
    writer = TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3, chunk_rows=2)
    writer.append(**rows_of(first))
    with pytest.raises(DataError, match=message), writer:
        writer.append(**rows_of(second)) if second else None
    with pytest.raises(StoreError, match="incomplete"):
        TransitionStore.open(tmp_path / "s")


def test_append__lone_row_and_row_after_the_end_are_found_across_pieces(tmp_path):
    with TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3) as writer:
        writer.append(**rows_of([0, 1, 4]))
        with pytest.raises(
            DataError, match=r"the last row before the piece \(row 2 of the store\) is the only"
        ):
            writer.append(**make_data([3], first_episode=7))
        writer.append(**{**rows_of([5]), "terminated": [True]})
        with pytest.raises(
            DataError, match=r"terminated: the last row before the piece \(row 3 of the store\)"
        ):
            writer.append(**rows_of([6, 7]))
    assert TransitionStore.open(tmp_path / "s").n_terminal == 1


def test_append__other_columns_are_refused(tmp_path):
    with TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3) as writer:
        writer.append(**DATA)
        with pytest.raises(DataError, match="state: has 3 columns, expected 2"):
            writer.append(**replaced("state", np.zeros((9, 3))))


def test_close__constant_columns_are_named(tmp_path):
    data = {**DATA, "action": np.full((9, 1), 2.5), "state": DATA["state"] * [1, 0]}
    with pytest.warns(DataWarning) as caught:
        store = TransitionStore.from_arrays(tmp_path / "s", **data)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert any("state: column 1 is " in message for message in messages)
    assert any("action: column 0 is 2.5 in every row" in message for message in messages)
    assert store.n_rows == 9


def test_close__warning_as_error_leaves_a_complete_store(tmp_path):
    with pytest.raises(DataWarning, match="action: column 0"):  # warnings are errors in these tests
        TransitionStore.from_arrays(tmp_path / "s", **replaced("action", np.ones((9, 1))))
    TransitionStore.open(tmp_path / "s").verify()


# Piecewise writing and commits


def assert_equal_stores(found, whole):
    assert found.fingerprint == whole.fingerprint
    counts = ("n_rows", "n_episodes", "n_terminal", "n_transitions")
    assert [getattr(found, name) for name in counts] == [getattr(whole, name) for name in counts]
    for name, values in whole.statistics.items():
        for key, value in values.items():
            np.testing.assert_array_equal(found.statistics[name][key], value)
    found.verify()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kedrl_dask.engine.data.transition_store.DataWarning")
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_writer_and_appender__pieces_do_not_matter(tmp_path_factory, data):
    rows = data.draw(episodes())
    n, chunk_rows = rows["step"].size, data.draw(st.integers(1, 12))
    folder = tmp_path_factory.mktemp("pieces")
    whole = TransitionStore.from_arrays(folder / "whole", **rows, chunk_rows=chunk_rows)
    assert (whole.n_rows, whole.n_episodes) == (n, np.unique(rows["episode"]).size)
    assert whole.n_transitions == pairs_by_hand(rows).shape[1]
    assert_same_rows(stored(whole), rows)
    assert_equal_stores(write_pieces(folder / "pieces", rows, cuts_of(data.draw, n), chunk_rows), whole)
    # A store may end wherever its last episode has two rows or is over.
    position = np.arange(n) - np.searchsorted(rows["episode"], rows["episode"])
    ends = 1 + np.flatnonzero((position > 0) | rows["terminated"])
    cuts = [0, *sorted(data.draw(st.sets(st.sampled_from(ends.tolist()), max_size=3)) | {n})]
    grown = TransitionStore.from_arrays(folder / "grown", **part(rows, 0, cuts[1]), chunk_rows=chunk_rows)
    for start, stop in itertools.pairwise(cuts[1:]):
        with grown.appender() as writer:
            writer.append(**part(rows, start, stop))
        assert grown.n_rows == start, "an open store shows what was committed when it was opened"
        grown = TransitionStore.open(folder / "grown")
    assert_same_rows(stored(grown), rows)
    assert_equal_stores(grown, whole)


def test_fingerprint__changes_with_content(tmp_path):
    found = {TransitionStore.from_arrays(tmp_path / "0", **DATA).fingerprint}
    changes = [
        with_entry("state", (0, 0), 1.0),
        with_entry("terminated", 8, True),
        replaced("episode", DATA["episode"] + 1),
        rows_of(np.arange(8)),
    ]
    for i, data in enumerate(changes, 1):
        found.add(TransitionStore.from_arrays(tmp_path / str(i), **data).fingerprint)
    assert len(found) == 5
    assert all(len(text) == 64 for text in found)


@pytest.mark.parametrize("chunk_rows", [97, 300, 4096])
def test_statistics__equal_numpys(tmp_path, chunk_rows):
    data = make_data([100, 200, 900])
    data["state"] = data["state"] * [1e-6, 1e5] + [1e3, -1e9]
    store = write_pieces(tmp_path / "s", data, [1, 250, 251, 900], chunk_rows)
    assert set(store.statistics) == {"state", "action", "reward"}
    for name, found in store.statistics.items():
        values = data[name].astype(np.longdouble)
        scale = np.abs(values).max(axis=0)
        for key in ("mean", "min", "max"):
            assert (np.abs(found[key] - getattr(values, key)(axis=0)) <= 1e-12 * scale).all(), (name, key)
        spread = values.std(axis=0)
        # Rounding of the data itself: the deviations are known to eps·scale only.
        assert (np.abs(found["std"] - spread) <= 1e-12 * spread + 1e-16 * scale).all(), name


def test_writer__failed_body_leaves_no_complete_store(tmp_path):
    writer = TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3, chunk_rows=2)
    with pytest.raises(RuntimeError, match="interrupted"):
        append_and_fail(writer, DATA)
    with pytest.raises(StoreError, match=r"incomplete.*delete the directory and write the store again"):
        TransitionStore.open(tmp_path / "s")
    with pytest.raises(StoreError, match="this writer is failed"):
        writer.append(**DATA)
    with pytest.raises(StoreError, match="nothing was committed"):
        writer.close()


def test_writer__without_rows_is_refused(tmp_path):
    with (
        pytest.raises(DataError, match="state: has 0 rows"),
        TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3),
    ):
        pass


def test_writer__disk_failure_is_not_committed(tmp_path, monkeypatch):
    writer = TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3, chunk_rows=2)
    writer.append(**rows_of([0]))

    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(ArrayStore, "write", full)
    with pytest.raises(OSError, match="No space"):
        writer.append(**rows_of([1, 2]))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="failed"):
        writer.append(**rows_of([1, 2]))
    with pytest.raises(StoreError, match="nothing was committed"):
        writer.close()


def test_writer__close_twice_is_harmless(tmp_path):
    writer = TransitionStore.writer(tmp_path / "s", state_dim=2, action_dim=1, reward_dim=3)
    writer.append(**DATA)
    assert writer.n_rows == 9
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="this writer is closed"):
        writer.append(**DATA)


@pytest.mark.parametrize("chunk_rows", [2, 3, 5, 100])
def test_appender__failure_leaves_the_committed_rows(tmp_path, chunk_rows):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=chunk_rows)
    more = make_data([7, 6], first_episode=6, seed=3)
    with pytest.raises(RuntimeError, match="interrupted"):
        append_and_fail(store.appender(), more)
    again = TransitionStore.open(tmp_path / "s")
    assert (again.n_rows, again.fingerprint) == (9, store.fingerprint)
    assert_same_rows(stored(again), DATA)
    assert len(again.transitions()) == 7
    again.verify()
    shorter = part(more, 0, 7)
    with again.appender() as writer:
        writer.append(**shorter)
    whole = {name: np.concatenate((DATA[name], shorter[name])) for name in NAMES}
    final = TransitionStore.open(tmp_path / "s")
    assert_same_rows(stored(final), whole)
    final.verify()
    assert (
        final.fingerprint
        == TransitionStore.from_arrays(tmp_path / "w", **whole, chunk_rows=chunk_rows).fingerprint
    )
    assert ArrayStore.open(tmp_path / "s", "transitions").size("row") == 16, "nothing is left of the failure"


@pytest.mark.parametrize("stage", ["resize", "write", "update_attributes", "finish"])
def test_appender__failure_at_any_stage_of_the_commit(tmp_path, monkeypatch, stage):
    TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=4)
    more = make_data([2], first_episode=6, seed=3)
    writer = TransitionStore.open(tmp_path / "s").appender()
    writer.append(**more)

    def fail(*args, **kwargs):
        raise OSError("killed")

    monkeypatch.setattr(ArrayStore, stage, fail)
    with pytest.raises(OSError, match="killed"):
        writer.close()
    monkeypatch.undo()
    store = TransitionStore.open(tmp_path / "s")
    assert store.n_rows == (11 if stage == "finish" else 9), "the attributes are the commit"
    store.verify()
    assert_same_rows(stored(store), {n: np.concatenate((DATA[n], more[n]))[: store.n_rows] for n in NAMES})


@pytest.mark.slow
def test_writer__killed_process(tmp_path):
    """Of a new store and of one that grows, in one process."""
    TransitionStore.from_arrays(tmp_path / "old", **DATA, chunk_rows=4)
    code = f"""
        import os, signal
        from pathlib import Path
        import numpy as np
        from kedrl_dask.engine.data.transition_store import TransitionStore
        folder, n = Path({str(tmp_path)!r}), 11
        for writer in (
            TransitionStore.open(folder / "old").appender(),
            TransitionStore.writer(folder / "new", state_dim=2, action_dim=1, reward_dim=3, chunk_rows=4),
        ):
            writer.append(state=np.ones((n, 2)), action=np.ones((n, 1)), reward=np.ones((n, 3)),
                          episode=np.full(n, 100), step=np.arange(n))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    store = TransitionStore.open(tmp_path / "old")
    assert_same_rows(stored(store), DATA)
    store.verify()
    with pytest.raises(StoreError, match="incomplete"):
        TransitionStore.open(tmp_path / "new")


def test_appender__episodes_must_be_new_or_go_on(tmp_path):
    data = make_data([4, 5], terminal=[1])
    store = TransitionStore.from_arrays(tmp_path / "s", **data)
    with store.appender() as writer:
        with pytest.raises(DataError, match=r"episode: row 0.*after"):
            writer.append(**make_data([3], first_episode=2))
        with pytest.raises(
            DataError, match=r"terminated: the last row before the piece .row 8 of the store."
        ):
            writer.append(**{**part(make_data([3]), 0, 2), "episode": [3, 3], "step": [6, 7]})
        writer.append(**make_data([3], first_episode=4))
    assert TransitionStore.open(tmp_path / "s").n_episodes == 3


def test_appender__without_rows_changes_nothing(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA)
    with store.appender():
        pass
    assert TransitionStore.open(tmp_path / "s").fingerprint == store.fingerprint


def test_appender__one_at_a_time(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA)
    more = make_data([2], first_episode=6, seed=3)
    with store.appender() as writer:
        with pytest.raises(Busy, match=rf"{tmp_path / 's'} is in use by process {os.getpid()} on"):
            store.appender()
        writer.append(**more)
    with pytest.raises(KeyError), store.appender():
        raise KeyError("of the body")
    late = make_data([2], first_episode=9, seed=4)
    with store.appender() as writer:  # of a store object from before the other's rows
        writer.append(**late)
    grown = TransitionStore.open(tmp_path / "s")
    grown.verify()
    assert_same_rows(stored(grown), {n: np.concatenate((DATA[n], more[n], late[n])) for n in NAMES})


def test_appender__a_writer_that_fails_lets_go(tmp_path, monkeypatch):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=4)
    writer, more = store.appender(), make_data([9], first_episode=6, seed=3)

    def fail(*args, **kwargs):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ArrayStore, "write", fail)
        with pytest.raises(OSError, match="no room"):
            writer.append(**more)
    with store.appender() as again:
        again.append(**more)
    assert TransitionStore.open(tmp_path / "s").n_rows == 18


def test_appender__damaged_last_chunk_is_not_written_again(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=4)
    os.remove(tmp_path / "s" / "step" / "c" / "2")
    with pytest.raises(StoreError, match=r"array step, rows 8:9 cannot be read.*step/c/2 is damaged"):
        store.appender()


# Reading


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kedrl_dask.engine.data.transition_store.DataWarning")
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_transitions_and_block_edges__any_partition_of_the_rows(tmp_path_factory, data):
    """Transitions are those of the rows; blocks are whole episodes, nearest to equal cuts."""
    rows = data.draw(episodes())
    n = rows["step"].size
    store = TransitionStore.from_arrays(
        tmp_path_factory.mktemp("t") / "s", **rows, chunk_rows=data.draw(st.integers(1, 12))
    )
    expected = pairs_by_hand(rows)
    assert_transitions_are(store.transitions(), rows, *expected)
    pieces = [store.transitions(a, b) for a, b in itertools.pairwise([0, *cuts_of(data.draw, n), n])]
    joined = Transitions(
        *(np.concatenate([getattr(p, f) for p in pieces]) for f in Transitions.__match_args__)
    )
    assert_transitions_are(joined, rows, *expected)
    starts = np.append(np.unique(rows["episode"], return_index=True)[1], n)
    for n_blocks in (1, 2, data.draw(st.integers(3, 12))):
        edges = store.block_edges(n_blocks)
        assert (edges[0], edges[-1]) == (0, n)
        assert (np.diff(edges) > 0).all()
        assert len(edges) <= n_blocks + 1
        assert np.isin(edges, starts).all()
        for i in range(1, n_blocks):
            target = i * n // n_blocks
            assert min(abs(target - e) for e in edges) == min(abs(target - s) for s in starts)


def test_transitions__outside_the_rows(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA)
    with pytest.raises(ValueError, match="has 9 rows, asked for 0:10"):
        store.transitions(0, 10)


def test_sample__is_a_sorted_subset_and_ignores_chunks(tmp_path):
    data = make_data([1, 90, 2, 2, 1, 100], terminal=[0, 2, 4])
    rows, successors = pairs_by_hand(data)
    stores = [
        TransitionStore.from_arrays(tmp_path / f"{chunk_rows}", **data, chunk_rows=chunk_rows)
        for chunk_rows in (14, 64, 1000)
    ]
    for n in (1, 5, 60, 150, 10_000):
        samples = [store.sample(n, np.random.default_rng(3)) for store in stores]
        chosen = np.searchsorted(rows, samples[0].rows)
        assert len(samples[0]) == min(n, rows.size)
        assert (np.diff(chosen) > 0).all()
        for sample in samples:
            assert_transitions_are(sample, data, rows[chosen], successors[chosen])


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 6])
def test_sample__every_transition_is_equally_likely(tmp_path, n):
    data = make_data([1, 3, 2, 4, 2], terminal=[0, 2])
    store = TransitionStore.from_arrays(tmp_path / "s", **data)
    rng, draws = np.random.default_rng(0), 300
    counts = np.zeros(store.n_rows)
    for _ in range(draws):
        counts[store.sample(n, rng).rows] += 1
    rows = pairs_by_hand(data)[0]
    share = n / rows.size
    assert counts.sum() == counts[rows].sum() == draws * n
    assert np.abs(counts[rows] - draws * share).max() < 4 * np.sqrt(draws * share * (1 - share))


def test_sample__none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="n is 0"):
        TransitionStore.from_arrays(tmp_path / "s", **DATA).sample(0, np.random.default_rng(0))


def test_block_edges__few_reads(tmp_path, monkeypatch):
    store = TransitionStore.from_arrays(tmp_path / "s", **make_data([10] * 100), chunk_rows=20)
    reads = []
    original = ArrayStore.read
    monkeypatch.setattr(ArrayStore, "read", lambda self, *a: reads.append(a) or original(self, *a))
    assert store.block_edges(4) == [0, 250, 500, 750, 1000]
    assert {read[0] for read in reads} == {"episode"}
    assert len(reads) <= 6, "the two chunks at each cut, of 50"


def test_block_edges__no_block_is_refused(tmp_path):
    with pytest.raises(ValueError, match="n_blocks is 0"):
        TransitionStore.from_arrays(tmp_path / "s", **DATA).block_edges(0)


@pytest.mark.parametrize("chunk_rows", [3, 1000])
def test_episode_windows__everything_when_it_fits(tmp_path, chunk_rows):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=chunk_rows)
    windows = store.episode_windows(9, np.random.default_rng(0))
    for name in ("reward", "episode", "step", "terminated"):
        np.testing.assert_array_equal(getattr(windows, name), DATA[name])
    with pytest.raises(ValueError, match="max_rows is 0"):
        store.episode_windows(0, np.random.default_rng(0))


@pytest.mark.parametrize("lengths", [[2] * 500, [900, 2, 2, 600], [7, 1, 30, 4] * 30, [2000]])
def test_episode_windows__whole_episodes_unless_too_long(tmp_path, lengths):
    data = make_data(lengths, terminal=range(len(lengths)))
    store = TransitionStore.from_arrays(tmp_path / "s", **data, chunk_rows=128)
    length_of = dict(zip(np.unique(data["episode"]), lengths, strict=True))
    for max_rows, seed in itertools.product((1, 10, 100, 500), range(3)):
        windows = store.episode_windows(max_rows, np.random.default_rng(seed))
        assert 0 < windows.step.size <= 1.5 * max_rows + 2
        if max(lengths) * 4 <= max_rows:
            assert windows.step.size >= max_rows
        numbers, first, counts = np.unique(windows.episode, return_index=True, return_counts=True)
        assert (np.diff(windows.episode) >= 0).all()
        for number, start, count in zip(numbers, first, counts, strict=True):
            at = np.searchsorted(data["episode"], number)
            np.testing.assert_array_equal(
                windows.reward[start : start + count], data["reward"][at : at + count]
            )
            np.testing.assert_array_equal(windows.step[start : start + count], data["step"][at : at + count])
            whole = count == length_of[number]
            assert windows.terminated[start : start + count].sum() == whole
            assert whole or count >= max(1, max_rows // 32)


def test_episode_windows__ignores_chunks(tmp_path):
    data = make_data([5, 9, 2, 30] * 10)
    found = [
        TransitionStore.from_arrays(tmp_path / f"{c}", **data, chunk_rows=c).episode_windows(
            100, np.random.default_rng(1)
        )
        for c in (23, 1000)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


# Verification


@pytest.mark.parametrize("damage", ["rubbish", "removed", "truncated", "exchanged"])
def test_verify__damage_is_named(tmp_path, damage):
    data = make_data([3, 10], terminal=[0, 1], first_episode=1)
    store = TransitionStore.from_arrays(tmp_path / "s", **data, chunk_rows=4)
    for name in NAMES:
        chunk = 3 if name == "terminated" else 1  # chunks 1 and 2 have no flag, and zeros are not stored
        folder, below = tmp_path / "s" / name / "c", ["0"] if name in NAMES[:3] else []
        file, other = folder.joinpath(str(chunk), *below), folder.joinpath("0", *below)
        content = file.read_bytes()
        file.unlink()
        if damage != "removed":
            file.write_bytes(
                {"rubbish": b"rubbish", "truncated": content[:-3], "exchanged": other.read_bytes()}[damage]
            )
        opened = TransitionStore.open(tmp_path / "s")
        with pytest.raises(StoreError, match=rf"array {name}, chunk {chunk} \(rows .* is damaged.*restore"):
            opened.verify()
        file.write_bytes(content)
    store.verify()


def test_verify__damaged_digests_are_named(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA, chunk_rows=4)
    os.remove(tmp_path / "s" / "chunk_digest" / "c" / "0" / "0" / "0")
    with pytest.raises(StoreError, match="array chunk_digest is damaged"):
        store.verify()


# The object


def test_open__missing_store(tmp_path):
    with pytest.raises(StoreError, match="no such store"):
        TransitionStore.open(tmp_path / "s")


def test_repr__shows_what_is_stored(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "a<b", **make_data([1000, 500], terminal=[1]))
    text = repr(store)
    for words in (
        str(tmp_path),
        "1,500 in chunks of 16,384",
        "1,499, of which terminal 1",
        "state 2, action 1",
    ):
        assert words in text
    assert "a&lt;b" in store._repr_html_()


def test_store__survives_pickling(tmp_path):
    store = TransitionStore.from_arrays(tmp_path / "s", **DATA)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.fingerprint == store.fingerprint
    assert_transitions_are(copy.transitions(), DATA, *pairs_by_hand(DATA))


def test_shaped__rewards_differ_by_the_potential_and_so_does_the_fingerprint(tmp_path):
    from kedrl_dask.datasets.benchmark import CASES
    from kedrl_dask.numerics.simulation.potential import Potential

    store = CASES["success-or-failure"].write(tmp_path / "log", 400, seed=0)
    potential = Potential(
        center=np.zeros(1), scale=np.ones(1), directions=np.eye(1), landmarks=np.zeros((1, 1)),
        weights=np.array([[2.0]]), slopes=np.array([[0.5]]), constant=np.array([1.0]),
    )  # fmt: skip
    plain, shaped = store.transitions(), store.shaped(potential, 0.9).transitions()
    assert plain.terminal.any()
    for i in range(len(plain)):
        ahead = 0.0 if plain.terminal[i] else 0.9 * potential(plain.next_state[i : i + 1])[0, 0]
        expected = plain.reward[i, 0] + ahead - potential(plain.inputs[i : i + 1, :1])[0, 0]
        assert shaped.reward[i, 0] == pytest.approx(expected)
    np.testing.assert_array_equal(shaped.inputs, plain.inputs)
    again = store.shaped(potential, 0.9)
    assert again.fingerprint == store.shaped(potential, 0.9).fingerprint != store.fingerprint
    assert again.fingerprint != store.shaped(potential, 0.8).fingerprint
    opened = TransitionStore.open(*again.source)
    assert opened.fingerprint == again.fingerprint
    np.testing.assert_array_equal(opened.transitions(10, 60).reward, again.transitions(10, 60).reward)
