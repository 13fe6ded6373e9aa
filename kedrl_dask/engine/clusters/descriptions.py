"""Descriptions of clusters: what a file or an option says, checked before anything starts.

::

    [cluster]
    kind = "slurm"                   # threads, local, slurm, pbs, sge, lsf, kubernetes or address
    cores = 4                        # of one job; it runs as many worker processes, unless processes is given
    memory = "16 GiB"                # of one job
    walltime = "04:00:00"            # of one job; its workers end a few minutes before
    queue = "short"                  # Slurm's partition
    jobs = 8                         # or minimum = 1 and maximum = 8: as many as there is work for
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from dask.utils import parse_bytes, parse_timedelta

from kedrl_dask.engine.execute.tls import Certificates
from kedrl_dask.utils.checks import shown

__all__ = [
    "BATCH", "KINDS", "Address", "ClusterDescription", "Jobs", "Kubernetes", "Local", "Threads",
    "chosen_cluster", "cluster_keys", "describe_cluster", "parse_cluster", "parse_walltime",
]  # fmt: skip

#: Batch systems.
BATCH = ("slurm", "pbs", "sge", "lsf")
#: What names of queues, accounts and interfaces are made of, and paths, which stand unquoted in a job script.
NAME, PLACE = r"[\w.,:@+=-]+", r"[\w.,:@+=/~-]+"
#: Paths on a worker's machine, such as $TMPDIR, which the job itself completes.
WORKER_PLACE = r"[\w.,:@+=/~${}-]+"
NAMESPACE = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
WALLTIME = r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)"
#: More jobs or workers than this are a slip of the hand.
MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class ClusterDescription:
    """What every kind has.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    """

    kind: str
    #: The key that ``--cluster KIND=VALUE`` sets.
    main: ClassVar[str]

    def __post_init__(self) -> None:
        """Check every value; errors name the key."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for check in getattr(hint, "__metadata__", ()):
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, check(name, getattr(self, name)))

    def sized(self, value: str) -> Self:
        """This cluster with the value that the command line gives."""
        given: Any = int(value) if value.isdecimal() and len(value) < 9 else value
        return replace(self, **{self.main: given})


def _whole(name: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise ValueError(f"{name} must be a whole number from {least} to {MOST:,}, got {shown(value)}")
    return value


def _count(name: str, value: Any) -> int:
    return _whole(name, value, least=0)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{name} must be text of one line, got {shown(value)}")
    return value


def _matching(pattern: str, words: str) -> Any:
    def check(name: str, value: Any) -> str:
        if not re.fullmatch(pattern, _text(name, value)):
            raise ValueError(f"{name} must be {words}, got {shown(value)}")
        return value

    return check


def _place(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} must be a path, as text, got {shown(value)}")
    return Path(_text(name, str(value)))


def _script_place(name: str, value: Any) -> Path:
    """A path that a job script names: batch systems have no way to quote it."""
    path = _place(name, value)
    if not re.fullmatch(PLACE, str(path)):
        raise ValueError(f"{name} must be a path without spaces and quotes, got {shown(str(value))}")
    return path


def _memory(name: str, value: Any) -> int:
    try:
        n_bytes = int(parse_bytes(value)) if isinstance(value, int | str) else 0
    except ValueError:
        n_bytes = 0
    if n_bytes < 2**20 or isinstance(value, bool):
        raise ValueError(f"{name} must be words such as '16 GiB', a MiB at least, got {shown(value)}")
    return n_bytes


def parse_walltime(name: str, value: Any) -> int:
    """Seconds from [days-]hours:minutes:seconds, or from words such as "90 minutes"."""
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
            f"{name} must be a minute at least, as [days-]hours:minutes:seconds or in words such as "
            f"'4 hours', got {shown(value)}"
        )
    return total


def _duration(name: str, value: Any) -> str:
    parse_walltime(name, value)
    return value


