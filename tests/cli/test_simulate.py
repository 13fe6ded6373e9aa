"""``kedrl simulate``: the data, what it never deletes, and what it never leaves behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kedrl_dask import TransitionStore, cli
from kedrl_dask.datasets import simulation
from kedrl_dask.datasets.systems import SYSTEMS
from kedrl_dask.engine.storage.array_store import ArrayStore


def simulate(path, *options, transitions=40):
    return cli.main(["simulate", str(path), "--transitions", str(transitions), *map(str, options)])


def only_line(text):
    (line,) = text.strip().splitlines()
    return line


def content(folder):
    """Bytes of every file below a folder, by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fail_at_step(monkeypatch, number, error):
    """Let the system raise an error instead of its n-th step."""
    step, done = simulation.LinearGaussianSystem.step, []

    def failing(self, *arguments):
        done.append(1)
        if len(done) == number:
            raise error
        return step(self, *arguments)

    monkeypatch.setattr(simulation.LinearGaussianSystem, "step", failing)


def test_simulate__chunks_are_those_of_the_simulator(tmp_path):
    """Two blocks of episodes and five chunks of the store, which end at different rows."""
    options = ["--pair", "gaussian-logistic", "--seed", 4, "--steps", 60]
    assert simulate(tmp_path / "store", *options, transitions=70_000) == 0
    n_episodes = 1_187  # of 59 transitions; the last one is cut to 26
    data = simulation.simulate(simulation.PAIRS["gaussian-logistic"], n_episodes, n_steps=60, seed=4)
    store, arrays = (
        TransitionStore.open(tmp_path / "store"),
        ArrayStore.open(tmp_path / "store", "transitions"),
    )
    store.verify()
    assert (store.n_transitions, store.n_episodes, store.n_rows) == (70_000, n_episodes, 71_187)
    edges = [*range(0, 71_187, 16_384), 71_187]
    assert arrays.chunk("row") == edges[1]
    for name, values in data.items():
        for start, stop in pairwise(edges):
            np.testing.assert_array_equal(arrays.read(name, start, stop), values[start:stop])


def test_simulate__summary(tmp_path, capsys):
    assert simulate(tmp_path / "new" / "store") == 0
    out, err = capsys.readouterr()
    store = TransitionStore.open(tmp_path / "new" / "store")
    assert out.startswith(f"{store!r}\n")
    assert "MiB on disk, written in" in out
    assert "simulation: done in" in err


def test_simulate__json_alone_on_stdout(tmp_path, capsys):
    assert simulate(tmp_path / "store", "--json", "--steps", 5, transitions=42) == 0
    summary = json.loads(capsys.readouterr().out)
    assert 0 < summary.pop("seconds") < 60
    assert summary == {
        "path": str(tmp_path / "store"),
        "rows": 53,
        "episodes": 11,
        "transitions": 42,
        "dims": {"state": 5, "action": 1, "reward": 3},
        "fingerprint": TransitionStore.open(tmp_path / "store").fingerprint,
        "bytes": sum(len(part) for part in content(tmp_path / "store").values()),
    }


def test_simulate__seed_and_pair_decide_the_data(tmp_path):
    variants = {"a": (), "b": (), "c": ("--seed", 1), "d": ("--pair", "logistic-uniform")}
    for name, options in variants.items():
        assert simulate(tmp_path / name, *options) == 0
    prints = {name: TransitionStore.open(tmp_path / name).fingerprint for name in variants}
    assert prints["a"] == prints["b"]
    assert len(set(prints.values())) == 3


@pytest.mark.parametrize("name", SYSTEMS)
def test_simulate__system_by_name(name, tmp_path):
    assert simulate(tmp_path / "store", "--system", name, "--steps", 9, "--seed", 2) == 0
    pair, store = simulation.PAIRS["uniform-gaussian"], TransitionStore.open(tmp_path / "store")
    expected = simulation.write(tmp_path / "same", pair, 40, n_steps=9, seed=2, system=SYSTEMS[name])
    assert store.fingerprint == expected.fingerprint
    assert store.n_transitions == 40
    assert (store.n_terminal > 0) == (name == "terminating")


def test_simulate__system_of_the_paper_unless_told(tmp_path):
    prints = set()
    for i, options in enumerate([(), *(("--system", name) for name in SYSTEMS)]):
        assert simulate(tmp_path / str(i), *options, "--steps", 9) == 0
        prints.add(TransitionStore.open(tmp_path / str(i)).fingerprint)
        assert len(prints) == max(i, 1)


def test_simulate__help_tells_the_systems(capsys):
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert set(SYSTEMS) <= {words[0] for words in lines if len(words) > 3}


def test_simulate__store_is_as_readable_as_other_new_directories(tmp_path):
    (tmp_path / "plain").mkdir()
    simulate(tmp_path / "store")
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )


