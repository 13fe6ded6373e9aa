"""The paper's simulation study: six pairs of policies, and data from them acting on a system.

The systems are in :mod:`kedrl_dask.datasets.systems`, the true law of the return under each target policy
in :mod:`kedrl_dask.datasets.truth`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from os import PathLike
from pathlib import Path

import numpy as np

from kedrl_dask.datasets.systems import PAPER_SYSTEM, SYSTEMS, LinearGaussianSystem, System, TerminatingSystem
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.untrusted import require_space
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.policies import Gaussian, LocationScale, Logistic, Policy, Uniform
from kedrl_dask.utils.arrays import Array, Mask, Points

__all__ = [
    "DISCOUNT",
    "PAIRS",
    "PAPER_SYSTEM",
    "SYSTEMS",
    "TEST_POINTS_UNIFORM_GAUSSIAN",
    "LinearGaussianSystem",
    "PaperSettings",
    "PolicyPair",
    "System",
    "TerminatingSystem",
    "simulate",
    "write",
]


DISCOUNT = 0.7
"""Discount factor γ of the study (``tab:sim_shared_params``)."""

# Episodes are simulated in whole blocks, each from its own generator, so that an episode is the same
# however many are asked for, and memory is that of one block.
_BLOCK_EPISODES = 1_000
#: Least bytes that a random number takes on disk: its eight are hardly compressible.
BYTES_ON_DISK = 7


@dataclass(frozen=True)
class PaperSettings:
    """Estimation settings of one pair (``tab:sim_pair_params`` and the text below it)."""

    n_basis: int
    n_features: int
    ridge_gamma: float
    ridge_b: float
    length_scale: float
    sigma: float
    n_iterations: int
    batch_size: int
    mass_penalty: float
    learning_rate: float
    weight_decay: float

    @property
    def kernel(self) -> Matern:
        """The one Matérn kernel, ν = 5.5, that serves inputs and returns of the pair."""
        return Matern(nu=5.5, length_scale=self.length_scale, sigma=self.sigma)


@dataclass(frozen=True)
class PolicyPair:
    """The behaviour policy that generates the data, the target policy to evaluate, the paper's settings.

    Examples
    --------
    >>> PAIRS["uniform-gaussian"].settings.kernel
    Matern(nu=5.5, length_scale=1.25, sigma=0.85)
    """

    behavior: LocationScale
    target: LocationScale
    settings: PaperSettings


#: The former name.
Pair = PolicyPair


def _uniform(weights: tuple[float, ...], lower: float, upper: float) -> Uniform:
    """Uniform policy from the table's offsets ε_L and ε_U of the end points."""
    return Uniform(weights, bias=(lower + upper) / 2, half_width=(upper - lower) / 2)


# tab:policy_params. The slope is that of the behaviour policy: the two policies of a pair share it.
_GAUSSIAN_SLOPE = (0.12, -0.08, 0.12, -0.35, 0.04)
_LOGISTIC_SLOPE = (0.05, -0.12, 0.18, -0.40, -0.03)
_UNIFORM_GAUSSIAN_SLOPE = (0.10, -0.10, 0.15, -0.45, 0.00)
_UNIFORM_LOGISTIC_SLOPE = (0.08, -0.12, 0.16, -0.42, -0.02)
_GAUSSIAN_BEHAVIOR = Gaussian(_GAUSSIAN_SLOPE, bias=0.02, scale=np.exp(-1.60))
_LOGISTIC_BEHAVIOR = Logistic(_LOGISTIC_SLOPE, bias=0.03, scale=np.exp(-1.80))

PAIRS: dict[str, PolicyPair] = {
    "gaussian-uniform": PolicyPair(
        _GAUSSIAN_BEHAVIOR,
        _uniform(_GAUSSIAN_SLOPE, -0.16, 0.20),
        PaperSettings(320, 1024, 0.0020, 0.004, 1.80, 1.00, 7000, 256, 4.0, 2e-4, 5e-5),
    ),
    "gaussian-logistic": PolicyPair(
        _GAUSSIAN_BEHAVIOR,
        Logistic(_GAUSSIAN_SLOPE, bias=0.02, scale=np.exp(-2.80)),
        PaperSettings(320, 1024, 0.0025, 0.006, 1.65, 0.95, 7000, 256, 3.5, 2e-4, 5e-5),
    ),
    "logistic-uniform": PolicyPair(
        _LOGISTIC_BEHAVIOR,
        _uniform(_LOGISTIC_SLOPE, -0.15, 0.21),
        PaperSettings(260, 768, 0.0040, 0.014, 1.35, 0.85, 6000, 200, 2.0, 2.5e-4, 5e-5),
    ),
    "logistic-gaussian": PolicyPair(
        _LOGISTIC_BEHAVIOR,
        Gaussian(_LOGISTIC_SLOPE, bias=0.03, scale=np.exp(-2.70)),
        PaperSettings(280, 768, 0.0040, 0.016, 1.50, 0.90, 6500, 200, 2.5, 2.5e-4, 5e-5),
    ),
    "uniform-gaussian": PolicyPair(
        _uniform(_UNIFORM_GAUSSIAN_SLOPE, -0.725, 0.775),
        Gaussian(_UNIFORM_GAUSSIAN_SLOPE, bias=0.025, scale=np.exp(-2.60)),
        PaperSettings(250, 768, 0.0030, 0.012, 1.25, 0.85, 5500, 150, 1.5, 3e-4, 5e-5),
    ),
    "uniform-logistic": PolicyPair(
        _uniform(_UNIFORM_LOGISTIC_SLOPE, -0.72, 0.78),
        Logistic(_UNIFORM_LOGISTIC_SLOPE, bias=0.03, scale=np.exp(-2.80)),
        PaperSettings(220, 640, 0.0040, 0.018, 1.20, 0.80, 5000, 150, 1.4, 3e-4, 8e-5),
    ),
}
"""The six "behaviour-target" pairs (``tab:policy_params``, ``tab:sim_pair_params``)."""

