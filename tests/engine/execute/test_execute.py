"""Executors: order of results, errors, shared values, and lost workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from kedrl_dask.engine.clusters.local import cluster_at
from kedrl_dask.engine.execute.dask_client import PIECE_BYTES, DistributedExecutor, PoisonError
from kedrl_dask.engine.execute.default import default_executor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.utils.process import Stopped
from tests.conftest import LOOPBACK, end_worker, mortal_workers


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **LOOPBACK, processes=True) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["threads", "distributed"])
def executor(request):
    if request.param == "threads":
        return ThreadExecutor(2)
    return DistributedExecutor(request.getfixturevalue("client"))


def slow_square(x, offset):
    time.sleep(0.05 * (x == 0))  # the first finishes last
    return x**2 + offset


def fail_at_two(x):
    if x == 2:
        raise ValueError("chunk 2 is bad")
    return x


def add(x, y):
    return x + y


def blas_threads(_):
    return max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")


@pytest.mark.slow
def test_map__results_in_order_of_items(executor):
    done = []
    result = executor.map(slow_square, range(6), 1, advance=lambda: done.append(1))
    assert result == [1, 2, 5, 10, 17, 26]
    assert len(done) == 6


def test_map__error_names_the_cause(executor):
    with pytest.raises(ValueError, match="chunk 2 is bad"):
        executor.map(fail_at_two, range(5))


def test_map__no_items(executor):
    assert executor.map(fail_at_two, []) == []


def test_hold__handles_serve_again(executor):
    handles = executor.hold(slow_square, range(3), 0)
    shared = executor.share(np.arange(2.0))
    for _ in range(2):
        results = executor.map(add, handles, shared)
        np.testing.assert_array_equal(results, [[0, 1], [1, 2], [4, 5]])


def where_am_i(x, shared):
    return os.getpid()


def is_here(home, _):
    return home == os.getpid()


def test_hold__items_are_dealt_out_to_all_workers(client):
    """Even if one of them has the shared value; and tasks run where the items are held."""
    executor = DistributedExecutor(client)
    shared = executor.share(np.zeros(PIECE_BYTES // 8))
    held = executor.hold(where_am_i, range(4), shared)
    homes = client.gather([handle.future for handle in held])
    assert homes[0] == homes[1] != homes[2] == homes[3]
    assert executor.map(is_here, held, 0) == [True] * 4


def test_share__larger_than_a_piece(executor):
    value = np.arange(PIECE_BYTES // 8 + 1000, dtype=np.float64)
    (result,) = executor.map(add, [1.0], executor.share(value))
    np.testing.assert_array_equal(result, value + 1)


def test_chunk_functions__one_blas_thread(executor):
    assert executor.map(blas_threads, range(3)) == [1, 1, 1]


def test_threads__blas_threads_restored():
    before = threadpool_info()
    ThreadExecutor(2).map(blas_threads, range(3))
    assert threadpool_info() == before


def test_n_threads(client):
    assert ThreadExecutor(3).n_threads == 3
    assert ThreadExecutor().n_threads <= (os.cpu_count() or 1)
    assert DistributedExecutor(client).n_threads == 2


def test_default_executor__active_client(client):
    with client.as_current():
        assert isinstance(default_executor(), DistributedExecutor)


def test_default_executor__no_client():
    assert isinstance(default_executor(), ThreadExecutor)


def kill_own_worker_once(x, marker):
    """Kill the worker the first time, as preemption does, and finish the second time."""
    if x == 1 and not os.path.exists(marker):
        with open(marker, "w"):
            pass
        end_worker()
    return 10 * x


@pytest.fixture(scope="module")
def mortal_cluster():
    """A cluster whose workers die in tests and are replaced."""
    with mortal_workers(2) as client:
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other workers warn about a dying worker
def test_distributed__lost_worker_is_recomputed(mortal_cluster, tmp_path):
    executor = DistributedExecutor(mortal_cluster)
    held = executor.hold(slow_square, range(4), 0)
    shared = executor.share(5)
    assert executor.map(add, held, shared) == [5, 6, 9, 14]
    assert executor.map(kill_own_worker_once, range(4), str(tmp_path / "marker")) == [0, 10, 20, 30]
    assert executor.map(add, held, shared) == [5, 6, 9, 14]


def kill_worker_at_two(x):
    if x == 2:
        end_worker()
    return x


def total(x, group):
    return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_distributed__all_workers_are_lost_at_once(mortal_cluster, monkeypatch):
    """Tasks assigned to the lost workers must not wait forever, because other workers may run them."""
    monkeypatch.setattr("kedrl_dask.engine.execute.dask_client.LOOK_EVERY", 0.2)
    client = mortal_cluster
    executor = DistributedExecutor(client, patience=120)
    client.wait_for_workers(2)  # the replacement of one that an earlier test killed may still be starting
    handles = executor.hold(add, [1, 2, 3, 4], 10)
    assert executor.map(add, handles, 1) == [12, 13, 14, 15]
    before = set(client.nthreads())
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    while before & set(client.nthreads()):
        time.sleep(0.05)
    assert executor.map(add, handles, 1) == [12, 13, 14, 15]
    assert executor.map(add, handles, 2) == [13, 14, 15, 16]


@pytest.fixture(scope="module")
def strict_cluster():
    """A cluster that gives up on a task when a single worker dies."""
    with mortal_workers(2, **{"distributed.scheduler.allowed-failures": 0}) as client:
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_distributed__preempted_tasks_are_not_blamed(strict_cluster, tmp_path):
    """Dask gives up on the tasks of a dead worker, but each of them succeeds when it runs alone."""
    executor = DistributedExecutor(strict_cluster)
    held = executor.hold(slow_square, range(4), 0)
    shared = executor.share(np.zeros(PIECE_BYTES // 8))
    assert executor.map(kill_own_worker_once, range(6), str(tmp_path / "map")) == [0, 10, 20, 30, 40, 50]
    assert [result[0] for result in executor.map(add, held, shared)] == [0, 1, 4, 9]
    groups = [[0, 1], [2, 3]]
    marker = str(tmp_path / "reduce")
    assert executor.reduce(kill_own_worker_once, groups, add, first_of, marker) == [10, 50]


def first_of(x, group, _):
    return x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["map", "reduce"])
def test_distributed__poisonous_task_is_named(strict_cluster, how):
    executor = DistributedExecutor(strict_cluster)
    arguments = {"map": (range(4),), "reduce": ([[0, 1], [2, 3]], add, total)}[how]
    with pytest.raises(PoisonError, match="kill_worker_at_two on 2 ended every worker"):
        getattr(executor, how)(kill_worker_at_two, *arguments)


def test_error__names_the_task(executor):
    with pytest.raises(ValueError, match="chunk 2 is bad") as caught:
        executor.map(fail_at_two, range(5))
    assert "in fail_at_two on 2" in caught.value.__notes__
    with pytest.raises(ValueError, match="chunk 2 is bad") as caught:
        executor.reduce(fail_at_two, [[0, 1], [2, 3]], add, total)
    assert caught.value.__notes__ == ["in fail_at_two on [2, 3]"]


def test_attempt__failure_in_place_of_its_result(executor):
    first, failure, last = executor.attempt(fail_at_two, [1, 2, 3])
    assert (first, last) == (1, 3)
    assert isinstance(failure, ValueError)
    assert not hasattr(failure, "__notes__")  # studies report the last line of a failure


@pytest.mark.slow
def test_distributed__no_workers_for_too_long(monkeypatch):
    monkeypatch.setattr("kedrl_dask.engine.execute.dask_client.LOOK_EVERY", 0.1)
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, **LOOPBACK) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = DistributedExecutor(client, patience=0.5)
        with pytest.raises(Stopped, match="had no worker for 0 s; start workers"):
            executor.map(add, [1, 2], 3)
        patient = DistributedExecutor(client, patience=60)
        starter = threading.Timer(0.5, cluster.scale, (1,))
        starter.start()
        assert patient.map(add, [1, 2], 3) == [4, 5]
        starter.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_distributed__scheduler_is_gone(tmp_path):
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(
        [*command, "--no-dashboard", "--scheduler-file", file], stderr=subprocess.DEVNULL
    ) as scheduler:
        while not file.exists():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), cluster_at(address) as executor:
            killer = threading.Timer(0.5, scheduler.kill)
            killer.start()
            with pytest.raises(Stopped, match="the Dask scheduler has ended, or cannot be reached"):
                executor.map(add, [1, 2], 3)
            killer.join()
            with pytest.raises(Stopped, match="the Dask scheduler has ended, or cannot be reached"):
                executor.map(add, [1, 2], 3)
