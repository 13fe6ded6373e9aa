"""The stages of a fit, in order: design, ratio, streaming pass, regression, the problem, its solution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.passes.continuation import Continuation
from kedrl_dask.engine.passes.separated_objective import Objective
from kedrl_dask.engine.passes.streaming_pass import warm_up
from kedrl_dask.engine.plan.plan import Plan
from kedrl_dask.engine.storage.atomic import remove
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.engine.storage.untrusted import checked_path
from kedrl_dask.estimator.fit.construction import Decision, choose_construction, revise
from kedrl_dask.estimator.fit.design import Choices, make_choices
from kedrl_dask.estimator.fit.paired import Pairing
from kedrl_dask.estimator.fit.pilot import Pilot, run_pilot
from kedrl_dask.estimator.fit.planning import checked_plan
from kedrl_dask.estimator.fit.problem import Around, Prepared, choose_mass_penalty, choose_ridge_b
from kedrl_dask.estimator.fit.regression import (
    RegressionSums,
    Ridges,
    Tried,
    choose_ridges,
    exact_operators,
    regress,
)
from kedrl_dask.estimator.fit.separated import separated_problem
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fit.streaming import stream
from kedrl_dask.estimator.policy_check import PolicyWarning, rehearse
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.base import PolicyError, checked_draws
from kedrl_dask.numerics.regression.density_ratio import DensityRatio
from kedrl_dask.numerics.regression.operators import ConditionalOperators
from kedrl_dask.numerics.solvers import Solution, by_name
from kedrl_dask.numerics.solvers.base import Keeper, Record
from kedrl_dask.utils.arrays import Coefficients, Matrix, Vector
from kedrl_dask.utils.checks import shown
from kedrl_dask.utils.exceptions import require_finite, warn
from kedrl_dask.utils.progress import Reporter

#: Remedy for numbers that leave the range of floats.
SCALES = "give states, actions and rewards in units in which they are of moderate size"


@dataclass(frozen=True)
class Request:
    """A fit that is asked for; ``memory`` is what each worker process may use."""

    settings: Settings
    store: TransitionStore
    policy: Policy
    executor: Executor
    memory: int | str | None

    def plan(self, cache: Cache | None = None) -> Plan:
        """Plan the fit; raises PlanError if it is over budget."""
        return checked_plan(self.settings, self.store, self.executor, self.memory, cache)


@dataclass(frozen=True)
class Fit:
    """Everything that a fit produced."""

    choices: Choices
    decision: Decision
    operators: ConditionalOperators
    solution: Solution
    ridges: Ridges
    tried_ridges: Tried
    ridge_b: float
    mass_penalty: float
    sums: RegressionSums
    continuation: Continuation
    gamma_mass: Vector
    plan: Plan
    target: Matrix | None  # of the paired construction
    pilot: Pilot | None

    @property
    def ratio(self) -> DensityRatio | None:
        """η̂, with ``continuation="ratio"``."""
        return self.continuation.ratio


def check_policy(policy: Policy, store: TransitionStore) -> None:
    """Draw actions at logged states, so that an unusable policy fails before the passes."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise PolicyError(f"fit: policy must be one of kedrl_dask.policies, got {shown(policy)}")
    state = store.transitions(0, min(64, store.n_rows)).inputs[:8, : store.state_dim]
    q = policy.action_dim
    if q not in (None, store.action_dim):
        raise PolicyError(f"fit: the policy returns {q} action columns, the store has {store.action_dim}")
    rng = np.random.default_rng(0)
    checked_draws(policy, state, 1, rng, store.action_dim, "the first rows of the store")
    for finding in rehearse(policy, store).findings:
        warn(finding, PolicyWarning)


@contextmanager
def workspace(store: TransitionStore, cache: str | Path | None) -> Iterator[Cache]:
    """Directory for the files of the passes: ``cache``, which is kept, or a temporary one beside the store.

    Workers on other machines can reach the store, and therefore the directory beside it.
    """
    if cache is not None:
        yield Cache(checked_path(cache, "cache"))
        return
    try:
        path = Path(mkdtemp(prefix=".kedrl-", dir=store.path.resolve().parent))
    except OSError as error:
        raise OSError(
            f"{store.path.resolve().parent}: cannot be written ({error}); "
            "give fit(..., cache=directory) a directory that all workers can reach"
        ) from error
    try:
        yield Cache(path)
    finally:
        remove(path)


