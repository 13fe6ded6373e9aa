"""The executor that a fit uses: the one given, the active client of Dask, or threads."""

from __future__ import annotations

from dask.utils import parse_bytes
from distributed import Client

from kedrl_dask.engine.execute.dask_client import DistributedExecutor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.execute.tls import warn_of_plain_text
from kedrl_dask.utils.checks import shown


def parse_memory(value: object, name: str = "memory", least: int = 1) -> int:
    """Bytes, from a number or from text.

    Examples
    --------
    >>> parse_memory("2 GiB")
    2147483648
    """
    try:
        n_bytes = int(parse_bytes(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        n_bytes = 0
    if n_bytes < least or isinstance(value, bool):
        more = f", at least {least / 2**20:g} MiB" if least > 1 else ""
        raise ValueError(
            f"{name} must be a number of bytes or text such as '2 GiB'{more}, got {shown(value)}"
        )
    return n_bytes


def default_executor() -> Executor:
    """The active :class:`distributed.Client` if there is one, else threads in this process.

    Warns about a client whose traffic others can read and forge.
    """
    try:
        client = Client.current()
    except ValueError:
        return ThreadExecutor()
    warn_of_plain_text(client)
    return DistributedExecutor(client)


def checked_executor(given: Executor | None) -> Executor:
    """The executor given, or the default one if there is none."""
    if given is None:
        return default_executor()
    if not isinstance(given, Executor):
        raise ValueError(
            f"executor must be an Executor of kedrl_dask.engine.execute, got {shown(given)}; leave it out to "
            "use the active distributed.Client, or threads"
        )
    return given
