"""Policies that are given by code: any sampler, or the prediction of any regressor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from kedrl_dask.numerics.policies.base import Immutable, NoisyLocation, checked_actions, precision
from kedrl_dask.numerics.policies.noise import GaussianNoise, LogisticNoise, Noise, UniformNoise
from kedrl_dask.utils.arrays import Actions, Points, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, check_count, check_word, shown

NOISES: dict[str, Noise] = {
    "gaussian": GaussianNoise(),
    "uniform": UniformNoise(),
    "logistic": LogisticNoise(),
}

Sampler = Callable[[Points, Generator], npt.ArrayLike]
LogDensity = Callable[[Points, Actions], npt.ArrayLike]


class Code(Immutable):
    """A policy that no JSON can hold."""

    def to_dict(self) -> NoReturn:
        """Refuse: code is not numbers."""
        raise ValueError(f"{self._name}: code cannot be written as numbers; a parametric family can")


class Function(Code):
    """Policy given by a sampler, for whatever the families do not cover.

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
    >>> policy = Function(lambda state, rng: state[:, :1] ** 2 + rng.normal(size=(len(state), 1)))
    >>> policy.sample(np.array([[1.0], [3.0]]), np.random.default_rng(0)).round(3).tolist()
    [[1.126], [8.868]]

    A policy of PyTorch, whose tensors are accepted as they are, and one of d3rlpy, with noise of a tenth. The
    package imports neither of them::

        Function(lambda state, rng: actor(torch.as_tensor(state, dtype=torch.float32)))
        Function(lambda state, rng: algo.predict(state) + 0.1 * rng.standard_normal((len(state), 1)))
    """

    deterministic_draws: ClassVar[bool] = False

    action_dim: int | None
    _sample: Sampler
    _log_density: LogDensity | None

    def __init__(
        self, sample: Sampler, log_density: LogDensity | None = None, action_dim: int | None = None
    ) -> None:
        """Keep the callables; whatever they return is checked at each call."""
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

    def draws(self, state: Points, n_draws: int, rng: Generator | None = None) -> tuple[Actions, Weights]:
        """``n_draws`` samples (n_draws, n, q) with equal weights; ``rng`` is required."""
        if rng is None:
            raise ValueError(
                "Function.draws: its actions are random, pass rng=numpy.random.default_rng(seed)"
            )
        check_count("the number of draws", n_draws)
        return np.stack([self.sample(state, rng) for _ in range(n_draws)]), np.full(n_draws, 1.0 / n_draws)

    def sample(self, state: Points, rng: Generator) -> Actions:
        """One random action (n, q) for each state, checked for shape and finiteness."""
        given = self._sample(state, rng)
        if hasattr(given, "detach"):  # a tensor that keeps its gradient, or is on another device
            given = given.detach().cpu().numpy()
        action = checked_actions("Function: sample", np.asarray(given), state, self.action_dim)
        return action.astype(precision(state), copy=False)

    def log_density(self, state: Points, action: Actions) -> Vector:
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

    def __eq__(self, other: object) -> bool:
        """Same callables and dimension."""
        return isinstance(other, Function) and vars(other) == vars(self)

    def __repr__(self) -> str:
        """Names of the callables."""
        given = [self._sample] if self._log_density is None else [self._sample, self._log_density]
        return f"Function({', '.join(getattr(f, '__qualname__', repr(f)) for f in given)})"


class Predictor(Protocol):
    """A fitted regressor, of scikit-learn or like it."""

    def predict(self, state: Points) -> npt.ArrayLike:
        """Predict the action of each state."""


class Regressor(Code, NoisyLocation):
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
        Number q of action coordinates; by default that of ``scale``.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> state = np.array([[0.0], [1.0], [2.0]])
    >>> policy = Regressor(LinearRegression().fit(state, 2 * state[:, 0]), scale=0.5)
    >>> policy.draws(np.array([[3.0]]), 1)[0].round(6).tolist()
    [[[6.0]]]
    """

    estimator: Predictor
    scale: Vector
    kind: str

    def __init__(
        self,
        estimator: Predictor,
        scale: npt.ArrayLike,
        noise: str = "gaussian",
        action_dim: int | None = None,
    ) -> None:
        """Keep the estimator; its predictions are checked at each call."""
        if isinstance(estimator, type) or not callable(getattr(estimator, "predict", None)):
            raise ValueError(f"Regressor: estimator must have predict(state), got {shown(estimator)}")
        check_word("Regressor: noise", noise, tuple(NOISES))
        if action_dim is None:
            action_dim = np.size(as_numbers("Regressor: scale", scale))
        check_count("Regressor: action_dim", action_dim)
        width = self._positive("scale", self._locked("scale", scale, (action_dim,)))
        vars(self).update(estimator=estimator, scale=width, kind=noise, noise=NOISES[noise])

    @property
    def action_dim(self) -> int:
        """Number q of action coordinates."""
        return self.scale.size

    def location(self, state: Points) -> Actions:
        """The estimator's prediction, checked; (n, q)."""
        state = as_numbers("Regressor: state", state)
        given = as_numbers("Regressor: the estimator's prediction", self.estimator.predict(state))
        action = given[:, None] if given.ndim == 1 else given
        if action.shape != (len(state), self.action_dim):
            raise ValueError(
                f"Regressor: the estimator predicts shape {given.shape}, expected ({len(state)}, "
                f"{self.action_dim}): one row per state, one column for each scale; give action_dim"
            )
        return action

    def scale_at(self, state: Points) -> Actions:
        """Scale of the noise, the same everywhere; (n, q)."""
        return np.broadcast_to(self.scale, (len(state), self.action_dim))

    def __eq__(self, other: object) -> bool:
        """Same estimator, scale and noise."""
        if not isinstance(other, Regressor) or other.estimator is not self.estimator:
            return False
        return other.kind == self.kind and np.array_equal(other.scale, self.scale)

    def __repr__(self) -> str:
        """Constructor call, with the name of the estimator."""
        estimator = type(self.estimator).__name__
        return f"Regressor({estimator}, scale={self.scale.tolist()}, noise={self.kind!r})"

    def __reduce__(self) -> tuple[type[Regressor], tuple[object, ...]]:
        """Rebuild through the constructor, so that a copy in another process is read-only as well."""
        return type(self), (self.estimator, self.scale, self.kind)
