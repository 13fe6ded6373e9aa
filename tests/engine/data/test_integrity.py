"""Every layer of integrity checks catches something that no other layer on its path does."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import zarr

from kedrl_dask import TransitionStore
from kedrl_dask.engine.storage import manifest
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from tests.conftest import make_episodes

CHUNK = "state/c/1/0"


def flip(path):
    content = bytearray((path / CHUNK).read_bytes())
    content[len(content) // 2] ^= 4
    (path / CHUNK).write_bytes(content)


def truncate(path):
    (path / CHUNK).write_bytes((path / CHUNK).read_bytes()[:-5])


def exchange(path):
    shutil.copy(path / "state/c/2/0", path / CHUNK)


def rewrite(value):
    """By another program, which computes the checksum too."""

    def change(path):
        array = zarr.open_group(path, mode="r+", use_consolidated=False)["state"]
        array[16:32] = np.where(np.arange(16)[:, None] == 3, value, array[16:32])

    return change


def relabel(path):
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"n_terminal": 0', '"n_terminal": 1'))


#: Of damage: what notices it, among Zarr's CRC-32C; ArrayStore.read, which also misses absent chunks; opening
#: the store, with a checksum of its attributes; reading transitions, which must be finite; sha256 digests of
#: the content; and a manifest of CRC-32, where there is one (a cache's results).
CAUGHT_BY = {
    "flip": (flip, "zarr read transitions sha256 manifest"),
    "truncate": (truncate, "zarr read transitions sha256 manifest"),
    "delete": (lambda path: os.remove(path / CHUNK), "read transitions sha256 manifest"),
    "exchange": (exchange, "sha256 manifest"),
    "rewrite": (rewrite(0.5), "sha256 manifest"),
    "NaN": (rewrite(np.nan), "transitions sha256 manifest"),
    "attributes": (relabel, "open transitions sha256 manifest"),
}
LAYERS = {
    "zarr": lambda path: zarr.open_group(path, mode="r")["state"][:],
    "read": lambda path: ArrayStore.open(path, "transitions").read("state"),
    "open": TransitionStore.open,
    "transitions": lambda path: TransitionStore.open(path).transitions(),
    "sha256": lambda path: TransitionStore.open(path).verify(),
}


def notices(layer, path):
    try:
        LAYERS[layer](path)
    except (StoreError, ValueError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("damage", CAUGHT_BY)
def test_damage__is_caught_where_it_should_be(damage, tmp_path):
    path = TransitionStore.from_arrays(tmp_path / "s", **make_episodes(10, 8), chunk_rows=16).path
    manifest.commit(path, "whole", [file for file in path.rglob("*") if file.is_file()])
    assert not any(notices(layer, path) for layer in LAYERS)
    make, expected = CAUGHT_BY[damage]
    make(path)
    caught = {layer for layer in LAYERS if notices(layer, path)}
    caught |= {"manifest"} if manifest.damaged(path, "whole") else set()
    assert caught == set(expected.split())
