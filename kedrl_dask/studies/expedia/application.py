"""The whole application: data, policies, fits, recovered laws, tables, figures and the page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kedrl_dask.datasets.expedia.panel import PAPER_TEST, PAPER_TRAINING
from kedrl_dask.engine.storage.atomic import remove, write_atomic
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.studies.expedia import figures
from kedrl_dask.studies.expedia.fits import CACHE, fit
from kedrl_dask.studies.expedia.page import page
from kedrl_dask.studies.expedia.preparation import Prepared, Request, prepare
from kedrl_dask.studies.expedia.specification import POLICIES, PROFILES, RECOVERIES, Sizes
from kedrl_dask.studies.expedia.summary import laws, summarise
from kedrl_dask.studies.expedia.tables import PROFILE_NAMES, RECOVERY_NAMES
from kedrl_dask.studies.runner import claim
from kedrl_dask.utils.progress import Reporter

__all__ = ["SEARCHES", "run"]

STUDY = "expedia"
#: Searches of a simulated file that are enough for the paper's sizes.
SEARCHES = 20_000


def run(
    output: str | Path,
    *,
    data: str | Path | None = None,
    searches: int = SEARCHES,
    training: int | None = PAPER_TRAINING,
    test: int | None = PAPER_TEST,
    sizes: Sizes | None = None,
    seed: int = 0,
    with_adamw: bool = True,
    draw: bool = True,
) -> dict[str, Any]:
    """Evaluate the two policies and write tables, figures and a page.

    Parameters
    ----------
    output : path
        New or empty directory, or that of an earlier run: stores and fits with the same settings are kept.
    data : path, optional
        ``train.csv`` as published; without it searches are simulated.
    searches : int
        Number of simulated searches.
    training, test : int or None
        Transitions; None takes all, divided as in the paper.
    sizes : Sizes, optional
        The paper's unless given.
    seed : int
        Seed of simulated data, the split and the fits.
    with_adamw : bool
        Whether AdamW is run on the criterion of the first policy, for as long as the minimiser took.
    draw : bool
        Whether to draw the figures.

    Returns
    -------
    dict
        The summary, which is also written to ``summary.json``.
    """
    start, output, sizes = time.perf_counter(), Path(output), sizes or Sizes()
    request = Request(None if data is None else Path(data), searches, training, test, seed)
    request.facts()  # a file that is not there is named before anything is written
    claim(output, STUDY)
    reporter = Reporter()
    prepared = prepare(output, request, reporter)
    fits: dict[str, dict[str, Any]] = {
        profile: {
            name: fit(output, prepared, name, profile, sizes, seed, _is_compared(with_adamw, profile, name))
            for name in POLICIES
        }
        for profile in PROFILES
    }
    with reporter.stage("recovery"):
        recovered = laws(fits, prepared)
        summary = summarise(fits, recovered, prepared)
    drawn = {}
    if draw:
        with reporter.stage("plots"):
            drawn = _draw(output / "plots", fits, recovered, prepared)
    summary["seconds"] = time.perf_counter() - start
    write_json(output / "summary.json", summary)
    write_atomic(output / "report.html", page(summary, drawn))
    remove(output / CACHE)  # its sums are gigabytes, and the fits that they serve are filed
    return summary


def _is_compared(with_adamw: bool, profile: str, name: str) -> bool:
    return with_adamw and profile == "paper" and name == next(iter(POLICIES))


def _draw(folder: Path, fits: Any, recovered: Any, prepared: Prepared) -> dict[str, Any]:
    """Figures by their titles, written by their names."""
    drawn, names = {"actions": figures.actions(prepared)}, {"actions": "actions"}
    for profile, records in fits.items():
        for which in RECOVERIES:
            title = f"{PROFILE_NAMES[profile]}, {RECOVERY_NAMES[which]}"
            own = {name: recovered[profile, which, name] for name in records}
            drawn[title] = figures.embeddings_and_marginals(records, own, which, prepared)
            names[title] = f"returns-{profile}-{which}"
    folder.mkdir(exist_ok=True)
    for title, figure in drawn.items():
        figure.savefig(folder / f"{names[title]}.png", dpi=150)
    return drawn
