"""A fitted model at new inputs: coefficients, Bellman risk, and the operators in features or exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.engine.plan.partition import even_ranges
from kedrl_dask.estimator.fit.settings import exact_rows
from kedrl_dask.numerics.criterion.paired import residual_norms
from kedrl_dask.numerics.criterion.separated import BlockChunk, ReturnSpace, bellman_residual
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.regression.exact_operators import RewardShifts
from kedrl_dask.numerics.regression.operators import ConditionalOperators, ExactOperators, OperatorBlocks
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import as_numbers

if TYPE_CHECKING:
    from kedrl_dask.estimator.conditional_embedding import ConditionalEmbedding
    from kedrl_dask.estimator.kedrl import KEDRL

__all__ = [
    "as_stored",
    "bellman_risk",
    "by_rows",
    "checked_columns",
    "checked_inputs",
    "checked_returns",
    "embed",
    "exact_operators",
    "joined_inputs",
    "operator_blocks",
    "weights",
]


#: Inputs evaluated at a time.
ROWS = 4_096


def checked_inputs(model: KEDRL | ConditionalEmbedding, state: npt.ArrayLike, action: npt.ArrayLike) -> Array:
    """Join state and action, checked against the data that the model was fitted on."""
    check_is_fitted(model)
    dims = model.diagnostics_["sizes"]
    encoding = getattr(model, "encoding_", None)
    state, action = as_stored(encoding, "state", state), as_stored(encoding, "action", action)
    return joined_inputs(state, action, dims["state_dim"], dims["action_dim"])


def as_stored(encoding: Encoding | None, part: Literal["state", "action"], given: Any) -> Any:
    """What is given in columns of the table that was stored, as the store has it; anything else as it is."""
    if encoding is None or not isinstance(given, pd.DataFrame):
        return given
    return encoding.encode(part, given)


def joined_inputs(state: npt.ArrayLike, action: npt.ArrayLike, state_dim: int, action_dim: int) -> Array:
    """State and action side by side, once they have as many rows and the right columns; (n, p + q)."""
    state, action = checked_columns("state", state, state_dim), checked_columns("action", action, action_dim)
    if len(state) != len(action):
        raise ValueError(f"state has {len(state)} rows and action {len(action)}; they must agree")
    return np.hstack([state, action])


def checked_columns(name: str, given: npt.ArrayLike, dim: int) -> Array:
    """Finite rows with as many columns as the data have."""
    array = as_numbers(name, given, finite=False)
    if array.ndim != 2 or array.shape[1] != dim:
        raise ValueError(f"{name} has shape {array.shape}, expected (n, {dim}): one row per input")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if bad.size:
        raise ValueError(f"{name}, row {bad[0]}: {array[bad[0]].tolist()} is not finite")
    return array


def checked_returns(at: npt.ArrayLike, n_inputs: int, dim: int) -> Array:
    """Return points (g, d), or (n, g, d) for each input its own."""
    at = as_numbers("embed: at", at)
    if at.ndim not in (2, 3) or at.shape[-1] != dim or (at.ndim == 3 and len(at) != n_inputs):
        raise ValueError(
            f"embed: at has shape {at.shape}, expected (g, {dim}), or ({n_inputs}, g, {dim}) "
            "for own points at each input"
        )
    return at


def by_rows(inputs: Array, function: Callable[[Array], Array], rows: int = ROWS) -> Array:
    """Apply a function to some inputs at a time."""
    if len(inputs) == 0:
        return function(inputs)
    return np.concatenate([function(inputs[a:b]) for a, b in even_ranges(len(inputs), rows)])


def weights(model: KEDRL, inputs: Array) -> Array:
    """Signed coefficients ω(x) (eq:hat_w) at each input; (n, m)."""
    return by_rows(inputs, lambda x: model.input_kernel_(x, model.basis_) @ model.coefficients_)


def embed(model: KEDRL, inputs: Array, at: npt.ArrayLike) -> Array:
    """Values of the embedding at each input, at common return points or at each its own; (n, g)."""
    omega, kernel = weights(model, inputs), model.return_kernel_
    at = checked_returns(at, len(omega), model.grid_.shape[1])
    if at.ndim == 2:
        return omega @ kernel(model.grid_, at)
    return np.stack([w @ kernel(model.grid_, z) for w, z in zip(omega, at, strict=True)])


def bellman_risk(model: KEDRL, inputs: Array) -> Array:
    """Squared projected Bellman residual (eq:generalization_metric) at each input; (n,)."""
    operators, space, coefficients = model.operators_, model.return_space_, model.coefficients_
    if model.target_ is None:
        rows = exact_rows(len(model.grid_)) if isinstance(operators, ExactOperators) else ROWS
        return by_rows(inputs, lambda x: bellman_residual(operators(x)[0], space, coefficients), rows)
    assert isinstance(space, ReturnSpace)  # settings refuse exact operators in the paired construction
    fixed = space, coefficients, model.target_
    return by_rows(
        inputs, lambda x: residual_norms(operators.kernel(x, model.basis_), operators.features(x), *fixed)
    )


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


def operator_blocks(
    model: KEDRL,
    state: npt.ArrayLike,
    action: npt.ArrayLike,
    *,
    exact: bool | None = None,
    store: TransitionStore | str | Path | None = None,
) -> OperatorBlocks:
    """H, G, Φ_L and k_L at inputs; see :attr:`kedrl_dask.KEDRL.operators`."""
    inputs = checked_inputs(model, state, action)
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
    if fitted.trend is not None:
        raise ValueError(
            "operators: exact=True sums over weights Γ, of which a model fitted with reward_trend='linear' "
            "does not make the reward's law; fit with reward_trend='none'"
        )
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
