"""The parameters of the estimators: what each may be and what it means, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from kedrl_dask.estimator.constraints import (
    Constraint,
    check_parameters,
    choice,
    count,
    declared,
    either,
    instance,
    number,
    parameter,
)
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import Method
from kedrl_dask.numerics.regression.density_ratio import ULSIF
from kedrl_dask.numerics.solvers import Solver, by_name
from kedrl_dask.utils.arrays import Record
from kedrl_dask.utils.checks import MOST_SEED, check_share, shown

#: A way to choose the conditioning points, the points themselves, or points and weights.
Conditioning = Literal["random", "kmeans"] | npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]

#: The largest number of draws, penalties, expansion of the grid and σ of a kernel that are accepted: products
#: of them stay in the range of floats.
MOST_DRAWS, LARGEST_PENALTY, LARGEST_EXPANSION, LARGEST_SIGMA = 4_096, 1e30, 1e6, 1e6


def _check_kernel(name: str, value: object, otherwise: str) -> None:
    instance(Matern, "a Matern kernel").check(name, value, otherwise)
    if isinstance(value, Matern) and not 1 / LARGEST_SIGMA <= value.sigma <= LARGEST_SIGMA:
        raise ValueError(
            f"{name} must have a sigma between {1 / LARGEST_SIGMA:g} and {LARGEST_SIGMA:g}, "
            f"because single precision has to hold its square, got {value.sigma!r}"
        )


def _check_solver(name: str, value: Any, _: str) -> None:
    solver = by_name(value)
    if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        raise ValueError(f"{name} must be a name or a solver object, got {shown(value)}")


def _check_n_conditioning(name: str, n: Any, _: str) -> None:
    is_count = isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1
    is_share = isinstance(n, Real) and not isinstance(n, Integral) and 0 < float(n) <= 1
    if not (is_count or is_share or n is None or (isinstance(n, str) and n == "all")):
        raise ValueError(
            f"{name} must be an integer ≥ 1, a fraction in (0, 1] of the transitions, 'all' or None, "
            f"got {shown(n)}"
        )


def _check_conditioning(name: str, value: object, _: str) -> None:
    if isinstance(value, str) and value not in ("random", "kmeans"):
        raise ValueError(
            f"{name} must be 'random', 'kmeans', an array of points or (points, weights), got {value!r}"
        )


#: Parameters that version one did not have, with the values that describe what it did.
VERSION_ONE: Record = {"centring": "none", "construction": "separated", "reward_trend": "none"}

AUTO_COUNT = either("auto", count())
AUTO_KERNEL = either("auto", Constraint("Matern", _check_kernel))
AUTO_RIDGE = either("auto", number(high=LARGEST_PENALTY, open_low=True))


@dataclass(frozen=True, kw_only=True)
class CommonParameters:
    """The parameters that all estimators have, checked when they are given."""

    estimator: ClassVar[str]

    input_kernel: Matern | Literal["auto"] = parameter(
        AUTO_KERNEL,
        """Kernel on state-action inputs. "auto" chooses a length scale for each coordinate by
        cross-validation or, where that predicts simulated returns better, lengths along the directions on
        which the return depends.""",
    )
    return_kernel: Matern | Literal["auto"] = parameter(
        AUTO_KERNEL,
        """Kernel on returns, which defines the embedding. "auto" takes the median distances between observed
        returns as length scales.""",
    )
    landmark_threshold: float = parameter(
        number(),
        """Smallest share of its variance that a landmark or basis point must add to the others to be
        kept.""",
    )
    n_blocks: int = parameter(
        count(), "Number of blocks of whole episodes for which sums are kept separately."
    )
    precision: Literal["mixed", "double"] = parameter(
        choice(),
        """Precision of matrix products. "mixed" multiplies in single precision, and adds, regresses and takes
        gradients in double precision; "double" uses double precision throughout, as exact operators always
        do.""",
        "--precision",
    )
    random_state: int = parameter(count(least=0, most=MOST_SEED), "Seed of everything random.")

    def __post_init__(self) -> None:
        """Check each parameter by itself."""
        check_parameters(self.estimator, self)

    def get_params(self, deep: bool = False) -> Record:
        """The parameters by name, as scikit-learn's estimators give them."""
        return {name: getattr(self, name) for name in declared(type(self))}

    def check_kernels(self, input_dim: int, return_dim: int) -> None:
        """Refuse kernels with another number of length scales than the data have columns."""
        for name, dim in (("input_kernel", input_dim), ("return_kernel", return_dim)):
            kernel = getattr(self, name)
            n_lengths = len(np.atleast_1d(kernel.length_scale)) if isinstance(kernel, Matern) else 1
            if n_lengths not in (1, dim):
                raise ValueError(
                    f"{self.estimator}: {name} has {n_lengths} length scales, the data have {dim} columns"
                )
        if isinstance(self.return_kernel, Matern):
            self.return_kernel.refuse_directions(f"{self.estimator}: return_kernel")


