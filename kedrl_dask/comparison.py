"""Policies side by side: recovered laws, their summaries and differences, and what speaks against them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.base import clone

from kedrl_dask import results
from kedrl_dask.answers import N_DRAWS, coefficients_at
from kedrl_dask.bootstrap import Bootstrap, Draws
from kedrl_dask.checks import as_numbers, has_control_characters, shown
from kedrl_dask.contrasts import INTERVAL_PARTS, Summaries, contrasts, intervals, thresholds
from kedrl_dask.evaluation import checked_columns, joined_inputs
from kedrl_dask.execute import Executor
from kedrl_dask.fitting import check_policy, workspace
from kedrl_dask.gate import Finding, enforce, law_findings, mass_findings, model_findings
from kedrl_dask.model import KEDRL
from kedrl_dask.overlap import action_overlap
from kedrl_dask.persist import parameters
from kedrl_dask.policies import Policy
from kedrl_dask.recovery import Recovered, RecoverySettings, recover_law
from kedrl_dask.transitions import TransitionStore

__all__ = ["Comparison", "compare"]

Array = npt.NDArray[Any]

#: Outer share of the grid's range on either side, and the mass there above which the grid may cut laws off.
EDGE, LARGE_EDGE_MASS = 0.05, 0.1
#: Transitions on which actions are compared.
OVERLAP_SAMPLE = 2_000


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Policies side by side; made by :func:`compare`.

    Attributes
    ----------
    dataset : xarray.Dataset
        Everything below with named dimensions, and attributes: versions, seed, fingerprint, settings,
        findings and what was accepted.
    findings : tuple of Finding
        What speaks against the results, by policy.
    accepted : tuple of str
        Codes of findings for which results were not to be refused.
    models, laws : dict
        The fits and the recovered laws of each policy.
    """

    dataset: xr.Dataset
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    models: dict[str, KEDRL]
    laws: dict[str, Recovered]

    @property
    def table(self) -> pd.DataFrame:
        """Summaries, one row for each policy, input, coordinate, summary and level."""
        return self._tidy("", ["policy"])

    @property
    def differences(self) -> pd.DataFrame:
        """Summaries of ``minuend`` less those of ``subtrahend``, for each pair of policies."""
        return self._tidy("_difference", ["minuend", "subtrahend"])

    @property
    def dominance(self) -> pd.DataFrame:
        """First-order dominance of the recovered marginal laws.

        ``gain`` and ``loss`` are how far at most the distribution function of ``minuend`` is below and above
        that of ``subtrahend``; ``dominant`` is the policy whose function is nowhere above, by more than 0.01,
        and somewhere below, or "neither". ``share`` is the share of bootstrap replicates that say so: no
        test of dominance. It is dominance under the recovery's specification, of one coordinate by itself.
        """
        frame = self._frame("gain", "loss", "dominant", "share")
        columns = ["minuend", "subtrahend", "input", "coordinate", "gain", "loss", "dominant", "share"]
        return frame[[name for name in columns if name in frame]]

    @property
    def overlap(self) -> pd.DataFrame:
        """Target actions beside logged ones, by policy and action; see :class:`kedrl_dask.overlap.Overlap`.

        ``ess`` is the effective sample size of the density ratio, NaN where there is none.
        """
        actions = ("logged_mean", "logged_deviation", "target_mean", "shift", "outside")
        return self._frame(*actions, "distance", "logged_distance", "ess")

    @property
    def support(self) -> pd.DataFrame:
        """Recovered mass in the lowest and the highest 5 % of the grid's range, and beyond it."""
        return self._frame("edge_low", "edge_high")

    def to_zarr(self, path: str | Path) -> None:
        """Write :attr:`dataset` to a new path; ``xarray.open_zarr(path, consolidated=False)`` reads it."""
        results.write_zarr(self.dataset, path)

    def __repr__(self) -> str:
        """The table, and every finding below it."""
        lines = [self.table.to_string(index=False), *(str(finding) for finding in self.findings)]
        return "\n".join([*lines, *([f"accepted: {', '.join(self.accepted)}"] if self.accepted else [])])

    def _frame(self, *names: str) -> pd.DataFrame:
        present = [name for name in names if name in self.dataset]
        return self.dataset[present].drop_attrs().to_dataframe().reset_index()

    def _tidy(self, suffix: str, labels: list[str]) -> pd.DataFrame:
        parts = {f"{suffix}{part}": part.removeprefix("_") or "value" for part in INTERVAL_PARTS}
        frames = []
        for name in results.SUMMARIES:
            columns = {name + part: column for part, column in parts.items() if name + part in self.dataset}
            frame = self._frame(*columns).rename(columns=columns).assign(summary=name)
            if "level" not in frame:
                frame["level"] = self.dataset.attrs["tail"] if name == "cvar" else np.nan
            frames.append(frame[[*labels, "input", "coordinate", "summary", "level", *columns.values()]])
        return pd.concat(frames, ignore_index=True)


