"""A worked example on MO-Gymnasium's water reservoir: estimates beside returns of the environment itself.

One policy runs a dam, and another is evaluated from its log. The reservoir has four objectives, of which two
depend on the release alone: the deficit of supply, and the flood downstream. The other two depend on the
inflow, which also determines the next level: reward and next state are then dependent given level and
release, which requires the paired construction, for which there is no bootstrap.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console

from kedrl_dask.datasets.benchmark.tasks import TASKS, put_state
from kedrl_dask.datasets.gymnasium import collect, make, monte_carlo
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.storage.cache import Cache
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.plots.style import BLUE, ORANGE, Figure
from kedrl_dask.studies.output import TextTable, print_tables, write_results
from kedrl_dask.studies.runner import claim
from kedrl_dask.utils.arrays import Matrices, Points, Record, Vector
from kedrl_dask.utils.progress import Reporter

STUDY = "reservoir"
TASK = TASKS["water-reservoir"]
#: Objectives of the environment that are evaluated, by name: costs, as negative rewards.
OBJECTIVES = {"deficit of supply": 1, "flood downstream": 3}
DISCOUNT, TAIL, LEVEL = 0.8, 0.1, 0.9
#: Releases by level: as logged, and to be evaluated.
LOGGED, TARGET = TASK.behaviour, TASK.target
#: Steps of a logged episode.
STEPS = 60
#: Levels at which the target policy's mean release is evaluated.
LEVELS = np.linspace(30.0, 120.0, 10)
#: Costs have kinks, where a demand is met; atoms and landmarks must be close enough to follow them.
SIZES = {"n_atoms": 300, "n_basis": 200, "n_landmarks": 300, "n_conditioning": 5_000}
MEASURES = ("mean", f"CVaR {TAIL:.0%}")


class Reservoir:
    """The environment with the rewards of ``OBJECTIVES`` alone, started at any level."""

    def __init__(self) -> None:
        # So that no episode of a return is truncated.
        self.env = make(TASK.environment, nO=4, time_limit=10**9, disable_env_checker=True)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def reset(self, **options: object) -> tuple[Vector, Record]:
        """Begin an episode at one of the environment's own levels."""
        return self.env.reset(**options)

    def step(self, action: Vector) -> tuple[Vector, Vector, bool, bool, Record]:
        """Release water."""
        observation, reward, terminated, truncated, facts = self.env.step(action)
        return observation, reward[list(OBJECTIVES.values())], terminated, truncated, facts

    def start(self, state: Vector) -> Vector:
        """Put the reservoir at a level."""
        put_state(self.env, state)
        return self.env.unwrapped.state


def run(
    output: str | Path,
    *,
    episodes: int = 250,
    returns: int = 2_000,
    bootstrap: int = 12,
    seed: int = 0,
    draw: bool = True,
    **parameters: object,
) -> Record:
    """Log one policy, evaluate the other, compare with the environment, and return the summary.

    The directory is new, empty, or that of an earlier run, whose data, returns and sums are kept. There are
    ``returns`` of the environment at each level; ``parameters`` of :class:`~kedrl_dask.KEDRL` take the place
    of ``SIZES``.
    """
    output, reservoir = Path(output), Reservoir()
    claim(output, STUDY)
    cache = Cache(output / "cache")
    state = LEVELS[:, None]
    action = TARGET.location(state)
    store = _log(cache, reservoir, episodes, seed)
    simulated = _simulate(cache, reservoir, state, action, returns, seed)
    settings: Record = {"discount": DISCOUNT, "random_state": seed, **VERSION_ONE}
    settings |= SIZES | parameters
    model = KEDRL(**settings)
    model.fit(store, TARGET, cache=output / "cache")
    replicates = model.bootstrap(store, TARGET, bootstrap, random_state=seed, cache=output / "cache")
    with Reporter().stage("recovery"):
        draws = replicates.apply(lambda fit: _measured(fit, state, action))
        low, high = draws.interval(LEVEL)
        deviation = simulated.std(axis=1)
        true, noise = _true(simulated)
    numbers = {"true": true, "noise": noise, "estimate": draws.estimate, "low": low, "high": high}
    rows = [
        {
            "objective": name,
            "measure": measure,
            "level": float(level),
            "release": float(release),
            **{key: float(values[m, i, c]) for key, values in numbers.items()},
            "deviation": float(deviation[i, c]),
            "is_inside": bool(low[m, i, c] <= true[m, i, c] <= high[m, i, c]),
        }
        for c, name in enumerate(OBJECTIVES)
        for m, measure in enumerate(MEASURES)
        for i, (level, release) in enumerate(zip(LEVELS, action[:, 0], strict=True))
    ]
    summary = {
        "kind": f"kedrl study {STUDY}",
        "transitions": store.n_transitions,
        "returns": returns,
        "bootstrap": bootstrap,
        "result": model.diagnostics_["solver"]["result"],
        "seconds": model.diagnostics_["seconds"],
        "rows": rows,
    }
    write_results(output, summary, figures={"reservoir": _draw(rows)} if draw else {})
    return summary


