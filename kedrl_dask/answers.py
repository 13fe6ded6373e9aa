"""Embeddings of a fitted model, that answer questions unless the fit would mislead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from kedrl_dask import evaluation, results
from kedrl_dask.functionals import Embedding
from kedrl_dask.gate import Finding, enforce, law_findings, mass_findings, model_findings
from kedrl_dask.policies import Policy
from kedrl_dask.recovery import Recovered

if TYPE_CHECKING:
    from kedrl_dask.model import KEDRL

__all__ = ["FittedEmbedding", "coefficients_at", "fitted_embedding"]

Array = npt.NDArray[Any]

#: Actions over which the law of a state is averaged: at most so many nodes, or random ones of a ``Function``.
N_DRAWS = 64


@dataclass(frozen=True, eq=False)
class FittedEmbedding(Embedding):
    """Fitted embeddings at n inputs, with what speaks against them; made by :meth:`KEDRL.embedding`.

    Attributes
    ----------
    findings : tuple of Finding
        What the gate found, whether it was accepted or only a warning.
    accepted : tuple of str
        Codes of findings for which answers were not to be refused.
    model : KEDRL
        The fit.
    """

    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    model: KEDRL = field(repr=False)

    def recover(self, **settings: Any) -> Recovered:
        """Laws near the embeddings; refused where the recovery did not converge, unless accepted."""
        law = super().recover(**settings)
        enforce(law_findings(law), self.accepted)
        return law

    def dataset(
        self,
        label: str = "policy",
        levels: Sequence[float] = results.LEVELS,
        tail: float = results.TAIL,
        **settings: Any,
    ) -> xr.Dataset:
        """The recovered laws with summaries, findings and overrides; ``results.write_zarr`` writes it.

        Parameters
        ----------
        label : str
            The policy's name in the dimension ``policy``.
        levels, tail
            As in :func:`kedrl_dask.results.law_dataset`.
        **settings
            Of the recovery.
        """
        law = self.recover(**settings)
        found = (*self.findings, *law_findings(law))
        attributes = results.provenance(self.model) | results.verdict(found, self.accepted)
        return results.law_dataset({label: law}, levels, tail).assign_attrs(attributes)


def fitted_embedding(
    model: KEDRL, state: npt.ArrayLike, action: npt.ArrayLike | Policy, accept: Sequence[str] = ()
) -> FittedEmbedding:
    """See :meth:`kedrl_dask.KEDRL.embedding`."""
    coefficients = coefficients_at(model, state, action)
    found = enforce([*model_findings(model), *mass_findings(coefficients)], accept)
    return FittedEmbedding(coefficients, model.grid_, model.return_kernel_, found, tuple(accept), model)


def coefficients_at(model: KEDRL, state: npt.ArrayLike, action: npt.ArrayLike | Policy) -> Array:
    """Signed coefficients at inputs, or at states, averaged over a policy's actions there; (n, m)."""
    if not isinstance(action, Policy):
        return evaluation.weights(model, evaluation.checked_inputs(model, state, action))
    state = evaluation.checked_columns("state", state, model.diagnostics_["sizes"]["state_dim"])
    actions, weights = action.draws(state, N_DRAWS, np.random.default_rng([model.random_state, 15]))
    total = np.zeros((len(state), len(model.grid_)))
    for weight, drawn in zip(weights, actions, strict=True):
        total += weight * evaluation.weights(model, evaluation.checked_inputs(model, state, drawn))
    return total
