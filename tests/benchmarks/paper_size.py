"""A fit at the paper's sizes: peak memory, time by stage, and the products that the solver takes.

Run ``python -m tests.benchmarks.paper_size`` (``--workers 2`` for worker processes). N = M = 14,700, L = 250,
m = 100, Q = 768. The figures are of this machine, measured in this run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from kedrl_dask import KEDRL
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute.threads import ThreadExecutor
from tests.benchmarks.scale import PeakMemory
from tests.memory import peak_memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=14_700)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0 is threads")
    options = parser.parse_args()
    pair = simulation.PAIRS["uniform-gaussian"]
    model = KEDRL(
        simulation.DISCOUNT,
        construction="separated",
        centring="none",
        return_kernel=pair.settings.kernel,
        n_features=options.features,
        n_conditioning=options.transitions,
    )
    before, workers = peak_memory(), PeakMemory()
    with tempfile.TemporaryDirectory() as folder:
        store = simulation.write(Path(folder) / "store", pair, options.transitions)
        if options.workers:
            with local_cluster(options.workers) as executor:
                model.fit(store, pair.target, executor=executor, progress="none")
        else:
            model.fit(store, pair.target, executor=ThreadExecutor(), progress="none")
    report(model, before, workers.child)


def report(model, before, largest_worker):
    sizes, seconds, solution = model.diagnostics_["sizes"], model.diagnostics_["seconds"], model.solution_
    n, m_points, m = sizes["transitions"], sizes["conditioning"], sizes["atoms"]
    print("  ".join(f"{name} {value:,}" for name, value in sizes.items()))
    for stage, value in seconds.items():
        print(f"{stage:<22}{value:8.1f} s")
    print(f"{'total':<22}{sum(seconds.values()):8.1f} s")
    print(f"solver: {solution.n_products} products to {solution.certificate:.1e}")
    mib = 2**20
    own = f"{peak_memory() / mib:,.0f} MiB ({before / mib:,.0f} before the fit)"
    print(f"peak memory: this process {own}", end="")
    print(f", largest worker {largest_worker / mib:,.0f} MiB" if largest_worker else "")
    for name, size in (("N×N", n * n), ("N×M", n * m_points), ("M×m×m", m_points * m * m)):
        print(f"a float64 array {name} alone would be {8 * size / mib:,.0f} MiB")


if __name__ == "__main__":
    main()