def _log(cache: Cache, reservoir: Reservoir, episodes: int, seed: int) -> TransitionStore:
    facts = {"environment": TASK.environment, "policy": LOGGED.to_dict(), "episodes": [episodes, STEPS, seed]}

    def make_store(path: Path) -> None:
        collect(path, reservoir, LOGGED, episodes, max_steps=STEPS, seed=seed)

    return TransitionStore.open(cache.get("logged", facts, make_store))


def _simulate(
    cache: Cache, reservoir: Reservoir, state: Points, action: Points, n_returns: int, seed: int
) -> Matrices:
    """Returns of the environment (n, n_returns, 2)."""
    facts = {"environment": TASK.environment, "policy": TARGET.to_dict(), "inputs": [state, action]}
    facts |= {"returns": [n_returns, seed, DISCOUNT]}

    def make_returns(path: Path) -> None:
        path.mkdir()
        found = monte_carlo(
            reservoir, TARGET, state, action, DISCOUNT, n_returns, lambda env, state: env.start(state), seed
        )
        np.save(path / "returns.npy", found)

    return np.load(cache.get("returns", facts, make_returns) / "returns.npy")


def _measured(fit: KEDRL, state: Points, action: Points) -> Matrices:
    """Means and lower tail means of the recovered laws; (2, n, 2)."""
    law = fit.recover(state, action)
    tails = np.stack([law.cvar(TAIL, c) for c in range(len(OBJECTIVES))], axis=1)
    return np.stack([law.mean(), tails])


def _true(simulated: Matrices) -> tuple[Matrices, Matrices]:
    """The same for simulated returns (n, B, 2), and their standard errors."""
    n = simulated.shape[1]
    in_order = np.sort(simulated, axis=1)[:, : max(1, round(TAIL * n))]
    tails, edge = in_order.mean(axis=1), in_order[:, -1]
    # To first order, a tail mean q − E(q − Y)₊/share is the mean of the excess of the tail over its quantile.
    beyond = np.maximum(edge[:, None] - simulated, 0).std(axis=1) / TAIL
    noise = np.stack([simulated.std(axis=1), beyond]) / np.sqrt(n)
    return np.stack([simulated.mean(axis=1), tails]), noise


def render(summary: Record, console: Console) -> None:
    """Print estimates and intervals beside the environment's, and how many intervals cover."""
    tables = []
    for name, measure in product(OBJECTIVES, MEASURES):
        rows = [row for row in summary["rows"] if (row["objective"], row["measure"]) == (name, measure)]
        cells = [
            (
                f"{row['level']:.0f}",
                *(f"{row[key]:.1f}" for key in ("release", "true", "noise", "estimate", "low", "high")),
                "" if row["is_inside"] else "misses",
            )
            for row in rows
        ]
        heads = ("level", "release", "environment", "±", "estimate", "from", "to", "")
        title = f"{name}, {measure} of the discounted return"
        tables.append(TextTable(title, heads, cells, _counted(rows)))
    print_tables(tables, console)
    console.print(
        f"{summary['transitions']:,} logged transitions. Environment: {summary['returns']:,} returns at each "
        f"level, with the standard error. From, to: {LEVEL:.0%} intervals by {summary['bootstrap']} "
        "bootstrap replicates."
    )


def _counted(rows: list[Record]) -> str:
    error = np.mean([abs(row["estimate"] - row["true"]) / row["deviation"] for row in rows])
    inside = sum(row["is_inside"] for row in rows)
    return f"{inside} of {len(rows)} cover; mean error {error:.2f} standard deviations of the return"


def _draw(rows: list[Record]) -> Figure:
    """Estimates with intervals by level, and the environment's; a panel for each objective."""
    figure = Figure(figsize=(4.2 * len(OBJECTIVES), 3.4), layout="constrained")
    for name, axes in zip(OBJECTIVES, figure.subplots(1, len(OBJECTIVES)), strict=True):
        for measure, colour in zip(MEASURES, (BLUE, ORANGE), strict=True):
            own = [row for row in rows if (row["objective"], row["measure"]) == (name, measure)]
            at, true, estimate = (
                np.array([row[key] for row in own]) for key in ("level", "true", "estimate")
            )
            ends = np.abs(np.array([[row["low"], row["high"]] for row in own]).T - estimate)
            axes.plot(at, true, "-", color=colour, label=f"{measure}, environment")
            axes.errorbar(
                at, estimate, ends, fmt="o", color=colour, markersize=4, capsize=3,
                label=f"{measure}, estimate and {LEVEL:.0%} interval",
            )  # fmt: skip
        axes.set(title=name, xlabel="level", ylabel="discounted return")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    return figure
