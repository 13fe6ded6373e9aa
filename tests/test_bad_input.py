"""Bad input in one table: each gives an error of one line with a remedy, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from pyarrow import parquet as pa_parquet

from kedrl_dask import KEDRL, Matern, TransitionStore, compare, functionals, policies
from kedrl_dask.cli import main
from kedrl_dask.engine.data.encoding import Encoding, StateColumn
from kedrl_dask.engine.execute.default import parse_memory
from kedrl_dask.engine.execute.tls import Certificates
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.untrusted import unpacked_bytes
from kedrl_dask.estimator.conditional_embedding import ConditionalEmbedding
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.numerics.laws.recovery import recover_law
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import PCG, AdamW
from kedrl_dask.utils.checks import has_control_characters
from tests.conftest import make_episodes

GOOD = make_episodes()
N = len(GOOD["step"])
POLICY = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
SMALL = {
    "discount": 0.9,
    "n_atoms": 8,
    "n_basis": 8,
    "n_landmarks": 10,
    "n_features": 16,
    "ridge_gamma": 1e-3,
    "input_kernel": Matern(2.5, 1.5, 1.1),
    "return_kernel": Matern(5.5, (1.2, 0.9), 0.85),
}
NASTY = "a\nkedrl: all is well\x1b[2J\u202e"


@dataclass(frozen=True)
class Bench:
    """A store, a fitted model, and a place that must be as empty after a case as before."""

    out: Path
    store: TransitionStore
    model: KEDRL
    saved: Path
    scratch: Path

    def law(self, **settings):
        """Laws of the model, too small for the gate to let them pass."""
        return self.model.recover(*self.at(), accept=tuple(CODES), **settings)

    def copy(self, what):
        """A copy of the saved model or the store, to be damaged."""
        target = self.scratch / f"copy{len(os.listdir(self.scratch))}"
        shutil.copytree(self.saved if what == "model" else self.store.path, target)
        return target

    def edit(self, what, change, array=None):
        """A copy whose metadata was changed by hand, in the group's own file and in its consolidated copy."""
        path = self.copy(what)
        file = path / "zarr.json"
        group = json.loads(file.read_text())
        if array is None:
            change(group["attributes"])
        else:
            change(group["consolidated_metadata"]["metadata"][array])
            own = path / array / "zarr.json"
            metadata = json.loads(own.read_text())
            change(metadata)
            own.write_text(json.dumps(metadata))
        file.write_text(json.dumps(group))
        return path

    def at(self, n=2):
        """Inputs to ask at."""
        return np.zeros((n, 2)), np.zeros((n, 1))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    base = tmp_path_factory.mktemp("bad")
    (base / "out").mkdir()
    (base / "scratch").mkdir()
    store = TransitionStore.from_arrays(base / "store", **GOOD)
    model = KEDRL(**SMALL).fit(store, POLICY, progress="none")
    model.save(base / "saved")
    return Bench(base / "out", store, model, base / "saved", base / "scratch")


def data(**changed):
    return lambda b: TransitionStore.from_arrays(b.out / "new", **(GOOD | changed))


def changed(name, row, value, dtype=float):
    values = np.array(GOOD[name], dtype=dtype)
    values[row] = value
    return values


def setting(**changed):
    return lambda b: KEDRL(**(SMALL | changed)).fit(b.store, POLICY, progress="none")


def policy(given):
    return lambda b: KEDRL(**SMALL).fit(b.store, given, progress="none")


def function(sample, **options):
    return policy(policies.Function(sample, **options))


def append(*pieces):
    def act(b):
        with TransitionStore.writer(
            b.scratch / f"w{len(os.listdir(b.scratch))}", state_dim=2, action_dim=1, reward_dim=2
        ) as writer:
            for piece in pieces:
                writer.append(**piece)

    return act


def rows(start, stop):
    return {name: values[start:stop] for name, values in GOOD.items()}


def raises(state, rng):
    raise ZeroDivisionError("no such luck")


def nan_far_away(state, rng):
    """Finite at the first rows of the store, NaN at a few states deep in it."""
    action = state[:, :1].copy()
    action[(state == GOOD["state"][40]).all(axis=1)] = np.nan
    return action


class Custom:
    """A policy of a user's own, that returns what it was told."""

    action_dim, deterministic_draws, has_log_density = None, True, False

    def __init__(self, actions, weights):
        self.result = actions, weights

    def draws(self, state, n_draws, rng=None):
        actions, weights = self.result
        return np.broadcast_to(actions, (len(weights), len(state), 1)), np.array(weights)

    def sample(self, state, rng):
        return np.zeros((len(state), 1))

    def log_density(self, state, action):
        return np.zeros(len(state))

    def to_dict(self):
        return {}


