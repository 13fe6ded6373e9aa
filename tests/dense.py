"""The oracle: the paper's formulas, literally, with loops and N×N matrices. Slow and obvious on purpose."""

from __future__ import annotations

import numpy as np
from scipy.special import gamma as gamma_function
from scipy.special import kv


def matern(nu, length, sigma, x, y):
    """One value of the Matérn kernel, from the Bessel formula."""
    distance = np.sqrt(np.sum(((np.asarray(x) - np.asarray(y)) / length) ** 2))
    if distance == 0:
        return sigma**2
    t = np.sqrt(2 * nu) * distance
    return sigma**2 * 2 ** (1 - nu) / gamma_function(nu) * t**nu * kv(nu, t)


def gram(kernel, xs, ys):
    """Kernel matrix, entry by entry."""
    length = np.asarray(kernel.length_scale)
    values = [[matern(kernel.nu, length, kernel.sigma, x, y) for y in ys] for x in xs]
    return np.array(values).reshape(len(xs), len(ys))


class FeatureKernel:
    """The return kernel of a finite feature map: (σ²/Q) Σ_w cos(w·(z − z'))."""

    def __init__(self, frequencies, sigma):
        self.frequencies, self.sigma = frequencies, sigma

    def __call__(self, z, other):
        return self.sigma**2 * np.mean(np.cos(self.frequencies @ (np.asarray(z) - np.asarray(other))))

    def gram(self, zs, others):
        differences = np.asarray(zs)[:, None, :] - np.asarray(others)[None, :, :]
        return self.sigma**2 * np.mean(np.cos(differences @ self.frequencies.T), axis=2)


def conditional_weights(kernel, inputs, x, ridge, counts=None):
    """Γ(x) (eq:Gamma), of transitions of which each may stand for several equal ones, or a part of one."""
    counts = np.ones(len(inputs)) if counts is None else counts
    system = gram(kernel, inputs, inputs) * counts + counts.sum() * ridge * np.eye(len(inputs))
    return counts * np.linalg.solve(system, gram(kernel, inputs, [x])[:, 0])


def conditional_embedding(kernel, return_kernel, inputs, responses, x, z, ridge):
    """μ̂(x)(z) = Σ_j Γ_j(x) k_Z(z_j, z) (sec:tikhonov_reference), and the mass ΣΓ."""
    beta = conditional_weights(kernel, inputs, x, ridge)
    value = 0.0
    for weight, response in zip(beta, responses, strict=True):
        length = np.asarray(return_kernel.length_scale)
        value += weight * matern(return_kernel.nu, length, return_kernel.sigma, response, z)
    return value, beta.sum()


def continuation_sampled(kernel, basis, next_state, terminal, policy, n_draws):
    """κ_j for every transition, over the policy's own draws; (N, L)."""
    actions, weights = policy.draws(next_state, n_draws)
    kappa = np.zeros((len(next_state), len(basis)))
    for j in range(len(next_state)):
        if terminal[j]:
            continue
        for action, weight in zip(actions[:, j], weights, strict=True):
            kappa[j] += weight * gram(kernel, [np.concatenate([next_state[j], action])], basis)[0]
    return kappa


def continuation_ratio(kernel, basis, next_inputs, terminal, eta):
    """κ_j = η_j k_L(x'_j); the columns of K_{L+} D_η; (N, L)."""
    kappa = eta[:, None] * gram(kernel, next_inputs, basis)
    kappa[terminal] = 0
    return kappa


def h_matrix(return_kernel, grid, discount, rewards, weights):
    """Ĥ(x) (eq:h_ij)."""
    m = len(grid)
    h = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            for r, w in zip(rewards, weights, strict=True):
                h[i, j] += w * return_kernel(r, grid[i] - discount * grid[j])
    return h


def g_matrix(return_kernel, grid, discount, rewards, weights):
    """Ĝ(x) (eq:g_ij)."""
    m = len(grid)
    g = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            shifted = return_kernel.gram(discount * grid[i] + rewards, discount * grid[j] + rewards)
            g[i, j] = weights @ shifted @ weights
    return g


