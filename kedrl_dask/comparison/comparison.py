"""A comparison of policies as tables derived from its dataset."""

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
    """The result of :func:`compare`, whose example the examples below continue.

    Attributes
    ----------
    dataset : xarray.Dataset
        All tables below with named dimensions. Its attributes hold the versions, seed, fingerprint,
        settings, findings and accepted codes.
    findings : tuple of Finding
        Objections to the results, by policy.
    accepted : tuple of str
        Codes of the findings accepted in advance, which do not lead to refusal.
    models, laws : dict
        The fitted model and the recovered laws of each policy.
    """

    dataset: xr.Dataset
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    models: dict[str, KEDRL]
    laws: dict[str, Recovered]

    @property
    def table(self) -> pd.DataFrame:
        """Summaries, one row for each policy, input, coordinate, summary and level.

        ``second`` is the value under the laws' second specification; ``sensitive``, ``residual``
        and ``not_converged`` are the flags of the law.

        >>> comparison.table.query("summary == 'mean'")[["policy", "value"]].round(1).to_numpy().tolist()
        [['low', -1.0], ['high', 0.9]]
        """
        return frames.summaries(self.dataset)

    @property
    def differences(self) -> pd.DataFrame:
        """Differences between the summaries of ``minuend`` and ``subtrahend``, for each pair of policies.

        >>> comparison.differences.query("summary == 'mean'")[["minuend", "subtrahend", "value"]].round(1)
          minuend subtrahend  value
        0    high        low    1.9
        """
        return frames.differences(self.dataset)

    @property
    def dominance(self) -> pd.DataFrame:
        """First-order dominance of the recovered marginal laws.

        ``gain`` and ``loss`` are the largest distances by which the distribution function of ``minuend`` lies
        below and above that of ``subtrahend``. ``dominant`` is the policy whose function is somewhere lower
        and nowhere higher, by more than 0.01, or "neither". ``share`` is the share of bootstrap replicates
        that agree; it is not a test of dominance. Each coordinate is judged separately, under the
        recovery's specification.

        >>> comparison.dominance[["minuend", "subtrahend", "dominant"]]
          minuend subtrahend dominant
        0    high        low     high
        """
        return frames.dominance(self.dataset)

    @property
    def distance(self) -> pd.DataFrame:
        """RKHS distance ``mmd`` between the fitted embeddings of joint laws, for each pair of policies.

        >>> comparison.distance.round(1)
          minuend subtrahend  input  mmd
        0    high        low      0  0.8
        """
        return frames.distance(self.dataset)

    @property
    def overlap(self) -> pd.DataFrame:
        """Target actions compared with logged ones, by policy and action; see ``numerics.policies.overlap``.

        ``ess`` is the effective sample size of the density ratio, NaN for fits without one.

        >>> comparison.overlap[["policy", "target_mean", "shift"]].round(1)
          policy  target_mean  shift
        0    low         -0.5    1.2
        1   high          0.5    1.2
        """
        return frames.overlap(self.dataset)

    @property
    def support(self) -> pd.DataFrame:
        """Recovered mass in the lowest and highest 5 % of the grid's range, and beyond it.

        >>> comparison.support[["policy", "edge_low", "edge_high"]].round(1)
          policy  edge_low  edge_high
        0    low       0.0        0.0
        1   high       0.0        0.0
        """
        return frames.support(self.dataset)

    def to_zarr(self, path: str | Path) -> None:
        """Write :attr:`dataset` to a new path.

        >>> import xarray as xr
        >>> comparison.to_zarr("results.zarr")
        >>> xr.open_zarr("results.zarr", consolidated=False).sizes["policy"]
        2
        """
        results.write_zarr(self.dataset, path)

    def to_parquet(self, path: str | Path) -> None:
        """Write each table to a Parquet file in a new directory; see :func:`frames.write_parquet`.

        >>> import pandas as pd
        >>> comparison.to_parquet("tables")
        >>> pd.read_parquet("tables/dominance.parquet")["dominant"].tolist()
        ['high']
        """
        frames.write_parquet(self.dataset, path)

    def __repr__(self) -> str:
        """Return the table, followed by the findings."""
        lines = [self.table.to_string(index=False), *(str(finding) for finding in self.findings)]
        return "\n".join([*lines, *([f"accepted: {', '.join(self.accepted)}"] if self.accepted else [])])

    def _repr_html_(self) -> str:
        """Return the table, followed by the findings, for notebooks."""
        found = "".join(f"<li>{escape(str(finding))}</li>" for finding in self.findings)
        accepted = f"<p>accepted: {escape(', '.join(self.accepted))}</p>" if self.accepted else ""
        return self.table.to_html(index=False, max_rows=60, float_format="{:.4g}".format) + (
            f"<ul>{found}</ul>{accepted}"
        )