DATA = {
    "objects": (data(state=GOOD["state"].astype(object)), "state: has dtype object.*convert"),
    "strings": (data(state=GOOD["state"].astype(str)), "state: has dtype <U.*convert"),
    "complex": (data(reward=GOOD["reward"] + 1j), "reward: has dtype complex128.*convert"),
    "dates": (data(step=np.arange(N).astype("M8[s]")), "step: has dtype datetime64.*convert"),
    "records": (data(action=np.zeros(N, dtype=[("a", float)])), r"action: has dtype \[.*convert"),
    "dict": (data(state={"a": 1}), "state: has dtype object.*convert"),
    "ragged": (data(state=[[1.0, 2.0], [3.0]]), "state: rows have unequal lengths.*pad or split"),
    "masked": (data(state=np.ma.masked_greater(GOOD["state"], 0)), "state: has masked entries.*drop or fill"),
    "none": (data(episode=None), "episode: is None, expected an array"),
    "vector for matrix": (data(reward=GOOD["reward"][:, 0]), r"reward: has 1 dimension.*reshape\(-1, 1\)"),
    "cube for matrix": (data(state=np.zeros((N, 2, 2))), "state: has 3 dimension.*flatten"),
    "matrix for vector": (data(step=GOOD["step"][:, None]), "step: has 2 dimension.*flatten"),
    "no rows": (data(**{k: v[:0] for k, v in GOOD.items()}), "state: has 0 rows.*give non-empty"),
    "no columns": (data(action=np.empty((N, 0))), "action: has 0 columns.*give a column of zeros"),
    "one row": (data(**{k: v[:1] for k, v in GOOD.items()}), "row 0 is the only row of episode 0.*remove"),
    "reward shorter": (
        data(reward=GOOD["reward"][:-3]),
        "reward: has 45 rows but state has 48.*cut or compl",
    ),
    "nan": (data(state=changed("state", (7, 1), np.nan)), "state: row 7, column 1 is nan.*drop.*or fill"),
    "infinity": (data(reward=changed("reward", (9, 0), -np.inf)), "reward: row 9, column 0 is -inf.*drop"),
    "longer floats": (data(state=GOOD["state"].astype(np.longdouble) * np.longdouble("1e4000")), "is -?inf"),
    "no squares": (data(reward=GOOD["reward"] * 1e150), "at most 1e.100 in size.*other units"),
    "vanishing squares": (data(action=GOOD["action"] * 1e-150), "action: column 0 is nowhere.*other units"),
    "step twice": (data(step=changed("step", 3, 2, int)), "step: row 3 repeats step 2.*remove one"),
    "gap": (data(step=changed("step", 5, 9, int)), "step 9 of episode 0 after step 4.*add the missing rows"),
    "half step": (data(step=GOOD["step"] + 0.5), "step: row 0 is 0.5, expected an integer"),
    "bool episodes": (data(episode=GOOD["episode"] > 3), "episode: has dtype bool.*astype"),
    "episodes too large": (data(episode=np.full(N, 2**64 - 1, np.uint64)), "episode: row 0 is 1844.*integer"),
    "terminated midway": (
        data(terminated=changed("terminated", 2, True, bool)),
        "goes on with episode 0.*clear",
    ),
    "terminated twos": (data(terminated=np.full(N, 2)), "terminated: row 0 is 2.*boolean"),
    "terminated words": (data(terminated=["no"] * N), "terminated: has dtype <U.*convert"),
    "chunk of no rows": (data(chunk_rows=0), "chunk_rows: is 0, expected at least 1"),
    "chunk of words": (data(chunk_rows="many"), "chunk_rows must be an integer ≥ 1, got 'many'"),
    "chunk of half rows": (data(chunk_rows=1.5), "chunk_rows must be an integer ≥ 1, got 1.5"),
    "chunk beyond memory": (data(chunk_rows=10**15), "chunk_rows must be at most 1,000,000,000"),
    "chunk beyond zstd": (data(chunk_rows=10**9), "chunk_rows: is 1,000,000,000.*give at most"),
    "order of pieces": (append(rows(6, 12), rows(0, 6)), r"has \(episode, step\).*sort the rows"),
    "columns of a piece": (append(rows(0, 6) | {"state": np.zeros((6, 3))}), "has 3 columns, expected 2"),
    "nothing appended": (append(), "has 0 rows.*append data first"),
    "no dimension": (
        lambda b: TransitionStore.writer(b.out / "w", state_dim=0, action_dim=1, reward_dim=1),
        "state_dim: is 0, expected at least 1",
    ),
    "text dimension": (
        lambda b: TransitionStore.writer(b.out / "w", state_dim="2", action_dim=1, reward_dim=1),
        "state_dim must be an integer",
    ),
}

