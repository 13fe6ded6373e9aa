"""Cost against the number of transitions: time by stage, memory, efficiency, a second policy, two workers.

Run ``python -m tests.benchmarks.scale`` (about ten minutes on two cores) or, smaller,
``python -m tests.benchmarks.scale --transitions 20000 200000 --no-dense``. Every fit runs in a process of
its own. Times and rates are of this machine, in this run. GEMM is NumPy's own rate in single precision, by
as many processes at once as there are workers, before and after each fit: machines that are shared change
their speed within minutes. Plain NumPy is :mod:`tests.benchmarks.plain`, in as many processes. A product's
time is the mean over its tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from kedrl_dask import KEDRL, policies, separating
from kedrl_dask.chunks import over_group
from kedrl_dask.datasets import simulation
from kedrl_dask.execute import local_cluster
from kedrl_dask.objective import BellmanObjective, _product
from tests.benchmarks import against, plain

PAIR = simulation.PAIRS["uniform-gaussian"]
SECOND = policies.Gaussian(PAIR.target.weights, bias=0.1, scale=np.exp(-2.4))
GIB, MIB = 2**30, 2**20


def gemm_rate(n_threads, seconds=5.0, size=2_000):
    """Sustained rate of float32 matrix products by ``n_threads`` processes with one BLAS thread, flop/s."""
    code = (
        "import numpy as np, time\n"
        f"a = np.random.default_rng(0).random(({size}, {size})).astype('f')\n"
        "a @ a\n"
        "n, start = 0, time.perf_counter()\n"
        f"while time.perf_counter() < start + {seconds}:\n"
        "    a @ a\n    n += 1\n"
        f"print(2 * {size}**3 * n / (time.perf_counter() - start))"
    )
    return sum(float(printed) for printed in at_once(n_threads, "-c", code))


def plain_seconds(n_threads, sizes):
    """Seconds of plain NumPy for a million rows of the pass and for a product, dealt out to processes."""
    printed = [json.loads(text) for text in at_once(n_threads, "-m", plain.__name__, json.dumps(sizes))]
    return {name: np.mean([one[name] for one in printed]) / n_threads for name in printed[0]}


def at_once(n_processes, *arguments):
    """What as many Python processes print that run at the same time with one BLAS thread each."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(n_processes)
    ]
    return [process.communicate()[0] for process in running]


class PeakMemory(threading.Thread):
    """Samples the memory of this process and its children: the largest sum, and the largest child."""

    def __init__(self):
        super().__init__(daemon=True)
        self.total = self.child = 0
        self.start()

    def run(self):
        own = psutil.Process()
        while True:
            children = []
            for process in own.children(recursive=True):
                try:
                    children.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.total = max(self.total, own.memory_info().rss + sum(children))
            self.child = max(self.child, max(children, default=0))
            time.sleep(0.5)


def timed_group(group, points, residency, *arguments):
    """Seconds inside a task, without what it takes to get there; and its result."""
    start = time.perf_counter()
    result = over_group(group, points, residency, *arguments)
    return time.perf_counter() - start, result


class CapturedObjective(BellmanObjective):
    """Remembers itself."""

    latest = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        CapturedObjective.latest = self

    def products(self, repeats=30):
        """Shares of a product's time: in tasks as a mean over threads, and lost around the slowest."""
        wall, inside, lost = [], [], []
        for _ in range(repeats):
            start = time.perf_counter()
            direction = self._executor.share(np.ones(self.shape, self._points.dtype))
            arguments = (_product, self._spaces[self._points.dtype], self._penalties, direction)
            times = self.chunks.each(timed_group, *arguments)
            wall.append(time.perf_counter() - start)
            inside.append(np.mean([seconds for seconds, _ in times]))
            lost.append(1 - max(seconds for seconds, _ in times) / wall[-1])
        return {"product": np.median(wall), "inside": np.median(inside), "overhead": np.median(lost)}


def run_one(store, n_workers, second):
    """Fit in this process with worker processes; returns plain numbers."""
    separating.BellmanObjective = CapturedObjective
    peak = PeakMemory()
    model = KEDRL(simulation.DISCOUNT, return_kernel=PAIR.settings.kernel, n_conditioning=20_000)
    with tempfile.TemporaryDirectory(dir=Path(store).parent) as cache, local_cluster(n_workers) as executor:
        plan = model.plan(store, executor=executor)
        model.fit(store, PAIR.target, executor=executor, cache=cache, progress="none")
        out = CapturedObjective.latest.products() | {
            "sizes": model.diagnostics_["sizes"],
            "seconds": model.diagnostics_["seconds"],
            "planned_seconds": {stage.name: stage.seconds for stage in plan.stages},
            "planned_memory": plan.memory,
            "products": model.solution_.n_products,
            "largest_worker": peak.child,
            "all_processes": peak.total,
        }
        if second:
            model.fit(store, SECOND, executor=executor, cache=cache, progress="none")
            out["second"] = model.diagnostics_["seconds"]
    return out


