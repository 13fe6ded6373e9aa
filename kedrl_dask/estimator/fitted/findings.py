"""What speaks against an answer, in words, and the refusal to give it as if nothing did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.numerics.criterion.separation_test import SeparationWarning
from kedrl_dask.numerics.laws.recovery import LARGE_RESIDUAL, Recovered
from kedrl_dask.numerics.solvers import AdamW, Result, by_name
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import is_word, shown
from kedrl_dask.utils.exceptions import NumericalWarning, warn

__all__ = [
    "CODES",
    "Finding",
    "Refused",
    "enforce",
    "law_findings",
    "mass_findings",
    "model_findings",
    "recovery_findings",
    "warn_of_numbers",
    "warn_of_separation",
]


#: Effective sample size of η̂, as a share of the transitions, below which few transitions decide.
SMALL_ESS = 0.1
#: Share of points r + γz outside the grid's hull that is worth a warning, and that is too large. In the
#: simulation study 100 automatic atoms leave 6 to 9 % outside, 40 atoms 15 to 23 %, and 100 atoms at one-step
#: rewards instead of returns 14 to 16 % with γ = 0.7 and 30 % with γ = 0.9.
LARGE_OUTSIDE, TOO_LARGE_OUTSIDE = 0.15, 0.25
#: Projection residual of nine in ten of them that is too large; it is 0.2 with 40 automatic atoms.
LARGE_PROJECTION = 0.3
#: How far the sum of coefficients may be from one.
LARGE_MASS_ERROR = 0.1
#: Share of the discounted weight beyond the ends of episodes that makes returns a guess.
LARGE_MISSING = 0.9
#: How far the mean sum of coefficients at held-out inputs may be from one before a fit warns of it.
LOST_MASS = 0.5

#: What each code is about.
CODES = {
    "ess": "effective sample size of the density ratio",
    "coverage": "coverage of the Bellman image by the return grid",
    "mass": "sum of the coefficients at the inputs asked for",
    "solver": "convergence of the fit",
    "separation": "correlation of reward and continuation",
    "recovery": "convergence of the recovery",
    "held_out_mass": "sum of the coefficients at held-out inputs",
    "residual": "distance of the recovered law from the embedding",
    "sensitivity": "dependence of the recovered law on ridge and bandwidth",
    "support": "recovered mass at the edge of the grid",
    "replicates": "convergence of the recovery in bootstrap replicates",
}


@dataclass(frozen=True)
class Finding:
    """Something that speaks against an answer.

    Attributes
    ----------
    code : str
        A key of :data:`CODES`.
    severity : {"refuse", "warn"}
        Whether answers are refused unless the code is accepted, or only carry the finding.
    sentence : str
        What was found, with its figure and what it should be.
    remedy : str
        What to do about it.
    subject : str
        The policy, where there are several.
    """

    code: str
    severity: Literal["refuse", "warn"]
    sentence: str
    remedy: str
    subject: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.subject and self.subject + ': '}{self.code}: {self.sentence}; {self.remedy}"

    def to_dict(self) -> dict[str, str]:
        """Plain strings, for JSON."""
        return asdict(self)


class Refused(ValueError):
    """An answer would mislead.

    Attributes
    ----------
    findings : tuple of Finding
        Those that it was refused for.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        codes = tuple(dict.fromkeys(finding.code for finding in findings))
        lines = "".join(f"\n- {finding}" for finding in findings)
        super().__init__(
            f"refused, because it would mislead:{lines}\nTo have it all the same: accept={codes}"
        )


