"""Settings of the fits of the simulation study, and the results that the paper reports."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from kedrl_dask.datasets import simulation
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.design.return_grid import return_grid
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import AdamW
from kedrl_dask.utils.arrays import Atoms, Record

Profile = Literal["auto", "paper", "paper-exact"]
PROFILES: tuple[Profile, ...] = ("auto", "paper", "paper-exact")

#: Transitions whose rewards the paper's grid is made from, at most.
GRID_SAMPLE = 20_000


class Figure(NamedTuple):
    """A mean over the ten points, and the standard deviation across them."""

    mean: float
    deviation: float


class PaperFigures(NamedTuple):
    """A row of ``tab:metric_summary_across_points``: ten points, 100 replicates."""

    bias: Figure
    rmse: Figure
    mae: Figure
    bellman_risk: Figure


def _row(*numbers: float) -> PaperFigures:
    return PaperFigures(*(Figure(*numbers[i : i + 2]) for i in range(0, 8, 2)))


PAPER: dict[str, PaperFigures] = {
    "gaussian-uniform": _row(-0.0129, 0.0121, 0.0302, 0.0233, 0.0257, 0.0191, 0.0155, 0.0144),
    "gaussian-logistic": _row(-0.0089, 0.0144, 0.0276, 0.0251, 0.0235, 0.0213, 0.0141, 0.0128),
    "logistic-uniform": _row(-0.0019, 0.0197, 0.0304, 0.0220, 0.0258, 0.0184, 0.0111, 0.0090),
    "logistic-gaussian": _row(-0.0031, 0.0187, 0.0296, 0.0250, 0.0254, 0.0215, 0.0129, 0.0114),
    "uniform-gaussian": _row(0.0044, 0.0125, 0.0255, 0.0114, 0.0216, 0.0096, 0.0116, 0.0099),
    "uniform-logistic": _row(0.0020, 0.0130, 0.0255, 0.0128, 0.0215, 0.0106, 0.0089, 0.0068),
}
"""``tab:metric_summary_across_points``, by pair."""


def settings(pair: simulation.PolicyPair, profile: Profile = "auto", seed: int = 0) -> Record:
    """Parameters of :class:`KEDRL` for a pair of policies, except for those that depend on the data.

    Profile "auto": automatic settings except for the pair's return kernel, in whose units errors are
    measured; "paper": the paper's own (tab:sim_pair_params and the authors' code), with density ratio and
    AdamW; "paper-exact": the same with the exact minimiser.
    """
    given = pair.settings
    common = {"discount": simulation.DISCOUNT, "return_kernel": given.kernel, "random_state": seed}
    if profile == "auto":
        return common
    adamw = AdamW(
        given.n_iterations, given.batch_size, given.learning_rate, given.weight_decay, random_state=seed
    )
    return common | {
        **VERSION_ONE,
        "continuation": "ratio",
        "input_kernel": given.kernel,
        "n_basis": given.n_basis,
        "n_features": given.n_features,
        "n_landmarks": 1_000,
        "spectral": "iid",
        "ridge_gamma": given.ridge_gamma,
        "ridge_b": given.ridge_b,
        "mass_penalty": given.mass_penalty,
        "ratio": ULSIF(given.n_features, "numerator", ridge=given.ridge_gamma, clip=5.0),
        "n_draws": 3,  # one deterministic node would be the policy's location alone
        "solver": adamw if profile == "paper" else "pcg",
    }


def prepare(model: KEDRL, profile: Profile, store: TransitionStore) -> KEDRL:
    """Set the parameters that a profile takes from the data: the paper's return grid, unless one is given."""
    if profile == "auto" or model.grid is not None or isinstance(model.n_atoms, str):
        return model
    kernel = model.get_params(deep=False)["return_kernel"]
    return model.set_params(grid=reward_grid(store, model.n_atoms, kernel, model.random_state))


def reward_grid(store: TransitionStore, n_atoms: int, kernel: Matern, seed: int = 0) -> Atoms:
    """Atoms (n_atoms, d) as in the authors' code: k-means centres of the one-step rewards, none moved out.

    The supplement (app:Grid-Z) uses discounted returns instead, and moves the extreme centres out.
    """
    sample = store.sample(min(GRID_SAMPLE, store.n_transitions), np.random.default_rng([seed, 11]))
    return return_grid(sample.reward, n_atoms, kernel, expansion=1.0, random_state=seed)
