"""H and G from the return kernel itself: double sums over all transitions, in double precision.

With the conditional weights Γ(x) as an N-vector (eq:Gamma),

    H_ik(x) = Σ_j Γ_j k_Z(r_j, z_i − γz_k)                       (eq:h_ij),
    G_ik(x) = Σ_jj' Γ_j Γ_j' k_Z(r_j + γz_i, r_j' + γz_k)         (eq:g_ij).

G depends on γ(z_i − z_k) alone: one N×N kernel matrix for each unordered pair of atoms, and one for the
diagonal. Each is contracted with all points at once, in blocks of rows, so that memory does not grow with N².
For small and medium N; features need no such sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.utils.arrays import Atoms, Mask, Matrices, Matrix, Points, Vector
from kedrl_dask.utils.scratch import scratch

#: Kernel values in memory at once.
BLOCK_VALUES = 2**20


@dataclass(frozen=True)
class RewardShifts:
    """The return kernel between shifted rewards, averaged with conditional weights.

    ``rewards`` (N, d) are those of all transitions, and ``terminal`` (N,) says which ended their episode.
    """

    kernel: Matern
    grid: Atoms
    discount: float
    rewards: Points
    terminal: Mask

    def blocks(self, gamma: Matrix) -> dict[str, Matrices]:
        """Arrays of a ``criterion.separated.BlockChunk``, from Γ (N, n) with a column for each point.

        Terminal terms are included if any transition is terminal.
        """
        blocks = {"h": self._h(gamma), "g": self._g(gamma)}
        if self.terminal.any():
            blocks |= self._terminal_terms(gamma)
        return blocks

    def _h(self, gamma: Matrix) -> Matrices:
        """H (eq:h_ij); (n, m, m)."""
        m = len(self.grid)
        at = (self.grid[:, None] - self.discount * self.grid[None]).reshape(m * m, -1)
        h = np.empty((gamma.shape[1], m * m))
        for rows, values in _kernel_rows(self.kernel, at, self.rewards):
            h[:, rows] = (values @ gamma).T
        return h.reshape(-1, m, m)

    def _g(self, gamma: Matrix) -> Matrices:
        """G (eq:g_ij); (n, m, m)."""
        m = len(self.grid)
        g, atoms = np.empty((gamma.shape[1], m, m)), np.arange(m)
        g[:, atoms, atoms] = self._shifted_form(gamma, np.zeros_like(self.grid[0]))[:, None]
        for i, k in combinations(range(m), 2):
            value = self._shifted_form(gamma, self.discount * (self.grid[i] - self.grid[k]))
            g[:, i, k] = g[:, k, i] = value
        return g

    def _shifted_form(self, gamma: Matrix, shift: Vector) -> Vector:
        """Σ_jj' Γ_j Γ_j' k_Z(r_j + shift, r_j') at each point; (n,)."""
        return _form(self.kernel, self.rewards + shift, gamma, self.rewards, gamma)

    def _terminal_terms(self, gamma: Matrix) -> dict[str, Matrix]:
        """Products with t = Σ_j Γ_j 1{terminal_j} k_Z(r_j, ·), and its square."""
        ended, t = self.rewards[self.terminal], gamma[self.terminal]
        shifted = [_form(self.kernel, self.rewards + self.discount * z, gamma, ended, t) for z in self.grid]
        return {
            "grid_terminal": t.T @ self.kernel(ended, self.grid),
            "shifted_terminal": np.column_stack(shifted),
            "terminal_square": _form(self.kernel, ended, t, ended, t),
        }


def _form(kernel: Matern, left: Points, left_weights: Matrix, right: Points, right_weights: Matrix) -> Vector:
    """Σ_jl a_j b_l k(x_j, y_l) for each column a, b of the weights; (n,)."""
    total = np.zeros(left_weights.shape[1])
    for rows, values in _kernel_rows(kernel, left, right):
        total += np.einsum("jn,jn->n", left_weights[rows], values @ right_weights)
    return total


def _kernel_rows(kernel: Matern, left: Points, right: Points) -> Iterator[tuple[slice, Matrix]]:
    """Blocks of rows of a kernel matrix, in memory that they share."""
    n_rows = max(1, min(len(left), BLOCK_VALUES // max(1, len(right))))
    memory = scratch("kernel rows", (n_rows, len(right)), np.float64)
    for start in range(0, len(left), n_rows):
        rows = slice(start, start + n_rows)
        part = left[rows]
        yield rows, kernel(part, right, out=memory[: len(part)])
