"""Results filed by what they depend on."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kedrl_dask import Matern
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.schema import ArraySpec


def fill(text):
    def make(path):
        path.mkdir()
        (path / "result").write_text(text)

    return make


def test_get__made_once(tmp_path):
    cache = Cache(tmp_path / "cache")
    first = cache.get("kind", {"n": 1}, fill("made"))
    assert (first / "result").read_text() == "made"
    again = cache.get("kind", {"n": 1}, lambda path: pytest.fail("made again"))
    assert again == first == cache.path("kind", {"n": 1})
    assert Cache(tmp_path / "cache").get("kind", {"n": 1}, lambda path: pytest.fail("made again")) == first


@pytest.mark.parametrize(
    "other",
    [
        {"n": 2, "x": np.zeros(3), "kernel": Matern(5.5, 1.0)},
        {"n": 1, "x": np.array([0, 0, 1e-300]), "kernel": Matern(5.5, 1.0)},
        {"n": 1, "x": np.zeros(3, np.float32), "kernel": Matern(5.5, 1.0)},
        {"n": 1, "x": np.zeros(3), "kernel": Matern(5.5, (1.0, 1.0))},
        {"n": 1, "x": np.zeros(3), "kernel": Matern(5.5, 1.0), "more": None},
    ],
)
def test_path__tells_facts_apart(tmp_path, other):
    cache = Cache(tmp_path)
    facts = {"n": 1, "x": np.zeros(3), "kernel": Matern(5.5, 1.0)}
    assert cache.path("kind", facts) == cache.path("kind", {**facts, "x": np.zeros(3), "n": np.int64(1)})
    assert cache.path("kind", facts) != cache.path("kind", other)
    assert cache.path("kind", facts) != cache.path("other", facts)


def test_get__failure_leaves_nothing(tmp_path):
    cache = Cache(tmp_path / "cache")

    def fail(path):
        fill("half")(path)
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        cache.get("kind", {}, fail)
    assert list((tmp_path / "cache").iterdir()) == []


N_BLOCKS = 4


class Squares:
    """A result made of blocks: how its store is made and filled, and what was asked for."""

    def __init__(self):
        self.asked = []

    def create(self, kind, path):
        spec = ArraySpec("square", ("block", "column"), "float64", "")
        ArrayStore.create(path, kind, [spec], {"block": N_BLOCKS, "column": 3}, {"block": 1}).finish()

    def compute(self, paths, blocks):
        self.asked.append((sorted(paths), blocks))
        for kind, path in paths.items():
            for block in blocks:
                store = ArrayStore.open(path, kind, writable=True)
                store.write("square", block, np.full((1, 3), float(block**2)))
                store.commit(block)

    def get(self, cache, *kinds, **facts):
        return cache.complete(dict.fromkeys(kinds, facts), N_BLOCKS, self.create, self.compute)


def squares(path):
    return ArrayStore.open(path, path.parent.name.rpartition("-")[0]).read("square")[:, 0].tolist()


def test_complete__only_what_is_missing(tmp_path):
    result = Squares()
    (path,) = result.get(Cache(tmp_path), "first").values()
    again = result.get(Cache(tmp_path), "first")
    assert again == {"first": path}
    paths = result.get(Cache(tmp_path), "first", "second")
    assert result.asked == [(["first"], [0, 1, 2, 3]), (["second"], [0, 1, 2, 3])]
    assert [squares(path) for path in paths.values()] == [[0, 1, 4, 9]] * 2


def test_complete__goes_on_after_an_interruption(tmp_path):
    class Interrupted(Squares):
        def compute(self, paths, blocks):
            super().compute(paths, blocks[:2])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted().get(Cache(tmp_path), "kind")
    result, notes = Squares(), []
    cache = Cache(tmp_path, note=lambda event, **facts: notes.append((event, facts)))
    (path,) = result.get(cache, "kind").values()
    assert result.asked == [(["kind"], [2, 3])]
    assert squares(path) == [0, 1, 4, 9]
    assert notes == [("blocks", {"kinds": ["kind"], "found": 2, "missing": 2})]


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [flip, truncate, os.remove])
@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("result/square/c/2/0", [2]),
        ("manifest/2.json", [2]),
        ("result/square/zarr.json", [0, 1, 2, 3]),
        ("result/zarr.json", [0, 1, 2, 3]),
        ("manifest/whole.json", [0, 1, 2, 3]),
    ],
)
def test_complete__damage_is_noticed_and_mended(tmp_path, file, lost, damage):
    result, notes = Squares(), []
    path = result.get(Cache(tmp_path), "kind")["kind"]
    damage(path.parent / file)
    cache = Cache(tmp_path, note=lambda event, **facts: notes.append((event, facts)))
    assert result.get(cache, "kind") == {"kind": path}
    assert result.asked[1:] == [(["kind"], lost)]
    assert squares(path) == [0, 1, 4, 9]
    if (file, damage) != ("manifest/2.json", os.remove):  # which looks as if the block had never been made
        assert notes[0][0] == "damaged"
        assert str(path.parent) in notes[0][1]["file"]
    assert notes[-1] == ("blocks", {"kinds": ["kind"], "found": 4 - len(lost), "missing": len(lost)})


@pytest.mark.parametrize("damage", [flip, truncate, os.remove])
def test_get__damage_is_noticed_and_mended(tmp_path, damage):
    path = Cache(tmp_path).get("kind", {}, fill("whole"))
    damage(path / "result")
    assert (Cache(tmp_path).get("kind", {}, fill("again")) / "result").read_text() == "again"


def test_check__damage_is_known_before_it_is_met(tmp_path):
    result, notes = Squares(), []
    path = result.get(Cache(tmp_path), "kind")["kind"]
    flip(path / "square" / "c" / "1" / "0")
    cache = Cache(tmp_path, note=lambda event, **facts: notes.append((event, facts)))
    cache.check()
    assert notes == [("damaged", {"file": str(path / "square" / "c" / "1" / "0")})]
    result.get(cache, "kind")
    assert result.asked[1:] == [(["kind"], [1])]


def test_get__another_process_was_faster(tmp_path):
    cache = Cache(tmp_path)

    def slow(path):
        fill("late")(path)
        cache.get("kind", {}, fill("early"))

    assert (cache.get("kind", {}, slow) / "result").read_text() == "early"
    assert len(list(tmp_path.iterdir())) == 1
