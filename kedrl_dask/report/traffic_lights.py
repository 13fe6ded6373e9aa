"""Diagnostics in words, each with a light."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import xarray as xr

from kedrl_dask.estimator.fitted.findings import CODES, Finding
from kedrl_dask.report.content import Content

__all__ = ["Check", "checks", "overall"]

Light = Literal["green", "amber", "red", "grey"]
#: What each light says, for those who do not see its colour.
WORDS: dict[Light, str] = {"green": "good", "amber": "caution", "red": "misleading", "grey": "not applicable"}


@dataclass(frozen=True)
class Check:
    """One diagnostic of one policy.

    Attributes
    ----------
    policy, code, title : str
        Whose, the gate's code for it, and what it is about.
    light : {"green", "amber", "red", "grey"}
    sentence, remedy : str
        What was found, and what to do about it.
    is_accepted : bool
        Whether answers would have been refused for it.
    """

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
    raised: dict[str, Finding] = {}
    for finding in content.findings:
        if finding.subject in ("", name):
            raised.setdefault(finding.code, finding)
    law = None if content.dataset is None else content.dataset.sel(policy=name)
    good = _good(content.diagnostics[name], law)
    for code, about in CODES.items():
        title = about[0].upper() + about[1:]
        if code in raised:
            yield _raised(name, title, raised[code], code in content.accepted)
        elif code in good:
            yield Check(name, code, title, "green", good[code])
        else:
            yield Check(name, code, title, "grey", "Not computed.")


def _raised(name: str, title: str, finding: Finding, is_accepted: bool) -> Check:
    would_refuse = finding.severity == "refuse"
    return Check(
        name, finding.code, title, "red" if would_refuse else "amber",
        _sentence(finding.sentence), _sentence(finding.remedy), would_refuse and is_accepted,
    )  # fmt: skip


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _good(facts: dict[str, Any], law: xr.Dataset | None) -> dict[str, str]:
    """What to say where nothing was found, by code."""
    grid, solver, mass = facts["grid"], facts["solver"], facts["held_out"]["coefficient_mass"]
    separation, ratio = facts["separation"], facts["ratio"]
    words = {
        "ess": "No density ratio was needed: actions were drawn from the policy.",
        "coverage": f"{grid['inside']:.0%} of the points r + γz are inside the grid's hull, and nine in ten "
        f"have a projection residual below {grid['p90']:.2f}.",
        "solver": f"The fit is the minimiser: relative gradient {_number(solver['certificate'])} after "
        f"{solver['iterations']:,} iterations.",
        "separation": f"The data do not ask for the paired construction: targets differ by "
        f"{_number(separation['difference'])} beside a residual of {_number(separation['residual'])}.",
        "held_out_mass": f"Among {facts['held_out']['inputs']:,} held-out inputs coefficients sum to "
        f"{mass['min']:.2f} to {mass['max']:.2f}; 1 is right.",
    }
    if ratio is not None:
        words["ess"] = (
            f"The effective sample size of the density ratio is {ratio['effective_sample_size']:.0%} of the "
            "transitions."
        )
    if law is None:
        return words
    sums, residual = law["coefficient_mass"], float(law["relative_residual"].max())
    words |= {
        "mass": f"At the inputs asked for coefficients sum to {float(sums.min()):.2f} to "
        f"{float(sums.max()):.2f}; 1 is right.",
        "recovery": f"Every recovered law is the nearest one: gap at most {float(law['gap'].max()):.0e}.",
        "residual": f"Recovered laws are at most {residual:.1%} of their norm from the embedding.",
        "sensitivity": "With ten times the ridge and half the bandwidth no mean or quantile moves by a tenth "
        "of a standard deviation.",
    }
    if "edge_low" in law:
        worst = max(float(law["edge_low"].max()), float(law["edge_high"].max()))
        words["support"] = f"At most {worst:.0%} of a law's mass is in the outer 5% of the grid's range."
    if n_replicates := law.attrs.get("n_replicates"):
        words["replicates"] = f"Every recovery in {n_replicates:,} replicates converged."
    return words


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"
