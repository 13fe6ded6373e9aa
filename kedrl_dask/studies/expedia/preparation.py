"""Data of the Expedia evaluation: stores, policies and evaluation inputs, kept for the next run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from kedrl_dask.datasets import expedia
from kedrl_dask.datasets.expedia import ClippedGaussian, Encoder
from kedrl_dask.datasets.expedia.columns import ACTION, REWARD, STATE
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.atomic import remove
from kedrl_dask.engine.storage.manifest import read_json, write_json
from kedrl_dask.studies.expedia.specification import POLICIES
from kedrl_dask.utils.arrays import Actions, Inputs, Points, Record, Vector
from kedrl_dask.utils.process import driver_blas_threads
from kedrl_dask.utils.progress import Reporter

PANEL, SIMULATED = "panel.json", "simulated.csv"


@dataclass(frozen=True)
class Request:
    """The data to evaluate on: a file, or that many simulated searches; and transitions, None for all."""

    data: Path | None
    searches: int
    training: int | None
    test: int | None
    seed: int

    def facts(self) -> Record:
        """Everything that the stores depend on, as JSON; a file counts by size and modification time."""
        facts: Record = asdict(self) | {"data": None}
        if self.data is not None:
            status = self.data.stat()
            facts |= {"data": str(self.data.resolve()), "bytes": status.st_size, "time": status.st_mtime_ns}
        return json.loads(json.dumps(facts))


@dataclass(frozen=True)
class Prepared:
    """Stores, their origin, the policies, and the inputs at which these are evaluated.

    ``facts`` are counts, summary statistics and the selected list, for JSON; ``state`` (p,) is the encoded
    state of that list, and ``actions`` are the policies' greedy actions there, on the raw scale.
    ``test_inputs`` are the encoded states and actions of the test transitions.
    """

    training: TransitionStore
    test: TransitionStore
    encoder: Encoder
    facts: Record
    policies: dict[str, ClippedGaussian]
    state: Vector
    actions: dict[str, Vector]
    test_inputs: tuple[Points, Actions] = field(repr=False)

    @property
    def targets(self) -> dict[str, tuple[Points, Actions]]:
        """x⋆ of each policy: state (1, p) and standardised action (1, q)."""
        return {
            name: (self.state[None], self.encoder.standardised(action)[None])
            for name, action in self.actions.items()
        }

    def conditioning(self, most: int, seed: int) -> Inputs:
        """At most ``most`` random training inputs, and the evaluation inputs of both policies."""
        n = min(most, self.training.n_transitions)
        inputs = self.training.sample(n, np.random.default_rng([seed, 6])).inputs
        return np.vstack([inputs, *(np.hstack(target) for target in self.targets.values())])


def prepare(output: Path, request: Request, reporter: Reporter) -> Prepared:
    """Make the stores, or open those of an earlier run with the same request; fit the policies."""
    facts, folder = request.facts(), output / "data"
    panel = read_json(output / PANEL)
    if panel.get("request") != facts:
        remove(folder)
        (output / PANEL).unlink(missing_ok=True)
        panel = _build(output, folder, request, reporter) | {"request": facts}
        write_json(output / PANEL, panel)
    training, test = (TransitionStore.open(folder / name) for name in ("training", "test"))
    encoder = Encoder(**panel["encoder"] | {"clicks": tuple(panel["encoder"]["clicks"])})
    with reporter.stage("policies"), driver_blas_threads():
        logged = training.transitions()
        state, action = np.hsplit(logged.inputs, [training.state_dim])
        weights = {name: logged.reward[:, REWARD.index(reward)] for name, reward in POLICIES.items()}
        policies = {
            name: expedia.reward_weighted_policy(state, action, weight, encoder)
            for name, weight in weights.items()
        }
        at = np.array(panel["selected"]["encoded"])
        actions = {name: expedia.greedy_action(p, at[None], encoder)[0] for name, p in policies.items()}
        held_out = np.hsplit(test.transitions().inputs, [test.state_dim])
    return Prepared(training, test, encoder, panel, policies, at, actions, (held_out[0], held_out[1]))


def _build(output: Path, folder: Path, request: Request, reporter: Reporter) -> Record:
    path = request.data
    if path is None:
        path = output / SIMULATED
        path.unlink(missing_ok=True)
        with reporter.stage("simulated file", request.searches) as advance:
            expedia.write_like_published(path, request.searches, seed=request.seed, advance=advance)
    n_rows = 0

    def count(n: int) -> None:
        nonlocal n_rows
        n_rows += n
        advance(n)

    with reporter.stage("search lists") as advance:
        lists = expedia.read_lists(path, count)
    with reporter.stage("destinations"):
        kept, left_out = expedia.clean(lists)
        parts = expedia.split(kept, request.training, request.test, request.seed)
        encoder = Encoder.learn(parts.training)
        folder.mkdir()
        stores = {name: expedia.write(folder / name, part, encoder) for name, part in vars(parts).items()}
        return {
            "is_simulated": request.data is None,
            "source": "simulated" if request.data is None else path.name,
            "rows": n_rows,
            "searches": len(lists),
            "kept": len(kept),
            "left_out": left_out,
            "destinations": {name: store.n_episodes for name, store in stores.items()},
            "transitions": {name: store.n_transitions for name, store in stores.items()},
            "columns": encoder.state_names,
            "encoder": encoder.to_dict(),
            "statistics": {name: row._asdict() for name, row in expedia.describe(parts.training).items()},
            "selected": _median_state(parts.training, encoder),
        }


def _median_state(lists: pd.DataFrame, encoder: Encoder) -> Record:
    """The training list with a successor whose first principal-component score is nearest to the median."""
    has_successor = (lists["srch_destination_id"] == lists["srch_destination_id"].shift(-1)).to_numpy()
    part = lists[has_successor]
    encoded = encoder.state(part)
    centred = encoded - encoded.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    score = centred @ vectors[:, -1]
    chosen = int(np.abs(score - np.median(score)).argmin())
    row = part.iloc[chosen]
    return {
        "state": {name: float(row[name]) for name in STATE},
        "action": [float(row[name]) for name in ACTION],
        "encoded": encoded[chosen].tolist(),
    }
