"""The pilot of a fit: returns of the target policy simulated from a sample, and the potential they give.

Observed returns are those of the logged policy, and short episodes show only a part of them. Simulated ones
are of the target policy and of any horizon: the grid and the return kernel are chosen from them, and Ψ is
their mean given the state.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kedrl_dask.engine.data.sampling import KIND, draw_sample
from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache, Facts
from kedrl_dask.engine.storage.schema import POTENTIAL, SIMULATED, TRANSITION_MODEL
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.design.sizes import DESIGN_SAMPLE
from kedrl_dask.numerics.policies import LocationScale, Policy
from kedrl_dask.numerics.simulation.metric_search import fit_smooth
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.numerics.simulation.precision import Precision, precision
from kedrl_dask.numerics.simulation.relevance import relevant_lengths
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.numerics.simulation.smooth_regression import Resampling, sensitivity
from kedrl_dask.numerics.simulation.transition_model import N_FOLDS, TransitionModel, rewards_until
from kedrl_dask.utils.arrays import Indices, Inputs, Matrix, Points

#: Counts up when the rules below change, so that caches of earlier ones are not mistaken for theirs.
RULES = 5
#: Transitions to which the model of single ones is fitted: a sample, of more.
SAMPLE = 40_000
#: Replicates of the model, and inputs at which their returns are compared.
N_REPLICATES, N_COMPARED = 8, 6
#: Simulated steps from logged states with actions of one kind, and the fewest and most returns.
STEPS, FEWEST_RETURNS, MOST_RETURNS = 2_000_000, 1_000, 16_000
#: Returns simulated at a time.
BLOCK = 1_000
#: Fewest episodes and transitions from which returns are simulated.
FEWEST_EPISODES, FEWEST_TRANSITIONS = 10, 500


@dataclass(frozen=True)
class Pilot:
    """What the pilot found.

    Attributes
    ----------
    potential : Potential
        Ψ.
    inputs : (n, p + q) array
        Logged states with logged actions, then with the policy's.
    returns : (n, d) array
        Returns simulated there, less Ψ of their states.
    model : TransitionModel
    precision : Precision
        Standard errors of what is simulated.
    relevance : (p + q, d) array
        Sensitivity of the mean return to each column of the inputs: root mean square of its derivative, in
        standard deviations of the mean return and of the column.
    lengths : (p + q, p + q) array
        Lengths of a kernel of the inputs along the directions in which the mean return varies.
    """

    potential: Potential
    inputs: Inputs
    returns: Points
    model: TransitionModel
    precision: Precision
    relevance: Matrix
    lengths: Matrix


def run_pilot(
    settings: Settings, store: TransitionStore, policy: Policy, cache: Cache, n_threads: int = 1
) -> Pilot | None:
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
        sample = _sample(settings, store, cache)
        with ThreadPoolExecutor(n_threads) as pool:
            found = _simulate(settings, sample, policy, pool)
        numbers, layout = found.model.pack()
        arrays = found.potential.to_arrays() | {"simulated_input": found.inputs, "simulated": found.returns}
        arrays |= {"transition_model": numbers, "relevance": found.relevance, "lengths": found.lengths}
        specs = POTENTIAL + SIMULATED + TRANSITION_MODEL
        attributes = {"transition_model": layout, "precision": asdict(found.precision)}
        write_arrays(path, KIND, specs, arrays, attributes).finish()

    filed = ArrayStore.open(cache.get("pilot", facts, make), KIND)
    potential = Potential.from_arrays({spec.name: filed.read(spec.name) for spec in POTENTIAL})
    model = TransitionModel.unpack(filed.read("transition_model"), filed.attributes["transition_model"])
    found = Precision(**filed.attributes["precision"])
    inputs, returns = filed.read("simulated_input"), filed.read("simulated")
    matters = filed.read("relevance"), filed.read("lengths")
    return Pilot(potential, inputs, returns, model, found, *matters)


def policy_facts(policy: Policy, cache: Cache) -> Facts:
    """What identifies a policy: its numbers or, for code, what the cache has for it."""
    return policy.to_dict() if isinstance(policy, LocationScale) else {"code": cache.code}


def resample_models(
    settings: Settings, store: TransitionStore, cache: Cache, counts: Indices, n_threads: int
) -> list[TransitionModel]:
    """The model of single transitions again, and those of replicates.

    Each of these has the blocks of episodes of the fit so many times as a row of ``counts`` says.
    """
    edges = store.block_edges(settings.n_blocks)
    sample = _sample(settings, store.base, cache)
    block = np.searchsorted(edges, sample.rows, side="right") - 1
    logged = sample.inputs, sample.reward, sample.next_state, sample.terminal, sample.episode
    with ThreadPoolExecutor(n_threads) as pool:
        resampling = Resampling(block, counts)
        return TransitionModel.fit_replicates(*logged, resampling, settings.random_state, pool.map)


def _sample(settings: Settings, store: TransitionStore, cache: Cache) -> Transitions:
    """The transitions to which the model of single ones is fitted, with the rewards that were logged."""
    size = DESIGN_SAMPLE if store.n_transitions <= DESIGN_SAMPLE else SAMPLE
    return draw_sample(store, cache, settings.random_state, size)


def _simulate(settings: Settings, sample: Transitions, policy: Policy, pool: ThreadPoolExecutor) -> Pilot:
    seed, discount, p = settings.random_state, settings.discount, sample.next_state.shape[1]
    logged = sample.inputs, sample.reward, sample.next_state, sample.terminal, sample.episode
    resampling = Resampling.drawn(sample.episode, N_REPLICATES, seed)
    models = TransitionModel.fit_replicates(*logged, resampling, seed, pool.map)
    rng = np.random.default_rng([seed, 33])
    size = int(np.clip(STEPS // rewards_until(discount), FEWEST_RETURNS, MOST_RETURNS))
    rows = np.sort(rng.choice(len(sample), size, replace=size > len(sample)))
    state, taken = np.hsplit(sample.inputs[rows], [p])
    own = policy.sample(state, rng)
    # Blocks have generators of their own: the returns do not depend on the number of threads.
    simulator = Simulator(models[0], policy, discount, seed)
    inputs = np.vstack([np.hstack([state, taken]), np.hstack([state, own])])
    blocks = np.array_split(inputs, max(1, len(inputs) // BLOCK))
    returns = np.vstack(list(pool.map(simulator.block, range(len(blocks)), blocks)))
    fold = np.unique(sample.episode[rows], return_inverse=True)[1] % N_FOLDS
    values = fit_smooth(inputs, returns, np.tile(fold, 2), seed, each=pool.map).regression
    potential = Potential.from_regression(
        fit_smooth(state, returns[size:], fold, seed, each=pool.map).regression
    )
    compared = rng.choice(size, N_COMPARED, replace=size < N_COMPARED)
    found = precision(models, policy, discount, state[compared], own[compared], len(sample), seed)
    matters = sensitivity(values, inputs), relevant_lengths(values.metric)
    return Pilot(potential, inputs, returns - potential(inputs[:, :p]), models[0], found, *matters)
