"""A fit in a run: what it leaves, how it goes on, what it refuses, and how it ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes import streaming_pass as passes_module
from kedrl_dask.engine.storage import checkpoints
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.checkpoints import Checkpoints
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW
from kedrl_dask.utils.process import Stopped
from tests.conftest import make_episodes
from tests.numerics.solvers.test_solvers import InMemory

pytestmark = pytest.mark.filterwarnings("ignore:the data ask for")

SIZES = {
    "input_kernel": Matern(2.5, 1.5),
    "return_kernel": Matern(5.5, 1.0),
    "n_atoms": 8,
    "n_basis": 12,
    "n_landmarks": 20,
    "n_features": 12,
    "n_blocks": 6,
    "precision": "double",
}
KINDS = {
    "separated": {},
    "paired": {"construction": "paired", "paired_form": "contracted"},
    "ratio": {"continuation": "ratio"},
    "lbfgs": {"solver": "lbfgs", "negative_penalty": 0.5},
    "adamw": {"solver": AdamW(n_iterations=120, batch_size=20)},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A store that is left as it is."""
    path = tmp_path_factory.mktemp("data") / "store"
    return TransitionStore.from_arrays(path, **make_episodes(30, 9), chunk_rows=64)


@pytest.fixture
def store(data, tmp_path):
    """A copy to do anything with."""
    return TransitionStore.open(shutil.copytree(data.path, tmp_path / "store"))


@pytest.fixture(scope="module")
def undisturbed(data):
    """The fit of a kind without a run, which nothing interrupts."""
    policy = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
    return cache(lambda kind="separated": fit(data, policy, **KINDS[kind]))


def fit(store, policy, run=None, discount=0.9, **parameters):
    model = KEDRL(discount, centring="none", **{**SIZES, **parameters})
    options = {} if run is None else {"run": run, "checkpoint_seconds": 0.0}
    return model.fit(store, policy, executor=ThreadExecutor(2), progress="none", **options)


def events(run, name=None):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if name in (None, line["event"])]


@pytest.mark.slow
def test_run__leaves_what_can_be_inspected(store, policy, undisturbed, tmp_path):
    run = tmp_path / "run"
    model = fit(store, policy, run)
    np.testing.assert_array_equal(model.coefficients_, undisturbed().coefficients_)
    np.testing.assert_array_equal(KEDRL.load(run / "model").coefficients_, model.coefficients_)
    facts = json.loads((run / "run.json").read_text())
    assert facts["settings"]["n_atoms"] == 8
    assert facts["data"] == {"path": str(store.path), "fingerprint": store.fingerprint}
    assert facts["policy"] == policy.to_dict()
    assert json.loads((run / "plan.json").read_text())["totals"]["memory"] > 0
    stages = {json.loads(path.read_text())["stage"] for path in (run / "stages").iterdir()}
    assert {"input check", "design", "streaming pass", "regression", "solver", "diagnostics"} < stages
    assert [event["event"] for event in events(run)][:2] == ["started", "stage started"]
    assert events(run)[-1]["event"] == "finished"
    assert len(list((run / "checkpoints" / "states").iterdir())) == 2
    assert not list(run.rglob("*.partial"))


def test_finished_run__gives_its_model_without_work(store, policy, tmp_path, monkeypatch):
    run = tmp_path / "run"
    model = fit(store, policy, run)
    monkeypatch.setattr("kedrl_dask.estimator.fit_model.run_fit", lambda *_: pytest.fail("work was begun"))
    for again in (fit(store, policy, run), KEDRL.resume(run)):
        np.testing.assert_array_equal(again.coefficients_, model.coefficients_)
        assert again.diagnostics_["data"] == store.fingerprint
        assert again.get_params()["n_atoms"] == 8


class Notes(list):
    """Remembers events."""

    def __call__(self, event, **facts):
        self.append((event, facts))


class Interrupt:
    """Raises the n-th time that a function is called."""

    def __init__(self, function, n):
        self.function, self.left, self.lock = function, n, threading.Lock()
        self.__name__ = function.__name__

    def __call__(self, *arguments):
        with self.lock:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.function(*arguments)


