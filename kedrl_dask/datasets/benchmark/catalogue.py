"""All cases of the benchmark by name; those that need a library are built when they are asked for."""

from __future__ import annotations

from importlib.util import find_spec

from kedrl_dask.datasets.benchmark.case import Case
from kedrl_dask.datasets.benchmark.cases import CASES
from kedrl_dask.datasets.benchmark.tasks import TASKS

NAMES = (*CASES, *TASKS)
"""Names of all cases, whether or not their libraries are installed."""


def _missing(name: str) -> list[str]:
    """Libraries of a case that are not installed; they are not imported."""
    libraries = TASKS[name].libraries if name in TASKS else ()
    return [library for library in libraries if find_spec(library) is None]


def installed() -> tuple[str, ...]:
    """Names of the cases whose libraries are installed."""
    return tuple(name for name in NAMES if not _missing(name))


def check(name: str) -> None:
    """Refuse a name that is unknown, or whose libraries are not installed."""
    if name not in NAMES:
        raise ValueError(f"systems: {name!r} is not one of {', '.join(NAMES)}")
    if missing := _missing(name):
        raise ValueError(
            f"systems: {name!r} needs {', '.join(missing)}; install the extra: pip install 'kedrl-dask[rl]'"
        )


def case(name: str) -> Case:
    """A case by its name.

    A task is built anew by each call: it has an environment, which only one thread may use at a time.

    Examples
    --------
    >>> case("ring").about
    'a joint law on a ring'
    """
    check(name)
    return CASES[name] if name in CASES else TASKS[name].build(name)
