"""``kedrl simulate``: data of the paper's system or a variant of it, of any size."""

from __future__ import annotations

import argparse
import time

from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Verb, count, option, positive, show
from kedrl_dask.datasets import simulation
from kedrl_dask.datasets.systems import SYSTEMS
from kedrl_dask.engine.data.new_store import new_store
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.progress import Reporter

#: Episodes are simulated a thousand at a time; with this many steps they take a gibibyte.
MOST_STEPS = 5_000


def _steps(text: str) -> int:
    """Recorded time points of an episode."""
    if not 2 <= count(text) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(
            f"{text} is not between 2 and {MOST_STEPS:,}; a transition takes two steps, and a thousand "
            "episodes are in memory at a time"
        )
    return int(text)


NOTE = """\
examples:
  kedrl simulate transitions.zarr --transitions 1000000
  kedrl simulate other.zarr --transitions 8000 --system reward-in-state --seed 1

systems:
  paper            rewards and next states with independent noises; episodes do not end by themselves
  correlated       the noise of the reward is correlated with that of the next state
  reward-in-state  the next state contains the reward received
  terminating      episodes end for good, sooner in some states than in others

"""


def _run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    pair, system, total = simulation.PAIRS[options.pair], SYSTEMS[options.system], options.transitions
    with (
        new_store(options.output, options.overwrite) as path,
        Reporter().stage("simulation", total) as advance,
    ):
        simulation.write(
            path, pair, total, n_steps=options.steps, seed=options.seed, system=system, advance=advance
        )
    store = TransitionStore.open(options.output)
    size = sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    seconds = time.perf_counter() - start
    summary = store_summary(store) | {"bytes": size, "seconds": seconds}
    show(options, summary, f"{store!r}\n{size / 2**20:,.1f} MiB on disk, written in {seconds:.1f} s")
    return SUCCESS


def store_summary(store: TransitionStore) -> Record:
    """The contents of a store, as JSON."""
    return {
        "path": str(store.path),
        "rows": store.n_rows,
        "episodes": store.n_episodes,
        "transitions": store.n_transitions,
        "dims": {"state": store.state_dim, "action": store.action_dim, "reward": store.reward_dim},
        "fingerprint": store.fingerprint,
    }


VERB = Verb(
    "Simulate the paper's linear-Gaussian system, or a variant of it, under the behaviour policy of a pair\n"
    "and store its transitions, block by block: memory does not grow with their number.",
    {
        "output": shared.STORE,
        "--transitions": option("how many to simulate", type=positive, required=True, metavar="N"),
        "--pair": shared.pair(),
        "--system": option(
            "what the policy acts on: %(choices)s", "paper", choices=sorted(SYSTEMS), metavar="SYSTEM"
        ),
        "--seed": shared.SEED,
        "--steps": option(
            "recorded time points of an episode that does not terminate, one more than its transitions",
            50,
            type=_steps,
            metavar="T",
        ),
        "--overwrite": shared.OVERWRITE,
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
