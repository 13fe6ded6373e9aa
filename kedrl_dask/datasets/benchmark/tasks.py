"""Tasks of MO-Gymnasium with continuous states and actions, as cases of the benchmark.

The environments themselves are simulated: put into each state, then stepped. Their libraries are imported
when a task is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from kedrl_dask.datasets.benchmark.case import Case, Ends, Judged, everywhere, never
from kedrl_dask.datasets.gymnasium import make
from kedrl_dask.numerics.policies.families import Gaussian
from kedrl_dask.utils.arrays import Mask, Matrix, Points, Vector

Put = Callable[[Any, Vector], None]


@dataclass(frozen=True, eq=False)
class EnvironmentSystem:
    """An environment of Gymnasium as a system, for one thread at a time.

    Actions beyond the environment's bounds act as those at the bounds. A state that ended an episode stays as
    it is, without reward.

    Attributes
    ----------
    env : gymnasium.Env
        Without wrappers: a limit of steps would not be known to the state.
    put : callable
        ``put(env, state)`` puts the environment into a state (p,).
    ends : callable
        Whether the step that led to each of the states (n, p) was the last.
    """

    env: Any
    put: Put
    ends: Ends = never

    @property
    def state_dim(self) -> int:
        """Dimension p of the observations."""
        return int(self.env.observation_space.shape[0])

    @property
    def action_dim(self) -> int:
        """Dimension q of the actions."""
        return int(self.env.action_space.shape[0])

    @property
    def reward_dim(self) -> int:
        """Dimension d of the rewards."""
        return int(self.env.reward_space.shape[0])

    def step(self, state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
        """Rewards and next states of one step, with all noise of the environment from the generator."""
        space = self.env.action_space
        bounded = np.clip(action, space.low, space.high).astype(space.dtype)
        reward, reached = np.zeros((len(state), self.reward_dim)), np.array(state, dtype=np.float64)
        self.env.np_random = rng
        for row in np.flatnonzero(~self.ends(state, rng)):
            self.put(self.env, state[row])
            reached[row], reward[row], *_ = self.env.step(bounded[row])
        return reward, reached

    def terminates(self, reached: Points, rng: Generator) -> Mask:
        """Whether the step that led to each state was the last."""
        return self.ends(reached, rng)


@dataclass(frozen=True)
class Task:
    """What a case is made of, before its environment is.

    Attributes
    ----------
    environment, about : str
        Name of the environment, and what it is.
    put : callable
        ``put(env, state)`` puts the environment into a state (p,).
    low, high : sequence of float
        Between these, first states are uniform.
    ends : callable
        Makes of the environment the function that tells whether a step was the last.
    libraries : tuple of str
        Modules that must be installed.

    The others are those of :class:`~kedrl_dask.datasets.benchmark.Case`.
    """

    environment: str
    about: str
    put: Put
    behaviour: Gaussian
    target: Gaussian
    discount: float
    n_steps: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    n_returns: int
    judged: Judged = everywhere
    ends: Callable[[Any], Ends] = lambda env: never
    libraries: tuple[str, ...] = ("mo_gymnasium",)

    def build(self, name: str) -> Case:
        """The case, with an environment of its own."""
        env = make(self.environment, disable_env_checker=True).unwrapped
        env.reset(seed=0)
        system = EnvironmentSystem(env, self.put, self.ends(env))
        start = partial(_uniform, self.low, self.high, env.observation_space.dtype)
        return Case(
            name, self.about, system, self.behaviour, self.target, self.discount, self.n_steps, start,
            self.n_returns, self.judged,
        )  # fmt: skip


def _uniform(
    low: tuple[float, ...], high: tuple[float, ...], dtype: npt.DTypeLike, rng: Generator, n: int
) -> Points:
    """States (n, p) that the environment's number type can hold."""
    return rng.uniform(low, high, size=(n, len(low))).astype(dtype).astype(np.float64)


def put_state(env: Any, state: Vector) -> None:
    """Put an environment into a state that it holds as the attribute ``state``."""
    env.unwrapped.state = np.array(state, dtype=np.float32)


def _put_swimmer(env: Any, state: Vector) -> None:
    """Put the swimmer to the origin, with angles and velocities as observed: water is the same everywhere."""
    n_angles = env.model.nq - 2
    env.set_state(np.concatenate([np.zeros(2), state[:n_angles]]), state[n_angles:])


def _at_the_top(env: Any) -> Ends:
    """The rule by which the mountain car's environment ends an episode, in its own number type."""

    def ends(reached: Points, rng: Generator) -> Mask:
        position, velocity = reached.astype(np.float32).T
        return (position >= env.goal_position) & (velocity >= env.goal_velocity)

    return ends


def _in_the_valley(state: Points) -> Mask:
    """Whether the car is more than a few steps from the top: later, an episode's rest is all but certain."""
    return state[:, 0] < 0


def _joints(own: float, across: float) -> Matrix:
    """Weights of two torques on eight observations: on the angle of the own joint, and of the other."""
    weights = np.zeros((8, 2))
    weights[1:3] = [[own, across], [-across, own]]
    return weights


TASKS = {
    "water-reservoir": Task(
        environment="water-reservoir-v0",
        about="a dam: costs of flood and of unmet demand, with a kink each",
        put=put_state,
        behaviour=Gaussian([[0.35]], bias=15.0, scale=15.0),
        target=Gaussian([[0.5]], bias=8.0, scale=10.0),
        discount=0.95,
        n_steps=100,
        low=(0.0,),
        high=(160.0,),
        n_returns=1_000,
    ),
    "mountain-car": Task(
        environment="mo-mountaincarcontinuous-v0",
        about="a car that must swing up: time until the end, in several modes, and fuel",
        put=put_state,
        behaviour=Gaussian([[0.0], [14.0]], scale=0.8),
        target=Gaussian([[0.0], [18.0]], scale=0.6),
        discount=0.99,
        n_steps=300,
        low=(-1.1, -0.05),
        high=(0.3, 0.05),
        n_returns=4_000,
        judged=_in_the_valley,
        ends=_at_the_top,
    ),
    "swimmer": Task(
        environment="mo-swimmer-v5",
        about="three links in water, of MuJoCo: speed and energy",
        put=_put_swimmer,
        behaviour=Gaussian(_joints(-0.3, 0.0), scale=0.6),
        target=Gaussian(_joints(-0.3, 0.4), scale=0.4),
        discount=0.9,
        n_steps=50,
        low=(-0.5,) * 8,
        high=(0.5,) * 8,
        n_returns=1_000,
        libraries=("mo_gymnasium", "mujoco", "imageio"),
    ),
}
"""Tasks by the names of their cases."""
