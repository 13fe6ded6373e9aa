"""Options that are parameters of KEDRL, in every verb that fits or plans a fit."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kedrl_dask.cli.common import positive
from kedrl_dask.estimator.constraints import Parameter, declared
from kedrl_dask.estimator.fit.parameters import Parameters

__all__ = ["PARAMETERS", "SETTINGS", "given_parameters"]


def _option(name: str, about: Parameter) -> dict[str, Any]:
    """What argparse needs to know; KEDRL has the default."""
    summary = about.words.partition(". ")[0].removesuffix(".")
    shared = {"dest": name, "help": f"{summary[0].lower()}{summary[1:]} ({name} of KEDRL)"}
    words = about.constraint.words
    return {**shared, "choices": words} if words else {**shared, "type": positive, "metavar": "N"}


_OPTIONAL = {name: about for name, about in declared(Parameters).items() if about.option}
#: Names of the parameters, and their options.
PARAMETERS = tuple(_OPTIONAL)
SETTINGS = {about.option: _option(name, about) for name, about in _OPTIONAL.items()}


def given_parameters(options: Namespace) -> dict[str, Any]:
    """The parameters that were given on the command line."""
    return {name: value for name in PARAMETERS if (value := getattr(options, name)) is not None}
