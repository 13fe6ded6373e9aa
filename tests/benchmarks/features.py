"""How fast H and G in features approach those of the return kernel itself, as the features grow in number.

``python -m tests.benchmarks.features`` prints a table: frequencies Q, relative errors (Frobenius norm,
root mean square over draws of the frequencies), and the rate, the slope in logarithms.
"""

from __future__ import annotations

import argparse

import numpy as np

from kedrl_dask.numerics.criterion.separated import ReturnSpace, operators
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.kernels.spectral import METHODS, frequencies, waves
from kedrl_dask.numerics.regression.exact_operators import RewardShifts

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
KERNEL, DISCOUNT = Matern(5.5, 1.25, 0.85), 0.7


def problem(n_transitions=60, n_points=5, n_atoms=8, dim=3):
    """Rewards (N, d), conditional weights Γ (N, n) of a regression on random inputs, and a grid (m, d)."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((n_transitions, 3))
    rewards = inputs @ rng.standard_normal((3, dim)) / 2 + 0.5 * rng.standard_normal((n_transitions, dim))
    features = NystromFeatures.from_landmarks(Matern(5.5, 2.0), inputs)
    psi, at = features(inputs), features(rng.standard_normal((n_points, 3)))
    gamma = psi @ solve_ridge(psi.T @ psi, at.T, n_transitions, 1e-3)
    return rewards, gamma, 1.5 * rng.standard_normal((n_atoms, dim))


def measure(method, sizes=SIZES, n_seeds=8):
    """Relative errors of H and of G for each number of frequencies."""
    rewards, gamma, grid = problem()
    exact = RewardShifts(KERNEL, grid, DISCOUNT, rewards, np.zeros(len(rewards), dtype=bool)).blocks(gamma)
    errors = {"H": [], "G": []}
    for size in sizes:
        squares = np.zeros(2)
        for seed in range(n_seeds):
            w = frequencies(KERNEL, grid.shape[1], size, method, seed)
            space = ReturnSpace.build(grid, w, DISCOUNT, KERNEL)
            blocks = operators(space, gamma.T @ waves(rewards, w))
            for i, (block, name) in enumerate(zip(blocks, ("h", "g"), strict=True)):
                squares[i] += (np.linalg.norm(block - exact[name]) / np.linalg.norm(exact[name])) ** 2
        for name, square in zip(errors, squares, strict=True):
            errors[name].append(float(np.sqrt(square / n_seeds)))
    return errors


def rate(sizes, errors):
    """Slope of log error against log Q."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--draws", type=int, default=16, help="draws of the frequencies (default: %(default)s)"
    )
    draws = parser.parse_args().draws
    for method in METHODS:
        errors = measure(method, SIZES, draws)
        print(f"{method:<12}{'Q':>6}{'error of H':>14}{'error of G':>14}")
        for i, size in enumerate(SIZES):
            print(f"{size:>18}{errors['H'][i]:>14.2e}{errors['G'][i]:>14.2e}")
        rates = "".join(f"{rate(SIZES, errors[name]):>14.2f}" for name in ("H", "G"))
        print(f"{'rate':>18}{rates}")


if __name__ == "__main__":
    main()