SETTINGS = {
    "discount one": (setting(discount=1.0), "discount must lie strictly between 0 and 1, got 1.0"),
    "discount text": (setting(discount="0.9"), "discount must lie strictly between 0 and 1, got '0.9'"),
    "discount nan": (setting(discount=np.nan), "discount must lie strictly between 0 and 1, got nan"),
    "construction": (
        setting(construction="pair"),
        "construction must be 'auto' or 'separated' or 'paired', got 'pair'",
    ),
    "array of words": (
        setting(construction=np.array(["paired", "paired"])),
        "construction must be 'auto' or 'separated'",
    ),
    "atoms": (setting(n_atoms=1.5), "n_atoms must be 'auto' or an integer ≥ 1, got 1.5"),
    "array of atoms": (setting(n_atoms=np.array([3, 4])), "n_atoms must be 'auto' or an integer"),
    "true basis": (setting(n_basis=True), "n_basis must be 'auto' or an integer ≥ 1, got True"),
    "features without end": (setting(n_features=10**12), "n_features must be at most 1,000,000"),
    "features beyond memory": (setting(n_features=10**6, n_landmarks=40), "the fit would use .*lower"),
    "draws without end": (setting(n_draws=10**12), "n_draws must be at most 4,096"),
    "blocks": (setting(n_blocks="all"), "n_blocks must be an integer ≥ 1, got 'all'"),
    "conditioning": (setting(n_conditioning=-1), "n_conditioning must be an integer ≥ 1, a fraction"),
    "conditioning points": (
        setting(conditioning=np.zeros((2, 5))),
        r"have shape \(2, 5\), expected \(M, 3\)",
    ),
    "conditioning ragged": (setting(conditioning=[[1, 2], [3]]), "conditioning points has rows of unequal"),
    "ridge zero": (setting(ridge_gamma=0), "ridge_gamma must be 'auto' or a positive number, got 0"),
    "ridge true": (setting(ridge_b=True), "ridge_b must be 'auto' or a positive number, got True"),
    "ridge array": (setting(ridge_b=np.ones(2)), "ridge_b must be 'auto' or a positive number"),
    "ridge beyond floats": (setting(ridge_b=1e300), "ridge_b must be at most 1e.30"),
    "mass": (setting(mass_penalty=None), "mass_penalty must be 'auto' or a number ≥ 0, got None"),
    "negative and pcg": (setting(negative_penalty=1.0), "'pcg' needs negative_penalty=0; use solver='lbfgs'"),
    "exact and paired": (setting(operators="exact", construction="paired"), "operators='exact' needs"),
    "solver": (setting(solver="newton"), "unknown solver 'newton'; use one of pcg, lbfgs, adamw"),
    "solver class": (setting(solver=PCG), "solver must be a name or a solver object"),
    "solver tolerance": (lambda b: PCG(tolerance=-1.0), "PCG: tolerance must be"),
    "solver steps": (lambda b: AdamW(n_iterations="many"), "AdamW: n_iterations must be an integer"),
    "kernel": (setting(input_kernel="rbf"), "input_kernel must be 'auto' or a Matern kernel, got 'rbf'"),
    "kernel lengths": (setting(return_kernel=Matern(1.5, (1, 1, 1))), "has 3 length scales, the data have 2"),
    "kernel words": (lambda b: Matern(nu="smooth"), "Matern: nu must be real numbers, got 'smooth'"),
    "kernel zero": (lambda b: Matern(length_scale=(1.0, 0.0)), "length_scale must be positive and finite"),
    "kernel beyond floats": (lambda b: Matern(sigma=1e300), "sigma must lie between.*other units"),
    "kernel beyond single": (setting(input_kernel=Matern(sigma=1e20)), "must have a sigma between 1e-06 and"),
    "grid words": (setting(grid=[["a", "b"]]), "grid must be real numbers"),
    "grid ragged": (setting(grid=[[1, 2], [3]]), "grid has rows of unequal lengths"),
    "grid empty": (setting(grid=np.zeros((0, 2))), r"one row per atom.*got shape \(0, 2\)"),
    "grid columns": (setting(grid=np.zeros((4, 5))), "grid must be finite with one row per atom"),
    "bounds": (setting(reward_bounds=3), "reward_bounds must be .low, high., got 3"),
    "bounds the wrong way": (setting(reward_bounds=([1, 1], [0, 0])), "low ≤ high"),
    "bounds of a point": (setting(reward_bounds=([1, 1], [1, 1])), "not all the same"),
    "expansion": (setting(grid_expansion=0.5), "grid_expansion must be a number ≥ 1, got 0.5"),
    "seed": (setting(random_state=None), "random_state must be an integer ≥ 0, got None"),
    "seed too large": (setting(random_state=2**200), "random_state must be at most"),
    "ratio": (setting(ratio={"ridge": 1}), "ratio must be None or ULSIF settings"),
    "ratio centres": (lambda b: ULSIF(n_centers="all"), "n_centers must be an integer"),
    "ratio clip": (lambda b: ULSIF(clip="hard"), "clip must exceed 1"),
    "more atoms than returns": (setting(n_atoms=500), "found 8; lower n_atoms"),
    "memory": (lambda b: parse_memory("lots"), "memory must be a number of bytes or text"),
    "memory list": (lambda b: b.model.fit(b.store, POLICY, memory=[1]), r"memory must be .* got \[1\]"),
    "executor": (
        lambda b: KEDRL(**SMALL).fit(b.store, POLICY, executor="threads"),
        "executor must be an Exec",
    ),
    "progress": (lambda b: KEDRL(**SMALL).fit(b.store, POLICY, progress="loud"), "progress must be 'auto'"),
    "workers": (
        lambda b: KEDRL(**SMALL).plan(b.store, workers=-1, calibrate=False),
        "workers must be an int",
    ),
    "store of another type": (
        lambda b: KEDRL(**SMALL).fit(np.zeros((3, 3)), POLICY),
        "path must be a string",
    ),
    "no store": (
        lambda b: KEDRL(**SMALL).fit(None, POLICY),
        "path must be a string or a pathlib.Path, got None",
    ),
    "reference ridge": (
        lambda b: ConditionalEmbedding(ridge=np.ones(2)).fit(b.store),
        "ridge must be 'auto'",
    ),
    "reference sizes": (
        lambda b: ConditionalEmbedding(n_features=0).fit(b.store),
        "n_features must be an int",
    ),
}

POLICIES = {
    "no policy": (policy(lambda state: state), "policy must be one of kedrl_dask.policies"),
    "a class": (policy(policies.Gaussian), "policy must be one of kedrl_dask.policies"),
    "other state": (policy(policies.Gaussian(np.zeros((3, 1)))), r"state has shape .*expected \(n, 3\)"),
    "other action": (
        policy(policies.Gaussian(np.zeros((2, 2)))),
        "returns 2 action columns, the store has 1",
    ),
    "scale zero": (lambda b: policies.Gaussian([1.0], scale=0.0), "scale must be positive, got"),
    "scale negative": (lambda b: policies.Logistic([1.0], scale=-1.0), "scale must be positive, got"),
    "half width nan": (lambda b: policies.Uniform([1.0], half_width=np.nan), "half_width must be finite"),
    "weights of words": (lambda b: policies.Gaussian(["a"]), "Gaussian: weights must be real numbers"),
    "weights ragged": (lambda b: policies.Gaussian([[1], [1, 2]]), "weights has rows of unequal lengths"),
    "family": (lambda b: policies.from_dict({"family": ["x"]}), "policy family .* is not known"),
    "no dict": (lambda b: policies.from_dict([1]), "a policy must be a dict"),
    "not callable": (lambda b: policies.Function(3), "sample must be callable"),
    "density not callable": (
        lambda b: policies.Function(raises, log_density=3),
        "log_density must be callable",
    ),
    "exploding scale": (
        policy(policies.Gaussian([[0.0], [0.0]], scale_weights=[[1e6], [0.0]])),
        "not finite",
    ),
    "nan": (function(lambda s, rng: np.full((len(s), 1), np.nan)), "actions that are not finite for 8 of 8"),
    "nan far away": (
        function(nan_far_away),
        "nan_far_away.* successors of rows 0 to .*not finite for 1 of",
    ),
    "vector": (
        function(lambda s, rng: s[:, 0]),
        r"returned actions of shape \(8,\), expected \(8, q\).*values\[:, None\]",
    ),
    "too many columns": (function(lambda s, rng: s), r"actions of shape \(1, 8, 2\)"),
    "too few rows": (function(lambda s, rng: s[:1, :1]), "one row per state"),
    "words": (
        function(lambda s, rng: np.full((len(s), 1), "left")),
        "returned dtype <U4, expected real numbers",
    ),
    "objects": (function(lambda s, rng: np.full((len(s), 1), None)), "returned dtype object"),
    "complex actions": (function(lambda s, rng: s[:, :1] * 1j), "returned dtype complex128"),
    "nothing": (function(lambda s, rng: None), "returned dtype object"),
    "raises": (function(raises), "raises.* failed at the first rows .* ZeroDivisionError: no such luck"),
    "negative weights": (policy(Custom(0.0, [2.0, -1.0])), "weights that are no probabilities"),
    "infinite actions": (policy(Custom(np.inf, [1.0])), "actions that are not finite for 8 of 8"),
    "another one's replicates": (
        lambda b: b.model.bootstrap(b.store, policies.Gaussian([0.0, 0.0]), 5),
        "the model was fitted for .*give the policy of the fit",
    ),
}

