"""Episodes of Gymnasium and MO-Gymnasium environments as stores, and returns from the environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib import import_module
from math import ceil, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.atomic import PathLike, atomic_directory
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import as_numbers, check_count, check_share, shown
from kedrl_dask.utils.progress import Reporter

__all__ = ["collect", "make", "monte_carlo"]


#: Share of a constant reward's return that rewards beyond the last step of a simulated return may have.
TRUNCATION = 1e-4
#: Copies of an environment that go on side by side.
AT_ONCE = 500


class Episode(NamedTuple):
    """One episode as rows of state, action and reward, and how it ended."""

    state: Array
    action: Array
    reward: Array
    terminated: bool
    truncated: bool


def make(name: str, **options: Any) -> Any:
    """An environment by its name, of MO-Gymnasium where that knows it, and else of Gymnasium."""
    for library in ("mo_gymnasium", "gymnasium"):
        try:
            found = import_module(library)
        except ModuleNotFoundError:
            continue
        try:
            return found.make(name, **options)
        except Exception as error:
            if type(error).__name__ not in ("NameNotFound", "NamespaceNotFound", "VersionNotFound"):
                raise
    raise ValueError(
        f"no environment {name!r} is installed; check the name, or install the extra: "
        "pip install 'kedrl-dask[rl]'"
    )


def collect(
    path: PathLike,
    env: Any,
    policy: Policy,
    episodes: int,
    *,
    max_steps: int | None = None,
    seed: int = 0,
    chunk_rows: int = 16_384,
    progress: Any = "auto",
) -> TransitionStore:
    """Let a policy act in an environment, and store what happens.

    An episode that the environment terminates ends for good. One that it truncates, or that is cut after
    ``max_steps``, just stops: its last row is no transition. Actions are stored as the environment got them.

    Parameters
    ----------
    path : path-like
        Directory of the new store, which appears when it is complete.
    env : gymnasium.Env or str
        With observations and actions in boxes of one dimension, and rewards that are numbers or vectors; or
        the name of one, see :func:`make`.
    policy : Policy
        Acts on observations as they are.
    episodes : int
    max_steps : int, optional
        Most steps of an episode.
    seed : int
        Of policy and environment; an episode depends on it and on its own number only.
    chunk_rows : int
        Rows per stored chunk.
    progress : {"auto", "bars", "log", "none"}
    """
    check_count("collect: episodes", episodes)
    if max_steps is not None:
        check_count("collect: max_steps", max_steps, least=2)
    env = make(env) if isinstance(env, str) else env
    dims = {"state": _size(env, "observation"), "action": _size(env, "action")}
    with atomic_directory(path) as partial, Reporter(progress).stage("episodes", episodes) as advance:
        writer = None
        for number in range(episodes):
            rows = _episode(env, policy, np.random.default_rng([seed, number]), max_steps)
            if writer is None:
                sizes = {f"{name}_dim": size for name, size in dims.items()}
                sizes["reward_dim"] = rows.reward.shape[1]
                writer = TransitionStore.writer(partial, **sizes, chunk_rows=chunk_rows)
            ends = np.arange(len(rows.state)) == len(rows.state) - 1
            writer.append(
                state=rows.state,
                action=rows.action,
                reward=rows.reward,
                episode=np.full(len(rows.state), number),
                step=np.arange(len(rows.state)),
                terminated=ends & rows.terminated,
            )
            advance(1)
        assert writer is not None  # there is at least one episode
        writer.close()
    return TransitionStore.open(path)


def _size(env: Any, what: str) -> int:
    """Coordinates of the observations or actions of an environment, if they are vectors."""
    space = getattr(env, f"{what}_space", None)
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or len(shape) != 1 or dtype is None or np.dtype(dtype).kind != "f":
        raise ValueError(
            f"the {what}s of {shown(env)} are of {shown(space)}, expected a box of real numbers of one "
            f"dimension; wrap the environment, e.g. with gymnasium.wrappers.Flatten{what.capitalize()}"
        )
    return int(shape[0])


def _episode(env: Any, policy: Policy, rng: np.random.Generator, max_steps: int | None) -> Episode:
    """One episode from the environment's own start."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    rows: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    while True:
        state = np.asarray(observation, dtype=np.float64)
        action = _given(env, policy.sample(state[None], rng)[0])
        observation, reward, terminated, truncated, _ = env.step(action)
        for column, value in zip(rows, (state, action, np.atleast_1d(reward)), strict=True):
            column.append(np.asarray(value, dtype=np.float64))
        if rows[2][-1].shape != rows[2][0].shape or rows[2][-1].ndim != 1:
            raise DataError(
                f"the environment gave a reward of shape {rows[2][-1].shape} after {rows[2][0].shape}, "
                "expected a number or a vector, always the same; check the environment"
            )
        truncated = truncated or len(rows[0]) == max_steps
        if terminated or truncated:
            state, action, reward = (np.stack(column) for column in rows)
            return Episode(state, action, reward, bool(terminated), bool(truncated))


