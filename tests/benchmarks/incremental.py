"""What a fit costs after 1 % more data, against the full streaming pass, and how far it is from a full fit.

Run ``python -m tests.benchmarks.incremental`` (``--transitions 1000000``, ``--workers 2``).
A store is fitted with a cache and appended to. The fit that then adds the new sums is compared with one that
has no cache, with the same design and the same blocks. Times are of this machine, in this run.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from kedrl_dask import KEDRL, TransitionStore
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.clusters.local import local_cluster
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.estimator.parameters import VERSION_ONE

PAIR = simulation.PAIRS["uniform-gaussian"]
STEPS = 50


def append(store, n_transitions):
    """Append episodes with numbers after those that are there."""
    more = simulation.simulate(PAIR, n_episodes=-(-n_transitions // (STEPS - 1)), n_steps=STEPS, seed=1)
    more["episode"] = more["episode"] + store.n_episodes
    with store.appender() as writer:
        writer.append(**more)
    return TransitionStore.open(store.path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--share", type=float, default=0.01, help="of them that are appended")
    parser.add_argument("--workers", type=int, default=0, help="worker processes; 0 is threads")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options)


def compare(folder, options):
    store = simulation.write(folder / "store", PAIR, options.transitions)
    where = local_cluster(options.workers) if options.workers else nullcontext(ThreadExecutor())
    with where as executor:

        def fit(store, cache):
            model = KEDRL(simulation.DISCOUNT, return_kernel=PAIR.settings.kernel, **VERSION_ONE)
            return model.fit(store, PAIR.target, executor=executor, cache=folder / cache, progress="none")

        first = fit(store, "cache")
        grown = append(store, round(options.share * options.transitions)).grown_from(store.n_rows)
        added, full = fit(grown, "cache"), fit(grown, "other")
    report({"first fit": first, "after the append": added, "without a cache": full})


def report(models):
    seconds = {name: model.diagnostics_["seconds"] for name, model in models.items()}
    print(f"{'seconds':<22}" + "".join(f"{name:>20}" for name in models))
    for stage in seconds["first fit"]:
        print(f"{stage:<22}" + "".join(f"{own[stage]:>20.2f}" for own in seconds.values()))
    print(f"{'total':<22}" + "".join(f"{sum(own.values()):>20.2f}" for own in seconds.values()))
    n = {name: model.diagnostics_["sizes"]["transitions"] for name, model in models.items()}
    print(f"{'transitions':<22}" + "".join(f"{count:>20,}" for count in n.values()))
    added, full = seconds["after the append"], seconds["without a cache"]
    whole = full["streaming pass"]
    print(f"streaming pass after the append / full streaming pass: {added['streaming pass'] / whole:.3f}")
    print(f"whole fit after the append / full streaming pass: {sum(added.values()) / whole:.3f}")
    share = sum(added.values()) / sum(full.values())
    print(f"whole fit after the append / whole fit without a cache: {share:.3f}")
    found, expected = (models[name].coefficients_ for name in ("after the append", "without a cache"))
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"largest difference of coefficients, relative to the largest: {difference:.1e}")


if __name__ == "__main__":
    main()