class Criterion:
    """eq:global_B_objective from Γ, H, G and Φ at every conditioning point.

    A terminal transition contributes k_Z(r, ·) to the target, whatever B: the squared norm then has the
    extra terms −2⟨μ, t⟩ + 2⟨Tμ, t⟩ + ‖t‖² with t = Σ_j Γ_j 1{terminal_j} k_Z(r_j, ·).
    """

    def __init__(
        self, kernel, return_kernel, inputs, rewards, terminal, kappa, basis, grid, points, weights,
        discount, ridge_gamma, ridge_b, mass, target_mass=1.0, negative=0.0, counts=None,
    ):  # fmt: skip
        self.grid_gram = return_kernel.gram(grid, grid)
        self.basis_gram = gram(kernel, basis, basis)
        self.k = gram(kernel, points, basis)
        self.gamma = [conditional_weights(kernel, inputs, x, ridge_gamma, counts) for x in points]
        self.phi = [kappa.T @ g for g in self.gamma]
        self.h = [h_matrix(return_kernel, grid, discount, rewards, g) for g in self.gamma]
        self.g = [g_matrix(return_kernel, grid, discount, rewards, g) for g in self.gamma]
        ended = rewards[terminal]
        at_grid, between = return_kernel.gram(grid, ended), return_kernel.gram(ended, ended)
        at_shifted = np.array(
            [[[return_kernel(discount * z + r, e) for e in ended] for r in rewards] for z in grid]
        ).reshape(len(grid), len(rewards), len(ended))
        self.grid_terminal, self.shifted_terminal, self.terminal_square = [], [], []
        for g in self.gamma:
            t = g[terminal]
            self.grid_terminal.append(at_grid @ t)
            self.shifted_terminal.append(np.einsum("ije,j,e->i", at_shifted, g, t))
            self.terminal_square.append(t @ between @ t)
        self.weights, self.ridge_b = weights, ridge_b
        self.mass, self.target_mass, self.negative = mass, target_mass, negative

    def residual(self, q, b):
        """Squared projected Bellman residual (eq:gamma_with_W) at point q."""
        u, v = b.T @ self.k[q], b.T @ self.phi[q]
        value = u @ self.grid_gram @ u - 2 * u @ self.h[q] @ v + v @ self.g[q] @ v
        value += -2 * u @ self.grid_terminal[q] + 2 * v @ self.shifted_terminal[q] + self.terminal_square[q]
        return value

    def value(self, b):
        total = self.ridge_b * np.trace(b.T @ self.basis_gram @ b)
        for q, weight in enumerate(self.weights):
            u = b.T @ self.k[q]
            total += weight * self.residual(q, b)
            total += weight * self.mass * (u.sum() - self.target_mass) ** 2
            total += weight * self.negative * np.sum(np.maximum(-u, 0) ** 2)
        return total

    def gradient(self, b):
        ones = np.ones(b.shape[1])
        total = 2 * self.ridge_b * self.basis_gram @ b
        for q, weight in enumerate(self.weights):
            k, phi = self.k[q], self.phi[q]
            u, v = b.T @ k, b.T @ phi
            by_u = self.grid_gram @ u - self.h[q] @ v - self.grid_terminal[q]
            by_v = self.g[q] @ v - self.h[q].T @ u + self.shifted_terminal[q]
            by_u = by_u + self.mass * (u.sum() - self.target_mass) * ones - self.negative * np.maximum(-u, 0)
            total += 2 * weight * (np.outer(k, by_u) + np.outer(phi, by_v))
        return total

    def minimiser(self, shape):
        """Solve the normal equations of the quadratic criterion by probing its gradient."""
        zero = self.gradient(np.zeros(shape)).ravel()
        n = zero.size
        hessian = np.empty((n, n))
        for i in range(n):
            unit = np.zeros(n)
            unit[i] = 1
            hessian[:, i] = self.gradient(unit.reshape(shape)).ravel() - zero
        return np.linalg.solve(hessian, -zero).reshape(shape)


def linear_trend(inputs, rewards, counts=1.0):
    """m(x), by least squares of the reward on (x, 1)."""
    root = np.sqrt(counts * np.ones(len(inputs)))[:, None]
    design = np.column_stack([inputs, np.ones(len(inputs))])
    solved = np.linalg.lstsq(root * design, root * rewards, rcond=None)[0]
    return lambda x: np.append(x, 1.0) @ solved


