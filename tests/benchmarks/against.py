"""The same criterion three ways at the paper's size: this package, its AdamW mode, and the dense path.

Run ``python -m tests.benchmarks.against`` (N = M = 14,700, L = 250, m = 100, Q = 256). The dense path holds
the N×N kernel matrix, the N×M conditional weights Γ and the M×m×m operators H and G, as the paper does.
Each way runs in a process of its own; the clock runs from the transitions in memory to the criterion's value.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from kedrl_dask import KEDRL
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.passes.separated_objective import BellmanObjective
from kedrl_dask.estimator.fit import separated as separating
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.numerics.criterion.separated import ReturnSpace
from kedrl_dask.numerics.kernels.spectral import waves
from kedrl_dask.numerics.solvers import PCG, AdamW
from tests.memory import peak_memory

PAIR = simulation.PAIRS["uniform-gaussian"]
#: λ_Γ and λ_B, given so that all ways minimise the same criterion.
RIDGES = {"ridge_gamma": 3e-5, "ridge_b": 1e-7}


class Clocked:
    """A solver whose values carry the time."""

    def __init__(self, solver):
        self.solver, self.start, self.values = solver, time.perf_counter(), []

    def solve(self, problem, start=None, report=None):
        def noted(record):
            self.values.append((time.perf_counter() - self.start, record.value))

        return self.solver.solve(problem, start, noted)


def fit(store, solver):
    clocked = Clocked(solver)
    model = KEDRL(
        simulation.DISCOUNT, return_kernel=PAIR.settings.kernel, solver=clocked,
        **RIDGES, **VERSION_ONE,
    )  # fmt: skip
    model.set_params(n_conditioning="all", n_draws=2)
    model.fit(store, PAIR.target, executor=ThreadExecutor(), progress="none")
    return model, clocked.values


class DenseProblem:
    """The criterion from H(x) and G(x) at every conditioning point."""

    products_are_exact = is_quadratic = True

    def __init__(self, basis, phi, h, g, space, like):
        self.basis, self.phi, self.h, self.g, self.gram = basis, phi, h, g, space.gram
        self.coordinates, self.whitening, self.shape = like.coordinates, like.whitening, like.shape
        self.n_points = len(basis)

    def _forms(self, c):
        u, v = self.basis @ c, self.phi @ c
        u32, v32 = u.astype(np.float32), v.astype(np.float32)
        by_u = u @ self.gram - np.matmul(self.h, v32[:, :, None])[:, :, 0]
        by_v = np.matmul(self.g, v32[:, :, None])[:, :, 0] - np.matmul(u32[:, None, :], self.h)[:, 0]
        return u, v, by_u, by_v

    def _gradient(self, u, by_u, by_v, c, target):
        excess = u.sum(axis=1, keepdims=True) - target
        pulled = self.basis.T @ (by_u + excess) + self.phi.T @ by_v
        return excess, 2 * pulled / self.n_points + 2 * RIDGES["ridge_b"] * c

    def value_and_gradient(self, c):
        u, v, by_u, by_v = self._forms(c)
        excess, gradient = self._gradient(u, by_u, by_v, c, 1.0)
        value = np.vdot(u, by_u) + np.vdot(v, by_v) + np.vdot(excess, excess)
        return value / self.n_points + RIDGES["ridge_b"] * np.vdot(c, c), gradient

    def product(self, c):
        u, _, by_u, by_v = self._forms(c)
        return self._gradient(u, by_u, by_v, c, 0.0)[1]

    def precondition(self, residual):
        return residual


def dense(store):
    """N×N weights and M×m×m operators, then the same solver; choices and preconditioner are given."""
    captured = []

    class Captured(BellmanObjective):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            captured.append(self)

    separating.BellmanObjective = Captured
    model, _ = fit(store, PCG(max_iterations=1))
    like, t = captured[0], store.transitions()
    basis, whitening = like._points.basis, like.whitening
    start = time.perf_counter()
    kernel, n = model.input_kernel_, len(t)
    actions, weights = PAIR.target.draws(t.next_state, 2)
    kappa = sum(
        w * kernel(np.hstack([t.next_state, a]), basis.landmarks)
        for a, w in zip(actions, weights, strict=True)
    )
    gram = kernel(t.inputs, t.inputs)
    system = gram + n * RIDGES["ridge_gamma"] * np.eye(n)
    gamma = cho_solve(cho_factor(system, lower=True, overwrite_a=True), gram, overwrite_b=True)
    phi = gamma.T @ kappa @ whitening
    rho = gamma.T @ waves(t.reward, model.frequencies_)
    del gram, system, gamma
    space = ReturnSpace.build(model.grid_, model.frequencies_, model.discount, model.return_kernel_)
    m = len(model.grid_)
    h, g = np.empty((2, n, m, m), np.float32)
    for rows in np.array_split(np.arange(n), 60):
        h[rows], g[rows] = separated.operators(space, rho[rows])
    clocked = Clocked(PCG(tolerance=1e-5))
    clocked.start = start
    clocked.solve(DenseProblem(basis(t.inputs), phi, h, g, space, like))
    return clocked.values


def run(way, path):
    store = simulation.TransitionStore.open(path)
    if way == "dense":
        values = dense(store)
    else:
        solver = PCG() if way == "pcg" else AdamW(batch_size=150, learning_rate=3e-4)
        _, values = fit(store, solver)
    return {"values": values, "memory": peak_memory()}


def compare(folder, n_transitions=14_700):
    """Print what each way took."""
    path = Path(folder) / "against"
    simulation.write(path, PAIR, n_transitions)
    results = {}
    for way in ("pcg", "adamw", "dense"):
        command = [sys.executable, "-m", "tests.benchmarks.against", "--way", way, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        results[way] = json.loads(done.stdout.splitlines()[-1])
    best = {way: min(value for _, value in r["values"]) for way, r in results.items()}
    print(f"N = {n_transitions:,}, one process, all threads; peak memory; smallest value of the criterion")
    for way, r in results.items():
        seconds = r["values"][-1][0]
        # Of values that rise and fall, the first as small as the target counts.
        reached = next((s for s, value in r["values"] if value <= 1.001 * best["adamw"]), np.inf)
        text = f"{way:<6} {seconds:7.1f} s {r['memory'] / 2**20:8,.0f} MiB  {best[way]:.4e}"
        print(f"{text}  AdamW's smallest value after {reached:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=14_700)
    parser.add_argument("--way", nargs=2, metavar=("WAY", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(*options.way)))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(folder, options.transitions)


if __name__ == "__main__":
    main()
