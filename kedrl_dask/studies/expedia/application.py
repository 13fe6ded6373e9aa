"""The whole application: data, policies, fits, recovered laws, tables, figures and the page."""

from __future__ import annotations

import time
from pathlib import Path

from kedrl_dask.datasets.expedia.panel import PAPER_TEST, PAPER_TRAINING
from kedrl_dask.engine.storage.atomic import remove, write_atomic
from kedrl_dask.plots.style import Figure
from kedrl_dask.studies.expedia import figures
from kedrl_dask.studies.expedia.fits import CACHE, fit
from kedrl_dask.studies.expedia.page import page
from kedrl_dask.studies.expedia.preparation import Prepared, Request, prepare
from kedrl_dask.studies.expedia.specification import POLICIES, PROFILES, RECOVERIES, Sizes
from kedrl_dask.studies.expedia.summary import Fits, Laws, laws, summarise
from kedrl_dask.studies.expedia.tables import PROFILE_NAMES, RECOVERY_NAMES
from kedrl_dask.studies.output import write_results
from kedrl_dask.studies.runner import claim
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.progress import Reporter

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
) -> Record:
    """Evaluate the two policies, write tables, figures and a page, and return the summary.

    The directory is new, empty, or that of an earlier run, whose stores and fits are kept if settings agree.
    ``data`` is ``train.csv`` as published; without it ``searches`` are simulated. Numbers of training and
    test transitions may be None, which takes all, divided as in the paper; ``sizes`` are the paper's by
    default. With ``with_adamw``, AdamW is run on the criterion of the first policy for as long as the
    minimiser took.
    """
    start, output, sizes = time.perf_counter(), Path(output), sizes or Sizes()
    request = Request(None if data is None else Path(data), searches, training, test, seed)
    request.facts()  # a missing file is reported before anything is written
    claim(output, STUDY)
    reporter = Reporter()
    prepared = prepare(output, request, reporter)
    fits = {
        profile: {
            name: fit(output, prepared, name, profile, sizes, seed, _is_compared(with_adamw, profile, name))
            for name in POLICIES
        }
        for profile in PROFILES
    }
    with reporter.stage("recovery"):
        recovered = laws(fits, prepared)
        summary = summarise(fits, recovered, prepared)
    with reporter.stage("results"):
        drawn = _draw(fits, recovered, prepared) if draw else {}
        summary["seconds"] = time.perf_counter() - start
        write_results(output, summary, figures={name: figure for name, (_, figure) in drawn.items()})
        write_atomic(output / "report.html", page(summary, dict(drawn.values())))
    remove(output / CACHE)  # gigabytes of sums, which finished fits no longer need
    return summary


def _is_compared(with_adamw: bool, profile: str, name: str) -> bool:
    return with_adamw and profile == "paper" and name == next(iter(POLICIES))


def _draw(fits: Fits, recovered: Laws, prepared: Prepared) -> dict[str, tuple[str, Figure]]:
    """Titles and figures by the names of their files."""
    drawn = {"actions": ("actions", figures.actions(prepared))}
    for profile, records in fits.items():
        for which in RECOVERIES:
            title = f"{PROFILE_NAMES[profile]}, {RECOVERY_NAMES[which]}"
            own = {name: recovered[profile, which, name] for name in records}
            figure = figures.embeddings_and_marginals(records, own, which, prepared)
            drawn[f"returns-{profile}-{which}"] = title, figure
    return drawn
