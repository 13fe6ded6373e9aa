"""What several test modules share: small data, and a store of it."""

from __future__ import annotations

import datetime
import os
import signal
import time
from contextlib import contextmanager

import dask
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Client, LocalCluster

from kedrl_dask import Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor

# Tests are small: BLAS threads would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _interrupts():
    """Ctrl-C works in tests though they were started in the background, where a shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Extended tests are slow ones too, and are left out unless ``-m`` or their own name asks for them."""
    extended = [item for item in items if item.get_closest_marker("extended")]
    for item in extended:
        item.add_marker("slow")
    by_name = any("::" in argument for argument in config.args)
    if extended and not by_name and "extended" not in config.getoption("markexpr"):
        config.hook.pytest_deselected(items=extended)
        left_out = set(extended)
        items[:] = [item for item in items if item not in left_out]


#: A cluster for a test: no fixed port, nothing reachable from outside.
LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}


def make_episodes(n_episodes=8, length=6, p=2, q=1, d=2, seed=0, n_terminated=0):
    """Recorded rows of a small stable linear system; the first episodes terminate."""
    rng = np.random.default_rng(seed)
    columns = {name: [] for name in ("state", "action", "reward", "episode", "step", "terminated")}
    for episode in range(n_episodes):
        state = rng.standard_normal(p)
        for step in range(length):
            action = 0.3 * state[:1].repeat(q) + rng.uniform(-1, 1, q)
            columns["state"].append(state)
            columns["action"].append(action)
            columns["reward"].append(0.5 * state[0] + action[0] + 0.4 * rng.standard_normal(d))
            columns["episode"].append(episode)
            columns["step"].append(step)
            columns["terminated"].append(episode < n_terminated and step == length - 1)
            state = 0.6 * state + 0.3 * action[0] + 0.4 * rng.standard_normal(p)
    return {name: np.array(values) for name, values in columns.items()}


def end_worker():
    """End the worker process that this runs in, after a moment: see :func:`mortal_workers`."""
    time.sleep(1.0)
    os._exit(1)


@contextmanager
def mortal_workers(n_workers, **config):
    """Client of a cluster whose workers end in tests, and are replaced.

    Dask gives a new worker tasks before its nanny knows that it is there. A nanny never replaces one that
    ends in between; an adaptive cluster does.
    """
    given = {"distributed.deploy.lost-worker-timeout": "1 s", **config}
    with (
        dask.config.set(given),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, **LOOPBACK) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.adapt(minimum=n_workers, maximum=n_workers, interval="200 ms")
        yield client


@pytest.fixture
def policy():
    return policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)


@pytest.fixture
def small_store(tmp_path):
    return TransitionStore.from_arrays(tmp_path / "store", **make_episodes())


@pytest.fixture
def terminal_store(tmp_path):
    return TransitionStore.from_arrays(tmp_path / "store", **make_episodes(n_terminated=3))


@pytest.fixture
def kernels():
    """An input kernel and a return kernel, for small data."""
    return Matern(2.5, 1.5, 1.1), Matern(5.5, (1.2, 0.9), 0.85)


@pytest.fixture(scope="module")
def cells_one_by_one():
    """Cells one after the other: with several threads, Python's warning filters, which belong to the process,
    are restored by one thread for another, and a warning that the package ignores becomes an error.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.studies.runner.default_executor", lambda: ThreadExecutor(1))
        yield


@pytest.fixture
def certificates(tmp_path):
    """An authority that signs itself, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kedrl test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(7).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").touch(mode=0o600)
    (tmp_path / "key.pem").write_bytes(secret)
    return tmp_path / "cert.pem", tmp_path / "cert.pem", tmp_path / "key.pem"


def need(what, is_there, remedy):
    """Skip a test on a machine without what it needs; fail there if KEDRL_REQUIRE_<WHAT> is set.

    A check that must not be skipped, such as that of ``.ci/run``, sets the variable.
    """
    if is_there:
        return
    message = f"no {what} on this machine; {remedy}"
    if os.environ.get(f"KEDRL_REQUIRE_{what.upper()}"):
        pytest.fail(message)
    pytest.skip(message)
