"""How much of KE-DRL's error is the Bellman step: beside it, the reference estimator that sees returns.

``python -m tests.benchmarks.reference`` simulates logged transitions of the Uniform→Gaussian system, and
prints the mean RMSE of the embedding at the ten points of tab:test_target_points_UG: of KE-DRL, fitted to
the transitions; and of the conditional embedding of simulated target returns, one or several from each
logged input. Then, for the first of these, how far its forms of evaluation are from the exact return kernel.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kedrl_dask import KEDRL, ConditionalEmbedding
from kedrl_dask.datasets import simulation, truth
from kedrl_dask.datasets.returns import write_returns
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.design.points import choose_points
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.kernels.spectral import frequencies, waves

PAIR = simulation.PAIRS["uniform-gaussian"]
KERNEL = PAIR.settings.kernel
STATE, ACTION = simulation.TEST_POINTS_UNIFORM_GAUSSIAN


def truth_at_the_points():
    law = truth.return_law(STATE, ACTION, PAIR.target)
    at = truth.evaluation_grid(law)
    return at, law.embed(at, KERNEL)


def rmse(estimate, true):
    return truth.embedding_errors(estimate, true)["rmse"].mean()


def compare(folder, n_transitions, seed, numbers, with_kedrl=True):
    """Mean RMSE of KE-DRL and of the reference for each number of returns per input; and the reference."""
    at, true = truth_at_the_points()
    store = simulation.write(folder / f"data{seed}", PAIR, n_transitions, seed=seed)
    errors, models, stores = {}, {}, {}
    if with_kedrl:
        model = KEDRL(simulation.DISCOUNT, return_kernel=KERNEL, random_state=seed, **VERSION_ONE)
        model.fit(store, PAIR.target, progress="none")
        errors["KE-DRL"] = rmse(model.embed(STATE, ACTION, at=at), true)
    for n in numbers:
        stores[n] = write_returns(
            folder / f"pairs{seed}-{n}", store, PAIR.target, n_returns=n, seed=1_000 + seed
        )
        models[n] = ConditionalEmbedding(return_kernel=KERNEL, random_state=seed)
        models[n].fit(stores[n], progress="none")
        errors[f"reference, {n} per input"] = rmse(models[n].embed(STATE, ACTION, at=at), true)
    return errors, models[numbers[0]], stores[numbers[0]]


def forms(model, pairs):
    """Distance of each form of evaluation from Σ_j Γ_j(x) k_Z(z_j, z), all with the same Γ."""
    at, true = truth_at_the_points()
    data = pairs.transitions()
    psi, points = model.features_(data.inputs), model.features_(np.hstack([STATE, ACTION]))
    gamma = psi @ solve_ridge(psi.T @ psi, points.T, len(data), model.ridge_)
    exact = np.stack([KERNEL(z, data.reward) @ g for z, g in zip(at, gamma.T, strict=True)])
    found = {"exact kernel": exact}
    for n in (64, 128, 256, 500):
        features = NystromFeatures.from_landmarks(KERNEL, choose_points(data.reward, n, KERNEL))
        mean = gamma.T @ features(data.reward)
        found[f"{n} landmarks"] = np.stack([features(z) @ m for z, m in zip(at, mean, strict=True)])
    for n in (256, 1024, 4096):
        w = frequencies(KERNEL, at.shape[-1], n)
        scale = KERNEL.sigma / np.sqrt(n)
        mean = scale * gamma.T @ waves(data.reward, w)
        found[f"{n} frequencies"] = np.stack([scale * waves(z, w) @ m for z, m in zip(at, mean, strict=True)])
        if n == 4096:
            continue
        for n_atoms in (100, 250):
            atoms = choose_points(data.reward, n_atoms, KERNEL)
            sections = scale * waves(atoms, w)
            # A ridge at which the projection is at its best: without, the features' error is blown up.
            weights = np.linalg.solve(sections @ sections.T + 1e-4 * np.eye(n_atoms), sections @ mean.T)
            found[f"{n} frequencies, on {n_atoms} atoms"] = np.stack(
                [KERNEL(z, atoms) @ v for z, v in zip(at, weights.T, strict=True)]
            )
    return {
        name: (np.sqrt(np.mean((values - exact) ** 2)), np.abs(values - exact).max(), rmse(values, true))
        for name, values in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=int, default=14_700, help="default: %(default)s")
    parser.add_argument("--datasets", type=int, default=1, help="simulated datasets (default: %(default)s)")
    parser.add_argument("--returns", type=int, nargs="+", default=[1, 4], help="simulated for each input")
    parser.add_argument("--no-kedrl", action="store_true", help="leave out KE-DRL, which takes longest")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        runs = [
            compare(Path(folder), given.transitions, seed, given.returns, not given.no_kedrl)
            for seed in range(given.datasets)
        ]
        print(f"mean RMSE at the ten points, N = {given.transitions:,}, {given.datasets} dataset(s)")
        for name in runs[0][0]:
            values = np.array([errors[name] for errors, _, _ in runs])
            every = "  ".join(f"{value:.4f}" for value in values)
            print(f"{name:<32}{values.mean():.4f}   each: {every}")
        _, model, pairs = runs[0]
        print(f"length scale {np.round(model.input_kernel_.length_scale, 2)}, ridge {model.ridge_:.1e}")
        print(f"{'evaluation':<32}{'RMS from exact':>16}{'largest':>12}{'RMSE':>10}")
        for name, (square, largest, error) in forms(model, pairs).items():
            print(f"{name:<32}{square:>16.1e}{largest:>12.1e}{error:>10.5f}")


if __name__ == "__main__":
    main()
