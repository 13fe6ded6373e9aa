"""Locks that admit one process at a time to a directory.

Written by hand rather than with the package ``filelock``, which truncates the lock file when it tries to
acquire it, and removes it on release: the error could not name the process that holds the lock.
"""

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


class Busy(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Hold the lock of a directory; the operating system releases it when the process ends, however it ends.

    ``name`` is that of the lock file, which is kept. On a file system shared by several machines the lock
    requires ``flock``: NFS supports it, others may need a mount option. A file system without locks is an
    error.
    """
    path = folder / name
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{folder} is in use by {_holder(file)}; wait for it, or end that process") from None
        except OSError as error:
            raise OSError(
                f"{path}: this file system does not support locks ({error}), so that two processes could "
                "write to one directory; use another file system"
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
    """Return the current time in UTC, as records store it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
