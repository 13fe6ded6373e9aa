"""The choices of a fit that do not depend on the policy: kernels, landmarks, basis, grid, frequencies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from kedrl_dask.engine.data.sampling import KIND, draw_sample
from kedrl_dask.engine.data.transition_store import Transitions, TransitionStore
from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.cache import Cache, Facts
from kedrl_dask.engine.storage.schema import POINTS, RETURNS, TREND
from kedrl_dask.estimator.fit.pilot import Pilot
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.numerics.design import return_grid as grids
from kedrl_dask.numerics.design import sizes as sizing
from kedrl_dask.numerics.design.points import choose_points
from kedrl_dask.numerics.design.sizes import DESIGN_SAMPLE
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.kernels.spectral import frequencies
from kedrl_dask.numerics.regression.input_kernel import InputTuning, median_kernel, tune_input_kernel
from kedrl_dask.numerics.regression.reward_trend import LinearTrend, TrendMoments, try_trend
from kedrl_dask.numerics.simulation.prior import simulated_coefficients
from kedrl_dask.numerics.simulation.relevance import choose_relevance
from kedrl_dask.utils.arrays import Atoms, Coefficients, Frequencies, Inputs, Points, Record

#: Version of the automatic rules, so that the cached choices of earlier rules are not reused.
RULES = 3
#: Transitions for tuning.
TUNING_SAMPLE = 4_000
#: Rows read at a time for the trend of all transitions.
TREND_ROWS = 2**16


@dataclass(frozen=True)
class Choices:
    """What was chosen, on a sample of the transitions.

    Attributes
    ----------
    features : NystromFeatures
        ψ, with the input kernel and the landmarks.
    basis : NystromFeatures
        The state-action basis, and its whitened sections.
    tuning : dict
        What was tried for each automatic setting, with its score.
    trend : LinearTrend or None
        Trend of the reward, with ``reward_trend="linear"``, or with "auto" if it predicts better.
    """

    sample: Transitions
    features: NystromFeatures
    basis: NystromFeatures
    grid: Atoms
    frequencies: Frequencies
    return_kernel: Matern
    tuning: Record
    trend: LinearTrend | None

    def prior(self, inputs: Inputs, returns: Points) -> Coefficients:
        """Coefficients C₀ of simulated returns, towards which the fit is shrunk."""
        return simulated_coefficients(self.basis, self.grid, self.return_kernel, inputs, returns)

    def settle(self, settings: Settings) -> Settings:
        """The settings with the chosen sizes."""
        chosen = {name: self.tuning[name]["size"] for name in settings.automatic_sizes}
        return replace(settings, **chosen)


def make_choices(
    settings: Settings, store: TransitionStore, cache: Cache, pilot: Pilot | None = None
) -> Choices:
    """Choose, or find what was chosen for the same data and settings.

    Grid and return kernel are chosen from the returns that a pilot simulated, or from observed ones if there
    was none, and the directions of the input kernel likewise.
    """
    store, seed = store.base, settings.random_state
    of_sample = {"data": store.fingerprint, "seed": seed, "size": DESIGN_SAMPLE}
    sample = draw_sample(store, cache, seed)
    features, basis, tuning = _points(settings, store, sample, cache, of_sample, pilot)
    simulated = None if pilot is None else pilot.returns
    grid, return_kernel, grown = _returns(settings, store, sample, cache, simulated)
    tuning |= grown
    n_features = settings.n_features
    if isinstance(n_features, str):
        fixed = settings.discount, settings.spectral, store.n_transitions, seed
        growth = sizing.choose_features(return_kernel, grid, sample.reward, *fixed)
        n_features, tuning["n_features"] = growth.size, growth.to_dict()
    waves = frequencies(return_kernel, store.reward_dim, n_features, settings.spectral, seed)
    trend, tried = _trend(settings, sample, features, waves)
    if trend is not None and len(sample) < store.n_transitions:
        trend = _refit(trend, store, cache, of_sample)
    return Choices(sample, features, basis, grid, waves, return_kernel, tuning | tried, trend)


def _points(
    settings: Settings, store: TransitionStore, sample: Transitions, cache: Cache, of_sample: Facts,
    pilot: Pilot | None,
) -> tuple[NystromFeatures, NystromFeatures, Record]:  # fmt: skip
    """Landmarks and basis in the coordinates of the input kernel, which is tuned first if it is automatic."""
    names = ("input_kernel", "n_landmarks", "n_basis", "points", "landmark_threshold", "random_state")
    facts = {"sample": of_sample, "rules": RULES} | {name: getattr(settings, name) for name in names}

    if pilot is not None and not isinstance(settings.input_kernel, Matern):
        facts["simulated"] = [pilot.returns, pilot.lengths]

    def make(path: Path) -> None:
        kernel, seed = settings.input_kernel, settings.random_state
        tried: Record = {}
        if not isinstance(kernel, Matern):
            kernel, tried = _input_kernel(sample, pilot, seed)
        chosen = []
        names: tuple[Literal["n_landmarks", "n_basis"], ...] = ("n_landmarks", "n_basis")
        for i, name in enumerate(names):
            size = getattr(settings, name)
            if isinstance(size, str):
                growth = sizing.choose_landmarks(name, kernel, sample.inputs, store.n_transitions, seed)
                size, tried[name] = growth.size, growth.to_dict()
            points = choose_points(sample.inputs, size, kernel, settings.points, seed + i)
            chosen.append(NystromFeatures.from_landmarks(kernel, points, settings.landmark_threshold))
        arrays = {"landmarks": chosen[0].landmarks, "whitening": chosen[0].whitening}
        arrays |= {"basis": chosen[1].landmarks, "basis_whitening": chosen[1].whitening}
        attributes = {"kernel": kernel.to_dict(), "tuning": tried}
        write_arrays(path, KIND, POINTS, arrays, attributes).finish()

    filed = ArrayStore.open(cache.get("points", facts, make), KIND)
    kernel = Matern.from_dict(filed.attributes["kernel"])
    features = NystromFeatures(kernel, filed.read("landmarks"), filed.read("whitening"))
    basis = NystromFeatures(kernel, filed.read("basis"), filed.read("basis_whitening"))
    return features, basis, filed.attributes["tuning"]


def _input_kernel(sample: Transitions, pilot: Pilot | None, seed: int) -> tuple[Matern, Record]:
    """Tune the input kernel, and turn it to what the return depends on if that predicts simulated returns."""
    tuning = tune_on(sample, seed)
    if pilot is None:
        return tuning.kernel, {"input_kernel": tuning.to_dict()}
    kernel, trial = choose_relevance(tuning.kernel, pilot.lengths, pilot.inputs, pilot.returns, seed)
    return kernel, {"input_kernel": tuning.to_dict(), "relevance": trial.to_dict()}


def _trend(
    settings: Settings, sample: Transitions, features: NystromFeatures, waves: Frequencies
) -> tuple[LinearTrend | None, Record]:
    """The trend of the reward, if there is one, and what was tried for it."""
    tried, wanted = {}, settings.reward_trend
    if wanted == "auto" and not (settings.may_have_trend and len(np.unique(sample.episode)) > 1):
        wanted = "none"
    if wanted == "auto":
        ridge = settings.ridge_gamma
        given = None if isinstance(ridge, str) else (float(ridge),)
        trial = try_trend(features, sample.inputs, sample.reward, sample.episode, waves, given)
        tried["reward_trend"] = asdict(trial)
        wanted = "linear" if trial.accepted else "none"
    return LinearTrend.fit(sample.inputs, sample.reward) if wanted == "linear" else None, tried


def _refit(trend: LinearTrend, store: TransitionStore, cache: Cache, of_sample: Facts) -> LinearTrend:
    """Refit the trend of the sample on all transitions."""

    def make(path: Path) -> None:
        parts = (store.transitions(start, stop) for start, stop in even_ranges(store.n_rows, TREND_ROWS))
        found = [trend.moments(part.inputs, part.reward - trend(part.inputs)) for part in parts]
        whole = trend.refit(TrendMoments(*(sum(sums) for sums in zip(*found, strict=True))))
        write_arrays(path, KIND, TREND, whole.to_arrays()).finish()

    filed = ArrayStore.open(cache.get("trend", {"sample": of_sample, "trend": trend}, make), KIND)
    return LinearTrend.from_arrays({spec.name: filed.read(spec.name) for spec in TREND})


def tune_on(sample: Transitions, seed: int, with_successors: bool = True) -> InputTuning:
    """Tune the input kernel on a part of the sample, by how it predicts rewards and successors."""
    rows = np.sort(np.random.default_rng([seed, 4]).permutation(len(sample))[:TUNING_SAMPLE])
    part = sample.select(rows)
    successors = part.next_state if with_successors else None
    return tune_input_kernel(part.inputs, part.reward, successors, part.episode, random_state=seed)


def _returns(
    settings: Settings, store: TransitionStore, sample: Transitions, cache: Cache, simulated: Points | None
) -> tuple[Atoms, Matern, Record]:
    """Return kernel and grid, from discounted returns unless they are given."""
    names = (
        "discount",
        "return_kernel",
        "n_atoms",
        "grid",
        "grid_expansion",
        "reward_bounds",
        "random_state",
    )
    facts = {"data": store.fingerprint, "seed": settings.random_state, "rules": RULES}
    facts |= {name: getattr(settings, name) for name in names}
    if simulated is not None:
        facts["simulated"] = simulated

    def make(path: Path) -> None:
        returns = _observed_returns(settings, store) if simulated is None else simulated
        kernel = settings.return_kernel
        if not isinstance(kernel, Matern):
            kernel = median_kernel(returns, random_state=settings.random_state)
        tried, size = {}, settings.grid_size
        if "n_atoms" in settings.automatic_sizes:
            growth = _grow_atoms(settings, returns, sample.reward, kernel, store.n_transitions)
            size, tried["n_atoms"] = growth.size, growth.to_dict()
        grid = _grid(settings, size, returns, kernel)
        attributes = {"kernel": kernel.to_dict(), "tuning": tried}
        write_arrays(path, KIND, RETURNS, {"grid": grid}, attributes).finish()

    filed = ArrayStore.open(cache.get("returns", facts, make), KIND)
    return filed.read("grid"), Matern.from_dict(filed.attributes["kernel"]), filed.attributes["tuning"]


def _observed_returns(settings: Settings, store: TransitionStore) -> Points:
    seed = settings.random_state
    rows = store.episode_windows(5 * DESIGN_SAMPLE, np.random.default_rng([seed, 2]))
    returns = grids.discounted_returns(rows.reward, rows.episode, rows.terminated, settings.discount)
    if len(returns) > DESIGN_SAMPLE:
        returns = np.random.default_rng([seed, 3]).choice(returns, DESIGN_SAMPLE, replace=False)
    return returns


def _grow_atoms(
    settings: Settings, returns: Points, reward: Points, kernel: Matern, n_transitions: int
) -> sizing.Growth:
    """Choose m with atoms at observed returns, or with atoms that fill the box of the reward bounds."""
    seed = settings.random_state
    if settings.reward_bounds is not None:
        low, high = grids.bellman_box(*settings.reward_bounds, settings.discount)
        atoms = grids.box_grid(low, high, sizing.MOST["n_atoms"], seed)
    else:
        atoms = np.random.default_rng([seed, 14]).permutation(np.unique(returns, axis=0))
    return sizing.choose_atoms(kernel, atoms, returns, reward, settings.discount, n_transitions, seed)


def _grid(settings: Settings, size: int, returns: Points, kernel: Matern) -> Atoms:
    if settings.grid is not None:
        return np.array(settings.grid, dtype=np.float64)
    if settings.reward_bounds is not None:
        low, high = grids.bellman_box(*settings.reward_bounds, settings.discount)
        return grids.box_grid(low, high, size, settings.random_state)
    return grids.return_grid(
        returns, size, kernel, settings.grid_expansion, random_state=settings.random_state
    )
