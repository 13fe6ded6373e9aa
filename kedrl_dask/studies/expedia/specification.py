"""The specification of the Expedia evaluation (tab:expedia_appendix_setup), and what the paper reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kedrl_dask.datasets.expedia import Encoder
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.laws.recovery import RecoverySettings
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import PCG
from kedrl_dask.utils.arrays import Inputs, Record, Vector

Profile = Literal["paper", "sampled"]
Recovery = Literal["paper", "automatic"]
#: The paper's estimator with the exact minimiser, and our defaults.
PROFILES: tuple[Profile, ...] = ("paper", "sampled")
RECOVERIES: tuple[Recovery, ...] = ("paper", "automatic")
#: The policies and the reward that each is weighted towards.
POLICIES = {"rev": "gross_revenue_per_night", "clk": "total_clicks"}

DISCOUNT = 0.8
RETURN_KERNEL = Matern(3.5, 3.0, 1.0)
INPUT_KERNEL = Matern(3.5, 1.0, 1.0)
#: h_R, on the raw scale of revenue.
BANDWIDTH = 70.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of the fits; defaults are the paper's, except for landmarks and features, which it does not use.

    Attributes
    ----------
    n_atoms, n_basis : int
        m and L.
    n_landmarks : int
        Nyström landmarks of the conditional weights; the paper uses all 10,000 inputs.
    n_features : int
        Frequencies of the return kernel; the paper evaluates the kernel itself.
    n_centers : int
        Centres of uLSIF.
    n_own_basis, n_own_landmarks : int
        L and landmarks of the profile "sampled", whose kernel is smoother.
    n_conditioning : int
        Most conditioning points, beside the two evaluation inputs.
    """

    n_atoms: int = 300
    n_basis: int = 6_000
    n_landmarks: int = 6_000
    n_features: int = 256
    n_centers: int = 1_500
    n_own_basis: int = 500
    n_own_landmarks: int = 1_000
    n_conditioning: int = 20_000


def parameters(profile: Profile, sizes: Sizes, conditioning: Inputs, seed: int) -> Record:
    """Parameters of :class:`~kedrl_dask.KEDRL`.

    Both profiles have the paper's return kernel, atoms, discount and mass penalty, so that risks and
    embeddings are in the same space. "paper" has its input kernel, ridges, basis and density ratio, with the
    exact minimiser in place of AdamW; "sampled" averages over the policy's actions, with automatic settings.
    """
    common = {
        "discount": DISCOUNT,
        "construction": "separated",
        "centring": "none",
        "n_atoms": sizes.n_atoms,
        "n_features": sizes.n_features,
        "return_kernel": RETURN_KERNEL,
        "mass_penalty": 10.0,
        "conditioning": conditioning,
        "random_state": seed,
    }
    if profile == "sampled":
        return common | {"n_basis": sizes.n_own_basis, "n_landmarks": sizes.n_own_landmarks}
    return common | {
        "continuation": "ratio",
        "n_basis": sizes.n_basis,
        "n_landmarks": sizes.n_landmarks,
        "input_kernel": INPUT_KERNEL,
        "landmark_threshold": 1e-6,
        "ridge_gamma": 1e-4,
        "ridge_b": 1e-10,
        "ratio": ULSIF(sizes.n_centers, "numerator", ridge=1e-2),
        "n_draws": 3,
        # λ_Γ is given, so that blocks, each with sums of L × landmarks, have no use.
        "n_blocks": 2,
        # The criterion is then within a thousandth of its value at a tenfold smaller gradient.
        "solver": PCG(tolerance=1e-4),
    }


def shift(which: Recovery, encoder: Encoder) -> Vector:
    """Offset (2,) that takes scaled returns s·z to the raw scale.

    It is zero for rewards that are divided by s and not centred. The paper centres rewards by their mean m
    and maps an atom z to m + s·z. But a sum of centred rewards lacks m/(1 − γ) rather than m, so that the
    paper's raw scale is lower by γm/(1 − γ).
    """
    if which == "automatic":
        return np.zeros(2)
    return -DISCOUNT / (1 - DISCOUNT) * encoder.reward_mean


def recovery(which: Recovery, encoder: Encoder) -> RecoverySettings:
    """The paper's recovery (subsec:expedia_density_recovery), solved to its minimum; or the automatic one."""
    if which == "automatic":
        return RecoverySettings()
    scale, support = encoder.reward_scale, np.array(encoder.clicks)
    return RecoverySettings(
        ridge=1e-2,
        bandwidth={0: BANDWIDTH / scale[0]},
        projected={1: (support - shift(which, encoder)[1]) / scale[1]},
    )


#: What the paper reports of the published data.
PAPER: Record = {
    "actions": {  # tab:expedia_policy_action_summary: logged, rev, clk
        "avg_price_per_night": (128.6127, 130.9611, 123.2302),
        "total_promotions": (3.6080, 3.4828, 5.1903),
        "std_price_usd": (29.5638, 31.2111, 26.9577),
    },
    "risk": {"rev": 0.0513, "clk": 0.0478},  # tab:expedia_policy_eval_risks
    "ess": {"rev": 0.577, "clk": 0.520},
    "ratio_max": {"rev": 4.39, "clk": 6.24},
    "mass": {"rev": (1.126, 1.056), "clk": (1.105, 0.868)},
    "negative": {"rev": 0.187, "clk": 0.193},
    "distance": {"mean": 0.6326, "median": 0.6711},
    "correlation": (0.9999, 0.9739, 0.9990),
    "marginals": {  # tab:expedia_recovered_marginals: rev, clk
        "revenue_mean": (63.92, 67.66),
        "revenue_50": (0.5348, 0.5566),
        "revenue_100": (0.2087, 0.2360),
        "click_mean": (0.7103, 0.8875),
        "click_1": (0.4576, 0.5583),
        "click_2": (0.2058, 0.2424),
        "click_3": (0.0470, 0.0434),
    },
}