def child(store, n_workers, second=False):
    """Run a fit in a process of its own, between two measurements of GEMM."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.scale",
        "--child",
        str(store),
        "--workers",
        str(n_workers),
    ]
    before = gemm_rate(n_workers)
    done = subprocess.run(command + ["--second"] * second, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    run = json.loads(done.stdout.splitlines()[-1])
    run["gemm"] = (before + gemm_rate(n_workers)) / 2
    run["plain"] = plain_seconds(n_workers, run["sizes"])
    return run


def pass_flop(sizes):
    """Flop of the matrix products of the streaming pass: features r², Gram matrix r², responses."""
    r = sizes["rank"]
    return sizes["transitions"] * 2 * r * (r + sizes["basis"] + 2 * sizes["features"])


def product_flop(sizes):
    return 8 * sizes["conditioning"] * sizes["atoms"] * (sizes["basis"] + 2 * sizes["features"])


def report(runs):
    names = list(next(iter(runs.values()))["seconds"])
    print(f"{'seconds':<24}" + "".join(f"{n:>14,}" for n in runs))
    for name in names:
        print(f"{name:<24}" + "".join(f"{run['seconds'][name]:>14.1f}" for run in runs.values()))
    total = {n: sum(run["seconds"].values()) for n, run in runs.items()}
    print(f"{'total':<24}" + "".join(f"{total[n]:>14.1f}" for n in runs))
    print(f"{'planned':<24}" + "".join(f"{sum(r['planned_seconds'].values()):>14.1f}" for r in runs.values()))
    second = {n: sum(run["second"].values()) / total[n] for n, run in runs.items()}
    print(f"{'second policy / first':<24}" + "".join(f"{value:>14.2f}" for value in second.values()))
    print(
        f"{'largest worker, MiB':<24}"
        + "".join(f"{r['largest_worker'] / MIB:>14,.0f}" for r in runs.values())
    )
    print(f"{'planned, MiB':<24}" + "".join(f"{r['planned_memory'] / MIB:>14,.0f}" for r in runs.values()))
    print(
        f"{'all processes, MiB':<24}" + "".join(f"{r['all_processes'] / MIB:>14,.0f}" for r in runs.values())
    )
    print(f"{'GEMM, Gflop/s':<24}" + "".join(f"{run['gemm'] / 1e9:>14.0f}" for run in runs.values()))
    rates = {
        n: pass_flop(run["sizes"]) / run["seconds"]["streaming pass"] / run["gemm"] for n, run in runs.items()
    }
    print(f"{'pass, of GEMM':<24}" + "".join(f"{value:>14.0%}" for value in rates.values()))
    rates = {n: product_flop(run["sizes"]) / run["inside"] / run["gemm"] for n, run in runs.items()}
    print(f"{'product, of GEMM':<24}" + "".join(f"{value:>14.0%}" for value in rates.values()))
    rates = {n: run["plain"]["pass"] * n / 1e6 / run["seconds"]["streaming pass"] for n, run in runs.items()}
    print(f"{'pass, × plain NumPy':<24}" + "".join(f"{value:>14.2f}" for value in rates.values()))
    rates = {n: run["plain"]["product"] / run["inside"] for n, run in runs.items()}
    print(f"{'product, × plain NumPy':<24}" + "".join(f"{value:>14.2f}" for value in rates.values()))
    print(f"{'overhead of a product':<24}" + "".join(f"{run['overhead']:>14.0%}" for run in runs.values()))
    sizes = list(runs)
    for small, large in pairwise(sizes):
        times = [runs[n]["seconds"]["streaming pass"] for n in (large, small)]
        memory = runs[large]["largest_worker"] / runs[small]["largest_worker"]
        print(
            f"{large:,} against {small:,}: pass {times[0] / times[1]:.1f} × the time, "
            f"largest worker {memory:.2f} × the memory"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-dense", dest="dense", action="store_false", help="leave out the dense path")
    parser.add_argument("--folder", help="where the data go (default: a temporary folder)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_one(options.child, options.workers, options.second)))
        return
    together, alone = gemm_rate(options.workers), gemm_rate(1)
    words = f"{together / 1e9:.0f} Gflop/s together, {together / alone:.2f} × one"
    print(f"{options.workers} workers of one thread; float32 GEMM {words}", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        runs = {}
        for n in options.transitions:
            start = time.perf_counter()
            simulation.write(Path(folder) / str(n), PAIR, n)
            print(f"simulated {n:,} transitions in {time.perf_counter() - start:.1f} s", flush=True)
            runs[n] = child(Path(folder) / str(n), options.workers, second=True)
        report(runs)
        middle = options.transitions[len(options.transitions) // 2]
        alone, together = child(Path(folder) / str(middle), 1), runs[middle]
        for stage in ("streaming pass", "solver"):
            ratio = alone["seconds"][stage] / together["seconds"][stage]
            print(f"{middle:,}: {options.workers} workers against one, {stage}: {ratio:.2f} × faster")
        if options.dense:
            against.compare(folder)


if __name__ == "__main__":
    main()
