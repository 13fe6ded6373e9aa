"""Policies side by side: recovered laws, their summaries and differences, and what speaks against them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import clone

from kedrl_dask.comparison.comparison import Comparison
from kedrl_dask.comparison.contrasts import contrasts, intervals
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.execute.default import checked_executor
from kedrl_dask.engine.execute.executor import Executor
from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.estimator.bootstrap import Bootstrap, Draws
from kedrl_dask.estimator.fit.pipeline import check_policy, workspace
from kedrl_dask.estimator.fitted import results
from kedrl_dask.estimator.fitted.answers import N_DRAWS, fitted_embedding, sections_at
from kedrl_dask.estimator.fitted.findings import enforce, fit_evidence, law_evidence, objections
from kedrl_dask.estimator.fitted.inputs import as_stored, checked_columns, joined_inputs
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.estimator.fitted.persistence import parameters
from kedrl_dask.estimator.fitted.rules import CODES, EDGE
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.laws.functionals import Embedding
from kedrl_dask.numerics.laws.recovery import Recovered, RecoverySettings, recover_law
from kedrl_dask.numerics.laws.summaries import LEVELS, TAIL, Summaries, thresholds
from kedrl_dask.numerics.laws.tilting import Tilted
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.overlap import action_overlap
from kedrl_dask.utils.arrays import Atoms, Points, Real, Record, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, has_control_characters, shown
from kedrl_dask.utils.progress import Reporter

#: State and action at which laws are asked for, as given and as checked; see :func:`compare`.
At = tuple[npt.ArrayLike, npt.ArrayLike | Mapping[str, npt.ArrayLike] | None]
Asked = tuple[npt.ArrayLike, npt.ArrayLike | Policy]

#: Transitions on which actions are compared.
OVERLAP_SAMPLE = 2_000
#: Numbers of all replicates that are in memory at once, and laws that a task recovers.
DRAWN_ELEMENTS, TASK_LAWS = 16_000_000, 500


def compare(
    store: TransitionStore | str | Path,
    policies: Mapping[str, Policy],
    at: At,
    estimator: KEDRL,
    *,
    average: bool = False,
    n_replicates: int = 100,
    interval: float = 0.9,
    levels: Sequence[float] = LEVELS,
    tail: float = TAIL,
    recovery: Record | None = None,
    accept: Sequence[str] = (),
    executor: Executor | None = None,
    cache: str | Path | None = None,
    memory: int | str | None = None,
    progress: Literal["auto", "bars", "log", "none"] = "auto",
) -> Comparison:
    """Fit, recover and summarise several policies on the same data.

    Sums that do not depend on the policy are computed once. Differences are taken replicate by replicate,
    on the same draws of episodes.

    Parameters
    ----------
    store : TransitionStore or path
    policies : dict
        The policies by name.
    at : (state, action)
        Inputs: (n, p) and (n, q) arrays. A dict of actions has each policy's own; None averages over each
        policy's own actions at the state, for laws of the state's return.
    estimator : KEDRL
        The settings; it is not fitted itself.
    average : bool
        Whether the inputs are a sample to average over, such as one of initial states: each policy then has
        one law.
    n_replicates : int
        Bootstrap replicates for intervals; 0 for none.
    interval : float
        Probability with which intervals are to cover, each by itself: see
        :meth:`kedrl_dask.estimator.bootstrap.Draws.interval`. They do not see the choice of settings.
    levels : sequence of float
        Levels of the quantiles.
    tail : float
        Share of the lower tail mean (CVaR).
    recovery : dict, optional
        Settings of :class:`kedrl_dask.numerics.laws.recovery.RecoverySettings`, the same for all policies.
    accept : sequence of str
        Codes of findings, :data:`kedrl_dask.estimator.fitted.findings.CODES`, for which results are not
        refused. They are recorded with the results.
    executor, cache, memory, progress
        As for :meth:`KEDRL.fit`.

    Raises
    ------
    Refused
        If results would mislead, before the bootstrap starts.

    Examples
    --------
    >>> import numpy as np
    >>> from kedrl_dask import KEDRL, Matern, TransitionStore, compare, policies
    >>> state, action = np.random.default_rng(0).normal(size=(2, 400, 1))
    >>> episode, step = np.divmod(np.arange(400), 20)
    >>> store = TransitionStore.from_arrays(
    ...     "log.zarr", state=state, action=action, reward=state + action, episode=episode, step=step
    ... )
    >>> small = {"n_atoms": 30, "n_basis": 30, "n_landmarks": 40, "reward_trend": "none"}
    >>> estimator = KEDRL(0.5, input_kernel=Matern(length_scale=3.0), **small)
    >>> targets = {"low": policies.Gaussian([[0.0]], -0.5, 0.5), "high": policies.Gaussian([[0.0]], 0.5, 0.5)}
    >>> comparison = compare(store, targets, ([[0.0]], None), estimator, n_replicates=0, progress="none")
    >>> comparison.differences.query("summary == 'mean'")["value"].round(1).tolist()  # exactly: 2
    [1.9]
    """
    store = store if isinstance(store, TransitionStore) else TransitionStore.open(store)
    _check(estimator, n_replicates, {"interval": interval, "tail": tail, "levels": levels}, accept)
    asked, recovery = _inputs(store, policies, at), recovery or {}
    RecoverySettings(**{name: value for name, value in recovery.items() if name != "n_returns"})
    reporter, executor = Reporter(progress), checked_executor(executor)
    with workspace(store, cache) as space:
        shared: Record = {"executor": executor, "cache": space.directory, "progress": progress}
        models = {
            name: clone(estimator).fit(store, policy, memory=memory, **shared)
            for name, policy in policies.items()
        }
        with reporter.stage("recovery"):
            laws = _laws(models, asked, average, recovery)
            edges = {name: _edge_mass(law) for name, law in laws.items()}
            found = []
            for name, law in laws.items():
                evidence = {"mass": law.coefficients.sum(axis=1), "edge_mass": edges[name].max(axis=(0, 2))}
                found += objections(fit_evidence(models[name].fitted_) | evidence | law_evidence(law), name)
        enforce(found, accept)
        seed = estimator.random_state
        replicates = {
            name: models[name].bootstrap(store, policy, n_replicates, random_state=seed, **shared)
            for name, policy in (policies.items() if n_replicates else ())
        }
    summaries = Summaries(tuple(levels), tail, thresholds(*laws.values()))
    with reporter.stage("summaries and differences"):
        drawn = _Drawn(laws, asked, average, replicates, summaries, recovery, executor)
        contrasted = _contrasted(laws, drawn, interval)
        for name, missed in drawn.missed.items():
            found += objections({"replicates": (missed, n_replicates)}, name)
        parts = [results.law_dataset(laws, levels, tail), contrasted, _distances(laws)]
        parts += [_asked(asked, average), _edges(edges), _overlaps(store, policies, models)]
        dataset = xr.merge(parts, join="exact", compat="equals", combine_attrs="drop_conflicts")
    dataset.attrs |= {
        **results.provenance({name: model.fitted_ for name, model in models.items()}),
        **results.verdict(found, accept),
        "n_replicates": n_replicates,
        "interval": interval,
        "seconds": json.dumps(reporter.seconds),
    }
    return Comparison(dataset, tuple(found), tuple(accept), models, laws)


def _inputs(store: TransitionStore, policies: Mapping[str, Policy], at: At) -> dict[str, Asked]:
    """State and action, or state and policy, at which each policy is looked at."""
    named = isinstance(policies, Mapping) and len(policies) > 0
    if not named or not all(isinstance(name, str) and not has_control_characters(name) for name in policies):
        raise ValueError(f"compare: policies must be a dict of at least one by name, got {shown(policies)}")
    for policy in policies.values():
        check_policy(policy, store)
    if not (isinstance(at, tuple) and len(at) == 2):
        raise ValueError(
            f"compare: at must be (state, action), or (state, None) for laws of states, got {shown(at)}"
        )
    state, action = as_stored(store.encoding, "state", at[0]), at[1]
    if action is None:
        checked_columns("state", state, store.state_dim)
        return {name: (state, policy) for name, policy in policies.items()}
    actions = dict(action) if isinstance(action, Mapping) else dict.fromkeys(policies, action)
    if set(actions) != set(policies):
        raise ValueError(f"compare: actions are of {sorted(actions)}, the policies are {sorted(policies)}")
    actions = {name: as_stored(store.encoding, "action", actions[name]) for name in policies}
    for given in actions.values():
        joined_inputs(state, given, store.state_dim, store.action_dim)
    return {name: (state, given) for name, given in actions.items()}


def _check(
    estimator: KEDRL, n_replicates: int, shares: Mapping[str, float | Sequence[float]], accept: Sequence[str]
) -> None:
    """Refuse, before the fits, what would fail after them."""
    if not isinstance(estimator, KEDRL):
        raise ValueError(f"compare: estimator must be a KEDRL, got {type(estimator).__name__}")
    is_count = isinstance(n_replicates, int) and not isinstance(n_replicates, bool)
    if not is_count or n_replicates < 0 or n_replicates == 1:
        raise ValueError(f"compare: n_replicates must be 0 or an integer ≥ 2, got {shown(n_replicates)}")
    for name, share in shares.items():
        values = as_numbers(f"compare: {name}", share, finite=False)
        if values.ndim != (name == "levels") or values.size == 0 or not ((values > 0) & (values < 1)).all():
            raise ValueError(f"compare: {name} must lie strictly between 0 and 1, got {shown(share)}")
    enforce((), accept)
    parameters(estimator)  # they are written with the results
    given = estimator.get_params(deep=False)
    if n_replicates and given["operators"] != "features":
        raise ValueError(
            f"compare: the bootstrap needs operators='features', the estimator has {given['operators']!r}; "
            "give n_replicates=0 for no intervals"
        )


def _laws(
    models: Mapping[str, KEDRL], asked: Mapping[str, Asked], average: bool, recovery: Record
) -> dict[str, Recovered]:
    """Laws of each policy, on as many atoms as those of the others: fits may simulate different numbers."""
    laws = {name: _law(model.fitted_, *asked[name], average, recovery) for name, model in models.items()}
    sizes = {name: law.weights.shape[1] for name, law in laws.items()}
    fewest = min(sizes.values())
    for name, law in laws.items():
        if sizes[name] > fewest and isinstance(law, Tilted):
            laws[name] = _law(models[name].fitted_, *asked[name], average, recovery | {"n_returns": fewest})
    return laws


def _law(
    model: FittedModel,
    state: npt.ArrayLike,
    action: npt.ArrayLike | Policy,
    average: bool,
    recovery: Mapping[str, Any],
) -> Recovered:
    """Laws at the inputs, or their mixture; the caller judges them."""
    embedding = fitted_embedding(model, state, action, accept=tuple(CODES))
    return (embedding.average() if average else embedding).recover(**recovery)


@dataclass(frozen=True)
class _Drawn:
    """Summaries in all replicates, of some inputs at a time; ``missed`` counts recoveries that failed."""

    laws: Mapping[str, Recovered]
    asked: Mapping[str, Asked]
    average: bool
    replicates: Mapping[str, Bootstrap]
    summaries: Summaries
    recovery: Record
    executor: Executor
    missed: Counter[str] = field(default_factory=Counter)

    def __call__(self, rows: slice, estimates: Mapping[str, Real]) -> dict[str, Draws]:
        """The draws of each policy at some of the inputs."""
        return {
            name: Draws(estimates[name], self._values(name, rows), replicates.counts)
            for name, replicates in self.replicates.items()
        }

    def _values(self, name: str, rows: slice) -> Real:
        find = self._simulated if isinstance(self.laws[name], Tilted) else self._on_the_grid
        values, missed = zip(*find(name, rows), strict=True)
        self.missed[name] += sum(missed)
        shape = len(self.replicates[name]), -1, *values[0].shape[1:]
        return np.concatenate(values).reshape(shape)

    def _simulated(self, name: str, rows: slice) -> list[tuple[Real, int]]:
        """Laws on returns that each replicate simulates."""
        state, action = self.asked[name]
        if not self.average:
            state = np.asarray(state)[rows]
            action = action if isinstance(action, Policy) else np.asarray(action)[rows]
        shared = self.replicates[name], (state, action), self.average, self.recovery, self.summaries
        numbers = range(len(self.replicates[name]))
        return self.executor.map(_resimulated, numbers, self.executor.share(shared))

    def _on_the_grid(self, name: str, rows: slice) -> list[tuple[Real, int]]:
        """Laws on the atoms of the grid, which all replicates have in common."""
        replicates = self.replicates[name]
        sections = sections_at(replicates.model.fitted_, *self.asked[name])
        if self.average:
            sections = sections.mean(axis=0, keepdims=True)
        omega = sections[rows] @ replicates.coefficients
        n_replicates, n, m = omega.shape
        flat, settings = self.executor.share(omega.reshape(-1, m)), RecoverySettings(**self.recovery)
        fixed = replicates.model.grid_, replicates.model.return_kernel_, settings, self.summaries
        shift = self.laws[name].shift
        shifts = None if shift is None else np.tile(shift[rows], (n_replicates, 1))
        tasks = list(even_ranges(n_replicates * n, TASK_LAWS))
        return self.executor.map(_summarised, tasks, flat, *fixed, shifts)


def _resimulated(number: int, shared: tuple[Bootstrap, Asked, bool, Record, Summaries]) -> tuple[Real, int]:
    """Summaries of the laws of a replicate, and how many recoveries did not converge."""
    replicates, asked, average, recovery, summaries = shared
    law = _law(replicates.fitted(number), *asked, average, recovery)
    return summaries.pack(law), int((~law.converged).sum())


def _summarised(
    rows: tuple[int, int],
    omega: Weights,
    grid: Atoms,
    kernel: Matern,
    settings: RecoverySettings,
    summaries: Summaries,
    shift: Points | None,
) -> tuple[Real, int]:
    """Summaries of the laws of some coefficients, and how many recoveries did not converge."""
    some = slice(*rows)
    law = recover_law(omega[some], grid, kernel, settings, None if shift is None else shift[some])
    return summaries.pack(law), int((~law.converged).sum())


def _contrasted(laws: Mapping[str, Recovered], drawn: _Drawn, interval: float) -> xr.Dataset:
    """Intervals and differences, for as many inputs at a time as their replicates fit in memory."""
    (n, _), summaries = next(iter(laws.values())).weights.shape, drawn.summaries
    n_replicates = max((len(part.counts) for part in drawn.replicates.values()), default=1)
    of_one = n_replicates * len(summaries.thresholds) * summaries.width * (len(laws) * (len(laws) + 1) // 2)
    parts = []
    for first, last in even_ranges(n, max(1, DRAWN_ELEMENTS // of_one)):
        rows = slice(first, last)
        estimates = {name: summaries.pack(law.rows(rows)) for name, law in laws.items()}
        draws = drawn(rows, estimates)
        alone = intervals(summaries, list(draws.values()), interval)
        paired = contrasts(summaries, estimates, draws, interval)
        parts.append(xr.merge([alone, paired], join="exact", compat="equals"))
    return parts[0] if len(parts) == 1 else xr.concat(parts, "input", coords="minimal", compat="override")


def _distances(laws: Mapping[str, Recovered]) -> xr.Dataset:
    """Distance of every pair of policies: of their joint laws, in one number.

    It is that of the fitted embeddings, or of laws on simulated returns, whose embeddings have return kernels
    of their own, in the kernel of the first.
    """
    kernel = next(iter(laws.values())).kernel
    embeddings = {
        name: [Embedding(one.weights, one.atoms, kernel) for one in law.alone]
        if isinstance(law, Tilted)
        else [Embedding(law.coefficients, law.grid, law.kernel, shift=law.shift)]
        for name, law in laws.items()
    }
    pairs = [
        np.concatenate(
            [later.mmd(sooner) for later, sooner in zip(embeddings[b], embeddings[a], strict=True)]
        )
        for a, b in combinations(laws, 2)
    ]
    return xr.Dataset({"mmd": (("pair", "input"), np.stack(pairs))} if pairs else {})


def _grid_shift(law: Recovered) -> Points | None:
    return law.grid_shift if isinstance(law, Tilted) else law.shift


def _edge_mass(law: Recovered) -> Real:
    """Mass beyond the inner part of the grid's range, at its low and at its high end; (2, n, d)."""
    low, high = law.grid.min(axis=0), law.grid.max(axis=0)
    margin, shift = EDGE * (high - low), _grid_shift(law)
    shifts = np.zeros((len(law.weights), law.dim)) if shift is None else shift
    mass = [
        [(one.cdf(a, c)[0], 1 - one.cdf(b, c)[0]) for c, (a, b) in enumerate(zip(*ends, strict=True))]
        for one, move in zip(law.alone, shifts, strict=True)
        for ends in [(low + margin + move, high - margin + move)]
    ]
    # Weights sum to one up to rounding.
    return np.maximum(np.transpose(mass, (2, 0, 1)), 0.0)


