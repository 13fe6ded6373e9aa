"""The conditional operators at any input, from one ridge regression: k_L, Φ_L, the target's part and ΣΓ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from kedrl_dask.numerics.criterion.separated import BlockChunk, Chunk, FeatureChunk
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures, solve_ridge
from kedrl_dask.numerics.regression.exact_operators import RewardShifts
from kedrl_dask.numerics.regression.reward_trend import TrendWaves
from kedrl_dask.utils.arrays import Features, Inputs, Matrices, Matrix, Vector, Weights


@dataclass(frozen=True)
class ConditionalOperators:
    """The map from inputs to chunks of the criterion, in features ψ and the basis (L, p + q).

    ``continuation`` is (A + NλI)⁻¹ C_κ (r, L), so that Φ_L(x) = ψ(x)ᵀ of it (eq:Phi); ``reward`` (r, 2Q) is
    the same for exp(iWr), ``terminal`` (r, 2Q) for 1{terminal}·exp(iWr), None when no episode terminates, and
    ``mass`` (r,) for the constant 1. With a trend of the reward its residual e stands for r: ``reward`` is
    for exp(iWe) less its mean, with a ridge of its own, and ``terminal`` for 1{terminal}·exp(iWe).
    """

    features: NystromFeatures
    basis: Inputs
    continuation: Matrix
    reward: Matrix
    terminal: Matrix | None
    mass: Vector
    trend: TrendWaves | None

    #: The kind of chunk that the operators make.
    chunk_type: ClassVar[type[Chunk]] = FeatureChunk

    @property
    def kernel(self) -> Matern:
        """The input kernel."""
        return self.features.kernel

    def whitened(self, basis: NystromFeatures) -> Self:
        """The same with the continuation of the whitened basis, Φ̃ = T_LᵀΦ_L."""
        return replace(self, continuation=self.continuation @ basis.whitening)

    def target(self, inputs: Inputs, psi: Features) -> dict[str, Matrices]:
        """The arrays of a chunk other than k_L and Φ_L, at the rows of ``inputs``, whose features are ψ."""
        waves: dict[str, Matrices] = {"reward_waves": psi @ self.reward}
        if self.terminal is not None:
            waves["terminal_waves"] = psi @ self.terminal
        if self.trend is None:
            return waves
        waves["reward_waves"] += self.trend.mean
        return {name: self.trend.turn(inputs, part) for name, part in waves.items()}

    @property
    def target_facts(self) -> list[object]:
        """Everything except ψ that :meth:`target` and the mass depend on."""
        facts: list[object] = [self.reward, self.mass, self.terminal]
        return facts if self.trend is None else [*facts, self.trend]

    def __call__(self, inputs: Inputs, weights: Weights | None = None) -> tuple[Any, Vector]:
        """Chunk of the criterion at the rows of ``inputs``, and the mass ΣΓ there.

        ``weights`` are the ϱ of the inputs; by default equal, with sum one.
        """
        if weights is None:
            weights = np.full(len(inputs), 1.0 / max(1, len(inputs)))
        psi = self.features(inputs)
        sections = self.kernel(inputs, self.basis), psi @ self.continuation
        return self.chunk_type(weights, *sections, **self.target(inputs, psi)), psi @ self.mass


@dataclass(frozen=True)
class ExactOperators(ConditionalOperators):
    """The same with H and G from the return kernel itself, and the inputs (N, p + q) of all transitions.

    ``regression`` is Ψ(A + NλI)⁻¹ (N, r), so that Γ(x) = regression · ψ(x): the paper's Γ when all inputs are
    landmarks. ``shifts`` holds rewards and terminal flags of the same transitions.
    """

    inputs: Inputs
    regression: Matrix
    shifts: RewardShifts

    chunk_type = BlockChunk

    @classmethod
    def build(
        cls, operators: ConditionalOperators, inputs: Inputs, shifts: RewardShifts, ridge: float
    ) -> ExactOperators:
        """Extend operators of the same transitions by the data of exact sums; ``ridge`` is λ_Γ."""
        psi = operators.features(inputs)
        regression = np.ascontiguousarray(solve_ridge(psi.T @ psi, psi.T, len(psi), ridge).T)
        return cls(**vars(operators), inputs=inputs, regression=regression, shifts=shifts)

    def target(self, inputs: Inputs, psi: Features) -> dict[str, Matrices]:
        """H, G and the terminal terms at the rows of ``inputs``, whose features are ψ (n, r)."""
        return self.shifts.blocks(self.regression @ psi.T)

    @property
    def target_facts(self) -> list[object]:
        """Everything except ψ that :meth:`target` and the mass depend on."""
        return [self.regression, self.shifts, self.mass]

    def in_features(self) -> ConditionalOperators:
        """The operators in features."""
        return ConditionalOperators(
            self.features, self.basis, self.continuation, self.reward, self.terminal, self.mass, self.trend
        )


@dataclass(frozen=True)
class OperatorBlocks:
    """The operators of the Bellman equation at some inputs, written out.

    At an input, with u = Bᵀk_L and v = BᵀΦ, the squared residual (eq:gamma_with_W) is
    uᵀK_Zu − 2uᵀHv + vᵀGv − 2uᵀ·grid_terminal + 2vᵀ·shifted_terminal + terminal_square.

    Attributes
    ----------
    H, G : (n, m, m) arrays
        Reward-shifted Gram matrices: grid against target, and target against target (eq:h_ij, eq:g_ij).
    Phi : (n, L) array
        Φ_L, the basis sections expected next under the target policy (eq:Phi).
    k_L : (n, L) array
        The basis sections here.
    grid_terminal, shifted_terminal : (n, m) arrays or None
        Products of the grid's and of the shifted sections with t = Σ_j Γ_j 1{terminal_j} k_Z(r_j, ·).
        None when no episode terminates.
    terminal_square : (n,) array or None
        ‖t‖².
    """

    H: Matrices
    G: Matrices
    Phi: Features
    k_L: Features
    grid_terminal: Matrix | None = None
    shifted_terminal: Matrix | None = None
    terminal_square: Vector | None = None

    @classmethod
    def from_chunk(cls, chunk: BlockChunk) -> OperatorBlocks:
        """The blocks of a chunk whose sections are not whitened."""
        terms = chunk.grid_terminal, chunk.shifted_terminal, chunk.terminal_square
        return cls(chunk.h, chunk.g, chunk.continuation, chunk.basis, *terms)
