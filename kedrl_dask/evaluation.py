"""The operators of a fit, in features or from the kernels themselves, and the return grid as they see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from kedrl_dask.criterion import BlockChunk, ExactReturnSpace, ReturnSpace, Space
from kedrl_dask.exact import RewardShifts
from kedrl_dask.kernels import Matern
from kedrl_dask.operators import ConditionalOperators, ExactOperators, OperatorBlocks
from kedrl_dask.transitions import TransitionStore

if TYPE_CHECKING:
    from kedrl_dask.model import KEDRL

__all__ = ["exact_operators", "operator_blocks", "return_space"]

Array = npt.NDArray[Any]


def exact_operators(
    operators: ConditionalOperators,
    store: TransitionStore,
    grid: Array,
    kernel: Matern,
    discount: float,
    ridge: float,
) -> ExactOperators:
    """The operators with H and G from the return kernel itself; all transitions are read into memory."""
    transitions = store.transitions()
    shifts = RewardShifts(kernel, grid, discount, transitions.reward, transitions.terminal)
    return ExactOperators.build(operators, transitions.inputs, shifts, ridge)


def return_space(
    operators: ConditionalOperators, grid: Array, frequencies: Array, discount: float, kernel: Matern
) -> Space:
    """The return grid as the operators see it: through the kernel itself, or through features."""
    if isinstance(operators, ExactOperators):
        return ExactReturnSpace(kernel(grid, grid))
    return ReturnSpace.build(grid, frequencies, discount, kernel)


def operator_blocks(
    model: KEDRL, inputs: Array, exact: bool | None, store: TransitionStore | str | Path | None
) -> OperatorBlocks:
    """H, G, Φ_L and k_L at the rows of ``inputs``; see :attr:`kedrl_dask.KEDRL.operators`."""
    operators = _choose(model, exact, store)
    chunk, _ = operators(inputs)
    if not isinstance(chunk, BlockChunk):
        fixed = model.grid_, model.frequencies_, model.discount, model.return_kernel_
        chunk = chunk.with_blocks(ReturnSpace.build(*fixed))
    return OperatorBlocks.from_chunk(chunk)


def _choose(
    model: KEDRL, exact: bool | None, store: TransitionStore | str | Path | None
) -> ConditionalOperators:
    """The fitted operators, in features or exactly."""
    fitted = model.operators_
    if isinstance(fitted, ExactOperators):
        if store is not None:
            raise ValueError("operators: the model keeps its transitions; leave out store")
        return fitted if exact is not False else fitted.in_features()
    if not exact:
        if store is not None:
            raise ValueError(
                "operators: features need no transitions; leave out store, or ask for exact=True"
            )
        return fitted
    if store is None:
        raise ValueError(
            "operators: exact=True goes over all transitions, and a model fitted with operators='features' "
            "does not keep them; give store=, or fit with operators='exact'"
        )
    store = store if isinstance(store, TransitionStore) else TransitionStore.open(store)
    if store.fingerprint != model.diagnostics_["data"]:
        raise ValueError(
            f"operators: {store.path} does not hold the transitions that the model was fitted on"
        )
    fixed = model.grid_, model.return_kernel_, model.discount, model.ridge_gamma_
    return exact_operators(fitted, store, *fixed)
