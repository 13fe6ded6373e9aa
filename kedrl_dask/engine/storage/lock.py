"""One process at a time in a directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

__all__ = ["Busy", "locked", "now"]


class Busy(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Hold the lock of a directory: the operating system releases it when the process ends, however it ends.

    ``name`` is that of the file, which stays there.
    On file systems of several machines it holds as far as these know ``flock``: NFS does, others may
    have to be mounted with it. Where there is none at all, that is an error.
    """
    path = folder / name
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"{folder} is being worked on by {_holder(file)}; wait for it, or end that process"
            ) from None
        except OSError as error:
            raise OSError(
                f"{path}: this file system has no locks ({error}), so that two processes could work on one "
                "directory; put it on another"
            ) from error
        file.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": now()}, file)
        file.flush()
        yield


def _holder(file: IO[str]) -> str:
    file.seek(0)
    with suppress(ValueError):
        held = json.load(file)
        return f"process {held['pid']} on {held['host']} since {held['since']}"
    return "another process"


def now() -> str:
    """The time, for records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
