"""Tasks of MO-Gymnasium as cases of the benchmark: they are the environments themselves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from kedrl_dask.datasets.benchmark import CASES, NAMES, TASKS, case, catalogue, check, installed
from kedrl_dask.datasets.gymnasium import make

# Remarks of the libraries on their own environments.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")

DIMS = {"water-reservoir": (1, 1, 2), "mountain-car": (2, 1, 2), "swimmer": (8, 2, 2)}


@pytest.fixture(params=TASKS)
def task(request):
    """A case, built anew."""
    for library in TASKS[request.param].libraries:
        pytest.importorskip(library, reason="install the extra: pip install 'kedrl-dask[rl]'")
    return case(request.param)


@pytest.fixture
def no_libraries(monkeypatch):
    """As without the extra."""
    monkeypatch.setattr(catalogue, "find_spec", lambda library: None)


def beside(task, seed, n_steps):
    """Steps of the environment by itself, and of the system from the observed states; with the same noise."""
    env = make(TASKS[task.name].environment, disable_env_checker=True)
    own, other = np.random.default_rng(seed), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    env.unwrapped.np_random = own
    for _ in range(n_steps):
        state = np.asarray(observation, dtype=np.float64)[None]
        # Beyond the bounds now and then, which the environment need not clip itself.
        action = task.target.sample(state, np.random.default_rng(seed)) * 1.5
        space = env.action_space
        bounded = np.clip(action[0], space.low, space.high).astype(space.dtype)
        observation, reward, terminated, truncated, _ = env.step(bounded)
        reached = task.system.step(state, action, other)
        yield (reward, observation, terminated), (*reached, task.system.terminates(reached[1], other))
        if terminated or truncated:
            return


def test_step__is_that_of_the_environment(task):
    for environment, system in beside(task, seed=3, n_steps=60):
        for expected, found in zip(environment, system, strict=True):
            # Environments round what they observe, and MuJoCo's rounding depends on the place.
            np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-7)


def test_step__a_row_does_not_depend_on_the_others(task):
    rng = np.random.default_rng(0)
    state = task.start(rng, 5)
    action = task.target.sample(state, rng)
    several = task.system.step(state, action, np.random.default_rng(1))
    noise = np.random.default_rng(1)  # each row takes its own share of it
    one_by_one = [task.system.step(state[i : i + 1], action[i : i + 1], noise) for i in range(5)]
    for together, alone in zip(several, zip(*one_by_one, strict=True), strict=True):
        np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-6, atol=1e-9)


def test_mountain_car__ends_as_its_environment_does_and_stays():
    pytest.importorskip("mo_gymnasium", reason="install the extra: pip install 'kedrl-dask[rl]'")
    task, env = case("mountain-car"), make("mo-mountaincarcontinuous-v0").unwrapped
    rng = np.random.default_rng(0)
    # Around the goal, so that about half of the steps reach it.
    state = np.column_stack([rng.uniform(0.38, 0.46, 400), rng.uniform(-0.02, 0.07, 400)])
    state = state.astype(np.float32).astype(np.float64)
    state = state[~task.system.terminates(state, rng)]
    action = rng.uniform(-1, 1, (len(state), 1))
    reward, reached = task.system.step(state, action, rng)
    ended = task.system.terminates(reached, rng)
    assert 0.2 < ended.mean() < 0.8
    for i, (at, act) in enumerate(zip(state, action, strict=True)):
        env.state = at.astype(np.float32)
        assert env.step(act.astype(np.float32))[2] == ended[i]
    np.testing.assert_array_equal(reward[ended, 0], 0.0)
    after, stayed = task.system.step(reached, action, rng)
    np.testing.assert_array_equal(stayed[ended], reached[ended])
    np.testing.assert_array_equal(after[ended], 0.0)
    assert (after[~ended, 1] < 0).all()


def test_log__gives_episodes_that_a_store_accepts(task, tmp_path):
    store = task.write(tmp_path / "log", 500, seed=0)
    assert (store.state_dim, store.action_dim, store.reward_dim) == DIMS[task.name]
    assert store.n_transitions >= 500
    rows = task.log(500, seed=0)
    episode, terminated = np.asarray(rows["episode"]), np.asarray(rows["terminated"])
    last = np.append(episode[1:] != episode[:-1], True)
    assert not terminated[~last].any()
    assert terminated.any() == (task.name == "mountain-car")
    state, following = np.asarray(rows["state"])[:-1], np.asarray(rows["state"])[1:]
    if task.name == "mountain-car":  # what was logged is what the environment does
        _, reached = task.system.step(state, np.asarray(rows["action"])[:-1], np.random.default_rng(0))
        np.testing.assert_array_equal(reached[~last[:-1]], following[~last[:-1]])


@pytest.mark.slow
def test_truth__is_the_same_for_a_seed(task):
    first, again, other = (task.truth(seed, n_inputs=2, n_returns=8) for seed in (0, 0, 1))
    assert first.returns.shape == (2, 8, 2)
    for name in ("state", "action", "returns"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.returns, other.returns)
    assert (first.returns.std(axis=1) > 0).all()
    assert task.judged(first.state).all()


def test_names__are_those_of_cases_and_tasks():
    assert (*CASES, *TASKS) == NAMES
    assert set(CASES) <= set(installed())
    with pytest.raises(ValueError, match=r"'rings' is not one of nonlinear, .*, swimmer"):
        check("rings")


@pytest.mark.usefixtures("no_libraries")
def test_case__without_the_extra_only_tasks_are_refused():
    assert installed() == tuple(CASES)
    assert case("ring") is CASES["ring"]
    for name in TASKS:
        with pytest.raises(ValueError, match=rf"'{name}' needs mo_gymnasium.*pip install 'kedrl-dask\[rl\]'"):
            case(name)


@pytest.mark.slow
def test_import__needs_no_library():
    code = (
        "import sys, kedrl_dask.cli.verbs.study; "
        "assert not {'gymnasium', 'mo_gymnasium', 'mujoco'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
