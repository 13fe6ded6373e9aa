"""Problems of a machine and their remedies, found before a long run fails.

``python -m kedrl_dask.service.doctor`` runs only the small fit: it is compared with the truth, and with the
same fit on one and two worker processes.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import psutil
from threadpoolctl import threadpool_info

from kedrl_dask.engine.storage.schema import ArraySpec
from kedrl_dask.utils.arrays import Matrix
from kedrl_dask.utils.checks import cut

if TYPE_CHECKING:
    from kedrl_dask.engine.execute.executor import Executor

GIB, MIB = 2**30, 2**20
#: Least memory for a fit of the default size, and speed of a disk below which passes wait for it.
LEAST_MEMORY, SLOW_DISK = 2 * GIB, 50 * MIB
#: Largest acceptable error of the small fit; it is usually 0.011.
LARGEST_ERROR = 0.03
#: Largest acceptable difference of fits in threads and on workers, relative to the largest embedding value.
LARGEST_DIFFERENCE = 1e-8
#: Chunks, and numbers in each, that are written and read to measure a disk.
WRITTEN_CHUNKS, CHUNK_NUMBERS = 8, 2**20

Status = Literal["good", "note", "caution", "wrong"]


@dataclass(frozen=True)
class Check:
    """The result of one examination; a note reports that something optional is missing."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain strings, for JSON."""
        return asdict(self)


def examine(directory: Path, scheduler: str | None, seconds: float) -> Iterator[Check]:
    """Examine everything, step by step: the directory is that of stores; 0 seconds skip the small fits."""
    yield from _versions()
    yield _blas()
    yield _memory()
    yield _disk(directory)
    yield _network()
    if scheduler is not None:
        yield _scheduler(scheduler)
    yield _tls()
    yield _slurm()
    if seconds > 0:
        yield _fit(seconds)