_TEST_POINTS = np.array(
    [
        [0.600, -0.800, 0.700, -0.500, 0.900, 0.500],
        [0.000, 0.000, 0.000, 0.000, 0.000, 0.025],
        [0.200, -0.200, 0.100, -0.100, 0.300, 0.125],
        [-0.200, -0.100, 0.100, -0.200, 0.200, 0.120],
        [-0.721, -0.913, -0.086, 0.336, -0.259, -0.081],
        [-1.163, -0.894, -1.316, 0.837, -0.713, -0.676],
        [0.882, 1.198, 1.529, -0.260, -0.374, 0.373],
        [-0.586, -0.498, 0.889, -0.430, 0.146, 0.354],
        [-0.499, 0.292, -0.105, 0.418, -0.157, -0.292],
        [-0.364, -0.034, -0.313, -0.376, 1.669, 0.153],
    ]
)
TEST_POINTS_UNIFORM_GAUSSIAN = (_TEST_POINTS[:, :5], _TEST_POINTS[:, 5:])
"""States (10, 5) and actions (10, 1) of ``tab:test_target_points_UG``."""


def simulate(
    policy: PolicyPair | Policy,
    n_episodes: int = 300,
    n_steps: int = 50,
    burn_in: int = 100,
    seed: int = 0,
    system: System = PAPER_SYSTEM,
) -> dict[str, Array]:
    """Episodes under a policy, as the arrays that ``TransitionStore.from_arrays`` takes.

    An episode depends on ``seed`` and its own number only: more episodes or more steps extend the data.

    Parameters
    ----------
    policy : PolicyPair or Policy
        The policy that acts; of a pair, the behaviour policy.
    n_episodes, n_steps : int
        Episodes, and recorded time points of each; fewer where the system ends the episode.
    burn_in : int
        Steps taken from an N(0, I) initial state before recording; none of them ends an episode.
    seed : int
        Non-negative seed.
    system : System
        The system to act on, for example one of ``systems.SYSTEMS``.

    Returns
    -------
    dict
        ``state`` (rows, p), ``action`` (rows, q), ``reward`` (rows, d), ``terminated``, ``episode`` and
        ``step`` (rows,), ordered by episode and step.

    Examples
    --------
    >>> data = simulate(PAIRS["uniform-gaussian"], n_episodes=2, n_steps=3, burn_in=0)
    >>> data["state"].shape, data["episode"].tolist()
    ((6, 5), [0, 0, 0, 1, 1, 1])
    """
    acting = _acting_policy(policy, burn_in, system)
    if min(n_episodes, n_steps) < 1:
        raise ValueError(f"nothing to simulate: n_episodes={n_episodes}, n_steps={n_steps}")
    n_blocks = -(-n_episodes // _BLOCK_EPISODES)
    blocks = [
        _first_rows(block, int(np.searchsorted(block["episode"], n_episodes)))
        for block in islice(_blocks(acting, n_steps, burn_in, seed, system), n_blocks)
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def write(
    path: str | PathLike[str],
    policy: PolicyPair | Policy,
    n_transitions: int = 14_700,
    n_steps: int = 50,
    burn_in: int = 100,
    seed: int = 0,
    system: System = PAPER_SYSTEM,
    advance: Callable[[int], None] | None = None,
) -> TransitionStore:
    """Simulate into a store, block by block: memory does not grow with ``n_transitions``.

    The data are those of :func:`simulate`. An episode of ``n_steps`` rows has ``n_steps`` − 1 transitions
    (N = n(T − 1)), one more if it is terminated; the last episode is cut short if that is what gives
    ``n_transitions`` in all, and then it is not terminated. ``advance`` is called after each block with
    the number of its transitions.

    Examples
    --------
    >>> store = write("store", PAIRS["uniform-gaussian"], n_transitions=100)
    >>> store.n_transitions, store.n_episodes
    (100, 3)
    """
    if n_transitions < 1 or n_steps < 2:
        raise ValueError(
            f"a transition takes two steps, got n_transitions={n_transitions}, n_steps={n_steps}"
        )
    acting = _acting_policy(policy, burn_in, system)
    missing = n_transitions
    dims = {"state_dim": system.state_dim, "action_dim": system.action_dim, "reward_dim": system.reward_dim}
    require_space(Path(path), BYTES_ON_DISK * n_transitions * sum(dims.values()))
    with TransitionStore.writer(path, **dims) as writer:
        for block in _blocks(acting, n_steps, burn_in, seed, system):
            kept = _first_transitions(block, missing)
            writer.append(**kept)
            written = int(np.count_nonzero(_are_transitions(kept)))
            del block, kept  # before the next block is made: they may be large
            missing -= written
            if advance is not None:
                advance(written)
            if missing == 0:
                break
    return TransitionStore.open(path)


def _acting_policy(policy: PolicyPair | Policy, burn_in: int, system: System) -> Policy:
    """The policy that generates the data, after a check that it can."""
    if burn_in < 0:
        raise ValueError(f"burn_in must be at least 0, got {burn_in}")
    acting: Policy = policy.behavior if isinstance(policy, PolicyPair) else policy
    if acting.action_dim not in (None, system.action_dim):
        raise ValueError(f"policy has {acting.action_dim} action coordinates, the system {system.action_dim}")
    return acting


def _blocks(
    policy: Policy, n_steps: int, burn_in: int, seed: int, system: System
) -> Iterator[dict[str, Array]]:
    """Rows of _BLOCK_EPISODES episodes at a time, ordered by episode and step, without end."""
    for block in count():
        rows = _simulate_block(policy, n_steps, burn_in, np.random.default_rng([seed, block]), system)
        # A row belongs to the data if no earlier row of its episode is terminated.
        recorded = np.cumsum(rows["terminated"], axis=1) == rows["terminated"]
        episode, step = np.nonzero(recorded)
        # Popped and yielded without a name, so that a large block is not held twice for long.
        yield {name: rows.pop(name)[recorded] for name in tuple(rows)} | {
            "episode": block * _BLOCK_EPISODES + episode,
            "step": step,
        }


def _simulate_block(
    policy: Policy, n_steps: int, burn_in: int, rng: np.random.Generator, system: System
) -> dict[str, Array]:
    """State, action and reward (_BLOCK_EPISODES, n_steps, ·) and terminated (_BLOCK_EPISODES, n_steps).

    An episode that has ended is simulated further until all have ended, so that the others do not depend on
    it; the caller drops the rows that follow a terminated one.
    """
    dims = {"state": system.state_dim, "action": system.action_dim, "reward": system.reward_dim}
    rows: dict[str, Array] = {name: np.empty((_BLOCK_EPISODES, n_steps, dim)) for name, dim in dims.items()}
    rows["terminated"] = np.zeros((_BLOCK_EPISODES, n_steps), dtype=bool)
    state: Points = rng.standard_normal((_BLOCK_EPISODES, system.state_dim))
    ended = np.zeros(_BLOCK_EPISODES, bool)
    for step in range(-burn_in, n_steps):
        action = policy.sample(state, rng)
        reward, following = system.step(state, action, rng)
        if step >= 0:
            rows["state"][:, step], rows["action"][:, step], rows["reward"][:, step] = state, action, reward
            rows["terminated"][:, step] = terminated = system.terminates(following, rng)
            ended |= terminated
            if ended.all():
                break
        state = following
    return rows


def _first_rows(rows: dict[str, Array], n: int) -> dict[str, Array]:
    return {name: values[:n] for name, values in rows.items()}


def _are_transitions(rows: dict[str, Array]) -> Mask:
    """Tell which rows of whole episodes have a successor or are terminated."""
    has_successor = np.append(rows["episode"][1:] == rows["episode"][:-1], False)
    return has_successor | rows["terminated"]


def _first_transitions(rows: dict[str, Array], n: int) -> dict[str, Array]:
    """First rows of whole episodes, such that they have ``n`` transitions; all rows if there are no more."""
    numbers = np.flatnonzero(_are_transitions(rows))
    if len(numbers) <= n:
        return rows
    last = int(numbers[n - 1])
    if rows["terminated"][last]:
        return _first_rows(rows, last + 1)
    kept = _first_rows(rows, last + 2)
    # The successor is only where the last transition leads: were it terminated, it would be one more.
    kept["terminated"] = np.append(kept["terminated"][:-1], False)
    return kept