#: Where each kind is interrupted: a function of a stage, and at which of its calls.
MOMENTS = [
    ("separated", "kedrl_dask.estimator.fit.design.choose_points", 1),
    ("separated", "kedrl_dask.estimator.fit.streaming.write_block", 4),
    ("separated", "kedrl_dask.estimator.fit.separated.evaluate_points", 5),
    ("separated", "kedrl_dask.engine.passes.separated_objective._product", 20),
    ("separated", "kedrl_dask.estimator.fit_model.diagnose", 1),
    ("ratio", "kedrl_dask.engine.passes.streaming_pass.ratio_moments", 3),
    ("paired", "kedrl_dask.estimator.fit.paired.contract_link", 2),
    ("paired", "kedrl_dask.engine.passes.paired_target.solve_waves", 2),
    ("lbfgs", "kedrl_dask.numerics.criterion.separated.value_and_gradient", 60),
    ("adamw", "kedrl_dask.numerics.criterion.separated.value_and_gradient", 90),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "n"), MOMENTS)
def test_resume__same_coefficients_wherever_it_was_interrupted(
    kind, name, n, data, policy, undisturbed, tmp_path
):
    store, run, expected = data, tmp_path / "run", undisturbed(kind)
    module, _, function = name.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, Interrupt(getattr(sys.modules[module], function), n))
        with pytest.raises(KeyboardInterrupt):
            fit(store, policy, run, **KINDS[kind])
    assert events(run)[-1]["error"] == "KeyboardInterrupt"
    found = KEDRL.resume(run, executor=ThreadExecutor(1), progress="none")
    np.testing.assert_allclose(found.coefficients_, expected.coefficients_, rtol=0, atol=1e-12)
    assert found.solution_.n_iterations == expected.solution_.n_iterations
    assert found.solution_.history == expected.solution_.history


def test_resume__computes_only_missing_blocks(store, policy, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "kedrl_dask.estimator.fit.streaming.write_block", Interrupt(passes_module.write_block, 4)
        )
        with pytest.raises(KeyboardInterrupt):
            fit(store, policy, run)
    seen, original = [], passes_module.write_block
    monkeypatch.setattr(
        "kedrl_dask.estimator.fit.streaming.write_block",
        lambda total, block, task: seen.append(block[0].number) or original(total, block, task),
    )  # fmt: skip
    fit(store, policy, run)
    (first, second) = (event for event in events(run, "blocks") if "inputs" in event["kinds"])
    assert first["found"] == 0
    assert 3 <= second["found"] < 6
    assert len(seen) == second["missing"]


@pytest.mark.slow
def test_contraction__goes_on_link_by_link(store, policy, tmp_path, monkeypatch):
    monkeypatch.setattr("kedrl_dask.estimator.fit.paired.LINK_GROUPS", 1)
    monkeypatch.setattr("kedrl_dask.engine.plan.partition.GROUP_ROWS", 64)
    for module in ("streaming_pass", "paired_target"):
        monkeypatch.setattr(f"kedrl_dask.engine.passes.{module}.GROUP_ROWS", 64)
    from kedrl_dask.engine.passes.paired_target import contract_link

    expected, run = fit(store, policy, **KINDS["paired"]), tmp_path / "run"
    calls = []

    def counted(which, task, link, rows):
        contract_link(which, task, link, rows)
        calls.append((which, link))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.estimator.fit.paired.contract_link", Interrupt(counted, 6))
        with pytest.raises(KeyboardInterrupt):
            fit(store, policy, run, **KINDS["paired"])
    before = len(calls)
    n_links = 1 + max(link for _, link in calls)
    assert n_links > 1
    monkeypatch.setattr("kedrl_dask.estimator.fit.paired.contract_link", counted)
    found = fit(store, policy, run, **KINDS["paired"])
    np.testing.assert_allclose(found.coefficients_, expected.coefficients_, rtol=0, atol=1e-12)
    assert not set(calls[:before]) & set(calls[before:]), "a link was repeated"


