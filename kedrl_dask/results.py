"""Recovered laws and their summaries as labelled datasets, and these as Zarr."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import scipy
import xarray as xr

from kedrl_dask import persist
from kedrl_dask._version import __version__
from kedrl_dask.gate import Finding
from kedrl_dask.mixtures import Mixture
from kedrl_dask.recovery import Recovered
from kedrl_dask.store import remove

if TYPE_CHECKING:
    from kedrl_dask.model import KEDRL

__all__ = [
    "LEVELS",
    "SUMMARIES",
    "TAIL",
    "law_dataset",
    "provenance",
    "summarise",
    "text",
    "verdict",
    "write_zarr",
]

Array = npt.NDArray[Any]

#: Levels of the quantiles, and the share of the tail mean, unless others are asked for.
LEVELS, TAIL = (0.05, 0.25, 0.5, 0.75, 0.95), 0.1
#: Summaries of a law by coordinate: their meaning, and whether they have a level each.
SUMMARIES = {
    "mean": "mean of the recovered law",
    "sd": "its standard deviation, smoothing included",
    "quantile": "its quantiles",
    "cvar": "mean of its lowest share, the attribute tail",
}
CAUTION = (
    "A recovered law is a regularised proxy for one of many laws whose embeddings are near the fitted one. "
    "Summaries hold under its specification; coefficients are signed and no probabilities."
)


def summarise(law: Mixture, levels: Sequence[float] = LEVELS, tail: float = TAIL) -> dict[str, Array]:
    """The summaries of n laws: (n, d) each, and (n, d, level) for the quantiles."""
    coordinates = range(law.atoms.shape[1])
    return {
        "mean": law.mean(),
        "sd": np.sqrt(np.diagonal(law.covariance(), axis1=1, axis2=2)),
        "quantile": np.stack([law.quantile(levels, c) for c in coordinates], axis=1),
        "cvar": np.stack([law.cvar(tail, c) for c in coordinates], axis=1),
    }


def law_dataset(
    laws: Mapping[str, Recovered], levels: Sequence[float] = LEVELS, tail: float = TAIL
) -> xr.Dataset:
    """Recovered laws of policies on one grid, with summaries and what to judge them by.

    Dimensions are ``policy``, ``input``, ``atom``, ``coordinate`` and ``level``.

    Parameters
    ----------
    laws : dict
        The laws of each policy at as many inputs, on the same atoms.
    levels : sequence of float
        Levels of the quantiles.
    tail : float
        Share of the tail mean.
    """
    first = next(iter(laws.values()))
    for name, law in laws.items():
        if not np.array_equal(law.atoms, first.atoms) or law.weights.shape != first.weights.shape:
            raise ValueError(
                f"the law of {name!r} has other atoms or inputs than that of {next(iter(laws))!r}; "
                "fit with the same settings and recover at as many inputs"
            )
    lead = ("policy", "input")
    by_law: dict[str, list[Any]] = {}
    for law in laws.values():
        values = summarise(law, levels, tail) | {
            "weight": law.weights,
            "coefficient_mass": law.coefficients.sum(axis=1),
            "relative_residual": law.relative_residual,
            "gap": law.gap,
            **{f"flag_{name}": flag for name, flag in law.flags.items()},
        }
        for name, value in values.items():
            by_law.setdefault(name, []).append(value)
    further = {"weight": ("atom",), "quantile": ("coordinate", "level")}
    further |= dict.fromkeys(("mean", "sd", "cvar"), ("coordinate",))
    dataset = xr.Dataset(
        {name: ((*lead, *further.get(name, ())), np.stack(values)) for name, values in by_law.items()},
        coords={
            "policy": text(laws),
            "input": np.arange(len(first.weights)),
            "coordinate": np.arange(first.atoms.shape[1]),
            "level": np.asarray(levels, dtype=np.float64),
        },
        attrs={"caution": CAUTION, "tail": tail, "recovery": json.dumps(_recovery(first))},
    )
    dataset["atoms"] = (("atom", "coordinate"), first.atoms)
    dataset["bandwidth"] = (("coordinate",), first.bandwidth)
    meanings = SUMMARIES | {
        "weight": "probability of each atom",
        "coefficient_mass": "sum of the signed coefficients; 1 is right",
        "relative_residual": "distance of the law from the embedding, relative to its norm",
        "gap": "how far the matching is above its minimum, at most",
        "bandwidth": "standard deviation of the Gaussian smoothing of each coordinate",
    }
    for name, meaning in meanings.items():
        dataset[name].attrs["meaning"] = meaning
    return dataset


def text(labels: Any) -> Array:
    """Labels as objects, which become Zarr's string type; of fixed length Zarr v3 has no specification."""
    return np.array(list(labels), dtype=object)


def _recovery(law: Recovered) -> dict[str, Any]:
    """The settings of a recovery as JSON can hold them."""
    values = vars(law.settings) | {"bandwidth": law.bandwidth.tolist()}
    supports = {str(c): np.asarray(support).tolist() for c, support in law.supports.items()}
    return values | {"projected": supports}


def provenance(model: KEDRL) -> dict[str, Any]:
    """Where results come from, as attributes: versions, seed, fingerprint of the data, settings."""
    versions = {
        "kedrl_dask": __version__,
        "python": platform.python_version(),
        **{library.__name__: library.__version__ for library in (np, scipy, xr)},
    }
    return {
        "versions": json.dumps(versions),
        "seed": model.random_state,
        "fingerprint": model.diagnostics_["data"],
        "settings": json.dumps(persist.parameters(model)),
    }


def verdict(findings: Sequence[Finding], accepted: Sequence[str]) -> dict[str, str]:
    """Findings, and the codes that were accepted, as attributes."""
    return {
        "findings": json.dumps([finding.to_dict() for finding in findings]),
        "accepted": json.dumps(list(accepted)),
    }


def write_zarr(dataset: xr.Dataset, path: str | Path) -> None:
    """Write a dataset to a new Zarr store, which appears when it is complete.

    Read it with ``xarray.open_zarr(path, consolidated=False)``.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists; give a new path, or remove it first")
    partial = path.with_name(f".{path.name}-{uuid4().hex[:8]}")
    try:
        dataset.to_zarr(partial, mode="w", zarr_format=3, consolidated=False)
        partial.rename(path)
    finally:
        remove(partial)