def _asked(asked: Mapping[str, Asked], average: bool) -> xr.Dataset:
    """The inputs, or those that were averaged over; of laws of states there is no action."""
    states, actions = zip(*asked.values(), strict=True)
    rows = "averaged" if average else "input"
    found = xr.Dataset({"input_state": ((rows, "state"), np.asarray(states[0], dtype=np.float64))})
    if not isinstance(actions[0], Policy):
        found["input_action"] = (("policy", rows, "action"), np.array(actions, dtype=np.float64))
    return found


def _edges(edges: Mapping[str, Real]) -> xr.Dataset:
    low, high = np.stack(list(edges.values()), axis=1)
    dims = ("policy", "input", "coordinate")
    return xr.Dataset({"edge_low": (dims, low), "edge_high": (dims, high)})


def _overlaps(
    store: TransitionStore, policies: Mapping[str, Policy], models: Mapping[str, KEDRL]
) -> xr.Dataset:
    """Target actions beside logged ones at a sample of successor states."""
    seed = next(iter(models.values())).random_state
    sample = store.sample(OVERLAP_SAMPLE, np.random.default_rng([seed, 16]))
    sample = sample.select(~sample.terminal)
    found: dict[str, list[Vector]] = {}
    for name, policy in policies.items():
        actions, weights = policy.draws(sample.next_state, N_DRAWS, np.random.default_rng([seed, 17]))
        overlap = action_overlap(
            sample.inputs, sample.episode, sample.next_state, sample.next_action, actions, weights,
            models[name].input_kernel_,
        )  # fmt: skip
        ratio = models[name].diagnostics_["ratio"]
        ess = np.nan if ratio is None else ratio["effective_sample_size"]
        for key, value in (vars(overlap) | {"ess": ess}).items():
            found.setdefault(key, []).append(np.asarray(value))
    dims = "policy", "action"
    return xr.Dataset(
        {key: (dims[: values[0].ndim + 1], np.stack(values)) for key, values in found.items()},
        coords={"action": np.arange(store.action_dim)},
    )
