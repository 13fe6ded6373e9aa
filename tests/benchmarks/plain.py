"""The same work as plain NumPy does it: one process, one array after the other, blocks of 2,000 rows.

What the streaming pass and the products are measured against besides GEMM: how much of GEMM's rate a machine
leaves to kernel evaluations and to what does not fit its caches differs between machines.
``python -m tests.benchmarks.plain SIZES`` prints seconds for a million rows of the pass, and for a product.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

ROWS, REPEATS = 2_000, 8


def matern(x, y):
    """Matérn kernel, ν = 5.5, of points in units of its length."""
    square = (x**2).sum(axis=1)[:, None] - 2 * x @ y.T + (y**2).sum(axis=1)
    t = np.sqrt(np.float32(11) * np.maximum(square, 0))
    return (1 + t * (1 + t * (4 / 9 + t * (1 / 9 + t * (1 / 63 + t / 945))))) * np.exp(-t)


def waves(points, frequencies):
    phase = points @ frequencies.T
    return np.hstack([np.cos(phase), np.sin(phase)])


def streaming_pass(sizes, random):
    """Seconds of one block: features, Gram matrix, responses, all in single precision, sums in double."""
    r, dim = sizes["rank"], sizes["state_dim"] + sizes["action_dim"]
    landmarks, whitening, basis = random(r, dim), np.triu(random(r, r)), random(sizes["basis"], dim)
    frequencies = random(sizes["features"], sizes["reward_dim"])
    inputs, draws = random(ROWS, dim), [random(ROWS, dim) for _ in range(sizes["draws"])]
    reward = random(ROWS, sizes["reward_dim"])
    gram, responses = np.zeros((r, r)), np.zeros((r, len(basis) + 2 * len(frequencies)))
    start = time.perf_counter()
    psi = matern(inputs, landmarks) @ whitening
    kappa = sum(matern(draw, basis) for draw in draws) / np.float32(len(draws))
    gram += psi.T @ psi
    responses += psi.T @ np.hstack([waves(reward, frequencies), kappa])
    return time.perf_counter() - start


def product(sizes, random):
    """Seconds of one block: residual in features and its gradient with respect to the coefficients."""
    atoms, n_features = sizes["atoms"], sizes["features"]
    basis, continuation = random(ROWS, sizes["basis"]), random(ROWS, sizes["basis"])
    rho = random(ROWS, 2 * n_features).view(np.complex64)
    grid, shifted = (random(atoms, 2 * n_features).view(np.complex64) for _ in range(2))
    real = [np.ascontiguousarray(z.view(np.float32)) for z in (grid, shifted)]
    coefficients, gradient = random(sizes["basis"], atoms), np.zeros((sizes["basis"], atoms))
    start = time.perf_counter()
    ahead = rho * ((continuation @ coefficients) @ real[1]).view(np.complex64)
    f = (basis @ coefficients) @ real[0] - ahead.view(np.float32)
    back = (np.conj(rho) * f.view(np.complex64)).view(np.float32)
    gradient += basis.T @ (f @ real[0].T) - continuation.T @ (back @ real[1].T)
    return time.perf_counter() - start


def main():
    sizes = json.loads(sys.argv[1])
    rng = np.random.default_rng(0)

    def random(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    seconds = {
        "pass": np.median([streaming_pass(sizes, random) for _ in range(REPEATS)]) * 1e6 / ROWS,
        "product": np.median([product(sizes, random) for _ in range(REPEATS)]) * sizes["conditioning"] / ROWS,
    }
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