def _versions() -> Iterator[Check]:
    own = f"kedrl-dask {_installed('kedrl-dask') or 'not installed'}, Python {sys.version.split()[0]}"
    known, unfit = [], []
    for requirement in requires("kedrl-dask") or ():
        if ";" in requirement:  # of an extra
            continue
        name = re.split(r"[<>=!~]", requirement)[0]
        least, left_out = re.findall(r">=([\w.]+)", requirement), re.findall(r"!=([\w.]+)", requirement)
        found = _installed(name)
        known.append(f"{name} {found}")
        if found is None or found in left_out or any(_numbers(found) < _numbers(bound) for bound in least):
            unfit.append(f"{requirement}, found {found or 'none'}")
    if unfit:
        yield Check("versions", "wrong", "; ".join(unfit), "python -m pip install --upgrade kedrl-dask")
    else:
        yield Check("versions", "good", f"{own}; {', '.join(known)}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _blas() -> Check:
    from kedrl_dask.engine.clusters.opening import granted

    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = [info for info in threadpool_info() if info["user_api"] == "blas"]
    cores, _ = granted()
    words = ", ".join(
        f"{info['internal_api']} {info.get('version') or ''} ({info.get('architecture', 'unknown')} kernels) "
        f"with {info['num_threads']} threads"
        for info in libraries
    )
    text = f"{words or 'none found'}; usable cores: {cores}"
    if any(_crashes(info) for info in libraries):
        remedy = "install another version of OpenBLAS, or of NumPy if it came with that, or use one thread: "
        text += "; OpenBLAS 0.3.34 crashes on this processor"
        return Check("BLAS", "wrong", text, f"{remedy}export OPENBLAS_NUM_THREADS=1")
    if not libraries:
        return Check("BLAS", "caution", text, "install NumPy from a wheel, or with OpenBLAS or MKL")
    if cores < max(info["num_threads"] for info in libraries):
        remedy = f"use no more threads than cores: export OMP_NUM_THREADS={cores}"
        return Check("BLAS", "caution", text, remedy)
    return Check("BLAS", "good", text)


def _crashes(library: Mapping[str, Any]) -> bool:
    """Whether several threads of a BLAS that multiply a matrix with itself end the process."""
    found = library["internal_api"], library.get("architecture")
    affected = found[0] == "openblas" and found[1] in ("Haswell", "Zen")
    return affected and library["num_threads"] > 1 and _numbers(library.get("version") or "") == (0, 3, 34)


def _memory() -> Check:
    from kedrl_dask.engine.clusters.opening import granted

    found, (_, limit) = psutil.virtual_memory(), granted()
    text = f"{found.total / GIB:.1f} GiB, {found.available / GIB:.1f} free"
    if limit < found.total:
        text += f"; limits of this process allow {limit / GIB:.1f}"
    if min(found.available, limit) < LEAST_MEMORY:
        remedy = "request more, or use smaller sizes: kedrl plan STORE shows what a fit takes"
        return Check("memory", "caution", text, remedy)
    return Check("memory", "good", text)


def _disk(directory: Path) -> Check:
    """Write and read through Zarr, and lock a file, in a temporary directory."""
    from kedrl_dask.engine.storage.array_store import ArrayStore
    from kedrl_dask.engine.storage.lock import locked

    remedy = "choose a writable directory on a disk that supports file locks"
    spec = ArraySpec("number", ("row",), "float64", "random numbers")
    sizes = {"row": WRITTEN_CHUNKS * CHUNK_NUMBERS}, {"row": CHUNK_NUMBERS}
    values = np.random.default_rng(0).random(CHUNK_NUMBERS)
    try:
        with tempfile.TemporaryDirectory(prefix=".kedrl-doctor-", dir=directory) as folder:
            with locked(Path(folder)):
                pass
            path = Path(folder) / "store"
            store = ArrayStore.create(path, "kedrl doctor", [spec], *sizes, compressed=False)
            write = _rate(lambda i: store.write("number", i * CHUNK_NUMBERS, values))
            read = _rate(lambda i: store.read("number", i * CHUNK_NUMBERS, (i + 1) * CHUNK_NUMBERS))
    except OSError as error:
        return Check("Zarr", "wrong", cut(str(error)), remedy)
    free = shutil.disk_usage(directory).free
    text = (
        f"{directory}: writes {write / MIB:,.0f} and reads {read / MIB:,.0f} MiB/s, perhaps from the "
        f"file cache; {free / GIB:,.1f} GiB free"
    )
    if write < SLOW_DISK or free < GIB:
        return Check("Zarr", "caution", text, "put stores and caches on a faster or emptier disk")
    return Check("Zarr", "good", text)


def _rate(move: Callable[[int], object]) -> float:
    """Bytes per second of a function that writes or reads one chunk."""
    start = time.perf_counter()
    for i in range(WRITTEN_CHUNKS):
        move(i)
    return 8 * WRITTEN_CHUNKS * CHUNK_NUMBERS / (time.perf_counter() - start)


def _network() -> Check:
    host = socket.gethostname()
    interfaces = {
        name: [a.address for a in addresses if a.family == socket.AF_INET]
        for name, addresses in psutil.net_if_addrs().items()
    }
    words = ", ".join(f"{name} {' '.join(own)}" for name, own in interfaces.items() if own)
    try:
        address = socket.gethostbyname(host)
    except OSError:
        remedy = "add it to /etc/hosts, or name an interface or address for the cluster"
        return Check("network", "caution", f"{words}; {host} has no address", remedy)
    return Check("network", "good", f"{words}; {host} is {address}")


def _scheduler(address: str) -> Check:
    from kedrl_dask.engine.clusters.opening import reach_scheduler

    try:
        found = reach_scheduler(address, 10.0)
    except (OSError, ValueError) as error:
        remedy = "check that it runs, that no firewall blocks it, and that a TLS scheduler is given as tls://"
        return Check("scheduler", "wrong", f"{address}: {cut(str(error)) or 'no answer'}", remedy)
    text = f"{address}: {found['workers']} workers of {found['threads']} threads in all"
    if not found["workers"]:
        return Check("scheduler", "wrong", text, "start workers: dask worker ADDRESS")
    if found["differing"]:
        text += f"; other versions of {', '.join(found['differing'])}"
        return Check("scheduler", "caution", text, "install the same versions everywhere")
    return Check("scheduler", "good", text)


def _tls() -> Check:
    if find_spec("cryptography") is None:
        found = f"{ssl.OPENSSL_VERSION}; no temporary certificates without cryptography"
        remedy = "python -m pip install 'kedrl-dask[tls]', or use certificates of your own"
        return Check("TLS", "note", found, remedy)
    return Check("TLS", "good", f"{ssl.OPENSSL_VERSION}, cryptography {version('cryptography')}")


def _slurm() -> Check:
    if shutil.which("sbatch") is None:
        return Check("Slurm", "note", "not on this machine")
    command = ["sinfo", "--noheader", "--format=%P %a %D"]
    remedy = "check that slurmctld answers: scontrol ping"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Slurm", "caution", cut(str(error)), remedy)
    if done.returncode:
        found = cut(done.stderr.strip() or f"sinfo ended with {done.returncode}")
        return Check("Slurm", "caution", found, f"{remedy}; and SLURM_CONF")
    return Check("Slurm", "good", "partitions: " + "; ".join(done.stdout.strip().splitlines()[:5]))


def _fit(seconds: float) -> Check:
    """Run the small fits in a separate process, which can be killed."""
    command, start = [sys.executable, "-m", "kedrl_dask.service.doctor"], time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        found = f"a small fit did not end in {seconds:g} s"
        return Check("self-test", "wrong", found, "check what else runs here, or raise the limit: --seconds")
    if done.returncode:
        silent = f"it ended with {done.returncode}" if done.returncode > 0 else _killed(-done.returncode)
        last = (done.stderr.strip().splitlines() or [silent])[-1]
        return Check("self-test", "wrong", f"a small fit failed: {cut(last)}", f"run {' '.join(command)}")
    found = json.loads(done.stdout.splitlines()[-1])
    differences = ", ".join(f"{name} {size:.0e}" for name, size in found["differences"].items())
    text = (
        f"a small fit has an error of {found['rmse']:.3f} after {time.perf_counter() - start:.0f} s; "
        f"difference from threads: {differences}"
    )
    remedy = "reinstall NumPy, SciPy and Numba; if that does not help, report it with kedrl doctor --json"
    if not found["rmse"] <= LARGEST_ERROR:
        return Check("self-test", "wrong", f"{text}; expected an error of at most {LARGEST_ERROR}", remedy)
    if not max(found["differences"].values()) <= LARGEST_DIFFERENCE:
        text += f"; expected at most {LARGEST_DIFFERENCE:.0e} of each"
        return Check("self-test", "wrong", text, remedy)
    return Check("self-test", "good", text)


def _killed(number: int) -> str:
    """What a process that ended by a signal died of."""
    return f"it was killed by {signal.Signals(number).name}"


class SelfTest(TypedDict):
    """Results of the small fits.

    ``rmse`` is the mean error against the closed form at the paper's ten points; ``differences`` are those
    of the fits on workers from that in threads, relative to the largest embedding value.
    """

    rmse: float
    differences: dict[str, float]


def self_test() -> SelfTest:
    """Fit a small problem in threads, on one and on two worker processes."""
    from kedrl_dask import KEDRL, Matern
    from kedrl_dask.datasets import simulation, truth
    from kedrl_dask.engine.clusters.local import local_cluster
    from kedrl_dask.engine.execute.threads import ThreadExecutor

    pair = simulation.PAIRS["uniform-gaussian"]
    state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    law = truth.return_law(state, action, pair.target)
    at = truth.evaluation_grid(law)
    exact, differences = law.embed(at, pair.settings.kernel), {}
    with tempfile.TemporaryDirectory() as folder:
        store = simulation.write(Path(folder) / "store", pair, 2_940)

        def embed(executor: Executor) -> Matrix:
            model = KEDRL(
                simulation.DISCOUNT, input_kernel=Matern(5.5, 4.5), return_kernel=pair.settings.kernel,
                n_atoms=60, n_basis=80, n_landmarks=120, n_features=64, n_conditioning=1_000, n_blocks=10,
                construction="separated", centring="none",
            )  # fmt: skip
            model.fit(store, pair.target, executor=executor, progress="none")
            return model.embed(state, action, at=at)

        expected = embed(ThreadExecutor())
        for n_workers, name in ((1, "one worker"), (2, "two workers")):
            with local_cluster(n_workers) as executor:
                found = embed(executor)
            differences[name] = float(np.abs(found - expected).max() / np.abs(expected).max())
    rmse = float(np.mean(truth.embedding_errors(expected, exact)["rmse"]))
    return {"rmse": rmse, "differences": differences}


if __name__ == "__main__":
    print(json.dumps(self_test()))
