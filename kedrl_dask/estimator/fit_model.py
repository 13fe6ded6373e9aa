"""From the data to a fitted model: all stages, what they found as the model's attributes, diagnostics."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.pipeline import check_policy, run_fit, workspace
from kedrl_dask.estimator.fit.planning import checked_plan
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fitted.diagnostics import diagnose
from kedrl_dask.estimator.fitted.findings import warn_of_numbers, warn_of_separation
from kedrl_dask.estimator.run import open_run
from kedrl_dask.numerics.policies.families import Policy
from kedrl_dask.numerics.solvers.base import Keeper
from kedrl_dask.utils.process import driver_blas_threads
from kedrl_dask.utils.progress import Reporter

if TYPE_CHECKING:
    from kedrl_dask.estimator.kedrl import KEDRL

__all__ = ["fit_model"]


def fit_model(
    model: KEDRL,
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    executor: Executor,
    memory: int | str | None,
    cache: str | Path | None,
    progress: Literal["auto", "bars", "log", "none"],
    run: str | Path | None,
    checkpoint_seconds: float,
) -> None:
    """Fit the model, in a run or without; see :meth:`kedrl_dask.KEDRL.fit`."""
    check_policy(policy, store)
    if not settings.automatic_sizes:  # else it is planned when they are known
        checked_plan(settings, store, executor, memory)
    estimate = partial(_estimate, model, settings, store, policy, executor, memory)
    with driver_blas_threads(max(settings.largest("n_landmarks"), settings.largest("n_basis"))):
        if run is None:
            with workspace(store, cache) as space:
                estimate(space, Reporter(progress))
        else:
            with open_run(Path(run), model, store, policy, cache, checkpoint_seconds) as opened:
                opened.carry_out(model, store, executor, Reporter(progress, opened.note), estimate)


def _estimate(
    model: KEDRL,
    settings: Settings,
    store: TransitionStore,
    policy: Policy,
    executor: Executor,
    memory: int | str | None,
    cache: Cache,
    reporter: Reporter,
    keeper: Keeper | None = None,
) -> None:
    """Run all stages, and give the model what they found."""
    if not settings.automatic_sizes:
        checked_plan(settings, store, executor, memory, cache)
    fit = run_fit(settings, store, policy, executor, memory, cache, reporter, keeper)
    model.solution_ = fit.solution
    model.coefficients_ = fit.solution.coefficients
    model.grid_, model.basis_ = fit.choices.grid, fit.choices.basis.landmarks
    model.frequencies_ = fit.choices.frequencies
    model.operators_, model.ratio_, model.plan_ = fit.operators, fit.ratio, fit.plan
    model.target_ = fit.target
    model.input_kernel_, model.return_kernel_ = fit.operators.kernel, fit.choices.return_kernel
    model.ridge_gamma_, model.ridge_reward_ = fit.ridges
    model.ridge_b_, model.mass_penalty_ = fit.ridge_b, fit.mass_penalty
    model.encoding_ = store.encoding
    with reporter.stage("diagnostics"):
        model.diagnostics_ = diagnose(model, fit, store, policy)
    model.diagnostics_["seconds"] = dict(reporter.seconds)
    warn_of_separation(model)
    warn_of_numbers(model)
