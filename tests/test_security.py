"""Nobody is let in: no code from files, certificates off loopback, secrets kept, an honest audit."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from distributed import Client, LocalCluster, Security

from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute import tls
from kedrl_dask.engine.execute.default import default_executor
from kedrl_dask.engine.execute.tls import (
    Certificates,
    InsecureClusterWarning,
    cluster_security,
    is_loopback,
    warn_of_plain_text,
)
from kedrl_dask.numerics.kernels import matern_compiled
from tests.test_architecture import PACKAGE, SOURCES, imports, room

ROOT = PACKAGE.parent
#: Modules that turn bytes into code, or text into commands.
RUN_CODE = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code",
    "subprocess", "pty", "ctypes", "runpy",
}  # fmt: skip
#: Functions that do.
CALLS = {
    "eval", "exec", "compile", "__import__", "system", "popen", "execv", "execve", "spawnv", "execvp",
}  # fmt: skip
#: What may be imported by a name that is not written in an import: names that the package has tables of.
IMPORTED = {
    "__init__.py": {"f'{__name__}.{module}'", "f'{__name__}.{_MOVED[spec.loader_state]}'"},
    "cli/__init__.py": {"f'kedrl_dask.cli.verbs.{name}'"},
    "datasets/gymnasium.py": {"library"},
    "datasets/minari.py": {"'minari'"},
}


def calls(path):
    """Names of everything that a module calls, with the keywords it gives."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if ast.unparse(called) == "re.compile":
                continue
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            yield name, options | {str(i): ast.unparse(value) for i, value in enumerate(node.args)}


def test_package__nothing_but_the_executor_can_run_what_it_reads():
    """What it unpickles went from the driver to its own workers, over Dask's connections.

    What it runs are the listings of batch systems, and the doctor's own small fit, by lists of words.
    """
    users = {
        (room(path), name.split(".")[0])
        for path in SOURCES
        for name in imports(path)
        if name.split(".")[0] in RUN_CODE
    }
    assert users == {
        ("engine.execute", "pickle"),
        ("engine.clusters", "subprocess"),
        ("service", "subprocess"),
    }
    assert {p.name for p in SOURCES if "subprocess" in set(imports(p))} == {"batch_systems.py", "doctor.py"}


def test_package__calls_nothing_that_runs_text():
    offenders = []
    for path in SOURCES:
        place = str(path.relative_to(PACKAGE))
        for name, options in calls(path):
            if (
                name in CALLS
                or (name == "import_module" and options.get("0") not in IMPORTED.get(place, ()))
                or options.get("shell", "False") != "False"
                or options.get("allow_pickle", "False") != "False"
            ):
                offenders.append(f"{place}: {name} {options}")
    assert not offenders


def test_numba__keeps_machine_code_with_the_package_or_the_user():
    """Its cache is pickled: it must not come from wherever the command was started."""
    matern_compiled.half_integer_kernel.enable_caching()
    kept = Path(matern_compiled.half_integer_kernel.stats.cache_path).resolve()
    own = os.environ.get("NUMBA_CACHE_DIR")
    allowed = [PACKAGE.resolve(), Path.home().resolve(), *([Path(own).resolve()] if own else [])]
    assert any(kept.is_relative_to(place) for place in allowed)


@pytest.mark.slow
def test_numba__does_not_look_in_the_current_directory(tmp_path):
    """A cache that somebody left there is not even opened."""
    trap = tmp_path / "__pycache__"
    trap.mkdir()
    for name in ("matern_compiled.half_integer_kernel-45.py311.nbi", "matern_compiled.nbi"):
        os.mkfifo(trap / name)  # opening it would block for ever
    code = (
        "import numpy as np; from kedrl_dask.numerics.kernels.matern_compiled import half_integer_kernel; "
        "half_integer_kernel(np.ones(3, np.float32), np.ones(2, np.float32)); "
        "print(half_integer_kernel.stats.cache_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.3", False), ("192.168.1.1", False),
        ("fe80::1%eth0", False),
        ("localhost.example.org", False), ("127.0.0.1.example.org", False), ("", False),
    ],
)  # fmt: skip
def test_is_loopback__addresses_and_names(host, expected):
    assert is_loopback(host) is expected


def test_cluster_security__tls_off_loopback():
    assert cluster_security("127.0.0.1") is None
    security = cluster_security("0.0.0.0")
    assert security.require_encryption is True
    assert "PRIVATE KEY" in security.tls_scheduler_key


