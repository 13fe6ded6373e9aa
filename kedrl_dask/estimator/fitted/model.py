"""The fitted model: what a fit found, and its values at new inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.plan.plan import Plan
from kedrl_dask.estimator.fit.regression import Ridges, exact_operators
from kedrl_dask.estimator.fit.settings import Settings, exact_rows
from kedrl_dask.estimator.fitted.inputs import ROWS, as_stored, by_rows, checked_returns, joined_inputs
from kedrl_dask.numerics.criterion.paired import residual_norms
from kedrl_dask.numerics.criterion.separated import (
    BlockChunk,
    ReturnSpace,
    Space,
    bellman_residual,
    return_space,
)
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.density_ratio import DensityRatio
from kedrl_dask.numerics.regression.operators import ConditionalOperators, ExactOperators, OperatorBlocks
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.numerics.solvers import Solution
from kedrl_dask.utils.arrays import (
    Atoms,
    Coefficients,
    Frequencies,
    Inputs,
    Matrix,
    Points,
    Real,
    Record,
    Vector,
    Weights,
)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """What a fit found; :class:`kedrl_dask.KEDRL` holds it, with each field under a name that ends in ``_``.

    Attributes
    ----------
    settings : Settings
        The parameters, as they were given.
    simulator : Simulator or None
        Returns of the policy at any input, of a centred model whose policy is known.
    is_replicate : bool
        Whether it belongs to a bootstrap, whose answers are not refused: those of the fit are.
    """

    settings: Settings
    solution: Solution
    coefficients: Coefficients
    grid: Atoms
    basis: Inputs
    frequencies: Frequencies
    operators: ConditionalOperators
    target: Matrix | None
    ratio: DensityRatio | None
    return_kernel: Matern
    ridges: Ridges
    ridge_b: float
    mass_penalty: float
    encoding: Encoding | None
    potential: Potential | None = None
    simulator: Simulator | None = None
    plan: Plan | None = None
    diagnostics: Record = field(default_factory=dict)
    is_replicate: bool = False

    @property
    def input_kernel(self) -> Matern:
        """The kernel on state-action inputs."""
        return self.operators.kernel

    @property
    def construction(self) -> Literal["separated", "paired"]:
        """The construction used, whether it was given or chosen."""
        return "separated" if self.target is None else "paired"

    @property
    def return_space(self) -> Space:
        """The grid as the operators see it: through features, or through the return kernel itself."""
        fixed = self.grid, self.frequencies, self.settings.discount, self.return_kernel
        return return_space(self.operators.chunk_type, *fixed)

    def inputs(self, state: npt.ArrayLike, action: npt.ArrayLike) -> Inputs:
        """Join states and actions, checked against the data of the fit."""
        state, action = (
            as_stored(self.encoding, "state", state),
            as_stored(self.encoding, "action", action),
        )
        sizes = self.diagnostics["sizes"]
        return joined_inputs(state, action, sizes["state_dim"], sizes["action_dim"])

    def sections(self, inputs: Inputs) -> Matrix:
        """k_L(x) at each input, of which coefficients are a linear function; (n, L)."""
        return self.input_kernel(inputs, self.basis)

    def weights(self, inputs: Inputs) -> Weights:
        """Signed coefficients ω(x) (eq:hat_w) at each input; (n, m)."""
        return by_rows(inputs, lambda x: self.sections(x) @ self.coefficients)

    def shift(self, state: Points) -> Points | None:
        """Ψ at each state, by which the atoms of the return there are shifted; (n, d), or None without."""
        return None if self.potential is None else self.potential(state)

    def embed(self, inputs: Inputs, at: npt.ArrayLike) -> Real:
        """Values of the embedding at each input, at common return points or at each its own; (n, g)."""
        omega, kernel = self.weights(inputs), self.return_kernel
        at = checked_returns(at, len(omega), self.grid.shape[1])
        shift = self.shift(inputs[:, : self.diagnostics["sizes"]["state_dim"]])
        if shift is not None:
            at = at - shift[:, None]
        if at.ndim == 2:
            return omega @ kernel(self.grid, at)
        return np.stack([w @ kernel(self.grid, z) for w, z in zip(omega, at, strict=True)])

    def bellman_risk(self, inputs: Inputs) -> Vector:
        """Squared projected Bellman residual (eq:generalization_metric) at each input; (n,)."""
        operators, space, coefficients = self.operators, self.return_space, self.coefficients
        if self.target is None:
            rows = exact_rows(len(self.grid)) if isinstance(operators, ExactOperators) else ROWS
            return by_rows(inputs, lambda x: bellman_residual(operators(x)[0], space, coefficients), rows)
        assert isinstance(space, ReturnSpace)  # settings refuse exact operators in the paired construction
        fixed = space, coefficients, self.target
        return by_rows(inputs, lambda x: residual_norms(self.sections(x), operators.features(x), *fixed))

    def operator_blocks(
        self, inputs: Inputs, exact: bool | None, store: TransitionStore | str | Path | None
    ) -> OperatorBlocks:
        """H, G, Φ_L and k_L at inputs; see :meth:`kedrl_dask.KEDRL.operator_blocks`."""
        chunk, _ = self._operators(exact, store)(inputs)
        if not isinstance(chunk, BlockChunk):
            fixed = self.grid, self.frequencies, self.settings.discount, self.return_kernel
            chunk = chunk.with_blocks(ReturnSpace.build(*fixed))
        return OperatorBlocks.from_chunk(chunk)

    def _operators(
        self, exact: bool | None, store: TransitionStore | str | Path | None
    ) -> ConditionalOperators:
        """The fitted operators, in features or exactly."""
        fitted = self.operators
        if isinstance(fitted, ExactOperators):
            if store is not None:
                raise ValueError("operator_blocks: the model keeps its transitions; leave out store")
            return fitted if exact is not False else fitted.in_features()
        if not exact:
            if store is not None:
                raise ValueError(
                    "operator_blocks: features need no transitions; leave out store, or ask for exact=True"
                )
            return fitted
        if fitted.trend is not None:
            raise ValueError(
                "operator_blocks: exact=True sums over the weights Γ, but a model fitted with "
                "reward_trend='linear' does not use them for the law of the reward; fit with "
                "reward_trend='none'"
            )
        if store is None:
            raise ValueError(
                "operator_blocks: exact=True goes over all transitions, and a model fitted with "
                "operators='features' does not keep them; give store=, or fit with operators='exact'"
            )
        store = store if isinstance(store, TransitionStore) else TransitionStore.open(store)
        if store.fingerprint != self.diagnostics["data"]:
            raise ValueError(
                f"operator_blocks: {store.path} does not hold the transitions that the model was fitted on"
            )
        fixed = self.grid, self.return_kernel, self.settings.discount, self.ridges.gamma
        if self.potential is not None:
            store = store.shaped(self.potential, self.settings.discount)
        return exact_operators(fitted, store, *fixed)


def _found(name: str) -> Any:
    """A read-only attribute: a part of the fitted model, absent before a fit."""
    return property(attrgetter(f"fitted_.{name}"))


class FittedAttributes:
    """The parts of a fitted model as attributes of the estimator that holds it."""

    fitted_: FittedModel
    coefficients_: Coefficients = _found("coefficients")
    grid_: Atoms = _found("grid")
    basis_: Inputs = _found("basis")
    frequencies_: Frequencies = _found("frequencies")
    solution_: Solution = _found("solution")
    diagnostics_: Record = _found("diagnostics")
    input_kernel_: Matern = _found("input_kernel")
    return_kernel_: Matern = _found("return_kernel")
    ridge_gamma_: float = _found("ridges.gamma")
    ridge_reward_: float = _found("ridges.reward")
    ridge_b_: float = _found("ridge_b")
    mass_penalty_: float = _found("mass_penalty")
    operators_: ConditionalOperators = _found("operators")
    return_space_: Space = _found("return_space")
    construction_: Literal["separated", "paired"] = _found("construction")
    target_: Matrix | None = _found("target")
    ratio_: DensityRatio | None = _found("ratio")
    encoding_: Encoding | None = _found("encoding")
    potential_: Potential | None = _found("potential")
    simulator_: Simulator | None = _found("simulator")
    plan_: Plan | None = _found("plan")
