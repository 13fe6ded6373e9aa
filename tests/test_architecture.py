"""The folders are the floors of the house, and imports point down."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import kedrl_dask

PACKAGE = Path(kedrl_dask.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

#: Folders from the ground up, and likewise inside two of them: each may import those before it, and itself.
FLOORS = (
    "utils", "numerics", "engine", "estimator", "comparison", "datasets", "plots", "report", "service",
    "studies", "cli",
)  # fmt: skip
ROOMS = {
    "numerics": ("kernels", "policies", "design", "criterion", "regression", "simulation", "solvers", "laws"),
    "estimator": ("fit", "fitted"),
    "engine": ("storage", "data", "ingest", "execute", "clusters", "plan", "passes"),
}
#: What lies flat in the package.
FLAT = {"__init__", "__main__", "_version"}
MOST_MODULES, MOST_LINES = 12, 450


def room(path):
    """Folders of a module below the package, or its own name if it lies flat."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) or parts[0]


@cache
def imports(path):
    """Dotted names of everything that a module imports, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def is_lazy(path, name):
    """Whether a module imports a name inside functions only."""
    nodes = ast.parse(path.read_text()).body
    return not any(
        isinstance(node, ast.ImportFrom) and any(f"{node.module}.{a.name}" == name for a in node.names)
        for node in nodes
    )


def upward(path):
    """Imports of a module that point up."""
    own = path.relative_to(PACKAGE).parts
    if own[0].removesuffix(".py") in FLAT:
        return
    for name in imports(path):
        top, *parts = name.split(".")
        if top != "kedrl_dask" or parts[0] not in FLOORS:
            continue
        if FLOORS.index(parts[0]) > FLOORS.index(own[0]):
            yield name
        rooms = ROOMS.get(own[0], ())
        if parts[0] == own[0] and parts[1] in rooms and own[1] in rooms:
            is_up = rooms.index(parts[1]) > rooms.index(own[1])
            if is_up and not (own[:2] == ("engine", "data") and parts[1] == "ingest" and is_lazy(path, name)):
                yield name


def test_folders__are_the_floors():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FLOORS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == FLAT
    for floor, rooms in ROOMS.items():
        inside = {p.name for p in (PACKAGE / floor).iterdir() if p.is_dir() and p.name != "__pycache__"}
        assert inside == set(rooms)


def test_imports__point_down():
    assert not {str(path.relative_to(PACKAGE)): names for path in SOURCES if (names := [*upward(path)])}


def test_rooms__are_no_heaps_and_say_what_they_are_for():
    heaps = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert not {str(folder): n for folder, n in heaps.items() if n > MOST_MODULES}
    for folder in {path.parent for path in SOURCES}:
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert words, f"{folder} does not say what it is for"


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("zarr", {"engine.storage"}),
        ("distributed", {"engine.execute", "engine.clusters"}),
        ("dask", {"engine.execute", "engine.clusters"}),
        ("pyarrow", {"engine.ingest", "datasets.expedia"}),
    ],
)
def test_library__known_to_few_modules(library, owners):
    users = {room(path) for path in SOURCES if any(n.split(".")[0] == library for n in imports(path))}
    assert users == owners


def test_dependencies__every_import_is_declared():
    declared = {
        "IPython",  # where a notebook runs it is there: the extra notebooks, through ipykernel
        "bokeh",
        "dask",
        "dask_jobqueue",  # where clusters ask for it: the extra jobqueue
        "dask_kubernetes",  # the extra kubernetes
        "distributed",
        "jinja2",
        "matplotlib",
        "numba",
        "numpy",
        "pandas",
        "psutil",
        "pyarrow",
        "rich",
        "scipy",
        "shtab",
        "sklearn",
        "threadpoolctl",
        "xarray",
        "zarr",
    }
    used = {name.split(".")[0] for path in SOURCES for name in imports(path)}
    assert used - set(sys.stdlib_module_names) - {"kedrl_dask"} <= declared


def test_modules__fit_in_a_room():
    long = {path.name: n for path in SOURCES if (n := len(path.read_text().splitlines())) > MOST_LINES}
    assert not long