class RewardLaw:
    """The law of the reward given x with a trend: atoms m(x) + e_j with signed weights c_j(x).

    exp(iWe_j) less its mean is regressed on x, and the mean added again: c_j = 1/N + Γ_j − ΣΓ/N.
    """

    def __init__(self, kernel, inputs, rewards, trend, ridge):
        self.kernel, self.inputs, self.trend, self.ridge = kernel, inputs, trend, ridge
        self.residuals = np.array([r - trend(x) for x, r in zip(inputs, rewards, strict=True)])

    def __call__(self, x):
        n = len(self.inputs)
        beta = conditional_weights(self.kernel, self.inputs, x, self.ridge)
        return self.trend(x) + self.residuals, 1 / n + beta - beta.sum() / n


class TrendCriterion(Criterion):
    """The separated criterion with a :class:`RewardLaw`; Φ_L and the terminal part keep the weights Γ."""

    def __init__(
        self, kernel, return_kernel, inputs, rewards, terminal, kappa, basis, grid, points, weights,
        discount, ridge_gamma, ridge_b, mass, target_mass=1.0, negative=0.0, *, trend, ridge_reward,
    ):  # fmt: skip
        self.grid_gram = return_kernel.gram(grid, grid)
        self.basis_gram = gram(kernel, basis, basis)
        self.k = gram(kernel, points, basis)
        self.gamma = [conditional_weights(kernel, inputs, x, ridge_gamma) for x in points]
        self.phi = [kappa.T @ g for g in self.gamma]
        law = RewardLaw(kernel, inputs, rewards, trend, ridge_reward)
        self.h, self.g, self.grid_terminal, self.shifted_terminal, self.terminal_square = [], [], [], [], []
        for x, gamma in zip(points, self.gamma, strict=True):
            atoms, c = law(x)
            self.h.append(h_matrix(return_kernel, grid, discount, atoms, c))
            self.g.append(g_matrix(return_kernel, grid, discount, atoms, c))
            ended, t = atoms[terminal], gamma[terminal]
            self.grid_terminal.append(return_kernel.gram(grid, ended) @ t)
            shifted = [c @ return_kernel.gram(discount * z + atoms, ended) @ t for z in grid]
            self.shifted_terminal.append(np.array(shifted))
            self.terminal_square.append(t @ return_kernel.gram(ended, ended) @ t)
        self.weights, self.ridge_b = weights, ridge_b
        self.mass, self.target_mass, self.negative = mass, target_mass, negative


class WaveCriterion(Criterion):
    """The separated criterion in features, from Φ_L, ρ = E[exp(iWr)|x] and τ = E[1{terminal}exp(iWr)|x]."""

    def __init__(
        self, kernel, features, basis, grid, points, weights, phi, rho, tau, discount, ridge_b, mass,
        target_mass=1.0, negative=0.0,
    ):  # fmt: skip
        self.grid_gram = features.gram(grid, grid)
        self.basis_gram = gram(kernel, basis, basis)
        self.k, self.phi = gram(kernel, points, basis), phi
        scale = features.sigma**2 / len(features.frequencies)
        at_grid = np.exp(1j * grid @ features.frequencies.T)
        at_shifted = np.exp(1j * discount * grid @ features.frequencies.T)
        self.h, self.g, self.grid_terminal, self.shifted_terminal, self.terminal_square = [], [], [], [], []
        for r, t in zip(rho, tau, strict=True):
            target = at_shifted * r
            self.h.append(scale * (at_grid @ target.conj().T).real)
            self.g.append(scale * (target @ target.conj().T).real)
            self.grid_terminal.append(scale * (at_grid @ t.conj()).real)
            self.shifted_terminal.append(scale * (target @ t.conj()).real)
            self.terminal_square.append(scale * np.sum(np.abs(t) ** 2))
        self.weights, self.ridge_b = weights, ridge_b
        self.mass, self.target_mass, self.negative = mass, target_mass, negative


