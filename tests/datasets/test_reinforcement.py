"""Environments and datasets of reinforcement learning as stores."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from kedrl_dask import policies
from kedrl_dask.datasets.gymnasium import collect, make, monte_carlo
from kedrl_dask.datasets.minari import from_minari
from kedrl_dask.engine.data.transition_store import DataError
from kedrl_dask.engine.storage.array_store import ArrayStore

gymnasium = pytest.importorskip("gymnasium", reason="install the extra: pip install 'kedrl-dask[rl]'")

# Remarks of the libraries on their own environments and datasets.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:minari"),
    pytest.mark.filterwarnings("ignore:`eval_env` is set to None:UserWarning"),
]

POLICY = policies.Gaussian([[-0.3]], bias=0.1, scale=0.8)


class Walk(gymnasium.Env):
    """s' = s + a, ended for good beyond 2, with rewards s and a²."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, limit=9, reward=lambda s, a: np.array([s[0], a[0] ** 2])):
        self.limit, self.reward = limit, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.normal(size=1), 0
        return self.state, {}

    def step(self, action):
        assert action.dtype == np.float32
        reward, self.state, self.steps = self.reward(self.state, action), self.state + action, self.steps + 1
        return self.state, reward, bool(abs(self.state[0]) > 2), self.steps >= self.limit, {}


def read(store):
    arrays = ArrayStore.open(store.path, "transitions")
    return {
        name: arrays.read(name) for name in ("state", "action", "reward", "episode", "step", "terminated")
    }


def test_collect__stores_what_the_environment_did(tmp_path):
    store = collect(tmp_path / "store", Walk(), POLICY, 30, progress="none")
    rows = read(store)
    last = np.append(rows["episode"][1:] != rows["episode"][:-1], True)
    np.testing.assert_allclose(rows["reward"][:, 0], rows["state"][:, 0])
    np.testing.assert_allclose(rows["reward"][:, 1], rows["action"][:, 0] ** 2, rtol=1e-6)
    following = rows["state"][:, 0] + rows["action"][:, 0]
    np.testing.assert_allclose(following[:-1][~last[:-1]], rows["state"][1:, 0][~last[:-1]])
    np.testing.assert_array_equal(rows["terminated"], np.abs(following) > 2)
    assert 0 < rows["terminated"].sum() < 30  # some are truncated, and these are not terminated
    again = collect(tmp_path / "again", Walk(), POLICY, 30, progress="none")
    assert again.fingerprint == store.fingerprint
    cut = collect(tmp_path / "cut", Walk(), POLICY, 30, max_steps=4, progress="none")
    assert read(cut)["step"].max() == 3


def test_collect__refuses_what_it_cannot_store(tmp_path):
    ragged = Walk(reward=lambda s, a: np.ones(1 + (a[0] > 0)))
    endless = Walk(reward=lambda s, a: np.array([np.inf]))
    for env, message in [
        (ragged, "reward of shape .* after"),
        (endless, "is inf, expected a finite number"),
        (gymnasium.make("CartPole-v1"), "actions of .* expected a box of real numbers.*wrap the environment"),
    ]:
        with pytest.raises(ValueError, match=message):
            collect(tmp_path / "store", env, POLICY, 5, progress="none")
        assert not os.listdir(tmp_path)
    with pytest.raises(ValueError, match="no environment 'Nowhere-v9' is installed; check the name"):
        make("Nowhere-v9")
    with pytest.raises(ValueError, match="episodes must be an integer ≥ 1"):
        collect(tmp_path / "store", Walk(), POLICY, 0)


def place(env, state):
    env.unwrapped.state = np.array(state)
    return env.unwrapped.state


def test_monte_carlo__is_the_discounted_return():
    policy = policies.Function(lambda state, rng: -0.5 * state)
    found = monte_carlo(Walk(limit=99), policy, [[1.0]], [[-0.5]], 0.5, 2, place, progress="none")
    # s = 1, then 0.5, 0.25, …: the first action halves the state as all others do.
    expected = [1 / (1 - 0.25), 0.25 / (1 - 0.125)]
    np.testing.assert_allclose(found, np.broadcast_to(expected, (1, 2, 2)), rtol=1e-4)
    with pytest.raises(ValueError, match=r"truncates episodes after 5 steps.*raise its limit"):
        monte_carlo(Walk(limit=5), policy, [[1.0]], [[-0.5]], 0.5, 1, place, progress="none")