ASKED = {
    "state columns": (lambda b: b.model.weights(np.zeros((2, 3)), np.zeros((2, 1))), r"expected \(n, 2\)"),
    "state words": (lambda b: b.model.weights([["a", "b"]], [[1.0]]), "state must be real numbers"),
    "rows disagree": (lambda b: b.model.weights(np.zeros((2, 2)), np.zeros((3, 1))), "2 rows and action 3"),
    "state nan": (lambda b: b.model.bellman_risk([[np.nan, 0.0]], [[0.0]]), "state, row 0: .* not finite"),
    "at nan": (lambda b: b.model.embed(*b.at(), at=[[np.nan, 0.0]]), "at must be finite, got nan at"),
    "at columns": (lambda b: b.model.embed(*b.at(), at=np.zeros((3, 3))), r"at has shape \(3, 3\)"),
    "not fitted": (lambda b: KEDRL(0.9).weights(*b.at()), "not fitted yet"),
    "operators of no store": (lambda b: b.model.operator_blocks(*b.at(), exact=True), "give store="),
    "recovery ridge": (lambda b: b.law(ridge="big"), "recover: ridge must be a number"),
    "recovery support": (lambda b: b.law(projected={5: [0]}), "5 is not one of 0 to 1"),
    "recovery supports": (lambda b: b.law(projected=[0]), "projected must be a dict"),
    "recovery bandwidth": (
        lambda b: b.law(bandwidth=[1, 2, 3]),
        "bandwidth must be 'auto'",
    ),
    "recovery of nan": (lambda b: recover_law([[np.nan]], [[0.0]], Matern()), "row 0, are not finite"),
    "quantile": (lambda b: b.law().quantile(1.5, 0), "q must lie strictly between 0 and 1"),
    "cvar": (lambda b: b.law().cvar("low", 0), "level must lie strictly between 0 and 1"),
    "cdf of nan": (lambda b: b.law().cdf(np.nan, 0), "t has NaN"),
    "coordinate": (lambda b: b.law().cdf(0.0, 7), "coordinate 7 is not one of 0 to 1"),
    "event": (lambda b: b.law().prob(3), "an event is .low, high. or a function"),
    "utility nan": (lambda b: b.law().expectation(lambda z: z[:, 0] * np.nan), "NaN or inf"),
    "box": (lambda b: functionals.Box({0: (2.0, 1.0)}), "expected low ≤ high"),
    "box ends": (lambda b: functionals.Box({0: 1.0}), "needs two ends"),
    "box coordinate": (
        lambda b: functionals.above(1.0, coordinate="x")([[0.0]]),
        "coordinate 'x' is not one",
    ),
    "expect no function": (lambda b: functionals.interpolate(3, [[0.0]], Matern()), "must be callable"),
    "expect shape": (
        lambda b: functionals.interpolate(lambda z: z, [[0.0]], Matern()),
        "expected one finite",
    ),
    "accept": (lambda b: b.model.embedding(*b.at(), accept="ess"), "accept must be a sequence of codes"),
    "accept numbers": (lambda b: b.model.embedding(*b.at(), accept=[["ess"]]), "accept must be a sequence"),
    "replicates": (lambda b: b.model.bootstrap(b.store, POLICY, 1.5), "n_replicates must be an integer ≥ 2"),
    "compare nothing": (lambda b: compare(b.store, {}, b.at(), KEDRL(0.9)), "policies must be a dict"),
    "compare list": (lambda b: compare(b.store, [POLICY], b.at(), KEDRL(0.9)), "policies must be a dict"),
    "compare name": (
        lambda b: compare(b.store, {NASTY: POLICY}, b.at(), KEDRL(0.9)),
        "policies must be a dict",
    ),
    "compare at": (
        lambda b: compare(b.store, {"a": POLICY}, np.zeros((40, 9)), KEDRL(0.9)),
        "at must be .state",
    ),
    "compare policy": (lambda b: compare(b.store, {"a": 3}, b.at(), KEDRL(0.9)), "policy must be one of"),
    "compare level": (
        lambda b: compare(b.store, {"a": POLICY}, b.at(), KEDRL(0.9), tail="x"),
        "tail must be re",
    ),
}


def foreign(make):
    """A directory or file that is no store of the package, made anew for each case."""

    def act(b):
        path = b.scratch / f"foreign{len(os.listdir(b.scratch))}"
        TransitionStore.open(make(path) or path)

    return act


def link_loop(path):
    os.symlink(path, path)


def dangling(path):
    os.symlink(path.with_name("nowhere"), path)


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zarr.json", "{}")


def zarr_v2(path):
    zarr.create_group(path, zarr_format=2, attributes={"kind": "transitions", "format_version": 1})


def other_group(path):
    zarr.create_group(path, zarr_format=3, attributes={"kind": NASTY})


def written(text):
    def make(path):
        path.mkdir()
        (path / "zarr.json").write_text(text)

    return make


def pipe(path):
    path.mkdir()
    os.mkfifo(path / "zarr.json")


def endless(path):
    path.mkdir()
    os.symlink("/dev/zero", path / "zarr.json")