def enforce(findings: Iterable[Finding], accept: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings, if none of severity "refuse" is left that was not accepted by its code.

    Raises
    ------
    Refused
        With all of those that are left.
    """
    is_sequence = isinstance(accept, Iterable) and not isinstance(accept, str)
    if not is_sequence or not all(is_word(code, *CODES) for code in accept):
        raise ValueError(f"accept must be a sequence of codes out of {tuple(CODES)}, got {shown(accept)}")
    found = tuple(findings)
    left = [finding for finding in found if finding.severity == "refuse" and finding.code not in accept]
    if left:
        raise Refused(left)
    return found


def model_findings(model: FittedModel, subject: str = "") -> list[Finding]:
    """What the diagnostics of a fit say against it, whatever the input."""
    facts, found = model.diagnostics, []
    ratio, grid, solver = facts["ratio"], facts["grid"], facts["solver"]
    if ratio is not None and not (ess := ratio["effective_sample_size"]) >= SMALL_ESS:
        found.append(
            Finding(
                "ess", "refuse",
                f"the effective sample size of the density ratio is {ess:.1%} of the transitions, below "
                f"{SMALL_ESS:.0%}: few of them decide",
                "use continuation='sampled', or ULSIF(clip=...)", subject,
            )
        )  # fmt: skip
    outside, p90 = 1 - grid["inside"], grid["p90"]
    is_covered = outside <= TOO_LARGE_OUTSIDE and p90 <= LARGE_PROJECTION
    if not is_covered or outside > LARGE_OUTSIDE:
        found.append(
            Finding(
                "coverage", "warn" if is_covered else "refuse",
                f"the return grid covers the Bellman image poorly: {outside:.1%} of the points r + γz are "
                f"outside its hull (at most {TOO_LARGE_OUTSIDE:.0%}), and one in ten has a projection "
                f"residual above {p90:.2f} (at most {LARGE_PROJECTION})",
                "raise n_atoms or grid_expansion, or give reward_bounds or a grid", subject,
            )
        )  # fmt: skip
    if not model.solution.result.ok:
        found.append(
            Finding(
                "solver", "refuse",
                f"the fit is not the minimiser: {solver['meaning']} (relative gradient "
                f"{solver['certificate']:.1e})",
                "fit with solver='pcg', or with more iterations", subject,
            )
        )  # fmt: skip
    if _asks_for_pairs(model):
        separation = facts["separation"]
        found.append(
            Finding(
                "separation", "refuse",
                "reward and continuation are correlated given the input, so that the separated construction "
                f"is biased: targets differ by {separation['difference']:.2g} beside a residual of "
                f"{separation['residual']:.2g}",
                "fit with construction='paired'", subject,
            )
        )  # fmt: skip
    mass = facts["held_out"]["coefficient_mass"]
    worst = max(abs(mass["min"] - 1), abs(mass["max"] - 1))
    if not worst <= LARGE_MASS_ERROR:
        found.append(
            Finding(
                "held_out_mass", "warn",
                f"among {facts['held_out']['inputs']:,} held-out inputs coefficients sum to "
                f"{mass['min']:.2f} to {mass['max']:.2f}, 1 is right",
                "do not ask at inputs like the worst of them, or raise n_basis and n_landmarks", subject,
            )
        )  # fmt: skip
    return found


def _asks_for_pairs(model: FittedModel) -> bool:
    """Whether a separated fit contradicts the data."""
    return (
        model.settings.construction == "separated"
        and model.diagnostics["separation"]["recommends"] == "paired"
    )


def warn_of_separation(model: FittedModel) -> None:
    """At the end of a fit, in the name of its caller: weights and embeddings are not refused later."""
    if _asks_for_pairs(model):
        warn(
            "reward and continuation are correlated given the input, so the separated construction is "
            "biased; use construction='paired' (figures in diagnostics_['separation'])",
            SeparationWarning,
        )


def warn_of_numbers(model: FittedModel) -> None:
    """At the end of a fit, in the name of its caller: of a solver that failed, and of exploding ratios."""
    result = model.solution.result
    is_budget_all = result is Result.BUDGET and isinstance(by_name(model.settings.solver), AdamW)
    if not (result.ok or is_budget_all):
        warn(
            f"the fit is not the minimiser: {result.value} (relative gradient "
            f"{model.solution.certificate:.1e})",
            NumericalWarning,
        )
    sizes, ratio = model.diagnostics["sizes"], model.diagnostics["ratio"]
    missing = (1 - sizes["terminal"] / sizes["episodes"]) * model.settings.discount ** (
        sizes["transitions"] / sizes["episodes"]
    )
    if missing > LARGE_MISSING and model.settings.grid is None and model.settings.reward_bounds is None:
        warn(
            f"episodes show about {1 - missing:.1%} of the weight that discount={model.settings.discount} "
            "gives to rewards; the return grid is made of returns whose rest is the mean reward: give "
            "reward_bounds or a grid, longer episodes or a smaller discount",
            NumericalWarning,
        )
    mass = model.diagnostics["held_out"]["coefficient_mass"]["mean"]
    if model.mass_penalty > 0 and not abs(mass - 1) <= LOST_MASS:
        warn(
            f"coefficients sum to {mass:.2g} on average at held-out inputs, 1 is right: the input kernel "
            "does not reach from the basis to successors under the policy; take a longer length scale, "
            "more basis points, or look at the policy's actions",
            NumericalWarning,
        )
    if ratio is not None and not ratio["effective_sample_size"] >= SMALL_ESS:
        warn(
            f"the effective sample size of the density ratio is {ratio['effective_sample_size']:.1%} of the "
            f"transitions, with ratios up to {ratio['max']:.3g}: few of them decide; use "
            "continuation='sampled', or ULSIF(clip=...)",
            NumericalWarning,
        )


def mass_findings(coefficients: Array, subject: str = "") -> list[Finding]:
    """Whether coefficients sum to one at the inputs that are asked for, as those of a law would."""
    mass = coefficients.sum(axis=1)
    off = np.abs(mass - 1)
    bad = np.flatnonzero(~(off <= LARGE_MASS_ERROR))
    if not bad.size:
        return []
    worst = bad[off[bad].argmax()]
    return [
        Finding(
            "mass", "refuse",
            f"at {bad.size} of {len(mass)} inputs the coefficients' sum is off one by more than "
            f"{LARGE_MASS_ERROR}; at input {worst} it is {mass[worst]:.3f}",
            "ask at inputs where data are, or raise n_basis, n_landmarks or mass_penalty", subject,
        )
    ]  # fmt: skip


def recovery_findings(law: Recovered, subject: str = "") -> list[Finding]:
    """Whether recovered laws are the nearest ones."""
    bad = ~law.converged
    if not bad.any():
        return []
    return [
        Finding(
            "recovery", "refuse",
            f"at {bad.sum()} of {len(bad)} inputs the recovery did not converge: gap up to "
            f"{law.gap.max():.1e}",
            "recover with solver='interior-point' and a larger ridge", subject,
        )
    ]  # fmt: skip


def law_findings(law: Recovered, subject: str = "") -> list[Finding]:
    """What the flags of recovered laws say."""
    flags, n = law.flags, len(law.weights)
    found = recovery_findings(law, subject)
    if (bad := flags["residual"]).any():
        found.append(
            Finding(
                "residual", "warn",
                f"at {bad.sum()} of {n} inputs the recovered law is farther than {LARGE_RESIDUAL:.0%} of its "
                f"norm from the embedding: up to {law.relative_residual.max():.0%}",
                "compare law.sensitivity, lower ridge or bandwidth, or fit more accurately", subject,
            )
        )  # fmt: skip
    if (bad := flags["sensitive"]).any():
        found.append(
            Finding(
                "sensitivity", "warn",
                f"at {bad.sum()} of {n} inputs means or quantiles move by more than a tenth of a standard "
                "deviation with ten times the ridge and half the bandwidth",
                "give summaries of law.sensitivity beside it", subject,
            )
        )  # fmt: skip
    return found