def test_cluster_security__remedy_without_cryptography(monkeypatch):
    def missing(**_):
        raise ImportError("no cryptography")

    monkeypatch.setattr(Security, "temporary", missing)
    with pytest.raises(ValueError, match=r"pip install 'kedrl-dask\[tls\]', or give certificates"):
        cluster_security("10.0.0.1")


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        ("tcp://10.0.0.3:8786", True), ("ws://10.0.0.3:8786", True), ("ucx://node7:8786", True),
        ("tcp://[2001:db8::1]:8786", True), ("tls://10.0.0.3:8786", False), ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False), ("inproc://10.0.0.3/1/2", False),
    ],
)  # fmt: skip
def test_plain_text__is_warned_of(address, warns, recwarn):
    warn = lambda: warn_of_plain_text(SimpleNamespace(scheduler=SimpleNamespace(address=address)))  # noqa: E731
    if warns:
        with pytest.warns(
            InsecureClusterWarning, match="can run code as you; start the cluster with security="
        ):
            warn()
    else:
        warn()
        assert not recwarn.list


@pytest.fixture
def address(monkeypatch):
    """An address of this machine that is taken for one that others reach."""
    monkeypatch.setattr(tls, "is_loopback", lambda host: False)
    return "127.0.0.1"


def reachable_ports():
    """Where this process and its children listen for others than this machine."""
    own = psutil.Process()
    return {
        connection.laddr.port
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip)
    }


@pytest.mark.slow
def test_local_cluster__on_loopback_cannot_be_reached():
    with local_cluster(1) as executor:
        assert executor.map(abs, [-1]) == [1]
        assert not reachable_ports()


@pytest.mark.slow
def test_local_cluster__off_loopback_speaks_tls(address):
    with local_cluster(1, host=address) as executor:
        client = executor._client
        assert client.scheduler.address.startswith(f"tls://{address}:")
        assert all(worker.startswith("tls://") for worker in client.nthreads())
        nannies = [worker["nanny"] for worker in client.scheduler_info()["workers"].values()]
        assert all(nanny.startswith("tls://") for nanny in nannies)
        assert client.cluster.dashboard_link.startswith("http://127.0.0.1:")
        assert executor.map(abs, [-1, 2]) == [1, 2]
        with pytest.raises(OSError, match=r"Timed out|refused|closed|Closed"):
            Client(client.scheduler.address.replace("tls://", "tcp://"), timeout="2s")


def test_default_executor__of_a_plain_cluster_warns(address):
    with (
        LocalCluster(n_workers=0, host=address, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
        pytest.warns(InsecureClusterWarning, match=f"tcp://{address}"),
    ):
        default_executor()


@pytest.mark.slow
def test_certificates__given_ones_are_used_even_on_loopback(certificates):
    with local_cluster(1, certificates=Certificates(*certificates)) as executor:
        assert executor._client.scheduler.address.startswith("tls://127.0.0.1:")
        assert executor.map(abs, [-3]) == [3]


def test_certificates__a_key_that_others_read_is_refused(certificates):
    for mode in (0o640, 0o604, 0o644, 0o660, 0o666):
        certificates[2].chmod(mode)
        with pytest.raises(PermissionError, match=f"has mode {mode:04o}.*chmod 600"):
            Certificates(*certificates)


FOUND, CLEAN = [{"id": "CVE-1"}], []
AUDITS = {
    "no service": ({"requests": "skip"}, {"zarr": "skip"}, 0, "NOT DONE"),
    "service says nothing of the canary": ({"requests": CLEAN}, {"zarr": CLEAN}, 0, "NOT DONE"),
    "pip-audit fails": (None, None, 0, "NOT DONE"),
    "all is well": ({"requests": FOUND}, {"zarr": CLEAN, "kedrl-dask": "skip"}, 0, "1 packages looked up, 0"),
    "vulnerable": ({"requests": FOUND}, {"zarr": FOUND, "dask": CLEAN}, 1, "vulnerable: zarr 1: CVE-1"),
    "left out": ({"requests": FOUND}, {"zarr": CLEAN, "dask": "skip"}, 1, "not audited: dask"),
    "nothing found": ({"requests": FOUND}, {}, 1, "not audited: anything"),
    "fails after the canary": ({"requests": FOUND}, None, 1, "not audited: anything"),
}  # fmt: skip


@pytest.mark.parametrize("case", AUDITS)
def test_audit__never_passes_in_silence(tmp_path, case):
    canary, packages, code, words = AUDITS[case]

    def report(found):
        return None if found is None else json.dumps({"dependencies": [
            {"name": name, **({"skip_reason": "?"} if vulns == "skip" else {"version": "1", "vulns": vulns})}
            for name, vulns in found.items()
        ]})  # fmt: skip

    script = (
        f"import sys; text = {report(canary)!r} if '--requirement' in sys.argv else {report(packages)!r}\n"
    )
    (tmp_path / "pip_audit.py").write_text(script + "print(text) if text else sys.exit('no connection')\n")
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit", tmp_path], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout
