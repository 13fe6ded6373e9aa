"""What diagnostics say about an answer, and the refusal of answers that would mislead.

Warnings at the end of a fit, refusals, the report page, the terminal and notebooks are views of the verdicts
of ``rules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.estimator.fitted.rules import CODES, RULES, Evidence, Severity, solver
from kedrl_dask.numerics.laws.recovery import Recovered
from kedrl_dask.numerics.laws.tilting import Tilted
from kedrl_dask.utils.checks import is_word, shown
from kedrl_dask.utils.exceptions import warn


@dataclass(frozen=True)
class Finding:
    """What a rule, a key of :data:`CODES`, found; the subject is the policy, where there are several.

    Answers are refused unless the code is accepted ("refuse"), carry a warning, or carry a note on what could
    not be judged; or nothing is wrong ("good").
    """

    code: str
    severity: Severity
    sentence: str
    remedy: str
    subject: str = ""

    @property
    def text(self) -> str:
        """The sentence, and the remedy if there is something to remedy."""
        return self.sentence if self.severity == "good" else f"{self.sentence}; {self.remedy}"

    def __str__(self) -> str:
        """One line."""
        return f"{self.subject and self.subject + ': '}{self.code}: {self.text}"

    def to_dict(self) -> dict[str, str]:
        """Plain strings, for JSON."""
        return asdict(self)


class Refused(ValueError):
    """An answer was refused because it would mislead.

    Attributes
    ----------
    findings : tuple of Finding
        The reasons.

    Examples
    --------
    >>> refusal = Refused([Finding("solver", "refuse", "the fit is not the minimiser", "use solver='pcg'")])
    >>> print(refusal)
    refused, because it would mislead:
    - solver: the fit is not the minimiser; use solver='pcg'
    To get it anyway: accept=('solver',)
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        codes = tuple(dict.fromkeys(finding.code for finding in findings))
        lines = "".join(f"\n- {finding}" for finding in findings)
        super().__init__(f"refused, because it would mislead:{lines}\nTo get it anyway: accept={codes}")


def enforce(findings: Iterable[Finding], accept: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return the findings; raises Refused, with all that refuse an answer, unless those are accepted."""
    is_sequence = isinstance(accept, Iterable) and not isinstance(accept, str)
    if not is_sequence or not all(is_word(code, *CODES) for code in accept):
        raise ValueError(f"accept must be a sequence of codes out of {tuple(CODES)}, got {shown(accept)}")
    found = tuple(findings)
    left = [finding for finding in found if finding.severity == "refuse" and finding.code not in accept]
    if left:
        raise Refused(left)
    return found


def judge(evidence: Evidence, subject: str = "") -> list[Finding]:
    """Apply every rule for which there is evidence."""
    return [
        Finding(code, verdict.severity, verdict.sentence, rule.remedy, subject)
        for code, rule in RULES.items()
        if (verdict := rule.judge(evidence)) is not None
    ]


def objections(evidence: Evidence, subject: str = "") -> list[Finding]:
    """What speaks against an answer: all findings that are not good."""
    return [finding for finding in judge(evidence, subject) if finding.severity != "good"]


def warn_of_fit(model: FittedModel) -> None:
    """Warn at the end of a fit, because weights and embeddings are not refused later."""
    evidence = fit_evidence(model)
    for rule in RULES.values():
        verdict = rule.judge(evidence)
        if verdict is not None and verdict.warning is not None:
            warn(f"{verdict.sentence}; {rule.remedy}", verdict.warning)


def did_its_work(model: FittedModel) -> bool:
    """Whether the solver did what it was asked: to converge or, for AdamW, to use up its budget."""
    evidence = fit_evidence(model)
    return solver(evidence["solver"], evidence["settings"]).warning is None


def fit_evidence(model: FittedModel) -> Evidence:
    """What is known of a fit, whatever the input."""
    # Models of version one do not say that they are not centred.
    known = {"centred": False, "simulation": None, "is_simulated": model.simulator is not None}
    return {**known, **model.diagnostics, "settings": vars(model.settings)}


def law_evidence(law: Recovered) -> Evidence:
    """Everything about recovered laws; this recovers ``law.sensitivity``."""
    return {
        "converged": law.converged,
        "gap": law.gap,
        "relative_residual": law.relative_residual,
        "sensitive": law.flags["sensitive"],
        "second_specification": law.second_specification,
        "is_simulated": isinstance(law, Tilted),
    }
