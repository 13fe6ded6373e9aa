"""``kedrl study``: the paper's studies, resumable, with one process for each core."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType

from rich.console import Console

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import (
    Option,
    Verb,
    count,
    failures,
    given,
    number,
    option,
    path,
    positive,
    replicates,
    show,
    workers,
    written,
)
from kedrl_dask.datasets.benchmark import NAMES
from kedrl_dask.datasets.expedia.panel import PAPER_TEST, PAPER_TRAINING
from kedrl_dask.datasets.simulation import PAIRS
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies import coverage, reservoir, sensitivity, simulation, systems
from kedrl_dask.studies.expedia import application
from kedrl_dask.studies.expedia import tables as expedia_tables
from kedrl_dask.studies.expedia.specification import Sizes
from kedrl_dask.studies.profiles import PROFILES
from kedrl_dask.utils.arrays import Record

NOTE = """\
examples:
  kedrl study simulation --output study --replicates 10 --profiles auto
  kedrl study coverage --output coverage --replicates 100 --bootstrap 12
  kedrl study sensitivity --output sensitivity --values n_atoms=50,100
  kedrl study systems --output systems --systems counts ring --sizes 3000 15000

A cell is one fit on one simulated dataset, written as soon as it is finished. Repeating the command resumes
an interrupted study; with more replicates, pairs or profiles it computes only the missing cells.

"""
EXPEDIA_NOTE = """\
The published data, train.csv of Kaggle's "Personalize Expedia Hotel Searches", may not be redistributed:
download it there and pass it with --data. Without it searches are simulated: the same columns, invented
numbers.

Stores and fits are kept in DIR: repeat the command to resume an interrupted study.

"""
RESERVOIR_NOTE = """\
Needs the extra: pip install 'kedrl-dask[rl]'. Data, returns and sums are kept in DIR.

