"""The rules by which diagnostics speak for or against an answer.

Each rule returns a :class:`Verdict` on the evidence that its parameters name. A new one is one more function
with the decorator :func:`_rule`; ``findings`` applies it. A rule whose evidence is missing is not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from kedrl_dask.numerics.criterion.separation_test import SeparationWarning
from kedrl_dask.numerics.laws.recovery import LARGE_RESIDUAL
from kedrl_dask.numerics.solvers import AdamW, Result, by_name
from kedrl_dask.utils.arrays import Mask, Record, Vector
from kedrl_dask.utils.exceptions import NumericalWarning

#: Effective sample size of η̂, as a share of the transitions, below which a few transitions dominate.
SMALL_ESS = 0.1
#: Share of points r + γz outside the grid's hull that is worth a warning, and that is too large. In the
#: simulation study 100 automatic atoms leave 6 to 9 % outside, 40 atoms 15 to 23 %, and 100 atoms at one-step
#: rewards instead of returns 14 to 16 % with γ = 0.7 and 30 % with γ = 0.9.
LARGE_OUTSIDE, TOO_LARGE_OUTSIDE = 0.15, 0.25
#: 90 % quantile of the projection residual that is too large; it is 0.2 with 40 automatic atoms.
LARGE_PROJECTION = 0.3
#: Bellman residual, amplified over the horizon and in units of σ_Z, above which the embedding may be far from
#: the true one: with 14,700 transitions of the systems of ``datasets.benchmark`` it is at most 0.05 where the
#: construction suits the data and answers are right, and at least 0.1 where they are wrong.
LARGE_AMPLIFIED = 0.08
#: Distance of simulated returns from the embedding, relative to its norm, that is too large: on the systems
#: of ``datasets.benchmark`` it is at most 0.45.
LARGE_DISAGREEMENT = 0.6
#: Standard error of a simulated mean or tail mean, in standard deviations of the return, that is too large:
#: one in ten errors is then above a third of one. That of a tail mean must be as many times its own noise.
LARGE_STANDARD_ERROR, ESTABLISHED = 0.2, 2.0
#: How far the sum of coefficients may be from one.
LARGE_MASS_ERROR = 0.1
#: How far the mean sum of coefficients at held-out inputs may be from one before a fit warns of it.
LOST_MASS = 0.5
#: Share of the discounted weight beyond the ends of episodes that makes returns a guess.
LARGE_MISSING = 0.9
#: Outer share of the grid's range on either side, and the mass there above which the grid may cut laws off.
EDGE, LARGE_EDGE_MASS = 0.05, 0.1

Severity = Literal["refuse", "warn", "note", "good"]
Function = TypeVar("Function", bound=Callable[..., "Verdict"])


#: What rules look at, by name: the diagnostics of a fit and its ``settings``; at the n inputs asked for, sums
#: of coefficients (``mass``), and ``converged``, ``gap``, ``relative_residual``, ``sensitive`` and largest
#: ``edge_mass`` of recovered laws; and of ``replicates``, (recoveries that failed, replicates).
Evidence = Record


class Verdict(NamedTuple):
    """How severe a finding is, the words for it, and the warning that a fit gives, if any."""

    severity: Severity
    sentence: str
    warning: type[Warning] | None = None


@dataclass(frozen=True)
class Rule:
    """One entry of the table: what it is about, what to do if it objects, and the function that judges."""

    about: str
    remedy: str
    function: Callable[..., Verdict]

    def judge(self, evidence: Evidence) -> Verdict | None:
        """The verdict, or None if some of the evidence is missing."""
        needs = signature(self.function).parameters
        if not needs.keys() <= evidence.keys():
            return None
        return self.function(**{name: evidence[name] for name in needs})


#: The table, by code.
RULES: dict[str, Rule] = {}


def _rule(code: str, about: str, remedy: str) -> Callable[[Function], Function]:
    """Enter a function into the table."""

    def enter(function: Function) -> Function:
        RULES[code] = Rule(about, remedy, function)
        return function

    return enter


def _number(value: float | None) -> str:
    """A figure; JSON has None for those that are not finite."""
    return "unknown" if value is None else f"{value:.2g}"


@_rule("ess", "effective sample size of the density ratio", "use continuation='sampled', or ULSIF(clip=...)")
def _ess(ratio: Record | None) -> Verdict:
    if ratio is None:
        return Verdict("good", "no density ratio was needed: actions were drawn from the policy")
    ess = ratio["effective_sample_size"]
    sentence = f"the effective sample size of the density ratio is {ess:.1%} of the transitions"
    if ess >= SMALL_ESS:
        return Verdict("good", sentence)
    sentence += f", below {SMALL_ESS:.0%}, with ratios up to {ratio['max']:.3g}: a few transitions dominate"
    return Verdict("refuse", sentence, NumericalWarning)


@_rule(
    "coverage",
    "coverage of the Bellman image by the return grid",
    "raise n_atoms or grid_expansion, or give reward_bounds or a grid",
)
def _coverage(grid: Record, simulation: Record | None, is_simulated: bool) -> Verdict:
    """How much of what the embedding must represent its grid can; simulated laws may not need it."""
    outside, p90 = 1 - grid["inside"], grid["p90"]
    is_covered = outside <= TOO_LARGE_OUTSIDE and p90 <= LARGE_PROJECTION
    figures = (
        f"{outside:.1%} of the points r + γz are outside its hull (at most {TOO_LARGE_OUTSIDE:.0%}), and one "
        f"in ten has a projection residual above {p90:.2f} (at most {LARGE_PROJECTION})"
    )
    if is_covered and outside <= LARGE_OUTSIDE:
        return Verdict("good", f"the return grid covers the Bellman image: {figures}")
    is_needed = not (is_simulated and simulation is not None and not simulation["follows_embedding"])
    severity: Severity = "refuse" if is_needed and not is_covered else "warn"
    return Verdict(severity, f"the return grid covers the Bellman image poorly: {figures}")


@_rule(
    "mass",
    "sum of the coefficients at the inputs asked for",
    "ask at inputs near the data, or raise n_basis, n_landmarks or mass_penalty",
)
def _mass(mass: Vector) -> Verdict:
    off = np.abs(mass - 1)
    bad = np.flatnonzero(~(off <= LARGE_MASS_ERROR))
    if not bad.size:
        return Verdict("good", f"coefficients sum to {mass.min():.2f} to {mass.max():.2f}; 1 is ideal")
    worst = bad[off[bad].argmax()]
    return Verdict(
        "refuse",
        f"at {bad.size} of {len(mass)} inputs the sum of the coefficients differs from one by more than "
        f"{LARGE_MASS_ERROR}; at input {worst} it is {mass[worst]:.3f}",
    )


@_rule("solver", "convergence of the fit", "fit with solver='pcg', or with more iterations")
def solver(solver: Record, settings: Record) -> Verdict:
    """Whether the solver did what it was asked."""
    result = Result[solver["result"].upper()]
    figures = (
        f"(relative gradient {_number(solver['certificate'])} after {solver['iterations']:,} iterations)"
    )
    if result.ok:
        return Verdict("good", f"{result.value} {figures}")
    # AdamW is only asked to use up its budget.
    is_asked = result is Result.BUDGET and isinstance(by_name(settings["solver"]), AdamW)
    sentence = f"the fit is not the minimiser: {result.value} {figures}"
    return Verdict("refuse", sentence, None if is_asked else NumericalWarning)


@_rule("separation", "correlation of reward and continuation", "fit with construction='paired'")
def _separation(separation: Record, settings: Record) -> Verdict:
    difference, residual = _number(separation["difference"]), _number(separation["residual"])
    figures = f"targets differ by {difference} beside a residual of {residual}"
    used = settings["construction"]
    if (separation.get("construction") if used == "auto" else used) == "paired":
        return Verdict("good", f"the paired construction allows for any correlation; {figures}")
    if separation["recommends"] == "paired":
        return Verdict(
            "refuse",
            "reward and continuation are correlated given the input, so the separated construction is "
            f"biased: {figures}",
            SeparationWarning,
        )
    p_value = separation["p_value"]
    if p_value is None:
        return Verdict("note", f"there are too few episodes to tell a correlation from noise: {figures}")
    return Verdict("good", f"the separated construction is adequate: {figures}, p = {p_value:.3f}")


@_rule(
    "accuracy",
    "Bellman residual, amplified over the horizon",
    "use centring='auto', more data, larger n_landmarks, n_basis and n_atoms, or a smaller discount",
)
def _accuracy(held_out: Record, return_kernel: Record, settings: Record, is_simulated: bool) -> Verdict:
    """An error of one step adds up over 1/(1 − γ) of them; simulated laws do not rely on a bad embedding."""
    horizon, risk = 1 / (1 - settings["discount"]), held_out["bellman_risk"]
    amplified = np.nan if risk is None else float(np.sqrt(risk)) * horizon / return_kernel["sigma"]
    figures = (
        f"the Bellman residual at held-out inputs, times the horizon of {horizon:.3g} steps, is "
        f"{amplified:.2g} of the largest norm of an embedding"
    )
    if amplified <= LARGE_AMPLIFIED:
        return Verdict("good", f"{figures}, at most {LARGE_AMPLIFIED}")
    if is_simulated:
        return Verdict(
            "warn",
            "laws are those of simulated returns alone, as the embedding may be far from the true one: "
            f"{figures}, above {LARGE_AMPLIFIED}",
        )
    return Verdict(
        "refuse", f"the embedding may be far from the true one: {figures}, above {LARGE_AMPLIFIED}"
    )


@_rule(
    "disagreement",
    "distance of simulated returns from the embedding",
    "give more data or a smaller discount, and check that the state has everything on which rewards and next "
    "states depend, and that the policy acts where actions were logged",
)
def _disagreement(simulation: Record | None) -> Verdict:
    """Two estimates from the same data: the embedding, and returns of a model of single transitions."""
    if simulation is None:
        return Verdict("good", "no returns were simulated")
    distance = simulation["distance"]["mean"]
    figures = (
        f"at {simulation['inputs']} held-out inputs the law of simulated returns is {distance:.1%} of the "
        "embedding's norm away from it on average"
    )
    if distance <= LARGE_DISAGREEMENT:
        return Verdict("good", figures)
    return Verdict(
        "refuse", f"two estimates contradict each other: {figures}, above {LARGE_DISAGREEMENT:.0%}"
    )


@_rule(
    "precision",
    "standard error of simulated returns over the logged episodes",
    "give more episodes or a smaller discount",
)
def _precision(simulation: Record | None) -> Verdict:
    """Models of replicates, groups of episodes drawn with replacement, against that of the fit."""
    found = None if simulation is None else simulation.get("precision")
    if found is None:
        return Verdict("good", "no returns of replicates were simulated")
    mean = max(found["mean"])
    tails = zip(found["tail"], found["tail_noise"], strict=True)
    tail = max((error for error, noise in tails if error > ESTABLISHED * noise), default=0.0)
    figures = (
        f"over {found['n_replicates']} replicates of the logged episodes the mean return has a standard "
        f"error of {mean:.2g} standard deviations of the return, and that of the lowest tenth of "
        f"{max(found['tail']):.2g}, with noise of {max(found['tail_noise']):.2g}"
    )
    if max(mean, tail) <= LARGE_STANDARD_ERROR:
        return Verdict("good", figures)
    return Verdict("refuse", f"the data say too little: {figures}; at most {LARGE_STANDARD_ERROR} is right")


@_rule("recovery", "convergence of the recovery", "recover with solver='interior-point' and a larger ridge")
def _recovery(converged: Mask, gap: Vector) -> Verdict:
    if converged.all():
        return Verdict("good", f"every recovered law is the nearest one: gap at most {gap.max():.0e}")
    n_bad, n = (~converged).sum(), len(converged)
    return Verdict(
        "refuse", f"at {n_bad} of {n} inputs the recovery did not converge: gap up to {gap.max():.1e}"
    )


@_rule(
    "held_out_mass",
    "sum of the coefficients at held-out inputs",
    "raise n_basis and n_landmarks, lengthen the input kernel, check the policy's actions, or avoid inputs "
    "like the worst of these",
)
def _held_out_mass(held_out: Record, settings: Record) -> Verdict:
    low, mean, high = (held_out["coefficient_mass"][name] for name in ("min", "mean", "max"))
    sentence = (
        f"coefficients sum to {low:.2f} to {high:.2f} at {held_out['inputs']:,} held-out inputs, {mean:.2f} "
        "on average; 1 is ideal"
    )
    if max(abs(low - 1), abs(high - 1)) <= LARGE_MASS_ERROR:
        return Verdict("good", sentence)
    is_lost = settings["mass_penalty"] != 0 and not abs(mean - 1) <= LOST_MASS
    return Verdict("warn", sentence, NumericalWarning if is_lost else None)


@_rule(
    "truncation",
    "weight of the rewards beyond the ends of episodes",
    "use centring='auto', give reward_bounds or a grid, longer episodes or a smaller discount",
)
def _truncation(sizes: Record, settings: Record, centred: bool) -> Verdict:
    if centred:
        return Verdict("good", "the return grid is made of simulated returns, which do not end with episodes")
    if settings["grid"] is not None or settings["reward_bounds"] is not None:
        return Verdict("good", "the return grid does not depend on where episodes end")
    n_episodes, discount = sizes["episodes"], settings["discount"]
    missing = (1 - sizes["terminal"] / n_episodes) * discount ** (sizes["transitions"] / n_episodes)
    sentence = (
        f"episodes show about {1 - missing:.1%} of the weight that discount={discount} gives to rewards"
    )
    if missing <= LARGE_MISSING:
        return Verdict("good", sentence)
    sentence += "; the return grid is made of returns completed with the mean reward"
    return Verdict("warn", sentence, NumericalWarning)


@_rule(
    "residual",
    "distance of the recovered law from the embedding",
    "compare law.sensitivity, lower ridge or bandwidth, or fit more accurately",
)
def _residual(relative_residual: Vector) -> Verdict:
    bad, largest = relative_residual > LARGE_RESIDUAL, relative_residual.max()
    if not bad.any():
        return Verdict("good", f"recovered laws are at most {largest:.1%} of their norm from the embedding")
    return Verdict(
        "warn",
        f"at {bad.sum()} of {len(bad)} inputs the recovered law is farther than {LARGE_RESIDUAL:.0%} of its "
        f"norm from the embedding: up to {largest:.0%}",
    )


@_rule(
    "sensitivity",
    "dependence of the recovered law on its specification",
    "report summaries of law.sensitivity as well",
)
def _sensitivity(sensitive: Mask, second_specification: str) -> Verdict:
    moved = f"a tenth of a standard deviation with {second_specification}"
    if not sensitive.any():
        return Verdict("good", f"no mean or quantile moves by {moved}")
    n_bad, n = sensitive.sum(), len(sensitive)
    return Verdict("warn", f"at {n_bad} of {n} inputs means or quantiles move by more than {moved}")


@_rule(
    "support",
    "recovered mass at the edge of the grid",
    "raise grid_expansion, or give reward_bounds or a wider grid",
)
def _support(edge_mass: Vector) -> Verdict:
    bad, where = edge_mass > LARGE_EDGE_MASS, f"in the outer {EDGE:.0%} of the grid's range"
    if not bad.any():
        return Verdict("good", f"at most {edge_mass.max():.0%} of a law's mass is {where}")
    return Verdict(
        "warn",
        f"at {bad.sum()} of {len(bad)} inputs more than {LARGE_EDGE_MASS:.0%} of a coordinate's recovered "
        f"mass is {where}: up to {edge_mass.max():.0%}",
    )


@_rule("replicates", "convergence of the recovery in bootstrap replicates", "recover with a larger ridge")
def _replicates(replicates: tuple[int, int]) -> Verdict:
    missed, n = replicates
    if not missed:
        return Verdict("good", f"every recovery in {n:,} replicates converged")
    return Verdict("warn", f"{missed} recoveries in {n} replicates did not converge; intervals include them")


#: What each code is about.
CODES = {code: rule.about for code, rule in RULES.items()}
