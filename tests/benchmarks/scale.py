"""Cost against the number of transitions: time by stage, memory, efficiency, a second policy, two workers.

Run ``python -m tests.benchmarks.scale`` (about ten minutes on two cores) or, smaller,
``python -m tests.benchmarks.scale --transitions 20000 200000 --no-dense``. Every fit runs in a process of
its own. Times and rates are of this machine, in this run. GEMM is NumPy's own rate in single precision, by
as many processes at once as there are workers, right before and after what is compared with it, the streaming
pass and a series of products: machines that are shared change their speed within minutes. Plain NumPy is
:mod:`tests.benchmarks.plain`, in as many processes. A product's time is the mean over its tasks.
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

from kedrl_dask import KEDRL, policies
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.passes.chunk_sums import over_group
from kedrl_dask.engine.passes.separated_objective import BellmanObjective, _product
from kedrl_dask.estimator.fit import separated, streaming
from kedrl_dask.estimator.parameters import VERSION_ONE
from tests.benchmarks import against, plain

PAIR = simulation.PAIRS["uniform-gaussian"]
SECOND = policies.Gaussian(PAIR.target.weights, bias=0.1, scale=np.exp(-2.4))
GIB, MIB = 2**30, 2**20


def gemm_rate(n_threads, seconds=2.0, size=2_000):
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


def timed_group(chunks, *arguments):
    """Seconds inside a task, without what it takes to get there; and its result."""
    start = time.perf_counter()
    result = over_group(chunks, *arguments)
    return time.perf_counter() - start, result


def between_gemm(n_workers, call):
    """What ``call()`` returns, its seconds, and the rate of GEMM before and after it."""
    before, start = gemm_rate(n_workers), time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    return result, {"seconds": seconds, "gemm": (before + gemm_rate(n_workers)) / 2}


class TimedPass:
    """Takes the place of the streaming pass: remembers the time and the rate of GEMM of the first one."""

    def __init__(self, n_workers):
        self.n_workers, self.run, self.first = n_workers, streaming.sum_blocks, None

    def __call__(self, *arguments):
        if self.first is not None:
            return self.run(*arguments)
        result, self.first = between_gemm(self.n_workers, lambda: self.run(*arguments))
        return result


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
    separated.BellmanObjective = CapturedObjective
    streaming.sum_blocks = timed = TimedPass(n_workers)
    peak = PeakMemory()
    model = KEDRL(
        simulation.DISCOUNT, return_kernel=PAIR.settings.kernel, n_conditioning=20_000, **VERSION_ONE
    )
    with tempfile.TemporaryDirectory(dir=Path(store).parent) as cache, local_cluster(n_workers) as executor:
        plan = model.plan(store, executor=executor)
        model.fit(store, PAIR.target, executor=executor, cache=cache, progress="none")
        largest, total = peak.child, peak.total
        products, measured = between_gemm(n_workers, CapturedObjective.latest.products)
        # The stage as the fit timed it has the measurements of GEMM in it.
        seconds = model.diagnostics_["seconds"] | {"streaming pass": timed.first["seconds"]}
        out = products | {
            "gemm": {"pass": timed.first["gemm"], "product": measured["gemm"]},
            "sizes": model.diagnostics_["sizes"],
            "seconds": seconds,
            "planned_seconds": {stage.name: stage.seconds for stage in plan.stages},
            "planned_memory": plan.memory,
            "products": model.solution_.n_products,
            "largest_worker": largest,
            "all_processes": total,
        }
        if second:
            model.fit(store, SECOND, executor=executor, cache=cache, progress="none")
            out["second"] = model.diagnostics_["seconds"]
    return out


def child(store, n_workers, second=False):
    """Run a fit in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.scale",
        "--child",
        str(store),
        "--workers",
        str(n_workers),
    ]
    done = subprocess.run(command + ["--second"] * second, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    run = json.loads(done.stdout.splitlines()[-1])
    run["plain"] = plain_seconds(n_workers, run["sizes"])
    return run


def pass_flop(sizes):
    """Flop of the matrix products of the streaming pass: features r², Gram matrix r², responses."""
    r = sizes["rank"]
    return sizes["transitions"] * 2 * r * (r + sizes["basis"] + 2 * sizes["features"])


def pass_time(run):
    return run["seconds"]["streaming pass"]


def product_flop(sizes):
    return 8 * sizes["conditioning"] * sizes["atoms"] * (sizes["basis"] + 2 * sizes["features"])


def report(runs):
    def line(name, form, value):
        print(f"{name:<26}" + "".join(format(value(n, run), form) for n, run in runs.items()))

    print(f"{'seconds':<26}" + "".join(f"{n:>14,}" for n in runs))
    for name in next(iter(runs.values()))["seconds"]:
        line(name, ">14.1f", lambda n, run, name=name: run["seconds"][name])
    line("total", ">14.1f", lambda n, run: sum(run["seconds"].values()))
    line("planned", ">14.1f", lambda n, run: sum(run["planned_seconds"].values()))
    line("second policy", ">14.1f", lambda n, run: sum(run["second"].values()))
    line(
        "second policy / first",
        ">14.2f",
        lambda n, run: sum(run["second"].values()) / sum(run["seconds"].values()),
    )
    line("products of the solver", ">14,", lambda n, run: run["products"])
    line("largest worker, MiB", ">14,.0f", lambda n, run: run["largest_worker"] / MIB)
    line("planned, MiB", ">14,.0f", lambda n, run: run["planned_memory"] / MIB)
    line("all processes, MiB", ">14,.0f", lambda n, run: run["all_processes"] / MIB)
    line("GEMM, Gflop/s", ">14.0f", lambda n, run: run["gemm"]["pass"] / 1e9)
    line(
        "pass, of GEMM",
        ">14.0%",
        lambda n, run: pass_flop(run["sizes"]) / pass_time(run) / run["gemm"]["pass"],
    )
    line(
        "product, of GEMM",
        ">14.0%",
        lambda n, run: product_flop(run["sizes"]) / run["inside"] / run["gemm"]["product"],
    )
    line("pass, × plain NumPy", ">14.2f", lambda n, run: run["plain"]["pass"] * n / 1e6 / pass_time(run))
    line("product, × plain NumPy", ">14.2f", lambda n, run: run["plain"]["product"] / run["inside"])
    line("overhead of a product", ">14.0%", lambda n, run: run["overhead"])
    sizes = list(runs)
    for small, large in pairwise(sizes):
        times = [pass_time(runs[n]) for n in (large, small)]
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
