"""Embeddings and laws of a fitted model, which are refused where they would mislead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

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
from kedrl_dask.numerics.policies import Policy
from kedrl_dask.utils.arrays import Matrix, Points, Weights

#: Actions over which a state's law is averaged: at most this many nodes, or random draws of a ``Function``.
N_DRAWS = 64


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


@dataclass(frozen=True, eq=False)
class FittedEmbedding(Embedding):
    """Fitted embeddings at n inputs; made by :meth:`KEDRL.embedding`.

    Their ``findings`` were accepted or only warn, and ``accepted`` has the codes of the former.
    """

    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    model: FittedModel = field(repr=False)

    def recover(self, **settings: Any) -> FittedLaw:
        """Laws near the embeddings; refused where the recovery did not converge, unless accepted."""
        law = super().recover(**settings)
        enforce(objections({"converged": law.converged, "gap": law.gap}), self.accepted)
        values = {part.name: getattr(law, part.name) for part in fields(law)}
        return FittedLaw(**values, fit_findings=self.findings, accepted=self.accepted)

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
    model: FittedModel, state: npt.ArrayLike, action: npt.ArrayLike | Policy, accept: Sequence[str] = ()
) -> FittedEmbedding:
    """See :meth:`kedrl_dask.KEDRL.embedding`."""
    if isinstance(action, Policy):
        coefficients: Weights = sections_at(model, state, action) @ model.coefficients
    else:
        coefficients = model.weights(model.inputs(state, action))
    # A bootstrap judges the fit, not each replicate: one bad replicate must not lose the others.
    accepted = tuple(CODES) if model.is_replicate else accept
    evidence = {**fit_evidence(model), "mass": coefficients.sum(axis=1)}
    found = enforce(objections(evidence), accepted)
    fixed = coefficients, model.grid, model.return_kernel, found, tuple(accepted), model
    return FittedEmbedding(*fixed, shift=shift_at(model, state))


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
