"""Warnings name the line of the user's program that caused them."""

from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kedrl_dask
from kedrl_dask import KEDRL, TransitionStore, policies
from kedrl_dask.engine.data.validation import DataWarning
from kedrl_dask.estimator.fitted import persistence
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.estimator.policy_check import PolicyWarning
from kedrl_dask.numerics.laws import functionals
from kedrl_dask.numerics.solvers.pcg import PCG
from kedrl_dask.utils.exceptions import NumericalWarning, warn
from tests.conftest import make_episodes

PACKAGE = Path(kedrl_dask.__file__).parent
ROWS = make_episodes(n_episodes=10, length=8)
POLICY = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@contextmanager
def warning_here(category):
    """The body, of one line, warns in its own name."""
    line = inspect.currentframe().f_back.f_back.f_lineno
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    places = {(w.filename, w.lineno) for w in caught if issubclass(w.category, category)}
    assert places == {(__file__, line + 1)}


def speaking(function):
    """A function that warns first, as if it were written somewhere in the package."""
    source = "def speak(*a, **k):\n    warn('beware', NumericalWarning)\n    return function(*a, **k)"
    scope = {"function": function, "warn": warn, "NumericalWarning": NumericalWarning}
    exec(compile(source, str(PACKAGE / "anywhere.py"), "exec"), scope)
    return scope["speak"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return TransitionStore.from_arrays(tmp_path_factory.mktemp("store") / "s", **ROWS)


def make(**settings):
    fixed = {"discount": 0.7, "n_atoms": 8, "n_basis": 10, "n_landmarks": 15, "n_features": 16, "n_blocks": 2}
    return KEDRL(**fixed, ridge_gamma=1e-4, **settings)


def test_fit(store):
    with warning_here(NumericalWarning):
        make(solver=PCG(max_iterations=2)).fit(store, POLICY, progress="none")
    far = policies.Gaussian(weights=[[0.2], [-0.1]], bias=50.0, scale=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        with warning_here(PolicyWarning):
            make().fit(store, far, progress="none")


def test_load_and_recover(store, tmp_path, monkeypatch):
    make().fit(store, POLICY, progress="none").save(tmp_path / "model")
    state, action = ROWS["state"][:2], ROWS["action"][:2]
    monkeypatch.setattr(persistence, "opened_fitted", speaking(persistence.opened_fitted))
    with warning_here(NumericalWarning):
        model = KEDRL.load(tmp_path / "model")
    monkeypatch.setattr(functionals, "recover_law", speaking(functionals.recover_law))
    with warning_here(NumericalWarning):
        model.recover(state, action, accept=CODES)


def test_store(tmp_path):
    constant = ROWS | {"action": np.ones_like(ROWS["action"])}
    with warning_here(DataWarning):
        TransitionStore.from_arrays(tmp_path / "s", **constant)
    table = pd.DataFrame(
        {
            "e": ROWS["episode"],
            "t": ROWS["step"],
            "s": ROWS["state"][:, 0],
            "a": 1.0,
            "r": ROWS["reward"][:, 0],
        }
    )
    columns = {"episode": "e", "step": "t", "state": "s", "action": "a", "reward": "r"}
    with warning_here(DataWarning):  # through context managers of the standard library
        TransitionStore.from_table(tmp_path / "t", table, columns, progress="none")


def test_no_other_way():
    """Nothing in the package counts frames by itself."""
    users = {path.name for path in PACKAGE.rglob("*.py") if "warnings.warn(" in path.read_text()}
    assert users == {"exceptions.py"}
