"""The plan of a fit, from its settings, the data, and where it will run."""

from __future__ import annotations

from dataclasses import replace
from shutil import disk_usage

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.default import parse_memory
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.plan.calibration import measure
from kedrl_dask.engine.plan.plan import Plan, make_plan
from kedrl_dask.engine.plan.stage_costs import NOMINAL, Sizes
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.utils.checks import check_count
from kedrl_dask.utils.process import own_memory

#: Draws assumed if they are chosen automatically, which happens after planning.
ASSUMED_DRAWS = 4


def plan_fit(
    settings: Settings,
    store: TransitionStore,
    executor: Executor,
    memory: int | str | None = None,
    n_workers: int | None = None,
    calibrate: bool = True,
) -> Plan:
    """Plan a fit, at most; see :meth:`kedrl_dask.KEDRL.plan`."""
    plans = _plans(settings, store, executor, memory, n_workers, calibrate)
    return max(plans, key=lambda plan: plan.seconds)


def _plans(
    settings: Settings,
    store: TransitionStore,
    executor: Executor,
    memory: int | str | None,
    n_workers: int | None,
    calibrate: bool,
) -> list[Plan]:
    """Plans of the fit in each possible construction."""
    if n_workers is not None:
        check_count("plan: workers", n_workers)
    if calibrate:
        kernel = settings.input_kernel if isinstance(settings.input_kernel, Matern) else Matern()
        machine = measure(executor, store, kernel, settings.dtype)
    else:
        in_process = isinstance(executor, ThreadExecutor)
        machine = replace(NOMINAL, baseline=own_memory()) if in_process else NOMINAL
    budget = executor.memory if memory is None else parse_memory(memory)
    n_threads = max(1, executor.n_threads // executor.n_workers)
    sizes, n_workers = _sizes(settings, store), n_workers or executor.n_workers
    at_most = settings.is_undecided
    return [
        replace(make_plan(sizes, machine, n_workers, n_threads, budget, forms), at_most=at_most)
        for forms in settings.forms
    ]


def checked_plan(
    settings: Settings,
    store: TransitionStore,
    executor: Executor,
    memory: int | str | None,
    cache: Cache | None = None,
) -> Plan:
    """Plan without measurements, as every fit does first; raises PlanError if it is over budget.

    The contents of a cache count as free space: they need not be written again. Before the construction is
    chosen, one within the budget is enough.
    """
    plan = min(_plans(settings, store, executor, memory, None, False), key=lambda plan: plan.memory)
    plan.check(None if cache is None else disk_usage(cache.directory).free + cache.size)
    return plan


def _sizes(settings: Settings, store: TransitionStore) -> Sizes:
    ratio = settings.ratio or ULSIF()
    draws = settings.n_draws
    ranges = settings.ranges(store.base.n_transitions)
    return Sizes(
        n_rows=store.n_rows,
        n_transitions=store.n_transitions,
        state_dim=store.state_dim,
        action_dim=store.action_dim,
        reward_dim=store.reward_dim,
        chunk_rows=store.chunk_rows,
        n_blocks=min(settings.n_blocks, store.n_episodes),
        n_atoms=settings.grid_size,
        n_basis=min(settings.largest("n_basis"), store.n_transitions),
        n_landmarks=min(settings.largest("n_landmarks"), store.n_transitions),
        n_features=settings.largest("n_features"),
        n_conditioning=ranges[-1][1],
        chunk_points=ranges[0][1],
        n_draws=ASSUMED_DRAWS if isinstance(draws, str) else draws,
        n_centers=ratio.n_centers if settings.continuation == "ratio" else 0,
        has_terminal=store.n_terminal > 0,
        itemsize=settings.dtype.itemsize,
        exact=settings.operators == "exact",
        n_folds=settings.n_folds,
    )
