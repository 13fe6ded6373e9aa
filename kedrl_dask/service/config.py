"""A fit, or a scheduled evaluation, described by a TOML file.

::

    data = "transitions.zarr"  # paths are relative to the file
    run = "run"                # directory of the run, unless given on the command line
    cache = "cache"            # optional: directory for blocks, instead of the run
    discount = 0.9

    [policy]                   # the target policy: a family and its numbers ...
    family = "gaussian"
    weights = [[0.2], [-0.1]]
    bias = 0.1
    scale = 0.3
    # file = "policy.json"     # ... or a file with them, .json, .toml or .npz

    [policies.careful]         # in place of [policy]: several, by name
    file = "careful.json"

    [settings]                 # any parameter of KEDRL
    n_atoms = 100
    return_kernel = { nu = 5.5, length_scale = [1.2, 0.9], sigma = 0.85 }
    solver = { name = "pcg", tolerance = 1e-8 }

    [cluster]                  # where it runs; all keys are in kedrl_dask.engine.clusters.descriptions
    kind = "slurm"
    cores = 4
    memory = "16 GiB"
    jobs = 8

``kedrl evaluate`` reads ``[evaluate]`` too: see :mod:`kedrl_dask.service.schedule`. Errors name the file, the
line and the key.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from kedrl_dask.engine.clusters.descriptions import KINDS, ClusterDescription, cluster_keys, describe_cluster
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import LocationScale, from_dict
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import by_name
from kedrl_dask.service.toml import Key, Toml, read_text, read_toml
from kedrl_dask.utils.arrays import Record

T = TypeVar("T")

#: Keys of the file; others are refused.
KEYS = ("data", "run", "cache", "discount", "policy", "policies", "settings", "evaluate", "cluster")
#: Valid names of policies, which become names of directories.
POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: Name of the policy in a file with a single one.
ONLY = "policy"


@dataclass(frozen=True)
class RunConfig:
    """The content of a file: data, policies, parameters of KEDRL with the discount, and where it runs."""

    data: Path
    policies: dict[str, LocationScale]
    parameters: Record = field(default_factory=dict)
    run: Path | None = None
    cache: Path | None = None
    source: Toml | None = None
    cluster: ClusterDescription | None = None

    @property
    def policy(self) -> LocationScale:
        """The target policy, if there is only one."""
        if len(self.policies) > 1:
            raise ValueError(
                f"{'' if self.source is None else self.source.path}: has the policies "
                f"{', '.join(self.policies)}, but a fit takes one; give [policy], or use kedrl evaluate"
            )
        return next(iter(self.policies.values()))

    def model(self) -> KEDRL:
        """The estimator."""
        return KEDRL(**self.parameters)


def load_config(path: str | Path) -> RunConfig:
    """Read a file and check all that can be checked without the data; errors name the file and the key."""
    source = read_toml(Path(path))
    given = source.content
    refuse_unknown(source, "", given, KEYS)
    for key in ("data", "discount"):
        if key not in given:
            raise _missing(source, key)
    places = {
        key: source.path.parent / typed(source, key, given[key], str, "a path, as text")
        for key in ("data", "run", "cache")
        if key in given
    }
    parameters: Record = {
        name: _setting(source, name, value) for name, value in _table(source, given, "settings").items()
    }
    refuse_unknown(source, "settings.", parameters, set(KEDRL(0.5).get_params()) - {"discount"})
    parameters = {"discount": given["discount"], **parameters}
    _named(source, "settings", lambda: Settings(**KEDRL(**parameters).get_params(deep=False)))
    return RunConfig(
        policies=_policies(source, given),
        parameters=parameters,
        source=source,
        cluster=_cluster(source, _table(source, given, "cluster")) if "cluster" in given else None,
        **places,
    )


def load_policy(path: str | Path) -> LocationScale:
    """Policy from a family and its numbers in a .json, .toml or .npz file; errors name the file."""
    path = Path(path)
    if path.suffix == ".toml":
        source = read_toml(path)
        return _built_policy(source, "", source.content)
    readers = {".json": _read_json, ".npz": _read_npz}
    if path.suffix not in readers:
        raise ValueError(f"{path}: a policy is read from .json, .toml, .npz, not from {path.suffix!r} files")
    return _built_policy(path, "policy", readers[path.suffix](path))


def _missing(source: Toml, key: str) -> ValueError:
    described = "kedrl_dask.service.config describes the file"
    return ValueError(f"{source.path}: the key {key!r} is missing; {described}")


def _policies(source: Toml, given: Record) -> dict[str, LocationScale]:
    """One policy, or several by name."""
    if "policies" not in given:
        if "policy" not in given:
            raise _missing(source, "policy")
        return {ONLY: _policy(source, "policy", _table(source, given, "policy"))}
    if "policy" in given:
        raise config_error(source, "policy", "[policy] cannot be combined with [policies]; name it there")
    tables = _table(source, given, "policies")
    if not tables:
        raise config_error(source, "policies", "[policies] is empty; give a policy, as [policies.NAME]")
    for name in tables:
        if not POLICY_NAME.fullmatch(name):
            raise config_error(
                source, ("policies", name),
                f"policy name {name!r}: use at most 64 letters, digits, '-' and '_', beginning with a "
                "letter or digit",
            )  # fmt: skip
    return {
        name: _policy(source, f"policies.{name}", _table(source, tables, name, "policies."))
        for name in tables
    }


def _policy(source: Toml, key: str, given: Record) -> LocationScale:
    if "file" not in given:
        return _built_policy(source, key, given)
    for other in given:
        if other != "file":
            message = f"the key '{key}.{other}' cannot be combined with '{key}.file'; give one of them"
            raise config_error(source, f"{key}.{other}", message)
    file = typed(source, f"{key}.file", given["file"], str, "a path, as text")
    return load_policy(source.path.parent / file)


def _cluster(source: Toml, given: Record) -> ClusterDescription:
    kind = given.get("kind")
    if kind in KINDS:  # otherwise describe_cluster lists the kinds
        refuse_unknown(source, "cluster.", given, cluster_keys(kind))
    return _named(source, "cluster", lambda: describe_cluster(given, source.path.parent))


def _built_policy(source: Toml | Path, key: str, given: Mapping[str, object]) -> LocationScale:
    return _named(source, key, lambda: from_dict(given))


def _setting(source: Toml, name: str, value: object) -> object:
    """A parameter of the estimator; tables are kernels, solvers and settings of the density ratio."""
    key = f"settings.{name}"
    if not isinstance(value, dict):
        return value
    if name in ("input_kernel", "return_kernel"):
        return _built(source, key, Matern, value)
    if name == "ratio":
        return _built(source, key, ULSIF, value)
    if name == "solver":
        solver = value.get("name")
        kind = type(_named(source, key, lambda: by_name(typed(source, f"{key}.name", solver, str, "a name"))))
        return _built(source, key, kind, {k: v for k, v in value.items() if k != "name"})
    raise config_error(source, key, f"the key {key!r} takes a value, not a table")


def _built(source: Toml, key: str, kind: type, given: Record) -> object:
    """An object of the package from its fields, each of the type of its default."""
    known = {f.name: f.default for f in fields(kind)}
    refuse_unknown(source, f"{key}.", given, known)
    values = dict(given)
    for name, value in given.items():
        here, default = f"{key}.{name}", known[name]
        if isinstance(value, dict) and name == "kernel":
            values[name] = _built(source, here, Matern, value)
        elif isinstance(default, int):
            typed(source, here, value, int, "a whole number")
        elif isinstance(default, float) and not isinstance(value, list):
            typed(source, here, value, float, "a number")
        elif default is MISSING or isinstance(value, dict):
            raise config_error(source, here, f"the key {here!r} takes no {type(value).__name__}")
    return _named(source, key, lambda: kind(**values))


def config_error(source: Toml | Path, key: str | Key, message: str) -> ValueError:
    """An error about a key, with the file and, if known, the line."""
    if not isinstance(source, Toml):
        return ValueError(f"{source}: {message}")
    line = source.line(key)
    return ValueError(f"{source.path}: {'' if line is None else f'line {line}: '}{message}")


def _named(source: Toml | Path, key: str, build: Callable[[], T]) -> T:
    """Call a function whose errors are to name the file, the table, and the line of the key in question."""
    try:
        return build()
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(source, Toml) and str(error).startswith(f"{source.path}: "):
            raise
        name = re.match(r"\w+: (\w+)", str(error))
        place = key if name is None else f"{key}.{name[1]}".removeprefix(".")
        if place == "settings.discount":
            place = "discount"
        raise config_error(source, place, f"[{key or 'policy'}] {error}") from error


def typed(source: Toml | Path, key: str, value: object, kind: type[T], words: str) -> T:
    """The value of a key, which must be of a type; integers are numbers, too, and booleans are not."""
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise config_error(source, key, f"the key {key!r} must be {words}, got {value!r}")
    return cast(T, value)


def _table(source: Toml | Path, given: Record, key: str, prefix: str = "") -> Record:
    return typed(source, prefix + key, given.get(key, {}), dict, "a table")


def refuse_unknown(source: Toml | Path, prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown keys, with a suggestion of the nearest known one."""
    known = sorted(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
            raise config_error(source, prefix + key, f"unknown key {prefix + key!r}; {hint}")


def _read_json(path: Path) -> Record:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    return typed(path, "policy", content, dict, "an object with a family and its numbers")


def _read_npz(path: Path) -> Record:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not an .npz file of plain arrays: {error}") from error
    if "family" in content:
        content["family"] = str(content["family"])
    return content
