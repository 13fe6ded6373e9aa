"""Recovered laws and their summaries as labelled datasets, which Zarr stores hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from kedrl_dask.engine.storage.atomic import atomic_directory
from kedrl_dask.estimator.fitted import persistence
from kedrl_dask.estimator.fitted.diagnostics import versions
from kedrl_dask.estimator.fitted.findings import Finding
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.numerics.laws.recovery import Recovered
from kedrl_dask.numerics.laws.summaries import (
    CURVES,
    LEVELS,
    SUMMARIES,
    TAIL,
    Summaries,
    summarise,
    thresholds,
)
from kedrl_dask.utils.arrays import Array, Record

__all__ = ["law_dataset", "provenance", "read_zarr", "text", "verdict", "write_zarr"]


CAUTION = (
    "A recovered law is a regularised proxy for one of many laws whose embeddings are near the fitted one. "
    "Summaries hold under its specification; coefficients are signed and are not probabilities."
)
#: What the variables beside summaries and curves are.
MEANINGS = {
    **{f"{name}_second": f"{name} under the second specification" for name in SUMMARIES},
    "covariance": "covariance of the recovered law, smoothing included",
    "weight": "probability of each atom",
    "coefficient_mass": "sum of the signed coefficients; 1 is right",
    "relative_residual": "distance of the law from the embedding, relative to its norm",
    "gap": "how far the matching is above its minimum, at most",
    "bandwidth": "standard deviation of the Gaussian smoothing of each coordinate; of simulated returns, of "
    "their density alone",
    "thresholds": "where the curves are taken; the last is repeated where there are fewer",
}


def law_dataset(
    laws: Mapping[str, Recovered], levels: Sequence[float] = LEVELS, tail: float = TAIL
) -> xr.Dataset:
    """Recovered laws of policies, at as many inputs and on the same atoms, with summaries and diagnostics.

    Dimensions are ``policy``, ``input``, ``atom``, ``coordinate`` and ``level`` (of quantiles); ``threshold``
    for curves, and ``coordinate_2`` for covariances. Atoms may be shifted: ``atoms`` is then of each policy
    and input. ``tail`` is the share of the tail mean.
    """
    first = next(iter(laws.values()))
    for name, law in laws.items():
        is_same = law.atoms.ndim == 3 or np.array_equal(law.atoms, first.atoms)
        if not is_same or law.weights.shape != first.weights.shape or type(law) is not type(first):
            raise ValueError(
                f"the law of {name!r} has other atoms or inputs than that of {next(iter(laws))!r}; "
                "fit with the same settings and recover at the same number of inputs"
            )
    summaries = Summaries(tuple(levels), tail, thresholds(*laws.values()))
    by_law: dict[str, list[Array]] = {}
    for law in laws.values():
        second = summarise(law.sensitivity, levels, tail)
        values = summaries(law) | {
            **{f"{name}_second": value for name, value in second.items()},
            "covariance": law.covariance(),
            "weight": law.weights,
            "coefficient_mass": law.coefficients.sum(axis=1),
            "relative_residual": law.relative_residual,
            "gap": law.gap,
            **{f"flag_{name}": flag for name, flag in law.flags.items()},
        }
        for name, value in values.items():
            by_law.setdefault(name, []).append(value)
    dims = {name: summaries.dims(name) for name in (*SUMMARIES, *CURVES)}
    dims |= {f"{name}_second": dims[name] for name in SUMMARIES}
    dims |= {"weight": ("input", "atom"), "covariance": ("input", "coordinate", "coordinate_2")}
    dataset = xr.Dataset(
        {
            name: (("policy", *dims.get(name, ("input",))), np.stack(values))
            for name, values in by_law.items()
        },
        coords={
            "policy": text(laws),
            "input": np.arange(len(first.weights)),
            "coordinate": np.arange(first.dim),
            "level": np.asarray(levels, dtype=np.float64),
        },
        attrs={
            "caution": CAUTION,
            "tail": tail,
            "recovery": json.dumps(_recovery(first)),
            "second_specification": first.second_specification,
        },
    )
    if first.is_common:
        dataset["atoms"] = (("atom", "coordinate"), first.atoms)
    if not all(law.is_common for law in laws.values()):
        places = [[law.atoms_of(row) for row in range(len(law.weights))] for law in laws.values()]
        dataset["atoms"] = (("policy", "input", "atom", "coordinate"), np.array(places))
    dataset["bandwidth"] = (("coordinate",), first.density_bandwidth)
    dataset["thresholds"] = (("coordinate", "threshold"), summaries.thresholds)
    for name, meaning in (SUMMARIES | CURVES | MEANINGS).items():
        dataset[name].attrs["meaning"] = meaning
    return dataset


def text(labels: Iterable[str]) -> Array:
    """Labels as objects, which Zarr v3 stores as strings; it does not specify strings of fixed length."""
    return np.array(list(labels), dtype=object)


def _recovery(law: Recovered) -> Record:
    """The settings of a recovery as JSON."""
    values = vars(law.settings) | {"bandwidth": law.bandwidth.tolist()}
    supports = {str(c): np.asarray(support).tolist() for c, support in law.supports.items()}
    return values | {"projected": supports}


def provenance(models: Mapping[str, FittedModel]) -> Record:
    """Provenance of results as attributes: versions, seed, data, settings, policies and diagnostics."""
    first = next(iter(models.values()))
    return {
        "versions": json.dumps(versions()),
        "seed": first.settings.random_state,
        "fingerprint": first.diagnostics["data"],
        "settings": json.dumps(persistence.parameters(first.settings)),
        "policies": json.dumps({name: model.diagnostics["policy"] for name, model in models.items()}),
        "diagnostics": json.dumps(
            {name: persistence.finite(model.diagnostics) for name, model in models.items()}, allow_nan=False
        ),
    }


def verdict(findings: Sequence[Finding], accepted: Sequence[str]) -> dict[str, str]:
    """Findings and accepted codes as attributes."""
    return {
        "findings": json.dumps([finding.to_dict() for finding in findings]),
        "accepted": json.dumps(list(accepted)),
    }


def read_zarr(path: str | Path) -> xr.Dataset:
    """Read into memory a dataset written by :func:`write_zarr`.

    Examples
    --------
    >>> import xarray
    >>> from kedrl_dask import results
    >>> results.write_zarr(xarray.Dataset({"mean": ("coordinate", [0.5, 2.0])}), "law.zarr")
    >>> results.read_zarr("law.zarr")["mean"].values
    array([0.5, 2. ])
    """
    return xr.open_zarr(path, consolidated=False).load()


def write_zarr(dataset: xr.Dataset, path: str | Path) -> None:
    """Write a dataset to a new Zarr store atomically.

    Read it with :func:`read_zarr`, or ``xarray.open_zarr(path, consolidated=False)``.
    """
    with atomic_directory(path) as partial:
        dataset.to_zarr(partial, mode="w", zarr_format=3, consolidated=False)
