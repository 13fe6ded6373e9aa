"""A file or directory appears when it is complete, or not at all."""

from __future__ import annotations

import os

import pytest

from kedrl_dask.engine.storage.atomic import atomic_directory, atomic_file, discard, remove, write_atomic


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def fill(path, content="file", overwrite=False, then=lambda: None):
    """Make a directory with one file in it."""
    with atomic_directory(path, overwrite) as partial:
        partial.mkdir()
        (partial / content).touch()
        then()


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("durable", [False, True])
def test_file__replaces_only_when_complete(tmp_path, durable):
    path = tmp_path / "file"

    def interrupted():
        with atomic_file(path, durable) as file:
            file.write(b"half")
            assert path.read_text() == "old"
            interrupt()

    write_atomic(path, "old", durable)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    write_atomic(path, memoryview(b"new"), durable)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_directory__appears_with_its_parents_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "b" / "c"
    with pytest.raises(KeyboardInterrupt):
        fill(path, then=interrupt)
    assert not names(tmp_path)
    seen = []
    fill(path, then=lambda: seen.append(path.exists()))
    assert seen == [False]
    assert names(path.parent) == ["c"]
    assert names(path) == ["file"]


def test_directory__takes_an_empty_one_and_refuses_another(tmp_path):
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty")
    assert names(tmp_path / "empty") == ["file"]
    with pytest.raises(FileExistsError, match="already exists"):
        fill(tmp_path / "empty")


def test_directory__appeared_meanwhile_is_kept(tmp_path):
    path = tmp_path / "d"
    with pytest.raises(OSError, match="not empty"):
        fill(path, then=lambda: (path / "theirs").mkdir(parents=True))
    assert names(tmp_path) == ["d"]
    assert names(path) == ["theirs"]


def test_directory__overwritten_in_one_step(tmp_path):
    path = tmp_path / "d"
    fill(path, "old", overwrite=True)
    fill(path, "new", overwrite=True)
    assert names(path) == ["new"]
    assert names(tmp_path) == ["d"]


def test_directory__the_old_one_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    path, rename = tmp_path / "d", os.rename
    fill(path, "old")

    def failing(source, target):
        if target == path and "new" in names(source):
            raise PermissionError("not today")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(PermissionError):
        fill(path, "new", overwrite=True)
    assert names(path) == ["old"]
    assert names(tmp_path) == ["d"]


def test_discard_and_remove(tmp_path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    discard(tmp_path / "d")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    remove(tmp_path / "link")
    assert names(tmp_path) == ["file"]
    remove(tmp_path / "file")
    assert not names(tmp_path)
