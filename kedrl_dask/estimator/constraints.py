"""How an estimator's parameters are declared once, and from there checked, documented and offered as options.

A parameter is a field of a dataclass with a constraint and words::

    n_blocks: int = parameter(count(), "Number of blocks of whole episodes for which sums are kept.")

The estimator's ``__init__`` has the same names with their defaults, as scikit-learn requires.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from textwrap import fill, indent
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from kedrl_dask.utils.checks import check_count, check_number, check_word, is_word, shown

#: The largest size that is accepted; below it, a plan says what a size costs.
MOST_OF_A_SIZE = 10**6


def _anything(name: str, value: object, otherwise: str) -> None:
    """Accept any value; what it must be depends on the data."""


@dataclass(frozen=True)
class Constraint:
    """What a parameter may be: its type in the documentation, a check, and all choices if they are words.

    The check takes the name, the value, and what else is allowed in words; it raises ValueError.
    """

    kind: str
    check: Callable[[str, Any, str], object] = _anything
    words: tuple[str, ...] = ()


def choice(*words: str) -> Constraint:
    """One of some words; without any, those of the parameter's ``Literal`` type."""
    kind = "{" + ", ".join(map(_quoted, words)) + "}"
    return Constraint(kind, lambda name, value, _: check_word(name, value, words), words)


def count(least: int = 1, most: int = MOST_OF_A_SIZE) -> Constraint:
    """An integer from ``least`` to ``most``."""
    return Constraint("int", lambda name, value, otherwise: check_count(name, value, least, otherwise, most))


def number(low: float = 0.0, high: float = float("inf"), open_low: bool = False) -> Constraint:
    """A finite number from ``low``, or above it if that is open, to ``high``."""
    expected = "a positive number" if open_low else f"a number ≥ {low:g}"

    def check(name: str, value: Any, otherwise: str) -> None:
        check_number(name, value, f"{otherwise}{expected}", low, open_low=open_low)
        if value > high:
            raise ValueError(f"{name} must be at most {high:g}, got {value!r}")

    return Constraint("float", check)


def instance(cls: type, words: str) -> Constraint:
    """An object of a class, which messages call by ``words``."""

    def check(name: str, value: object, otherwise: str) -> None:
        if not isinstance(value, cls):
            raise ValueError(f"{name} must be {otherwise}{words}, got {shown(value)}")

    return Constraint(cls.__name__, check)


def either(alternative: str | None, other: Constraint) -> Constraint:
    """A word or None, or else what another constraint allows."""

    def check(name: str, value: object, otherwise: str) -> None:
        if not (value is None if alternative is None else is_word(value, alternative)):
            other.check(name, value, f"{otherwise}{alternative!r} or ")

    return Constraint(f"{other.kind} or {_quoted(alternative)}", check)


class Parameter(NamedTuple):
    """A declared parameter; the first sentence of its words is the help of its command-line option."""

    constraint: Constraint
    words: str
    option: str


def parameter(constraint: Constraint, words: str, option: str = "") -> Any:
    """Declare a field of a dataclass as a parameter."""
    return field(metadata={"parameter": Parameter(constraint, " ".join(words.split()), option)})


def declared(settings: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name."""
    about = {part.name: part.metadata["parameter"] for part in fields(settings)}
    for name, hint in get_type_hints(settings).items():
        if get_origin(hint) is Literal:
            about[name] = about[name]._replace(constraint=choice(*get_args(hint)))
    return about


def check_parameters(estimator: str, settings: object) -> None:
    """Raise ValueError for the first parameter that breaks its constraint, naming both."""
    for name, about in declared(type(settings)).items():
        about.constraint.check(f"{estimator}: {name}", getattr(settings, name), "")


Estimator = TypeVar("Estimator", bound=type)


def documented(settings: type) -> Callable[[Estimator], Estimator]:
    """Decorate an estimator: write its parameters in place of ``{parameters}`` in its docstring."""

    def document(estimator: Estimator) -> Estimator:
        about, lines = declared(settings), []
        for name, given in inspect.signature(estimator).parameters.items():
            default = "" if given.default is given.empty else f", default={_quoted(given.default)}"
            lines.append(f"{name} : {about[name].constraint.kind}{default}")
            lines.append(indent(fill(about[name].words, 100, break_on_hyphens=False), "    "))
        if estimator.__doc__:  # there is none with python -OO
            # Python 3.13 removes the indentation of docstrings; earlier versions leave it.
            cleaned = inspect.cleandoc(estimator.__doc__)
            estimator.__doc__ = cleaned.replace("{parameters}", "\n".join(lines))
        return estimator

    return document


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