def replicate_waves(
    kernel, frequencies, inputs, rewards, terminal, counts, points, ridge_gamma, ridge_reward
):
    """ρ and τ of a bootstrap replicate in which transition j is drawn ``counts[j]`` times.

    Around the replicate's own trend m + δ, from waves exp(iWe) around the fit's m: those around the former
    are exp(iWe)·exp(−iWδ(x)), and what the second factor changes is taken at the fit's E[exp(iWe)|x].
    """
    n, drawn = len(inputs), counts.sum()
    trend, own = linear_trend(inputs, rewards), linear_trend(inputs, rewards, counts)
    law = RewardLaw(kernel, inputs, rewards, trend, ridge_reward)
    y = np.exp(1j * law.residuals @ frequencies.T)
    delta = np.array([own(x) - trend(x) for x in inputs])
    change = drawn / n * (np.exp(-1j * delta @ frequencies.T) - 1)
    reward, ended = counts[:, None] * y, (counts * terminal)[:, None] * y
    for j, x in enumerate(inputs):
        gamma = conditional_weights(kernel, inputs, x, ridge_gamma)
        reward[j] += change[j] * (law(x)[1] @ y)
        ended[j] += change[j] * (gamma[terminal] @ y[terminal])
    mean = reward.sum(axis=0) / drawn
    system = counts[:, None] * gram(kernel, inputs, inputs)
    rho, tau = [], []
    for x in points:
        section, turn = gram(kernel, inputs, [x])[:, 0], np.exp(1j * frequencies @ own(x))
        centred = reward - counts[:, None] * mean
        rho.append(
            turn * (mean + section @ np.linalg.solve(system + drawn * ridge_reward * np.eye(n), centred))
        )
        tau.append(turn * (section @ np.linalg.solve(system + drawn * ridge_gamma * np.eye(n), ended)))
    return rho, tau


class PairedCriterion(Criterion):
    """The criterion of app:paired_bellman_estimator, from all N²m² kernel values at every point.

    The target at x is Σ_j Γ_j(x) Σ_i (Bᵀκ_j)_i k_Z(r_j + γz_i, ·), and t as in :class:`Criterion`.
    """

    def __init__(
        self, kernel, return_kernel, inputs, rewards, terminal, kappa, basis, grid, points, weights,
        discount, ridge_gamma, ridge_b, mass, target_mass=1.0, negative=0.0, counts=None,
    ):  # fmt: skip
        self.grid_gram = return_kernel.gram(grid, grid)
        self.basis_gram = gram(kernel, basis, basis)
        self.k = gram(kernel, points, basis)
        self.gamma = [conditional_weights(kernel, inputs, x, ridge_gamma, counts) for x in points]
        self.kappa, self.terminal = kappa, terminal
        shifted = np.array([r + discount * z for r in rewards for z in grid])  # transition by transition
        self.shifted_gram = return_kernel.gram(shifted, shifted)
        self.grid_shifted = return_kernel.gram(grid, shifted)
        ended = rewards[terminal]
        self.grid_ended = return_kernel.gram(grid, ended)
        self.shifted_ended = return_kernel.gram(shifted, ended)
        self.ended_gram = return_kernel.gram(ended, ended)
        self.weights, self.ridge_b = weights, ridge_b
        self.mass, self.target_mass, self.negative = mass, target_mass, negative

    def parts(self, q, b):
        """u, the target's coefficients at all shifted atoms, and those at terminal rewards."""
        gamma = self.gamma[q]
        return b.T @ self.k[q], (gamma[:, None] * (self.kappa @ b)).ravel(), gamma[self.terminal]

    def residual(self, q, b):
        u, a, t = self.parts(q, b)
        value = u @ self.grid_gram @ u - 2 * u @ self.grid_shifted @ a + a @ self.shifted_gram @ a
        value += -2 * u @ self.grid_ended @ t + 2 * a @ self.shifted_ended @ t + t @ self.ended_gram @ t
        return value

    def gradient(self, b):
        ones = np.ones(b.shape[1])
        total = 2 * self.ridge_b * self.basis_gram @ b
        for q, weight in enumerate(self.weights):
            u, a, t = self.parts(q, b)
            by_u = self.grid_gram @ u - self.grid_shifted @ a - self.grid_ended @ t
            by_a = self.shifted_gram @ a - self.grid_shifted.T @ u + self.shifted_ended @ t
            by_u = by_u + self.mass * (u.sum() - self.target_mass) * ones - self.negative * np.maximum(-u, 0)
            by_kappa = self.gamma[q][:, None] * by_a.reshape(len(self.kappa), -1)
            total += 2 * weight * (np.outer(self.k[q], by_u) + self.kappa.T @ by_kappa)
        return total


