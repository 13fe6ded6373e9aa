"""The paired construction: cost against the number of transitions, the plan, and the literal evaluation.

Run ``python -m tests.benchmarks.paired`` (about twenty minutes on two cores) or, smaller,
``python -m tests.benchmarks.paired --transitions 10000 100000 --sweep 2000 20000``. L = 150, m = 100,
s = 300, Q = 128, M = 10,000. Every fit runs in a process of its own, with threads; times are of this
machine, in this run. The matrix-free form is timed over a few products, because each is as long as a pass.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np

from kedrl_dask import KEDRL, Matern
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.passes.paired_objective import PairedObjective
from kedrl_dask.estimator.fit import paired
from kedrl_dask.numerics.criterion.separation_test import SeparationWarning
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.solvers import PCG
from tests import dense
from tests.memory import peak_memory
from tests.numerics.criterion import test_separation

PAIR = simulation.PAIRS["uniform-gaussian"]
SIZES = {"n_basis": 150, "n_atoms": 100, "n_landmarks": 300, "n_features": 128, "n_conditioning": 10_000}
#: Memory of a sweep that must recompute: less than the features of 100,000 transitions take.
SWEEP_MEMORY = "900 MiB"
#: Sizes at which the literal evaluation runs: N, m, L.
LITERAL = (300, 30, 20)


def run_one(path, form, max_iterations):
    """Fit in this process; returns plain numbers."""
    solver = PCG(max_iterations=max_iterations) if max_iterations else PCG()
    model = KEDRL(
        simulation.DISCOUNT, return_kernel=PAIR.settings.kernel, construction="paired", paired_form=form,
        centring="none", solver=solver, **SIZES,
    )  # fmt: skip
    memory = SWEEP_MEMORY if form == "matrix-free" else None
    plan = model.plan(path, memory=memory)
    start = time.perf_counter()
    model.fit(path, PAIR.target, memory=memory, progress="none")
    return {
        "wall": time.perf_counter() - start,
        "seconds": model.diagnostics_["seconds"],
        "planned": {stage.name: stage.seconds for stage in plan.stages},
        "planned_memory": plan.memory,
        "memory": peak_memory(),
        "products": model.solution_.n_products,
        "result": model.solution_.result.name.lower(),
        "residency": plan.residency,
    }


def child(path, form, max_iterations=0):
    command = [sys.executable, "-m", "tests.benchmarks.paired", "--child", str(path), form]
    command += ["--max-iterations", str(max_iterations)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def report_contracted(runs):
    print("contracted; in brackets what the plan said")
    names = list(next(iter(runs.values()))["seconds"])
    print(f"{'seconds':<22}" + "".join(f"{n:>22,}" for n in runs))
    for name in names:
        cells = (f"{r['seconds'][name]:.1f} ({r['planned'].get(name, 0):.1f})" for r in runs.values())
        print(f"{name:<22}" + "".join(f"{cell:>22}" for cell in cells))
    cells = (f"{r['wall']:.1f} ({sum(r['planned'].values()):.1f})" for r in runs.values())
    print(f"{'total':<22}" + "".join(f"{cell:>22}" for cell in cells))
    cells = (f"{r['memory'] / 2**20:,.0f} ({r['planned_memory'] / 2**20:,.0f})" for r in runs.values())
    print(f"{'peak memory, MiB':<22}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"{'products':<22}" + "".join(f"{r['products']:>22,}" for r in runs.values()))
    for small, large in pairwise(runs):
        ratio = runs[large]["seconds"]["contraction"] / runs[small]["seconds"]["contraction"]
        memory = runs[large]["memory"] / runs[small]["memory"]
        print(f"{large:,} against {small:,}: contraction {ratio:.1f} × the time, {memory:.2f} × the memory")


def report_swept(runs):
    print(f"matrix-free within {SWEEP_MEMORY}, for each product; in brackets what the plan said")
    per_product = {n: r["seconds"]["solver"] / r["products"] for n, r in runs.items()}
    planned = {n: r["planned"]["solver"] / 100 for n, r in runs.items()}
    for n, r in runs.items():
        memory = f"{r['memory'] / 2**20:,.0f} ({r['planned_memory'] / 2**20:,.0f}) MiB"
        print(
            f"{n:>12,} transitions: {per_product[n]:.2f} s ({planned[n]:.2f} s), {memory}, {r['residency']}"
        )
    for small, large in pairwise(runs):
        ratio, memory = per_product[large] / per_product[small], runs[large]["memory"] / runs[small]["memory"]
        print(f"{large:,} against {small:,}: product {ratio:.1f} × the time, {memory:.2f} × the memory")


class FeatureGram:
    """Kernel matrices of the features, by a product: the oracle's own way takes too much memory here."""

    def __init__(self, frequencies, sigma):
        self.frequencies, self.scale = frequencies, sigma**2 / len(frequencies)

    def gram(self, zs, others):
        return (
            self.scale
            * waves(np.asarray(zs), self.frequencies)
            @ waves(np.asarray(others), self.frequencies).T
        )


