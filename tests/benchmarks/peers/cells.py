"""The methods by name, and the cells of the benchmark: each is computed once, and kept in a small file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from kedrl_dask.datasets.benchmark import CASES
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.studies.systems import METRICS, empirical, errors
from tests.benchmarks.peers.problem import Problem

MEAN, MARGINAL, JOINT = ("mean",), ("mean", "quantiles", "cvar"), tuple(METRICS)


@dataclass(frozen=True)
class Method:
    """A method: its module, which is imported where it runs, and the metrics that its answers have."""

    module: str
    metrics: tuple[str, ...]

    @property
    def returns(self) -> Callable:
        """Returns (n, size, d) of a problem at states (n, p) and actions (n, q)."""
        return import_module(f"tests.benchmarks.peers.{self.module}").returns

    def answers(self, dim):
        """Names of the metrics for returns with so many coordinates: marginal laws of one are joint."""
        return JOINT if self.metrics == MARGINAL and dim == 1 else self.metrics


METHODS = {
    "fitted-likelihood": Method("fitted_likelihood", JOINT),
    "quantile-fqe": Method("quantile_fqe", MARGINAL),
    "gaussian-rollouts": Method("gaussian_rollouts", JOINT),
    "nearest-rollouts": Method("nearest_rollouts", JOINT),
    "lstd": Method("lstd", MEAN),
    "d3rlpy-fqe": Method("d3rlpy_fqe", MEAN),
}


def check(names, known, what):
    """Refuse names that are not known, and none at all."""
    if not names:
        raise ValueError(f"{what}: give at least one of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"{what}: {name!r} is not one of {', '.join(known)}")


@lru_cache(maxsize=1)
def given(system, size, replicate):
    """The problem, the same as that of ``kedrl study systems``, and the truth by which it is judged."""
    case = CASES[system]
    return Problem.of_case(case, size, replicate), case.truth(replicate)


def evaluate(system, size, replicate, method):
    """Errors of one method, means over the inputs; None for a metric that its answers do not have."""
    problem, truth = given(system, size, replicate)
    start = time.perf_counter()
    returns = METHODS[method].returns(problem, truth.state, truth.action)
    seconds = time.perf_counter() - start
    if not np.isfinite(returns).all():
        raise ValueError("the returns are not all finite")
    found = errors(empirical(returns), truth.returns)
    answered = METHODS[method].answers(truth.returns.shape[2])
    means = {name: float(found[name].mean()) if name in answered else None for name in METRICS}
    return {**means, "seconds": seconds}


def run(output, systems=tuple(CASES), sizes=(15_000,), replicates=1, methods=tuple(METHODS), report=print):
    """Compute the cells that have no file yet, write all of them as a table, and return it.

    A cell that fails is reported, and does not stop the others.
    """
    check(systems, CASES, "systems")
    check(methods, METHODS, "methods")
    folder = Path(output) / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for replicate, system, size, method in product(range(replicates), systems, sizes, methods):
        labels = {"system": system, "transitions": size, "replicate": replicate, "method": method}
        path = folder / f"{system}_{size}_{replicate}_{method}.json"
        if not path.exists():
            try:
                write_json(path, evaluate(system, size, replicate, method))
            except Exception as error:
                report(f"{path.stem} failed: {type(error).__name__}: {error}")
                continue
            report(f"{path.stem}: {json.loads(path.read_text())['seconds']:.0f} s")
        rows.append({**labels, **json.loads(path.read_text())})
    if not rows:
        raise ValueError("every cell failed")
    table = pd.DataFrame(rows)
    table[list(METRICS)] = table[list(METRICS)].astype(float)
    table.to_csv(Path(output) / "peers.csv", index=False)
    return table
