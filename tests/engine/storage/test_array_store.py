"""Stores of declared arrays: creation, checks on opening, reading, whole-chunk writing."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from kedrl_dask import __version__
from kedrl_dask.engine.storage import atomic
from kedrl_dask.engine.storage.array_store import FORMAT_VERSION, ArrayStore
from kedrl_dask.engine.storage.atomic import remove
from kedrl_dask.engine.storage.directories import StoreError, digest
from kedrl_dask.engine.storage.schema import TRANSITIONS, ArraySpec

SPECS = (
    ArraySpec("matrix", ("row", "column"), "float64", "numbers"),
    ArraySpec("label", ("row",), "int64", "a label per row"),
    ArraySpec("weight", ("column",), "float32", "a weight per column"),
)


def make(path, rows=10, chunk=4, columns=3):
    store = ArrayStore.create(
        path, "example", SPECS, {"row": rows, "column": columns}, {"row": chunk}, {"seed": 7}
    )
    matrix = np.arange(float(rows * columns)).reshape(rows, columns)
    store.write("matrix", 0, matrix)
    store.write("label", 0, np.arange(rows) * 10)
    store.write("weight", 0, np.ones(columns))
    return store, matrix


def test_create__attributes_and_metadata_describe_the_store(tmp_path):
    store, _ = make(tmp_path / "s")
    assert store.attributes == {
        "seed": 7,
        "kind": "example",
        "format_version": FORMAT_VERSION,
        "created_by": f"kedrl_dask {__version__}",
    }
    array = zarr.open_group(tmp_path / "s", mode="r")["matrix"]
    assert array.metadata.dimension_names == ("row", "column")
    assert array.attrs["meaning"] == "numbers"
    assert store.names == ("label", "matrix", "weight")
    assert (store.size("row"), store.chunk("row")) == (10, 4)
    assert (store.size("column"), store.chunk("column")) == (3, 3)
    assert store.path == tmp_path / "s"
    assert "example" in repr(store)


def test_create__existing_content_is_refused(tmp_path):
    make(tmp_path / "s")
    with pytest.raises(FileExistsError, match="already exists"):
        make(tmp_path / "s")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="file: already exists"):
        make(tmp_path / "file")


def test_create__empty_directory_is_accepted(tmp_path):
    (tmp_path / "s").mkdir()
    make(tmp_path / "s")


def test_create__missing_size_is_named(tmp_path):
    with pytest.raises(ValueError, match="dimension column"):
        ArrayStore.create(tmp_path / "s", "example", SPECS, {"row": 1}, {})


def test_open__missing_path(tmp_path):
    with pytest.raises(StoreError, match="nothing: no such store"):
        ArrayStore.open(tmp_path / "nothing", "example")


@pytest.mark.parametrize("what", ["file", "directory", "array", "broken"])
def test_open__not_a_group(tmp_path, what):
    path = tmp_path / what
    if what == "file":
        path.write_text("x")
    elif what == "array":
        zarr.create_array(path, shape=3, dtype="f8")
    else:
        path.mkdir()
    if what == "broken":
        (path / "zarr.json").write_text("{ not json")
    with pytest.raises(StoreError, match="not a Zarr v3 group"):
        ArrayStore.open(path, "example")


def test_open__foreign_group(tmp_path):
    zarr.create_group(tmp_path / "s", zarr_format=3)
    with pytest.raises(StoreError, match="kind None, expected 'example'"):
        ArrayStore.open(tmp_path / "s", "example")


def test_open__another_kind(tmp_path):
    make(tmp_path / "s")
    with pytest.raises(StoreError, match="kind 'example', expected 'transitions'"):
        ArrayStore.open(tmp_path / "s", "transitions")


def test_open__newer_format(tmp_path):
    store, _ = make(tmp_path / "s")
    store.update_attributes(format_version=FORMAT_VERSION + 1)
    with pytest.raises(StoreError, match="install a newer kedrl-dask"):
        ArrayStore.open(tmp_path / "s", "example")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ArraySpec("absent", ("row",), "int64", ""), "array absent is missing"),
        (ArraySpec("label", ("row",), "float64", ""), "array label has dtype int64, expected float64"),
        (ArraySpec("label", ("line",), "int64", ""), r"array label has dimensions \('row',\)"),
        (ArraySpec("matrix", ("row",), "float64", ""), r"array matrix has dimensions"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_open__arrays_differ_from_their_declaration(tmp_path, spec, message, finished):
    store, _ = make(tmp_path / "s")
    if finished:
        store.finish()
    ArrayStore.open(tmp_path / "s", "example", specs=SPECS)
    with pytest.raises(StoreError, match=message):
        ArrayStore.open(tmp_path / "s", "example", specs=[spec])


def test_open__finished_store_needs_one_file(tmp_path):
    store, matrix = make(tmp_path / "s")
    store.finish()
    for name in store.names:
        os.remove(tmp_path / "s" / name / "zarr.json")
    opened = ArrayStore.open(tmp_path / "s", "example", specs=SPECS)
    np.testing.assert_array_equal(opened.read("matrix"), matrix)


def test_open__reading_only_cannot_write(tmp_path):
    make(tmp_path / "s")
    with pytest.raises(ValueError, match="read-only"):
        ArrayStore.open(tmp_path / "s", "example").write("weight", 0, np.zeros(3))


def test_attributes__are_copies_and_updates_persist(tmp_path):
    store, _ = make(tmp_path / "s")
    store.update_attributes(marks=[1, 2])
    store.attributes["marks"].append(3)
    assert ArrayStore.open(tmp_path / "s", "example").attributes["marks"] == [1, 2]


def test_read__ranges(tmp_path):
    store, matrix = make(tmp_path / "s")
    np.testing.assert_array_equal(store.read("matrix", 3, 9), matrix[3:9])
    np.testing.assert_array_equal(store.read("matrix", 10), matrix[10:])
    for start, stop in [(-1, 3), (0, 11), (4, 3)]:
        with pytest.raises(ValueError, match="array matrix has 10 rows"):
            store.read("matrix", start, stop)


def test_read__damaged_chunk_is_named(tmp_path):
    store, _ = make(tmp_path / "s")
    (tmp_path / "s" / "matrix" / "c" / "1" / "0").write_bytes(b"rubbish")
    with pytest.raises(StoreError, match=r"array matrix, rows 0:10 cannot be read.*matrix/c/1/0 is damaged"):
        store.read("matrix")


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_take__any_rows_in_any_order(tmp_path_factory, data):
    rows = data.draw(st.integers(1, 30))
    store, matrix = make(tmp_path_factory.mktemp("take") / "s", rows, data.draw(st.integers(1, 12)))
    wanted = data.draw(st.lists(st.integers(0, rows - 1), max_size=40))
    np.testing.assert_array_equal(store.take("matrix", wanted), matrix[np.array(wanted, dtype=int)])


def test_take__each_chunk_is_read_once(tmp_path, monkeypatch):
    store, _ = make(tmp_path / "s")
    reads = []
    original = ArrayStore.read
    monkeypatch.setattr(
        ArrayStore, "read", lambda self, *args: reads.append(args[1] // 4) or original(self, *args)
    )
    store.take("matrix", [9, 0, 8, 1, 0])
    assert reads == [0, 2]


def test_take__outside_the_array(tmp_path):
    store, _ = make(tmp_path / "s")
    with pytest.raises(ValueError, match="asked for rows -1 to 10"):
        store.take("matrix", [0, 10, -1])


@pytest.mark.parametrize(("start", "count"), [(0, 4), (4, 4), (4, 6), (8, 2), (0, 10)])
def test_write__whole_chunks_are_accepted(tmp_path, start, count):
    store, matrix = make(tmp_path / "s")
    store.write("matrix", start, matrix[start : start + count] + 1)
    matrix[start : start + count] += 1
    np.testing.assert_array_equal(store.read("matrix"), matrix)


@pytest.mark.parametrize(("start", "count"), [(1, 4), (0, 3), (4, 5), (8, 4)])
def test_write__parts_of_chunks_are_refused(tmp_path, start, count):
    store, matrix = make(tmp_path / "s")
    with pytest.raises(ValueError, match="not whole chunks; start and end on multiples of 4"):
        store.write("matrix", start, np.zeros((count, 3)))
    np.testing.assert_array_equal(store.read("matrix"), matrix)


def test_write__wrong_shape_or_type_is_refused(tmp_path):
    store, _ = make(tmp_path / "s")
    with pytest.raises(ValueError, match="array matrix has rows of shape"):
        store.write("matrix", 0, np.zeros((10, 2)))
    with pytest.raises(TypeError, match="Cannot cast"):
        store.write("label", 0, np.full(10, 0.5))


def test_resize__lengthens_and_cuts_arrays_with_that_leading_dimension(tmp_path):
    store, matrix = make(tmp_path / "s")
    store.resize("row", 12)
    assert (store.size("row"), store.size("column")) == (12, 3)
    np.testing.assert_array_equal(store.read("matrix")[:10], matrix)
    assert not store.read("matrix", 10).any()
    store.resize("row", 3)
    store.finish()
    opened = ArrayStore.open(tmp_path / "s", "example")
    np.testing.assert_array_equal(opened.read("label"), [0, 10, 20])
    assert opened.read("weight").size == 3


def test_finish__later_changes_are_seen_by_new_readers(tmp_path):
    store, _ = make(tmp_path / "s")
    store.finish()
    store.resize("row", 12)
    assert ArrayStore.open(tmp_path / "s", "example").size("row") == 10, "readers see the last commit"
    store.update_attributes(seed=8)
    assert ArrayStore.open(tmp_path / "s", "example").size("row") == 12


def test_store__survives_pickling(tmp_path):
    store, matrix = make(tmp_path / "s")
    store.finish()
    opened = ArrayStore.open(tmp_path / "s", "example")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(opened)).read("matrix"), matrix)


def test_digest__depends_on_type_shape_and_content_only():
    values = np.arange(6.0).reshape(2, 3)
    assert digest(values) == digest(np.asfortranarray(values)) == digest(np.repeat(values, 2, axis=1)[:, ::2])
    others = [
        values.reshape(3, 2),
        values.astype("f4"),
        values + 1,
        values[:1],
        np.empty((0, 3)),
        np.float64(1),
    ]
    assert len({digest(other) for other in [values, *others]}) == 1 + len(others)


def test_schema__names_are_unique_and_types_exist():
    assert len({spec.name for spec in TRANSITIONS}) == len(TRANSITIONS)
    for spec in TRANSITIONS:
        assert np.dtype(spec.dtype).name == spec.dtype
        assert spec.meaning


def test_remove__waits_for_a_write_that_was_interrupted(tmp_path, monkeypatch):
    """Else the write, which goes on in zarr's own thread, would make the directory again."""
    store, _ = make(tmp_path / "s")
    put, begun, ended = zarr.storage._local._put, threading.Event(), threading.Event()

    def slow_put(*arguments, **options):
        begun.set()
        time.sleep(0.5)
        put(*arguments, **options)
        ended.set()

    def interrupt():
        begun.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    monkeypatch.setattr(zarr.storage._local, "_put", slow_put)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        store.write("label", 0, np.arange(10))
    assert not ended.is_set()
    remove(tmp_path / "s")
    assert ended.is_set()
    assert not list(tmp_path.iterdir())


def test_remove__does_not_wait_for_a_thread_that_is_stuck(tmp_path, monkeypatch):
    """An interruption can leave zarr's thread waiting for a lock that nobody gives back."""
    make(tmp_path / "s")
    monkeypatch.setattr(atomic, "MOST_SECONDS_OF_WRITES", 0.2)
    unstuck = threading.Event()
    zarr.core.sync._get_loop().call_soon_threadsafe(unstuck.wait)
    start = time.monotonic()
    try:
        remove(tmp_path / "s")
    finally:
        unstuck.set()
    assert 0.2 <= time.monotonic() - start < 5
    assert not list(tmp_path.iterdir())


def test_remove__what_is_not_there(tmp_path):
    remove(tmp_path / "nothing")
    assert not list(tmp_path.iterdir())
