"""The fits of the Expedia evaluation: the results of each policy and profile as numbers, saved as JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kedrl_dask._version import __version__
from kedrl_dask.engine.storage.cache import fingerprint
from kedrl_dask.engine.storage.manifest import read_json, write_json
from kedrl_dask.estimator.fitted.findings import fit_evidence, objections
from kedrl_dask.estimator.fitted.persistence import finite
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.studies.cell import unshifted_risk
from kedrl_dask.studies.expedia.adamw import adamw_for
from kedrl_dask.studies.expedia.preparation import Prepared
from kedrl_dask.studies.expedia.specification import Profile, Sizes, parameters
from kedrl_dask.utils.arrays import Record

FITS, CACHE = "fits", ".cache"


def fit(
    output: Path, prepared: Prepared, name: str, profile: Profile, sizes: Sizes, seed: int, with_adamw: bool
) -> Record:
    """Fit one policy under one profile, unless an earlier run did, and return what the tables need."""
    conditioning = prepared.conditioning(sizes.n_conditioning, seed)
    settings = parameters(profile, sizes, conditioning, seed)
    policy = prepared.policies[name]
    # The paper's numerator inputs are random actions; quadrature nodes would be the same at all states.
    policy = policy.drawn() if profile == "paper" else policy
    facts = {
        "version": __version__,
        "settings": settings,
        "policy": policy.to_dict(),
        "data": [prepared.training.fingerprint, prepared.test.fingerprint],
    }
    record = output / FITS / f"{profile}-{name}-{fingerprint(facts)[:16]}.json"
    found = read_json(record)
    if found and ("adamw" in found or not with_adamw):
        return found
    model = KEDRL(**settings).fit(prepared.training, policy, cache=output / CACHE)
    result = _numbers(model, prepared, name)
    _file(record, result)
    if with_adamw:
        result["adamw"] = adamw_for(model, conditioning, model.diagnostics_["seconds"]["solver"], seed)
        _file(record, result)
    return result


def _file(record: Path, result: Record) -> None:
    record.parent.mkdir(exist_ok=True)
    write_json(record, result)


def _numbers(model: KEDRL, prepared: Prepared, name: str) -> Record:
    state, action = prepared.test_inputs
    weights, at_target = model.weights(state, action), model.weights(*prepared.targets[name])
    negative = np.maximum(-weights, 0).sum(axis=1) / np.abs(weights).sum(axis=1)
    mass = weights.sum(axis=1)
    found = objections({**fit_evidence(model.fitted_), "mass": at_target.sum(axis=1)}, name)
    facts = finite(model.diagnostics_)
    kept = ("ratio", "solver", "sizes", "seconds", "nystrom_residual", "separation")
    return {
        "risk": float(model.bellman_risk(state, action).mean()),
        "unshifted_risk": float(unshifted_risk(model, state, action).mean()),
        "mass": {"mean": float(mass.mean()), "sd": float(mass.std())},
        "negative": float(negative.mean()),
        "coefficients": at_target[0].tolist(),
        "grid": model.grid_.tolist(),
        "input_kernel": model.input_kernel_.to_dict(),
        "ridge_gamma": model.ridge_gamma_,
        "ridge_b": model.ridge_b_,
        "findings": [item.to_dict() for item in found],
        **{key: facts[key] for key in kept},
        "grid_coverage": facts["grid"],
    }
