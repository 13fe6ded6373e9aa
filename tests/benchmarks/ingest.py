"""Storing tables: rows per second and peak memory, and whether every format gives the same store.

``python -m tests.benchmarks.ingest`` writes a shuffled table of mixed types, one in a hundred values of two
columns missing, as CSV and as Parquet, stores each in a process of its own, and compares the fingerprints; up
to two million rows also with the store of arrays in memory. ``--rows 10000000`` is the size for which memory
is to stay within 2 GiB: above that it fails, as it does if stores differ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from kedrl_dask import TransitionStore
from tests.memory import peak_memory

LENGTH, PIECE = 50, 200_000
MOST_BYTES, MOST_IN_MEMORY = 2 * 2**30, 2_000_000
TOWNS = np.array(["Bern", "Genève", "Lyon", "St. Gallen, CH", "Zürich"])
COLUMNS = {
    "episode": "id",
    "step": "t",
    "state": ["x", "y", "k", "town", "open"],
    "action": ["a"],
    "reward": ["r1", "r2"],
    "terminated": "done",
}
OPTIONS = {"columns": COLUMNS, "categorical": ["town"], "missing": "impute", "progress": "none"}


def rows(number):
    """Rows of these numbers: each depends on its own number only."""
    wave = np.sin(number[:, None] * np.array([0.7, 1.3, 2.1, 0.37, 5.3]))
    x = 100 * wave[:, 0] + 1e3
    town = TOWNS[(number * 7919) % len(TOWNS)].astype(object)
    return {
        "id": number // LENGTH,
        "t": number % LENGTH,
        "x": np.where(number % 100 == 7, np.nan, x),
        "y": wave[:, 1],
        "k": number * 31 % 12,
        "town": np.where(number % 100 == 11, None, town),
        "open": number % 3 == 0,
        "a": wave[:, 2],
        "r1": wave[:, 3],
        "r2": np.exp(wave[:, 4]),
        "done": (number % LENGTH == LENGTH - 1) & (number // LENGTH % 2 == 0),
    }


def write_tables(folder, n_rows, kinds=("csv", "parquet")):
    """The rows in random order, in these formats."""
    order = np.random.default_rng(0).permutation(n_rows)
    schema = pa.table(typed(rows(np.arange(200)))).schema
    writers = {"csv": csv.CSVWriter, "parquet": parquet.ParquetWriter}
    with ExitStack() as stack:
        files = [stack.enter_context(writers[kind](folder / f"table.{kind}", schema)) for kind in kinds]
        for start in range(0, n_rows, PIECE):
            table = pa.table(typed(rows(order[start : start + PIECE])), schema=schema)
            for file in files:
                file.write_table(table)


def typed(columns):
    return {name: pa.array(values, from_pandas=True) for name, values in columns.items()}


def store_arrays(path, n_rows):
    """The store of the same rows from arrays, encoded here."""
    number = np.arange(n_rows)
    found = rows(number)
    missing = np.isnan(found["x"])
    mean = float(sum(map(Fraction, found["x"][~missing].tolist()), Fraction()) / int((~missing).sum()))
    state = [np.where(missing, mean, found["x"]), missing, found["y"], found["k"]]
    state += [found["town"] == town for town in TOWNS]
    state += [np.array([town is None for town in found["town"]]), found["open"]]
    return TransitionStore.from_arrays(
        path,
        state=np.stack([np.asarray(column, dtype=float) for column in state], axis=1),
        action=found["a"][:, None],
        reward=np.stack([found["r1"], found["r2"]], axis=1),
        episode=found["id"],
        step=found["t"],
        terminated=found["done"],
    )


def store_one(path, source):
    """Store one table and print what it took: run in a process of its own."""
    before, start = peak_memory(), time.perf_counter()
    store = TransitionStore.from_table(path, source, **OPTIONS)
    seconds = time.perf_counter() - start
    print(json.dumps([store.fingerprint, seconds, peak_memory(), before]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "parquet"])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return store_one(*options.one)
    n_rows = options.rows // LENGTH * LENGTH
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        write_tables(folder, n_rows, options.formats)
        print(f"{n_rows:,} shuffled rows")
        for kind in options.formats:
            source = folder / f"table.{kind}"
            command = [sys.executable, "-m", "tests.benchmarks.ingest", "--one", folder / kind, source]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[kind], seconds, peak, before = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{kind:<8} {source.stat().st_size / 2**20:7,.0f} MiB  {n_rows / seconds:10,.0f} rows/s  "
                f"peak memory {peak / 2**20:,.0f} MiB ({before / 2**20:,.0f} before)"
            )
            assert peak <= MOST_BYTES, f"{kind}: {peak / 2**30:.2f} GiB are more than 2"
        if n_rows <= MOST_IN_MEMORY:
            found["arrays in memory"] = store_arrays(folder / "arrays", n_rows).fingerprint
    for kind, fingerprint in found.items():
        print(f"{kind:<18} {fingerprint[:16]}")
    assert len(set(found.values())) == 1, "the stores differ"
    if len(found) > 1:
        print("the stores are the same")


if __name__ == "__main__":
    main()
