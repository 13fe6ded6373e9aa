"""Results filed by what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from kedrl_dask import Matern
from kedrl_dask.cache import Cache


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


def test_get_all__only_what_is_missing(tmp_path):
    cache = Cache(tmp_path)
    cache.get("first", {}, fill("kept"))
    seen = []

    def make(missing):
        seen.extend(missing)
        for path in missing.values():
            fill("new")(path)

    paths = cache.get_all({"first": {}, "second": {}}, make)
    assert seen == ["second"]
    assert [(paths[kind] / "result").read_text() for kind in ("first", "second")] == ["kept", "new"]


def test_get__another_process_was_faster(tmp_path):
    cache = Cache(tmp_path)

    def slow(path):
        fill("late")(path)
        cache.get("kind", {}, fill("early"))

    assert (cache.get("kind", {}, slow) / "result").read_text() == "early"
    assert len(list(tmp_path.iterdir())) == 1
