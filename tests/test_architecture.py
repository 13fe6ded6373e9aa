"""The house has three floors; imports point down only. One module knows Dask, one knows Zarr."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import kedrl_dask

PACKAGE = Path(kedrl_dask.__file__).parent

FLOORS = {
    # Mathematics on NumPy arrays.
    1: {
        "checks", "criterion", "design", "drawing", "encoding", "exact", "functionals", "fused", "grid",
        "kernels", "locations", "mixtures", "moments", "noise", "numerics", "nystrom", "operators", "overlap",
        "paired", "policies", "precondition", "ratio", "recovery", "scratch", "separation", "simplex",
        "sizing", "solvers", "spectral", "summaries", "theory", "trend", "tuning",
    },
    # Storage and execution.
    2: {
        "cache", "checkpoints", "chunks", "costs", "division", "episodes", "execute", "files", "foreign",
        "html", "locking", "objective", "paired_costs", "paired_objective", "pairs", "passes",
        "plan", "prefix", "probe", "process", "progress", "schema", "store", "tables", "target",
        "transitions", "validation", "writer",
    },
    # What people touch.
    3: {
        "__init__", "__main__", "answers", "bootstrap", "choices", "cli", "compared", "comparison",
        "conditioning", "config", "contrasts", "datasets", "demo", "diagnostics", "doctor", "drift",
        "estimating", "evaluation", "evaluations", "fitting", "frames", "gate", "model", "pairing", "persist",
        "planning", "plots", "reference", "rehearsal", "report", "reporting", "results", "runs", "scheduling",
        "separating", "settings", "streaming", "study", "sums", "toml",
    },
}  # fmt: skip
FREE = {"_version"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def room(path):
    """Module or folder directly below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor(name):
    return next(number for number, names in FLOORS.items() if name in names)


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


def test_every_room__stands_on_one_floor():
    rooms = {room(path) for path in SOURCES} - FREE
    listed = [name for names in FLOORS.values() for name in names]
    assert rooms == set(listed)
    assert len(listed) == len(set(listed))


def test_imports__point_down():
    up = []
    for path in SOURCES:
        own = room(path)
        for name in imports(path) if own not in FREE else ():
            parts = name.split(".")
            if parts[0] != "kedrl_dask" or len(parts) == 1 or parts[1] in FREE | {own}:
                continue
            is_room = (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists()
            target = parts[1] if is_room else own
            if floor(target) > floor(own):
                up.append(f"{path}: {own} (floor {floor(own)}) imports {name} (floor {floor(target)})")
    assert not up


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("zarr", {"store"}),
        ("distributed", {"execute"}),
        ("dask", {"execute"}),
        ("pyarrow", {"tables", "datasets"}),
    ],
)
def test_library__known_to_few_modules(library, owners):
    users = {room(path) for path in SOURCES if any(n.split(".")[0] == library for n in imports(path))}
    assert users == owners


def test_dependencies__every_import_is_declared():
    declared = {
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
    long = {path.name: n for path in SOURCES if (n := len(path.read_text().splitlines())) > 450}
    assert not long
