"""Descriptions of clusters, from a file or an option, which are checked before anything is started.

::

    [cluster]
    kind = "slurm"                   # threads, local, slurm, pbs, sge, lsf, kubernetes or address
    cores = 4                        # of one job; also the number of its workers, unless processes is given
    memory = "16 GiB"                # of one job
    walltime = "04:00:00"            # of one job; its workers end a few minutes earlier
    queue = "short"                  # Slurm's partition
    jobs = 8                         # or minimum = 1 and maximum = 8, to adapt to the amount of work
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Self, get_type_hints

from dask.utils import parse_timedelta

from kedrl_dask.engine.execute.default import parse_memory
from kedrl_dask.engine.execute.tls import Certificates
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.checks import shown

#: Batch systems.
BATCH = ("slurm", "pbs", "sge", "lsf")
#: Patterns of the names of queues, accounts and interfaces, and of paths, all unquoted in job scripts.
NAME, PLACE = r"[\w.,:@+=-]+", r"[\w.,:@+=/~-]+"
#: Pattern of paths on a worker's machine, with variables such as $TMPDIR, which the job expands.
WORKER_PLACE = r"[\w.,:@+=/~${}-]+"
NAMESPACE = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
WALLTIME = r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)"
#: A larger number of jobs or workers is taken for a typing error.
MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class ClusterDescription:
    """Base class of all descriptions."""

    kind: str  # one of KINDS
    #: The key that ``--cluster KIND=VALUE`` sets.
    main: ClassVar[str]

    def __post_init__(self) -> None:
        """Check every value; errors name the key."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for check in getattr(hint, "__metadata__", ()):
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, check(name, getattr(self, name)))

    def sized(self, value: str) -> Self:
        """This cluster with the value given on the command line."""
        given: Record = {self.main: int(value) if value.isdecimal() and len(value) < 9 else value}
        return replace(self, **given)