PATHS = {
    "control characters": (
        lambda b: TransitionStore.open(b.out / NASTY),
        "control characters; choose another",
    ),
    "control characters anew": (lambda b: b.model.save(b.out / NASTY), "control characters; choose another"),
    "null byte": (lambda b: TransitionStore.from_arrays(f"{b.out}/a\0b", **GOOD), "control characters"),
    "empty": (lambda b: KEDRL.load(""), "path is empty"),
    "bytes": (lambda b: KEDRL.load(b"model"), "path must be a string or a pathlib.Path"),
    "number": (lambda b: b.model.save(3), "path must be a string or a pathlib.Path, got 3"),
    "missing": (lambda b: KEDRL.load(b.out / ".." / "nowhere"), "no such store; check the path"),
    "too long": (lambda b: b.model.save(b.out / ("x" * 300)), "File name too long"),
    "taken": (lambda b: b.model.save(b.store.path), "already exists; delete it or choose another path"),
    "below a file": (
        lambda b: b.model.save(b.store.path / "zarr.json" / "x"),
        "is not a directory; choose another",
    ),
    "on a dangling link": (
        lambda b: (dangling(b.scratch / "d"), b.model.save(b.scratch / "d")),
        "dangling",
    ),
    "on a link loop": (
        lambda b: (link_loop(b.scratch / "l"), b.model.save(b.scratch / "l")),
        "dangling",
    ),
    "cache is a file": (
        lambda b: KEDRL(**SMALL).fit(b.store, POLICY, cache=b.store.path / "zarr.json"),
        "not a directory, so it cannot be the cache",
    ),
    "cache is a number": (lambda b: KEDRL(**SMALL).fit(b.store, POLICY, cache=3), "cache must be a string"),
    "a file": (foreign(lambda path: path.write_text("state,action") and None), "a file.*give the directory"),
    "an archive": (foreign(archive), "a file.*unpack an archive first"),
    "a link loop": (foreign(link_loop), "no such store"),
    "a dangling link": (foreign(dangling), "no such store"),
    "an empty directory": (foreign(lambda path: path.mkdir()), "not a Zarr v3 group.*give the directory"),
    "zarr v2": (foreign(zarr_v2), "not a Zarr v3 group"),
    "another group": (foreign(other_group), "a store of kind .*expected 'transitions'; give the right path"),
    "an array": (
        foreign(lambda path: zarr.create_array(path, shape=3, dtype="f8") and None),
        "not a Zarr v3",
    ),
    "a model for a store": (
        lambda b: TransitionStore.open(b.saved),
        "kind 'kedrl model', expected 'transitions'",
    ),
    "a store for a model": (lambda b: KEDRL.load(b.store.path), "kind 'transitions', expected 'kedrl model'"),
    "garbage": (foreign(written("\x00\x01{")), "not a Zarr v3 group"),
    "nested without end": (foreign(written("[" * 200_000)), "not a Zarr v3 group .Recursion"),
    "a list": (foreign(written("[]")), "not a Zarr v3 group"),
    "a pipe": (foreign(pipe), "pipe, socket or device"),
    "without end": (foreign(endless), "pipe, socket or device"),
    "no permission": (lambda b: Certificates(__file__, __file__, __file__), "chmod 600"),
    "no certificate": (
        lambda b: Certificates(b.out / "a", b.out / "b", b.out / "c"),
        "no such file, expected the",
    ),
}


COLUMNS = {"episode": "id", "step": "t", "state": ["x"], "action": "a", "reward": "r"}
ROWS = "id,t,x,a,r\n" + "".join(f"{i},{t},{t}.5,1,{i}\n" for i in range(3) for t in range(4))


