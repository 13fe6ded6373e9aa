"""The parametric families, all location-scale: a = sᵀΘ + b + scale(s)·n.

The standard noise n is independent in each action coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kedrl_dask.numerics.policies.base import NoisyLocation
from kedrl_dask.numerics.policies.noise import GaussianNoise, LogisticNoise, UniformNoise
from kedrl_dask.utils.arrays import Actions, Matrix, Points, Record, Vector
from kedrl_dask.utils.checks import is_word, shown


class LocationScale(NoisyLocation):
    """Base class of the parametric families: a = sᵀΘ + b + scale(s)·n, scale(s) = scale·exp(sᵀΘ_σ).

    A family declares the law of its standard noise n and the name of its scale.

    Parameters
    ----------
    weights : (p, q) or (p,) array
        Slope Θ of the location; a vector means one action coordinate.
    bias : float or (q,) array
        Offset b of the location.
    scale : float or (q,) array
        Factor of the noise at s = 0, positive. :class:`Uniform` calls it ``half_width``.
    scale_weights : (p, q) or (p,) array, optional
        Slope Θ_σ of the log scale; None means a constant scale.
    """

    family: ClassVar[str]
    scale_name: ClassVar[str] = "scale"

    weights: Matrix
    bias: Vector
    scale: Vector
    scale_weights: Matrix | None

    def __init__(
        self, weights: npt.ArrayLike, bias: npt.ArrayLike = 0.0, scale: npt.ArrayLike = 1.0,
        scale_weights: npt.ArrayLike | None = None,
    ) -> None:  # fmt: skip
        """Bring the parameters to their full shapes."""
        slope = self._matrix("weights", weights)
        q = slope.shape[1]
        width = self._positive(self.scale_name, self._vector(self.scale_name, scale, q))
        log_slope = None if scale_weights is None else self._matrix("scale_weights", scale_weights)
        if log_slope is not None and log_slope.shape != slope.shape:
            found, expected = log_slope.shape, slope.shape
            raise ValueError(f"{self._name}: scale_weights has shape {found}, expected {expected} as weights")
        bias = self._vector("bias", bias, q)
        vars(self).update(weights=slope, bias=bias, scale=width, scale_weights=log_slope)

    @property
    def state_dim(self) -> int:
        """Number p of state coordinates."""
        return self.weights.shape[0]

    @property
    def action_dim(self) -> int:
        """Number q of action coordinates."""
        return self.weights.shape[1]

    def location(self, state: Points) -> Actions:
        """Location sᵀΘ + b; (n, q)."""
        return self._checked_state(state) @ self.weights + self.bias

    def scale_at(self, state: Points) -> Actions:
        """Scale of the noise, scale·exp(sᵀΘ_σ); (n, q)."""
        state = self._checked_state(state)
        if self.scale_weights is None:
            return np.broadcast_to(self.scale, (len(state), self.action_dim))
        return self.scale * np.exp(state @ self.scale_weights)

    def to_dict(self) -> Record:
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

    def __reduce__(self) -> tuple[type[LocationScale], tuple[object, ...]]:
        """Rebuild through the constructor, so that a copy in another process is read-only as well."""
        return type(self), tuple(self._parameters().values())

    def _parameters(self) -> dict[str, Vector | None]:
        """Parameters by the names, and in the order, of the constructor."""
        names = ("weights", "bias", self.scale_name, "scale_weights")
        return {name: getattr(self, name) for name in names}

    def _matrix(self, name: str, given: npt.ArrayLike) -> Matrix:
        value = self._locked(name, given)
        value = value[:, None] if value.ndim == 1 else value
        if value.ndim != 2 or value.size == 0:
            raise ValueError(
                f"{self._name}: {name} has shape {value.shape}, expected (state_dim, action_dim), "
                "or (state_dim,) for a scalar action"
            )
        return value

    def _vector(self, name: str, given: npt.ArrayLike, q: int) -> Vector:
        return self._locked(name, given, (q,))

    def _checked_state(self, state: Points) -> Points:
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
    >>> policy = Gaussian(weights=[1.0, -1.0], bias=0.5, scale=2.0)
    >>> actions, weights = policy.draws(np.array([[1.0, 1.0]]), 3)
    >>> round(float(weights @ actions[:, 0, 0] ** 2), 12)  # bias² + scale²
    4.25
    >>> Gaussian([0.5], scale=2.0).to_dict()
    {'family': 'gaussian', 'weights': [[0.5]], 'bias': [0.0], 'scale': [2.0], 'scale_weights': None}
    """

    family = "gaussian"
    noise = GaussianNoise()


class Uniform(LocationScale):
    """Uniform policy a ~ Unif(sᵀΘ + b ± half_width(s)), half_width(s) = half_width·exp(sᵀΘ_σ).

    In the letters of ``tab:policy_params``, where θ_L = θ_U: Θ = θ_L, b = (ε_L + ε_U)/2 and
    half_width = (ε_U − ε_L)/2. The parameters are those of :class:`LocationScale`.

    Examples
    --------
    >>> policy = Uniform([0.0], bias=1.0, half_width=2.0)
    >>> policy.log_density(np.zeros((2, 1)), np.array([[2.5], [3.5]])).round(4).tolist()
    [-1.3863, -inf]
    """

    family = "uniform"
    noise = UniformNoise()
    scale_name = "half_width"

    def __init__(
        self, weights: npt.ArrayLike, bias: npt.ArrayLike = 0.0, half_width: npt.ArrayLike = 1.0,
        scale_weights: npt.ArrayLike | None = None,
    ) -> None:  # fmt: skip
        """Use the half width as the scale of noise on (−1, 1)."""
        super().__init__(weights, bias, half_width, scale_weights)

    @property
    def half_width(self) -> Vector:
        """Half the length of the interval at s = 0, shape (q,)."""
        return self.scale


class Logistic(LocationScale):
    """Logistic policy a = sᵀΘ + b + scale(s)·log(u/(1 − u)), scale(s) = scale·exp(sᵀΘ_σ).

    In the letters of ``tab:policy_params``: Θ = θ_ℓ, b = ε_ℓ, scale = exp(ε_sc), Θ_σ = θ_sc. The standard
    deviation is π/√3 times the scale. The parameters are those of :class:`LocationScale`.

    Examples
    --------
    >>> policy = Logistic([1.0], scale=0.5)
    >>> policy.sample(np.array([[0.0], [1.0]]), np.random.default_rng(0)).round(3).tolist()
    [[0.281], [0.502]]
    """

    family = "logistic"
    noise = LogisticNoise()


def from_dict(values: Mapping[str, object]) -> LocationScale:
    """Build a policy from the numbers of ``to_dict``.

    Examples
    --------
    >>> from_dict({"family": "uniform", "weights": [[0.5]], "bias": [0.0], "half_width": [2.0]})
    Uniform(weights=[[0.5]], bias=[0.0], half_width=[2.0])
    """
    families: dict[str, type[LocationScale]] = {c.family: c for c in (Gaussian, Uniform, Logistic)}
    if not isinstance(values, Mapping):
        raise ValueError(f"a policy must be a dict of its family and parameters, got {shown(values)}")
    parameters: Record = dict(values)
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
