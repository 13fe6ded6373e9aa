"""Coefficients of the embedding that simulated returns have, towards which a fit is shrunk.

Where the Bellman equation hardly determines the embedding, as at long horizons, minimising its residual
amplifies errors by the horizon; simulation does not. So a fit is the minimiser nearest to the embedding of
the simulated returns instead of the one nearest to zero.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.regression.cross_validation import RIDGES, BlockSums, cross_validate_ridge
from kedrl_dask.utils.arrays import Atoms, Coefficients, Inputs, Points

#: Added to the diagonal of K_Z, in units of σ_Z², when a return is written in the atoms.
JITTER = 1e-5
#: Folds by which the ridge is chosen; simulated returns are independent of each other.
N_FOLDS = 5


def simulated_coefficients(
    basis: NystromFeatures, grid: Atoms, kernel: Matern, inputs: Inputs, returns: Points
) -> Coefficients:
    """C₀ (rank, m) of the whitened basis, by ridge regression of simulated returns on their inputs.

    The response is k_Z(z, ·) projected on the atoms, and the ridge is chosen by cross-validation in the norm
    of the RKHS.
    """
    gram = kernel(grid, grid)
    factor = cho_factor(gram + JITTER * kernel.sigma**2 * np.eye(len(gram)))
    written = cho_solve(factor, kernel(grid, returns)).T
    values, vectors = eigh(gram)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    sections = basis(inputs)
    fold = np.arange(len(inputs)) % N_FOLDS
    sums = BlockSums.gather(sections, written @ root, fold, N_FOLDS)
    ridge = RIDGES[int(np.argmin(cross_validate_ridge(sums)))]
    return solve_ridge(sections.T @ sections, sections.T @ written, len(inputs), ridge)
