"""The settings of a fit, checked before any work starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.engine.plan.plan import Form
from kedrl_dask.estimator.parameters import Parameters
from kedrl_dask.numerics.design.sizes import MOST, N_FOLDS, Size
from kedrl_dask.numerics.solvers import PCG, by_name
from kedrl_dask.utils.arrays import Inputs, Weights
from kedrl_dask.utils.checks import as_numbers, shown

#: Most conditioning points if their number is not given.
DEFAULT_CONDITIONING = 20_000
#: Most conditioning points of a chunk, and a divisor of the number of chunks, so that the usual numbers of
#: workers have equal shares.
CHUNK_POINTS, CHUNK_MULTIPLE = 4_096, 8
#: Fewest points of a chunk with exact operators, as each chunk evaluates the kernel between all shifted
#: rewards, and the most bytes of its H and G.
EXACT_POINTS, EXACT_BYTES = 512, 2**27
#: Bounds on the number of transitions that k-means divides, which is five for each conditioning point.
FEWEST_CLUSTERED, MOST_CLUSTERED = 20_000, 100_000
#: Largest return: products of returns stay in the range of floats.
LARGEST_RETURN = 1e100


@dataclass(frozen=True, kw_only=True)
class Settings(Parameters):
    """The parameters of a fit, checked against each other, and what follows from them."""

    def __post_init__(self) -> None:
        """Check each parameter by itself, then those that exclude each other."""
        super().__post_init__()
        if self.operators == "exact" and self.construction == "paired":
            raise ValueError(
                f"KEDRL: operators='exact' needs construction='separated', got {self.construction!r}: "
                "only there is the target made of H and G"
            )
        if self.reward_trend == "linear" and not self.may_have_trend:
            raise ValueError(
                f"KEDRL: reward_trend={self.reward_trend!r} needs construction='separated' and "
                f"operators='features', got {self.construction!r} and {self.operators!r}: only there does "
                "the reward have a regression of its own; leave reward_trend at 'none'"
            )
        if self.given_points is not None and self.n_conditioning is not None:
            raise ValueError(
                f"KEDRL: conditioning gives {len(self.given_points[0])} points, so n_conditioning must be "
                f"None, got {self.n_conditioning!r}"
            )
        if isinstance(by_name(self.solver), PCG) and self.negative_penalty > 0:
            raise ValueError("KEDRL: solver 'pcg' needs negative_penalty=0; use solver='lbfgs'")

    @cached_property
    def given_points(self) -> tuple[Inputs, Weights] | None:
        """Conditioning points (M, p + q) with weights (M,) that sum to one, if they were given."""
        given: Any = self.conditioning
        if isinstance(given, str):
            return None
        if isinstance(given, tuple | list) and len(given) == 2 and _n_axes(given[0]) == 2:
            points = _as_points(given[0])
            return points, _as_weights(given[1], len(points))
        points = _as_points(given)
        return points, np.full(len(points), 1.0 / len(points))

    def check_data(self, state_dim: int, action_dim: int, reward_dim: int, n_transitions: int) -> None:
        """Refuse kernels, points, a grid or bounds that do not fit the data."""
        self._check_points(state_dim + action_dim, n_transitions)
        self.check_kernels(state_dim + action_dim, reward_dim)
        if self.grid is not None:
            grid = as_numbers("KEDRL: grid", self.grid, finite=False)
            fits = grid.ndim == 2 and grid.shape[1] == reward_dim and len(grid) > 0
            if not (fits and (np.abs(grid) <= LARGEST_RETURN).all()):
                raise ValueError(
                    f"KEDRL: grid must be finite with one row per atom and {reward_dim} columns, "
                    f"got shape {grid.shape}"
                )
        if self.reward_bounds is not None:
            self._check_bounds(reward_dim)

    def in_own_units(self, encoding: Encoding | None) -> Settings:
        """Convert the length scales of given kernels to the units of the stored columns.

        Standardisation has no other effect: see :mod:`kedrl_dask.engine.data.encoding`.
        """
        if encoding is None or not encoding.scales:
            return self
        ratio = self.ratio
        if ratio is not None:
            ratio = replace(ratio, kernel=encoding.in_own_units(ratio.kernel, "state", "action"))
        return replace(
            self,
            input_kernel=encoding.in_own_units(self.input_kernel, "state", "action"),
            return_kernel=encoding.in_own_units(self.return_kernel, "reward"),
            ratio=ratio,
        )

    def _check_bounds(self, reward_dim: int) -> None:
        given: Any = self.reward_bounds
        if not (isinstance(given, tuple | list) and len(given) == 2):
            raise ValueError(f"KEDRL: reward_bounds must be (low, high), got {shown(given)}")
        low, high = (np.atleast_1d(as_numbers("KEDRL: reward_bounds", end, finite=False)) for end in given)
        shapes = [low.shape, high.shape]
        if shapes != [(reward_dim,), (reward_dim,)]:
            raise ValueError(
                f"KEDRL: reward_bounds must be (low, high), {reward_dim} numbers each, not {shapes}"
            )
        is_range = (low <= high).all() and (low < high).any()
        if not (is_range and (np.abs([low, high]) <= LARGEST_RETURN).all()):
            raise ValueError(
                "KEDRL: reward bounds must be finite with low ≤ high, and not all the same, "
                f"got {low.tolist()} and {high.tolist()}"
            )

    def _check_points(self, input_dim: int, n_transitions: int) -> None:
        if self.given_points is not None:
            shape = self.given_points[0].shape
            if shape[1] != input_dim:
                raise ValueError(
                    f"KEDRL: conditioning points have shape {shape}, expected (M, {input_dim}): one row of "
                    "state and action for each"
                )
        elif self.conditioning == "kmeans":
            n_points, n_clustered = self.n_points(n_transitions), self.n_clustered(n_transitions)
            if 2 * n_points > n_clustered:
                raise ValueError(
                    f"KEDRL: conditioning='kmeans' cannot divide {n_clustered:,} transitions into "
                    f"{n_points:,} clusters of at least two; give n_conditioning at most "
                    f"{n_clustered // 2:,}, or use conditioning='random'"
                )

    def n_points(self, n_transitions: int) -> int:
        """Number M of conditioning points."""
        if self.given_points is not None:
            return len(self.given_points[0])
        n = self.n_conditioning
        if n is None:
            return min(DEFAULT_CONDITIONING, n_transitions)
        if n == "all":
            return n_transitions
        if isinstance(n, Integral):
            return min(int(n), n_transitions)
        return ceil(Fraction(str(n)) * n_transitions)  # exactly, as written: 0.07 of 100 is 7

    def n_clustered(self, n_transitions: int) -> int:
        """Number of transitions that k-means divides among the conditioning points."""
        wanted = max(FEWEST_CLUSTERED, 5 * self.n_points(n_transitions))
        return min(wanted, MOST_CLUSTERED, n_transitions)

    def ranges(self, n_transitions: int) -> list[tuple[int, int]]:
        """Chunks of conditioning points, which depend on the sizes of the fit alone, as results must."""
        n_points = self.n_points(n_transitions)
        if not isinstance(self.chunk_points, str):
            return even_ranges(n_points, self.chunk_points)
        if self.operators == "exact":
            wanted = max(EXACT_POINTS, -(-n_points // CHUNK_MULTIPLE))
            return even_ranges(n_points, min(wanted, exact_rows(self.grid_size)))
        n_chunks = CHUNK_MULTIPLE * -(-n_points // (CHUNK_MULTIPLE * CHUNK_POINTS))
        return even_ranges(n_points, -(-n_points // n_chunks))

    @property
    def centred(self) -> bool:
        """Whether a potential is to be subtracted from the return."""
        return self.centring == "auto" and self.grid is None and self.reward_bounds is None

    @property
    def n_folds(self) -> int:
        """Number of folds of the sums in memory: that of the cross-validation, or one if λ_Γ is given."""
        return N_FOLDS if isinstance(self.ridge_gamma, str) else 1

    @property
    def may_have_trend(self) -> bool:
        """Whether the law of the reward has a regression of its own, which may be around a trend."""
        return self.construction != "paired" and self.operators == "features"

    @property
    def is_undecided(self) -> bool:
        """Whether data decide about the construction; exact operators and a given trend need "separated"."""
        is_free = self.operators == "features" and self.reward_trend != "linear"
        return self.construction == "auto" and is_free

    @property
    def forms(self) -> tuple[tuple[Form, ...], ...]:
        """For each possible construction, the forms of the problem among which the plan may choose."""
        paired: tuple[Form, ...] = ("contracted", "matrix-free")
        if self.paired_form != "auto":
            paired = (self.paired_form,)
        if self.is_undecided:
            return ("separated",), paired
        return (paired,) if self.construction == "paired" else (("separated",),)

    @property
    def grid_size(self) -> int:
        """Number m of atoms."""
        return self.largest("n_atoms") if self.grid is None else len(np.asarray(self.grid))

    def largest(self, name: Size) -> int:
        """A size as given, or the largest that can be chosen."""
        given: int | str = getattr(self, name)
        return MOST[name] if isinstance(given, str) else given

    @property
    def automatic_sizes(self) -> list[Size]:
        """The sizes that the design chooses."""
        names: list[Size] = [name for name in MOST if isinstance(getattr(self, name), str)]
        return [name for name in names if name != "n_atoms" or self.grid is None]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the products; sums are always in double precision.

        Exact operators need double precision: the criterion is convex because [[K_Z, −H], [−Hᵀ, G]] is
        positive semidefinite, and rounding H and G to single precision would make some of its smallest
        eigenvalues negative. With features the criterion is a square and stays convex.
        """
        is_single = self.precision == "mixed" and self.operators == "features"
        return np.dtype(np.float32 if is_single else np.float64)


