"""Embeddings and laws of a fitted model, which are refused where they would mislead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xarray as xr

from kedrl_dask.estimator.fitted import results
from kedrl_dask.estimator.fitted.findings import (
    CODES,
    Finding,
    enforce,
    fit_evidence,
    law_evidence,
    objections,
)
from kedrl_dask.estimator.fitted.inputs import as_stored, checked_columns
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.numerics.laws.functionals import Embedding
from kedrl_dask.numerics.laws.recovery import Recovered
from kedrl_dask.numerics.laws.summaries import LEVELS, TAIL
from kedrl_dask.numerics.laws.tilting import EQUAL, Tilted, tilt
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.numerics.simulation.simulator import N_RETURNS
from kedrl_dask.utils.arrays import Matrix, Points, Vector, Weights
from kedrl_dask.utils.checks import check_count, check_word

#: Actions over which a state's law is averaged: at most this many nodes, or random draws of a ``Function``.
N_DRAWS = 64

RecoveryMethod = Literal["auto", "simulated", "grid"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedLaw(Recovered):
    """Laws recovered from a fit, with findings against it at these inputs and the codes that were accepted.

    Summaries are those of :class:`kedrl_dask.numerics.laws.mixture.Mixture`.
    """

    fit_findings: tuple[Finding, ...]
    accepted: tuple[str, ...]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings against the laws, which compute :attr:`sensitivity`."""
        return (*self.fit_findings, *objections(law_evidence(self)))

    def __repr__(self) -> str:
        """The laws in a line, and every finding below it."""
        lines = [super().__repr__(), *(str(finding) for finding in self.findings)]
        return "\n".join([*lines, *([f"accepted: {', '.join(self.accepted)}"] if self.accepted else [])])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SimulatedLaw(FittedLaw, Tilted):
    """Laws on simulated returns of a fit, tilted towards its embedding; see :class:`FittedLaw`."""


class Origin(NamedTuple):
    """The inputs of embeddings, as they are stored: states (n, p), and actions (n, q) or a policy.

    ``weights`` (n,) are those of an average over the inputs; None where each has an embedding of its own.
    """

    state: Points
    action: Points | Policy
    weights: Vector | None = None


@dataclass(frozen=True, eq=False)
class FittedEmbedding(Embedding):
    """Fitted embeddings at n inputs; made by :meth:`KEDRL.embedding`.

    Their ``findings`` were accepted or only warn, and ``accepted`` has the codes of the former.
    """

    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    model: FittedModel = field(repr=False)
    origin: Origin = field(repr=False)

    def average(self, weights: npt.ArrayLike | None = None) -> Self:
        """The embedding of the mixture of the laws; see :meth:`Embedding.average`."""
        if self.origin.weights is not None:
            return super().average(weights)  # of one embedding: itself
        shares = np.ones(len(self.coefficients)) if weights is None else np.asarray(weights, dtype=np.float64)
        return replace(super().average(weights), origin=self.origin._replace(weights=shares))

    def recover(self, method: RecoveryMethod = "auto", **settings: Any) -> FittedLaw:
        """Laws near the embeddings; refused where the recovery did not converge, unless accepted.

        Parameters
        ----------
        method : {"auto", "simulated", "grid"}
            "simulated" weights simulated returns so that their law has nearly the fitted embedding; "grid"
            inverts the embedding on the atoms of the return grid. "auto" takes the first if the model can
            simulate, and no settings of the second are given.
        **settings
            Of :class:`kedrl_dask.numerics.laws.recovery.RecoverySettings`; "simulated" has ``divergence``,
            the penalty λ_KL on departures from the simulation, which the fit has chosen, and ``n_returns``.
        """
        check_word("recover: method", method, ("auto", "simulated", "grid"))
        is_simulated = simulates(self.model, method, settings)
        law = self._simulated(**settings) if is_simulated else super().recover(**settings)
        enforce(objections({"converged": law.converged, "gap": law.gap}), self.accepted)
        values = {part.name: getattr(law, part.name) for part in fields(law)}
        kind = SimulatedLaw if isinstance(law, Tilted) else FittedLaw
        return kind(**values, fit_findings=self.findings, accepted=self.accepted)

    def _simulated(self, divergence: float | None = None, n_returns: int | None = None) -> Tilted:
        simulate, (state, action, weights) = self.model.simulator, self.origin
        if simulate is None:
            raise ValueError(
                "recover: method='simulated' needs a model that simulates returns: fit with centring='auto', "
                "and give KEDRL.load its policy if that is code"
            )
        if divergence is None:
            divergence = self.model.diagnostics["simulation"]["divergence"]
        is_equal = divergence >= EQUAL * self.kernel.sigma**2
        if n_returns is None:
            is_fast = is_equal and not self.model.is_replicate
            n_returns = simulate.most_returns if is_fast else N_RETURNS
        check_count("recover: n_returns", n_returns, least=2)
        if weights is None:
            particles = simulate(state, action, n_returns)
        else:
            particles = simulate.averaged(state, action, weights, n_returns)[None]
        return tilt(particles, self.coefficients, self.grid, self.kernel, divergence, self.shift)

    def dataset(
        self, label: str = "policy", levels: Sequence[float] = LEVELS, tail: float = TAIL, **settings: Any
    ) -> xr.Dataset:
        """The recovered laws with summaries, findings and overrides; ``results.write_zarr`` writes it.

        ``label`` names the policy in the dimension ``policy``, ``levels`` are those of the quantiles, and
        ``tail`` is the share of the tail mean; the other settings are those of the recovery.
        """
        law = self.recover(**settings)
        attributes = results.provenance({label: self.model}) | results.verdict(law.findings, self.accepted)
        return results.law_dataset({label: law}, levels, tail).assign_attrs(attributes)


