"""The pilot of a fit: returns of the target policy simulated from a sample, and the potential they give.

Observed returns are those of the logged policy, and short episodes show only a part of them. Simulated ones
are of the target policy and of any horizon: the grid and the return kernel are chosen from them, and Ψ is
their mean given the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.schema import POTENTIAL, SIMULATED
from kedrl_dask.estimator.fit.design import KIND, draw_sample
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fit.streaming import policy_facts
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.numerics.simulation.smooth_regression import fit_smooth
from kedrl_dask.numerics.simulation.transition_model import N_FOLDS, TransitionModel, rewards_until
from kedrl_dask.utils.arrays import Points

#: Counts up when the rules below change, so that caches of earlier ones are not mistaken for theirs.
RULES = 1
#: Simulated steps in all, the fewest and most returns from which Ψ is found, and the most for the grid.
STEPS, FEWEST_RETURNS, MOST_RETURNS, GRID_RETURNS = 2_000_000, 1_000, 16_000, 4_000
#: Fewest episodes and transitions from which returns are simulated.
FEWEST_EPISODES, FEWEST_TRANSITIONS = 10, 500


@dataclass(frozen=True)
class Pilot:
    """What the pilot found.

    Attributes
    ----------
    potential : Potential
        Ψ.
    returns : (n, d) array
        Simulated returns from logged inputs, less Ψ of their states.
    """

    potential: Potential
    returns: Points


def run_pilot(settings: Settings, store: TransitionStore, policy: Policy, cache: Cache) -> Pilot | None:
    """Simulate, or find what was simulated for the same data, policy and settings.

    None without centring, where the data are too few, and for states with categories, which the regression
    of the next state would leave.
    """
    store = store.base
    few = store.n_transitions < FEWEST_TRANSITIONS or store.n_episodes < FEWEST_EPISODES
    columns = () if store.encoding is None else store.encoding.state
    if not settings.centred or few or any(column.levels is not None for column in columns):
        return None
    facts = {"data": store.fingerprint, "policy": policy_facts(policy, cache), "rules": RULES}
    facts |= {name: getattr(settings, name) for name in ("discount", "random_state")}

    def make(path: Path) -> None:
        sample = draw_sample(store, cache, settings.random_state)
        found = _simulate(settings, sample, policy)
        arrays = found.potential.to_arrays() | {"simulated": found.returns}
        write_arrays(path, KIND, POTENTIAL + SIMULATED, arrays).finish()

    filed = ArrayStore.open(cache.get("pilot", facts, make), KIND)
    potential = Potential.from_arrays({spec.name: filed.read(spec.name) for spec in POTENTIAL})
    return Pilot(potential, filed.read("simulated"))


def _simulate(settings: Settings, sample: Transitions, policy: Policy) -> Pilot:
    seed, discount, p = settings.random_state, settings.discount, sample.next_state.shape[1]
    model = TransitionModel.fit(
        sample.inputs, sample.reward, sample.next_state, sample.terminal, sample.episode, seed
    )
    rng = np.random.default_rng([seed, 33])
    size = int(np.clip(STEPS // rewards_until(discount), FEWEST_RETURNS, MOST_RETURNS))
    rows = np.sort(rng.choice(len(sample), size, replace=size > len(sample)))
    state, action = np.hsplit(sample.inputs[rows], [p])
    first = policy.sample(state, rng)
    ahead = model.returns(state, first, policy, discount, 1, rng)[:, 0]
    fold = np.unique(sample.episode[rows], return_inverse=True)[1] % N_FOLDS
    potential = Potential.from_regression(fit_smooth(state, ahead, fold, seed).regression)
    logged = slice(None, None, max(1, size // GRID_RETURNS))
    returns = model.returns(state[logged], action[logged], policy, discount, 1, rng)[:, 0]
    return Pilot(potential, returns - potential(state[logged]))