def ulsif(kernel, centers, denominator, numerator, ridge):
    """Algorithm alg:ulsif with arbitrary centres, negative coefficients set to zero, mean ratio one."""
    at_denominator = gram(kernel, centers, denominator)
    v = at_denominator @ at_denominator.T / len(denominator)
    mean = gram(kernel, centers, numerator) @ np.ones(len(numerator)) / len(numerator)
    alpha = np.maximum(np.linalg.solve(v + ridge * np.eye(len(centers)), mean), 0)
    return alpha / np.mean(at_denominator.T @ alpha)


def smoothed_cross_gram(kernel, grid, atoms, bandwidth, n_nodes=40):
    """A (subsec:expedia_density_recovery): ∫ k(z_l, y) φ_h(y − y_i) dy, node by node in every coordinate."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    weights = weights / weights.sum()
    a = np.zeros((len(grid), len(atoms)))
    for position in np.ndindex(*(n_nodes if h > 0 else 1 for h in bandwidth)):
        shift, weight = np.zeros(len(bandwidth)), 1.0
        for c, i in enumerate(position):
            if bandwidth[c] > 0:
                shift[c], weight = bandwidth[c] * nodes[i], weight * weights[i]
        a += weight * gram(kernel, grid, atoms + shift)
    return a


def recovery_objective(w, omega, k, a, w0, dictionary_ridge, ridge, divergence=0.0):
    """The matching criterion (subsec:expedia_density_recovery) at one w."""
    beta = np.linalg.solve(k + dictionary_ridge * np.eye(len(k)), a @ w)
    value = (beta - omega) @ k @ (beta - omega) + ridge * np.sum((w - w0) ** 2)
    for i in range(len(w)):
        if w[i] > 0 and divergence > 0:
            value += divergence * w[i] * np.log(w[i] / w0[i])
    return value


def inner_product(kernel, first, first_grid, second, second_grid):
    """⟨Σ_i a_i k(z_i, ·), Σ_j b_j k(y_j, ·)⟩, as a double sum."""
    length, total = np.asarray(kernel.length_scale), 0.0
    for a, z in zip(first, first_grid, strict=True):
        for b, y in zip(second, second_grid, strict=True):
            total += a * b * matern(kernel.nu, length, kernel.sigma, z, y)
    return total


def mmd(kernel, first, first_grid, second, second_grid):
    """Distance of two embeddings, from three double sums."""
    square = inner_product(kernel, first, first_grid, first, first_grid)
    square -= 2 * inner_product(kernel, first, first_grid, second, second_grid)
    return np.sqrt(square + inner_product(kernel, second, second_grid, second, second_grid))


def tilting_objective(p, particles, omega, atoms, kernel, divergence):
    """‖Σ p_k k(z_k, ·) − Σ ω_i k(y_i, ·)‖² + λ·KL(p‖1/K) at one p."""
    value = mmd(kernel, p, particles, omega, atoms) ** 2
    return value + divergence * sum(w * np.log(len(p) * w) for w in p if w > 0)


def proxy_coefficients(kernel, grid, values, ridge):
    """c^(g) = (K_Z + mλI)⁻¹g (app:emb_ill_posed)."""
    m = len(grid)
    return np.linalg.solve(gram(kernel, grid, grid) + m * ridge * np.eye(m), values)


def spectral_norm(kernel, grid, values, ridge):
    """‖ĥ‖ by its spectral expression (app:emb_ill_posed)."""
    m = len(grid)
    delta, u = np.linalg.eigh(gram(kernel, grid, grid))
    rotated = u.T @ values
    return np.sqrt(sum(d / (d + m * ridge) ** 2 * g**2 for d, g in zip(delta, rotated, strict=True)))


def reward_weighted_likelihood(
    states, actions, rewards, slope, offset, scale_slope, scale_offset, ridge, jitter
):
    """The criterion of the Expedia policies (subsec:expedia_policy_construction), list by list.

    Actions are known up to ``jitter``: the expected likelihood of a_j + jitter·N(0, 1).
    """
    value = 0.5 * ridge * (np.sum(slope**2) + np.sum(scale_slope**2))
    for s, a, r in zip(states, actions, rewards, strict=True):
        for c in range(len(a)):
            mean, sd = s @ slope[:, c] + offset[c], np.exp(s @ scale_slope[:, c] + scale_offset[c])
            value += r / np.sum(rewards) * (0.5 * ((a[c] - mean) ** 2 + jitter**2) / sd**2 + np.log(sd))
    return value
