"""What version one wrote opens, resumes and answers the same: a store, a model, a cache, an interrupted run.

``tests/data/version_one.tar.xz`` was written by version one, with what its model answered.
"""

from __future__ import annotations

import importlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import kedrl_dask
from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage import checkpoints
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.solvers import LBFGS, PCG

SIZES = {
    "input_kernel": Matern(2.5, 1.5), "return_kernel": Matern(5.5, 1.0), "n_atoms": 6, "n_basis": 8,
    "n_landmarks": 10, "n_features": 8, "n_blocks": 3, "precision": "double", "ridge_gamma": 1e-3,
    "ridge_b": 1e-4,
}  # fmt: skip
POLICY = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture
def written(tmp_path):
    with tarfile.open(Path(__file__).parent / "data" / "version_one.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(written):
    return json.loads((written / "expected.json").read_text())


def assert_answers(model, expected):
    """The embedding's values and the weights are those that version one gave."""
    state, action, at = (np.array(expected[name]) for name in ("state", "action", "at"))
    np.testing.assert_allclose(model.embed(state, action, at=at), expected["embed"], rtol=0, atol=1e-8)
    assert model.weights(state, action).shape == np.shape(expected["weights"])


def fit(store, **options):
    model = KEDRL(0.8, **VERSION_ONE, **SIZES)
    return model.fit(store, POLICY, executor=ThreadExecutor(1), progress="none", **options)


def events(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_store__opens(written, expected):
    store = TransitionStore.open(written / "store")
    assert store.fingerprint == expected["fingerprint"]
    store.verify()


def test_model__answers_the_same(written, expected):
    assert_answers(KEDRL.load(written / "model"), expected)


def test_cache__serves(written, expected, monkeypatch):
    """Nothing of the pass is computed again."""
    monkeypatch.setattr(
        "kedrl_dask.engine.passes.streaming_pass.accumulate", lambda *_: pytest.fail("the pass was repeated")
    )
    store = TransitionStore.open(written / "store")
    assert_answers(fit(store, cache=written / "cache"), expected)


def test_run__goes_on_from_its_checkpoint(written, expected):
    store = TransitionStore.open(written / "store")
    assert_answers(fit(store, run=written / "run"), expected)
    (restored,) = (event for event in events(written / "run") if event["event"] == "restored")
    assert restored["iteration"] == 3


def test_checkpoint__is_known_to_be_of_its_solver(written, monkeypatch):
    """In its own coordinates, which processors round differently, the whole state of the solver is there."""
    folder = written / "run" / "checkpoints"
    with np.load(folder / "states" / "2.npz") as arrays:
        own, method = arrays[checkpoints.COORDINATES], str(arrays[checkpoints.METHOD])
    assert method == "kedrl_dask.solvers.pcg"
    monkeypatch.setattr(checkpoints, "_identity", lambda _: own)
    kept = checkpoints.Checkpoints(folder, 10.0, lambda *_, **__: None)
    assert kept.restore(PCG.state_type, None).state is not None
    assert kept.restore(LBFGS.state_type, None).state is None


@pytest.mark.parametrize(
    "name", ["functionals", "gate", "policies", "reference", "results", "solvers", "theory"]
)
def test_modules_that_moved__are_found_by_their_earlier_names(name):
    module = importlib.import_module(f"kedrl_dask.{name}")
    assert module is importlib.import_module(module.__name__)
    assert module.__spec__.name == module.__name__ != f"kedrl_dask.{name}"


def test_public_names__and_no_others():
    assert dir(kedrl_dask) == sorted(kedrl_dask.__all__)
    for name in kedrl_dask.__all__:
        assert getattr(kedrl_dask, name) is not None
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        importlib.import_module("kedrl_dask.nonesuch")
