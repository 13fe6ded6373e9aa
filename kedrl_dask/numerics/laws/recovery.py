"""A probability law from signed coefficients (sec:stat_recovery, subsec:expedia_density_recovery).

The embedding Σ_i ω_i k_Z(z_i, ·) has signed coefficients and is no law. The proxy is the law on the atoms, of
smoothed and projected coordinates, whose own embedding is nearest to it under a penalty. It is a regularised
inversion and not the only one (app:emb_ill_posed): it comes with its distance from the embedding, with a
certificate, and with a second specification to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import cKDTree

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.laws.mixture import Mixture, checked_coordinate, checked_shift, on_supports
from kedrl_dask.numerics.laws.simplex import SimplexProblem, minimise, minimise_by_adam
from kedrl_dask.utils.arrays import Atoms, Mask, Matrices, Matrix, Real, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, check_number, check_word, is_word, shown

#: λ₂ as a share of the largest eigenvalue of K_Z.
RIDGE_SHARE = 3e-4
#: λ_den of the paper: its least value, and its share of the largest eigenvalue.
DICTIONARY_RIDGE, DICTIONARY_SHARE = 1e-5, 1e-6
#: Gap, in units of k_Z(z, z), at which weights count as the minimisers.
TOLERANCE = 1e-10
#: Distance from the embedding, relative to its norm, above which a proxy does not stand for it.
LARGE_RESIDUAL = 0.1
#: Difference between the specifications, in standard deviations, above which a law is sensitive to them.
LARGE_DIFFERENCE = 0.1
#: Share of the largest atom below which a difference is rounding.
ROUNDING = 1e-12
#: What the second specification of a law on the grid changes.
SECOND = "ten times the ridge and half the bandwidth"
#: Fields of recovered laws with a number for each input.
DIAGNOSTICS = ("residual", "relative_residual", "gap", "converged", "objective")
#: Levels of the quantiles that are compared.
COMPARED_LEVELS = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class RecoverySettings:
    """How the proxy is matched to the embedding.

    Attributes
    ----------
    ridge : "auto" or float
        λ₂ on ‖w − w₀‖². "auto" takes 3·10⁻⁴ of the largest eigenvalue of K_Z, a share so that it means the
        same for any number of atoms and any kernel: on the simulation study errors are flat from a tenth of
        this to three times as much.
    bandwidth : "auto", float, (d,) array or dict
        Standard deviation of the Gaussian smoothing of each coordinate; projected ones have none. A dict
        gives it, as a number or "auto", for the coordinates to be smoothed, and no others are. It is part of
        the matching, so that it does not widen the law. See :func:`auto_bandwidth`.
    projected : dict
        Supports on which coordinates are projected, by coordinate.
    divergence : float
        λ_KL on KL(w‖w₀), which is finite only where w₀ is positive.
    dictionary_ridge : "auto", float or None
        λ_den, by which the proxy's embedding is written in the atoms before it is compared; "auto" is the
        paper's max(10⁻⁵, 10⁻⁶·λ_max(K_Z)); None compares the embeddings themselves, in the RKHS norm.
    reference : {"positive", "uniform"}
        w₀: the normalised positive part of the coefficients, or equal weights, with which λ₂ is on ‖w‖².
    solver : {"interior-point", "adam"}
        The certified minimiser; or the paper's softmax and 20,000 steps of Adam, for comparison.
    """

    ridge: float | Literal["auto"] = "auto"
    bandwidth: npt.ArrayLike | Mapping[int, float | Literal["auto"]] | Literal["auto"] = "auto"
    projected: Mapping[int, npt.ArrayLike] | None = None
    divergence: float = 0.0
    dictionary_ridge: float | Literal["auto"] | None = "auto"
    reference: Literal["positive", "uniform"] = "positive"
    solver: Literal["interior-point", "adam"] = "interior-point"

    def __post_init__(self) -> None:
        """Check that the settings define a problem."""
        for name in ("ridge", "divergence", "dictionary_ridge"):
            value = getattr(self, name)
            if (is_word(value, "auto") and name != "divergence") or (value is None and name[0] == "d"):
                continue
            check_number(f"recover: {name}", value, "a number ≥ 0 or 'auto'")
        if self.projected is not None and not isinstance(self.projected, Mapping):
            raise ValueError(
                f"recover: projected must be a dict of supports by coordinate, got {shown(self.projected)}"
            )
        check_word("recover: reference", self.reference, ("positive", "uniform"))
        check_word("recover: solver", self.solver, ("interior-point", "adam"))

    def resolved(self, atoms: Atoms, gram: Matrix) -> RecoverySettings:
        """The settings with "auto" replaced by numbers, checked against the atoms."""
        supports = _supports(self.projected or {}, atoms.shape[1])
        bandwidth = _bandwidths(self.bandwidth, atoms, supports)
        largest = float(np.linalg.eigvalsh(gram)[-1])
        ridge = RIDGE_SHARE * largest if self.ridge == "auto" else self.ridge
        written = self.dictionary_ridge
        if written == "auto":
            written = max(DICTIONARY_RIDGE, DICTIONARY_SHARE * largest)
        return replace(self, ridge=ridge, bandwidth=bandwidth, projected=supports, dictionary_ridge=written)


def auto_bandwidth(atoms: npt.ArrayLike) -> Vector:
    """Bandwidth of each coordinate from the spacing of the atoms; (d,).

    Half the median distance to the nearest atom, with coordinates in units of the atoms' standard deviation.
    Even Gaussians of half their spacing add up to a density that ripples by about 1 %; narrower ones leave
    steps in the distribution function, and ones as wide as the law itself cannot be matched. It depends on
    the grid alone, so that inputs, policies and bootstrap replicates are smoothed alike.

    Measured on the simulation study (uniform-gaussian, 14,700 transitions, ten points, three coordinates):
    mean error of the distribution function 0.010, against 0.024 without smoothing, 0.012 with half and
    0.009 with 1.5 times this, and 0.015 with twice, where the law's width is exceeded.
    """
    atoms = np.asarray(atoms, dtype=np.float64)
    spread = atoms.std(axis=0)
    if len(atoms) < 2 or not (spread > 0).all():
        raise ValueError("recover: atoms do not vary in every coordinate; give bandwidth")
    distance, _ = cKDTree(atoms / spread).query(atoms / spread, k=[2])
    return np.asarray(0.5 * np.median(distance) * spread)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Recovered(Mixture):
    """Laws recovered from embeddings, with their diagnostics; summaries are those of :class:`Mixture`.

    Attributes
    ----------
    residual, relative_residual : (n,) arrays
        RKHS distance between the proxy's embedding and the fitted one, and its ratio to the latter's norm.
    gap : (n,) array
        How far at most the objective is above its minimum.
    converged : (n,) bool array
        Whether the gap is below 10⁻¹⁰·k_Z(z, z).
    objective : (n,) array
        Value of the paper's criterion at the weights.
    coefficients : (n, m) array
        The signed ω that were matched.
    grid : (m, d) array
        Their atoms, before projection and shift.
    kernel : Matern
        The return kernel.
    settings : RecoverySettings
        The settings used, with "auto" resolved.

    Examples
    --------
    >>> settings = RecoverySettings(bandwidth=0.0)
    >>> law = recover_law([[0.4, 0.8, -0.2]], [[0.0], [1.0], [2.0]], Matern(), settings)
    >>> law.weights.round(3).tolist(), law.converged.tolist()
    ([[0.399, 0.601, 0.0]], [True])
    >>> law.mean().round(3).tolist(), law.quantile(0.5, 0).tolist()
    ([[0.601]], [1.0])
    >>> law.under(ridge=1e-2).mean().round(3).tolist(), law.sensitivity.mean().round(3).tolist()
    ([[0.603]], [[0.602]])
    >>> law.differs(lambda other: other.mean(), tolerance=0.1).tolist()
    [[False]]
    >>> {name: flag.tolist() for name, flag in law.flags.items()}
    {'not_converged': [False], 'residual': [True], 'sensitive': [False]}
    """

    residual: Vector
    relative_residual: Vector
    gap: Vector
    converged: Mask
    objective: Vector
    coefficients: Weights
    grid: Atoms
    kernel: Matern
    settings: RecoverySettings

    def __repr__(self) -> str:
        """Sizes, and how far the laws are from the embeddings."""
        (n, m), d = self.weights.shape, self.dim
        return (
            f"{type(self).__name__}: {n} laws of {d} coordinates on {m} atoms; relative residual up to "
            f"{self.relative_residual.max(initial=0.0):.3f}, gap up to {self.gap.max(initial=0.0):.1e}"
        )

    def under(self, **settings: Any) -> Recovered:
        """The laws under other settings: ``recovered.under(ridge=1e-2, bandwidth=0.3)``."""
        used = replace(self.settings, **settings)
        return recover_law(self.coefficients, self.grid, self.kernel, used, self.shift)

    @property
    def second_specification(self) -> str:
        """What :attr:`sensitivity` changes."""
        return SECOND

    @cached_property
    def sensitivity(self) -> Recovered:
        """The laws with ten times the ridge and half the bandwidth, solved on first access.

        A ridge of zero is replaced by the automatic one.
        """
        ridge = float(self.settings.ridge)
        return self.under(ridge=10 * ridge if ridge > 0 else "auto", bandwidth=0.5 * self.bandwidth)

    def differs(self, summary: Callable[[Mixture], Real], tolerance: npt.ArrayLike) -> Mask:
        """Where a summary differs by more than ``tolerance`` under :attr:`sensitivity`.

        ``recovered.differs(lambda law: law.cvar(0.1, 0), tolerance=0.05)``
        """
        return np.asarray(np.abs(summary(self) - summary(self.sensitivity)) > tolerance)

    @cached_property
    def flags(self) -> dict[str, Mask]:
        """Reasons to doubt the law at each input, as (n,) bool arrays.

        ``not_converged``; ``residual``: the relative residual is above 0.1; ``sensitive``: the mean or the
        10, 50 or 90 % quantile of a coordinate moves by more than a tenth of its standard deviation
        under :attr:`sensitivity`.
        """
        spread = np.sqrt(np.diagonal(self.covariance(), axis1=1, axis2=2))
        # A law of one value has no spread; its mean still moves by rounding.
        largest = [np.abs(self.atoms_of(row)).max(axis=0) for row in range(len(spread))]
        tolerance = LARGE_DIFFERENCE * spread + ROUNDING * np.reshape(largest, spread.shape)

        def location(law: Mixture) -> Matrices:
            columns = [law.quantile(COMPARED_LEVELS, c) for c in range(law.dim)]
            return np.concatenate([law.mean()[:, :, None], np.stack(columns, axis=1)], axis=2)

        moved = self.differs(location, tolerance[:, :, None])
        return {
            "not_converged": ~self.converged,
            "residual": self.relative_residual > LARGE_RESIDUAL,
            "sensitive": np.asarray(moved.any(axis=(1, 2))),
        }


def recover_law(
    coefficients: npt.ArrayLike,
    grid: npt.ArrayLike,
    kernel: Matern,
    settings: RecoverySettings | None = None,
    shift: npt.ArrayLike | None = None,
) -> Recovered:
    """Simplex weights whose proxy law has the nearest embedding, for n embeddings at once.

    Minimises {β̃(w) − ω}ᵀK_Z{β̃(w) − ω} + λ₂‖w − w₀‖² + λ_KL·KL(w‖w₀) over the simplex, with
    β̃(w) = (K_Z + λ_den·I)⁻¹Aw and A_ℓi = E k_Z(z_ℓ, ȳ_i + ε) (subsec:expedia_density_recovery).

    Parameters
    ----------
    coefficients : (n, m) array
        ω, signed.
    grid : (m, d) array
        The atoms z.
    kernel : Matern
        k_Z.
    settings : RecoverySettings, optional
    shift : (n, d) array, optional
        Added to the atoms of each input. The kernel does not notice, but a support does, which is one of the
        shifted return: with projected coordinates every input is matched on moved atoms of its own.
    """
    omega, grid = _checked(coefficients, grid)
    moves = checked_shift("recover", shift, len(omega), grid.shape[1])
    gram = kernel(grid, grid)
    used = (settings or RecoverySettings()).resolved(grid, gram)
    supports = cast("Mapping[int, Vector]", used.projected)
    if moves is not None and supports and len(omega):
        alone = [
            recover_law(row[None], grid + move, kernel, used) for row, move in zip(omega, moves, strict=True)
        ]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(law, name) for law in alone]) for name in ("weights", *DIAGNOSTICS)
        }
        return replace(alone[0], **joined, atoms=grid, grid=grid, coefficients=omega, shift=moves)
    atoms = on_supports(grid, supports)
    variance = np.asarray(used.bandwidth) ** 2
    cross = kernel.smoothed(grid, atoms, variance)
    own = kernel.smoothed(atoms, atoms, 2 * variance)
    problem, constant = _problem(omega, gram, cross, own, used)
    tolerance = TOLERANCE * kernel.sigma**2
    solution = minimise_by_adam(problem) if used.solver == "adam" else minimise(problem, tolerance)
    weights = solution.weights
    norm = np.einsum("ni,ij,nj->n", omega, gram, omega, optimize=True)
    square = ((weights @ own - 2 * omega @ cross) * weights).sum(axis=1) + norm
    # A difference of nearly equal squares: below this it is rounding.
    residual = np.sqrt(np.maximum(square, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(norm > 0, residual / np.sqrt(np.maximum(norm, 0.0)), np.inf)
    return Recovered(
        atoms, weights, np.asarray(used.bandwidth), supports, moves,
        residual=residual, relative_residual=relative, gap=solution.gap,
        converged=solution.gap <= tolerance, objective=solution.value + constant,
        coefficients=omega, grid=grid, kernel=kernel, settings=used,
    )  # fmt: skip


def _problem(
    omega: Weights, gram: Matrix, cross: Matrix, own: Matrix, used: RecoverySettings
) -> tuple[SimplexProblem, Vector]:
    """The criterion as a quadratic form in w, and its constant."""
    n, m = omega.shape
    ridge, written = float(used.ridge), used.dictionary_ridge
    reference = np.full((n, m), 1 / m)
    if used.reference == "positive":
        positive = np.maximum(omega, 0.0)
        mass = positive.sum(axis=1, keepdims=True)
        reference = np.divide(positive, mass, out=reference, where=mass > 0)
    if written is None:
        quadratic, linear = own, omega @ cross
    else:
        factor = cho_factor(gram + float(written) * np.eye(m))
        dictionary = cho_solve(factor, cross)
        linear = omega @ gram @ dictionary
        quadratic = dictionary.T @ gram @ dictionary
    quadratic = 0.5 * (quadratic + quadratic.T)
    problem = SimplexProblem(
        2 * (quadratic + ridge * np.eye(m)), 2 * (linear + ridge * reference), used.divergence, reference
    )
    constant = np.einsum("ni,ij,nj->n", omega, gram, omega, optimize=True)
    return problem, constant + ridge * (reference**2).sum(axis=1)


def _checked(coefficients: npt.ArrayLike, grid: npt.ArrayLike) -> tuple[Weights, Atoms]:
    grid = as_numbers("recover: grid", grid, finite=False)
    omega = as_numbers("recover: coefficients", coefficients, finite=False)
    if grid.ndim != 2 or not np.isfinite(grid).all():
        raise ValueError(f"recover: grid of shape {grid.shape} must be finite and (m, d)")
    if omega.ndim != 2 or omega.shape[1] != len(grid):
        raise ValueError(f"recover: coefficients have shape {omega.shape}, expected (n, {len(grid)})")
    bad = np.flatnonzero(~np.isfinite(omega).all(axis=1))
    if bad.size:
        raise ValueError(f"recover: coefficients, row {bad[0]}, are not finite; was the fit solved?")
    return omega, grid


def _supports(projected: Mapping[int, npt.ArrayLike], dim: int) -> dict[int, Vector]:
    supports = {}
    for coordinate, given in projected.items():
        index = checked_coordinate(coordinate, dim, "recover: projected ")
        support = np.unique(as_numbers(f"recover: the support of {shown(coordinate)}", given, finite=False))
        if support.size == 0 or not np.isfinite(support).all():
            raise ValueError(
                f"recover: the support of coordinate {coordinate} must be finite numbers, got {shown(given)}"
            )
        supports[index] = support
    return supports


def _bandwidths(given: object, atoms: Atoms, supports: Mapping[int, Vector]) -> Vector:
    """The bandwidth of each coordinate, zero for projected ones."""
    dim = atoms.shape[1]
    words = f"'auto', a number ≥ 0 or {dim} of them, or a dict"
    refusal = f"recover: bandwidth must be {words}, got {shown(given)}"
    is_auto = isinstance(given, str) and given == "auto"
    asked = _automatic(atoms, supports) if is_auto else given
    if isinstance(given, Mapping):
        if not set(given) <= set(range(dim)):
            raise ValueError(f"recover: bandwidth is of coordinates {list(given)}, there are 0 to {dim - 1}")
        automatic = _automatic(atoms, supports) if "auto" in given.values() else np.zeros(dim)
        asked = [automatic[c] if given.get(c) == "auto" else given.get(c, 0.0) for c in range(dim)]
    try:
        values = np.asarray(asked, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(refusal) from error
    if values.shape not in ((), (dim,)) or not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(refusal)
    result = np.broadcast_to(values, (dim,)).copy()
    projected = list(supports)
    if values.ndim == 1 and not is_auto and result[projected].any():
        raise ValueError(f"recover: bandwidth of projected coordinates {projected} must be 0, got {given!r}")
    result[projected] = 0.0
    return result


def _automatic(atoms: Atoms, supports: Mapping[int, Vector]) -> Vector:
    """:func:`auto_bandwidth` of the coordinates that vary; one that does not may be projected."""
    kept = [c for c in range(atoms.shape[1]) if c not in supports or np.ptp(atoms[:, c]) > 0]
    bandwidth = np.zeros(atoms.shape[1])
    if kept:
        bandwidth[kept] = auto_bandwidth(atoms[:, kept])
    return bandwidth