def design(
    settings: Settings, store: TransitionStore, policy: Policy, cache: Cache, executor: Executor
) -> tuple[TransitionStore, Choices, Pilot | None]:
    """The store with shaped rewards if the return is centred, the choices made from it, and the pilot."""
    pilot = run_pilot(settings, store, policy, cache, executor.n_threads)
    if pilot is None:
        return store, make_choices(settings, store, cache), None
    store = store.shaped(pilot.potential, settings.discount)
    return store, make_choices(settings, store, cache, pilot), pilot


def run_fit(
    request: Request,
    cache: Cache,
    reporter: Reporter,
    keeper: Keeper | None = None,
    decision: Decision | None = None,
) -> Fit:
    """Run all stages; see the module. The plan is for the sizes and the construction that were chosen.

    With a keeper the solver resumes from the state that it kept. A ``decision`` replaces the one about the
    construction that would be made here.
    """
    settings, store, executor = request.settings, request.store, request.executor
    executor.warm_up(warm_up)
    with reporter.stage("design"):
        store, choices, pilot = design(settings, store, request.policy, cache, executor)
        sources = settings, store, request.policy, choices, cache
        decision = choose_construction(*sources) if decision is None else revise(decision, *sources)
    chosen = choices.grid, choices.frequencies, choices.features.whitening, choices.basis.whitening
    require_finite("the design", SCALES, *chosen)
    settings, choices = decision.settle(choices.settle(settings), choices)
    plan = replace(request, settings=settings).plan(cache)
    reporter.note("plan", plan=plan.to_dict())
    streamed = stream(settings, store, request.policy, choices, executor, cache, reporter)
    with reporter.stage("regression"):
        sums, continuation = streamed.collect(choices.features, settings.n_folds)
        require_finite("the sums over transitions", SCALES, sums.gram, sums.reward, sums.continuation)
        ridges, tried = choose_ridges(settings.ridge_gamma, sums, choices.trend is not None)
        operators = regress(choices, sums, ridges)
        regressed = operators.continuation, operators.reward, operators.mass
        require_finite("the regression", "raise ridge_gamma", *regressed)
        if settings.operators == "exact":
            fixed = choices.grid, choices.return_kernel, settings.discount, ridges.gamma
            operators = exact_operators(operators, store, *fixed)
    prior = None if pilot is None else choices.prior(pilot.inputs, pilot.returns)
    kernels = choices.features.kernel, choices.return_kernel
    ridge_b = choose_ridge_b(settings.ridge_b, *kernels, sums.n_transitions, prior is not None)
    mass_penalty = choose_mass_penalty(settings.mass_penalty, choices.return_kernel)
    start = Prepared(
        settings, store, choices, operators, ridges, ridge_b, mass_penalty, plan, executor, cache
    )
    target = None
    if settings.construction == "separated":
        problem, gamma_mass = separated_problem(start, reporter)
        solution = _solve(settings, problem, prior, reporter, keeper)
    else:
        pairing = Pairing(start, sums, continuation, streamed.facts)
        paired_problem, gamma_mass = pairing.problem(reporter)
        solution = _solve(settings, paired_problem, prior, reporter, keeper)
        target = paired_problem.target(solution.coefficients)
    # From the whitened basis to B.
    solution = replace(solution, coefficients=choices.basis.whitening @ solution.coefficients)
    require_finite("the fitted coefficients", f"raise ridge_b, or {SCALES}", solution.coefficients)
    return Fit(
        choices, decision, operators, solution, ridges, tried, ridge_b, mass_penalty, sums, continuation,
        gamma_mass, plan, target, pilot,
    )  # fmt: skip


def _solve(
    settings: Settings,
    problem: Objective,
    prior: Coefficients | None,
    reporter: Reporter,
    keeper: Keeper | None,
) -> Solution:
    """Minimise, shrunk towards zero or towards the coefficients of simulated returns."""
    with reporter.stage("solver") as advance:

        def report(record: Record) -> None:
            advance(1, f"criterion {record.value:.4g}, gradient {record.certificate:.1e}")

        around = problem if prior is None else Around(problem, prior)
        solver = by_name(settings.solver)
        if keeper is None:
            found = solver.solve(around, report=report)
        else:
            found = solver.solve(around, report=report, keeper=keeper)
        return found if prior is None else replace(found, coefficients=prior + found.coefficients)
