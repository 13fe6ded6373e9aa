"""The cases of the benchmark that are given by functions."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.random import Generator
from scipy.special import expit

from kedrl_dask.datasets.benchmark.case import Case, Ends, FunctionSystem, Step, never
from kedrl_dask.numerics.policies.families import Gaussian
from kedrl_dask.utils.arrays import Mask, Matrix, Points


def _normal(rng: Generator, like: Points, scale: float = 1.0) -> Points:
    return scale * rng.standard_normal(like.shape)


def _nonlinear(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    x, y, z = state.T
    a = action[:, 0]
    noise = rng.standard_normal((len(state), 2))
    spread = 0.2 + 0.5 * expit(2 * x)
    reward = np.column_stack([np.sin(2 * x) + 0.5 * a * y, np.tanh(y + a) - 0.3 * z**2])
    reward += spread[:, None] * noise
    following = np.column_stack([0.7 * np.sin(x + a), 0.6 * y + 0.4 * np.cos(2 * z), 0.5 * z + 0.3 * a * x])
    return reward, following + _normal(rng, state) * (0.2 + 0.2 * np.abs(state))


def _heavy_tailed(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    x, y = state.T
    noise = rng.standard_t(3, size=(len(state), 2)) * np.column_stack([0.3 + 0.2 * np.abs(x), 0.4 + 0 * y])
    reward = np.column_stack([x + 0.5 * action[:, 0], y - 0.3 * x]) + noise
    return reward, 0.6 * state + 0.3 * action + 0.3 * rng.standard_t(4, size=state.shape)


def _counts(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    x, y = state.T
    rate = np.exp(np.clip(np.column_stack([0.6 * x + 0.3 * action[:, 0], -0.5 + 0.5 * y]), -4, 2))
    reward = rng.poisson(rate).astype(np.float64)
    following = np.column_stack([0.5 * x + 0.1 * reward[:, 0] - 0.1, 0.7 * y + 0.3 * action[:, 0]])
    return reward, following + _normal(rng, state, 0.4)


def _success_or_failure(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    following = state + 0.25 * action + 0.1 * np.sin(3 * state) + _normal(rng, state, 0.25)
    won, lost = following[:, :1] > 1.5, following[:, :1] < -1.5
    return 2.0 * won - 2.0 * lost - 0.05 + 0.05 * rng.standard_normal((len(state), 1)), following


def _outside(reached: Points, rng: Generator) -> Mask:
    return np.abs(reached[:, 0]) > 1.5


def _many_states(n_relevant: int, mixing: Matrix) -> Step:
    """Slow states of which some matter, seen through a matrix; three actions and three rewards."""
    dim, rng = len(mixing), np.random.default_rng(20)
    dynamics = 0.55 * np.linalg.qr(rng.standard_normal((n_relevant, n_relevant)))[0]
    effect = 0.3 * rng.standard_normal((3, n_relevant))
    rewards = rng.standard_normal((n_relevant, 3)) / np.sqrt(n_relevant)

    def step(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
        own = state @ mixing.T
        core = own[:, :n_relevant]
        reward = np.tanh(core @ rewards) + 0.3 * core[:, :1] * action + _normal(rng, action, 0.3)
        moved = 0.9 * own
        moved[:, :n_relevant] = np.tanh(core @ dynamics + action @ effect)
        noise = np.where(np.arange(dim) < n_relevant, 0.4, np.sqrt(1 - 0.81))
        return reward, (moved + noise * rng.standard_normal(own.shape)) @ mixing

    return step


def _bistable(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    x = state[:, 0]
    following = x + 0.4 * (x - x**3) + 0.15 * action[:, 0] + 0.22 * rng.standard_normal(len(x))
    reward = np.column_stack([x, -0.1 * action[:, 0] ** 2 + 0.5 * (x > 0)])
    return reward + _normal(rng, reward, 0.1), np.clip(following, -2.5, 2.5)[:, None]


_PUSH = np.array([[0.0], [0.1]])
_DRIFT = np.array([[1.0, 0.1], [-0.05, 0.95]])


def _regulator(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    cost = (state**2).sum(axis=1) + 0.1 * action[:, 0] ** 2
    return -cost[:, None], state @ _DRIFT.T + action @ _PUSH.T + _normal(rng, state, 0.1)


def _spend(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    taste, recency = state.T
    buys = rng.random(len(state)) < expit(-1.0 + taste + 0.5 * action[:, 0])
    spend = buys * np.exp(0.5 * taste + 0.6 * rng.standard_normal(len(state)))
    clicks = rng.poisson(np.exp(0.3 * taste - 0.3 * recency)).astype(np.float64)
    following = np.column_stack([0.8 * taste + 0.2 * buys, np.where(buys, -0.5, 0.7 * recency + 0.2)])
    return np.column_stack([spend, clicks]), following + _normal(rng, state, 0.3)


def _ring(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    """Now and then a reward lies on a circle, at an angle that nothing tells; the others are small."""
    angle = 2 * np.pi * rng.random(len(state))
    size = 1.5 + 0.3 * np.tanh(state[:, 0] + 0.5 * action[:, 0])
    reward = size[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]) * (state[:, 1:] > 0)
    following = np.column_stack(
        [0.6 * state[:, 0] + 0.3 * action[:, 0], np.where(rng.random(len(state)) < 0.2, 1.0, -1.0)]
    )
    noise = _normal(rng, state, 0.3) * np.array([1.0, 0.1])
    return reward + 0.1 * rng.standard_normal(reward.shape), following + noise


def _slow(state: Points, action: Points, rng: Generator) -> tuple[Points, Points]:
    x, y = state.T
    reward = np.column_stack([np.sin(x) + 0.2 * action[:, 0], 0.3 * x * y])
    following = np.column_stack([0.9 * x + 0.2 * np.sin(y), 0.85 * y + 0.2 * action[:, 0]])
    return reward + _normal(rng, state, 0.3), following + _normal(rng, state, 0.3)


def _rotation(dim: int) -> Matrix:
    return np.linalg.qr(np.random.default_rng(7).standard_normal((dim, dim)))[0]


def _policies(dim: int, n_actions: int) -> tuple[Gaussian, Gaussian]:
    """A wide logged policy, and a narrower one around other actions."""
    weights = np.zeros((dim, n_actions))
    weights[:3] = 0.3
    return Gaussian(weights=0 * weights, scale=1.0), Gaussian(weights=weights, bias=0.2, scale=0.5)


def _case(
    name: str,
    about: str,
    discount: float,
    dims: tuple[int, int, int],
    move: Step,
    ends: Ends = never,
    n_steps: int = 25,
    spread: float = 1.0,
    policies: tuple[Gaussian, Gaussian] | None = None,
) -> Case:
    """A case whose episodes begin at normal states, by default with the policies that all but one have."""
    behaviour, target = policies or _policies(*dims[:2])
    system = FunctionSystem(*dims, move, ends)
    start = partial(_normal_start, dims[0], spread)
    return Case(name, about, system, behaviour, target, discount, n_steps, start)


def _normal_start(dim: int, spread: float, rng: Generator, n: int) -> Points:
    return spread * rng.standard_normal((n, dim))


REGULATORS = (
    Gaussian(weights=[[-0.3], [-0.5]], scale=1.0),
    Gaussian(weights=[[-0.8], [-1.0]], scale=0.3),
)

_ALL = (
    _case("nonlinear", "nonlinear, with noise that depends on the state", 0.9, (3, 1, 2), _nonlinear),
    _case("heavy-tailed", "Student noise with three degrees of freedom", 0.85, (2, 1, 2), _heavy_tailed),
    _case("counts", "Poisson rewards, one of which moves the state", 0.8, (2, 1, 2), _counts),
    _case(
        "success-or-failure", "episodes end in success or failure: two modes", 0.95, (1, 1, 1),
        _success_or_failure, _outside, spread=0.5,
    ),
    _case("twenty-states", "four of twenty states matter", 0.9, (20, 3, 3), _many_states(4, np.eye(20))),
    _case("rotated", "four of twenty directions matter", 0.9, (20, 3, 3), _many_states(4, _rotation(20))),
    _case("fifty-states", "three of fifty matter", 0.9, (50, 3, 3), _many_states(3, _rotation(50))),
    _case("bistable", "two wells", 0.98, (1, 1, 2), _bistable, n_steps=50),
    _case("regulator", "quadratic costs", 0.99, (2, 1, 1), _regulator, n_steps=50, policies=REGULATORS),
    _case("spend-and-clicks", "zeros, log-normal sizes and counts", 0.8, (2, 1, 2), _spend),
    _case("ring", "a joint law on a ring", 0.7, (2, 1, 2), _ring),
    _case("long-horizon", "slow states", 0.995, (2, 1, 2), _slow, n_steps=50),
)  # fmt: skip

CASES: dict[str, Case] = {case.name: case for case in _ALL}
"""Cases given by functions, by name."""