def compare(
    store: TransitionStore | str | Path,
    policies: Mapping[str, Policy],
    at: tuple[npt.ArrayLike, npt.ArrayLike | Mapping[str, npt.ArrayLike] | None],
    estimator: KEDRL,
    *,
    n_replicates: int = 100,
    interval: float = 0.9,
    levels: Sequence[float] = results.LEVELS,
    tail: float = results.TAIL,
    recovery: Mapping[str, Any] | None = None,
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
    n_replicates : int
        Bootstrap replicates for intervals, which need ``construction="separated"``; 0 for none.
    interval : float
        Probability with which intervals are to cover, each by itself: see
        :meth:`kedrl_dask.bootstrap.Draws.interval`. They do not see the choice of settings.
    levels : sequence of float
        Levels of the quantiles.
    tail : float
        Share of the lower tail mean (CVaR).
    recovery : dict, optional
        Settings of :class:`kedrl_dask.recovery.RecoverySettings`, the same for all policies.
    accept : sequence of str
        Codes of findings, :data:`kedrl_dask.gate.CODES`, for which results are not to be refused. They are
        recorded.
    executor, cache, memory, progress
        As for :meth:`KEDRL.fit`.

    Raises
    ------
    Refused
        Where results would mislead, before the bootstrap.
    """
    store = store if isinstance(store, TransitionStore) else TransitionStore.open(store)
    _check(estimator, n_replicates, {"interval": interval, "tail": tail, "levels": levels}, accept)
    asked = _inputs(store, policies, at)
    settings = RecoverySettings(**(recovery or {}))
    with workspace(store, cache) as space:
        shared: dict[str, Any] = {"executor": executor, "cache": space.directory, "progress": progress}
        models = {
            name: clone(estimator).fit(store, policy, memory=memory, **shared)
            for name, policy in policies.items()
        }
        laws = {name: _law(model, asked[name], settings) for name, model in models.items()}
        edges = {name: _edge_mass(law) for name, law in laws.items()}
        found = [
            finding
            for name in policies
            for finding in (
                *model_findings(models[name], name),
                *mass_findings(laws[name].coefficients, name),
                *law_findings(laws[name], name),
                *_edge_findings(edges[name], name),
            )
        ]
        enforce(found, accept)
        summaries = Summaries(levels, tail, thresholds(next(iter(laws.values()))))
        draws = {}
        for name, policy in policies.items() if n_replicates else ():
            replicates = models[name].bootstrap(
                store, policy, n_replicates, random_state=estimator.random_state, **shared
            )
            draws[name], missed = _apply(replicates, asked[name], settings, summaries)
            found += _replicate_findings(missed, n_replicates, name)
    estimates = {name: summaries(law) for name, law in laws.items()}
    dataset = xr.merge(
        [
            results.law_dataset(laws, levels, tail),
            intervals(summaries, list(draws.values()), interval),
            contrasts(summaries, estimates, draws, interval),
            _asked(asked),
            _edges(edges),
            _overlaps(store, policies, models),
        ],
        join="exact",
        compat="equals",
        combine_attrs="drop_conflicts",
    )
    dataset.attrs |= {
        **results.provenance(next(iter(models.values()))),
        **results.verdict(found, accept),
        "policies": json.dumps({name: repr(policy) for name, policy in policies.items()}),
        "n_replicates": n_replicates,
        "interval": interval,
    }
    return Comparison(dataset, tuple(found), tuple(accept), models, laws)


def _inputs(store: TransitionStore, policies: Mapping[str, Policy], at: Any) -> dict[str, tuple[Any, Any]]:
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
    state, action = at
    if action is None:
        checked_columns("state", state, store.state_dim)
        return {name: (state, policy) for name, policy in policies.items()}
    actions: dict[str, Any] = dict(action if isinstance(action, Mapping) else dict.fromkeys(policies, action))
    if set(actions) != set(policies):
        raise ValueError(f"compare: actions are of {sorted(actions)}, the policies are {sorted(policies)}")
    for given in actions.values():
        joined_inputs(state, given, store.state_dim, store.action_dim)
    return {name: (state, actions[name]) for name in policies}


def _check(estimator: KEDRL, n_replicates: int, shares: Mapping[str, Any], accept: Sequence[str]) -> None:
    """Refuse before the fits what would fail after them."""
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
    if n_replicates and (given["construction"] != "separated" or given["operators"] != "features"):
        raise ValueError(
            "compare: the bootstrap needs construction='separated' and operators='features', the estimator "
            f"has {given['construction']!r} and {given['operators']!r}; give n_replicates=0 for no intervals"
        )


def _law(model: KEDRL, asked: tuple[Any, Any], settings: RecoverySettings) -> Recovered:
    return recover_law(coefficients_at(model, *asked), model.grid_, model.return_kernel_, settings)


def _apply(
    replicates: Bootstrap, asked: tuple[Any, Any], settings: RecoverySettings, summaries: Summaries
) -> tuple[Draws, int]:
    """The summaries in all replicates, and how many recoveries did not converge."""
    converged = []

    def summarised(fit: KEDRL) -> Array:
        law = _law(fit, asked, settings)
        converged.append(law.converged)
        return summaries(law)

    return replicates.apply(summarised), int((~np.concatenate(converged)).sum())


def _replicate_findings(missed: int, n_replicates: int, name: str) -> list[Finding]:
    if not missed:
        return []
    return [
        Finding(
            "replicates", "warn",
            f"{missed} recoveries in {n_replicates} replicates did not converge; intervals include them",
            "recover with a larger ridge", name,
        )
    ]  # fmt: skip


def _edge_mass(law: Recovered) -> tuple[Array, Array]:
    """Mass in the outer part of the grid's range, and beyond: at its low and at its high end; (n, d) each."""
    low, high = law.grid.min(axis=0), law.grid.max(axis=0)
    margin = EDGE * (high - low)
    sides = zip(low + margin, high - margin, strict=True)
    below, above = zip(*((law.cdf(a, c), 1 - law.cdf(b, c)) for c, (a, b) in enumerate(sides)), strict=True)
    # Weights sum to one up to rounding.
    return np.stack(below, axis=1), np.maximum(np.stack(above, axis=1), 0.0)


def _edge_findings(edges: tuple[Array, Array], name: str) -> list[Finding]:
    worst = max(side.max() for side in edges)
    if worst <= LARGE_EDGE_MASS:
        return []
    n_inputs = int((np.max(edges, axis=(0, 2)) > LARGE_EDGE_MASS).sum())
    return [
        Finding(
            "support", "warn",
            f"at {n_inputs} of {len(edges[0])} inputs more than {LARGE_EDGE_MASS:.0%} of a coordinate's "
            f"recovered mass is in the outer {EDGE:.0%} of the grid's range: up to {worst:.0%}",
            "raise grid_expansion, or give reward_bounds or a wider grid", name,
        )
    ]  # fmt: skip


def _asked(asked: Mapping[str, tuple[Any, Any]]) -> xr.Dataset:
    """The inputs; of laws of states there is no action."""
    states, actions = zip(*asked.values(), strict=True)
    found = xr.Dataset({"input_state": (("input", "state"), np.asarray(states[0], dtype=np.float64))})
    if not isinstance(actions[0], Policy):
        found["input_action"] = (("policy", "input", "action"), np.array(actions, dtype=np.float64))
    return found


def _edges(edges: Mapping[str, tuple[Array, Array]]) -> xr.Dataset:
    low, high = (np.stack(side) for side in zip(*edges.values(), strict=True))
    dims = ("policy", "input", "coordinate")
    return xr.Dataset({"edge_low": (dims, low), "edge_high": (dims, high)})


def _overlaps(
    store: TransitionStore, policies: Mapping[str, Policy], models: Mapping[str, KEDRL]
) -> xr.Dataset:
    """Target actions beside logged ones at a sample of successor states."""
    seed = next(iter(models.values())).random_state
    sample = store.sample(OVERLAP_SAMPLE, np.random.default_rng([seed, 16]))
    sample = sample.select(~sample.terminal)
    found: dict[str, list[Any]] = {}
    for name, policy in policies.items():
        actions, weights = policy.draws(sample.next_state, N_DRAWS, np.random.default_rng([seed, 17]))
        overlap = action_overlap(
            sample.inputs, sample.episode, sample.next_state, sample.next_action, actions, weights,
            models[name].input_kernel_,
        )  # fmt: skip
        ratio = models[name].diagnostics_["ratio"]
        ess = np.nan if ratio is None else ratio["effective_sample_size"]
        for key, value in (vars(overlap) | {"ess": ess}).items():
            found.setdefault(key, []).append(value)
    dims = "policy", "action"
    return xr.Dataset(
        {key: (dims[: np.ndim(values)], np.stack(values)) for key, values in found.items()},
        coords={"action": np.arange(store.action_dim)},
    )
