"""The tables of the Expedia evaluation, beside the paper's: as plain rows, for terminals and pages alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kedrl_dask.datasets.expedia.columns import ACTION, PAPER_STATISTICS
from kedrl_dask.studies.expedia.specification import PAPER, PROFILES, RECOVERIES
from kedrl_dask.studies.expedia.summary import MARGINALS

__all__ = ["SYNTHETIC", "Rows", "render", "tables"]

SYNTHETIC = "Simulated searches: nothing here is about hotels, and the paper's figures are of other data."
PROFILE_NAMES = {"paper": "the paper's ratio", "sampled": "sampled actions"}
RECOVERY_NAMES = {"paper": "the paper's recovery", "automatic": "automatic recovery"}

RECOVERY_NOTES = {
    "paper": "h_R = 70, λ₂ = 0.01, clicks projected on observed counts, on the paper's raw scale m + s·z, "
    "which lacks γm/(1 − γ) of a return. The criterion is minimised, with a certificate, where the paper "
    "takes 20,000 steps of Adam.",
    "automatic": "Automatic ridge and bandwidths, nothing projected, on the scale of discounted returns: "
    "means are higher than on the paper's by γm/(1 − γ), and not for better policies.",
}


class Rows(NamedTuple):
    """A table in words."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str


def tables(summary: dict[str, Any]) -> list[Rows]:
    """All tables of a summary."""
    return [
        _data(summary),
        _actions(summary),
        _risks(summary),
        _overlap(summary),
        *_marginals(summary),
        *_optimisation(summary),
        _seconds(summary),
    ]


def _data(summary: dict[str, Any]) -> Rows:
    rows = []
    for name, found in summary["data"]["statistics"].items():
        paper = PAPER_STATISTICS[name]
        numbers = (found[key] for key in ("mean", "sd", "min", "max"))
        rows.append((name, *(f"{number:.3f}" for number in (*numbers, paper.mean, paper.sd))))
    heads = ("", "mean", "SD", "min", "max", "paper's mean", "SD")
    return Rows("Training lists, raw scale (tab:expedia_data_desc)", heads, rows, "")


def _actions(summary: dict[str, Any]) -> Rows:
    found, rows = summary["actions"], []
    for i, name in enumerate(ACTION):
        own = (found["mean"][key][i] for key in ("logged", "rev", "clk"))
        rows.append((name, *(f"{value:.2f}" for value in (*own, *PAPER["actions"][name]))))
    distance = found["distance"]
    correlations = ", ".join("none" if v is None else f"{v:.4f}" for v in found["correlation"])
    note = (
        "Means over the test split of greedy actions, clipped to the training ranges, promotions rounded. "
        f"Normalised distance of the two rules: mean {distance['mean']:.4f}, median {distance['median']:.4f} "
        f"(paper: {PAPER['distance']['mean']}, {PAPER['distance']['median']}); correlations {correlations} "
        f"({', '.join(f'{v:.4f}' for v in PAPER['correlation'])})."
    )
    heads = ("action", "logged", "rev", "clk", "paper: logged", "rev", "clk")
    return Rows("Greedy actions (tab:expedia_policy_action_summary)", heads, rows, note)


def _risks(summary: dict[str, Any]) -> Rows:
    rows = [
        (name, *(f"{of[key][kind]:.3g}" for of in _fits(summary) for kind in kinds), f"{PAPER['risk'][key]}")
        for key, name in (("rev", "π(rev)"), ("clk", "π(clk)"))
        for kinds in [("risk", "unshifted_risk")]
    ]
    heads = [""]
    for profile in summary["fits"]:
        heads += [PROFILE_NAMES[profile], "no reward shift"]
    return Rows(
        "Held-out projected Bellman risk (tab:expedia_policy_eval_risks)",
        (*heads, "the paper"),
        rows,
        "At the test inputs. No shift: without the reward, as the authors' code has it, which the supplement "
        "says is not the projected residual. The risk is no policy value.",
    )


def _overlap(summary: dict[str, Any]) -> Rows:
    rows = []
    for profile, by_policy in summary["fits"].items():
        for name, of in by_policy.items():
            ratio = of["ratio"]
            of_ratio = ("–", "–") if ratio is None else (_ess(ratio), f"{ratio['max']:.2f}")
            mass = of["mass"]
            row = (*of_ratio, f"{mass['mean']:.3f} ({mass['sd']:.3f})", f"{of['negative']:.3f}")
            rows.append((f"{PROFILE_NAMES[profile]}, {name}", *row))
    for name in ("rev", "clk"):
        mean, deviation = PAPER["mass"][name]
        own = (
            f"{PAPER['ess'][name]:.1%}",
            f"{PAPER['ratio_max'][name]:.2f}",
            f"{mean:.3f} ({deviation:.3f})",
        )
        rows.append((f"the paper, {name}", *own, f"{PAPER['negative'][name]:.3f}"))
    return Rows(
        "Density ratio, and coefficients at the test inputs",
        ("", "ESS", "largest ratio", "row sums (SD)", "negative share"),
        rows,
        "Row sums of coefficients: 1 is right.",
    )


