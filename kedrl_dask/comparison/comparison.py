"""A comparison of policies as tables, made from its dataset."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd
import xarray as xr

from kedrl_dask.comparison import frames
from kedrl_dask.estimator.fitted import results
from kedrl_dask.estimator.fitted.findings import Finding
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.laws.recovery import Recovered


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Policies side by side; made by :func:`compare`.

    Attributes
    ----------
    dataset : xarray.Dataset
        Everything below with named dimensions, and attributes: versions, seed, fingerprint, settings,
        findings and what was accepted.
    findings : tuple of Finding
        What speaks against the results, by policy.
    accepted : tuple of str
        Codes of findings for which results were not to be refused.
    models, laws : dict
        The fits and the recovered laws of each policy.
    """

    dataset: xr.Dataset
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    models: dict[str, KEDRL]
    laws: dict[str, Recovered]

    @property
    def table(self) -> pd.DataFrame:
        """Summaries, one row for each policy, input, coordinate, summary and level.

        ``second`` is the value with ten times the ridge and half the bandwidth; ``sensitive``, ``residual``
        and ``not_converged`` are the flags of the law.
        """
        return frames.summaries(self.dataset)

    @property
    def differences(self) -> pd.DataFrame:
        """Summaries of ``minuend`` less those of ``subtrahend``, for each pair of policies."""
        return frames.differences(self.dataset)

    @property
    def dominance(self) -> pd.DataFrame:
        """First-order dominance of the recovered marginal laws.

        ``gain`` and ``loss`` are how far at most the distribution function of ``minuend`` is below and above
        that of ``subtrahend``; ``dominant`` is the policy whose function is nowhere above, by more than 0.01,
        and somewhere below, or "neither". ``share`` is the share of bootstrap replicates that say so: no
        test of dominance. It is dominance under the recovery's specification, of one coordinate by itself.
        """
        return frames.dominance(self.dataset)

    @property
    def distance(self) -> pd.DataFrame:
        """``mmd``: RKHS distance of the fitted embeddings, between joint laws, for each pair of policies."""
        return frames.distance(self.dataset)

    @property
    def overlap(self) -> pd.DataFrame:
        """Target actions beside logged ones, by policy and action; see ``numerics.policies.overlap``.

        ``ess`` is the effective sample size of the density ratio, NaN where there is none.
        """
        return frames.overlap(self.dataset)

    @property
    def support(self) -> pd.DataFrame:
        """Recovered mass in the lowest and the highest 5 % of the grid's range, and beyond it."""
        return frames.support(self.dataset)

    def to_zarr(self, path: str | Path) -> None:
        """Write :attr:`dataset` to a new path; ``xarray.open_zarr(path, consolidated=False)`` reads it."""
        results.write_zarr(self.dataset, path)

    def to_parquet(self, path: str | Path) -> None:
        """Write the tables to a new directory, a Parquet file for each; see :func:`frames.write_parquet`."""
        frames.write_parquet(self.dataset, path)

    def __repr__(self) -> str:
        """The table, and every finding below it."""
        lines = [self.table.to_string(index=False), *(str(finding) for finding in self.findings)]
        return "\n".join([*lines, *([f"accepted: {', '.join(self.accepted)}"] if self.accepted else [])])

    def _repr_html_(self) -> str:
        """The table, findings below it, for notebooks."""
        found = "".join(f"<li>{escape(str(finding))}</li>" for finding in self.findings)
        accepted = f"<p>accepted: {escape(', '.join(self.accepted))}</p>" if self.accepted else ""
        return self.table.to_html(index=False, max_rows=60, float_format="{:.4g}".format) + (
            f"<ul>{found}</ul>{accepted}"
        )
