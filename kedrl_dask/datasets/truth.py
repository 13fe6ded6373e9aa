"""True law of the return: in closed form for linear-Gaussian systems, by simulation for any.

For a linear location-scale policy with constant scale the return from (s, a) is a mean that is linear in
(s, a), plus a Gaussian vector, plus Σ_{t≥1} γ^t C n_t with the policy's noise n_t: its characteristic
function is a product, and its mean embedding an integral of that over the kernel's spectral measure.
Where episodes terminate, or the policy is of another kind, :func:`monte_carlo_returns` and
:func:`monte_carlo_embedding` take the place of the closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kedrl_dask.datasets.simulation import DISCOUNT
from kedrl_dask.datasets.systems import PAPER_SYSTEM, LinearGaussianSystem, System, covariance_root
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.spectral import frequencies as spectral_frequencies
from kedrl_dask.numerics.policies import LocationScale, Policy
from kedrl_dask.numerics.policies.noise import Noise
from kedrl_dask.numerics.simulation.transition_model import rewards_until
from kedrl_dask.utils.arrays import (
    Actions,
    Atoms,
    Complex,
    Frequencies,
    Matrices,
    Matrix,
    Points,
    Vector,
    Weights,
)

__all__ = [
    "MonteCarloEmbedding",
    "ReturnLaw",
    "embedding_errors",
    "evaluation_grid",
    "monte_carlo_embedding",
    "monte_carlo_returns",
    "return_law",
]


# Rewards below this share of the first one are negligible in any comparison.
_NEGLIGIBLE = 1e-8
# Below this argument a characteristic function equals that of a Gaussian to about 1e-12.
_SMALL_ARGUMENT = 1e-3
# Rows of the evaluation grid whose cosines are held at once.
_BLOCK_ROWS = 256
# Frequencies whose waves at all atoms are held at once.
_BLOCK_FREQUENCIES = 2_048
# Simulated returns whose kernel values are held at once.
_BLOCK_RETURNS = 2_048


@dataclass(frozen=True, eq=False)
class ReturnLaw:
    """Law of Z(x) = mean(x) + G + Σ_{t≥1} γ^t C n_t at n points x, with G ~ N(0, gaussian_cov).

    Attributes
    ----------
    mean : (n, d) array
        E Z(x) at each point.
    gaussian_cov : (d, d) array
        Covariance of the Gaussian part.
    noise_loading : (d, q) array
        C, the effect on the return of one unit of the policy's standard noise, scale included.
    noise : Noise
        Law of each coordinate of the independent n_t.
    discount : float
        γ.

    Examples
    --------
    >>> from kedrl_dask.datasets import simulation
    >>> pair, (state, action) = simulation.PAIRS["uniform-gaussian"], simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    >>> law, kernel = return_law(state, action, pair.target), pair.settings.kernel
    >>> law.sample(100, np.random.default_rng(0)).shape
    (10, 100, 3)
    >>> law.covariance.diagonal().round(2)
    array([0.56, 0.61, 0.67])
    >>> law.embed(law.mean[:1], kernel).round(2)[:2]
    array([[0.42],
           [0.33]])
    >>> law.rkhs_error(np.ones((10, 1)), law.mean[:1], kernel).round(2)[:2]
    array([0.42, 0.59])
    >>> round(law.squared_norm(kernel), 2), law.characteristic_function(np.zeros((1, 3)))[0]
    (0.29, array([1.+0.j]))
    """

    mean: Points
    gaussian_cov: Matrix
    noise_loading: Matrix
    noise: Noise
    discount: float

    @property
    def covariance(self) -> Matrix:
        """Covariance (d, d) of the return, the same at every point: Σ_G + γ²/(1 − γ²)·Var(n)·CCᵀ."""
        tail = self.discount**2 / (1 - self.discount**2)
        return self.gaussian_cov + tail * self.noise.variance * self.noise_loading @ self.noise_loading.T

    def characteristic_function(self, frequencies: Frequencies) -> Complex:
        """E exp(i w·Z(x)) for each point and each row w of ``frequencies`` (Q, d), complex (n, Q)."""
        frequencies = np.atleast_2d(frequencies)
        waves: Complex = np.exp(1j * self.mean @ frequencies.T)
        return waves * self.centred_characteristic_function(frequencies)

    def centred_characteristic_function(self, frequencies: Frequencies) -> Vector:
        """exp(−wᵀΣ_G w/2)·Π_{t≥1} Π_k φ(γ^t (wᵀC)_k), real (Q,): that of Z − E Z, by symmetry.

        The factors are multiplied until their arguments are small; from there on they are Gaussian, and
        their product is exp(−Var(n)·Σ_k u_k²/(2(1 − γ²))) with u the first argument left out.
        """
        values = np.exp(-0.5 * np.einsum("qi,ij,qj->q", frequencies, self.gaussian_cov, frequencies))
        argument = self.discount * frequencies @ self.noise_loading
        while np.abs(argument).max(initial=0.0) > _SMALL_ARGUMENT:
            values *= self.noise.characteristic_function(argument).prod(axis=1)
            argument *= self.discount
        tail = (argument**2).sum(axis=1) / (1 - self.discount**2)
        return values * np.exp(-0.5 * self.noise.variance * tail)

    def sample(self, size: int, rng: np.random.Generator) -> Matrices:
        """Independent draws (n, size, d) of the return at each point."""
        n, d = self.mean.shape
        draws = rng.standard_normal((n, size, d)) @ covariance_root(self.gaussian_cov)
        for t in range(1, rewards_until(self.discount, _NEGLIGIBLE)):
            noise = self.noise.sample((n, size, self.noise_loading.shape[1]), rng)
            draws += self.discount**t * (noise @ self.noise_loading.T)
        return draws + self.mean[:, None, :]

    def embed(self, at: Points | Matrices, kernel: Matern, n_frequencies: int = 2**14) -> Matrix:
        """True mean embedding E k(Z(x), z) at each point x and each z of ``at``, shape (n, g).

        k(z, z') = σ² E cos(w·(z − z')) over the spectral measure of the kernel, hence
        E k(Z(x), z) = σ² E_w[φ₀(w)·cos(w·(mean(x) − z))] with φ₀ the centred characteristic function; the
        mean over w is taken on ``n_frequencies`` quasi-Monte Carlo nodes, a power of two for balance. ``at``
        is one set of points (g, d) for all x, or (n, g, d), one for each.
        """
        n, d = self.mean.shape
        grids = _grid_of_each_point("embed", at, n, d)
        nodes = spectral_frequencies(kernel, d, n_frequencies)
        weights = kernel.sigma**2 / len(nodes) * self.centred_characteristic_function(nodes)
        values = np.empty(grids.shape[:2])
        for point, grid in enumerate(grids):
            for start in range(0, len(grid), _BLOCK_ROWS):
                rows = slice(start, start + _BLOCK_ROWS)
                values[point, rows] = np.cos((grid[rows] - self.mean[point]) @ nodes.T) @ weights
        return values

    def squared_norm(self, kernel: Matern, n_frequencies: int = 2**14) -> float:
        """‖μ(x)‖² = E k(Z, Z') of independent returns Z and Z', the same at every point.

        Z − Z' has the characteristic function |φ|² = φ₀², hence E k(Z, Z') = σ² E_w φ₀(w)².
        """
        nodes = spectral_frequencies(kernel, self.mean.shape[1], n_frequencies)
        return float(kernel.sigma**2 * np.mean(self.centred_characteristic_function(nodes) ** 2))

    def rkhs_error(
        self, weights: Weights, atoms: Atoms, kernel: Matern, n_frequencies: int = 2**14
    ) -> Vector:
        """‖μ̂(x) − μ(x)‖ in the kernel's RKHS, the maximum mean discrepancy, for μ̂ = Σ_i ω_i k(z_i, ·); (n,).

        Its square is ωᵀK_Zω − 2ωᵀμ(z) + E k(Z, Z') = σ² E_w |Σ_i ω_i exp(iw·z_i) − φ(w)|²: in this form,
        with one set of frequencies for all three terms, nothing cancels. The weights ω (n, m) at atoms z_i
        (m, d) may be of either sign.
        """
        n, d = self.mean.shape
        weights, atoms = np.asarray(weights, dtype=np.float64), np.asarray(atoms, dtype=np.float64)
        if weights.shape != (n, len(atoms)) or atoms.shape[1:] != (d,):
            raise ValueError(
                f"rkhs_error: weights and atoms have shapes {weights.shape} and {atoms.shape}, "
                f"expected ({n}, m) and (m, {d})"
            )
        nodes = spectral_frequencies(kernel, d, n_frequencies)
        square = np.zeros(n)
        for start in range(0, len(nodes), _BLOCK_FREQUENCIES):
            block = nodes[start : start + _BLOCK_FREQUENCIES]
            estimate = weights @ np.exp(1j * atoms @ block.T)
            square += (np.abs(estimate - self.characteristic_function(block)) ** 2).sum(axis=1)
        return kernel.sigma * np.sqrt(square / len(nodes))


def return_law(
    state: Points, action: Actions, policy: Policy, discount: float = DISCOUNT, system: System = PAPER_SYSTEM
) -> ReturnLaw:
    """Law of Z(s, a) = Σ_{t≥0} γ^t r_t when ``policy`` acts from t = 1 on, in closed form.

    With W_s = [A_s, B_s], W_r = [A_r, B_r] and actions a = Θᵀs + b + n, let M = A_s + B_sΘᵀ,
    P = (A_r + B_rΘᵀ)(I − γM)⁻¹ and c = B_r + γPB_s. Summing the two recursions,

    Z = (W_r + γPW_s)x + (b_r + γPb_s)/(1 − γ) + γcb/(1 − γ) + Σ_{t≥0} γ^t(ε_r + γPε_s)_t + Σ_{t≥1} γ^t c n_t,

    in which Cov(ε_r + γPε_s) = Σ_r + γPΣ_s(γP)ᵀ + Σ_rs(γP)ᵀ + γPΣ_rsᵀ with Σ_rs = Cov(ε_r, ε_s).

    Parameters
    ----------
    state, action : (n, p) and (n, q) arrays
        The points x.
    policy : LocationScale
        The target policy; its scale must not depend on the state.
    discount : float
        γ in [0, 1).
    system : LinearGaussianSystem
        The system.

    Examples
    --------
    >>> from kedrl_dask.datasets import simulation
    >>> state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    >>> law = return_law(state[:2], action[:2], simulation.PAIRS["uniform-gaussian"].target)
    >>> law.mean.round(2)
    array([[-0.94,  0.22, -0.06],
           [ 0.02,  0.03,  0.  ]])
    """
    state, action = _checked_points(state, action, discount, system)
    if not isinstance(system, LinearGaussianSystem):
        raise ValueError(
            f"return_law has no closed form for a {type(system).__name__}, only for a LinearGaussianSystem; "
            "use monte_carlo_returns and monte_carlo_embedding"
        )
    if not isinstance(policy, LocationScale) or policy.scale_weights is not None:
        raise ValueError(
            f"return_law has no closed form for {policy!r}: it takes a Gaussian, Uniform or Logistic policy "
            "with constant scale; use monte_carlo_returns for any other"
        )
    p = system.state_dim
    a_s, b_s = np.hsplit(system.state_weights, [p])
    a_r, b_r = np.hsplit(system.reward_weights, [p])
    closed_loop = a_s + b_s @ policy.weights.T
    radius = discount * np.abs(np.linalg.eigvals(closed_loop)).max()
    if radius >= 1:
        raise ValueError(f"the discounted return diverges: γ times the spectral radius is {radius:.3g} ≥ 1")
    # γP, the effect on the discounted return of the state at the next step.
    resolvent, gain = np.eye(p) - discount * closed_loop, a_r + b_r @ policy.weights.T
    future = discount * np.linalg.solve(resolvent.T, gain.T).T
    loading = b_r + future @ b_s
    constant = system.reward_bias + future @ system.state_bias + discount * loading @ policy.bias
    mean = np.concatenate([state, action], axis=1) @ (system.reward_weights + future @ system.state_weights).T
    crossed = system.cross_cov @ future.T
    noise_cov = system.reward_cov + future @ system.state_cov @ future.T + crossed + crossed.T
    return ReturnLaw(
        mean=mean + constant / (1 - discount),
        gaussian_cov=noise_cov / (1 - discount**2),
        noise_loading=loading * policy.scale,
        noise=policy.noise,
        discount=discount,
    )


def monte_carlo_returns(
    state: Points,
    action: Actions,
    policy: Policy,
    discount: float = DISCOUNT,
    n_trajectories: int = 10_000,
    horizon: int | None = None,
    seed: int | Sequence[int] = 0,
    system: System = PAPER_SYSTEM,
) -> Matrices:
    """Discounted returns (n, n_trajectories, d) of simulated trajectories from each point.

    For any policy and any system; a trajectory has no reward after the step that terminates it.
    ``horizon`` is the number of rewards summed; by default, until γ^t is below 1e-8.

    Examples
    --------
    >>> from kedrl_dask.datasets import simulation
    >>> state, action = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    >>> target = simulation.PAIRS["uniform-gaussian"].target
    >>> monte_carlo_returns(state, action, target, n_trajectories=20).shape
    (10, 20, 3)
    """
    state, action = _checked_points(state, action, discount, system)
    rng = np.random.default_rng(seed)
    now, act = np.repeat(state, n_trajectories, axis=0), np.repeat(action, n_trajectories, axis=0)
    returns, goes_on = np.zeros((len(now), system.reward_dim)), np.ones(len(now), dtype=bool)
    for t in range(rewards_until(discount, _NEGLIGIBLE) if horizon is None else horizon):
        if t > 0:
            act = policy.sample(now, rng)
        reward, now = system.step(now, act, rng)
        returns += discount**t * goes_on[:, None] * reward
        goes_on &= ~system.terminates(now, rng)
    return returns.reshape(len(state), n_trajectories, -1)


class MonteCarloEmbedding(NamedTuple):
    """Mean of k(Z, z) over simulated returns Z, and its standard error, both (n, g)."""

    mean: Matrix
    standard_error: Matrix


def monte_carlo_embedding(returns: Matrices, at: Points | Matrices, kernel: Matern) -> MonteCarloEmbedding:
    """Mean embedding E k(Z(x), z) at each point x and each z, from simulated returns.

    Parameters
    ----------
    returns : (n, size, d) array
        Independent returns of each point, as :func:`monte_carlo_returns` gives them.
    at : (g, d) or (n, g, d) array
        Where to evaluate: one set of points z for all x, or one for each.
    kernel : Matern
        The return kernel.

    Examples
    --------
    >>> found = monte_carlo_embedding(np.array([[[0.0], [1.0]]]), np.array([[0.0]]), Matern(5.5))
    >>> found.mean.round(3), found.standard_error.round(3)
    (array([[0.783]]), array([[0.217]]))
    """
    if returns.ndim != 3 or returns.shape[1] < 2:
        raise ValueError(
            f"monte_carlo_embedding: returns has shape {returns.shape}, expected (n, size, d) with at "
            "least two returns of each point"
        )
    n, size, d = returns.shape
    grids = _grid_of_each_point("monte_carlo_embedding", at, n, d)
    mean, mean_square = np.zeros(grids.shape[:2]), np.zeros(grids.shape[:2])
    for point, grid in enumerate(grids):
        for start in range(0, size, _BLOCK_RETURNS):
            values = kernel(returns[point, start : start + _BLOCK_RETURNS], grid)
            mean[point] += values.sum(axis=0) / size
            mean_square[point] += (values**2).sum(axis=0) / size
    variance = np.maximum(mean_square - mean**2, 0.0)
    return MonteCarloEmbedding(mean, np.sqrt(variance / (size - 1)))


def evaluation_grid(
    returns: ReturnLaw | Matrices, n: int = 100, n_samples: int = 10_000, seed: int = 0
) -> Matrices:
    """Evaluation points (n_points, n, d): returns equally spaced in the rank of their first coordinate.

    Parameters
    ----------
    returns : ReturnLaw or (n_points, size, d) array
        Where the returns come from: ``n_samples`` draws of a law, or simulated ones.
    n : int
        Number of evaluation points.
    n_samples, seed : int
        Number and seed of the draws, when a law is given.

    Examples
    --------
    >>> returns = np.array([[[3.0, 0.0], [1.0, 1.0], [2.0, 2.0]]])
    >>> evaluation_grid(returns, n=2).tolist()
    [[[1.0, 1.0], [3.0, 0.0]]]
    """
    if isinstance(returns, ReturnLaw):
        returns = returns.sample(n_samples, np.random.default_rng(seed))
    size = returns.shape[1]
    if n > size:
        raise ValueError(f"evaluation_grid: {n} points asked of {size} returns; draw at least {n}")
    ranks = np.linspace(0, size - 1, n).round().astype(np.intp)
    chosen = np.argsort(returns[:, :, 0], axis=1, kind="stable")[:, ranks]
    return np.take_along_axis(returns, chosen[:, :, None], axis=1)


def embedding_errors(estimate: Matrix, truth: Matrix) -> dict[str, Vector]:
    """Bias, RMSE and MAE over each point's evaluation grid (``app:mc-repeat-target``).

    Parameters
    ----------
    estimate, truth : (n, g) arrays
        Values of the estimated and of the true embedding.

    Returns
    -------
    dict
        ``bias``, ``rmse`` and ``mae``, each (n,).

    Examples
    --------
    >>> errors = embedding_errors([[1.0, 3.0]], [[0.0, 0.0]])
    >>> {name: values.round(3).tolist() for name, values in errors.items()}
    {'bias': [2.0], 'rmse': [2.236], 'mae': [2.0]}
    """
    estimate, truth = np.asarray(estimate, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if estimate.shape != truth.shape or truth.ndim != 2:
        raise ValueError(
            f"embedding_errors: shapes {estimate.shape} and {truth.shape}, expected the same (n, g)"
        )
    error = estimate - truth
    return {
        "bias": error.mean(axis=1),
        "rmse": np.sqrt((error**2).mean(axis=1)),
        "mae": np.abs(error).mean(axis=1),
    }


def _grid_of_each_point(function: str, at: Points | Matrices, n: int, d: int) -> Matrices:
    """Evaluation points as (n, g, d), from one set for all points or one for each."""
    at = np.asarray(at, dtype=np.float64)
    if at.ndim not in (2, 3) or at.shape[-1] != d or (at.ndim == 3 and len(at) != n):
        raise ValueError(f"{function}: at has shape {at.shape}, expected (g, {d}) or ({n}, g, {d})")
    return np.broadcast_to(at, (n, *at.shape[-2:]))


def _checked_points(
    state: Points, action: Actions, discount: float, system: System
) -> tuple[Points, Actions]:
    state, action = np.asarray(state, dtype=np.float64), np.asarray(action, dtype=np.float64)
    expected = ((len(state), system.state_dim), (len(state), system.action_dim))
    if (state.shape, action.shape) != expected:
        raise ValueError(
            f"state and action have shapes {state.shape} and {action.shape}, expected {expected}"
        )
    if not 0 <= discount < 1:
        raise ValueError(f"discount must be in [0, 1), got {discount!r}")
    return state, action
