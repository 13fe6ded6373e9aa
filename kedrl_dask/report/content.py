"""The content of a report, whatever its source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr

from kedrl_dask.comparison.drift import Drift
from kedrl_dask.engine.storage.directories import StoreError, attributes_at
from kedrl_dask.estimator.fitted import persistence, results
from kedrl_dask.estimator.fitted.diagnostics import versions
from kedrl_dask.estimator.fitted.findings import Finding, Refused, fit_evidence, objections
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.utils.arrays import Inputs, Record

#: Name given to the policy of a saved model.
FITTED = "fitted policy"
#: Quantiles of the first principal component of a model's basis that serve as default inputs.
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a report; the dataset is None if the answers were refused."""

    title: str
    source: str
    dataset: xr.Dataset | None  # from fitted.results.law_dataset
    findings: tuple[Finding, ...]
    accepted: tuple[str, ...]
    policies: dict[str, str]  # parameters in words
    diagnostics: dict[str, Record]  # by policy
    settings: Record
    versions: dict[str, str]
    seconds: dict[str, float]  # of the stages other than the fits
    where: str  # the inputs in words
    drift: Drift | None = None

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The findings for which the answers were refused."""
        if self.dataset is not None:
            return ()
        return tuple(f for f in self.findings if f.severity == "refuse" and f.code not in self.accepted)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the data and of the fit, common to all policies."""
        return next(iter(self.diagnostics.values()))["sizes"]


def read(path: str | Path, accept: Sequence[str] = ()) -> Content:
    """Read content from a results store, a saved model, or a directory that holds a model in ``model``.

    Answers of a model are not refused for findings with the codes ``accept``; results were judged when they
    were computed.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"{path}: no such file or directory")
    attributes, inside = attributes_at(path), path / "model"
    if attributes is None and attributes_at(inside) is not None:
        return from_model(KEDRL.load(inside), str(path), _points(path), accept)
    if attributes is not None and attributes.get("kind") == persistence.KIND:
        return from_model(KEDRL.load(path), str(path), None, accept)
    if attributes is not None and {"findings", "policies", "diagnostics"} <= set(attributes):
        return from_results(results.read_zarr(path), str(path))
    found = "none of these" if attributes is None else f"a store of kind {attributes.get('kind')!r}"
    raise StoreError(
        f"{path}: expected results (compare(...).to_zarr), a saved model, or a directory with a saved model "
        f"in 'model'; it is {found}"
    )


def _points(path: Path) -> Inputs | None:
    """Read the inputs that a demonstration evaluated."""
    summary = path / "summary.json"
    if not summary.exists():
        return None
    points = json.loads(summary.read_text()).get("points")
    return None if points is None else np.asarray(points, dtype=np.float64)


def from_results(dataset: xr.Dataset, source: str) -> Content:
    """Make content from a results dataset such as ``compare(...).dataset``."""
    facts = {
        name: json.loads(dataset.attrs.get(name, "{}"))
        for name in ("policies", "diagnostics", "settings", "versions", "seconds")
    }
    names = [str(name) for name in dataset["policy"].values]
    for by_policy in ("policies", "diagnostics"):  # the dataset may hold a selection of the policies
        facts[by_policy] = {name: facts[by_policy][name] for name in names}
    title = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return Content(
        title=f"Returns under {title}",
        source=source,
        dataset=dataset,
        findings=tuple(Finding(**found) for found in json.loads(dataset.attrs["findings"])),
        accepted=tuple(json.loads(dataset.attrs["accepted"])),
        where=_where(dataset),
        **facts,
    )


def _where(dataset: xr.Dataset) -> str:
    if "averaged" in dataset.dims:
        n = dataset.sizes["averaged"]
        kind = "inputs" if "input_action" in dataset else "states, each policy choosing its own actions"
        return f"averaged over a sample of {n:,} {kind}"
    n = dataset.sizes["input"]
    if "input_action" in dataset or "input_state" not in dataset:
        return f"at {n:,} state-action input{'s' * (n > 1)}, the policy acting from the next step on"
    return f"at {n:,} state{'s' * (n > 1)}, each policy choosing its own actions from the start"


def from_model(
    model: KEDRL, source: str, inputs: npt.ArrayLike | None = None, accept: Sequence[str] = ()
) -> Content:
    """Make content from a fitted model by recovering its laws at inputs (n, p + q).

    By default, these are points of the basis along its first principal component. ``accept`` lists the codes
    of findings to accept, for which answers are not refused.
    """
    chosen = typical_inputs(model) if inputs is None else np.asarray(inputs, dtype=np.float64)
    state, action = np.hsplit(chosen, [model.diagnostics_["sizes"]["state_dim"]])
    where = f"at {len(chosen)} state-action inputs, the policy acting from the next step on"
    if inputs is None:
        shares = ", ".join(f"{share:.0%}" for share in SHARES)
        where += f" (basis points at the {shares} quantiles of the first principal component)"
    dataset, findings = None, tuple(objections(fit_evidence(model.fitted_)))
    try:
        dataset = model.embedding(state, action, accept).dataset(FITTED)
    except Refused as refusal:
        findings = tuple(dict.fromkeys((*refusal.findings, *findings)))
    else:
        dataset["input_state"] = (("input", "state"), state)
        dataset["input_action"] = (("policy", "input", "action"), action[None])
        findings = tuple(Finding(**found) for found in json.loads(dataset.attrs["findings"]))
    facts = persistence.finite(model.diagnostics_)
    return Content(
        title="Return under the fitted policy",
        source=source,
        dataset=dataset,
        findings=findings,
        accepted=tuple(accept),
        policies={FITTED: facts["policy"]},
        diagnostics={FITTED: facts},
        settings=persistence.parameters(model),
        versions=facts.get("versions", versions()),
        seconds={},
        where=where,
    )


def typical_inputs(model: KEDRL) -> Inputs:
    """Choose basis points along the first principal component of inputs scaled by the kernel; (n, p + q)."""
    scaled = model.input_kernel_.scale(model.basis_)
    centred = scaled - scaled.mean(axis=0)
    score = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    order = np.argsort(score)
    return model.basis_[order[[round(share * (len(order) - 1)) for share in SHARES]]]
