"""Policies: how actions are drawn given a state, and with what density.

The parametric families are location-scale: a = sᵀΘ + b + scale(s)·n, with independent standard noise n in
each action coordinate. :class:`Regressor` has any regressor's prediction for a location, and
:class:`Function` takes any sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from kedrl_dask.numerics.policies.location_scale import Immutable, NoisyLocation, Regressor, precision
from kedrl_dask.numerics.policies.noise import GaussianNoise, LogisticNoise, UniformNoise
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import as_numbers, check_count, is_word, shown

__all__ = [
    "Function",
    "Gaussian",
    "LocationScale",
    "Logistic",
    "Policy",
    "Regressor",
    "Uniform",
    "from_dict",
]


@runtime_checkable
class Policy(Protocol):
    """What the estimator and the simulator ask of a policy."""

    @property
    def action_dim(self) -> int | None:
        """Number q of action coordinates; None when only a draw can tell."""

    @property
    def deterministic_draws(self) -> bool:
        """Whether ``draws`` ignores its generator."""

    @property
    def has_log_density(self) -> bool:
        """Whether ``log_density`` can be called."""

    def draws(self, state: Array, n_draws: int, rng: Generator | None = None) -> tuple[Array, Array]:
        """Actions (k, n, q) and weights (k,) that sum to one, k ≤ n_draws: Σ_k w_k f(a_k) ≈ E[f(A) | s]."""

    def sample(self, state: Array, rng: Generator) -> Array:
        """One random action (n, q) for each state."""

    def log_density(self, state: Array, action: Array) -> Array:
        """Logarithm (n,) of the density of each action given its state."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""


class LocationScale(NoisyLocation):
    """Shared part of the parametric families: a = sᵀΘ + b + scale(s)·n, scale(s) = scale·exp(sᵀΘ_σ).

    A family declares the law of its standard noise n and what it calls the scale.

    Parameters
    ----------
    weights : (p, q) or (p,) array
        Slope Θ of the location; a vector means one action coordinate.
    bias : float or (q,) array
        Offset b of the location.
    scale : float or (q,) array
        Factor of the noise at s = 0, positive. :class:`Uniform` calls it ``half_width``.
    scale_weights : (p, q) or (p,) array, optional
        Slope Θ_σ of the log scale; none means a constant scale.
    """

    family: ClassVar[str]
    scale_name: ClassVar[str] = "scale"

    weights: Array
    bias: Array
    scale: Array
    scale_weights: Array | None

    def __init__(
        self,
        weights: npt.ArrayLike,
        bias: npt.ArrayLike = 0.0,
        scale: npt.ArrayLike = 1.0,
        scale_weights: npt.ArrayLike | None = None,
    ) -> None:
        """Bring the parameters to their full shapes; refuse what defines no policy."""
        slope = self._matrix("weights", weights)
        q = slope.shape[1]
        width = self._vector(self.scale_name, scale, q)
        if not (width > 0).all():
            raise ValueError(f"{self._name}: {self.scale_name} must be positive, got {shown(width.tolist())}")
        log_slope = None if scale_weights is None else self._matrix("scale_weights", scale_weights)
        if log_slope is not None and log_slope.shape != slope.shape:
            found, expected = log_slope.shape, slope.shape
            raise ValueError(f"{self._name}: scale_weights has shape {found}, expected {expected} as weights")
        vars(self).update(weights=slope, bias=self._vector("bias", bias, q))
        vars(self).update(scale=width, scale_weights=log_slope)

    @property
    def state_dim(self) -> int:
        """Number p of state coordinates."""
        return self.weights.shape[0]

    @property
    def action_dim(self) -> int:
        """Number q of action coordinates."""
        return self.weights.shape[1]

    def location(self, state: Array) -> Array:
        """Location sᵀΘ + b, shape (n, q)."""
        return self._checked_state(state) @ self.weights + self.bias

    def scale_at(self, state: Array) -> Array:
        """Scale of the noise, scale·exp(sᵀΘ_σ), shape (n, q)."""
        state = self._checked_state(state)
        if self.scale_weights is None:
            return np.broadcast_to(self.scale, (len(state), self.action_dim))
        return self.scale * np.exp(state @ self.scale_weights)

    def to_dict(self) -> dict[str, Any]:
        """Family and parameters as plain numbers, for JSON; :func:`from_dict` is the inverse."""
        numbers = {k: None if v is None else v.tolist() for k, v in self._parameters().items()}
        return {"family": self.family, **numbers}

    def __eq__(self, other: object) -> bool:
        """Same family and same numbers."""
        return isinstance(other, LocationScale) and other.to_dict() == self.to_dict()

    def __repr__(self) -> str:
        """Constructor call."""
        given = (f"{k}={v.tolist()}" for k, v in self._parameters().items() if v is not None)
        return f"{self._name}({', '.join(given)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild through the constructor, so that a copy from another process is locked as well."""
        return type(self), tuple(self._parameters().values())

    def _parameters(self) -> dict[str, Array | None]:
        """Parameters by the names, and in the order, of the constructor."""
        return {
            "weights": self.weights,
            "bias": self.bias,
            self.scale_name: self.scale,
            "scale_weights": self.scale_weights,
        }

    def _matrix(self, name: str, given: npt.ArrayLike) -> Array:
        value = as_numbers(f"{self._name}: {name}", given, finite=False)
        value = value[:, None] if value.ndim == 1 else value
        if value.ndim != 2 or value.size == 0:
            raise ValueError(
                f"{self._name}: {name} has shape {value.shape}, expected (state_dim, action_dim), "
                "or (state_dim,) for a scalar action"
            )
        return self._locked(name, value)

    def _vector(self, name: str, given: npt.ArrayLike, q: int) -> Array:
        value = as_numbers(f"{self._name}: {name}", given, finite=False)
        if value.shape not in ((), (1,), (q,)):
            raise ValueError(f"{self._name}: {name} has shape {value.shape}, expected a number or ({q},)")
        return self._locked(name, np.broadcast_to(value, (q,)).copy())

    def _locked(self, name: str, value: Array) -> Array:
        if not np.isfinite(value).all():
            raise ValueError(f"{self._name}: {name} must be finite, got {shown(value.tolist())}")
        value.flags.writeable = False
        return value

    def _checked_state(self, state: Array) -> Array:
        state = np.asarray(state)
        if state.dtype.kind not in "biuf" or state.ndim != 2 or state.shape[1] != self.state_dim:
            raise ValueError(
                f"{self._name}: state has shape {state.shape}, expected (n, {self.state_dim}) "
                f"because weights has {self.state_dim} rows"
            )
        return state.astype(np.float64, copy=False)


