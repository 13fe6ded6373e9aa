"""Diagnostics: plain numbers that show whether a fit can be trusted."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version

import numpy as np

from kedrl_dask._version import __version__
from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.estimator.fit.construction import sampled_blocks
from kedrl_dask.estimator.fit.pipeline import Fit
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.criterion.separation_test import SeparatedParts, separation
from kedrl_dask.numerics.design import return_grid as grids
from kedrl_dask.numerics.design.sizes import EXACT_HELD_OUT
from kedrl_dask.numerics.kernels.spectral import kernel_error
from kedrl_dask.numerics.laws.tilting import EQUAL, tilt
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.simulator import N_RETURNS
from kedrl_dask.utils.arrays import Inputs, Real, Record

#: Inputs (s', a' ~ π) at which the fitted map is evaluated; none is a conditioning point.
N_HELD_OUT = 1_000
#: Inputs at which returns are simulated to compare them with the embedding, and returns of each.
N_SIMULATED, SIMULATED_RETURNS = 20, 500
#: Smallest penalty on departures from the simulation, in units of σ_Z².
LEAST_DIVERGENCE = 1e-4
#: What is known of each column of the data.
STATISTICS: dict[str, Callable[..., Real]] = {"mean": np.mean, "sd": np.std, "min": np.min, "max": np.max}
#: Libraries that results depend on.
LIBRARIES = ("numpy", "scipy", "scikit-learn", "numba", "dask", "distributed", "zarr", "xarray")


def diagnose(model: FittedModel, fit: Fit, store: TransitionStore, policy: Policy) -> Record:
    """Diagnose a fit; the numbers, strings and lists can be written as JSON."""
    choices, solution = fit.choices, fit.solution
    of_grid = choices.grid, choices.sample.reward, model.settings.discount, choices.return_kernel
    inputs = _held_out_inputs(model, fit, policy)
    return {
        "sizes": {
            "transitions": store.n_transitions,
            "episodes": store.n_episodes,
            "terminal": store.n_terminal,
            "state_dim": store.state_dim,
            "action_dim": store.action_dim,
            "reward_dim": store.reward_dim,
            "atoms": len(choices.grid),
            "basis": len(choices.basis.landmarks),
            "landmarks": len(choices.features.landmarks),
            "rank": choices.features.rank,
            "features": len(choices.frequencies),
            "conditioning": len(fit.gamma_mass),
            "draws": fit.continuation.target.n_draws,
        },
        "construction": fit.decision.to_dict(),
        "operators": model.settings.operators,
        "precision": "double" if fit.plan.sizes.exact else model.settings.precision,
        "residency": fit.plan.residency,
        "versions": versions(),
        "data": store.fingerprint,
        "design": store.base.fingerprint,
        "columns": _columns(_logged(fit, model.settings.discount), store.state_dim),
        "centred": fit.pilot is not None,
        "policy": repr(policy),
        "input_kernel": choices.features.kernel.to_dict(),
        "return_kernel": choices.return_kernel.to_dict(),
        "ridge_gamma": fit.ridges.gamma,
        "ridge_reward": fit.ridges.reward,
        "reward_trend": _trend(fit),
        "ridge_b": fit.ridge_b,
        "mass_penalty": fit.mass_penalty,
        "tuning": fit.choices.tuning | fit.tried_ridges,
        "grid": asdict(grids.coverage(*of_grid, random_state=model.settings.random_state)),
        "nystrom_residual": choices.features.residual(choices.sample.inputs[:N_HELD_OUT]),
        "feature_error": kernel_error(choices.return_kernel, choices.grid, choices.frequencies),
        "gamma_mass": _spread(fit.gamma_mass),
        "ratio": _ratio(fit),
        "held_out": (held_out := _held_out(model, inputs)),
        "simulation": _simulation(model, fit, inputs, held_out["bellman_risk"]),
        "relevance": None if fit.pilot is None else fit.pilot.relevance.tolist(),
        "separation": _separation(model, fit, inputs, held_out["bellman_risk"]),
        "solver": {
            "result": solution.result.name.lower(),
            "meaning": solution.result.value,
            "criterion": solution.value,
            "certificate": solution.certificate,
            "iterations": solution.n_iterations,
            "products": solution.n_products,
        },
    }


def versions() -> dict[str, str]:
    """The versions of the package, Python and the libraries, by name."""
    own = {"kedrl_dask": __version__, "python": platform.python_version()}
    return own | {name: version(name) for name in LIBRARIES}


def _logged(fit: Fit, discount: float) -> Transitions:
    """The sample of the design with the rewards that were logged."""
    sample = fit.choices.sample
    if fit.pilot is None:
        return sample
    potential = fit.pilot.potential
    state = sample.inputs[:, : sample.next_state.shape[1]]
    nothing = np.zeros_like(sample.reward)
    shaping = potential.shape(nothing, state, sample.next_state, sample.terminal, discount)
    return replace(sample, reward=sample.reward - shaping)


def _simulation(model: FittedModel, fit: Fit, inputs: Inputs, risk: float) -> Record | None:
    """How far simulated returns are from the embedding at some inputs, and how closely laws are to follow it.

    An error of one step adds up over the horizon: √risk/(1 − γ) is how accurate the embedding is. Simulated
    returns have noise of one over the root of their number. An embedding with more does not improve on them,
    and they keep equal weights; otherwise the penalty λ_KL on departures is twice the amplified risk.
    """
    simulate = model.simulator
    if simulate is None or fit.pilot is None:
        return None
    variance, horizon = model.return_kernel.sigma**2, 1 / (1 - model.settings.discount)
    amplified = risk * horizon**2 / variance
    is_close = amplified <= 1 / N_RETURNS
    divergence = variance * (max(2 * amplified, LEAST_DIVERGENCE) if is_close else EQUAL)
    some = inputs[:: max(1, len(inputs) // N_SIMULATED)]
    state, action = np.hsplit(some, [len(simulate.model.low)])
    fixed = model.weights(some), model.grid, model.return_kernel, divergence, model.shift(state)
    law = tilt(simulate(state, action, SIMULATED_RETURNS), *fixed)
    return {
        "divergence": divergence,
        "follows_embedding": is_close,
        "inputs": len(some),
        "returns": SIMULATED_RETURNS,
        "distance": _spread(law.simulated_residual),
        "effective_sample_size": _spread(law.effective_sample_size),
        "precision": asdict(fit.pilot.precision),
    }


def _columns(sample: Transitions, state_dim: int) -> dict[str, dict[str, list[float]]]:
    """Mean, standard deviation and range of each column of the logged data, on the sample of the design."""
    state, action = np.hsplit(sample.inputs, [state_dim])
    return {
        name: {key: statistic(values, axis=0).tolist() for key, statistic in STATISTICS.items()}
        for name, values in (("state", state), ("action", action), ("reward", sample.reward))
    }


def _spread(values: Real) -> dict[str, float]:
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}


def _trend(fit: Fit) -> Record | None:
    """Share of each reward coordinate's variance that the trend explains, on the sample."""
    sample, trend = fit.choices.sample, fit.choices.trend
    if trend is None:
        return None
    return {"explained": trend.explained(sample.inputs, sample.reward).tolist()}