def test_water_reservoir__has_vector_rewards(tmp_path):
    pytest.importorskip("mo_gymnasium", reason="install the extra: pip install 'kedrl-dask[rl]'")
    env = make("water-reservoir-v0", time_limit=20)
    store = collect(tmp_path / "store", env, policies.Gaussian([[0.4]], 10, 10), 6, progress="none")
    assert (store.reward_dim, store.n_rows, store.n_terminal) == (2, 120, 0)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A function that records episodes of given rewards as a Minari dataset."""
    minari = pytest.importorskip("minari", reason="install the extra: pip install 'kedrl-dask[rl]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def record(rewards, data_format, infos=None):
        buffers = []
        for number, reward in enumerate(rewards):
            n, rng = len(reward), np.random.default_rng(number)
            ends = np.arange(n) == n - 1
            buffers.append(
                minari.data_collector.EpisodeBuffer(
                    id=number,
                    observations=rng.normal(size=(n + 1, 2)),
                    actions=rng.normal(size=(n, 2)),
                    rewards=list(reward),
                    terminations=list(ends & (number % 2 == 0)),
                    truncations=list(ends & (number % 2 == 1)),
                    infos=None if infos is None else {"vector": infos[number]},
                )
            )
        spaces = {"observation_space": box, "action_space": box}
        return minari.create_dataset_from_buffers(
            "walk/test-v0", buffers, **spaces, data_format=data_format, description="walk",
            author="nobody", author_email="nobody@example.org", code_permalink="none", algorithm_name="none",
        )  # fmt: skip

    return record


REWARDS = [np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(3, 2)]


def test_minari__keeps_vectors_and_ends(tmp_path, recorded):
    dataset = recorded(REWARDS, "hdf5")
    store = from_minari(tmp_path / "store", dataset, reward_dim=2, progress="none")
    rows = read(store)
    np.testing.assert_array_equal(rows["reward"], np.concatenate(REWARDS))
    np.testing.assert_array_equal(rows["terminated"], [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(rows["state"][0], np.random.default_rng(0).normal(size=(5, 2))[0])
    with pytest.raises(DataError, match=r"rewards of shape .4, 2., expected 3 coordinates"):
        from_minari(tmp_path / "other", dataset, reward_dim=3, progress="none")


def test_minari__takes_vectors_from_infos(tmp_path, recorded):
    vectors = [np.vstack([np.zeros(2), reward]) for reward in REWARDS]
    dataset = recorded([reward[:, 0] for reward in REWARDS], "hdf5", vectors)
    store = from_minari(tmp_path / "store", dataset, reward_info="vector", progress="none")
    np.testing.assert_array_equal(read(store)["reward"], np.concatenate(REWARDS))
    assert from_minari(tmp_path / "first", dataset, progress="none").reward_dim == 1
    with pytest.raises(DataError, match="has no info 'other'"):
        from_minari(tmp_path / "other", dataset, reward_info="other", progress="none")


class Flattened:
    """Episodes with vector rewards as Minari's Arrow format would give them back."""

    def __len__(self):
        return 1

    def iterate_episodes(self):
        values = {"observations": np.zeros((5, 1)), "actions": np.zeros((4, 1)), "rewards": np.arange(8.0)}
        yield SimpleNamespace(**values, terminations=[0, 0, 0, 1], infos={})


def test_minari__refuses_flattened_vectors(tmp_path):
    with pytest.raises(
        DataError, match=r"rewards of shape \(8,\), expected .4,. or .4, d.; .*data_format='hdf5'"
    ):
        from_minari(tmp_path / "store", Flattened(), progress="none")
    assert not os.listdir(tmp_path)


def test_monte_carlo__each_copy_is_an_environment_of_its_own(monkeypatch):
    """In batches of any size the same law; a terminated copy gets nothing more, and the others go on."""
    monkeypatch.setattr("kedrl_dask.datasets.gymnasium.AT_ONCE", 7)

    def start(env, state):
        env.state = state.copy()
        return env.state

    env = Walk(limit=10**6)
    found = monte_carlo(env, POLICY, [[0.5], [1.9]], [[0.2], [0.5]], 0.5, 200, start, progress="none")
    assert found.shape == (2, 200, 2)
    np.testing.assert_allclose(found[1], [[1.9, 0.25]] * 200, rtol=1e-6)  # ended by the first action
    assert len(np.unique(found[0], axis=0)) == 200
    # E s' and E s'' under the policy, but for the few that end.
    expected = 0.5 + 0.5 * 0.7 + 0.25 * (0.7 - 0.3 * 0.7 + 0.1)
    assert abs(found[0, :, 0].mean() - expected) < 0.3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_reservoir__runs_and_goes_on(tmp_path):
    """The worked example in small: truth from the environment, intervals, table, figure; all kept."""
    pytest.importorskip("mo_gymnasium", reason="install the extra: pip install 'kedrl-dask[rl]'")
    from rich.console import Console

    from kedrl_dask.studies import reservoir

    small = {"episodes": 120, "returns": 120, "bootstrap": 4}
    sizes = {"n_atoms": 100, "n_basis": 120, "n_landmarks": 160, "n_conditioning": 500}
    summary = reservoir.run(tmp_path / "study", **small, **sizes)
    assert len(summary["rows"]) == 40
    means = [row for row in summary["rows"] if row["measure"] == "mean"]
    assert np.mean([abs(row["estimate"] - row["true"]) / row["deviation"] for row in means]) < 0.5
    for row in summary["rows"]:
        assert row["low"] < row["estimate"] < row["high"]
        assert row["is_inside"] == (row["low"] <= row["true"] <= row["high"])
        assert 0 < row["noise"] < 0.3 * row["deviation"]
    console = Console(width=80)
    with console.capture() as captured:
        reservoir.render(summary, console)
    inside = sum(row["is_inside"] for row in means[:10])
    assert f"{inside} of 10 cover; mean error" in captured.get()
    assert captured.get().count("misses") == sum(not row["is_inside"] for row in summary["rows"])
    assert (tmp_path / "study" / "plots" / "reservoir.png").stat().st_size > 10_000
    again = reservoir.run(tmp_path / "study", **small, **sizes, draw=False)
    assert again["rows"] == summary["rows"]
