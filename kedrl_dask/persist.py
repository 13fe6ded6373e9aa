"""Writing and reading fitted models: arrays as Zarr, everything else as JSON attributes, nothing pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from kedrl_dask.exact import RewardShifts
from kedrl_dask.kernels import Matern
from kedrl_dask.nystrom import NystromFeatures
from kedrl_dask.operators import ConditionalOperators, ExactOperators
from kedrl_dask.ratio import ULSIF, DensityRatio
from kedrl_dask.schema import (
    MODEL,
    MODEL_PAIRED,
    MODEL_RATIO,
    MODEL_TERMINAL,
    MODEL_TRANSITIONS,
    MODEL_TREND,
    ArraySpec,
)
from kedrl_dask.solvers import LBFGS, PCG, AdamW, Record, Result, Solution
from kedrl_dask.store import ArrayStore, StoreError
from kedrl_dask.trend import LinearTrend, TrendWaves

if TYPE_CHECKING:
    from kedrl_dask.model import KEDRL

__all__ = ["from_json", "load", "open_fitted", "parameters", "save", "to_json", "write_fitted"]

Array = npt.NDArray[Any]

KIND = "kedrl model"

_CLASSES = {cls.__name__: cls for cls in (Matern, ULSIF, PCG, LBFGS, AdamW)}


def save(model: KEDRL, path: str | Path) -> None:
    """Write a fitted model at a new path."""
    operators, solution = model.operators_, model.solution_
    arrays = {
        "coefficients": model.coefficients_,
        "grid": model.grid_,
        "basis": model.basis_,
        "frequencies": model.frequencies_,
        "landmarks": operators.features.landmarks,
        "whitening": operators.features.whitening,
        "continuation": operators.continuation,
        "reward": operators.reward,
        "mass": operators.mass,
        "history": np.array(solution.history, dtype=np.float64).reshape(-1, len(Record._fields)),
    }
    specs = list(MODEL)
    if operators.terminal is not None:
        arrays["terminal"] = operators.terminal
        specs += MODEL_TERMINAL
    if operators.trend is not None:
        trend = operators.trend.trend
        arrays |= {"trend_center": trend.center, "trend_weights": trend.weights, "trend_mean": trend.mean}
        arrays["residual_waves"] = operators.trend.mean
        specs += MODEL_TREND
    if model.target_ is not None:
        arrays["target"] = model.target_
        specs += MODEL_PAIRED
    if isinstance(operators, ExactOperators):
        shifts = operators.shifts
        arrays |= {"transition_input": operators.inputs, "transition_reward": shifts.rewards}
        arrays["transition_terminal"] = shifts.terminal
        specs += MODEL_TRANSITIONS
    ratio = model.ratio_
    if ratio is not None:
        arrays |= {"ratio_centers": ratio.centers, "ratio_alpha": ratio.alpha}
        specs += MODEL_RATIO
    attributes = {
        "parameters": parameters(model),
        "input_kernel": to_json(model.input_kernel_),
        "return_kernel": to_json(model.return_kernel_),
        "ridge_gamma": model.ridge_gamma_,
        "ridge_reward": model.ridge_reward_,
        "ridge_b": model.ridge_b_,
        "mass_penalty": model.mass_penalty_,
        "ratio": None if ratio is None else _ratio_numbers(ratio),
        "solution": {
            "result": solution.result.name,
            "value": solution.value,
            "certificate": solution.certificate,
            "n_iterations": solution.n_iterations,
            "n_products": solution.n_products,
        },
        "diagnostics": model.diagnostics_,
    }
    write_fitted(path, KIND, specs, arrays, attributes)


def write_fitted(
    path: str | Path,
    kind: str,
    specs: Sequence[ArraySpec],
    arrays: Mapping[str, Array],
    attributes: Mapping[str, Any],
) -> None:
    """Write arrays and attributes of a fitted estimator; they count once all are there."""
    sizes = {
        dim: size for spec in specs for dim, size in zip(spec.dims, arrays[spec.name].shape, strict=True)
    }
    store = ArrayStore.create(path, kind, specs, sizes, {}, {**attributes, "complete": False})
    for spec in specs:
        store.write(spec.name, 0, arrays[spec.name])
    store.update_attributes(complete=True)
    store.finish()


def open_fitted(path: str | Path, kind: str, specs: Sequence[ArraySpec]) -> ArrayStore:
    """Open what :func:`write_fitted` wrote; refuse it if it did not come to its end."""
    store = ArrayStore.open(path, kind, specs=specs)
    if not store.attributes.get("complete"):
        raise StoreError(f"{path}: the model was not written to its end; save it again")
    return store


def parameters(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters of an estimator as JSON."""
    return {name: to_json(value) for name, value in estimator.get_params(deep=False).items()}


