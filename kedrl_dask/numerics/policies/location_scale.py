"""Policies that add noise of known shape to a location: a = location(s) + scale(s)·n.

Their draws are fixed quadrature nodes, so that an average over actions depends on nothing but the state: not
on the chunk, the worker, or a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from kedrl_dask.numerics.policies.noise import GaussianNoise, LogisticNoise, Noise, UniformNoise
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.checks import as_numbers, check_count, check_word, shown

__all__ = ["Immutable", "NoisyLocation", "Regressor", "precision"]


NOISES: dict[str, Noise] = {
    "gaussian": GaussianNoise(),
    "uniform": UniformNoise(),
    "logistic": LogisticNoise(),
}


def precision(state: Array) -> np.dtype[Any]:
    """Precision of the actions: that of the states, at least single."""
    return np.result_type(np.asarray(state).dtype, np.float32)


class Immutable:
    """Attributes are set once, by the constructor: results are filed under a policy's definition."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse."""
        raise AttributeError(f"{type(self).__name__} cannot be changed; build a new one with another {name}")


class NoisyLocation(Immutable, ABC):
    """What follows from a location, a scale and the law of the noise, independent in each coordinate."""

    noise: Noise
    deterministic_draws: ClassVar[bool] = True
    has_log_density: ClassVar[bool] = True

    @property
    @abstractmethod
    def action_dim(self) -> int:
        """Number q of action coordinates."""

    @abstractmethod
    def location(self, state: Array) -> Array:
        """Location of the noise, shape (n, q)."""

    @abstractmethod
    def scale_at(self, state: Array) -> Array:
        """Scale of the noise, shape (n, q)."""

    def draws(self, state: Array, n_draws: int, rng: Generator | None = None) -> tuple[Array, Array]:
        """Quadrature nodes and weights for E[f(A) | s]; ``rng`` is not used.

        A tensor Gauss rule where two or more nodes per action coordinate fit in ``n_draws``, Sobol points
        where they do not: see :meth:`kedrl_dask.numerics.policies.noise.Noise.nodes`.

        Returns
        -------
        actions : (k, n, q) array
            In the precision of ``state``; k ≤ ``n_draws``.
        weights : (k,) array
            Positive, sum to one.
        """
        nodes, weights = self.noise.nodes(n_draws, self.action_dim)
        dtype = precision(state)
        location = self.location(state).astype(dtype, copy=False)
        scale = self.scale_at(state).astype(dtype, copy=False)
        return location + scale * nodes.astype(dtype, copy=False)[:, None, :], weights

    def sample(self, state: Array, rng: Generator) -> Array:
        """One random action (n, q) for each state."""
        location = self.location(state)
        noise = self.noise.sample(location.shape, rng)
        return (location + self.scale_at(state) * noise).astype(precision(state), copy=False)

    def log_density(self, state: Array, action: Array) -> Array:
        """Σ over coordinates of log f((a − location)/scale) − log scale, shape (n,)."""
        location, scale = self.location(state), self.scale_at(state)
        action = as_numbers(f"{self._name}.log_density: action", action, finite=False)
        if action.shape != location.shape:
            raise ValueError(
                f"{self._name}.log_density: action has shape {action.shape}, "
                f"expected {location.shape}: one row per state, one column per action coordinate"
            )
        return (self.noise.log_density((action - location) / scale) - np.log(scale)).sum(axis=1)

    @property
    def _name(self) -> str:
        return type(self).__name__


class Regressor(NoisyLocation):
    """Policy a = estimator.predict(s) + scale·n, with a fitted scikit-learn regressor, or anything like it.

    It travels to worker processes pickled, as the estimator does, and is no part of a saved model.

    Parameters
    ----------
    estimator : object
        Fitted; ``predict`` takes states (n, p) and returns actions (n, q), or (n,) for a scalar action.
    scale : float or (q,) array
        Factor of the noise, positive, for instance the standard deviation of the residuals.
    noise : {"gaussian", "uniform", "logistic"}
        Law of n: N(0, 1), Unif(−1, 1), or the standard logistic law.
    action_dim : int
        Number q of action coordinates; unless given, that of ``scale``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LinearRegression
    >>> state = np.array([[0.0], [1.0], [2.0]])
    >>> policy = Regressor(LinearRegression().fit(state, 2 * state[:, 0]), scale=0.5)
    >>> policy.draws(np.array([[3.0]]), 1)[0].round(6).tolist()
    [[[6.0]]]
    """

    estimator: Any
    scale: Array
    kind: str

    def __init__(
        self, estimator: Any, scale: npt.ArrayLike, noise: str = "gaussian", action_dim: int | None = None
    ) -> None:
        """Keep the estimator; what it predicts is checked at each call."""
        if isinstance(estimator, type) or not callable(getattr(estimator, "predict", None)):
            raise ValueError(f"Regressor: estimator must have predict(state), got {shown(estimator)}")
        check_word("Regressor: noise", noise, tuple(NOISES))
        width = np.atleast_1d(as_numbers("Regressor: scale", scale))
        if action_dim is not None:
            check_count("Regressor: action_dim", action_dim)
            if width.shape not in ((1,), (action_dim,)):
                raise ValueError(f"Regressor: scale has shape {width.shape}, expected ({action_dim},)")
            width = np.broadcast_to(width, (action_dim,)).copy()
        if width.ndim != 1 or not (width > 0).all():
            raise ValueError(f"Regressor: scale must be positive, got {shown(width.tolist())}")
        width.flags.writeable = False
        vars(self).update(estimator=estimator, scale=width, kind=noise, noise=NOISES[noise])

    @property
    def action_dim(self) -> int:
        """Number q of action coordinates."""
        return self.scale.size

    def location(self, state: Array) -> Array:
        """What the estimator predicts, shape (n, q), checked."""
        state = as_numbers("Regressor: state", state)
        given = as_numbers("Regressor: the estimator's prediction", self.estimator.predict(state))
        action = given[:, None] if given.ndim == 1 else given
        if action.shape != (len(state), self.action_dim):
            raise ValueError(
                f"Regressor: the estimator predicts shape {given.shape}, expected ({len(state)}, "
                f"{self.action_dim}): one row per state, one column for each scale; give action_dim"
            )
        return action

    def scale_at(self, state: Array) -> Array:
        """Scale of the noise, the same everywhere, shape (n, q)."""
        return np.broadcast_to(self.scale, (len(state), self.action_dim))

    def to_dict(self) -> dict[str, Any]:
        """Refuse: an estimator is code."""
        raise ValueError("Regressor: an estimator cannot be written as numbers; a parametric family can")

    def __eq__(self, other: object) -> bool:
        """Same estimator, scale and noise."""
        if not isinstance(other, Regressor) or other.estimator is not self.estimator:
            return False
        return other.kind == self.kind and np.array_equal(other.scale, self.scale)

    def __repr__(self) -> str:
        """Constructor call, with the name of the estimator."""
        estimator = type(self.estimator).__name__
        return f"Regressor({estimator}, scale={self.scale.tolist()}, noise={self.kind!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild through the constructor, so that a copy from another process is locked as well."""
        return type(self), (self.estimator, self.scale, self.kind)
