"""One fit on simulated data, compared with the truth: what a cell of the studies computes."""

from __future__ import annotations

import time
from math import isfinite
from pathlib import Path

import numpy as np

from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.benchmark_points import evaluation_points
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies.profiles import Profile, prepare, settings
from kedrl_dask.utils.arrays import Actions, Matrices, Matrix, Points, Record, Vector

POINT_METRICS = {
    "bias": "mean signed error of the embedding over the point's evaluation grid",
    "rmse": "root mean square error over that grid",
    "mae": "mean absolute error over that grid",
    "mmd": "norm of the error in the RKHS of the return kernel",
    "bellman_risk": "squared projected Bellman residual at the point",
    "unshifted_risk": "the same without the reward shift, as in the authors' code",
    "coefficient_mass": "sum of the coefficients at the point; 1 is right",
}
FIT_METRICS = {
    "held_out_risk": "mean projected Bellman risk at target actions in states of an independent dataset",
    "held_out_unshifted_risk": "the same without the reward shift",
    "criterion": "the criterion at the coefficients",
    "certificate": "relative norm of its preconditioned gradient",
    "converged": "1 if the solver reached its tolerance",
    "ratio_correlation": "correlation of the estimated density ratio with the true one at logged successors",
    "ratio_ess": "effective sample size of the estimated density ratio, as a share of the transitions",
    "seconds": "wall time of the fit on one thread",
}

#: Returns of each point in one Monte Carlo reference (tab:sim_shared_params).
MONTE_CARLO_RETURNS = 10_000
#: Episodes of the independent data at whose states the Bellman risk is evaluated.
HELD_OUT_EPISODES = 20
#: Successors at which the ratio is compared with the truth.
RATIO_SAMPLE = 5_000
# A seed that no replicate has.
_HELD_OUT_SEED = 20_260_102


def compare(
    work: Path,
    pair: str,
    profile: Profile,
    replicate: int,
    transitions: int,
    parameters: Record,
    monte_carlo: int = 0,
) -> Record:
    """Simulate, fit in this thread, and compare with the truth at the pair's points.

    The directory ``work`` is for the data, and the caller removes it; ``replicate`` is the seed of data and
    fit. Returns a list over the points for each of ``POINT_METRICS``, under ``fit`` a number for each of
    ``FIT_METRICS``, and ``monte_carlo`` if repeats of it were requested; see :func:`repeated_monte_carlo`.
    """
    policies = simulation.PAIRS[pair]
    store = simulation.write(work / "data", policies, transitions, seed=replicate)
    start = time.perf_counter()
    model = prepare(KEDRL(**parameters), profile, store)
    model.fit(store, policies.target, executor=ThreadExecutor(1), progress="none")
    seconds = time.perf_counter() - start

    state, action = evaluation_points(pair)
    law = truth.return_law(state, action, policies.target, model.discount)
    at = truth.evaluation_grid(law)
    weights, estimate = model.weights(state, action), model.embed(state, action, at=at)
    at_points = {
        **truth.embedding_errors(estimate, law.embed(at, model.return_kernel_)),
        "mmd": law.rkhs_error(weights, model.grid_, model.return_kernel_),
        "bellman_risk": model.bellman_risk(state, action),
        "unshifted_risk": unshifted_risk(model, state, action),
        "coefficient_mass": weights.sum(axis=1),
    }
    result: Record = {name: values.tolist() for name, values in at_points.items()}
    result["fit"] = _facts_of_fit(model, store, pair) | {"seconds": seconds}
    if monte_carlo:
        rng = np.random.default_rng([replicate, 21])
        repeats = repeated_monte_carlo(estimate, law, at, model, monte_carlo, rng)
        result["monte_carlo"] = {name: values.tolist() for name, values in repeats.items()}
    return result


def unshifted_risk(model: KEDRL, state: Points, action: Actions) -> Vector:
    """(u − v)ᵀK_Z(u − v) with u = Bᵀk_L(x) and v = BᵀΦ_L(x); (n,).

    The authors' code reports this as the held-out risk. According to the supplement
    (app:heldout_residual_details) it is not the projected Bellman residual, which is ``model.bellman_risk``.
    """
    chunk, _ = model.operators_(np.hstack([state, action]))
    difference = (chunk.basis - chunk.continuation) @ model.coefficients_
    return np.einsum("ni,ij,nj->n", difference, model.return_kernel_(model.grid_, model.grid_), difference)


def repeated_monte_carlo(
    estimate: Matrix, law: truth.ReturnLaw, at: Matrices, model: KEDRL, repeats: int, rng: np.random.Generator
) -> dict[str, Matrix]:
    """Errors (repeats, n) of a fixed estimate against Monte Carlo references (app:mc-repeat-target).

    Each repeat draws ``MONTE_CARLO_RETURNS`` independent returns of each point: the supplement gives this
    number for the benchmark, but none for the repeats.
    """
    errors = []
    for _ in range(repeats):
        returns = law.sample(MONTE_CARLO_RETURNS, rng)
        reference = truth.monte_carlo_embedding(returns, at, model.return_kernel_)
        errors.append(truth.embedding_errors(estimate, reference.mean))
    return {name: np.stack([error[name] for error in errors]) for name in errors[0]}


def _facts_of_fit(model: KEDRL, store: TransitionStore, pair: str) -> dict[str, float | None]:
    policies, solution = simulation.PAIRS[pair], model.solution_
    states = simulation.simulate(policies, HELD_OUT_EPISODES, seed=_HELD_OUT_SEED)["state"]
    actions = policies.target.sample(states, np.random.default_rng(_HELD_OUT_SEED))
    ratio = model.diagnostics_["ratio"]
    facts = {
        "held_out_risk": float(model.bellman_risk(states, actions).mean()),
        "held_out_unshifted_risk": float(unshifted_risk(model, states, actions).mean()),
        "criterion": solution.value,
        "certificate": solution.certificate,
        "converged": float(solution.result.ok),
        "ratio_correlation": None if ratio is None else _ratio_correlation(model, store, policies),
        "ratio_ess": None if ratio is None else ratio["effective_sample_size"],
    }
    return {name: value if value is None or isfinite(value) else None for name, value in facts.items()}


def _ratio_correlation(model: KEDRL, store: TransitionStore, policies: simulation.PolicyPair) -> float:
    """Correlation of η̂ with π/β at logged successors."""
    sample = store.sample(RATIO_SAMPLE, np.random.default_rng([model.random_state, 12]))
    state, action = sample.next_state, sample.next_action
    log_ratio = policies.target.log_density(state, action) - policies.behavior.log_density(state, action)
    estimate = model.ratio_
    assert estimate is not None  # the caller looked
    return float(np.corrcoef(estimate(np.hstack([state, action])), np.exp(log_ratio))[0, 1])


def parameters_of(pair: str, profile: Profile, seed: int, **changes: object) -> Record:
    """Parameters of :class:`KEDRL` for :func:`compare`: those of the profile, with some changes."""
    return settings(simulation.PAIRS[pair], profile, seed) | changes
