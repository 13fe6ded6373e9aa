"""Options that are parameters of KEDRL, in every verb that fits or plans a fit."""

from __future__ import annotations

from argparse import Namespace

from kedrl_dask.cli.common import Option, option, positive
from kedrl_dask.estimator.constraints import Parameter, declared
from kedrl_dask.estimator.parameters import Parameters
from kedrl_dask.utils.arrays import Record


def _option(name: str, about: Parameter) -> Option:
    """The option of a parameter, whose default is that of KEDRL."""
    summary = about.words.partition(". ")[0].removesuffix(".")
    meaning = f"{summary[0].lower()}{summary[1:]} ({name} of KEDRL)"
    if about.constraint.words:
        return option(meaning, choices=about.constraint.words, dest=name)
    return option(meaning, type=positive, dest=name, metavar="N")


_OPTIONAL = {name: about for name, about in declared(Parameters).items() if about.option}
#: Names of the parameters, and their options.
PARAMETERS = tuple(_OPTIONAL)
SETTINGS = {about.option: _option(name, about) for name, about in _OPTIONAL.items()}


def given_parameters(options: Namespace) -> Record:
    """The parameters that were given on the command line."""
    return {name: value for name in PARAMETERS if (value := getattr(options, name)) is not None}
