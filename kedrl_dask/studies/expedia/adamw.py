"""The paper's optimiser on the criterion of a fit, given as much time as the exact minimiser took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.criterion import separated
from kedrl_dask.numerics.criterion.preconditioner import Coordinates
from kedrl_dask.numerics.criterion.separated import FeatureChunk, Penalties, ReturnSpace
from kedrl_dask.numerics.solvers import AdamW, Result
from kedrl_dask.utils.arrays import Array, Record

#: Conditioning points whose operators are evaluated at once.
ROWS = 2_048
#: The paper's budget and learning rate (tab:expedia_appendix_setup); it names no batch size.
ITERATIONS, LEARNING_RATE, BATCH_SIZE = 40_000, 5e-5, 256
#: Steps between full objectives, which are not to take the method's time.
EVALUATE_EVERY = 200


@dataclass(frozen=True)
class TimedAdamW(AdamW):
    """AdamW with a time limit besides its budget of steps."""

    seconds: float = 60.0
    began: float = field(default_factory=time.perf_counter)

    def terminate(self, state: Any) -> Result | None:
        """At the end of the time or of the budget."""
        is_over = time.perf_counter() - self.began >= self.seconds
        return Result.BUDGET if is_over else super().terminate(state)


class BasisProblem:
    """The criterion as a function of B itself, in single precision.

    Steps of AdamW are taken in B. From whitened coefficients each would cost two triangular solutions of L²m
    flop, a hundred times its own work; with the sections k_L and Φ_L themselves it costs what it costs the
    authors. The ridge, 10⁻¹⁰ on tr(BᵀK_LB), is left out of the gradient of a batch, to which it adds nothing
    that single precision shows.
    """

    whitening: Array | None = None
    products_are_exact = False
    is_quadratic = True
    coordinates: Coordinates

    def __init__(self, model: KEDRL, inputs: Array) -> None:
        parts = []
        for start in range(0, len(inputs), ROWS):
            rows = inputs[start : start + ROWS]
            parts.append(model.operators_(rows, np.full(len(rows), 1 / len(inputs)))[0].astype(np.float32))
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        self._chunk = FeatureChunk(**joined)
        space = model.return_space_
        assert isinstance(space, ReturnSpace)  # the study's fits have features
        self._space = space.astype(np.float32)
        self._penalties = Penalties(model.mass_penalty_)
        self._gram, self._ridge = model.input_kernel_(model.basis_, model.basis_), model.ridge_b_
        self.shape, self.n_points = model.coefficients_.shape, len(inputs)

    def value_and_gradient(self, coefficients: Array) -> tuple[float, Array]:
        """Value with the ridge, and the gradient without it."""
        value, gradient = self._over(self._chunk, coefficients)
        return value + self._ridge * float(np.vdot(coefficients, self._gram @ coefficients)), gradient

    def batch_gradient(self, rows: Array, coefficients: Array) -> Array:
        """Gradient over some of the points, scaled to all of them."""
        batch = self._chunk.rows(rows)
        batch = replace(batch, weights=batch.weights * np.float32(self.n_points / len(batch)))
        return self._over(batch, coefficients)[1]

    def _over(self, chunk: FeatureChunk, coefficients: Array) -> tuple[float, Array]:
        single = coefficients.astype(np.float32)
        return separated.value_and_gradient(chunk, self._space, self._penalties, single)


_ARRAYS = ("weights", "basis", "continuation", "reward_waves")


def adamw_for(model: KEDRL, inputs: Array, seconds: float, seed: int) -> Record:
    """The value of a fitted model's criterion that AdamW reaches in a given time, beside the minimum.

    The ``inputs`` are the conditioning points of the fit, of equal weights. Returns steps, seconds, the
    objective at the start and the best one, and that of the fit.
    """
    problem: Any = BasisProblem(model, inputs)
    own, _ = problem.value_and_gradient(model.coefficients_)
    solver = TimedAdamW(
        ITERATIONS, BATCH_SIZE, LEARNING_RATE, weight_decay=0.0, evaluate_every=EVALUATE_EVERY,
        random_state=seed, seconds=seconds,
    )  # fmt: skip
    state, _, history = solver.iterate(problem)
    reached, _ = problem.value_and_gradient(state.coefficients)
    return {
        "seconds": time.perf_counter() - solver.began,
        "steps": state.iteration,
        "start": float(history[0].value),
        "objective": float(min(reached, state.best_value)),
        "minimum": float(own),
    }