@pytest.mark.parametrize(
    ("solver", "problem"),
    [
        (PCG(), {}),
        (PCG(tolerance=1e-13), {"ridge": 1e-5}),
        (LBFGS(tolerance=1e-9), {"negative": 1.0}),
        (AdamW(n_iterations=100, batch_size=7, evaluate_every=9), {}),
    ],
)
def test_checkpoints__solver_goes_on_bit_by_bit(solver, problem, tmp_path):
    """From any iteration, with nothing but what the file has."""
    expected = solver.solve(InMemory(**problem))

    class Enough(BaseException):
        pass

    stops = {1, 2, expected.n_iterations // 2, expected.n_iterations - 1}
    for stop in sorted(s for s in stops if s > 0):
        path = tmp_path / str(stop)

        def count(record, stop=stop):
            if record.iteration >= stop:
                raise Enough

        with pytest.raises(Enough):
            solver.solve(InMemory(**problem), report=count, keeper=Checkpoints(path, 0.0, Notes()))
        notes = Notes()
        found = solver.solve(InMemory(**problem), keeper=Checkpoints(path, 1e9, notes))
        assert notes[0][0] == "restored"
        assert notes[0][1]["whole"]
        np.testing.assert_array_equal(found.coefficients, expected.coefficients)
        assert found.history == expected.history
        assert (found.result, found.n_products) == (expected.result, expected.n_products)


def test_checkpoints__are_due_after_their_interval(tmp_path, monkeypatch):
    """So much of the solver's work is lost at most; and writing them takes a fiftieth of the time at most."""
    problem, last = InMemory(), []
    keeper = SimpleNamespace(is_due=False, restore=lambda *_: None, keep=lambda *kept: last.append(kept))
    PCG().solve(problem, keeper=keeper)
    clock, write = [100.0], checkpoints.write_atomic
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slowly(*arguments, **options):
        clock[0] += writing
        write(*arguments, **options)

    monkeypatch.setattr(checkpoints, "write_atomic", slowly)
    for writing, interval in ((0.0, 10.0), (0.1, 10.0), (0.5, 25.0)):
        keeper = Checkpoints(tmp_path / str(writing), 10.0, Notes())
        clock[0] += 9.9
        assert not keeper.is_due
        clock[0] += 0.2
        assert keeper.is_due
        keeper.keep(*last[0])
        clock[0] += interval - 0.1
        assert not keeper.is_due
        clock[0] += 0.2
        assert keeper.is_due


def test_checkpoints__other_coordinates_are_a_warm_start(tmp_path):
    """Eigenvectors of another machine differ in sign: the iterate counts, the rest of the state does not."""
    solver, keeper = PCG(), Checkpoints(tmp_path, 0.0, Notes())
    cold = solver.solve(InMemory(), keeper=keeper)
    problem = InMemory()
    object.__setattr__(problem.coordinates, "left", -problem.coordinates.left)
    warm = solver.solve(problem, keeper=keeper)
    np.testing.assert_allclose(warm.coefficients, cold.coefficients, rtol=0, atol=1e-7)
    assert warm.n_iterations <= 2


@pytest.mark.parametrize("content", [b"", b"rubbish", "flip"])
def test_checkpoints__damaged_one_is_passed_over(content, tmp_path):
    expected, notes = PCG().solve(InMemory()), Notes()
    keeper = Checkpoints(tmp_path, 0.0, notes)
    PCG().solve(InMemory(), keeper=keeper)
    file = max((tmp_path / "states").iterdir(), key=lambda path: int(path.stem))
    damaged = bytearray(file.read_bytes())
    damaged[-200] ^= 16
    file.write_bytes(damaged if content == "flip" else content)
    notes.clear()
    found = PCG().solve(InMemory(), keeper=keeper)
    assert [event for event, _ in notes][:2] == ["damaged", "restored"]
    assert notes[0][1]["file"] == str(file)
    np.testing.assert_array_equal(found.coefficients, expected.coefficients)


def test_checkpoints__nothing_pickled(tmp_path):
    AdamW(n_iterations=20).solve(InMemory(), keeper=Checkpoints(tmp_path, 0.0, Notes()))
    for file in (tmp_path / "states").iterdir():
        with np.load(file, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype != object for name in arrays.files)


def test_other_settings__refused_with_what_differs(data, policy, tmp_path):
    fit(data, policy, tmp_path / "run")
    for change, message in (
        ({"n_atoms": 9, "discount": 0.8}, "discount was 0.9, now 0.8; settings n_atoms was 8, now 9"),
        ({"return_kernel": Matern(5.5, 2.0)}, "settings return_kernel was .*1.0.*now .*2.0"),
        ({"solver": PCG(tolerance=1e-6)}, 'settings solver was "pcg", now .*1e-06'),
    ):
        with pytest.raises(ValueError, match=message):
            fit(data, policy, tmp_path / "run", **change)


def test_other_policy_or_data__refused_with_what_differs(store, policy, tmp_path):
    run = tmp_path / "run"
    fit(store, policy, run)
    other = policies.Gaussian(weights=policy.weights, bias=0.4, scale=policy.scale)
    with pytest.raises(ValueError, match=r"policy bias was \[0.1\], now \[0.4\]"):
        fit(store, other, run)
    data = TransitionStore.from_arrays(tmp_path / "other", **make_episodes(30, 9, seed=1))
    with pytest.raises(ValueError, match=rf"data were {store.path} .* now {data.path}"):
        fit(data, policy, run)
    moved = shutil.move(store.path, tmp_path / "moved")
    fit(TransitionStore.open(moved), policy, run)


def random_actions(state, rng):
    return 0.2 * state[:, :1] + rng.normal(size=(len(state), 1))


def other_actions(state, rng):
    return 0.3 * state[:, :1] + rng.normal(size=(len(state), 1))


@pytest.mark.slow
def test_policy_of_code__is_given_again(store, tmp_path):
    run, policy = tmp_path / "run", policies.Function(random_actions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kedrl_dask.estimator.fit_model.diagnose", Interrupt(lambda *_: None, 1))
        with pytest.raises(KeyboardInterrupt):
            fit(store, policy, run)
    with pytest.raises(ValueError, match=r"is code, Function\(random_actions\).*give it as policy="):
        KEDRL.resume(run)
    with pytest.raises(ValueError, match="policy probe was"):
        KEDRL.resume(run, policy=policies.Function(other_actions))
    found = KEDRL.resume(run, policy=policies.Function(random_actions), progress="none")
    assert [event["missing"] for event in events(run, "blocks")][-2:] == [0, 0]
    np.testing.assert_array_equal(found.coefficients_, fit(store, policy).coefficients_)


def test_directory_of_something_else__refused(store, policy, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        fit(store, policy, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match=r"run.json does not describe a run, or is damaged"):
        KEDRL.resume(tmp_path / "full")


@pytest.mark.slow
def test_leftovers_of_a_killed_process__are_removed(store, policy, tmp_path):
    run = tmp_path / "run"
    fit(store, policy, run)
    shutil.rmtree(run / "model")
    (run / "cache" / "inputs-0.partial" / "result").mkdir(parents=True)
    (run / "checkpoints" / "states" / ".9.npz.0.partial").write_text("half")
    with (run / "log.jsonl").open("a") as log:
        log.write('{"event": "cut sho')
    fit(store, policy, run)
    assert not list(run.rglob("*.partial"))
    assert (run / "log.jsonl").read_text().splitlines()[-1].endswith("}")


def test_second_driver__refused_while_the_first_is_at_work(store, policy, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with (run / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump({"host": "elsewhere", "pid": 7, "since": "noon"}, lock)
        lock.flush()
        with pytest.raises(ValueError, match="in use by process 7 on elsewhere since noon"):
            fit(store, policy, run)
    fit(store, policy, run)  # the first has ended: nothing is left of its lock


def corrupt(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 8
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["state", "reward", "episode"])
def test_damaged_data__named_and_not_used(name, store, policy, tmp_path, monkeypatch):
    chunk = store.path / name / "c" / "2"  # not the first, at whose states every fit tries the policy
    file = chunk if chunk.is_file() else chunk / "0"
    corrupt(file)
    with pytest.raises(StoreError, match=f"{file}"):  # on the way, without a run
        fit(store, policy)
    monkeypatch.setattr("kedrl_dask.estimator.fit_model.run_fit", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(StoreError, match=rf"array {name}, (chunk 2|rows \d+:\d+) .*{file}"):
        fit(store, policy, tmp_path / "run")


def test_changed_data__noticed_though_every_checksum_is_right(store, policy, tmp_path):
    """Somebody wrote over a chunk with a program that knows the format."""
    arrays = ArrayStore.open(store.path, "transitions", writable=True)
    arrays.write("reward", 64, arrays.read("reward", 64, 128) + 1)
    with pytest.raises(StoreError, match=r"array reward, chunk 1 .* its content has changed"):
        fit(store, policy, tmp_path / "run")


def test_block_damaged_during_the_fit__is_made_again(store, policy, undisturbed, tmp_path, monkeypatch):
    from kedrl_dask.estimator.fit.streaming import Streamed

    run, collect, damaged = tmp_path / "run", Streamed.collect, []

    def damage_once(self, *arguments):
        if not damaged:
            damaged.append(self.blocks[0].places[0][0] / "gram" / "c" / "2" / "0" / "0")
            corrupt(damaged[0])
        return collect(self, *arguments)

    monkeypatch.setattr(Streamed, "collect", damage_once)
    model = fit(store, policy, run)
    assert [event["file"] for event in events(run, "damaged")] == [str(damaged[0])]
    np.testing.assert_array_equal(model.coefficients_, undisturbed().coefficients_)


def test_disk_full__stops_in_order_and_goes_on(store, policy, undisturbed, tmp_path, monkeypatch):
    run, write, left = tmp_path / "run", ArrayStore.write, [40]

    def fill(self, name, start, values):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        write(self, name, start, values)

    monkeypatch.setattr(ArrayStore, "write", fill)
    with pytest.raises(Stopped, match=rf"the disk is full .*make room.*{run}"):
        fit(store, policy, run)
    assert events(run)[-1]["event"] == "stopped"
    monkeypatch.undo()
    np.testing.assert_array_equal(fit(store, policy, run).coefficients_, undisturbed().coefficients_)
    assert [e["found"] for e in events(run, "blocks") if "inputs" in e["kinds"]][-1] > 0


STOPPED_FIT = """
import sys, time
from pathlib import Path
from kedrl_dask import KEDRL, policies
from kedrl_dask.estimator.fit import streaming
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.utils.process import check_abandoned
from tests.estimator.test_run import KINDS, SIZES
store, run, stage, n = sys.argv[1:]
module, name = (separated, "value_and_gradient") if stage == "solver" else (streaming, "write_block")
function, calls = getattr(module, name), []
def waiting(*arguments):
    calls.append(1)
    if len(calls) > int(n):
        Path(run, "ready").touch()
        while True:
            time.sleep(0.01)
            check_abandoned()
    return function(*arguments)
waiting.__name__ = function.__name__
setattr(module, name, waiting)
policy = policies.Gaussian(weights=[[0.2], [-0.1]], bias=0.1, scale=0.3)
KEDRL(0.9, centring="none", **{**SIZES, **KINDS["lbfgs"]}).fit(store, policy, run=run, progress="none")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "n", "signal_", "code"),
    [("streaming pass", 4, signal.SIGTERM, 143), ("solver", 30, signal.SIGINT, -signal.SIGINT)],
)
def test_signal__checkpoints_at_once_and_ends(stage, n, signal_, code, data, undisturbed, tmp_path):
    """The fit waits where the signal is to come, whatever the speed of the machine."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_FIT, data.path, run, stage, str(n)], stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        while not (run / "ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal_)
        assert process.wait(timeout=120) == code
    finally:
        process.kill()
    names = [event["event"] for event in events(run)]
    assert names[-1] == "stopped"
    if stage == "solver":
        assert names[-2] == "checkpoint"
    (run / "ready").unlink()
    found = KEDRL.resume(run, progress="none")
    inputs, at = ([[0.0, 0.0], [0.5, -0.5]], [[0.0], [0.3]]), [[0.0, 0.0], [1.0, -1.0], [-0.5, 2.0]]
    values = undisturbed("lbfgs").embed(*inputs, at)
    np.testing.assert_allclose(found.embed(*inputs, at), values, rtol=0, atol=1e-8 * np.abs(values).max())
    if stage == "solver":
        assert events(run, "restored")
    else:
        assert [e["found"] for e in events(run, "blocks") if "inputs" in e["kinds"]][-1] > 0
