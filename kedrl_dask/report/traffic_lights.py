"""Diagnostics in words, each with a light: the findings of a report, policy by policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kedrl_dask.estimator.fitted.findings import CODES, Evidence, Severity, judge
from kedrl_dask.numerics.laws.recovery import SECOND
from kedrl_dask.report.content import Content

Light = Literal["green", "amber", "red", "grey"]
#: What each light says, for those who do not see its colour.
WORDS: dict[Light, str] = {"green": "good", "amber": "caution", "red": "misleading", "grey": "not judged"}
LIGHTS: dict[Severity, Light] = {"refuse": "red", "warn": "amber", "note": "grey", "good": "green"}


@dataclass(frozen=True)
class Check:
    """One diagnostic of one policy, and whether answers were given only because its code was accepted."""

    policy: str
    code: str
    title: str
    light: Light
    sentence: str
    remedy: str = ""
    is_accepted: bool = False

    @property
    def word(self) -> str:
        """The light in a word."""
        return WORDS[self.light]


def checks(content: Content) -> list[Check]:
    """All diagnostics, policy by policy."""
    return [check for name in content.policies for check in _of_policy(content, name)]


def overall(found: list[Check]) -> Light:
    """The worst light."""
    lights = {check.light for check in found}
    order: tuple[Light, ...] = ("red", "amber", "green")
    return next((light for light in order if light in lights), "grey")


def _of_policy(content: Content, name: str) -> Iterator[Check]:
    """What was found when the answers were computed, and what the same rules say of everything else."""
    recorded = [finding for finding in reversed(content.findings) if finding.subject in ("", name)]
    known = {finding.code for finding in recorded}
    judged = [finding for finding in judge(_evidence(content, name)) if finding.code not in known]
    found = {finding.code: finding for finding in (*judged, *recorded)}
    for code, about in CODES.items():
        if (finding := found.get(code)) is None:
            yield Check(name, code, _capitalised(about), "grey", "Not computed.")
            continue
        is_refused = finding.severity == "refuse"
        yield Check(
            name, code, _capitalised(about), LIGHTS[finding.severity], f"{_capitalised(finding.sentence)}.",
            "" if finding.severity == "good" else f"{_capitalised(finding.remedy)}.",
            is_refused and code in content.accepted,
        )  # fmt: skip


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(content: Content, name: str) -> Evidence:
    """What is known of a policy from its diagnostics and, unless they were refused, from the answers."""
    evidence: Evidence = {"simulation": None, **content.diagnostics[name], "settings": content.settings}
    evidence["is_simulated"] = evidence["simulation"] is not None
    if content.dataset is None:
        return evidence
    law = content.dataset.sel(policy=name)
    evidence |= {
        "mass": law["coefficient_mass"].to_numpy(),
        "converged": ~law["flag_not_converged"].to_numpy(),
        "gap": law["gap"].to_numpy(),
        "relative_residual": law["relative_residual"].to_numpy(),
        "sensitive": law["flag_sensitive"].to_numpy(),
        "second_specification": law.attrs.get("second_specification", SECOND),
    }
    if "edge_low" in law:
        evidence["edge_mass"] = np.max([law["edge_low"], law["edge_high"]], axis=(0, 2))
    if n_replicates := law.attrs.get("n_replicates"):
        evidence["replicates"] = (0, n_replicates)  # those that failed are a recorded finding
    return evidence