def table(content, name="a.csv", columns=COLUMNS, **options):
    """A file with this content, or one that a function makes, as a store."""

    def act(b):
        path = b.scratch / f"table{len(os.listdir(b.scratch))}" / name
        path.parent.mkdir()
        if callable(content):
            content(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        TransitionStore.from_table(b.out / "new", path, columns, progress="none", **options)

    return act


def without(key):
    return {name: column for name, column in COLUMNS.items() if name != key}


def parquet_of(**changed):
    """The rows as Parquet, with columns changed."""

    def make(path):
        frame = pd.read_csv(io.StringIO(ROWS)).assign(**changed)
        pa_parquet.write_table(pa.Table.from_pandas(frame), path)

    return make


def cut_short(path):
    parquet_of()(path)
    path.write_bytes(path.read_bytes()[:-40])


def nested(path):
    pa_parquet.write_table(pa.table({"id": [0], "t": [0], "x": [[1.0]], "a": [1], "r": [1]}), path)


def two_formats(path):
    path.mkdir()
    (path / "a.csv").write_text(ROWS)
    parquet_of()(path / "b.parquet")


def without_rows(path):
    path.mkdir()


TABLES = {
    "no file": (lambda b: TransitionStore.from_table(b.out / "n", b.out / "x.csv", COLUMNS), "no such file"),
    "no path": (lambda b: TransitionStore.from_table(b.out / "n", 3, COLUMNS), "source must be a string"),
    "no format": (table(ROWS, "a.xlsx"), "has no known file name extension.*give format"),
    "unknown format": (table(ROWS, format="excel"), "format must be 'parquet' or 'csv' or 'arrow'"),
    "another format": (table(ROWS, format="parquet"), "a.csv: cannot be read after row 0 .*check the file"),
    "two formats": (table(two_formats, "both"), "files of the formats csv, parquet; give format"),
    "empty directory": (table(without_rows, "none"), "contains no table.*give a file"),
    "a pipe": (table(os.mkfifo), "pipe, socket or device"),
    "empty file": (table(""), "a.csv: cannot be read after row 0"),
    "header alone": (table("id,t,x,a,r\n"), "has 0 rows, expected at least one"),
    "ragged": (table(ROWS + "9,9\n"), "a.csv: cannot be read after row .*Expected 5 columns, got 2"),
    "no text": (table(b"id,t,x,a,r\n0,0,\xff\xfe,1,1\n" * 2), "a.csv: "),
    "no such column": (
        table(ROWS, columns=COLUMNS | {"action": "dose"}),
        "column 'dose' does not exist; the col",
    ),
    "column twice": (table(ROWS.replace("id,t,x,a,r", "id,t,x,x,r")), "column 'x' exists twice"),
    "column of two meanings": (table(ROWS, columns=COLUMNS | {"reward": "a"}), "'a' is named twice"),
    "no episode": (table(ROWS, columns=without("episode")), "'episode' is missing; name its columns"),
    "no step": (table(ROWS, columns=without("step")), "give either 'step'.*or 'time'"),
    "unknown meaning": (table(ROWS, columns=COLUMNS | {"done": "d"}), "a key must be 'episode' or"),
    "columns of another type": (table(ROWS, columns=["id"]), "columns must be a dict"),
    "column of another type": (table(ROWS, columns=COLUMNS | {"state": [3]}), "must be the name of a column"),
    "categorical action": (table(ROWS, categorical=["a"]), "'a' is not a state column"),
    "missing policy": (table(ROWS, missing="ignore"), "missing must be 'refuse' or 'drop' or 'impute'"),
    "imputed reward": (table(ROWS, missing={"r": "impute"}), "'r' is not a state column, and only those"),
    "missing of no column": (table(ROWS, missing={"q": "drop"}), "'q' is not one of the columns"),
    "standardised time": (table(ROWS, standardise=["time"]), "standardise must be 'state' or 'action'"),
    "text": (table(ROWS.replace("2.5", "tall")), "a.csv: row 2, column 'x' is 'tall'.*categorical"),
    "missing": (table(ROWS.replace("2.5", "")), "row 2, column 'x' is missing.*or 'impute'"),
    "all dropped": (table(ROWS.replace("2.5", ""), missing="drop"), "every episode has a missing value"),
    "all missing": (table(parquet_of(x=None), "a.parquet", missing="impute"), "'x' is missing in every row"),
    "infinity": (table(ROWS.replace("2.5", "inf")), "row 2, column 'x' is 'inf', expected at most"),
    "rows twice": (table(ROWS + ROWS.split("\n", 1)[1]), "same episode and the same step or time"),
    "gap": (table(ROWS.replace("0,2,2.5,1,0\n", "")), "row 2 of .*has step 3 of episode 0 after step 1"),
    "lone row": (table(ROWS + "7,0,1,1,1\n"), "row 12 of .* is the only row of episode 7"),
    "lists": (table(nested, "a.parquet"), "column 'x' has the type list.*convert it"),
    "cut short": (table(cut_short, "a.parquet"), "a.parquet: cannot be read after row 0"),
    "garbage": (table(b"PAR1" + bytes(90) + b"PAR1", "a.parquet"), "a.parquet: cannot be read after row 0"),
    "garbage in Arrow": (table(b"ARROW1\0\0" + b"\xff" * 90, "a.feather"), "a.feather: cannot be read"),
    "a pickle": (table(pickle.dumps([1, 2]), "a.parquet"), "a.parquet: cannot be read after row 0"),
    "too many levels": (
        table("id,t,x,a,r\n" + "".join(f"0,{t},l{t},1,1\n" for t in range(1_100)), categorical=["x"]),
        "more than 1,000 levels.*group them",
    ),
}


def model(change, array=None):
    return lambda b: KEDRL.load(b.edit("model", change, array))


def store(change, array=None):
    return lambda b: TransitionStore.open(b.edit("store", change, array))


def lose(what, array):
    """Without an array, neither in its own folder nor in the consolidated metadata."""

    def act(b):
        path = b.copy(what)
        shutil.rmtree(path / array)
        group = json.loads((path / "zarr.json").read_text())
        del group["consolidated_metadata"]["metadata"][array]
        (path / "zarr.json").write_text(json.dumps(group))
        (KEDRL.load if what == "model" else TransitionStore.open)(path)

    return act


def rewrite(array, change):
    """Numbers of an array changed through Zarr itself, so that everything else is sound."""

    def act(b):
        path = b.copy("model")
        opened = zarr.open_group(path, mode="r+", use_consolidated=False)[array]
        opened[...] = change(opened[...])
        KEDRL.load(path)

    return act


def nan_in_store(b):
    path = b.copy("store")
    opened = zarr.open_group(path, mode="r+", use_consolidated=False)["reward"]
    opened[20, 1] = np.nan
    KEDRL(**SMALL).fit(path, POLICY, progress="none")


def bomb(b):
    """A chunk that says that it unpacks to a tebibyte."""
    path = b.copy("model")
    chunk = path / "coefficients" / "c" / "0" / "0"
    chunk.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00")
    assert unpacked_bytes(chunk.read_bytes()) == 2**40
    KEDRL.load(path)


def put(**changes):
    """Change attributes, and take out the checksum that would give it away."""
    return lambda found: (found.update(changes), found.pop("checksum", None))


def parameter(**changes):
    return lambda attributes: attributes["parameters"].update(changes)


def attribute(name, **changes):
    return lambda attributes: (attributes[name].update(changes), attributes.pop("checksum", None))


PICKLE = {"name": "numcodecs.pickle", "configuration": {"protocol": 5}}
STORES = {
    "attributes changed": (store(lambda found: found.update(n_rows=47)), "its attributes have changed"),
    "newer version": (store(put(format_version=99)), "format version 99.*install a newer"),
    "version of words": (store(put(format_version="1")), "a store of kind"),
    "not complete": (store(put(complete=False)), "incomplete, its writer failed"),
    "rows of words": (store(put(n_rows="many")), "attributes are damaged .n_rows must be an integer"),
    "rows without end": (store(put(n_rows=10**15)), "attributes are damaged"),
    "negative rows": (store(put(n_rows=-1)), "attributes are damaged .n_rows must be an integer"),
    "more episodes than rows": (store(put(n_episodes=10**6)), "48 rows cannot be 1000000 episodes"),
    "no moments": (store(put(moments={})), "attributes are damaged"),
    "moments of words": (store(attribute("moments", state="x")), "attributes are damaged"),
    "fingerprint": (store(put(fingerprint="../../etc")), "attributes are damaged"),
    "digests": (store(put(tail_digests=["00"])), "attributes are damaged"),
    "shape without end": (store(put(shape=[10**17, 2]), "state"), "has shape .*which is impossible"),
    "negative shape": (store(put(shape=[-5, 2]), "state"), "metadata|not a Zarr v3 group|impossible"),
    "no such codec": (store(put(codecs=[{"name": "rot13"}]), "reward"), "metadata|not a Zarr v3 group"),
    "pickle codec": (store(put(codecs=[PICKLE]), "reward"), "metadata|not a Zarr v3 group"),
    "object dtype": (store(put(data_type="object"), "reward"), "metadata|not a Zarr v3 group"),
    "dtype of text": (
        store(put(data_type="string", codecs=[{"name": "vlen-utf8"}], fill_value=""), "reward"),
        "codecs VLenUTF8Codec, which this package|metadata|not a Zarr",
    ),
    "single precision": (store(put(data_type="float32"), "reward"), "dtype float32, expected float64"),
    "chunks of nothing": (
        store(put(chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 2]}}), "state"),
        "metadata|not a Zarr v3 group|impossible",
    ),
    "chunks without end": (
        store(put(chunk_grid={"name": "regular", "configuration": {"chunk_shape": [2**40, 2]}}), "state"),
        "too large to be unpacked",
    ),
    "an array short": (lose("store", "action"), "array action is missing"),
    "nan in a chunk": (nan_in_store, "array reward, row 20 is .*nan.*restore the store"),
    "model not complete": (model(put(complete="yes")), "the model is incomplete.*save it again"),
    "model of a newer version": (model(put(format_version=99)), "install a newer kedrl-dask"),
    "model without an array": (lose("model", "whitening"), "array whitening is missing"),
    "model with nan": (
        rewrite("coefficients", lambda b: b * np.nan),
        "array coefficients has entries that are",
    ),
    "model with infinity": (
        rewrite("grid", lambda z: z + np.inf),
        "array grid has entries that are not finite",
    ),
    "model that overflows": (rewrite("coefficients", lambda b: b + 1e308), "damaged|finite"),
    "sizes disagree": (model(put(shape=[3, 8]), "coefficients"), "has 3 along basis|along basis"),
    "claims without substance": (
        model(put(shape=[8, 10**9]), "coefficients"),
        "chunks are missing|along atom",
    ),
    "a bomb": (bomb, "would unpack to 1099511627776 bytes"),
    "parameter of another type": (model(parameter(discount="all")), "damaged .*discount must lie"),
    "parameter unknown": (model(parameter(evil=1)), "damaged .*evil"),
    "parameter of another class": (
        model(parameter(solver={"class": "Popen", "args": "sh"})),
        "class 'Popen' is",
    ),
    "kernel of another class": (model(put(input_kernel={"class": "PCG"})), "expected a Matern kernel"),
    "kernel of absurd numbers": (model(attribute("return_kernel", sigma=1e308)), "sigma must lie between"),
    "result unknown": (model(attribute("solution", result="__class__")), "damaged .KeyError"),
    "sizes of another model": (model(attribute("diagnostics", sizes={"state_dim": 9})), "damaged"),
    "no diagnostics": (model(put(diagnostics=None)), "damaged"),
    "encoding of words": (store(put(encoding="x")), "attributes are damaged"),
    "encoding of other columns": (
        store(put(encoding=Encoding((StateColumn("x"),), ("a",), ("r",)).to_json())),
        "the encoding of state is not that of its columns",
    ),
    "encoding of a model": (model(put(encoding={"state": 3})), "damaged"),
    "construction contradicts": (
        model(parameter(construction="paired")),
        "construction 'paired' contradicts",
    ),
    "ridge": (model(put(ridge_b="x")), "ridge_b_ must be a number"),
}