def exact_rows(n_atoms: int) -> int:
    """Most inputs at which exact operators are evaluated at once."""
    return max(1, min(CHUNK_POINTS, EXACT_BYTES // (16 * n_atoms**2)))


def _n_axes(given: object) -> int:
    """Number of axes of an array or of nested sequences, which need not be numbers or of one length."""
    return np.ndim(given) if hasattr(given, "__array__") else np.asarray(given, dtype=object).ndim


def _as_points(given: npt.ArrayLike) -> Inputs:
    """Conditioning points (M, p + q), as far as they can be checked without the data."""
    points = as_numbers("KEDRL: conditioning points", given)
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(
            f"KEDRL: conditioning points have shape {points.shape}, expected (M, p + q): one row of "
            "state and action for each"
        )
    return points


def _as_weights(given: npt.ArrayLike, n_points: int) -> Weights:
    """Weights of the conditioning points, scaled to sum to one."""
    weights = as_numbers("KEDRL: conditioning weights", given, finite=False)
    if weights.shape != (n_points,):
        raise ValueError(
            f"KEDRL: conditioning weights have shape {weights.shape}, expected ({n_points},): "
            "one for each point"
        )
    bad = np.flatnonzero(~((weights > 0) & np.isfinite(weights)))
    if bad.size:
        raise ValueError(
            f"KEDRL: conditioning weight {bad[0]} is {weights[bad[0]]}, expected a positive number; "
            "leave out points that should not count"
        )
    weights = weights / weights.max()  # the sum of large ones may overflow
    return weights / weights.sum()
