"""The results of the Expedia evaluation as plain numbers: actions, risks, overlap, recovered marginals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kedrl_dask._version import __version__
from kedrl_dask.datasets.expedia import greedy_action
from kedrl_dask.datasets.expedia.columns import ACTION
from kedrl_dask.estimator.fitted.findings import law_evidence, objections
from kedrl_dask.numerics.laws.recovery import Recovered, recover_law
from kedrl_dask.studies.expedia.preparation import Prepared
from kedrl_dask.studies.expedia.specification import (
    RECOVERIES,
    RETURN_KERNEL,
    Profile,
    Recovery,
    recovery,
    shift,
)
from kedrl_dask.utils.arrays import Atoms, Record, Vector

#: Rows of tab:expedia_recovered_marginals.
MARGINALS = {
    "revenue_mean": "Revenue mean",
    "revenue_50": "Pr(revenue ≥ 50)",
    "revenue_100": "Pr(revenue ≥ 100)",
    "click_mean": "Click mean",
    "click_1": "Pr(clicks ≥ 1)",
    "click_2": "Pr(clicks ≥ 2)",
    "click_3": "Pr(clicks ≥ 3)",
}
#: Entries of a fit's record that are drawn and not summarised.
DRAWN = ("coefficients", "grid")

#: Records of fits by profile and policy, and recovered laws by profile, recovery and policy.
Fits = Mapping[Profile, Mapping[str, Record]]
Laws = Mapping[tuple[Profile, Recovery, str], Recovered]


def laws(fits: Fits, prepared: Prepared) -> Laws:
    """Recovered laws at each policy's evaluation input, by profile, recovery and policy."""
    return {
        (profile, which, name): recover_law(
            [record["coefficients"]], record["grid"], RETURN_KERNEL, recovery(which, prepared.encoder)
        )
        for profile, by_policy in fits.items()
        for which in RECOVERIES
        for name, record in by_policy.items()
    }


def raw_atoms(law: Recovered, which: Recovery, prepared: Prepared) -> Atoms:
    """The atoms of a law on the raw scale; (m, 2)."""
    return law.atoms_of(0) * prepared.encoder.reward_scale + shift(which, prepared.encoder)


def summarise(fits: Fits, recovered: Laws, prepared: Prepared) -> Record:
    """The content of the tables and of the page, as JSON."""
    marginals: Record = {}
    findings: Record = {
        profile: [finding for record in by_policy.values() for finding in record["findings"]]
        for profile, by_policy in fits.items()
    }
    for (profile, which, name), law in recovered.items():
        marginals.setdefault(profile, {}).setdefault(which, {})[name] = _marginals(law, which, prepared)
        found = objections(law_evidence(law), name)
        findings[profile] += [
            replace(item, sentence=f"recovery {which}: {item.sentence}").to_dict() for item in found
        ]
    kept = ("is_simulated", "source", "rows", "searches", "kept", "left_out", "destinations", "transitions")
    return {
        "kind": "kedrl study expedia",
        "version": __version__,
        "data": {key: prepared.facts[key] for key in kept}
        | {"state_dim": prepared.training.state_dim, "statistics": prepared.facts["statistics"]},
        "selected": {key: prepared.facts["selected"][key] for key in ("state", "action")}
        | {"greedy": {name: action.tolist() for name, action in prepared.actions.items()}},
        "actions": _actions(prepared),
        "fits": {
            profile: {
                name: {key: value for key, value in record.items() if key not in (*DRAWN, "findings")}
                for name, record in by_policy.items()
            }
            for profile, by_policy in fits.items()
        },
        "marginals": marginals,
        "findings": findings,
    }


def _actions(prepared: Prepared) -> Record:
    """tab:expedia_policy_action_summary, and the text below it."""
    state, logged = prepared.test_inputs
    encoder = prepared.encoder
    greedy = {name: greedy_action(policy, state, encoder) for name, policy in prepared.policies.items()}
    scale = np.array([encoder.scale[name] for name in ACTION])
    rev, clk = greedy["rev"], greedy["clk"]
    distance = np.linalg.norm((rev - clk) / scale, axis=1)
    return {
        "mean": {
            "logged": encoder.raw_action(logged).mean(axis=0).tolist(),
            **{name: action.mean(axis=0).tolist() for name, action in greedy.items()},
        },
        "distance": {"mean": float(distance.mean()), "median": float(np.median(distance))},
        "difference": np.abs(rev - clk).mean(axis=0).tolist(),
        "correlation": [_correlation(*pair) for pair in zip(rev.T, clk.T, strict=True)],
        "deviation": {
            name: (policy.scale_at(state) * scale).mean(axis=0).tolist()
            for name, policy in prepared.policies.items()
        },
    }


def _correlation(first: Vector, second: Vector) -> float | None:
    """None if one of them does not vary."""
    spread = first.std() * second.std()
    return float(np.mean((first - first.mean()) * (second - second.mean())) / spread) if spread > 0 else None


def _marginals(law: Recovered, which: Recovery, prepared: Prepared) -> dict[str, float]:
    """tab:expedia_recovered_marginals of one law."""
    scale, added = prepared.encoder.reward_scale, shift(which, prepared.encoder)
    mean = law.mean()[0] * scale + added

    def at_least(threshold: float, coordinate: int) -> float:
        # A projected coordinate has mass at the threshold itself: the cut is half a click below.
        cut = threshold - 0.5 * (coordinate in law.supports)
        return float(1 - law.cdf((cut - added[coordinate]) / scale[coordinate], coordinate)[0])

    return {
        "revenue_mean": float(mean[0]),
        "revenue_50": at_least(50, 0),
        "revenue_100": at_least(100, 0),
        "click_mean": float(mean[1]),
        "click_1": at_least(1, 1),
        "click_2": at_least(2, 1),
        "click_3": at_least(3, 1),
        "relative_residual": float(law.relative_residual[0]),
        "gap": float(law.gap[0]),
    }