def fitted_embedding(
    model: FittedModel,
    state: npt.ArrayLike,
    action: npt.ArrayLike | Policy,
    accept: Sequence[str] = (),
    for_simulated: bool = False,
) -> FittedEmbedding:
    """See :meth:`kedrl_dask.KEDRL.embedding`; ``for_simulated`` laws need not rely on its accuracy."""
    if isinstance(action, Policy):
        coefficients: Weights = sections_at(model, state, action) @ model.coefficients
    else:
        coefficients = model.weights(model.inputs(state, action))
    # A bootstrap judges the fit, not each replicate: one bad replicate must not lose the others.
    accepted = tuple(CODES) if model.is_replicate else accept
    evidence = {**fit_evidence(model), "is_simulated": for_simulated, "mass": coefficients.sum(axis=1)}
    found = enforce(objections(evidence), accepted)
    origin = Origin(*stored_inputs(model, state, action))
    fixed = coefficients, model.grid, model.return_kernel, found, tuple(accepted), model, origin
    return FittedEmbedding(*fixed, shift=shift_at(model, state))


def fitted_law(
    model: FittedModel,
    state: npt.ArrayLike,
    action: npt.ArrayLike | Policy,
    accept: Sequence[str],
    method: RecoveryMethod,
    settings: Mapping[str, Any],
) -> FittedLaw:
    """See :meth:`kedrl_dask.KEDRL.recover`."""
    embedding = fitted_embedding(model, state, action, accept, simulates(model, method, settings))
    return embedding.recover(method, **settings)


def simulates(model: FittedModel, method: RecoveryMethod, settings: Mapping[str, object]) -> bool:
    """Whether a method with these settings weights simulated returns."""
    if method == "auto":
        return model.simulator is not None and settings.keys() <= {"divergence", "n_returns"}
    return method == "simulated"


def stored_inputs(
    model: FittedModel, state: npt.ArrayLike, action: npt.ArrayLike | Policy
) -> tuple[Points, Points | Policy]:
    """States and actions, or a policy, as the store of the fit has them."""
    sizes = model.diagnostics["sizes"]
    states = checked_columns("state", as_stored(model.encoding, "state", state), sizes["state_dim"])
    if isinstance(action, Policy):
        return states, action
    return states, np.hsplit(model.inputs(state, action), [sizes["state_dim"]])[1]


def shift_at(model: FittedModel, state: npt.ArrayLike) -> Points | None:
    """Ψ at states, by which the grid's atoms are those of the return there; None without a potential."""
    if model.potential is None:
        return None
    stored = as_stored(model.encoding, "state", state)
    return model.shift(checked_columns("state", stored, model.diagnostics["sizes"]["state_dim"]))


def sections_at(model: FittedModel, state: npt.ArrayLike, action: npt.ArrayLike | Policy) -> Matrix:
    """k_L(x) at inputs, or at states, averaged over a policy's actions there; (n, L)."""
    if not isinstance(action, Policy):
        return model.sections(model.inputs(state, action))
    state = as_stored(model.encoding, "state", state)
    state = checked_columns("state", state, model.diagnostics["sizes"]["state_dim"])
    rng = np.random.default_rng([model.settings.random_state, 15])
    actions, weights = action.draws(state, N_DRAWS, rng)
    total = np.zeros((len(state), len(model.basis)))
    for weight, drawn in zip(weights, actions, strict=True):
        total += weight * model.sections(model.inputs(state, drawn))
    return total
