"""The tables of the Expedia evaluation beside the paper's, for terminals and pages."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from kedrl_dask.datasets.expedia.columns import ACTION, PAPER_STATISTICS
from kedrl_dask.studies.expedia.specification import PAPER, RECOVERIES
from kedrl_dask.studies.expedia.summary import MARGINALS
from kedrl_dask.studies.output import TextTable, print_tables
from kedrl_dask.utils.arrays import Record

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


def tables(summary: Record) -> list[TextTable]:
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


def _data(summary: Record) -> TextTable:
    rows = []
    for name, found in summary["data"]["statistics"].items():
        paper = PAPER_STATISTICS[name]
        numbers = (found[key] for key in ("mean", "sd", "min", "max"))
        rows.append((name, *(f"{number:.3f}" for number in (*numbers, paper.mean, paper.sd))))
    heads = ("", "mean", "SD", "min", "max", "paper's mean", "SD")
    return TextTable("Training lists, raw scale (tab:expedia_data_desc)", heads, rows, "")


def _actions(summary: Record) -> TextTable:
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
    return TextTable("Greedy actions (tab:expedia_policy_action_summary)", heads, rows, note)


def _risks(summary: Record) -> TextTable:
    fits, kinds = summary["fits"].values(), ("risk", "unshifted_risk")
    rows = [
        (name, *(f"{of[key][kind]:.3g}" for of in fits for kind in kinds), f"{PAPER['risk'][key]}")
        for key, name in (("rev", "π(rev)"), ("clk", "π(clk)"))
    ]
    heads = ["", *(head for key in summary["fits"] for head in (PROFILE_NAMES[key], "no reward shift"))]
    return TextTable(
        "Held-out projected Bellman risk (tab:expedia_policy_eval_risks)",
        (*heads, "the paper"),
        rows,
        "At the test inputs. No reward shift: as in the authors' code, which according to the supplement "
        "does not compute the projected residual. The risk is not a policy value.",
    )


def _overlap(summary: Record) -> TextTable:
    rows = []
    for profile, by_policy in summary["fits"].items():
        for name, of in by_policy.items():
            ratio, mass, of_ratio = of["ratio"], of["mass"], ("–", "–")
            if ratio is not None:
                of_ratio = (f"{ratio['effective_sample_size']:.1%}", f"{ratio['max']:.2f}")
            row = (*of_ratio, f"{mass['mean']:.3f} ({mass['sd']:.3f})", f"{of['negative']:.3f}")
            rows.append((f"{PROFILE_NAMES[profile]}, {name}", *row))
    for name in ("rev", "clk"):
        mean, deviation = PAPER["mass"][name]
        of_ratio = (f"{PAPER['ess'][name]:.1%}", f"{PAPER['ratio_max'][name]:.2f}")
        row = (*of_ratio, f"{mean:.3f} ({deviation:.3f})", f"{PAPER['negative'][name]:.3f}")
        rows.append((f"the paper, {name}", *row))
    return TextTable(
        "Density ratio, and coefficients at the test inputs",
        ("", "ESS", "largest ratio", "row sums (SD)", "negative share"),
        rows,
        "Row sums of coefficients are ideally 1.",
    )


def _marginals(summary: Record) -> Iterator[TextTable]:
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
            yield TextTable(f"Recovered marginals: {title}", heads, rows, note)


def _contrast(key: str, rev: float, clk: float) -> list[str]:
    digits = 2 if key == "revenue_mean" else 4
    return [f"{rev:.{digits}f}", f"{clk:.{digits}f}", f"{clk - rev:+.{digits}f}"]


def _optimisation(summary: Record) -> Iterator[TextTable]:
    for profile, by_policy in summary["fits"].items():
        for name, of in by_policy.items():
            if "adamw" in of:
                yield _against_adamw(f"{PROFILE_NAMES[profile]}, {name}", of)


def _against_adamw(fit: str, of: Record) -> TextTable:
    adamw, solver, seconds = of["adamw"], of["solver"], of["seconds"]["solver"]
    rows = [
        ("the minimiser", f"{adamw['minimum']:.4g}", f"{seconds:.0f}", f"{solver['products']}"),
        ("AdamW", f"{adamw['objective']:.4g}", f"{adamw['seconds']:.0f}", f"{adamw['steps']:,}"),
        ("AdamW's start", f"{adamw['start']:.4g}", "0", "0"),
    ]
    return TextTable(
        f"The criterion against AdamW for as long: {fit}",
        ("", "criterion", "seconds", "products or steps"),
        rows,
        f"Relative gradient of the minimiser: {solver['certificate']:.1e}. AdamW has the paper's learning "
        "rate of 5e-5, batches of 256 points and no weight decay; the paper gave it 40,000 steps on a GPU "
        "node.",
    )


def _seconds(summary: Record) -> TextTable:
    records = [of for by_policy in summary["fits"].values() for of in by_policy.values()]
    stages = list(dict.fromkeys(stage for of in records for stage in of["seconds"]))
    rows = [(stage, *(f"{of['seconds'].get(stage, 0.0):.1f}" for of in records)) for stage in stages]
    rows.append(("total", *(f"{sum(of['seconds'].values()):.1f}" for of in records)))
    names = (f"{profile}, {name}" for profile, own in summary["fits"].items() for name in own)
    note = "A later fit reuses what an earlier one has computed."
    return TextTable("Seconds of the fits", ("", *names), rows, note)


def render(summary: Record, console: Console) -> None:
    """Print all tables, and what speaks against them."""
    is_simulated = summary["data"]["is_simulated"]
    if is_simulated:
        console.print(f"{SYNTHETIC}\n")
    marked = [table._replace(title=f"{table.title}; simulated searches") for table in tables(summary)]
    print_tables(marked if is_simulated else tables(summary), console)
    for profile, found in summary["findings"].items():
        words = "" if found else " nothing was found."
        console.print(f"Against the fits with {PROFILE_NAMES[profile]}:{words}", highlight=False)
        for item in found:
            verdict = "kedrl refuses answers, " if item["severity"] == "refuse" else ""
            line = f"- {item['subject']}: {verdict}{item['code']}: {item['sentence']}"
            console.print(line, highlight=False)