def load(cls: type[KEDRL], path: str | Path) -> KEDRL:
    """Read a model back."""
    store = open_fitted(path, KIND, MODEL)
    attributes = store.attributes
    read = store.read
    model = cls(**{name: from_json(value) for name, value in attributes["parameters"].items()})
    model.input_kernel_ = from_json(attributes["input_kernel"])
    model.return_kernel_ = from_json(attributes["return_kernel"])
    model.ridge_gamma_, model.ridge_b_ = attributes["ridge_gamma"], attributes["ridge_b"]
    # One and the same in models that were saved before there was a trend.
    model.ridge_reward_ = attributes.get("ridge_reward", model.ridge_gamma_)
    # A number in models that were saved before it could be automatic.
    model.mass_penalty_ = attributes.get("mass_penalty", model.mass_penalty)
    model.grid_, model.basis_, model.frequencies_ = read("grid"), read("basis"), read("frequencies")
    model.coefficients_ = read("coefficients")
    features = NystromFeatures(model.input_kernel_, read("landmarks"), read("whitening"))
    terminal = read("terminal") if "terminal" in store.names else None
    model.operators_ = ConditionalOperators(
        features, model.basis_, read("continuation"), read("reward"), terminal, read("mass"),
        _read_trend(store, model.frequencies_),
    )  # fmt: skip
    if "transition_input" in store.names:
        data = read("transition_reward"), read("transition_terminal")
        shifts = RewardShifts(model.return_kernel_, model.grid_, model.discount, *data)
        model.operators_ = ExactOperators.build(
            model.operators_, read("transition_input"), shifts, model.ridge_gamma_
        )
    model.target_ = read("target") if "target" in store.names else None
    model.ratio_ = None
    if attributes["ratio"] is not None:
        numbers = {name: from_json(value) for name, value in attributes["ratio"].items()}
        model.ratio_ = DensityRatio(centers=read("ratio_centers"), alpha=read("ratio_alpha"), **numbers)
    history = tuple(Record(int(row[0]), *row[1:].tolist()) for row in read("history"))
    summary = dict(attributes["solution"])
    model.solution_ = Solution(model.coefficients_, Result[summary.pop("result")], history=history, **summary)
    model.diagnostics_ = attributes["diagnostics"]
    return model


def _read_trend(store: ArrayStore, frequencies: Array) -> TrendWaves | None:
    """The trend of the reward, if the model has one."""
    if "trend_center" not in store.names:
        return None
    trend = LinearTrend(*(store.read(f"trend_{name}") for name in ("center", "weights", "mean")))
    return TrendWaves(trend, frequencies, store.read("residual_waves"))


def _ratio_numbers(ratio: DensityRatio) -> dict[str, Any]:
    """The fields of a density ratio that are not arrays."""
    return {name: to_json(getattr(ratio, name)) for name in ("kernel", "clip", "ridge", "scale")}


def to_json(value: Any) -> Any:
    """A parameter as JSON; objects of the package by their class and fields."""
    if type(value).__name__ in _CLASSES:
        fields = {name: to_json(part) for name, part in vars(value).items()}
        return {"class": type(value).__name__, **fields}
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"save: cannot write {value!r} without pickling; use one of the package's own classes")


def from_json(value: Any) -> Any:
    """Inverse of :func:`to_json`; sequences come back as tuples."""
    if isinstance(value, dict):
        fields = {name: from_json(part) for name, part in value.items() if name != "class"}
        return _CLASSES[value["class"]](**fields)
    if isinstance(value, list):
        return tuple(from_json(part) for part in value)
    return value