"""


def _finish(options: argparse.Namespace, summary: Record, study: ModuleType, ending: str = "") -> None:
    """Print the summary of a study, with its tables."""

    def render(console: Console) -> None:
        study.render(summary, console)
        console.print(f"\n{ending}{written(options.output)}")

    show(options, summary, render)


def _cells(study: ModuleType) -> Callable[[argparse.Namespace], int]:
    """Run a study of many cells."""

    def run(options: argparse.Namespace) -> int:
        settings = given(options)
        if "values" in settings:
            settings["values"] = dict(settings["values"]) or None
        summary = study.run(**settings | dict(settings.pop("parameters", ()))).summary
        ending = f"{summary['cells']:,} cells, {summary['computed']:,} of them computed now. "
        _finish(options, summary, study, ending)
        return failures([f"cell {name} failed: {error}" for name, error in summary["failed"].items()])

    return run


def _expedia(options: argparse.Namespace) -> int:
    settings = given(options)
    if settings.pop("takes_all"):
        settings |= {"training": None, "test": None}
    sizes = {f"n_{name}": settings.pop(name) for name in ("atoms", "basis", "landmarks", "centers")}
    sizes["n_own_basis"] = min(options.basis, Sizes.n_own_basis)
    sizes["n_own_landmarks"] = min(options.landmarks, Sizes.n_own_landmarks)
    summary = application.run(sizes=Sizes(**sizes), **settings)
    _finish(options, summary, expedia_tables, f"{summary['seconds']:.0f} s in all. ")
    return failures(
        [
            f"the fit did not converge: {profile}, {name}: {fit['solver']['meaning']}"
            for profile, by_policy in summary["fits"].items()
            for name, fit in by_policy.items()
            if fit["solver"]["result"] != "converged"
        ]
    )


def _reservoir(options: argparse.Namespace) -> int:
    summary = reservoir.run(**given(options))
    _finish(options, summary, reservoir)
    result = summary["result"]
    return failures([] if result == "converged" else [f"the fit did not converge: {result}"])


def _sizes(text: str) -> tuple[str, list[int]]:
    """A factor and its sizes; argparse turns the error into a usage message."""
    name, _, sizes = text.partition("=")
    if name not in sensitivity.FACTORS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(sensitivity.FACTORS)}")
    return name, [positive(size) for size in sizes.split(",")]


def _parameter(text: str) -> tuple[str, int | float | str]:
    """A parameter of KEDRL with its value, a number or a word."""
    name, has_value, value = text.partition("=")
    known = sorted(set(inspect.signature(KEDRL).parameters) - {"discount", "return_kernel", "random_state"})
    if not has_value or name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    for kind in (int, float):
        with suppress(ValueError):
            return name, kind(value)
    return name, value


def _output(kept: str) -> Option:
    meaning = f"new or empty directory, or that of an earlier run, of which {kept} are kept"
    return option(meaning, type=path, required=True, metavar="DIR")


def _some(meaning: str, choices: tuple[str, ...], metavar: str) -> Option:
    meaning += ": %(choices)s (default: all)"
    return option(meaning, choices, nargs="+", choices=choices, metavar=metavar)


def _of_cells(
    study: ModuleType,
    description: str,
    options: Mapping[str, Option],
    n_replicates: int,
    n_transitions: int | None = 14_700,
) -> Verb:
    """A study of many cells: options that all such studies have, and its own.

    With ``n_transitions=None`` it has no option ``--transitions``.
    """
    common: dict[str, Option] = {
        "--output": _output("finished cells"),
        "--replicates": option("independent datasets", n_replicates, type=replicates, metavar="R"),
        "--workers": option(
            "worker processes, each computing one cell at a time; 0 uses threads of this process (default: "
            "the number of cores)",
            type=workers,
            metavar="N",
        ),
        "--json": shared.JSON,
    }
    if n_transitions is not None:
        common["--transitions"] = option(
            "transitions of each dataset", n_transitions, type=positive, metavar="N"
        )
    interrupted = "finished cells are kept; repeat the command to resume"
    return Verb(description, {**common, **options}, _cells(study), NOTE, interrupted=interrupted)


_SET = option(
    "a parameter of KEDRL for all fits, instead of the automatic one; may be repeated",
    [],
    action="append",
    type=_parameter,
    dest="parameters",
    metavar="NAME=VALUE",
)
SIMULATION = _of_cells(
    simulation,
    "Six pairs of policies at ten points each, beside the paper's table, which has 100 replicates.",
    {
        "--no-plots": shared.NO_PLOTS,
        "--pairs": _some("behaviour and target policies", tuple(PAIRS), "PAIR"),
        "--profiles": _some("settings of the fits, as in kedrl demo", PROFILES, "PROFILE"),
        "--monte-carlo": option(
            "Monte Carlo references of the repeated diagnostic, on replicate 0; 0 skips it",
            50,
            type=count,
            metavar="B",
        ),
    },
    n_replicates=10,
)
COVERAGE = _of_cells(
    coverage,
    "How often the bootstrap's intervals contain the truth, on many small datasets.",
    {
        "--pair": shared.pair(),
        "--bootstrap": option("bootstrap replicates of each fit", 30, type=replicates, metavar="B"),
        "--level": option("nominal coverage of the intervals", 0.9, type=number, metavar="P"),
    },
    n_replicates=200,
    n_transitions=4_000,
)
SENSITIVITY = _of_cells(
    sensitivity,
    "The error as a function of each size and of the number of transitions, varied one at a time.",
    {
        "--pair": shared.pair(),
        "--values": option(
            f"sizes of one factor, of {', '.join(sensitivity.FACTORS)}; may be repeated (default: all, up to "
            "a million transitions)",
            [],
            action="append",
            type=_sizes,
            metavar="FACTOR=N,N,…",
        ),
        "--set": _SET,
        "--no-plots": shared.NO_PLOTS,
    },
    n_replicates=3,
)
SYSTEMS = _of_cells(
    systems,
    "Errors of the recovered laws on systems unlike the paper's, with plain defaults, and which are refused.",
    {
        "--systems": option(
            "systems: %(choices)s (default: all; the last three need the extra rl)",
            nargs="+",
            choices=NAMES,
            metavar="SYSTEM",
        ),
        "--sizes": option(
            f"transitions of the datasets (default: {' '.join(map(str, systems.SIZES))})",
            systems.SIZES,
            nargs="+",
            type=positive,
            metavar="N",
        ),
        "--set": _SET,
        "--no-plots": shared.NO_PLOTS,
    },
    n_replicates=3,
    n_transitions=None,
)
EXPEDIA = Verb(
    "Two policies on hotel searches: the paper's tables, figures and a page.",
    {
        "--output": _output("finished fits"),
        "--all": option(
            "use all searches rather than as many as the paper", action="store_true", dest="takes_all"
        ),
        "--training": option("training transitions", PAPER_TRAINING, type=positive, metavar="N"),
        "--test": option("test transitions", PAPER_TEST, type=positive, metavar="N"),
        "--atoms": option("atoms of the return grid", Sizes.n_atoms, type=positive, metavar="M"),
        "--basis": option("points of the state-action basis", Sizes.n_basis, type=positive, metavar="L"),
        "--landmarks": option(
            "landmarks of the conditional weights, in the paper's setting",
            Sizes.n_landmarks,
            type=positive,
            metavar="S",
        ),
        "--centers": option("centres of uLSIF", Sizes.n_centers, type=positive, metavar="B"),
        "--seed": shared.SEED,
        "--no-adamw": option(
            "skip the run of AdamW, which takes as long as the solver of one fit",
            action="store_false",
            dest="with_adamw",
        ),
        "--no-plots": shared.NO_PLOTS,
        "--json": shared.JSON,
    },
    _expedia,
    EXPEDIA_NOTE,
    {
        "--data": option("train.csv as published", type=path, metavar="FILE"),
        "--simulated": option(
            "simulate N searches", application.SEARCHES, type=positive, dest="searches", metavar="N"
        ),
    },
    "finished fits are kept; repeat the command to resume",
)
RESERVOIR = Verb(
    "A dam of MO-Gymnasium: estimates beside returns of the environment itself.",
    {
        "--output": _output("data and returns"),
        "--episodes": option("logged episodes of 60 steps", 250, type=positive, metavar="N"),
        "--returns": option(
            "returns of the environment at each of ten levels", 2_000, type=positive, metavar="B"
        ),
        "--bootstrap": option("bootstrap replicates", 12, type=replicates, metavar="B"),
        "--seed": shared.SEED,
        "--no-plots": shared.NO_PLOTS,
        "--json": shared.JSON,
    },
    _reservoir,
    RESERVOIR_NOTE,
    interrupted="finished data and returns are kept",
)
VERB = Verb(
    "Run one of the paper's studies.",
    {},
    note=NOTE,
    kinds={
        "simulation": SIMULATION,
        "coverage": COVERAGE,
        "sensitivity": SENSITIVITY,
        "systems": SYSTEMS,
        "expedia": EXPEDIA,
        "reservoir": RESERVOIR,
    },
)