def test_write__advance_counts_the_transitions_of_each_block(tmp_path):
    counts = []
    pair = simulation.PAIRS["uniform-gaussian"]
    simulation.write(tmp_path / "store", pair, 4_500, n_steps=3, burn_in=0, advance=counts.append)
    assert counts == [2_000, 2_000, 500]
    cut = []
    simulation.write(tmp_path / "cut", pair, 2_005, n_steps=3, burn_in=0, advance=cut.append)
    assert cut == [2_000, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH, --transitions"),
        (["store", "--transitions", "0"], "0 is not a whole number ≥ 1"),
        (["store", "--transitions", "1e6"], "'1e6' is not a whole number"),
        (["store", "--transitions", "5", "--steps", "1"], "1 is not between 2 and 5,000"),
        (["store", "--transitions", "5", "--steps", "5001"], "a thousand episodes are in memory at a time"),
        (["store", "--transitions", "5", "--pair", "cauchy"], "invalid choice: 'cauchy'"),
        (["store", "--transitions", "5", "--system", "chaos"], "invalid choice: 'chaos'"),
    ],
)
def test_simulate__bad_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["simulate", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["store", "empty", "file", "broken link"])
def test_simulate__existing_path_is_refused_before_any_work(kind, tmp_path, capsys, monkeypatch):
    path = tmp_path / "there"
    if kind == "store":
        simulate(path)
        capsys.readouterr()
    elif kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = content(tmp_path)
    fail_at_step(monkeypatch, 1, AssertionError("work was begun"))
    assert simulate(path) == 2
    line = only_line(capsys.readouterr().err)
    assert line.startswith(f"kedrl: error: {path} already exists; choose another path, or add --overwrite")
    assert content(tmp_path) == before


def make_foreign(path, kind):
    """Something at the path that is no whole transition store."""
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        simulate(path.parent / "elsewhere")
        path.symlink_to(path.parent / "elsewhere")
    elif kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    elif kind == "another kind":
        ArrayStore.create(path, "kedrl model", (), {}, {})
    elif kind == "incomplete":
        TransitionStore.writer(path, state_dim=1, action_dim=1, reward_dim=1)
    else:
        simulate(path)
        (path / "notes.txt").write_text("added later")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("file", "is not a directory"),
        ("link", "is not a directory"),
        ("folder", "not a Zarr v3 group"),
        ("another kind", "a store of kind 'kedrl model', expected 'transitions'"),
        ("incomplete", "its writer failed or is still at work"),
        ("store with notes", "holds 'notes.txt', which is not part of a transition store"),
    ],
)
def test_simulate__overwrite_refuses_what_is_no_store(kind, message, tmp_path, capsys, monkeypatch):
    path = tmp_path / "there"
    make_foreign(path, kind)
    capsys.readouterr()
    before = content(tmp_path)
    fail_at_step(monkeypatch, 1, AssertionError("work was begun"))
    assert simulate(path, "--overwrite") == 2
    line = only_line(capsys.readouterr().err)
    assert message in line
    assert "--overwrite does not replace it" in line
    assert content(tmp_path) == before


def test_simulate__overwrite_replaces_a_store(tmp_path):
    assert simulate(tmp_path / "store") == 0
    assert simulate(tmp_path / "store", "--overwrite", transitions=90) == 0
    store = TransitionStore.open(tmp_path / "store")
    store.verify()
    assert store.n_transitions == 90
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("step", [1, 40, 160])  # in the burn-in, while recording, in the second block
def test_simulate__interrupted_leaves_nothing(step, tmp_path, capsys, monkeypatch):
    fail_at_step(monkeypatch, step, KeyboardInterrupt())
    path = tmp_path / "new" / "folder" / "store"
    assert simulate(path, transitions=55_000) == 130
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == f"kedrl: interrupted; nothing was written to {path}"
    assert not list(tmp_path.iterdir())


def test_simulate__full_disk_leaves_nothing(tmp_path, capsys, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    fail_at_step(monkeypatch, 160, OSError(28, "No space left on device", "chunk"))
    assert simulate(tmp_path / "store", transitions=55_000) == 2
    assert "kedrl: error: [Errno 28] No space left on device" in capsys.readouterr().err
    assert content(tmp_path) == {"notes.txt": b"mine"}


def test_simulate__interrupted_overwrite_keeps_the_earlier_store(tmp_path, monkeypatch):
    simulate(tmp_path / "store")
    before = content(tmp_path)
    fail_at_step(monkeypatch, 160, KeyboardInterrupt())
    assert simulate(tmp_path / "store", "--overwrite", transitions=55_000) == 130
    assert content(tmp_path) == before


def test_simulate__failing_move_puts_the_earlier_store_back(tmp_path, monkeypatch):
    simulate(tmp_path / "store")
    before, rename, refused = content(tmp_path), os.rename, []

    def refuse_new(source, target):
        if target == tmp_path / "store" and not refused:
            refused.append(source)
            raise PermissionError(13, "Permission denied", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_new)
    assert simulate(tmp_path / "store", "--overwrite", transitions=90) == 2
    assert refused
    assert content(tmp_path) == before


def test_simulate__what_appears_meanwhile_is_kept(tmp_path, capsys, monkeypatch):
    write = simulation.write

    def write_beside(*arguments, **options):
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "notes.txt").write_text("mine")
        return write(*arguments, **options)

    monkeypatch.setattr(simulation, "write", write_beside)
    assert simulate(tmp_path / "store") == 2
    assert "already exists" in capsys.readouterr().err
    assert content(tmp_path) == {"store/notes.txt": b"mine"}
    assert len(list(tmp_path.iterdir())) == 1


#: ``python -m kedrl_dask`` that never ends the second block, however slow the machine and small its disk.
ENDLESS = """
import runpy, time
from kedrl_dask.datasets import simulation

step, done = simulation.LinearGaussianSystem.step, []

def endless(self, *arguments):
    done.append(1)
    if len(done) == 160:
        time.sleep(600)
    return step(self, *arguments)

simulation.LinearGaussianSystem.step = endless
runpy.run_module("kedrl_dask", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_module__ctrl_c(tmp_path):
    """The real thing: a signal when chunks have been written, one line, no traceback, nothing left."""
    path = tmp_path / "new" / "store"
    command = [sys.executable, "-c", ENDLESS, "simulate", str(path), "--transitions", "55000"]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    try:
        while not list(tmp_path.glob("new/.store.*.partial/state/c/*")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == f"kedrl: interrupted; nothing was written to {path}"
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