def against_literal(folder):
    """Value and gradient by the N²m² formula at one conditioning point, and by the contracted form at all."""
    n, m, n_basis = LITERAL
    store = simulation.write(Path(folder) / "literal", PAIR, n)
    captured = []

    class Captured(PairedObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            captured.append(self)

    paired.PairedObjective = Captured
    kernel = Matern(2.5, 4.0)
    model = KEDRL(
        simulation.DISCOUNT, input_kernel=kernel, return_kernel=PAIR.settings.kernel, construction="paired",
        centring="none", paired_form="contracted", n_atoms=m, n_basis=n_basis, n_landmarks=n, n_features=128,
        n_draws=2, ridge_gamma=1e-3, ridge_b=1e-6, precision="double",
    )  # fmt: skip
    model.fit(store, PAIR.target, cache=Path(folder) / "cache", progress="none")
    problem, t = captured[0], store.transitions()
    kappa = dense.continuation_sampled(kernel, model.basis_, t.next_state, t.terminal, PAIR.target, 2)
    features = FeatureGram(model.frequencies_, model.return_kernel_.sigma)
    oracle = dense.PairedCriterion(
        kernel, features, t.inputs, t.reward, t.terminal, kappa, model.basis_, model.grid_, t.inputs[:1],
        np.ones(1), simulation.DISCOUNT, 1e-3, 1e-6, 1.0,
    )  # fmt: skip
    literal = timed(lambda: oracle.gradient(model.coefficients_))
    fast = timed(lambda: problem.value_and_gradient(np.ones(problem.shape)))
    ratio = literal * problem.n_points / fast
    print(f"N = {n}, m = {m}, L = {n_basis}, {problem.n_points} conditioning points, value and gradient:")
    print(f"literal, kernel values in memory: {literal * 1e3:.0f} ms at one point")
    print(f"contracted: {fast * 1e3:.1f} ms at all of them, {ratio:,.0f} × faster")


def timed(call, repeats=5):
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--sweep", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts to run")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--max-iterations", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_one(*options.child, options.max_iterations)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only:
            PARTS[part](Path(folder), options)


def contracted(folder, options):
    paths = written(folder, options.transitions)
    report_contracted({n: child(path, "contracted") for n, path in paths.items()})


def matrix_free(folder, options):
    paths = written(folder, options.sweep)
    report_swept({n: child(path, "matrix-free", 4) for n, path in paths.items()})


def written(folder, sizes):
    paths = {n: folder / str(n) for n in sizes}
    for n, path in paths.items():
        if not path.exists():
            simulation.write(path, PAIR, n)
    return paths


def literal(folder, options):
    against_literal(folder)


def systems(folder, options):
    """Errors of both constructions on every simulated system, at the sizes of tests/test_separation.py."""
    print(f"{'mean RMSE, N = 8,000':<22}{'separated':>12}{'paired':>12}  recommended")
    for name, system in simulation.SYSTEMS.items():
        store, errors = simulation.write(folder / name, PAIR, 8_000, system=system), []
        for construction in ("paired", "separated"):
            model = KEDRL(
                simulation.DISCOUNT, construction=construction, return_kernel=PAIR.settings.kernel,
                centring="none", **test_separation.SIZES,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SeparationWarning)
                model.fit(store, PAIR.target, progress="none")
            errors.append(test_separation.rmse(model, system))
        recommended = model.diagnostics_["separation"]["recommends"]
        print(f"{name:<22}{errors[1]:>12.4f}{errors[0]:>12.4f}  {recommended}")


PARTS = {"contracted": contracted, "matrix-free": matrix_free, "literal": literal, "systems": systems}


if __name__ == "__main__":
    main()