def _ratio(fit: Fit) -> dict[str, float] | None:
    """Effective sample size of η̂ as a fraction of the logged successors, its range and its ridge."""
    if fit.ratio is None:
        return None
    scalars = fit.sums.scalars
    n, total = scalars("successors").sum(), scalars("ratio").sum()
    return {
        "effective_sample_size": float(total**2 / scalars("ratio_square").sum() / n),
        "mean": float(total / n),
        "min": float(scalars("ratio_min").min()),
        "max": float(scalars("ratio_max").max()),
        "ridge": fit.ratio.ridge,
        "centers": len(fit.ratio.centers),
    }


def _held_out_inputs(model: FittedModel, fit: Fit, policy: Policy) -> Inputs:
    """Successor states with target actions."""
    rng = np.random.default_rng([model.settings.random_state, 7])
    sample = fit.choices.sample
    n_held_out = EXACT_HELD_OUT if fit.plan.sizes.exact else N_HELD_OUT
    rows = np.sort(rng.permutation(len(sample))[:n_held_out])
    state = sample.next_state[rows]
    return np.hstack([state, policy.sample(state, rng)])


def _held_out(model: FittedModel, inputs: Inputs) -> Record:
    """Bellman risk, coefficient mass and negative mass."""
    risk, weights = model.bellman_risk(inputs), model.weights(inputs)
    return {
        "inputs": len(inputs),
        "bellman_risk": float(risk.mean()),
        "coefficient_mass": _spread(weights.sum(axis=1)),
        "negative_mass": _spread(np.maximum(-weights, 0).sum(axis=1)),
    }


def _separation(model: FittedModel, fit: Fit, inputs: Inputs, risk: float) -> Record:
    """How far the separated target is from the paired one, and which construction the data ask for."""
    settings, choices = model.settings, fit.choices
    space = ReturnSpace.build(choices.grid, choices.frequencies, settings.discount, choices.return_kernel)
    ahead = fit.solution.coefficients @ space.shifted_waves
    blocks = sampled_blocks(choices, choices.frequencies, fit.continuation, settings.random_state)
    parts = (SeparatedParts(block.features, block.reward, block.continuation @ ahead) for block in blocks)
    psi, gamma = choices.features(inputs), fit.ridges.gamma
    found = separation(parts, psi, gamma, space.scale, settings.random_state)
    residual = float(np.sqrt(risk))
    recommended = found.recommends(residual)
    return {
        **asdict(found), "residual": residual, "recommends": recommended, "construction": model.construction,
    }  # fmt: skip