def _whole(name: str, value: object, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise ValueError(f"{name} must be a whole number from {least} to {MOST:,}, got {shown(value)}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{name} must be a single line of text, got {shown(value)}")
    return value


def _matching(pattern: str, words: str) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        text = _text(name, value)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{name} must be {words}, got {shown(value)}")
        return text

    return check


_interface = _matching(NAME, "the name of a network interface, such as eth0")


def _place(name: str, value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} must be a path, as text, got {shown(value)}")
    return Path(_text(name, str(value)))


def _script_place(name: str, value: object) -> Path:
    """A path in a directive of a job script, which batch systems cannot quote."""
    return Path(_matching(PLACE, "a path without spaces and quotes")(name, str(_place(name, value))))


def _memory(name: str, value: object) -> int:
    return parse_memory(value, name, least=2**20)


def parse_walltime(name: str, value: object) -> int:
    """Seconds from [days-]hours:minutes:seconds, or from text such as "90 minutes"."""
    found = re.fullmatch(WALLTIME, value) if isinstance(value, str) else None
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        try:
            total = int(parse_timedelta(value, default=None)) if isinstance(value, str) else 0
        except (ValueError, KeyError, TypeError, AttributeError):
            total = 0
    if not 60 <= total <= 10**8:
        raise ValueError(
            f"{name} must be at least a minute, as [days-]hours:minutes:seconds or text such as '4 hours', "
            f"got {shown(value)}"
        )
    return total


def _duration(name: str, value: object) -> object:
    parse_walltime(name, value)
    return value


def _lines(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list of lines, got {shown(value)}")
    return tuple(_text(name, line) for line in value)


@dataclass(frozen=True, kw_only=True)
class _Secured(ClusterDescription):
    """A cluster with PEM files by which its scheduler, workers and clients identify each other."""

    authority: Annotated[Path | None, _place] = None
    certificate: Annotated[Path | None, _place] = None
    private_key: Annotated[Path | None, _place] = None

    def __post_init__(self) -> None:
        """Check that either all files are given or none."""
        super().__post_init__()
        given = [path is not None for path in (self.authority, self.certificate, self.private_key)]
        if any(given) and not all(given):
            raise ValueError("authority, certificate and private_key go together; give all three or none")

    def certificates(self) -> Certificates | None:
        """The files, which must exist, if they are given."""
        if self.authority is None or self.certificate is None or self.private_key is None:
            return None
        return Certificates(self.authority, self.certificate, self.private_key)


@dataclass(frozen=True, kw_only=True)
class _Scaled(ClusterDescription):
    """A cluster whose number of jobs or workers is fixed, or adapts to the work between two bounds."""

    minimum: Annotated[int | None, partial(_whole, least=0)] = None
    maximum: Annotated[int | None, _whole] = None

    def __post_init__(self) -> None:
        """Check that the bounds are in order, and not combined with a fixed number."""
        super().__post_init__()
        fixed = getattr(self, self.main)
        if self.minimum is not None and self.maximum is None:
            raise ValueError("minimum needs a maximum, between which the number adapts to the work")
        if fixed is not None and self.maximum is not None:
            raise ValueError(f"{self.main} is a fixed number and cannot be combined with minimum and maximum")
        if self.maximum is not None and (self.minimum or 0) > self.maximum:
            raise ValueError(f"minimum must not exceed maximum, got {self.minimum} and {self.maximum}")

    @property
    def is_adaptive(self) -> bool:
        """Whether the number adapts to the work."""
        return self.maximum is not None

    def sized(self, value: str) -> Self:
        """This cluster with a fixed number instead of bounds."""
        return ClusterDescription.sized(replace(self, minimum=None, maximum=None), value)


@dataclass(frozen=True, kw_only=True)
class Threads(ClusterDescription):
    """Threads of this process, by default one for each core."""

    kind: str = "threads"
    main: ClassVar[str] = "threads"
    threads: Annotated[int | None, _whole] = None


@dataclass(frozen=True, kw_only=True)
class Local(_Secured):
    """Worker processes on this machine, by default one for each core.

    They listen on ``host``, by default loopback; on any other host they use TLS.
    """

    kind: str = "local"
    main: ClassVar[str] = "workers"
    workers: Annotated[int | None, _whole] = None
    host: Annotated[str, _matching(NAME, "a host name or address")] = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Address(_Secured):
    """The cluster of an existing scheduler, by default that of Dask's setting ``scheduler-address``."""

    kind: str = "address"
    main: ClassVar[str] = "address"
    address: Annotated[
        str | None, _matching(r"[a-z]+://\S+", "the address of a scheduler, tls://host:8786")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Jobs(_Secured, _Scaled):
    """Workers in jobs of a batch system, submitted by dask-jobqueue.

    Missing values are taken from dask-jobqueue's own configuration, ``jobqueue.yaml``, where sites keep
    their defaults. By default, a job has one worker process for each core; its workers share its memory, end
    a few minutes before its walltime, at different times, and are replaced. ``queue`` and ``account`` are
    Slurm's partition and account, or their equivalents. Workers spill data that do not fit in memory to
    ``local_directory`` on their machine, which may contain $VARIABLES. ``log_directory`` also holds temporary
    certificates while the cluster is running.
    """

    kind: str
    main: ClassVar[str] = "jobs"
    cores: Annotated[int | None, _whole] = None
    processes: Annotated[int | None, _whole] = None
    memory: Annotated[int | None, _memory] = None  # bytes
    walltime: Annotated[str | None, _duration] = None
    queue: Annotated[str | None, _matching(NAME, "the name of a queue")] = None
    account: Annotated[str | None, _matching(NAME, "the name of an account")] = None
    interface: Annotated[str | None, _interface] = None
    scheduler_interface: Annotated[str | None, _interface] = None  # of the driver, if it differs
    local_directory: Annotated[str | None, _matching(WORKER_PLACE, "a path without spaces and quotes")] = None
    log_directory: Annotated[Path, _script_place] = Path("cluster-logs")
    directives: Annotated[tuple[str, ...], _lines] = ()  # further options, such as --constraint=amd
    prologue: Annotated[tuple[str, ...], _lines] = ()  # shell commands run first, such as module load
    jobs: Annotated[int | None, _whole] = None  # 1 by default, unless there are bounds
    watch_seconds: Annotated[int, _whole] = 15  # between queries for the jobs

    def __post_init__(self) -> None:
        """Check that every process has a core of its own."""
        super().__post_init__()
        if self.cores is not None and self.processes is not None and self.processes > self.cores:
            raise ValueError(f"processes must not exceed cores, got {self.processes} and {self.cores}")

    @property
    def first_jobs(self) -> int:
        """Number of jobs at the start; at least one, because there is work."""
        return max(1, self.minimum or 0) if self.is_adaptive else self.jobs or 1


@dataclass(frozen=True, kw_only=True)
class Kubernetes(_Scaled):
    """A cluster that Dask's operator creates from a manifest, and that is deleted at the end.

    The manifest is a DaskCluster in YAML, such as ``deploy/kubernetes/cluster.yaml``; ``workers`` overrides
    its ``replicas``. By default, the namespace is that of the current context.
    """

    kind: str = "kubernetes"
    main: ClassVar[str] = "workers"
    manifest: Annotated[Path | None, _place] = None
    namespace: Annotated[str | None, _matching(NAMESPACE, "the name of a namespace")] = None
    workers: Annotated[int | None, _whole] = None


#: All kinds of clusters.
KINDS: dict[str, type[ClusterDescription]] = {
    "threads": Threads,
    "local": Local,
    **dict.fromkeys(BATCH, Jobs),
    "kubernetes": Kubernetes,
    "address": Address,
}
#: Keys whose values are paths, relative to the file.
PATHS = ("authority", "certificate", "private_key", "log_directory", "manifest")


def cluster_keys(kind: str) -> tuple[str, ...]:
    """Keys of a table that describes a cluster of this kind."""
    return tuple(item.name for item in fields(KINDS[kind]))


def describe_cluster(table: Record, folder: Path = Path()) -> ClusterDescription:
    """The cluster that a table describes, with paths relative to a folder; errors name the invalid key."""
    kind = table.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {shown(kind)}")
    keys = cluster_keys(kind)
    for key in table:
        if key not in keys:
            raise ValueError(f"{key} is not a key of a {kind} cluster; its keys are {', '.join(keys)}")
    described = KINDS[kind](**table)
    places = {name: getattr(described, name, None) for name in PATHS}
    return replace(described, **{name: folder / path for name, path in places.items() if path is not None})


def parse_cluster(text: str) -> tuple[str, str | None]:
    """Kind and value of the option ``--cluster KIND[=VALUE]``, after a check."""
    kind, equals, value = text.partition("=")
    if kind not in KINDS:
        raise ValueError(f"{shown(kind)} is not a kind of cluster; choose one of {', '.join(KINDS)}")
    if equals:
        _bare(kind).sized(value)
    return kind, value if equals else None


def _bare(kind: str) -> ClusterDescription:
    return KINDS[kind](kind=kind)


def chosen_cluster(
    option: tuple[str, str | None] | None, described: ClusterDescription | None
) -> ClusterDescription | None:
    """The cluster named by an option, with the keys of the file if it describes this kind; or the file's."""
    if option is None:
        return described
    kind, value = option
    chosen = described if described is not None and described.kind == kind else _bare(kind)
    return chosen if value is None else chosen.sized(value)