class Gaussian(LocationScale):
    """Gaussian policy a ~ N(sᵀΘ + b, scale(s)²), scale(s) = scale·exp(sᵀΘ_σ).

    In the letters of ``tab:policy_params``: Θ = θ_μ, b = ε_μ, scale = exp(ε_σ), Θ_σ = θ_σ.
    The parameters are those of :class:`LocationScale`.

    Examples
    --------
    >>> import numpy as np
    >>> policy = Gaussian(weights=[1.0, -1.0], bias=0.5, scale=2.0)
    >>> actions, weights = policy.draws(np.array([[1.0, 1.0]]), 3)
    >>> round(float(weights @ actions[:, 0, 0] ** 2), 12)  # bias² + scale²
    4.25
    """

    family = "gaussian"
    noise = GaussianNoise()


class Uniform(LocationScale):
    """Uniform policy a ~ Unif(sᵀΘ + b ± half_width(s)), half_width(s) = half_width·exp(sᵀΘ_σ).

    In the letters of ``tab:policy_params``, where θ_L = θ_U: Θ = θ_L, b = (ε_L + ε_U)/2 and
    half_width = (ε_U − ε_L)/2. The parameters are those of :class:`LocationScale`.
    """

    family = "uniform"
    noise = UniformNoise()
    scale_name = "half_width"

    def __init__(
        self,
        weights: npt.ArrayLike,
        bias: npt.ArrayLike = 0.0,
        half_width: npt.ArrayLike = 1.0,
        scale_weights: npt.ArrayLike | None = None,
    ) -> None:
        """Take the half width as the scale of noise on (−1, 1)."""
        super().__init__(weights, bias, half_width, scale_weights)

    @property
    def half_width(self) -> Array:
        """Half the length of the interval at s = 0, shape (q,)."""
        return self.scale


class Logistic(LocationScale):
    """Logistic policy a = sᵀΘ + b + scale(s)·log(u/(1 − u)), scale(s) = scale·exp(sᵀΘ_σ).

    In the letters of ``tab:policy_params``: Θ = θ_ℓ, b = ε_ℓ, scale = exp(ε_sc), Θ_σ = θ_sc. The standard
    deviation is π/√3 times the scale. The parameters are those of :class:`LocationScale`.
    """

    family = "logistic"
    noise = LogisticNoise()


def from_dict(values: Mapping[str, Any]) -> LocationScale:
    """Policy from the numbers that ``to_dict`` gave.

    Examples
    --------
    >>> from_dict({"family": "uniform", "weights": [[0.5]], "bias": [0.0], "half_width": [2.0]})
    Uniform(weights=[[0.5]], bias=[0.0], half_width=[2.0])
    """
    families: dict[Any, type[LocationScale]] = {c.family: c for c in (Gaussian, Uniform, Logistic)}
    if not isinstance(values, Mapping):
        raise ValueError(f"a policy must be a dict of its family and parameters, got {shown(values)}")
    parameters = dict(values)
    if "family" not in parameters:
        found = shown(sorted(map(str, parameters)))
        raise ValueError(f"a policy needs a family, one of {', '.join(families)}; found {found}")
    family = parameters.pop("family")
    if not is_word(family, *families):
        raise ValueError(f"policy family {shown(family)} is not known; expected one of {', '.join(families)}")
    known = {"weights", "bias", families[family].scale_name, "scale_weights"}
    if "weights" not in parameters or not known.issuperset(parameters):
        raise ValueError(
            f"{family} policy: found parameters {sorted(parameters)}, expected weights and no others "
            f"than {sorted(known)}"
        )
    return families[family](**parameters)


