"""The interface of policies, and the part shared by those that add noise to a location.

Draws of a :class:`NoisyLocation`, a = location(s) + scale(s)·n, are fixed quadrature nodes: an average over
actions depends on the state alone, not on the chunk, the worker, or a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NoReturn, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from kedrl_dask.numerics.policies.noise import Noise
from kedrl_dask.utils.arrays import Actions, Array, Points, Record, Vector, Weights
from kedrl_dask.utils.checks import as_numbers, cut, shown


class PolicyError(ValueError):
    """A policy cannot be used, or failed at a state; the message names the policy, the rows and the fault."""


@runtime_checkable
class Policy(Protocol):
    """The interface that the estimator and the simulators use."""

    @property
    def action_dim(self) -> int | None:
        """Number q of action coordinates; None when only a draw can tell."""

    @property
    def deterministic_draws(self) -> bool:
        """Whether ``draws`` ignores its generator."""

    @property
    def has_log_density(self) -> bool:
        """Whether ``log_density`` can be called."""

    def draws(self, state: Points, n_draws: int, rng: Generator | None = None) -> tuple[Actions, Weights]:
        """Actions (k, n, q) and weights (k,) that sum to one, k ≤ n_draws: Σ_k w_k f(a_k) ≈ E[f(A) | s]."""

    def sample(self, state: Points, rng: Generator) -> Actions:
        """One random action (n, q) for each state."""

    def log_density(self, state: Points, action: Actions) -> Vector:
        """Logarithm (n,) of the density of each action given its state."""

    def to_dict(self) -> Record:
        """Plain numbers, for JSON."""


def precision(state: Points) -> np.dtype[np.floating]:
    """Precision of the actions: that of the states, but at least single."""
    return np.result_type(np.asarray(state).dtype, np.float32)


class Immutable:
    """Attributes are set once, by the constructor: results are cached under a policy's definition."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse."""
        raise AttributeError(f"{type(self).__name__} cannot be changed; build a new one with another {name}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _locked(self, name: str, given: npt.ArrayLike, shape: tuple[int, ...] | None = None) -> Vector:
        """A read-only copy of a parameter, finite and broadcast to its shape."""
        value = as_numbers(f"{self._name}: {name}", given, finite=False)
        if shape is not None:
            if value.shape not in ((), (1,), shape):
                q = shape[0]
                raise ValueError(f"{self._name}: {name} has shape {value.shape}, expected a number or ({q},)")
            value = np.broadcast_to(value, shape).copy()
        if not np.isfinite(value).all():
            raise ValueError(f"{self._name}: {name} must be finite, got {shown(value.tolist())}")
        value.flags.writeable = False
        return value

    def _positive(self, name: str, value: Vector) -> Vector:
        if not (value > 0).all():
            raise ValueError(f"{self._name}: {name} must be positive, got {shown(value.tolist())}")
        return value


class NoisyLocation(Immutable, ABC):
    """A location plus scaled noise of a known law, independent in each coordinate."""

    noise: Noise
    deterministic_draws: ClassVar[bool] = True
    has_log_density: ClassVar[bool] = True

    @property
    @abstractmethod
    def action_dim(self) -> int:
        """Number q of action coordinates."""

    @abstractmethod
    def location(self, state: Points) -> Actions:
        """Location of the noise; (n, q)."""

    @abstractmethod
    def scale_at(self, state: Points) -> Actions:
        """Scale of the noise; (n, q)."""

    def draws(self, state: Points, n_draws: int, rng: Generator | None = None) -> tuple[Actions, Weights]:
        """Quadrature nodes and weights for E[f(A) | s]; ``rng`` is not used.

        Actions (k, n, q) in the precision of ``state``, k ≤ ``n_draws``, and positive weights (k,) with sum
        one: a tensor Gauss rule if two or more nodes per action coordinate fit in ``n_draws``, Sobol points
        otherwise (see :meth:`kedrl_dask.numerics.policies.noise.Noise.nodes`).
        """
        nodes, weights = self.noise.nodes(n_draws, self.action_dim)
        dtype = precision(state)
        location = self.location(state).astype(dtype, copy=False)
        scale = self.scale_at(state).astype(dtype, copy=False)
        return location + scale * nodes.astype(dtype, copy=False)[:, None, :], weights

    def sample(self, state: Points, rng: Generator) -> Actions:
        """One random action (n, q) for each state."""
        location = self.location(state)
        noise = self.noise.sample(location.shape, rng)
        return (location + self.scale_at(state) * noise).astype(precision(state), copy=False)

    def log_density(self, state: Points, action: Actions) -> Vector:
        """Σ over coordinates of log f((a − location)/scale) − log scale; (n,)."""
        location, scale = self.location(state), self.scale_at(state)
        action = as_numbers(f"{self._name}.log_density: action", action, finite=False)
        if action.shape != location.shape:
            raise ValueError(
                f"{self._name}.log_density: action has shape {action.shape}, "
                f"expected {location.shape}: one row per state, one column per action coordinate"
            )
        return (self.noise.log_density((action - location) / scale) - np.log(scale)).sum(axis=1)


def checked_actions(source: str, given: Array, state: Points, action_dim: int | None) -> Actions:
    """The actions (…, n, q) that ``source`` returned; an error unless they are one finite row per state."""
    expected = f"({len(state)}, {action_dim or 'q'})"
    if given.dtype.kind not in "biuf":
        raise PolicyError(f"{source} returned dtype {given.dtype}, expected real numbers of shape {expected}")
    if given.ndim < 2 or given.shape[-2] != len(state) or action_dim not in (None, given.shape[-1]):
        raise PolicyError(
            f"{source} returned actions of shape {given.shape}, expected {expected}: one row per state; "
            "for a scalar action return values[:, None]"
        )
    # The extremes are NaN or infinite if any entry is, and finding them needs no array of flags.
    if given.size and not (np.isfinite(given.max()) and np.isfinite(given.min())):
        finite = np.isfinite(given).reshape(-1, *given.shape[-2:])
        bad = np.flatnonzero(~finite.all(axis=(0, 2)))
        raise PolicyError(
            f"{source} returned actions that are not finite for {len(bad):,} of {len(state):,} states, "
            f"the first for {shown(state[bad[0]].tolist())}; check the policy there"
        )
    return given


def checked_draws(
    policy: Policy, state: Points, n_draws: int, rng: Generator | None, action_dim: int, where: str
) -> tuple[Actions, Weights]:
    """``policy.draws``; an exception or anything but finite actions becomes a :class:`PolicyError`.

    ``action_dim`` is that of the data; ``where`` tells the reader of a message where the states come from.
    """
    source = f"policy {shown(policy)}, asked at {where},"
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # whatever they leave behind is found below
            actions, weights = map(np.asarray, policy.draws(state, n_draws, rng))
    except Exception as error:
        found = f"{type(error).__name__}: {cut(str(error))}"
        raise PolicyError(f"policy {shown(policy)} failed at {where} with {found}") from error
    checked_actions(source, actions, state, action_dim)
    if actions.ndim != 3 or weights.shape != actions.shape[:1]:
        raise PolicyError(
            f"{source} returned actions of shape {actions.shape} with weights of shape {weights.shape}, "
            f"expected (draws, {len(state)}, {action_dim}) and (draws,)"
        )
    if not (weights.dtype.kind in "biuf" and (weights >= 0).all() and abs(weights.sum() - 1) < 1e-6):
        raise PolicyError(f"{source} returned weights that are no probabilities")
    return actions, weights
