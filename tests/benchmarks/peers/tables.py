"""The table of errors, ours beside the peers', and who is best in what."""

from __future__ import annotations

import pandas as pd

from kedrl_dask.studies.output import SECTION, TextTable
from kedrl_dask.studies.systems import METRICS

OURS = "kedrl"
#: Metrics of the summary.
JUDGED = {"cvar": "CVaR", "quantiles": "quantiles"}
KEYS = ["system", "transitions", "replicate"]


def with_ours(peers, ours):
    """The peers' table with rows of the study's ``errors.csv``, of the same systems, sizes and replicates."""
    missing = {*KEYS, *METRICS, "seconds"} - set(ours.columns)
    if missing:
        raise ValueError(f"kedrl: the table has no column {', '.join(sorted(missing))}")
    same = ours.merge(peers[KEYS].drop_duplicates(), on=KEYS)
    if same.empty:
        raise ValueError("kedrl: the table has no cell of the same system, size and replicate")
    columns = [*KEYS, "method", *METRICS, "seconds"]
    # A method is compared only where ours has a result too.
    shared = peers.merge(same[KEYS], on=KEYS)
    refused = same.get("refused", False)
    return pd.concat([same.assign(method=OURS, refused=refused), shared[columns].assign(refused=False)])


def means(table):
    """Means over the replicates, by system, size and method, in order of appearance."""
    columns = [*METRICS, "seconds", *(["refused"] if "refused" in table else [])]
    numbers = table.assign(**{name: table[name].astype(float) for name in columns})
    return numbers.groupby(["system", "transitions", "method"], sort=False)[columns].mean()


def text_table(found):
    """The means as a table in words; the smallest error of each system and size is bold."""
    rows = []
    for (system, size), group in found.groupby(level=[0, 1], sort=False):
        rows += [SECTION] if rows else []
        best = group[list(METRICS)].round(3).min()
        for n, ((_, _, method), row) in enumerate(group.iterrows()):
            name = f"{method} (refused {row['refused']:.0%})" if row.get("refused", 0) > 0 else method
            shown = [_number(row[metric], best[metric]) for metric in METRICS]
            place = (system, f"{size:,}") if n == 0 else ("", "")
            rows.append((*place, name, *shown, f"{row['seconds']:.0f}"))
    heads = ("system", "N", "method", "mean", "quantiles", "CVaR", "energy", "sliced", "s")
    note = (
        "Errors in standard deviations of the true return, as in kedrl study systems; – where a method has "
        "no answer; seconds on one thread."
    )
    return TextTable("Errors of competing methods", heads, rows, note)


def _number(value, best):
    if pd.isna(value):
        return "–"
    return f"[bold]{value:.3f}[/bold]" if round(value, 3) <= best else f"{value:.3f}"


def summary(found):
    """One line for each system and size: the best in each of ``JUDGED``, and where ours stands."""
    lines, wins = [], dict.fromkeys(JUDGED, 0)
    groups = found.groupby(level=[0, 1], sort=False)
    for (system, size), group in groups:
        errors = group.droplevel([0, 1])
        parts = []
        for metric, word in JUDGED.items():
            ranked = errors[metric].dropna().sort_values(kind="stable")
            if ranked.empty:
                continue
            parts.append(_verdict(word, ranked))
            wins[metric] += ranked.index[0] == OURS
        lines.append(f"{system}, N = {size:,}: {'; '.join(parts)}" if parts else f"{system}: no law")
    if OURS in found.index.get_level_values("method"):
        counted = ", ".join(f"in {word} {wins[metric]}" for metric, word in JUDGED.items())
        lines.append(f"{OURS} is best {counted} of {len(groups)}")
    return lines


def _verdict(word, ranked):
    best = ranked.index[0]
    text = f"{word} {best} {ranked.iloc[0]:.3f}"
    if best == OURS and len(ranked) > 1:
        return f"{text} (win; next {ranked.index[1]} {ranked.iloc[1]:.3f})"
    if OURS in ranked.index:
        place = list(ranked.index).index(OURS) + 1
        return f"{text} (loss; {OURS} {ranked[OURS]:.3f}, place {place} of {len(ranked)})"
    return text