TABLE = {
    f"{kind}: {name}": case
    for kind, cases in {
        "data": DATA,
        "settings": SETTINGS,
        "policies": POLICIES,
        "asked": ASKED,
        "paths": PATHS,
        "stores": STORES,
        "tables": TABLES,
    }.items()
    for name, case in cases.items()
}


def check_words(text):
    """One line that a terminal shows as it is, and that somebody will read."""
    assert not has_control_characters(text), repr(text)
    assert 10 < len(text) < 700
    assert "Traceback" not in text


@pytest.mark.parametrize("name", TABLE)
def test_api__refuses_bad_input(bench, name):
    act, message = TABLE[name]
    before = sorted(os.listdir(bench.out.parent))
    try:
        with pytest.raises((ValueError, OSError), match=message) as caught:
            act(bench)
        left = list(bench.out.rglob("*"))
    finally:
        shutil.rmtree(bench.out)
        bench.out.mkdir()
    check_words(str(caught.value))
    assert not left
    assert sorted(os.listdir(bench.out.parent)) == before, "a working directory was left beside the store"


def test_table__is_long_enough():
    assert len(TABLE) >= 40


MEANT = ["--episode", "id", "--step", "t", "--state", "x", "--action", "a", "--reward", "r"]
OUT, STORE, SCRATCH = "{out}/new", "{store}", "{scratch}"
COMMANDS = {
    "no verb": ([], "usage: kedrl"),
    "unknown verb": (["fly"], "invalid choice: 'fly'"),
    "unknown verb that forges": ([NASTY], "invalid choice"),
    "unknown option": (["demo", "--output", OUT, f"--{NASTY}"], "unrecognized arguments"),
    "simulate nothing": (["simulate", OUT, "--transitions", "0"], "0 is not a whole number ≥ 1"),
    "simulate words": (["simulate", OUT, "--transitions", "many"], "'many' is not a whole number"),
    "simulate negative": (["simulate", OUT, "--transitions=-5"], "'-5' is not a whole number"),
    "simulate digits": (["simulate", OUT, "--transitions", "9" * 5000], "is above"),
    "simulate more than the disk": (["simulate", OUT, "--transitions", "9" * 15], "are free on the disk"),
    "simulate one step": (["simulate", OUT, "--transitions", "9", "--steps", "1"], "1 is not between 2 and"),
    "simulate another system": (
        ["simulate", OUT, "--transitions", "9", "--system", "x"],
        "invalid choice: 'x'",
    ),
    "simulate over a store": (
        ["simulate", STORE, "--transitions", "9"],
        "already exists; choose another path",
    ),
    "simulate over a model": (
        ["simulate", "{saved}", "--transitions", "9", "--overwrite"],
        "not a complete trans",
    ),
    "simulate below a file": (
        ["simulate", "{store}/zarr.json/x", "--transitions", "9"],
        "[Nn]ot a directory",
    ),
    "simulate a forged name": (
        ["simulate", f"{SCRATCH}/{NASTY}", "--transitions", "9"],
        "control characters",
    ),
    "simulate no name": (["simulate", "", "--transitions", "9"], "path is empty"),
    "demo in a file": (["demo", "--output", "{store}/zarr.json"], "is a file; choose another directory"),
    "demo in a full directory": (["demo", "--output", STORE], "is not empty; choose another directory"),
    "demo over anything": (["demo", "--output", STORE, "--overwrite"], "which no demo wrote"),
    "demo of too few": (["demo", "--output", OUT, "--transitions", "3"], "two episodes|distinct|n_atoms"),
    "demo on too many workers": (
        ["demo", "--output", OUT, "--workers", "99999"],
        "99999 processes are more than",
    ),
    "ingest nothing": (["ingest", "{out}/nowhere.csv", OUT, *MEANT], "no such file or directory"),
    "ingest a store": (["ingest", STORE, OUT, *MEANT], "contains no table"),
    "ingest over a store": (["ingest", "{out}/x.csv", STORE, *MEANT], "already exists; choose another path"),
    "ingest without columns": (["ingest", "{out}/x.csv", OUT, "--episode", "id"], "required: --state"),
    "ingest missing": (
        ["ingest", "x", OUT, *MEANT, "--missing", "guess"],
        "'guess' is not one of refuse, dr",
    ),
    "ingest a part": (["ingest", "x", OUT, *MEANT, "--standardise", "time"], "invalid choice: 'time'"),
    "ingest two orders": (["ingest", "x", OUT, *MEANT, "--time", "d"], "give either 'step'.*or 'time'"),
    "ingest a forged column": (["ingest", "x", OUT, *MEANT, "--terminated", NASTY], "name of a column, got"),
    "plan nothing": (["plan", "{out}/nowhere"], "no such store; check the path"),
    "plan a file": (["plan", "{store}/zarr.json"], "a file.*give the directory of a store"),
    "plan a model": (["plan", "{saved}"], "kind 'kedrl model', expected 'transitions'"),
    "plan a discount": (["plan", STORE, "--discount", "1.5"], "discount must lie strictly between 0 and 1"),
    "plan a word": (["plan", STORE, "--discount", "most"], "'most' is not a number"),
    "plan no atoms": (["plan", STORE, "--atoms", "0"], "0 is not a whole number ≥ 1"),
    "plan endless atoms": (["plan", STORE, "--atoms", "9" * 18], "n_atoms must be at most"),
    "plan memory": (["plan", STORE, "--memory", "lots"], "memory must be a number of bytes"),
    "plan over memory": (["plan", STORE, "--memory", "1 kB"], "budget is .*raise memory"),
    "plan a contradiction": (
        ["plan", STORE, "--operators", "exact", "--construction", "paired"],
        "needs constr",
    ),
    "study of nothing": (["study"], "name a study"),
    "study in a full directory": (
        ["study", "simulation", "--output", STORE],
        "holds no study; choose another",
    ),
    "study without end": (
        ["study", "coverage", "--output", OUT, "--replicates", "9" * 12],
        "is above 100,000",
    ),
    "study level": (
        ["study", "coverage", "--output", OUT, "--level", "2"],
        "level must lie strictly between",
    ),
    "study factor": (["study", "sensitivity", "--output", OUT, "--values", "x=1"], "'x' is not one of"),
    "study pair": (
        ["study", "simulation", "--output", OUT, "--pairs", "up-down"],
        "invalid choice: 'up-down'",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line__refuses_bad_input(bench, name, capsys):
    arguments, message = COMMANDS[name]
    places = {name: str(getattr(bench, name)) for name in ("out", "saved", "scratch")}
    places["store"] = str(bench.store.path)
    before = sorted(os.listdir(bench.out.parent)), sorted(os.listdir(bench.store.path))
    try:
        code = main([argument.format(**places) for argument in arguments])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err
    assert code == 2
    lines = [line for line in said.splitlines() if not line[:2].isdigit()]  # but for log lines
    if arguments:
        check_words(lines[-1])
        assert "error: " in lines[-1]
        assert not any(line.startswith("kedrl: all is well") for line in lines)
    assert re.search(message, said), said
    assert not list(bench.out.iterdir()), "partial output"
    assert (sorted(os.listdir(bench.out.parent)), sorted(os.listdir(bench.store.path))) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_open__without_permission(bench):
    path = bench.copy("store")
    path.chmod(0)
    try:
        with pytest.raises(OSError, match="Permission denied"):
            TransitionStore.open(path)
    finally:
        path.chmod(stat.S_IRWXU)


def test_load__pickle_is_not_executed(bench, tmp_path):
    """A store whose chunks are pickles that would leave a file behind."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = bench.copy("model")
    chunk = path / "coefficients" / "c" / "0" / "0"
    chunk.write_bytes(pickle.dumps(Trap()))
    for codecs in ([PICKLE], [{"name": "bytes"}, PICKLE], None):
        target = bench.edit(
            "model", put(**({"codecs": codecs, "data_type": "object"} if codecs else {})), "coefficients"
        )
        shutil.copy(chunk, target / "coefficients" / "c" / "0" / "0")
        with pytest.raises(StoreError):
            KEDRL.load(target)
    assert not (tmp_path / "sprung").exists()
