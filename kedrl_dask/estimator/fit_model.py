"""From the data to a fitted model: all stages, diagnostics, and warnings about what they say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.construction import after_the_fit
from kedrl_dask.estimator.fit.pipeline import Fit, Request, check_policy, run_fit, workspace
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fitted.diagnostics import diagnose
from kedrl_dask.estimator.fitted.findings import warn_of_fit
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.estimator.run import open_run
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.numerics.solvers.base import Keeper
from kedrl_dask.utils.process import driver_blas_threads
from kedrl_dask.utils.progress import Reporter


def fit_model(
    given: Settings,
    request: Request,
    cache: str | Path | None,
    progress: Literal["auto", "bars", "log", "none"],
    run: str | Path | None,
    checkpoint_seconds: float,
) -> FittedModel:
    """Fit a model, in a run or without; see :meth:`kedrl_dask.KEDRL.fit`.

    The request has the ``given`` settings in the units of the store.
    """
    settings, store = request.settings, request.store
    check_policy(request.policy, store)
    if not settings.automatic_sizes:  # otherwise the fit is planned when they are known
        request.plan()
    estimate = partial(_estimate, given, request)
    with driver_blas_threads(max(settings.largest("n_landmarks"), settings.largest("n_basis"))):
        if run is None:
            with workspace(store, cache) as space:
                return estimate(space, Reporter(progress))
        with open_run(Path(run), given, store, request.policy, cache, checkpoint_seconds) as opened:
            return opened.carry_out(store, request.executor, Reporter(progress, opened.note), estimate)


def _estimate(
    given: Settings, request: Request, cache: Cache, reporter: Reporter, keeper: Keeper | None = None
) -> FittedModel:
    """Run all stages, and diagnose what they found."""
    if not request.settings.automatic_sizes:
        request.plan(cache)
    fit = run_fit(request, cache, reporter, keeper)
    model = _diagnosed(given, request, fit, reporter)
    found = model.diagnostics["separation"]
    if request.settings.is_undecided and (model.construction, found["recommends"]) == ("separated", "paired"):
        # The whole fit contradicts the test on a sample. The passes are in the cache; the contraction is not.
        fit = run_fit(request, cache, reporter, keeper, after_the_fit(found))
        model = _diagnosed(given, request, fit, reporter)
    warn_of_fit(model)
    return model


def _diagnosed(given: Settings, request: Request, fit: Fit, reporter: Reporter) -> FittedModel:
    """The model of a fit, with its diagnostics."""
    pilot, seeded = fit.pilot, (given.discount, given.random_state)
    model = FittedModel(
        settings=given,
        solution=fit.solution,
        coefficients=fit.solution.coefficients,
        grid=fit.choices.grid,
        basis=fit.choices.basis.landmarks,
        frequencies=fit.choices.frequencies,
        operators=fit.operators,
        target=fit.target,
        ratio=fit.ratio,
        return_kernel=fit.choices.return_kernel,
        ridges=fit.ridges,
        ridge_b=fit.ridge_b,
        mass_penalty=fit.mass_penalty,
        encoding=request.store.encoding,
        potential=None if pilot is None else pilot.potential,
        simulator=None if pilot is None else Simulator(pilot.model, request.policy, *seeded),
        plan=fit.plan,
    )
    with reporter.stage("diagnostics"):
        diagnostics = diagnose(model, fit, request.store, request.policy)
    return replace(model, diagnostics=diagnostics | {"seconds": dict(reporter.seconds)})
