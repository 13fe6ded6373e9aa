"""A fit described by a TOML file.

::

    data = "transitions.zarr"  # paths are relative to the file
    run = "run"                # directory of the run, unless the command line gives one
    cache = "cache"            # optional: blocks are kept there and not in the run
    discount = 0.9

    [policy]                   # the target policy: a family and its numbers ...
    family = "gaussian"
    weights = [[0.2], [-0.1]]
    bias = 0.1
    scale = 0.3
    # file = "policy.json"     # ... or a file with them, .json, .toml or .npz

    [settings]                 # any parameter of KEDRL
    n_atoms = 100
    return_kernel = { nu = 5.5, length_scale = [1.2, 0.9], sigma = 0.85 }
    solver = { name = "pcg", tolerance = 1e-8 }

    [cluster]                  # where it runs; see kedrl_dask.execute.kinds for all keys
    kind = "slurm"
    cores = 4
    memory = "16 GiB"
    jobs = 8
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from kedrl_dask.execute import KINDS, ClusterDescription, cluster_keys, describe_cluster
from kedrl_dask.kernels import Matern
from kedrl_dask.model import KEDRL
from kedrl_dask.policies import LocationScale, from_dict
from kedrl_dask.ratio import ULSIF
from kedrl_dask.settings import Settings
from kedrl_dask.solvers import by_name

__all__ = ["RunConfig", "load_config", "load_policy"]

#: Keys of the file; all others are refused.
KEYS = ("data", "run", "cache", "discount", "policy", "settings", "cluster")


@dataclass(frozen=True)
class RunConfig:
    """What a file describes.

    Attributes
    ----------
    data : Path
        The store of transitions.
    policy : LocationScale
        The target policy.
    parameters : dict
        Parameters of :class:`~kedrl_dask.KEDRL`, the discount among them.
    run, cache : Path or None
        Directories of the run and of a cache.
    cluster : ClusterDescription or None
        Where the fit runs, unless the command line says.
    """

    data: Path
    policy: LocationScale
    parameters: dict[str, Any] = field(default_factory=dict)
    run: Path | None = None
    cache: Path | None = None
    cluster: ClusterDescription | None = None

    def model(self) -> KEDRL:
        """The estimator."""
        return KEDRL(**self.parameters)


def load_config(path: str | Path) -> RunConfig:
    """Read a file and check everything that can be checked without the data.

    Raises
    ------
    ValueError
        Naming the file and the key.
    """
    path = Path(path)
    given = _read_toml(path)
    _refuse_unknown(path, "", given, KEYS)
    for key in ("data", "discount", "policy"):
        if key not in given:
            raise ValueError(f"{path}: the key {key!r} is missing; see kedrl_dask.config for what a file has")
    places = {
        key: path.parent / _typed(path, key, given[key], str, "a path, as text")
        for key in ("data", "run", "cache")
        if key in given
    }
    parameters = {
        name: _setting(path, name, value) for name, value in _table(path, given, "settings").items()
    }
    _refuse_unknown(path, "settings.", parameters, set(KEDRL(0.5).get_params()) - {"discount"})
    parameters = {"discount": given["discount"], **parameters}
    _named(path, "settings", lambda: Settings(**KEDRL(**parameters).get_params(deep=False)))
    return RunConfig(
        policy=_policy(path, _table(path, given, "policy")),
        parameters=parameters,
        cluster=_cluster(path, _table(path, given, "cluster")) if "cluster" in given else None,
        **places,
    )


def load_policy(path: str | Path) -> LocationScale:
    """Policy from a file: a family and its numbers, in .json or .toml, or as arrays in .npz.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it.
    """
    path = Path(path)
    readers = {".json": _read_json, ".toml": _read_toml, ".npz": _read_npz}
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: a policy is read from {', '.join(readers)}, not from {path.suffix!r} files"
        )
    return _built_policy(path, "policy", readers[path.suffix](path))


def _policy(path: Path, given: dict[str, Any]) -> LocationScale:
    if "file" not in given:
        return _built_policy(path, "policy", given)
    for key in given:
        if key != "file":
            raise ValueError(
                f"{path}: the key 'policy.{key}' does not go with 'policy.file'; give one of them"
            )
    return load_policy(path.parent / _typed(path, "policy.file", given["file"], str, "a path, as text"))


def _cluster(path: Path, given: dict[str, Any]) -> ClusterDescription:
    kind = given.get("kind")
    if kind in KINDS:  # and otherwise the description says which there are
        _refuse_unknown(path, "cluster.", given, cluster_keys(kind))
    return _named(path, "cluster", lambda: describe_cluster(given, path.parent))


def _built_policy(path: Path, key: str, given: Mapping[str, Any]) -> LocationScale:
    return _named(path, key, lambda: from_dict(given))


def _setting(path: Path, name: str, value: Any) -> Any:
    """A parameter of the estimator; tables are kernels, solvers and settings of the density ratio."""
    key = f"settings.{name}"
    if not isinstance(value, dict):
        return value
    if name in ("input_kernel", "return_kernel"):
        return _built(path, key, Matern, value)
    if name == "ratio":
        return _built(path, key, ULSIF, value)
    if name == "solver":
        solver = value.get("name")
        kind = type(_named(path, key, lambda: by_name(_typed(path, f"{key}.name", solver, str, "a name"))))
        return _built(path, key, kind, {k: v for k, v in value.items() if k != "name"})
    raise ValueError(f"{path}: the key {key!r} takes no table; give it a value")


def _built(path: Path, key: str, kind: type, given: dict[str, Any]) -> Any:
    """An object of the package from its fields, each of the type of its default."""
    known = {f.name: f.default for f in fields(kind)}
    _refuse_unknown(path, f"{key}.", given, known)
    values = dict(given)
    for name, value in given.items():
        here, default = f"{key}.{name}", known[name]
        if isinstance(value, dict) and name == "kernel":
            values[name] = _built(path, here, Matern, value)
        elif isinstance(default, int):
            _typed(path, here, value, Integral, "a whole number")
        elif isinstance(default, float) and not isinstance(value, list):
            _typed(path, here, value, Real, "a number")
        elif default is MISSING or isinstance(value, dict):
            raise ValueError(f"{path}: the key {here!r} takes no {type(value).__name__}")
    return _named(path, key, lambda: kind(**values))


def _named(path: Path, key: str, build: Callable[[], Any]) -> Any:
    """What is built; errors name the file and the key."""
    try:
        return build()
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: [{key}] {error}") from error


def _typed(path: Path, key: str, value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{path}: the key {key!r} must be {words}, got {value!r}")
    return value


def _table(path: Path, given: dict[str, Any], key: str) -> dict[str, Any]:
    return _typed(path, key, given.get(key, {}), dict, "a table")


def _refuse_unknown(path: Path, prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{path}: unknown key {prefix + key!r}; {hint}")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: is no TOML file: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON file: {error}") from error
    return _typed(path, "policy", content, dict, "an object with a family and its numbers")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no text in UTF-8: {error}") from error


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: is no .npz file of plain arrays: {error}") from error
    if "family" in content:
        content["family"] = str(content["family"])
    return content
