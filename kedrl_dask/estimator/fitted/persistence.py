"""Writing and reading fitted models: arrays as Zarr, everything else as JSON attributes, nothing pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kedrl_dask.engine.data.encoding import PARTS, Encoding
from kedrl_dask.engine.storage.array_store import ArrayStore, write_arrays
from kedrl_dask.engine.storage.atomic import atomic_directory
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.schema import (
    MODEL,
    MODEL_PAIRED,
    MODEL_RATIO,
    MODEL_TERMINAL,
    MODEL_TRANSITIONS,
    MODEL_TREND,
    POTENTIAL,
    TRANSITION_MODEL,
    ArraySpec,
)
from kedrl_dask.estimator.fit.regression import Ridges
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.estimator.parameters import VERSION_ONE
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.kernels.nystrom import NystromFeatures
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.policies.families import LocationScale, from_dict
from kedrl_dask.numerics.regression.density_ratio import ULSIF, DensityRatio
from kedrl_dask.numerics.regression.exact_operators import RewardShifts
from kedrl_dask.numerics.regression.operators import ConditionalOperators, ExactOperators
from kedrl_dask.numerics.regression.reward_trend import LinearTrend, TrendWaves
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.numerics.simulation.simulator import Simulator
from kedrl_dask.numerics.simulation.transition_model import TransitionModel
from kedrl_dask.numerics.solvers import LBFGS, PCG, AdamW, Result, Solution
from kedrl_dask.numerics.solvers import Record as SolverRecord
from kedrl_dask.utils.arrays import Array, Record
from kedrl_dask.utils.checks import check_count, check_number, cut, is_word, shown

KIND = "kedrl model"

#: Arrays that only some models have.
OPTIONAL = (
    *MODEL_TERMINAL, *MODEL_PAIRED, *MODEL_RATIO, *MODEL_TRANSITIONS, *MODEL_TREND, *POTENTIAL,
    *TRANSITION_MODEL,
)  # fmt: skip

_CLASSES = {cls.__name__: cls for cls in (Matern, ULSIF, PCG, LBFGS, AdamW)}


def save(model: FittedModel, path: str | Path) -> None:
    """Write a fitted model at a new path."""
    operators, solution = model.operators, model.solution
    arrays: dict[str, Array] = {
        "coefficients": model.coefficients,
        "grid": model.grid,
        "basis": model.basis,
        "frequencies": model.frequencies,
        "landmarks": operators.features.landmarks,
        "whitening": operators.features.whitening,
        "continuation": operators.continuation,
        "reward": operators.reward,
        "mass": operators.mass,
        "history": np.array(solution.history, dtype=np.float64).reshape(-1, len(SolverRecord._fields)),
    }
    optional = {"terminal": operators.terminal, "target": model.target}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    if operators.trend is not None:
        arrays |= operators.trend.trend.to_arrays() | {"residual_waves": operators.trend.mean}
    if isinstance(operators, ExactOperators):
        shifts = operators.shifts
        arrays |= {"transition_input": operators.inputs, "transition_reward": shifts.rewards}
        arrays["transition_terminal"] = shifts.terminal
    if model.potential is not None:
        arrays |= model.potential.to_arrays()
    layout = None
    if model.simulator is not None:
        arrays["transition_model"], layout = model.simulator.model.pack()
    ratio, numbers = model.ratio, None
    if ratio is not None:
        arrays |= {"ratio_centers": ratio.centers, "ratio_alpha": ratio.alpha}
        numbers = {name: to_json(getattr(ratio, name)) for name in ("kernel", "clip", "ridge", "scale")}
    attributes = {
        "parameters": parameters(model.settings),
        "input_kernel": to_json(model.input_kernel),
        "return_kernel": to_json(model.return_kernel),
        "ridge_gamma": model.ridges.gamma,
        "ridge_reward": model.ridges.reward,
        "ridge_b": model.ridge_b,
        "mass_penalty": model.mass_penalty,
        "ratio": numbers,
        "solution": {
            "result": solution.result.name,
            "value": solution.value,
            "certificate": solution.certificate,
            "n_iterations": solution.n_iterations,
            "n_products": solution.n_products,
        },
        "diagnostics": model.diagnostics,
        "encoding": None if model.encoding is None else model.encoding.to_json(),
        "transition_model": layout,
        "policy": None if model.simulator is None else _policy_record(model.simulator.policy),
    }
    specs = [spec for spec in (*MODEL, *OPTIONAL) if spec.name in arrays]
    write_fitted(path, KIND, specs, arrays, attributes)


def _policy_record(policy: Policy) -> Record | None:
    """The numbers of a policy; None if it is code, which is not saved."""
    return policy.to_dict() if isinstance(policy, LocationScale) else None


def write_fitted(
    path: str | Path,
    kind: str,
    specs: Sequence[ArraySpec],
    arrays: Mapping[str, Array],
    attributes: Record,
) -> None:
    """Write arrays and attributes of a fitted estimator; the directory appears when it is complete."""
    with atomic_directory(path) as partial:
        # Version one wrote in place, and looks for the mark of an end.
        write_arrays(partial, kind, specs, arrays, {**attributes, "complete": True}).finish()


@contextmanager
def opened_fitted(
    path: str | Path, kind: str, specs: Sequence[ArraySpec], optional: Sequence[ArraySpec] = ()
) -> Iterator[tuple[dict[str, Array], Record]]:
    """The arrays, with the existing ``optional`` ones, and the attributes that :func:`write_fitted` wrote.

    Raises StoreError if they are incomplete or inconsistent, or if the body fails on them: attributes are
    untrusted, and what they may cause cannot be foreseen.
    """
    store = ArrayStore.open(path, kind, specs=specs)
    if store.attributes.get("complete") is not True:
        raise StoreError(f"{path}: the model is incomplete, because saving it was interrupted; save it again")
    existing = [spec for spec in optional if spec.name in store.names]
    store.require(existing)
    sizes: dict[str, int] = {}
    for spec in (*specs, *existing):
        for dim, size in zip(spec.dims, store.shape(spec.name), strict=True):
            if sizes.setdefault(dim, size) != size:
                raise StoreError(
                    f"{path}: array {spec.name} has {size} along {dim}, the others {sizes[dim]}; the "
                    "arrays are not of one model: save it again"
                )
    store.require_substance()
    arrays = {spec.name: store.read(spec.name) for spec in (*specs, *existing)}
    for name, array in arrays.items():
        # A solver's history begins before its first certificate is known.
        if name != "history" and not np.isfinite(array).all():
            raise StoreError(
                f"{path}: array {name} has entries that are not finite; fit and save the model again"
            )
    try:
        yield arrays, store.attributes
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(
            f"{path}: settings or numbers of the model are damaged ({type(error).__name__}: "
            f"{cut(str(error))}); save the model again"
        ) from error


class HasParameters(Protocol):
    """An estimator, or its settings."""

    def get_params(self, deep: bool) -> dict[str, Any]:
        """Parameters by name."""


def parameters(estimator: HasParameters) -> Record:
    """Parameters of an estimator as JSON."""
    return {name: to_json(value) for name, value in estimator.get_params(deep=False).items()}


def load(path: str | Path, settings: Callable[..., Settings], policy: Policy | None = None) -> FittedModel:
    """Read a model back without trusting the file to be what :func:`save` wrote.

    ``settings`` completes the saved parameters, which may be those of an earlier version. The ``policy`` is
    needed to simulate returns if it is code.
    """
    with opened_fitted(path, KIND, MODEL, OPTIONAL) as (arrays, attributes):
        model = _assemble(settings, arrays, attributes)
        return replace(model, simulator=_simulator(model, arrays, attributes, policy))


def _simulator(
    model: FittedModel, arrays: dict[str, Array], attributes: Record, policy: Policy | None
) -> Simulator | None:
    """The simulator of a model that was read, if it has one and its policy is known."""
    saved = attributes.get("policy")
    if policy is None and saved is not None:
        policy = from_dict(saved)
    if policy is None or "transition_model" not in arrays:
        return None
    found = TransitionModel.unpack(arrays["transition_model"], attributes["transition_model"])
    simulator = Simulator(found, policy, model.settings.discount, model.settings.random_state)
    state, action = np.hsplit(model.basis[:1], [model.diagnostics["sizes"]["state_dim"]])
    # Two steps: numbers that are finite by themselves may overflow, or not fit, together.
    rng = np.random.default_rng(0)
    reward, following, _ = found.step(state, action, rng)
    policy.sample(following, rng)
    if reward.shape != (1, model.grid.shape[1]) or not np.isfinite(reward).all():
        raise ValueError("the transition model is not that of the model's columns")
    return simulator


def _assemble(settings: Callable[..., Settings], arrays: dict[str, Array], attributes: Record) -> FittedModel:
    read = arrays.__getitem__
    saved = {name: from_json(value) for name, value in attributes["parameters"].items()}
    given = settings(**VERSION_ONE | saved)
    input_kernel, return_kernel = (
        kernel_from_json(attributes[f"{name}_kernel"]) for name in ("input", "return")
    )
    # Models of earlier versions have one ridge, and a penalty that is a number.
    gamma: float = attributes["ridge_gamma"]
    ridges = Ridges(gamma, attributes.get("ridge_reward", gamma))
    mass_penalty = attributes.get("mass_penalty", given.mass_penalty)
    grid, basis, frequencies = read("grid"), read("basis"), read("frequencies")
    features = NystromFeatures(input_kernel, read("landmarks"), read("whitening"))
    trend = None
    if "trend_center" in arrays:
        trend = TrendWaves(LinearTrend.from_arrays(arrays), frequencies, read("residual_waves"))
    operators = ConditionalOperators(
        features, basis, read("continuation"), read("reward"), arrays.get("terminal"), read("mass"), trend
    )
    if "transition_input" in arrays:
        data = read("transition_reward"), read("transition_terminal")
        shifts = RewardShifts(return_kernel, grid, given.discount, *data)
        operators = ExactOperators.build(operators, read("transition_input"), shifts, ridges.gamma)
    ratio = None
    if attributes["ratio"] is not None:
        numbers = {name: from_json(value) for name, value in attributes["ratio"].items()}
        ratio = DensityRatio(centers=read("ratio_centers"), alpha=read("ratio_alpha"), **numbers)
    history = tuple(SolverRecord(int(row[0]), *row[1:].tolist()) for row in read("history"))
    summary = dict(attributes["solution"])
    result = Result[summary.pop("result")]
    encoding = attributes.get("encoding")  # models of earlier versions have none
    model = FittedModel(
        settings=given,
        solution=Solution(read("coefficients"), result, history=history, **summary),
        coefficients=read("coefficients"),
        grid=grid,
        basis=basis,
        frequencies=frequencies,
        operators=operators,
        target=arrays.get("target"),
        ratio=ratio,
        return_kernel=return_kernel,
        ridges=ridges,
        ridge_b=attributes["ridge_b"],
        mass_penalty=mass_penalty,
        encoding=None if encoding is None else Encoding.from_json(encoding),
        potential=Potential.from_arrays(arrays) if "potential_center" in arrays else None,
        diagnostics=attributes["diagnostics"],
    )
    _check_numbers(model)
    return model


def _check_numbers(model: FittedModel) -> None:
    """Compare settings, sizes and numbers of a model that was read with each other."""
    numbers = {"ridge_gamma_": model.ridges.gamma, "ridge_reward_": model.ridges.reward}
    numbers |= {"ridge_b_": model.ridge_b, "mass_penalty_": model.mass_penalty}
    for name, number in numbers.items():
        check_number(name, number, "a number ≥ 0")
    settings, sizes = model.settings, model.diagnostics["sizes"]
    state_dim, action_dim, reward_dim = (sizes[f"{name}_dim"] for name in ("state", "action", "reward"))
    for dim in (state_dim, action_dim, reward_dim):
        check_count("dimension", dim)
    if (state_dim + action_dim, reward_dim) != (model.basis.shape[1], model.grid.shape[1]):
        raise ValueError(f"sizes {shown(sizes)} are not those of the arrays")
    encoding = model.encoding
    if encoding is not None and any(len(encoding.names(part)) != sizes[f"{part}_dim"] for part in PARTS):
        raise ValueError("the encoding is not that of the model's columns")
    settings.check_data(state_dim, action_dim, reward_dim, max(sizes["transitions"], len(model.basis)))
    if model.operators.reward.shape[1] != 2 * len(model.frequencies):
        raise ValueError(f"{len(model.frequencies)} frequencies for {model.operators.reward.shape[1]} waves")
    if settings.construction not in ("auto", model.construction):
        raise ValueError(f"construction {settings.construction!r} contradicts the arrays")
    if isinstance(model.operators, ExactOperators) != (settings.operators == "exact"):
        raise ValueError(f"operators {settings.operators!r} contradict the arrays")
    # One evaluation: numbers that are finite by themselves may overflow together.
    if not np.isfinite(model.embed(model.basis[:1], model.grid[:1])).all():
        raise ValueError("the embedding is not finite")


def kernel_from_json(value: Any) -> Matern:
    """Read a kernel; refuse anything else."""
    kernel = from_json(value)
    if not isinstance(kernel, Matern):
        raise ValueError(f"expected a Matern kernel, got {shown(value)}")
    return kernel


def to_json(value: Any) -> Any:
    """Convert a parameter to JSON; objects of the package become their class and fields."""
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
        if not is_word(value.get("class"), *_CLASSES):
            raise ValueError(f"class {shown(value.get('class'))} is not one of {', '.join(_CLASSES)}")
        return _CLASSES[value["class"]](**fields)
    if isinstance(value, list):
        return tuple(from_json(part) for part in value)
    return value


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, as JSON requires."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