def _given(env: Any, action: Array) -> Array:
    """The action in the numbers of the environment."""
    return np.asarray(action, dtype=env.action_space.dtype)


def monte_carlo(
    env: Any,
    policy: Policy,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    discount: float,
    n_returns: int,
    start: Callable[..., Array],
    seed: int = 0,
    progress: Any = "auto",
) -> Array:
    """Discounted returns (n, n_returns, d) from the environment itself, after each state and first action.

    Copies of the environment go on side by side, so that the policy acts for many of them at once. They end
    where what follows has a share of 10⁻⁴ in the return of a constant reward; the environment must
    not truncate episodes before.

    Parameters
    ----------
    env : gymnasium.Env
    policy : Policy
        Acts after the first action.
    state, action : (n, p) and (n, q) arrays
    discount : float
    n_returns : int
        Returns for each input.
    start : callable
        ``start(env, state=...)`` puts the environment into a state, and returns its observation.
    seed : int
    progress : {"auto", "bars", "log", "none"}
    """
    check_share("monte_carlo: discount", discount)
    check_count("monte_carlo: n_returns", n_returns)
    state, action = as_numbers("state", state), as_numbers("action", action)
    n_steps = ceil(log(TRUNCATION) / log(discount))
    copies = [deepcopy(env) for _ in range(min(n_returns, AT_ONCE))]
    returns = []
    with Reporter(progress).stage("returns of the environment", len(state) * n_returns) as advance:
        for i, (at, first) in enumerate(zip(state, action, strict=True)):
            for begin in range(0, n_returns, AT_ONCE):
                rng = np.random.default_rng([seed, i, begin])
                used = copies[: n_returns - begin]
                returns.append(_returns(used, policy, rng, discount, n_steps, at, first, start))
                advance(len(used))
    return np.concatenate(returns).reshape(len(state), n_returns, -1)


def _returns(
    copies: Sequence[Any],
    policy: Policy,
    rng: np.random.Generator,
    discount: float,
    n_steps: int,
    state: Array,
    action: Array,
    start: Callable[..., Array],
) -> Array:
    """One discounted return of each copy of an environment, which go on together; (n, d)."""
    for env, seed in zip(copies, rng.integers(2**31, size=len(copies)), strict=True):
        env.reset(seed=int(seed))
        start(env, state=state)
    actions = np.tile(action, (len(copies), 1))
    running, totals = list(range(len(copies))), None
    for step in range(n_steps):
        seen, goes_on = [], []
        for number, act in zip(running, actions, strict=True):
            env = copies[number]
            observation, reward, terminated, truncated, _ = env.step(_given(env, act))
            reward = np.atleast_1d(np.asarray(reward, dtype=np.float64))
            if totals is None:
                totals = np.zeros((len(copies), len(reward)))
            totals[number] += discount**step * reward
            if truncated and not terminated and step + 1 < n_steps:
                raise ValueError(
                    f"the environment truncates episodes after {step + 1} steps, returns take {n_steps} with "
                    f"discount={discount}; raise its limit of steps"
                )
            if not terminated:
                seen.append(observation)
                goes_on.append(number)
        if not goes_on:
            break
        running = goes_on
        actions = policy.sample(np.asarray(seen, dtype=np.float64), rng)
    assert totals is not None
    return totals