@dataclass(frozen=True, kw_only=True)
class Parameters(CommonParameters):
    """The parameters of :class:`~kedrl_dask.KEDRL`."""

    estimator: ClassVar[str] = "KEDRL"

    discount: float = parameter(
        Constraint("float", lambda name, value, _: check_share(name, value)),
        "Discount factor γ, strictly between 0 and 1.",
    )
    construction: Literal["auto", "separated", "paired"] = parameter(
        choice(),
        """How the reward and the continuation are averaged given the input. "separated" averages each by
        itself, which is right when they are uncorrelated given x (ass:reward_continuation_separation);
        "paired" averages them together (app:paired_bellman_estimator), which is always right and takes
        longer. "auto" tests on a sample, before the pass over the data, whether they are uncorrelated, and
        takes "paired" where they are not; ``operators="exact"`` and ``reward_trend="linear"`` need
        "separated". ``construction_`` is the one used, ``diagnostics_["construction"]`` has the figures of
        the test, and ``diagnostics_["separation"]`` those of the same test after the fit.""",
        "--construction",
    )
    centring: Literal["auto", "none"] = parameter(
        choice(),
        """Whether the fit is centred on simulated returns. "none" is the paper's estimator. "auto" fits a
        model of single transitions to a sample of the log and simulates returns of the target policy. Their
        mean given the state, Ψ, is subtracted from the return while it is estimated and added to every
        answer; the grid and the return kernel are chosen for what is left; ``ridge_b`` shrinks the
        coefficients towards those of the simulated returns instead of zero; and :meth:`recover` gives laws on
        simulated returns. Without effect if ``grid`` or ``reward_bounds`` are given, which speak of the
        return itself, with fewer than 500 transitions or ten episodes, and for states with categories.""",
        "--centring",
    )
    continuation: Literal["sampled", "ratio"] = parameter(
        choice(),
        """How the target policy enters. "sampled" averages over its actions at the logged successor state;
        "ratio" weights logged successors by an estimated density ratio, as in the paper.""",
        "--continuation",
    )
    solver: str | Solver = parameter(
        Constraint('{"pcg", "lbfgs", "adamw"} or solver object', _check_solver),
        """Minimiser of the criterion. "pcg" finds the exact minimum, "lbfgs" is for
        ``negative_penalty > 0``, "adamw" is the paper's. Objects of :mod:`kedrl_dask.solvers` carry
        settings.""",
    )
    n_atoms: int | Literal["auto"] = parameter(
        AUTO_COUNT,
        """Number m of atoms of the return grid. "auto" takes the smallest number whose approximation error,
        on a sample, is below a tolerance that falls with the number of transitions; at most 400.""",
        "--atoms",
    )
    n_basis: int | Literal["auto"] = parameter(
        AUTO_COUNT,
        """Number L of points of the state-action basis, the rows of B. "auto" as for ``n_atoms``; at most
        1,000.""",
        "--basis",
    )
    n_landmarks: int | Literal["auto"] = parameter(
        AUTO_COUNT,
        'Number s of Nyström landmarks. "auto" as for ``n_atoms``; at most 2,000.',
        "--landmarks",
    )
    n_features: int | Literal["auto"] = parameter(
        AUTO_COUNT,
        """Number Q of spectral frequencies of the return kernel. "auto" as for ``n_atoms``; at most
        2,048.""",
        "--features",
    )
    n_conditioning: int | float | Literal["all"] | None = parameter(
        Constraint('int, float, "all" or None', _check_n_conditioning),
        """Number M of conditioning points, at which the Bellman equation is enforced. A float in (0, 1] is a
        fraction of the transitions, rounded up; "all" takes every transition; None takes all, but at most
        20,000. There are never more points than transitions. With fewer points than ``n_basis``, the ridge
        alone determines part of B and the solver takes long.""",
        "--conditioning",
    )
    conditioning: Conditioning = parameter(
        Constraint('{"random", "kmeans"}, (M, p + q) array or (array, (M,) weights)', _check_conditioning),
        """How the conditioning points are chosen. "random" draws inputs of transitions, with equal weights;
        "kmeans" takes the centres of clusters of up to 100,000 inputs in the input kernel's coordinates, each
        weighted by its cluster's share of the inputs, which takes seconds for 2,000 points and minutes for
        20,000. An array gives the points themselves, one state and action a row, with equal weights or with
        positive ones that are scaled to sum to one; ``n_conditioning`` must then be None.""",
    )
    ridge_gamma: float | Literal["auto"] = parameter(
        AUTO_RIDGE,
        """Ridge λ_Γ of the conditional weights. "auto" cross-validates over blocks of episodes.""",
    )
    ridge_b: float | Literal["auto"] = parameter(
        AUTO_RIDGE,
        """Ridge λ_B on the RKHS norm of the coefficient functions. "auto" is 10⁻³·σ_X²σ_Z²/N.""",
    )
    mass_penalty: float | Literal["auto"] = parameter(
        either("auto", number(high=LARGEST_PENALTY)),
        'Penalty λ_mass on the distance of the sum of the coefficients from one. "auto" is σ_Z².',
    )
    negative_penalty: float = parameter(
        number(high=LARGEST_PENALTY), "Penalty λ_neg on negative coefficients."
    )
    grid: npt.ArrayLike | None = parameter(
        Constraint("(m, d) array or None"), "Return atoms. None finds them from the data."
    )
    grid_expansion: float = parameter(
        number(1.0, LARGEST_EXPANSION), "Factor c_exp by which the extreme atoms are moved out."
    )
    reward_bounds: tuple[npt.ArrayLike, npt.ArrayLike] | None = parameter(
        Constraint("(low, high) or None"),
        "Bounds of each reward coordinate. If they are given, the grid fills the Bellman-invariant box.",
    )
    paired_form: Literal["auto", "contracted", "matrix-free"] = parameter(
        choice(),
        """How the paired construction computes its target. "contracted" takes one pass over the data, after
        which iterations do not depend on the number of transitions; "matrix-free" sweeps over the data twice
        for every product and needs neither memory nor disk. "auto" takes the one that the plan projects to be
        faster within the memory.""",
        "--paired-form",
    )
    n_draws: int | Literal["auto"] = parameter(
        either("auto", count(most=MOST_DRAWS)),
        """Number of actions of the target policy for each successor state. "auto" takes the fewest quadrature
        nodes that average the input kernel to 10⁻⁶.""",
    )
    ratio: ULSIF | None = parameter(
        either(None, instance(ULSIF, "ULSIF settings")),
        'Settings of the density ratio, for ``continuation="ratio"``.',
    )
    spectral: Method = parameter(choice(), "How the spectral frequencies are drawn.")
    points: Literal["kmeans", "random"] = parameter(choice(), "How the landmarks and the basis are chosen.")
    chunk_points: int | Literal["auto"] = parameter(
        AUTO_COUNT,
        """Most conditioning points in a chunk. With exact operators every chunk costs N²m²/2 kernel
        evaluations, whatever its size, and 16·m² bytes for each of its points.""",
    )
    operators: Literal["features", "exact"] = parameter(
        choice(),
        """How the return kernel is evaluated. "features" uses ``n_features`` spectral features; "exact" uses
        the kernel itself, with H and G (eq:h_ij, eq:g_ij) at every conditioning point as double sums over the
        transitions, of which there may be a few thousand: :meth:`plan` says what it takes. Features then
        serve the choice of λ_Γ alone.""",
        "--operators",
    )
    reward_trend: Literal["none", "linear", "auto"] = parameter(
        choice(),
        """Trend of the reward that is removed before the regression. "linear" subtracts a least-squares trend
        in x and regresses the residual with a ridge of its own, for rewards that are linear but for noise; it
        is consistent for others too, but may raise their error. "auto" does so where that predicts the law of
        the reward better for held-out episodes, and the law of the residual hardly depends on x. For the
        separated construction with ``operators="features"``; elsewhere "auto" takes no trend.""",
    )