def _lines(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list of lines, got {shown(value)}")
    return tuple(_text(name, line) for line in value)


@dataclass(frozen=True, kw_only=True)
class _Secured(ClusterDescription):
    """PEM files by which scheduler, workers and clients know each other."""

    authority: Annotated[Path | None, _place] = None
    certificate: Annotated[Path | None, _place] = None
    private_key: Annotated[Path | None, _place] = None

    def __post_init__(self) -> None:
        """Refuse some of the files without the others."""
        super().__post_init__()
        given = [path is not None for path in (self.authority, self.certificate, self.private_key)]
        if any(given) and not all(given):
            raise ValueError("authority, certificate and private_key go together; give all three, or none")

    def certificates(self) -> Certificates | None:
        """The files given, which must be there, if any are."""
        if self.authority is None or self.certificate is None or self.private_key is None:
            return None
        return Certificates(self.authority, self.certificate, self.private_key)


@dataclass(frozen=True, kw_only=True)
class _Scaled(ClusterDescription):
    """As many jobs or workers as there is work for, between two bounds."""

    minimum: Annotated[int | None, _count] = None
    maximum: Annotated[int | None, _whole] = None

    def __post_init__(self) -> None:
        """Refuse bounds with a fixed number, and bounds that are none."""
        super().__post_init__()
        fixed = getattr(self, self.main)
        if self.minimum is not None and self.maximum is None:
            raise ValueError("minimum needs a maximum: the number then follows the work there is")
        if fixed is not None and self.maximum is not None:
            raise ValueError(f"{self.main} is a fixed number and does not go with minimum and maximum")
        if self.maximum is not None and (self.minimum or 0) > self.maximum:
            raise ValueError(f"minimum must not be above maximum, got {self.minimum} and {self.maximum}")

    @property
    def is_adaptive(self) -> bool:
        """Whether the number follows the work there is."""
        return self.maximum is not None

    def sized(self, value: str) -> Self:
        """A fixed number in place of bounds."""
        return ClusterDescription.sized(replace(self, minimum=None, maximum=None), value)


@dataclass(frozen=True, kw_only=True)
class Threads(ClusterDescription):
    """Threads of this process; those of all its cores unless their number is given."""

    kind: str = "threads"
    main: ClassVar[str] = "threads"
    threads: Annotated[int | None, _whole] = None


@dataclass(frozen=True, kw_only=True)
class Local(_Secured):
    """Worker processes on this machine, one for each core unless their number is given.

    They listen on ``host``, loopback unless it is given; elsewhere they speak TLS.
    """

    kind: str = "local"
    main: ClassVar[str] = "workers"
    workers: Annotated[int | None, _whole] = None
    host: Annotated[str, _matching(NAME, "a host name or address")] = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Address(_Secured):
    """The cluster of a scheduler that is there; Dask's setting ``scheduler-address`` unless it is given."""

    kind: str = "address"
    main: ClassVar[str] = "address"
    address: Annotated[
        str | None, _matching(r"[a-z]+://\S+", "the address of a scheduler, tls://host:8786")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Jobs(_Secured, _Scaled):
    """Workers as jobs of a batch system; dask-jobqueue submits them.

    What is left out is taken from dask-jobqueue's own configuration, ``jobqueue.yaml``, where sites
    keep their defaults.

    Attributes
    ----------
    cores, processes : int
        Of one job. Each core has a worker process unless ``processes`` says otherwise.
    memory : int
        Bytes of one job; its workers share them.
    walltime : str
        Of one job. Its workers end a few minutes before, not all at once, and are replaced.
    queue, account : str
        Slurm's partition and account, or what the system has in their place.
    interface, scheduler_interface : str
        Network interfaces of the workers, and of the driver where that is another.
    local_directory : str
        Where workers put what does not fit their memory, on their machine; may have $VARIABLES.
    log_directory : Path
        Where jobs write what they say; temporary certificates are there too while the cluster runs.
    directives : tuple of str
        More options of the batch system, such as ``--constraint=amd``.
    prologue : tuple of str
        Lines of shell that a job runs first, such as ``module load python``.
    jobs : int
        How many; 1 unless it is given, or bounds.
    watch_seconds : int
        How often the batch system is asked which jobs it still has.
    """

    kind: str
    main: ClassVar[str] = "jobs"
    cores: Annotated[int | None, _whole] = None
    processes: Annotated[int | None, _whole] = None
    memory: Annotated[int | None, _memory] = None
    walltime: Annotated[str | None, _duration] = None
    queue: Annotated[str | None, _matching(NAME, "the name of a queue")] = None
    account: Annotated[str | None, _matching(NAME, "the name of an account")] = None
    interface: Annotated[str | None, _matching(NAME, "the name of a network interface, such as eth0")] = None
    scheduler_interface: Annotated[
        str | None, _matching(NAME, "the name of a network interface, such as eth0")
    ] = None
    local_directory: Annotated[str | None, _matching(WORKER_PLACE, "a path without spaces and quotes")] = None
    log_directory: Annotated[Path, _script_place] = Path("cluster-logs")
    directives: Annotated[tuple[str, ...], _lines] = ()
    prologue: Annotated[tuple[str, ...], _lines] = ()
    jobs: Annotated[int | None, _whole] = None
    watch_seconds: Annotated[int, _whole] = 15

    def __post_init__(self) -> None:
        """Refuse processes without cores of their own."""
        super().__post_init__()
        if self.cores is not None and self.processes is not None and self.processes > self.cores:
            raise ValueError(f"processes must not be above cores, got {self.processes} and {self.cores}")

    @property
    def first_jobs(self) -> int:
        """Jobs to begin with: one at least, as there is work."""
        return max(1, self.minimum or 0) if self.is_adaptive else self.jobs or 1


@dataclass(frozen=True, kw_only=True)
class Kubernetes(_Scaled):
    """A cluster that Dask's operator makes from a manifest, and takes down at the end.

    Attributes
    ----------
    manifest : Path
        The DaskCluster, in YAML; ``deploy/kubernetes/cluster.yaml`` is one to begin with.
    namespace : str
        Where; that of the current context unless it is given.
    workers : int
        How many, in place of the manifest's ``replicas``.
    """

    kind: str = "kubernetes"
    main: ClassVar[str] = "workers"
    manifest: Annotated[Path | None, _place] = None
    namespace: Annotated[str | None, _matching(NAMESPACE, "the name of a namespace")] = None
    workers: Annotated[int | None, _whole] = None


#: Every kind with its description.
KINDS: dict[str, type[ClusterDescription]] = {
    "threads": Threads,
    "local": Local,
    **dict.fromkeys(BATCH, Jobs),
    "kubernetes": Kubernetes,
    "address": Address,
}
#: Keys that are paths, relative to the file that has them.
PATHS = ("authority", "certificate", "private_key", "log_directory", "manifest")


def cluster_keys(kind: str) -> tuple[str, ...]:
    """Keys of a table that describes a cluster of this kind."""
    return tuple(item.name for item in fields(KINDS[kind]))


def describe_cluster(table: Mapping[str, Any], folder: Path = Path()) -> ClusterDescription:
    """The cluster that a table describes; its paths are relative to a folder.

    Raises
    ------
    ValueError
        Naming the key.
    """
    kind = table.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {shown(kind)}")
    for key in table:
        if key not in cluster_keys(kind):
            raise ValueError(f"{key} is no key of a {kind} cluster; it has {', '.join(cluster_keys(kind))}")
    described = KINDS[kind](**table)
    places = {name: getattr(described, name, None) for name in PATHS}
    return replace(described, **{name: folder / path for name, path in places.items() if path is not None})


def parse_cluster(text: str) -> tuple[str, str | None]:
    """Kind and value of ``--cluster KIND[=VALUE]``, checked."""
    kind, equals, value = text.partition("=")
    if kind not in KINDS:
        raise ValueError(f"{shown(kind)} is no kind of cluster; there are {', '.join(KINDS)}")
    if equals:
        _bare(kind).sized(value)
    return kind, value if equals else None


def _bare(kind: str) -> ClusterDescription:
    return KINDS[kind](kind=kind)


def chosen_cluster(
    option: tuple[str, str | None] | None, described: ClusterDescription | None
) -> ClusterDescription | None:
    """The cluster that an option names, with what a file says about this kind; or that of the file."""
    if option is None:
        return described
    kind, value = option
    chosen = described if described is not None and described.kind == kind else _bare(kind)
    return chosen if value is None else chosen.sized(value)
