"""Episodes of Gymnasium and MO-Gymnasium environments as stores, and returns from the environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from math import ceil, log
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kedrl_dask.datasets.episodes import write_episodes
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.data.validation import DataError
from kedrl_dask.engine.storage.atomic import PathLike
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.utils.arrays import Array, Matrices, Points, Vector
from kedrl_dask.utils.checks import as_numbers, check_count, check_share, shown
from kedrl_dask.utils.progress import ProgressMode, Reporter

__all__ = ["collect", "make", "monte_carlo"]


#: Share of the return of a constant reward that a simulated return may omit.
TRUNCATION = 1e-4
#: Copies of an environment that run side by side.
AT_ONCE = 500


class Environment(Protocol):
    """What is needed of an environment; those of Gymnasium and MO-Gymnasium have it."""

    observation_space: Any  # spaces of Gymnasium, which need not be installed
    action_space: Any

    def reset(self, *, seed: int) -> tuple[npt.ArrayLike, Mapping[str, object]]:
        """Begin an episode; returns an observation and further information."""

    def step(self, action: Vector) -> tuple[npt.ArrayLike, npt.ArrayLike, bool, bool, Mapping[str, object]]:
        """Act; returns observation, reward, terminated, truncated and further information."""


def make(name: str, **options: object) -> Any:
    """An environment of MO-Gymnasium or else of Gymnasium, by its name."""
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
    env: Environment | str,
    policy: Policy,
    episodes: int,
    *,
    max_steps: int | None = None,
    seed: int = 0,
    chunk_rows: int = 16_384,
    progress: ProgressMode = "auto",
) -> TransitionStore:
    """Let a policy act in an environment, and store its episodes.

    An episode that the environment terminates ends for good. One that it truncates, or that reaches
    ``max_steps``, just stops: its last row is not a transition. Actions are stored as passed to the
    environment.

    Parameters
    ----------
    path : path-like
        Directory of the new store, which appears when it is complete.
    env : gymnasium.Env or str
        An environment with one-dimensional boxes of observations and actions, and with rewards that are
        numbers or vectors; or its name, see :func:`make`.
    policy : Policy
        Acts on unprocessed observations.
    episodes : int
    max_steps : int, optional
        Largest number of steps of an episode.
    seed : int
        Seed of policy and environment; an episode depends only on it and on its own number.
    chunk_rows : int
        Rows per stored chunk.
    progress : {"auto", "bars", "log", "none"}
    """
    check_count("collect: episodes", episodes)
    if max_steps is not None:
        check_count("collect: max_steps", max_steps, least=2)
    env = make(env) if isinstance(env, str) else env
    sizes = {"state_dim": _size(env, "observation"), "action_dim": _size(env, "action")}
    rows = (
        _episode(env, policy, np.random.default_rng([seed, number]), max_steps) for number in range(episodes)
    )
    return write_episodes(path, rows, episodes, chunk_rows, progress, **sizes)


def _size(env: Environment, what: str) -> int:
    """Dimension of the observations or actions of an environment, which must be vectors."""
    space = getattr(env, f"{what}_space", None)
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or len(shape) != 1 or dtype is None or np.dtype(dtype).kind != "f":
        raise ValueError(
            f"the {what}s of {shown(env)} are of {shown(space)}, expected a box of real numbers of one "
            f"dimension; wrap the environment, e.g. with gymnasium.wrappers.Flatten{what.capitalize()}"
        )
    return int(shape[0])


def _episode(
    env: Environment, policy: Policy, rng: np.random.Generator, max_steps: int | None
) -> dict[str, Array]:
    """The rows of one episode from the environment's own start."""
    observation, _ = env.reset(seed=int(rng.integers(2**31)))
    states, actions, rewards = [], [], []
    has_ended = False
    while not has_ended:
        state = np.asarray(observation, dtype=np.float64)
        action = _given(env, policy.sample(state[None], rng)[0])
        observation, reward, terminated, truncated, _ = env.step(action)
        states.append(state)
        actions.append(np.asarray(action, dtype=np.float64))
        rewards.append(np.atleast_1d(np.asarray(reward, dtype=np.float64)))
        if rewards[-1].shape != rewards[0].shape or rewards[-1].ndim != 1:
            raise DataError(
                f"the environment returned a reward of shape {rewards[-1].shape} after {rewards[0].shape}, "
                "expected a number or a vector, always the same; check the environment"
            )
        has_ended = terminated or truncated or len(states) == max_steps
    ends = np.arange(len(states)) == len(states) - 1
    return {
        "state": np.stack(states),
        "action": np.stack(actions),
        "reward": np.stack(rewards),
        "terminated": ends & bool(terminated),
    }


def _given(env: Environment, action: Vector) -> Vector:
    """The action in the number type of the environment."""
    return np.asarray(action, dtype=env.action_space.dtype)


def monte_carlo(
    env: Environment,
    policy: Policy,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    discount: float,
    n_returns: int,
    start: Callable[..., object],
    seed: int = 0,
    progress: ProgressMode = "auto",
) -> Matrices:
    """Discounted returns (n, n_returns, d) of the environment itself, after each state and first action.

    Copies of the environment run side by side, so that the policy acts for many of them at once. They stop
    when the remaining rewards would add a share of 10⁻⁴ to the return of a constant reward; the environment
    must not truncate episodes before.

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
        ``start(env, state=...)`` puts the environment into a state.
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
    copies: Sequence[Environment],
    policy: Policy,
    rng: np.random.Generator,
    discount: float,
    n_steps: int,
    state: Vector,
    action: Vector,
    start: Callable[..., object],
) -> Points:
    """One discounted return of each copy of an environment, which run together; (n, d)."""
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
            gained = np.atleast_1d(np.asarray(reward, dtype=np.float64))
            if totals is None:
                totals = np.zeros((len(copies), len(gained)))
            totals[number] += discount**step * gained
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
