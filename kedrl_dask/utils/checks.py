"""Checks of arguments, with errors of one line that name the argument and state what was expected."""

from __future__ import annotations

import unicodedata
from numbers import Integral, Real

import numpy as np

from kedrl_dask.utils.arrays import Vector

#: Bound on the number of anything in memory, and the largest seed.
MOST_COUNT, MOST_SEED = 10**9, 2**63 - 1
#: Unicode categories that move the cursor, end the line or cannot be encoded; and marks that change the
#: direction of text.
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}
_TURNS = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROL or character in _TURNS


def has_control_characters(text: str) -> bool:
    """Return whether a text could control a terminal, or cannot be encoded."""
    return any(map(_is_control, text))


def printable(text: str) -> str:
    """Return the text in one line, with control characters escaped."""
    text = " ".join(text.split())
    return "".join(ascii(c)[1:-1] if _is_control(c) else c for c in text)


def cut(text: str, at_most: int = 300) -> str:
    """Return the printable text in one line, shortened if it is long."""
    text = printable(text)
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"


def shown(value: object) -> str:
    """Return a value for a message: its repr in one line, shortened and with its type if it is long."""
    text = printable(repr(value))
    return text if len(text) <= 100 else f"{cut(text, 100)} ({type(value).__name__})"


def is_word(value: object, *words: str) -> bool:
    """Return whether a value is one of these strings, without comparing arrays entry by entry."""
    return isinstance(value, str) and value in words


def check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    """Raise ValueError unless the value is one of the words."""
    if not is_word(value, *words):
        raise ValueError(f"{name} must be {' or '.join(map(repr, words))}, got {shown(value)}")


def check_count(
    name: str, value: object, least: int = 1, otherwise: str = "", most: int = MOST_COUNT
) -> None:
    """Raise ValueError unless the value is an integer in a range; ``otherwise`` names other options."""
    if not (isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least):
        raise ValueError(f"{name} must be {otherwise}an integer ≥ {least}, got {shown(value)}")
    if int(value) > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}")


def check_number(
    name: str, value: object, expected: str, low: float = 0.0, high: float = np.inf, open_low: bool = False
) -> None:
    """Raise ValueError unless the value is finite and in [low, high], or (low, high] with ``open_low``."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else np.nan
    if not (np.isfinite(number) and low <= number <= high and not (open_low and number == low)):
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")


def check_share(name: str, value: object) -> None:
    """Raise ValueError unless the value is a number strictly between 0 and 1."""
    if not (isinstance(value, Real) and not isinstance(value, bool) and value < 1 and not value <= 0):
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {shown(value)}")


def as_numbers(name: str, given: object, finite: bool = True) -> Vector:
    """Return real numbers as a float64 array, which must be finite by default."""
    try:
        values = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} has rows of unequal lengths, expected a rectangular array") from error
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must be real numbers, got {shown(given)} of dtype {values.dtype}; "
            "convert it, e.g. with numpy.asarray(values, dtype=float)"
        )
    with np.errstate(over="ignore"):  # from longer floats
        values = values.astype(np.float64)
    if finite and not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        at = f" at {list(where)}" if where else ""
        raise ValueError(f"{name} must be finite, got {values[where]}{at}; drop it or fill in the value")
    return values
