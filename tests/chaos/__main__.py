"""``python -m tests.chaos``: kills, dying workers, damaged files, and what it costs to be ready for them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from kedrl_dask.utils.process import terminable
from tests.chaos.common import Undisturbed
from tests.chaos.corruption import run_corruption
from tests.chaos.kills import run_kills
from tests.chaos.overhead import run_overhead
from tests.chaos.plugin import run_plugin

#: Most that checkpoints and checksums may add to the time of a fit.
MOST_OVERHEAD = 0.05


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="runs with a SIGKILL (default: %(default)s)")
    parser.add_argument("--plugin", type=int, default=20, help="runs under KillWorker (default: %(default)s)")
    parser.add_argument("--corruptions", type=int, default=100, help="files damaged (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed pairs of fits (default: %(default)s)")
    parser.add_argument(
        "--transitions", type=int, default=100_000, help="of the timed fits (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, tallies, is_cheap = time.perf_counter(), [], True
    with terminable(), tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        undisturbed = Undisturbed(work / "undisturbed")
        if options.kills:
            print("SIGKILL at random moments")
            tallies.append(run_kills(work, undisturbed, options.kills, options.seed))
        if options.plugin:
            print("distributed.chaos.KillWorker")
            tallies.append(run_plugin(work, undisturbed, options.plugin))
        if options.corruptions:
            print("damaged files")
            tallies.append(run_corruption(undisturbed, options.corruptions, options.seed))
        if options.repeats:
            print(f"time of a fit of {options.transitions:,} transitions")
            share = run_overhead(work, options.transitions, options.repeats)
            is_cheap = share <= MOST_OVERHEAD
    for tally in tallies:
        print(tally)
        for failure in tally.failures:
            print(f"  {failure}")
    if options.repeats:
        print(f"overhead of checkpoints and checksums: {share:+.1%} of the fit")
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0 if is_cheap and all(tally.ok for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
