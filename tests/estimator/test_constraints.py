"""Parameters are declared once; signatures, checks, documentation and options follow."""

import inspect
from typing import get_type_hints

import pytest

from kedrl_dask import KEDRL, ConditionalEmbedding
from kedrl_dask.cli.parameters import SETTINGS
from kedrl_dask.estimator.conditional_embedding import EmbeddingParameters
from kedrl_dask.estimator.constraints import declared
from kedrl_dask.estimator.parameters import Parameters

ESTIMATORS = [(KEDRL, Parameters), (ConditionalEmbedding, EmbeddingParameters)]


@pytest.mark.parametrize(("estimator", "parameters"), ESTIMATORS)
def test_signature__is_the_declaration(estimator, parameters):
    signature, about = inspect.signature(estimator).parameters, declared(parameters)
    assert sorted(signature) == sorted(about)
    hints, given = get_type_hints(parameters), get_type_hints(estimator.__init__)
    assert {name: hints[name] for name in signature} == {name: given[name] for name in signature}


@pytest.mark.parametrize(("estimator", "parameters"), ESTIMATORS)
def test_docstring__has_every_parameter_in_order(estimator, parameters):
    documentation, at = inspect.getdoc(estimator), 0
    for name, given in inspect.signature(estimator).parameters.items():
        about = declared(parameters)[name]
        at = documentation.index(f"\n{name} : {about.constraint.kind}", at)
        assert about.words.split(". ")[0].split()[0] in documentation[at:]
        if given.default is not given.empty:
            assert "default=" in documentation[at:].splitlines()[1]


def test_options__take_what_the_parameters_may_be():
    about = {one.option: (name, one) for name, one in declared(Parameters).items() if one.option}
    assert list(about) == list(SETTINGS)
    for option, (name, one) in about.items():
        assert SETTINGS[option]["dest"] == name
        assert SETTINGS[option].get("choices", ()) == one.constraint.words
