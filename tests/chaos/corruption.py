"""Bits flipped, files cut short and files deleted, in everything that a run keeps and in its data."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np

from kedrl_dask import KEDRL
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.directories import StoreError
from tests.chaos.common import Tally, events, problem_of

DAMAGES = ("flip", "truncate", "delete")
PLACES = ("blocks", "blocks", "blocks", "manifests", "checkpoints", "model", "data")


def damage(file, how, rng):
    """Change a file in one of three ways."""
    if how == "delete":
        os.remove(file)
        return
    content = bytearray(file.read_bytes())
    if how == "truncate":
        content = content[: int(rng.integers(len(content)))]
    else:
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)


def stored_files(run, data):
    """Everything that is relied on, by where it is: what manifests list, they themselves, and the data."""
    entries = {
        "blocks": [*(run / "cache").glob("*/manifest/*.json")],
        "checkpoints": [*(run / "checkpoints" / "manifest").glob("*.json")],
        "model": [run / "manifest" / "model.json"],
    }
    homes = {"blocks": "result", "checkpoints": "states", "model": "model"}
    files = {
        place: [
            entry.parent.parent / homes[place] / name
            for entry in listed
            for name in json.loads(entry.read_text())["files"]
        ]
        for place, listed in entries.items()
    }
    files["manifests"] = [entry for listed in entries.values() for entry in listed]
    files["data"] = [file for file in data.rglob("*") if file.is_file() and "c" in file.parts]
    return {place: sorted(set(found)) for place, found in files.items()}


def resume(run, is_model):
    """Go on with a run as if it had not come to its end, unless its end is what was damaged."""
    if not is_model:
        shutil.rmtree(run / "model", ignore_errors=True)
        (run / "manifest" / "model.json").unlink(missing_ok=True)
    return KEDRL.resume(run, executor=ThreadExecutor(2), progress="none")


def carry_out(file, how, place, run, expected, rng):
    """Damage a file and go on; returns what is wrong, or nothing."""
    original, n_before = file.read_bytes(), len(events(run))
    damage(file, how, rng)
    if place == "data":
        return damaged_data(file, original, run)
    is_model = run / "model" in file.parents or file == run / "manifest" / "model.json"
    problem = problem_of(resume(run, is_model), expected)
    if problem:
        return problem
    told = [event["file"] for event in events(run)[n_before:] if event["event"] == "damaged"]
    return None if str(file) in told else f"nobody noticed; the log tells of {told}"


def damaged_data(file, original, run):
    """Damaged data must be named and not used."""
    try:
        resume(run, False)
    except StoreError as error:
        return None if str(file) in str(error) else f"the file is not named: {error}"
    finally:
        file.write_bytes(original)
        resume(run, False)
    return "damaged data were used"


def run_corruption(undisturbed, n, seed, kinds=("separated", "paired", "ratio")):
    """Damage one file after the other; each run is whole again before the next."""
    rng, tally = np.random.default_rng(seed), Tally("corruptions")
    warnings.simplefilter("ignore")
    for i in range(n):
        expected, run = undisturbed(kinds[i % len(kinds)])
        files = stored_files(run, undisturbed.store.path)
        # Most of what is stored are blocks; damage is spread as that is, but no place is left out.
        place = PLACES[int(rng.integers(len(PLACES)))]
        file = files[place][int(rng.integers(len(files[place])))]
        # A block whose entry in the manifest is gone counts as not yet made: that is no damage.
        how = DAMAGES[i // len(kinds) % (2 if place == "manifests" else 3)]
        problem = carry_out(file, how, place, run, expected, rng)
        tally.add(f"{how} {Path(file).relative_to(undisturbed.work)}", problem)
    return tally