class Function(Immutable):
    """Policy given by a sampler, for what the families do not cover.

    Parameters
    ----------
    sample : callable
        ``sample(state, rng)`` returns one action (n, q) for each row of ``state`` (n, p), with all its
        randomness from the :class:`numpy.random.Generator` ``rng``.
    log_density : callable, optional
        ``log_density(state, action)`` returns (n,) values.
    action_dim : int, optional
        Number q of action coordinates, if it is to be checked.

    Examples
    --------
    A policy of PyTorch, whose tensors are taken as they are, and one of d3rlpy, with noise of a tenth. The
    package imports neither of them::

        Function(lambda state, rng: actor(torch.as_tensor(state, dtype=torch.float32)))
        Function(lambda state, rng: algo.predict(state) + 0.1 * rng.standard_normal((len(state), 1)))
    """

    deterministic_draws: ClassVar[bool] = False

    action_dim: int | None
    _sample: Callable[[Array, Generator], Array]
    _log_density: Callable[[Array, Array], Array] | None

    def __init__(
        self,
        sample: Callable[[Array, Generator], Array],
        log_density: Callable[[Array, Array], Array] | None = None,
        action_dim: int | None = None,
    ) -> None:
        """Keep the callables; what they return is checked at each call."""
        if not callable(sample):
            raise ValueError(f"Function: sample must be callable as sample(state, rng), got {shown(sample)}")
        if log_density is not None and not callable(log_density):
            raise ValueError(
                "Function: log_density must be callable as log_density(state, action), "
                f"got {shown(log_density)}"
            )
        if action_dim is not None:
            check_count("Function: action_dim", action_dim)
        vars(self).update(_sample=sample, _log_density=log_density, action_dim=action_dim)

    @property
    def has_log_density(self) -> bool:
        """Whether a density was given."""
        return self._log_density is not None

    def draws(self, state: Array, n_draws: int, rng: Generator | None = None) -> tuple[Array, Array]:
        """``n_draws`` samples (n_draws, n, q) with equal weights; ``rng`` is required."""
        if rng is None:
            raise ValueError(
                "Function.draws: its actions are random, pass rng=numpy.random.default_rng(seed)"
            )
        if not isinstance(n_draws, Integral) or n_draws < 1:
            raise ValueError(f"the number of draws must be at least 1, got {shown(n_draws)}")
        return np.stack([self.sample(state, rng) for _ in range(n_draws)]), np.full(n_draws, 1.0 / n_draws)

    def sample(self, state: Array, rng: Generator) -> Array:
        """One random action (n, q) for each state, checked for shape and finiteness."""
        action = self._sample(state, rng)
        if hasattr(action, "detach"):  # a tensor that keeps its gradient, or is on another device
            action = action.detach().cpu().numpy()
        action = np.asarray(action)
        q = self.action_dim
        if action.dtype.kind not in "biuf":
            raise ValueError(
                f"Function: sample returned dtype {action.dtype}, expected real numbers of shape "
                f"({len(state)}, {q or 'q'}): one row per state"
            )
        if action.ndim != 2 or len(action) != len(state) or q not in (None, action.shape[1]):
            raise ValueError(
                f"Function: sample returned shape {action.shape}, expected ({len(state)}, {q or 'q'}): "
                "one row per state; for a scalar action return values[:, None]"
            )
        bad = ~np.isfinite(action.astype(np.float64)).all(axis=1)
        if bad.any():
            raise ValueError(
                f"Function: sample returned {int(bad.sum())} rows that are not finite, the first for state "
                f"{state[bad][0].tolist()}; expected finite actions: check the sampler there"
            )
        return action.astype(precision(state), copy=False)

    def log_density(self, state: Array, action: Array) -> Array:
        """Values (n,) of the given log density."""
        if self._log_density is None:
            raise ValueError("Function: no log_density was given; build Function(sample, log_density=...)")
        values = as_numbers("Function: log_density's result", self._log_density(state, action), finite=False)
        if values.shape != (len(state),) or np.isnan(values).any():
            raise ValueError(
                f"Function: log_density returned shape {values.shape} with {np.isnan(values).sum()} NaN, "
                f"expected shape ({len(state)},) and none: one number per state-action row"
            )
        return values

    def to_dict(self) -> dict[str, Any]:
        """Refuse: code is not numbers."""
        raise ValueError("Function: a sampler cannot be written as numbers; a parametric family can")

    def __eq__(self, other: object) -> bool:
        """Same callables and dimension."""
        return isinstance(other, Function) and vars(other) == vars(self)

    def __repr__(self) -> str:
        """Names of the callables."""
        given = [self._sample] if self._log_density is None else [self._sample, self._log_density]
        return f"Function({', '.join(getattr(f, '__qualname__', repr(f)) for f in given)})"