def _ess(ratio: dict[str, float]) -> str:
    return f"{ratio['effective_sample_size']:.1%}"


def _marginals(summary: dict[str, Any]) -> Iterator[Rows]:
    for which in RECOVERIES:
        for profile, by_recovery in summary["marginals"].items():
            own, rows = by_recovery[which], []
            for key, name in MARGINALS.items():
                row = (name, *_contrast(key, own["rev"][key], own["clk"][key]))
                rows.append((*row, *(_contrast(key, *PAPER["marginals"][key]) if which == "paper" else ())))
            heads: tuple[str, ...] = ("", "rev", "clk", "clk − rev")
            heads += ("the paper: rev", "clk", "clk − rev") if which == "paper" else ()
            title = f"{PROFILE_NAMES[profile]}, {RECOVERY_NAMES[which]} (tab:expedia_recovered_marginals)"
            distance = ", ".join(f"{own[name]['relative_residual']:.0%} ({name})" for name in own)
            note = (
                f"{RECOVERY_NOTES[which]} Distance of the proxies from the embeddings, of their norms: "
                f"{distance}. At each policy's own greedy action: no policy values."
            )
            yield Rows(f"Recovered marginals: {title}", heads, rows, note)


def _contrast(key: str, rev: float, clk: float) -> list[str]:
    digits = 2 if key == "revenue_mean" else 4
    return [f"{rev:.{digits}f}", f"{clk:.{digits}f}", f"{clk - rev:+.{digits}f}"]


def _optimisation(summary: dict[str, Any]) -> Iterator[Rows]:
    for profile, by_policy in summary["fits"].items():
        for name, of in by_policy.items():
            if "adamw" in of:
                yield _against_adamw(f"{PROFILE_NAMES[profile]}, {name}", of)


def _against_adamw(fit: str, of: dict[str, Any]) -> Rows:
    adamw, solver, seconds = of["adamw"], of["solver"], of["seconds"]["solver"]
    rows = [
        ("the minimiser", f"{adamw['minimum']:.4g}", f"{seconds:.0f}", f"{solver['products']}"),
        ("AdamW", f"{adamw['objective']:.4g}", f"{adamw['seconds']:.0f}", f"{adamw['steps']:,}"),
        ("AdamW's start", f"{adamw['start']:.4g}", "0", "0"),
    ]
    return Rows(
        f"The criterion against AdamW for as long: {fit}",
        ("", "criterion", "seconds", "products or steps"),
        rows,
        f"Relative gradient of the minimiser: {solver['certificate']:.1e}. AdamW has the paper's learning "
        "rate of 5e-5, batches of 256 points and no weight decay; the paper gave it 40,000 steps on a GPU "
        "node.",
    )


def _seconds(summary: dict[str, Any]) -> Rows:
    records = [of for by_policy in summary["fits"].values() for of in by_policy.values()]
    stages = list(dict.fromkeys(stage for of in records for stage in of["seconds"]))
    rows = [(stage, *(f"{of['seconds'].get(stage, 0.0):.1f}" for of in records)) for stage in stages]
    rows.append(("total", *(f"{sum(of['seconds'].values()):.1f}" for of in records)))
    names = (f"{profile}, {name}" for profile, own in summary["fits"].items() for name in own)
    note = "A later fit finds what an earlier one has computed."
    return Rows("Seconds of the fits", ("", *names), rows, note)


def _fits(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [summary["fits"][profile] for profile in PROFILES if profile in summary["fits"]]


def render(summary: dict[str, Any], console: Console) -> None:
    """Print all tables, and what speaks against them."""
    is_simulated = summary["data"]["is_simulated"]
    if is_simulated:
        console.print(f"{SYNTHETIC}\n")
    for rows in tables(summary):
        table = Table(
            title=f"{rows.title}{'; simulated searches' * is_simulated}", title_justify="left",
            caption=rows.note, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False,
            padding=(0, 1),
        )  # fmt: skip
        table.add_column(rows.heads[0], no_wrap=True)
        for head in rows.heads[1:]:
            table.add_column(head, justify="right")
        for row in rows.rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    for profile, found in summary["findings"].items():
        words = "" if found else " nothing was found."
        console.print(f"Against the fits with {PROFILE_NAMES[profile]}:{words}", highlight=False)
        for item in found:
            verdict = "kedrl refuses answers, " if item["severity"] == "refuse" else ""
            line = f"- {item['subject']}: {verdict}{item['code']}: {item['sentence']}"
            console.print(line, highlight=False)
