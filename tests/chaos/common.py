"""What is fitted, what it gives undisturbed, and what a run's log says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kedrl_dask import KEDRL, Matern, TransitionStore
from kedrl_dask.datasets import simulation
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import LBFGS, AdamW

PAIR = simulation.PAIRS["uniform-gaussian"]
#: Largest difference of a value of the embedding, over the largest value.
TOLERANCE = 1e-8
#: Where embeddings are looked at: states, actions, and return points, all of which the data reach.
INPUTS = np.linspace(-0.6, 0.6, 4 * 5).reshape(4, 5), np.linspace(-0.3, 0.3, 4)[:, None]
POINTS = np.linspace(-1.0, 1.0, 6)
SIZES = {
    "centring": "none",
    "discount": 0.7,
    "input_kernel": Matern(5.5, 3.0),
    "return_kernel": Matern(5.5, 1.25, 0.85),
    "n_atoms": 40,
    "n_basis": 80,
    "n_landmarks": 150,
    "n_features": 64,
    "n_conditioning": 4_000,
    "n_blocks": 24,
}
#: Every construction, continuation and solver.
KINDS = {
    "separated": {},
    "paired": {"construction": "paired", "paired_form": "contracted"},
    "ratio": {"continuation": "ratio", "ratio": ULSIF(n_centers=100)},
    "lbfgs": {"solver": LBFGS(tolerance=1e-7), "negative_penalty": 0.3},
    "adamw": {"solver": AdamW(n_iterations=600)},
}


def estimator(kind, **sizes):
    return KEDRL(**{**SIZES, **KINDS[kind], **sizes})


def embedded(model):
    """What users see of a model, at a few inputs: well-conditioned, as coefficients are not."""
    at = np.repeat(POINTS[:, None], model.grid_.shape[1], axis=1)
    return model.embed(*INPUTS, at)


def problem_of(model, expected):
    """What is wrong with a model, or nothing."""
    found = float(np.abs(embedded(model) - expected).max() / np.abs(expected).max())
    return None if found <= TOLERANCE else f"embeddings are off by {found:.1e}"


@dataclass
class Undisturbed:
    """Data, and the embeddings and log of each kind's undisturbed run, made when asked for."""

    work: Path
    n_episodes: int = 120

    def __post_init__(self):
        self.work.mkdir(parents=True, exist_ok=True)
        rows = simulation.simulate(PAIR, self.n_episodes)
        self.store = TransitionStore.from_arrays(self.work / "data", **rows, chunk_rows=1_000)
        self._known = {}

    def __call__(self, kind):
        if kind not in self._known:
            run = self.work / f"undisturbed-{kind}"
            model = estimator(kind).fit(
                self.store, PAIR.target, run=run, executor=ThreadExecutor(2), progress="none"
            )
            self._known[kind] = embedded(model), run
        return self._known[kind]


def events(run):
    """Lines of a run's log; one that a kill cut short is left out."""
    path = run / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def stage_seconds(run):
    """How long each stage took."""
    return {e["stage"]: e["seconds"] for e in events(run) if e["event"] == "stage finished"}


class Tally:
    """Counts what went right, and says what did not."""

    def __init__(self, title):
        self.title, self.n, self.failures = title, 0, []

    def add(self, words, problem):
        self.n += 1
        if problem:
            self.failures.append(f"{words}: {problem}")
        print(f"  {self.n:>3} {words}: {problem or 'right'}", flush=True)

    @property
    def ok(self):
        return not self.failures

    def __str__(self):
        return f"{self.title}: {self.n - len(self.failures)} of {self.n} right"
